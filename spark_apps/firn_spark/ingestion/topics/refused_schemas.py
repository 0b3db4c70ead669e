"""The refused schemas of a topic whose routes need schemas of writers, in a property of the topic's own table.

The registry lacked such a schema, or it could not be used. Kafka records that name it belong to the topic itself. All tables of the
topic have to agree on that. But they read the records at different times, and the registry may have the schema by then. So a driver
stores the refused schemas before its tasks use this answer, and the next driver reads them.

The property names its owner: the driver that took it last. Each change checks the owner, so two live drivers notice each other. A SQL
catalog changes exactly the value that was checked. A REST catalog only compares the table, so a delayed request of an earlier driver
may still replace the value.
"""

import json
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from firn.model import names
from firn.model.errors import CorruptDataError, NotReadyError
from firn_spark.failpoints import Failpoints
from firn_spark.tables.commits import Committer
from firn_spark.tables.swaps import swap
from firn_spark.worker.formats.writer_schemas import Reference

PROPERTY = names.TABLE_REFUSED_SCHEMAS
_OWNER, _SCHEMAS = "owner", "schemas"


class RefusedSchemas:
    """The stored refused schemas of one topic, as one driver uses them."""

    def __init__(self, committer: Committer, load: Callable[[], Any]) -> None:
        """``load`` returns the topic's own table. Raises FirnError."""
        self._committer = committer
        self._load = load
        self._owner = str(uuid.uuid4())

    def take(self) -> frozenset[Reference]:
        """Become the owner, and return the refused schemas. Raises the errors of `swap`, and CorruptDataError."""
        change = _Change(self._committer, self._owner, None)
        swap(self._load(), change, Failpoints())
        return change.schemas

    def record(self, schemas: Collection[Reference]) -> None:
        """Replace the refused schemas; with the same ones, only check the owner.

        Raises NotReadyError if another driver is the owner by now, the errors of `swap`, and CorruptDataError.
        """
        swap(self._load(), _Change(self._committer, self._owner, frozenset(schemas)), Failpoints())


@dataclass(slots=True)
class _Change:
    """Sets the owner, or the schemas if the owner is right."""

    committer: Committer
    owner: str
    wanted: frozenset[Reference] | None
    schemas: frozenset[Reference] = frozenset()

    def done(self, table: Any) -> bool:
        """Implement `Change.done`."""
        owner, self.schemas = _read(table)
        if self.wanted is None:
            return owner == self.owner
        if owner != self.owner:
            raise NotReadyError(
                f"table {table.name()}: another driver has replaced the owner in the table property {PROPERTY}; this driver reads the property"
                " again; if the message stays, make sure that only one installation of Firn serves this topic"
            )
        return self.schemas == self.wanted

    def build(self, table: Any) -> tuple[Any, Any]:
        """Implement `Change.build`."""
        base = table.operations().current()
        schemas = sorted(self.schemas if self.wanted is None else self.wanted, key=str)
        text = json.dumps({_OWNER: self.owner, _SCHEMAS: schemas}, separators=(",", ":"))
        return base, self.committer.replaced(base, None, {PROPERTY: text})


def _read(table: Any) -> tuple[str, frozenset[Reference]]:
    text = table.properties().get(PROPERTY)
    if text is None:
        return "", frozenset()
    try:
        found = json.loads(text)
        owner, schemas = found[_OWNER], found[_SCHEMAS]
        if not isinstance(owner, str) or not all(type(each) in (int, str) for each in schemas):
            raise ValueError(text)
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(
            f"table {table.name()}: the table property {PROPERTY} is not valid ({error!r}); set it to an earlier value, from the"
            " metadata files of the table"
        ) from error
    return owner, frozenset(schemas)
