"""Access to the JVM in few requests.

py4j asks the JVM for each part of a name at each use: `org`, `org.apache`, and so on. Its iteration over a Java map needs
three requests for each entry. At the end of an iteration Java raises an exception, and PySpark then asks for its class
with sixty requests. A request takes 0.1 to 0.3 ms of CPU time.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView, get_method
from py4j.protocol import DEFAULT_JVM_ID, DEFAULT_JVM_NAME


class JavaNames:
    """A JVM, package or class whose parts are looked up once. Use it as py4j's own object."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        """Return a package, class or static method. The next lookup finds it in this object."""
        part = getattr(self._found, name)
        if isinstance(part, JavaPackage | JavaClass):
            part = JavaNames(part)
        elif not isinstance(part, JavaMember):
            return part  # The value of a field may change.
        self.__dict__[name] = part
        return part

    def __call__(self, *arguments: Any) -> Any:
        """Construct an object of the class."""
        return self._found(*arguments)


class Json(NamedTuple):
    """Jackson's mapper, and the class of the maps that it makes, in one JVM."""

    mapper: Any
    map_class: Any


JSON: dict[Any, Json] = {}
"""The mapper of each JVM, by the client of its gateway. The first request of a client adds it. Fakes of Java objects add theirs."""


def _json(source: Any) -> Json:
    client = source._gateway_client
    found = JSON.get(client)
    if found is None:
        jvm = JVMView(client, DEFAULT_JVM_NAME, DEFAULT_JVM_ID)
        found = JSON[client] = Json(
            jvm.org.apache.iceberg.util.JsonUtil.mapper(), jvm.java.lang.Class.forName("java.util.HashMap")
        )
    return found


def texts(source: Any) -> dict[str, str]:
    """Return a Java map of texts as a dict, in one request."""
    values: dict[str, str] = json.loads(_json(source).mapper.writeValueAsString(source))
    return values


def java_map(source: Any, values: Mapping[str, str]) -> Any:
    """Return ``values`` as a map in the JVM of the Java object ``source``, in one request."""
    mapper, map_class = _json(source)
    return mapper.readValue(json.dumps(values), map_class)


def json_node(source: Any, text: str) -> Any:
    """Return Jackson's node of a JSON text, in the JVM of the Java object ``source``."""
    return _json(source).mapper.readTree(text)


def elements(iterator: Any) -> Iterator[Any]:
    """Yield the elements of a Java iterator. Raises its exceptions; py4j's own iteration ends silently at them."""
    following = get_method(iterator, "next")
    while iterator.hasNext():
        yield following()
