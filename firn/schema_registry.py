"""Read schemas from a schema registry: the one with an id, the latest of a subject, the subjects of an id, the id of a GUID.

Source: Confluent's Schema Registry API, "Schemas" and "Subjects". Apicurio Registry (``/apis/ccompat/v7``) and Karapace
have the same requests, without GUIDs. The client limits the time and the size of each answer, and follows no redirect.
"""

import base64
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import urllib3
import urllib3.connection

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, InvalidSpecError, UnavailableError
from firn.model.jobs import RegistryConnection, SchemaFormat, WriterSchema

AVRO = "AVRO"
"""The type of Avro schemas. A registry leaves it out."""
TYPES: Mapping[SchemaFormat, str] = {
    SchemaFormat.AVRO: AVRO,
    SchemaFormat.JSON: "JSON",
    SchemaFormat.PROTOBUF: "PROTOBUF",
}
"""The type of the schemas of a format."""
CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 15.0
"""Most seconds for a connection, and for all requests for a schema and its references."""
MOST_ANSWER = 8 << 20
"""Most bytes of an answer. JSON escapes make a schema at most six times longer, so schemas of 1 MiB fit."""
MOST_REFERENCES, MOST_TEXTS = 100, 2 << 20
"""Most references of a schema, and most characters of a schema with its references."""
MOST_ID = 2**31 - 1
"""Largest id of a schema."""
_MISSING = frozenset({40401, 40402, 40403})
"""Error codes of a registry that answers that it has no such subject, version or schema. A status 404 alone may come from
another server at this address."""
_BUSY = frozenset({429, 502, 503, 504})
_NO_GUIDS = (
    "the registry does not resolve the GUIDs of schemas; let producers write ids, or use a registry with this request, such as Confluent"
    " Schema Registry 8"
)
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_CHUNK = 64 << 10


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema with its id and its type, such as ``AVRO``."""

    id: int
    kind: str
    schema: WriterSchema


def of_others(registry: str, number: int, subjects: frozenset[str], subject: str) -> str | None:
    """Return the problem if a schema belongs to other subjects only: ``subjects``.

    None if it is one of ``subject``, and if the registry names no subject, which is no reason to refuse the schema.
    """
    if not subjects or subject in subjects:
        return None
    more = f" and {len(subjects) - 1} more" if len(subjects) > 1 else ""
    return (
        f"schema {number} of schema registry {registry} belongs to subject {min(subjects)}{more}, and the topic has subject"
        f" {subject}"
    )


class RegistryAwayError(UnavailableError):
    """The registry answers no request for now, whatever its schema. Other failures may be those of one schema."""


class UnusableSchemaError(InvalidSpecError):
    """The registry answers, but no process can use the schema. A schema never changes, so waiting does not help."""


class MissingReferenceError(UnusableSchemaError):
    """The registry has a schema, but lacks one to which it refers. A client deleted that one permanently, or a replica gets it later.

    A registry accepts no schema before those that it refers to. So callers ask again some seconds later, and then treat the
    schema as unusable.
    """


class SchemaRegistry:
    """A registry of the operator's configuration. Threads may share it.

    Methods raise AccessDeniedError if the registry rejects the credentials. They raise UnavailableError
    (RegistryUnreachable) if no usable answer arrives, and UnusableSchemaError (BadSchema) for a schema that is too large,
    or MissingReferenceError.
    """

    def __init__(self, name: str, connection: RegistryConnection, secret: Callable[[str], str]) -> None:
        """``secret`` returns the content of the file at a path. It is called for each request, because secrets change."""
        self._name = name
        self._connection = connection
        self._secret = secret
        self._pool: tuple[str | None, urllib3.PoolManager] | None = None

    def by_id(self, number: int) -> Registered | None:
        """Return the schema with an id, or None if the registry has none."""
        deadline = time.monotonic() + ANSWER_SECONDS
        answer = self._get(f"/schemas/ids/{number}", deadline)
        return None if answer is None else self._registered(answer, number, deadline)

    def latest(self, subject: str) -> Registered | None:
        """Return the latest schema of a subject, or None if the subject has none."""
        deadline = time.monotonic() + ANSWER_SECONDS
        answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest", deadline)
        return None if answer is None else self._registered(answer, _number(answer, "id"), deadline)

    def id_of(self, guid: str) -> int | None:
        """Return the id of the schema with a GUID, or None if the registry has none.

        Schemas with one GUID have an id in each context. The id is that in the context of the URL.
        """
        answer = self._answer(f"/schemas/guids/{guid}/ids", time.monotonic() + ANSWER_SECONDS, _NO_GUIDS)
        if answer is None:
            return None
        if not isinstance(answer, list):
            raise self._no_schema()
        ids = {_text(each, "context") or ".": _number(each, "id") for each in answer}
        if None in ids.values():
            raise self._no_schema()
        return ids.get(self._context)

    @property
    def _context(self) -> str:
        """Return the context in the URL, such as ``.sales``. Without one, it is the default context: ``.``."""
        _, found, name = self._connection.url.rstrip("/").rpartition("/contexts/")
        return f".{unquote(name).strip(':').removeprefix('.')}" if found else "."

    def subjects(self, number: int, *, deleted: bool = False) -> frozenset[str]:
        """Return the subjects under which the schema with an id is registered; none if the registry has no such schema.

        ``deleted``: also those whose version with this schema was deleted.
        """
        path = f"/schemas/ids/{number}/versions{'?deleted=true' if deleted else ''}"
        answer = self._answer(path, time.monotonic() + ANSWER_SECONDS)
        if answer is None:
            return frozenset()
        names = [_text(version, "subject") for version in answer] if isinstance(answer, list) else [None]
        if None in names:
            raise self._no_schema()
        return frozenset(_without_context(name) for name in names if name is not None)

    def _registered(self, answer: dict[str, Any], number: int | None, deadline: float) -> Registered:
        text, kind = _text(answer, "schema"), answer.get("schemaType") or AVRO
        if text is None or not isinstance(kind, str) or number is None:
            raise self._no_schema()
        references: dict[str, str] = {}
        self._resolve(answer, references, [], deadline)
        if len(text) + sum(map(len, references.values())) > MOST_TEXTS:
            raise self._refused(
                f"schema {number} has more than {MOST_TEXTS} characters with its references; register a smaller schema"
            )
        schema = WriterSchema(text=text, references=tuple(references.values()), names=tuple(references))
        return Registered(number, kind, schema)

    def _resolve(
        self, answer: dict[str, Any], found: dict[str, str], within: list[tuple[str, int]], deadline: float
    ) -> None:
        """Add the schemas that a schema refers to by the names of their types, each after those that it refers to itself.

        If two schemas refer to a type in different versions, the first one counts, as in Confluent's registry.
        """
        references = answer.get("references") or []
        for reference in references if isinstance(references, list) else []:
            subject, version = _text(reference, "subject"), _number(reference, "version")
            name = _text(reference, "name")
            if subject is None or version is None or name is None:
                raise self._no_schema()
            place = (subject, version)
            if name in found:
                continue
            if place in within:
                raise self._refused(
                    f"the references of a schema form a circle at subject {subject}; register the schema without the circle"
                )
            if len(found) + len(within) >= MOST_REFERENCES:
                raise self._refused(f"a schema refers to more than {MOST_REFERENCES} others; reduce its references")
            # Also a version that was deleted since.
            referred = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true", deadline)
            if referred is None:
                raise MissingReferenceError(
                    f"schema registry {self._name}: a schema refers to version {version} of subject {subject}, which the registry does not"
                    " have; restore this version, or register a schema with a reference that exists",
                    reason=Reason.BAD_SCHEMA,
                )
            text = _text(referred, "schema")
            if text is None:
                raise self._no_schema()
            self._resolve(referred, found, [*within, place], deadline)
            found[name] = text

    def _get(self, path: str, deadline: float) -> dict[str, Any] | None:
        """Return the answer to a request, an object; None if the registry has no such schema."""
        answer = self._answer(path, deadline)
        if answer is None or isinstance(answer, dict):
            return answer
        raise self._no_schema()

    def _answer(self, path: str, deadline: float, unknown: str = "") -> Any | None:
        """Return the answer to a request; None if the registry has no such schema.

        ``unknown`` is the problem if the registry does not have the request.
        """
        url, headers = self._connection.url.rstrip("/") + path, self._headers()
        try:
            status, body = self._ask(url, headers, deadline)
        except _TooLargeError as error:
            # Schemas are JSON objects. Another large answer may be a page of a server in between.
            if not error.of_schema:
                raise self._unusable(f"{error} from {self._connection.url}{path}") from error
            raise self._refused(f"{error} at {path}; register a smaller schema") from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise self._away(
                f"no answer from {self._connection.url}: {_short(error)}; check the registry, the network, and for TLS"
                f" registries.{self._name}.tls.ca"
            ) from error
        if status in (401, 403):
            raise AccessDeniedError(
                f"schema registry {self._name} rejects the credentials or the request (HTTP {status}); correct"
                f" registries.{self._name} in the operator's configuration and its Secret, or grant the right to read schemas"
            )
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if status == 200 and answer is not None:
            return answer
        if status == 404 and isinstance(answer, dict) and answer.get("error_code") in _MISSING:
            return None
        if status == 200:
            raise self._no_schema()
        if status in (404, 405) and unknown:
            raise self._unusable(f"HTTP {status} from {self._connection.url}{path}: {unknown}")
        problem = (
            f"HTTP {status} from {self._connection.url}; check that the registry runs, and that registries.{self._name}.url is"
            " the base URL of its API"
        )
        raise self._away(problem) if status in _BUSY else self._unusable(problem)

    def _ask(self, url: str, headers: dict[str, str], deadline: float) -> tuple[int, bytes]:
        _check_time(deadline)
        left = max(0.001, deadline - time.monotonic())
        answered = self._connections().request(
            "GET",
            url,
            headers=headers,
            retries=False,
            redirect=False,
            preload_content=False,
            timeout=urllib3.Timeout(connect=min(CONNECT_SECONDS, left), total=left),
        )
        assert isinstance(answered, urllib3.HTTPResponse)
        response, connection = answered, answered.connection
        try:
            body = bytearray()
            # `read1` returns what has arrived, so that a slow answer meets the deadline.
            while chunk := response.read1(_CHUNK, decode_content=True):
                body += chunk
                if len(body) > MOST_ANSWER:
                    of_schema = response.status == 200 and body.lstrip().startswith(b"{")
                    raise _TooLargeError(of_schema)
                _check_time(deadline)
            _check_time(deadline)  # An answer that ended with the connection may look complete.
        except BaseException:
            response.close()
            raise
        finally:
            if isinstance(connection, _Bounded):
                connection.answered()
        response.release_conn()
        return response.status, bytes(body)

    def _headers(self) -> dict[str, str]:
        connection, headers = self._connection, {"Accept": _ACCEPT}
        if connection.token_path is not None:
            token = self._secret(connection.token_path).strip()
            if not (token.isascii() and token.isprintable()):
                raise AccessDeniedError(
                    f"schema registry {self._name}: its token is not one line of printable ASCII; correct the Secret"
                )
            headers["Authorization"] = f"Bearer {token}"
        elif connection.password_path is not None:
            user = f"{connection.username}:{self._secret(connection.password_path)}"
            headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        return headers

    def _connections(self) -> urllib3.PoolManager:
        ca = self._secret(self._connection.ca_path) if self._connection.ca_path is not None else None
        pool = self._pool
        if pool is None or pool[0] != ca:
            pool = self._pool = ca, urllib3.PoolManager(maxsize=4, ssl_context=ssl.create_default_context(cadata=ca))
            pool[1].pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
        return pool[1]

    def _no_schema(self) -> UnavailableError:
        return self._unusable(
            f"an answer of {self._connection.url} is not a schema; set registries.{self._name}.url to the base URL of its API"
        )

    def _away(self, problem: str) -> RegistryAwayError:
        return RegistryAwayError(f"schema registry {self._name}: {problem}", reason=Reason.REGISTRY_UNREACHABLE)

    def _refused(self, problem: str) -> UnusableSchemaError:
        return UnusableSchemaError(f"schema registry {self._name}: {problem}", reason=Reason.BAD_SCHEMA)

    def _unusable(self, problem: str) -> UnavailableError:
        return UnavailableError(f"schema registry {self._name}: {problem}", reason=Reason.REGISTRY_UNREACHABLE)


class _TooLargeError(Exception):
    """An answer is larger than `MOST_ANSWER`. ``of_schema``: it has the form of a schema."""

    def __init__(self, of_schema: bool) -> None:
        super().__init__(f"an answer has more than {MOST_ANSWER >> 20} MiB")
        self.of_schema = of_schema


def _check_time(deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise TimeoutError(f"the answer took more than {ANSWER_SECONDS:.0f} s")


class _Bounded:
    """A connection that ends when its time is over, also while single bytes of an answer arrive.

    A timeout of a socket begins again with each byte.
    """

    _timer: threading.Timer | None = None

    def bound(self, answering: socket.socket, seconds: float) -> None:
        """Let the connection end after ``seconds``, unless `answered` is called before."""
        self._timer = threading.Timer(seconds, _shut_down, (answering,))
        self._timer.daemon = True
        self._timer.start()

    def answered(self) -> None:
        """Let the connection live."""
        if self._timer is not None:
            self._timer.cancel()


def _shut_down(answering: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Of the class socket: that of TLS would take the state from the thread that reads.
        socket.socket.shutdown(answering, socket.SHUT_RDWR)


class _HttpConnection(_Bounded, urllib3.connection.HTTPConnection):
    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        if self.sock is not None and self.timeout is not None:
            self.bound(self.sock, self.timeout)
        return super().getresponse()


class _HttpsConnection(_Bounded, urllib3.connection.HTTPSConnection):
    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]
        if self.sock is not None and self.timeout is not None:
            self.bound(self.sock, self.timeout)
        return super().getresponse()


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _HttpConnection


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _HttpsConnection


def _text(answer: Any, key: str) -> str | None:
    """Return a text of an answer. JSON can have half of a surrogate pair, which is no text for other programs."""
    value = answer.get(key) if isinstance(answer, dict) else None
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:
        return None
    return value


def _without_context(subject: str) -> str:
    """Return the name of a subject without the context that it may have in answers: ``:.CONTEXT:NAME``."""
    return subject.split(":", 2)[2] if subject.startswith(":.") and subject.count(":") > 1 else subject


def _number(answer: Any, key: str) -> int | None:
    value = answer.get(key) if isinstance(answer, dict) else None
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else None


def _short(error: Exception) -> str:
    return str(error)[:300] or type(error).__name__
