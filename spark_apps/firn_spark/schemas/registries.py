"""The schemas that records name, from schema registries. Ingestion and replays of dead letters have the same rules.

A schema id never gets another schema. So `Registries` keeps schemas on disk, and a driver can restart without the registry.
"""

import base64
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from firn import protoc
from firn.decoders.bad_records import Code
from firn.model.errors import FirnError, InvalidSpecError, NotReadyError
from firn.model.jobs import Contract, RecordSchema, RegistryConnection, SchemaFormat, WriterSchema
from firn.schema_registry import (
    MOST_ID,
    TYPES,
    MissingReferenceError,
    RegistryAwayError,
    SchemaRegistry,
    UnusableSchemaError,
    of_others,
)
from firn_spark.credentials import read_secret
from firn_spark.schemas.files import SchemaFiles
from firn_spark.worker.formats.writer_schemas import Reference, Refusal

T = TypeVar("T")

MOST_MISSING = 10_000
"""Ids that a registry does not have, in memory."""
MOST_KEPT = 1000
"""Schemas in memory."""
MISSING_SECONDS = 5.0
"""Seconds between two answers after which a schema counts as missing. A registry may learn of a new schema with a delay."""
QUIET_SECONDS = 5.0
"""Seconds after a failure in which the driver sends no request to the registry."""


class _Kept(Contract):
    """A schema of a registry with its type, and subjects that have it."""

    kind: str
    writer: WriterSchema
    subjects: frozenset[str] = frozenset()


class Registries:
    """The schema registries of a driver or a replay. Threads share it."""

    def __init__(
        self,
        connections: Mapping[str, RegistryConnection],
        directory: str | None,
        missing_seconds: float = MISSING_SECONDS,
    ) -> None:
        """Keep schemas in ``directory``, in memory only if that is None.

        A schema counts as missing if the registry answers so again after ``missing_seconds``.
        """
        self._missing_seconds = missing_seconds
        self._connections = connections
        # A name may refer to another registry after a change of the settings.
        folders = {name: hashlib.sha256(each.url.encode()).hexdigest()[:16] for name, each in connections.items()}
        self._files = {name: SchemaFiles(Path(directory) / each) for name, each in folders.items()} if directory else {}
        self._clients = {name: SchemaRegistry(name, each, read_secret) for name, each in connections.items()}
        self._known: OrderedDict[tuple[str, int], _Kept] = OrderedDict()
        self._ids: OrderedDict[tuple[str, str], int] = OrderedDict()
        """The ids of GUIDs."""
        self._missing: OrderedDict[tuple[str, str], float] = OrderedDict()
        """When a registry first answered that it lacks a schema, a schema under a subject, or a reference (monotonic seconds)."""
        self._failures: dict[str, tuple[float, FirnError]] = {}
        self._lock = threading.Lock()
        self._compiling = threading.Lock()

    def find(self, wanted: RecordSchema, reference: Reference) -> WriterSchema | Refusal | int:
        """Return what `schema` returns for an id, and the id of the schema for a GUID. Raises as `schema`."""
        return self.schema(wanted, reference) if isinstance(reference, int) else self._id_of(wanted, reference)

    def schema(self, wanted: RecordSchema, number: int) -> WriterSchema | Refusal:
        """Return the schema with an id, or why values of the topic with this id are bad records. ``wanted`` is the topic's schema.

        If the name of its subject is empty, the schema may belong to any subject.

        Raises InvalidSpecError if the settings lack the registry, NotReadyError if the registry does not have the schema yet,
        AccessDeniedError, and UnavailableError.
        """
        assert wanted.subject is not None
        registry, subject = wanted.subject.registry, wanted.subject.name
        if number > MOST_ID:
            return replace(missing_schema(registry, number), final=True)
        found = self._kept(registry, number)
        if isinstance(found, _Kept) and found.kind != TYPES[wanted.format]:
            problem = f"schema {number} of schema registry {registry} has the type {found.kind}, and the topic has format: {wanted.format}"
            return Refusal(Code.UNKNOWN_SCHEMA, problem, final=True)
        unusable = isinstance(found, Refusal) and found.code is Code.INCOMPATIBLE_SCHEMA
        if subject and (unusable or (isinstance(found, _Kept) and subject not in found.subjects)):
            subjects = self._request(registry, lambda client: client.subjects(number, deleted=True))
            foreign = of_others(registry, number, subjects, subject)
            if foreign is not None:
                self._check_again(registry, f"schema {number} under subject {subject}")
                return Refusal(Code.UNKNOWN_SCHEMA, foreign)
        if isinstance(found, _Kept) and subject and subject not in found.subjects:
            found = found.model_copy(update={"subjects": found.subjects | {subject}})
            self._write(registry, str(number), found.model_dump_json())
            self._keep(registry, number, found)
        return found.writer if isinstance(found, _Kept) else found

    def _kept(self, registry: str, number: int) -> _Kept | Refusal:
        key = registry, number
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
        if known is not None:
            if registry in self._files:
                self._files[registry].used(str(number))
            return known
        self._check_configured(registry)
        found: _Kept | Refusal | None = _kept_of(self._read(registry, str(number)))
        if found is None:
            found = self._ask(registry, number)
            if isinstance(found, _Kept):
                self._write(registry, str(number), found.model_dump_json())
        if isinstance(found, _Kept):
            self._keep(registry, number, found)
        return found

    def _id_of(self, wanted: RecordSchema, guid: str) -> int | Refusal:
        assert wanted.subject is not None
        registry = wanted.subject.registry
        with self._lock:
            found = self._ids.get((registry, guid))
        if found is not None:
            return found
        self._check_configured(registry)
        kept = self._read(registry, guid)
        number = int(kept) if kept.isdecimal() else self._request(registry, lambda client: client.id_of(guid))
        if number is None:
            self._check_again(registry, f"schema {guid}")
            return missing_schema(registry, guid)
        if not kept:
            self._write(registry, guid, str(number))
        with self._lock:
            self._ids[registry, guid] = number
            while len(self._ids) > MOST_KEPT:
                self._ids.popitem(last=False)
        return number

    def _check_configured(self, registry: str) -> None:
        if registry not in self._clients:
            raise InvalidSpecError(
                f"schema registry {registry} is not in the settings of this process; add it to registries in the operator's"
                " configuration. If it is there already, the driver restarts with it; wait"
            )

    def _keep(self, registry: str, number: int, schema: _Kept) -> None:
        with self._lock:
            self._known[registry, number] = schema
            while len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)

    def _request(self, registry: str, request: Callable[[SchemaRegistry], T]) -> T:
        """Return the answer of a registry, unless it failed a moment ago. Raises FirnError."""
        with self._lock:
            failed_at, failure = self._failures.get(registry, (0.0, None))
        if failure is not None and time.monotonic() - failed_at < QUIET_SECONDS:
            raise failure.with_traceback(None)
        try:
            return request(self._clients[registry])
        except RegistryAwayError as error:
            with self._lock:
                self._failures[registry] = time.monotonic(), error
            raise

    def _ask(self, registry: str, number: int) -> _Kept | Refusal:
        try:
            answer = self._request(registry, lambda client: client.by_id(number))
        except UnusableSchemaError as error:
            if isinstance(error, MissingReferenceError):
                self._check_again(registry, f"all references of schema {number}")
            return Refusal(Code.INCOMPATIBLE_SCHEMA, f"schema {number} cannot be used: {error}")
        if answer is None:
            self._check_again(registry, f"schema {number}")
            return missing_schema(registry, number)
        writer = answer.schema
        if answer.kind == TYPES[SchemaFormat.PROTOBUF]:
            writer = self._compiled(writer)
        return _Kept(kind=answer.kind, writer=writer)

    def _compiled(self, writer: WriterSchema) -> WriterSchema:
        """Return a Protobuf schema with its descriptors; without them if protoc rejects the text. Raises NotReadyError."""
        try:
            with self._compiling:  # A small pod has memory for one process of protoc.
                return with_descriptors(SchemaFormat.PROTOBUF, writer)
        except InvalidSpecError:
            return writer

    def _check_again(self, registry: str, wanted: str) -> None:
        """Raise NotReadyError for a schema or a reference that is missing, unless it was missing some seconds ago."""
        now = time.monotonic()
        with self._lock:
            first = self._missing.setdefault((registry, wanted), now)
            while len(self._missing) > MOST_MISSING:
                self._missing.popitem(last=False)
        if now - first < self._missing_seconds:
            raise NotReadyError(
                f"schema registry {registry} does not have {wanted}, which a record names; the driver asks again, because the"
                " schema may be new"
            )

    def _read(self, registry: str, name: str) -> str:
        return self._files[registry].read(name) if registry in self._files else ""

    def _write(self, registry: str, name: str, content: str) -> None:
        if registry in self._files:
            self._files[registry].write(name, content)


