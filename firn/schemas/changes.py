"""The changes from the columns of a table to those of a schema, and which of them the evolution policy of a topic allows.

Operator, driver and ``firn plan`` use the same changes and the same judgement.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from firn.model.jobs import Column, Evolution, RecordSchema, TableTarget
from firn.tables import renames, rows, transforms, types
from firn.tables.evolution import can_become
from firn.tables.renames import Fields, Renaming
from firn.tables.transforms import PartitionTerm, SortTerm
from firn.tables.types import ListOf, MapOf, Struct, Type

APPROVAL_DIGITS = 12
Parsed = TypeVar("Parsed")


class ChangeKind(StrEnum):
    """Kinds of changes. Each kind has a field of the evolution policy."""

    ADD = "add"
    WIDEN = "widen"
    OPTIONAL = "optional"
    RENAME = "rename"
    DROP = "drop"
    PARTITION = "partition"
    SORT = "sort"


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a table, and its text for users."""

    kind: ChangeKind
    text: str
    basis: str = ""
    """Text of the partition spec or sort order that the change replaces, as a part of the approval. Other changes have none."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The changes that the policy does not allow. ``approve`` is the value that approves the proposed ones."""

    refused: tuple[Change, ...] = ()
    proposed: tuple[Change, ...] = ()
    approve: str = ""

    @property
    def blocked(self) -> bool:
        """Return whether the table must stay as it is."""
        return bool(self.refused or self.proposed)


def of_table(renaming: Renaming, columns: Sequence[Column]) -> tuple[Change, ...]:
    """Return the changes of a table. ``columns`` are the wanted ones, under the names that the table gets."""
    named = (Change(ChangeKind.RENAME, f"rename column {path} to {name}") for path, name in renaming.steps)
    present = [
        Column(name=field["name"], type=types.of_json(field["type"]), required=field["required"])
        for field in renaming.fields
    ]
    return (*named, *_compared(present, columns))


def between(before: RecordSchema, after: RecordSchema) -> tuple[Change, ...]:
    """Return the changes of a table from the schema in force to another one."""
    named = rows.column_renames(after, after.renames)
    keys = rows.key_columns(before.key), rows.key_columns(after.key)
    earlier, later = rows.schema_columns(before) + keys[0], rows.schema_columns(after) + keys[1]
    moved = [
        Change(ChangeKind.RENAME, f"rename column {each.old} to {each.name}")
        for each in named
        if renames.has_path(earlier, each.old_path) and not renames.has_path(earlier, each.new_path)
    ]
    known = renames.renamed_columns(earlier, named)
    wanted = {column.name for column in later}
    gone = [Change(ChangeKind.DROP, f"drop column {each.name}") for each in known if each.name not in wanted]
    return (*moved, *_compared(known, later), *gone)


def of_layout(before: TableTarget, after: TableTarget) -> tuple[Change, ...]:
    """Return the changes of partitioning and sort order from the target in force to another one."""
    found = []
    if _parsed(transforms.parse, before.partition_by) != _parsed(transforms.parse, after.partition_by):
        found.append(partition_change(_parsed(transforms.parse, after.partition_by)))
    if _parsed(transforms.parse_sort, before.sort_by) != _parsed(transforms.parse_sort, after.sort_by):
        found.append(sort_change(_parsed(transforms.parse_sort, after.sort_by)))
    return tuple(found)


def partition_change(terms: Sequence[PartitionTerm], basis: str = "") -> Change:
    """Return the change to the partitioning by these terms. ``basis`` names the table's present partition spec."""
    return Change(ChangeKind.PARTITION, f"partition by {', '.join(map(str, terms)) or 'no column'}", basis)


def sort_change(terms: Sequence[SortTerm], basis: str = "") -> Change:
    """Return the change to the sort order by these terms. ``basis`` names the table's present sort order."""
    return Change(ChangeKind.SORT, f"sort by {', '.join(map(str, terms)) or 'no column'}", basis)


def _parsed(parse: Callable[[str], Parsed], terms: Sequence[str] | None) -> tuple[Parsed, ...]:
    return tuple(parse(term) for term in terms or ())


