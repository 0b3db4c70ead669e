"""Client of a schema registry: the schema with an id, and the latest schema of a subject.

Source: Confluent's Schema Registry API, "Schemas" and "Subjects". Apicurio Registry (``/apis/ccompat/v7``) and Karapace
have the same requests. The client trusts no answer: it limits their time and size, and it follows no redirect.
"""

import json
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import urllib3

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, UnavailableError
from firn.model.jobs import RegistryConnection, WriterSchema

AVRO = "AVRO"
"""The type of Avro schemas. Answers leave it out."""
CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 15.0
MOST_ANSWER = 8 << 20
"""Most bytes of an answer. A schema of a mebibyte takes at most six as a text in JSON."""
MOST_REFERENCES = 100
_MISSING = frozenset({40401, 40402, 40403})
"""Error codes of a registry that answers that it has no such subject, version or schema. A status 404 alone may come from
another server at this address."""
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_CHUNK = 64 << 10


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema with its id and its type, such as ``AVRO``."""

    id: int
    kind: str
    schema: WriterSchema


class SchemaRegistry:
    """A registry of the operator's configuration. Threads may share it.

    Methods raise AccessDeniedError if the registry rejects the credentials, and UnavailableError (RegistryUnreachable)
    for any other answer that is not one of a registry.
    """

    def __init__(self, name: str, connection: RegistryConnection, secret: Callable[[str], str]) -> None:
        """``secret`` returns the content of the file at a path. It is called for each request, because secrets change."""
        self._name = name
        self._connection = connection
        self._secret = secret
        self._pool: tuple[str | None, urllib3.PoolManager] | None = None

    def by_id(self, number: int) -> Registered | None:
        """Return the schema with an id, or None if the registry has none."""
        answer = self._get(f"/schemas/ids/{number}")
        return None if answer is None else self._registered(answer, number)

    def latest(self, subject: str) -> Registered | None:
        """Return the latest schema of a subject, or None if the subject has none."""
        answer = self._get(f"/subjects/{quote(subject, safe='')}/versions/latest")
        return None if answer is None else self._registered(answer, _number(answer, "id"))

    def _registered(self, answer: dict[str, Any], number: int | None) -> Registered:
        text, kind = answer.get("schema"), answer.get("schemaType") or AVRO
        if not isinstance(text, str) or not isinstance(kind, str) or number is None:
            raise self._no_answer("its answer has no schema")
        references: dict[tuple[str, int], str] = {}
        self._resolve(answer, references, [])
        return Registered(number, kind, WriterSchema(text=text, references=tuple(references.values())))

    def _resolve(
        self, answer: dict[str, Any], found: dict[tuple[str, int], str], within: list[tuple[str, int]]
    ) -> None:
        """Add the schemas that a schema refers to, each after those that it refers to itself."""
        references = answer.get("references") or []
        for reference in references if isinstance(references, list) else []:
            subject, version = _text(reference, "subject"), _number(reference, "version")
            if subject is None or version is None:
                raise self._no_answer("a reference in its answer has no subject and version")
            place = (subject, version)
            if place in found:
                continue
            if place in within or len(found) + len(within) >= MOST_REFERENCES:
                raise self._no_answer(
                    f"a schema refers to itself, or to more than {MOST_REFERENCES} others, with subject {subject}"
                )
            referred = self._get(f"/subjects/{quote(subject, safe='')}/versions/{version}")
            text = _text(referred, "schema")
            if referred is None or text is None:
                raise self._no_answer(f"it has no version {version} of subject {subject}, which a schema refers to")
            self._resolve(referred, found, [*within, place])
            found[place] = text

    def _get(self, path: str) -> dict[str, Any] | None:
        """Return the answer to a request; None if the registry has no such schema."""
        url = self._connection.url.rstrip("/") + path
        try:
            status, body = self._ask(url)
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise self._no_answer(f"no answer: {_short(error)}") from error
        if status in (401, 403):
            raise AccessDeniedError(
                f"schema registry {self._name} rejects the credentials (HTTP {status}); correct registries.{self._name} in the"
                " operator's configuration, and its Secret"
            )
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if status == 200 and isinstance(answer, dict):
            return answer
        if status == 404 and isinstance(answer, dict) and answer.get("error_code") in _MISSING:
            return None
        problem = f"HTTP {status}" if status != 200 else "its answer is not JSON of a schema registry"
        raise self._no_answer(problem)

    def _ask(self, url: str) -> tuple[int, bytes]:
        deadline = time.monotonic() + ANSWER_SECONDS
        response = self._connections().request(
            "GET",
            url,
            headers=self._headers(),
            retries=False,
            redirect=False,
            preload_content=False,
            timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=ANSWER_SECONDS),
        )
        try:
            body = bytearray()
            # `read1` returns what has arrived, so that a slow answer meets the deadline.
            while chunk := response.read1(_CHUNK, decode_content=True):
                body += chunk
                if len(body) > MOST_ANSWER:
                    raise ValueError(f"the answer has more than {MOST_ANSWER >> 20} MiB")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the answer took more than {ANSWER_SECONDS:.0f} s")
        except BaseException:
            response.close()
            raise
        response.release_conn()
        return response.status, bytes(body)

    def _headers(self) -> dict[str, str]:
        connection, headers = self._connection, {"Accept": _ACCEPT}
        if connection.token_path is not None:
            headers["Authorization"] = f"Bearer {self._secret(connection.token_path).strip()}"
        elif connection.password_path is not None:
            user = f"{connection.username}:{self._secret(connection.password_path)}"
            headers |= urllib3.make_headers(basic_auth=user)
        return headers

    def _connections(self) -> urllib3.PoolManager:
        ca = self._secret(self._connection.ca_path) if self._connection.ca_path is not None else None
        pool = self._pool
        if pool is None or pool[0] != ca:
            pool = self._pool = ca, urllib3.PoolManager(maxsize=4, ssl_context=ssl.create_default_context(cadata=ca))
        return pool[1]

    def _no_answer(self, problem: str) -> UnavailableError:
        return UnavailableError(
            f"schema registry {self._name}: {problem}; records that need a schema wait. Check that"
            f" {self._connection.url} is the API of a schema registry, and that it runs",
            reason=Reason.REGISTRY_UNREACHABLE,
        )


def _text(answer: Any, key: str) -> str | None:
    value = answer.get(key) if isinstance(answer, dict) else None
    return value if isinstance(value, str) else None


def _number(answer: Any, key: str) -> int | None:
    value = answer.get(key) if isinstance(answer, dict) else None
    return value if isinstance(value, int) and 0 <= value < 1 << 31 else None


def _short(error: Exception) -> str:
    return str(error)[:300] or type(error).__name__