def missing_schema(registry: str, reference: Reference) -> Refusal:
    """Return why records are bad records if the registry does not have their schema."""
    named = (
        f"record names schema {reference}"
        if isinstance(reference, int)
        else f"header names the schema with GUID {reference}"
    )
    return Refusal(Code.UNKNOWN_SCHEMA, f"the {named}, which schema registry {registry} does not have")


def refused_before(registry: str, reference: Reference) -> Refusal:
    """Return why records are bad records if their schema was refused when an earlier record named it."""
    problem = f"schema registry {registry} did not have schema {reference} when an earlier record named it, or the schema could not be used"
    return Refusal(Code.UNKNOWN_SCHEMA, problem)


def with_descriptors(form: SchemaFormat, writer: WriterSchema) -> WriterSchema:
    """Return a Protobuf schema with its descriptors. Raises InvalidSpecError if protoc rejects the text, and NotReadyError."""
    if form is not SchemaFormat.PROTOBUF or writer.descriptors:
        return writer
    content = protoc.descriptors(writer.text, tuple(zip(writer.names, writer.references, strict=True)))
    return writer.model_copy(update={"descriptors": base64.b64encode(content).decode()})


def schema_of_contract(schema: RecordSchema) -> dict[Reference, WriterSchema | Refusal | int]:
    """Return the schema that a contract has, by its id."""
    if schema.schema_id is None:
        return {}
    parts = {name: getattr(schema, name) for name in ("text", "references", "names", "descriptors")}
    return {schema.schema_id: WriterSchema(**parts)}


def _kept_of(text: str) -> _Kept | None:
    try:
        return _Kept.model_validate_json(text)
    except ValueError:
        return None