def _compared(before: Sequence[Column], after: Sequence[Column]) -> Iterator[Change]:
    """Yield the changes of columns, except those of Kafka's. Types that cannot change are left out."""
    known = {column.name: column for column in before}
    for column in after:
        if column.name.startswith(rows.METADATA_COLUMN):
            continue
        earlier = known.get(column.name)
        if earlier is None:
            yield Change(ChangeKind.ADD, f"add column {column.name}: {column.type}")
            continue
        if earlier.required and not column.required:
            yield Change(ChangeKind.OPTIONAL, f"make column {column.name} optional")
        # Another engine may have given the column a type that no schema has.
        yield from _types(column.name, types.of_table(earlier.type), types.parse(column.type))


def _types(path: str, before: Type, after: Type) -> Iterator[Change]:
    match before, after:
        case Struct(old), Struct(new):
            known = dict(old)
            for name, kind in new:
                if name in known:
                    yield from _types(f"{path}.{name}", known[name], kind)
                else:
                    yield Change(ChangeKind.ADD, f"add column {path}.{name}: {kind}")
        case ListOf(old_element), ListOf(element):
            yield from _types(f"{path}.element", old_element, element)
        case MapOf(_, old_value), MapOf(_, value):
            yield from _types(f"{path}.value", old_value, value)
        case _ if before != after and can_become(before, after):
            yield Change(ChangeKind.WIDEN, f"widen column {path}: {before} to {after}")


def judged(changes: Sequence[Change], policy: Evolution, table_uuid: str, schema_id: int) -> Judgement:
    """Return the changes that the policy does not allow in the table with this UUID and this id of its schema."""
    ways = {
        ChangeKind.ADD: policy.add,
        ChangeKind.WIDEN: policy.widen,
        ChangeKind.OPTIONAL: policy.optional,
        ChangeKind.RENAME: policy.rename,
        ChangeKind.DROP: policy.drop or "KeepNull",
        ChangeKind.PARTITION: policy.partition,
        ChangeKind.SORT: policy.sort,
    }
    refused = tuple(each for each in changes if ways[each.kind] == "Refuse")
    proposed = tuple(each for each in changes if ways[each.kind] == "Propose")
    if not proposed:
        return Judgement(refused)
    approve = _approval(proposed, table_uuid, schema_id)
    return Judgement(refused) if approve == policy.approved else Judgement(refused, proposed, approve)


def drops(schema: RecordSchema, fields: Fields, kept: AbstractSet[int]) -> tuple[str, ...]:
    """Return the columns that the schema no longer has and that the policy drops from a table with these fields.

    ``kept`` has the field ids that partitioning, sort order and the identity of rows need.
    """
    if schema.evolution.drop != "DropColumn":
        return ()
    wanted = {column.name for column in rows.schema_columns(schema) + rows.key_columns(schema.key)}
    found = {each["name"]: each for each in fields}
    return tuple(
        name
        for name in schema.gone
        if name in found and name not in wanted and kept.isdisjoint(renames.ids(found[name]))
    )


def proposed_drops(names: Sequence[str], policy: Evolution, table_uuid: str, schema_id: int) -> Judgement:
    """Return whether columns may be dropped. They have an approval of their own, because later rows do not depend on them."""
    if not names:
        return Judgement()
    proposed = tuple(Change(ChangeKind.DROP, f"drop column {name}") for name in names)
    approve = _approval(proposed, table_uuid, schema_id)
    return Judgement() if approve == policy.approved else Judgement((), proposed, approve)


def _approval(proposed: Sequence[Change], table_uuid: str, schema_id: int) -> str:
    # Another set of changes, and the same set after another change of the table, needs another approval.
    content = "\n".join([table_uuid, str(schema_id), *(each.text + each.basis for each in proposed)])
    return hashlib.sha256(content.encode()).hexdigest()[:APPROVAL_DIGITS]


def refusal(changes: Sequence[Change]) -> str:
    """Return why changes are refused, and the next step."""
    fields = ", ".join(dict.fromkeys(f"spec.schema.evolution.{each.kind}" for each in changes))
    texts = ", ".join(each.text for each in changes)
    return f"{texts}: {fields} is Refuse; restore the spec or the schema, or set another value there"
