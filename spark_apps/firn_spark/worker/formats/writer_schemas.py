"""The schemas of writers that a task knows, and those that it needs.

The driver gives the schemas to tasks. A task that needs another one decodes no more (`SchemasNeededError`), and only finds
which others it needs. The driver requests them from the registry.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from firn.decoders.bad_records import Code
from firn.model.jobs import WriterSchema

Reference = int | str
"""The id of a schema, or its GUID as text."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why values with the id of a schema are bad records."""

    code: Code
    detail: str
    final: bool = False
    """True if the schema with this id can never be used."""


WriterSchemas = Mapping[Reference, WriterSchema | Refusal | int]
"""Schemas by their ids. A GUID has the id of its schema."""
MOST_NEEDED = 1000
"""Most schemas that a task names at a time for each of `Readers`."""


Readers = Literal["values", "keys", "routes"]
"""The readers of schemas: the columns of values, those of keys, and the routes of the topic."""


class SchemasNeededError(Exception):
    """A task read records whose schemas it does not have. ``reader`` needs them."""

    def __init__(self, ids: Iterable[Reference], reader: Readers = "values") -> None:
        self.ids = [*ids]
        self.reader = reader
        super().__init__(f"the task needs the schemas {self.ids}")
