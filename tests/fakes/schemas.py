"""Port `Schemas` in memory. It passes tests/contract/test_schemas.py like the adapter."""

from collections.abc import Mapping

from firn import protoc
from firn.model.errors import FirnError
from firn.model.jobs import WriterSchema
from firn.schema_registry import Registered


class FakeSchemas:
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
