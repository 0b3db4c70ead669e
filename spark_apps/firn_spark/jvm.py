"""Access to the JVM in few requests.

py4j asks the JVM for each part of a name at each use: `org`, `org.apache`, and so on. Its iteration over a Java map needs
three requests for each entry. At the end of an iteration Java raises an exception, and PySpark then asks for its class
with sixty requests. A request takes 0.1 to 0.3 ms of CPU time.
"""

import json
from collections.abc import Iterator
from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, get_method


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


def texts(jvm: Any, source: Any) -> dict[str, str]:
    """Return a Java map of texts in one request."""
    values: dict[str, str] = json.loads(jvm.org.apache.iceberg.util.JsonUtil.mapper().writeValueAsString(source))
    return values


def elements(iterator: Any) -> Iterator[Any]:
    """Yield the elements of a Java iterator. Raises its exceptions; py4j's own iteration ends silently at them."""
    following = get_method(iterator, "next")
    while iterator.hasNext():
        yield following()
