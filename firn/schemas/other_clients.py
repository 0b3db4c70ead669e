"""Columns of a table that other clients have renamed or dropped, such as an ``ALTER TABLE`` in Spark.

The property `SCHEMA_ID` has the id of the schema that Firn knew last. The metadata of a table keeps its earlier schemas, so the
field ids of both schemas show which columns have another name now, and which ones are missing.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from firn.member_paths import Path
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, KeySchema, RecordSchema, Rename
from firn.tables import renames, rows, types
from firn.tables.renames import Fields, FormerNames
from firn.tables.types import ListOf, MapOf, Struct, Type

SCHEMA_ID = "firn.schema-id"
"""Property with the id of the table's schema that Firn knew last."""
DROPPED = "firn.dropped-columns"
"""Property with the names of dropped columns: a JSON object, id of the field around them (0: the table) -> names."""
REMOVED = "firn.removed-columns"
"""Property with the names of columns that Firn has dropped: a JSON list. Earlier schemas do not add them again."""
Dropped = Mapping[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Followed:
    """The names of a table after the changes of other clients."""

    former: FormerNames = field(default_factory=dict)
    """The earlier names by field id."""
    dropped: Dropped = field(default_factory=dict)
    """The names of columns that the table does not get again, by the id of the field around them."""
    listed: Dropped = field(default_factory=dict)
    """Those of them that other clients have dropped."""
    texts: tuple[str, ...] = ()
    """The changes of other clients since the last look, for users."""
    paths: tuple[str, ...] = ()
    """The paths of all columns that other clients have dropped."""
    fields: Fields = ()
    """The fields of the table."""

    @property
    def following(self) -> tuple[Rename, ...]:
        """Return the renames from all earlier names of the table's columns to the present ones."""
        return renames.planned(self.fields, self.former, ()).following if self.former else ()

    def properties(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the properties that keep these names, if they differ from ``before``."""
        found = {}
        if self.former != renames.read_former_names(before):
            found[renames.FORMER_NAMES] = renames.written_names(self.former)
        if self.listed != read_dropped(before):
            found[DROPPED] = renames.written_names(self.listed)
        return found


def read_dropped(properties: Mapping[str, str]) -> Dropped:
    """Return the names of dropped columns. A value that is not valid counts as none."""
    return renames.read_names(properties.get(DROPPED, "{}"))


def read_removed(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of columns that Firn has dropped. A value that is not valid counts as none."""
    try:
        found = json.loads(properties.get(REMOVED, "[]"))
    except ValueError:
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def followed(
    schemas: Mapping[int, Fields],
    current: int,
    properties: Mapping[str, str],
    wanted: Collection[str] = (),
    key: KeySchema | None = None,
) -> Followed:
    """Return the names of a table with these schemas, of which ``current`` is in force.

    ``wanted`` are the columns for values in the contract: they may come again after Firn has dropped them. Columns of ``key`` and of
    Kafka get no other name, and are added again. Raises InvalidSpecError that names the columns if a column has the name that
    another one had: a name would not say to which column a field belongs.
    """
    former, dropped = dict(renames.read_former_names(properties)), dict(read_dropped(properties))
    # The key may be newer than the drop of a column with this name.
    dropped[0] = tuple(name for name in dropped.get(0, ()) if not _is_restored(name, wanted, key))
    fields = schemas[current]
    known = schemas.get(_number(properties.get(SCHEMA_ID, "")), fields)
    texts: list[str] = []
    followed_fields = [each for each in known if not _is_restored(each["name"], wanted, key)]
    for place, before, after in _structs(followed_fields, fields):
        path, number = place
        others = {name: each["id"] for each in after for name in former.get(each["id"], ())}
        _check_names(path, before, after, {**others, **dict.fromkeys(dropped.get(number, ()), 0)})
        present = {each["id"]: each["name"] for each in after}
        for each in before:
            old, later = each["name"], present.get(each["id"])
            earlier = former.get(each["id"], ())
            if later is None:
                dropped[number] = tuple(dict.fromkeys((*dropped.get(number, ()), *earlier, old)))
                texts.append(f"column {path}{old} was dropped by another client, and its field is left out")
            elif later != old:
                kept = (name for name in (*earlier, old) if name != later)
                former[each["id"]] = tuple(dict.fromkeys(kept))
                texts.append(f"column {path}{old} was renamed to {later} by another client, and its field follows")
    paths = dict(_paths(fields, "", 0, dropped))
    left = {number: tuple(name for name in names if name in paths.get(number, {})) for number, names in dropped.items()}
    listed = {number: names for number, names in left.items() if names}
    taken = {each["name"] for each in fields} | {*wanted, *listed.get(0, ())}
    removed = tuple(name for name in read_removed(properties) if name not in taken)
    return Followed(
        former=former,
        dropped={**listed, 0: (*listed.get(0, ()), *removed)} if removed else listed,
        listed=listed,
        texts=tuple(texts),
        paths=tuple(path for names in paths.values() for path in names.values()),
        fields=fields,
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else -1


def _is_restored(name: str, of_values: Collection[str], key: KeySchema | None) -> bool:
    """Return whether a column of the table is one of Kafka's or of the key. Both are added again under their own names."""
    if name.startswith(rows.METADATA_COLUMN):
        return True
    if key is None or name in of_values:
        return False
    return name.startswith(f"{rows.KEY_COLUMN}_") if key.columns == "Flat" else name == rows.KEY_COLUMN


def _structs(before: Fields, after: Fields) -> Iterator[tuple[tuple[str, int], Fields, Fields]]:
    """Yield the structs that are in both schemas: the present path and the id of the field around each, its fields before and after."""
    yield ("", 0), before, after
    yield from _inner(before, after, "")


def _inner(before: Fields, after: Fields, path: str) -> Iterator[tuple[tuple[str, int], Fields, Fields]]:
    known = {each["id"]: each for each in before}
    for each in after:
        if each["id"] not in known:
            continue
        old, new = known[each["id"]]["type"], each["type"]
        inside = renames.parts(old), renames.parts(new)
        if isinstance(new, dict) and new.get("type") == "struct" and inside[0]:
            yield (f"{path}{each['name']}.", each["id"]), *inside
        yield from _inner(*inside, f"{path}{each['name']}.")


def _check_names(path: str, before: Fields, after: Fields, earlier: Mapping[str, int]) -> None:
    names = {**earlier, **{each["name"]: each["id"] for each in before}}
    known = {each["id"]: each["name"] for each in before}
    for each in after:
        old = known.get(each["id"])
        if old not in (None, each["name"]) and names.get(each["name"], each["id"]) != each["id"]:
            raise InvalidSpecError(
                f"another client renamed column {path}{old} to {each['name']}, which was the name of another column; give the column a name that"
                f" the table never had, or remove the table property {SCHEMA_ID} so that fields belong to the columns with their names"
            )


def _paths(fields: Fields, path: str, number: int, dropped: Dropped) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield for each struct the dropped names that no present field has, with their paths."""
    present = {each["name"] for each in fields}
    found = {name: path + name for name in dropped.get(number, ()) if name not in present}
    if found:
        yield number, found
    for each in fields:
        yield from _paths(renames.parts(each["type"]), f"{path}{each['name']}.", each["id"], dropped)


def without(columns: Sequence[Column], fields: Fields, dropped: Dropped) -> tuple[Column, ...]:
    """Return the columns without the dropped ones of a table with these fields."""
    if not dropped:
        return tuple(columns)
    present = {each["name"]: each for each in fields}
    kept = []
    for column in columns:
        found = present.get(column.name)
        if found is None and column.name in dropped.get(0, ()):
            continue
        if found is not None:
            kind = str(_without(types.parse(column.type), found, dropped))
            column = column if kind == column.type else column.model_copy(update={"type": kind})
        kept.append(column)
    return tuple(kept)


def _without(kind: Type, around: Mapping[str, object], dropped: Dropped) -> Type:
    parts = {each["name"]: each for each in renames.parts(around["type"])}
    match kind:
        case Struct(members):
            gone = dropped.get(int(str(around["id"])), ())
            return Struct(
                tuple(
                    (name, _without(member, parts[name], dropped) if name in parts else member)
                    for name, member in members
                    if name in parts or name not in gone
                )
            )
        case ListOf(element) if "element" in parts:
            return ListOf(_without(element, parts["element"], dropped))
        case MapOf(key, value) if "value" in parts:
            return MapOf(key, _without(value, parts["value"], dropped))
    return kind


def is_dropped(path: Path, fields: Fields, dropped: Dropped) -> bool:
    """Return whether the path names a dropped column of a table with these fields."""
    number, (*steps, last) = 0, path
    for step in steps:
        found = next((each for each in fields if each["name"] == step), None)
        if found is None:
            return step in dropped.get(number, ())
        number, fields = found["id"], renames.parts(found["type"])
    return last not in {each["name"] for each in fields} and last in dropped.get(number, ())


def kept_schema(schema: RecordSchema, known: Followed) -> RecordSchema:
    """Return a schema without the dropped columns of a table, and with the present names of its computed columns."""
    if not known.former and not known.dropped:
        return schema
    update: dict[str, object] = {}
    left = without(schema.fields, known.fields, known.dropped)
    if left != schema.fields:
        # A record may have the field of a dropped column.
        update = {"fields": left, "unknown_fields": "Ignore"}
    present = {each["name"] for each in known.fields}
    gone = set(known.dropped.get(0, ())) - present
    if schema.unknown_column in gone:
        update["unknown_column"] = ""
    if schema.projection is not None:
        computed = schema.projection.columns
        later = {each.old: each.new for each in known.following if len(each.old_path) == 1}
        named = tuple(column.model_copy(update={"name": later.get(column.name, column.name)}) for column in computed)
        named = tuple(column for column in named if column.name not in gone)
        if named != computed:
            update["projection"] = schema.projection.model_copy(update={"columns": named})
    return schema.model_copy(update=update) if update else schema


def followed_schema(schema: RecordSchema, known: Followed) -> RecordSchema:
    """Return a schema with the names of a table, and without its dropped columns."""
    return kept_schema(renames.named(schema, rows.column_renames(schema, known.following)), known)
