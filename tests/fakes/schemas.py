"""Ports of schema registries in memory. They pass the suites of tests/contract like the adapters."""

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import replace

from firn import protoc
from firn.model.errors import FirnError, UnavailableError
from firn.model.jobs import WriterSchema
from firn.schema_registry import Registered


class FakeSchemas:
    """Port `Schemas`."""

    def __init__(self) -> None:
        self.subjects: dict[str, Registered] = {}
        self.problem: FirnError | None = None
        """The error of every call."""
        self.compiled: list[str] = []
        """The texts that were compiled."""
        self._ids = 0

    def register(self, subject: str, text: str, *references: str, kind: str = "AVRO", **named: str) -> int:
        """Make ``text`` the latest schema of a subject. Returns its id. ``named`` are further references by name."""
        self._ids += 1
        names = (*(f"reference-{number}" for number in range(len(references))), *named)
        schema = WriterSchema(text=text, references=(*references, *named.values()), names=names)
        self.subjects[subject] = Registered(self._ids, kind, schema)
        return self._ids

    async def latest(self, registry: str, subject: str) -> Registered | None:
        if self.problem is not None:
            raise self.problem
        return self.subjects.get(subject)

    async def descriptors(self, text: str, references: Mapping[str, str]) -> bytes:
        if self.problem is not None:
            raise self.problem
        self.compiled.append(text)
        return protoc.descriptors(text, tuple(sorted(references.items())))


class FakeSubjects:
    """Port `SubjectLookup` of brokers."""

    def __init__(self) -> None:
        self.registered: dict[int, set[str]] = {}
        """Subjects of each id, in the registry ``main``."""
        self.schemas: dict[int, Registered] = {}
        self.problem: FirnError | None = None
        """The error of every call."""
        self.unusable: FirnError | None = None
        """The error of requests for a schema."""
        self.answering = asyncio.Event()
        """Calls wait until it is set."""
        self.answering.set()
        self.asked: list[int] = []

    async def subjects(self, registry: str, number: int) -> frozenset[str]:
        self.asked.append(number)
        await self.answering.wait()
        if self.problem is not None:
            raise self.problem
        if registry != "main":
            raise UnavailableError(f"schema registry {registry} is not in the broker's configuration")
        return frozenset(self.registered.get(number, ()))

    async def schema(self, registry: str, number: int) -> Registered | None:
        await self.subjects(registry, number)
        if self.unusable is not None:
            raise self.unusable
        found = self.schemas.get(number)
        if found is None or found.kind != "PROTOBUF":
            return found
        writer = found.schema
        content = await self.descriptors(writer.text, tuple(zip(writer.names, writer.references, strict=True)))
        return replace(found, schema=writer.model_copy(update={"descriptors": content}))

    async def descriptors(self, text: str, references: tuple[tuple[str, str], ...] = ()) -> str:
        return base64.b64encode(protoc.descriptors(text, references)).decode()

    def close(self) -> None:
        pass
