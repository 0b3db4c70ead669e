"""Renamed columns: the changes of a table, and the names under which records and contracts have a column.

A column keeps its field id when Firn renames it, so no file is written again. The table property `FORMER_NAMES` keeps the
earlier names by field id. So a record or a contract with an earlier name belongs to the same column.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from firn.member_paths import Path
from firn.model.jobs import Column, RecordSchema, Rename, TableTarget
from firn.tables import transforms, types
from firn.tables.transforms import PartitionTerm
from firn.tables.types import ListOf, MapOf, Struct, Type

FORMER_NAMES = "firn.former-names"
"""Property with the earlier names of columns: a JSON object, field id -> names."""
Fields = Sequence[dict[str, Any]]
"""The fields of a struct in the JSON of Iceberg's specification (Appendix C)."""
FormerNames = Mapping[int, tuple[str, ...]]


def read_former_names(properties: Mapping[str, str]) -> FormerNames:
    """Return the earlier names by field id. A value that is not valid counts as none."""
    return read_names(properties.get(FORMER_NAMES, "{}"))


def read_names(text: str) -> Mapping[int, tuple[str, ...]]:
    """Return the names by field id in the value of a property. A value that is not valid counts as none."""
    try:
        return {int(number): tuple(map(str, names)) for number, names in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError):
        return {}


def written_names(names: Mapping[int, tuple[str, ...]]) -> str:
    """Return the value of a property with names by field id."""
    return json.dumps({str(number): list(each) for number, each in sorted(names.items())})


# Names in schemas


def renamed_columns(columns: Sequence[Column], renames: Sequence[Rename]) -> tuple[Column, ...]:
    """Return columns with their later names. A column keeps its name if another one has the later name."""
    if not renames:
        return tuple(columns)
    whole: Type = Struct(tuple((column.name, types.parse(column.type)) for column in columns))
    for rename in renames:
        whole = _renamed(whole, rename.old_path, rename.name)
    assert isinstance(whole, Struct)
    return tuple(
        column.model_copy(update={"name": name, "type": str(kind)})
        for column, (name, kind) in zip(columns, whole.fields, strict=True)
    )


def _renamed(kind: Type, path: Sequence[str], name: str) -> Type:
    match kind:
        case Struct(fields):
            present = [each for each, _ in fields]
            if path[0] not in present or (len(path) == 1 and name in present):
                return kind
            if len(path) == 1:
                return Struct(tuple((name if each == path[0] else each, member) for each, member in fields))
            return Struct(
                tuple(
                    (each, _renamed(member, path[1:], name) if each == path[0] else member) for each, member in fields
                )
            )
        case ListOf(element) if path[0] == "element" and len(path) > 1:
            return ListOf(_renamed(element, path[1:], name))
        case MapOf(key, value) if path[0] == "value" and len(path) > 1:
            return MapOf(key, _renamed(value, path[1:], name))
    return kind


def named(schema: RecordSchema, following: Sequence[Rename]) -> RecordSchema:
    """Return a schema with the names of a table. ``following`` are the renames from all earlier names to them."""
    if not following:
        return schema
    fields = renamed_columns(schema.fields, following)
    update: dict[str, Any] = {"fields": fields, "renames": (*schema.renames, *following)}
    if schema.unknown_column:
        update["unknown_column"] = destination(schema.unknown_column, following)
    return schema.model_copy(update=update)


def named_target(target: TableTarget, following: Sequence[Rename]) -> TableTarget:
    """Return a target whose terms have the names of a table. ``following`` are the renames from all earlier names to them."""
    if not following:
        return target

    def named(term: PartitionTerm) -> PartitionTerm:
        return replace(term, column=destination(term.column, following))

    partition = [str(named(transforms.parse(text))) for text in target.partition_by or ()]
    sort = [transforms.parse_sort(text) for text in target.sort_by or ()]
    return target.model_copy(
        update={
            "partition_by": None if target.partition_by is None else tuple(partition),
            "sort_by": None
            if target.sort_by is None
            else tuple(str(replace(each, term=named(each.term))) for each in sort),
        }
    )


def has_path(columns: Sequence[Column], path: Path) -> bool:
    """Return whether the columns have a column or a member of a struct at this path."""
    first, *rest = path
    found = next((types.parse(column.type) for column in columns if column.name == first), None)
    for step in rest:
        match found:
            case Struct(fields):
                found = dict(fields).get(step)
            case ListOf(element) if step == "element":
                found = element
            case MapOf(_, value) if step == "value":
                found = value
            case _:
                return False
    return found is not None


def destination(path: str, renames: Sequence[Rename]) -> str:
    """Return the path, with dots, that a column of a table has after the renames."""
    return ".".join(moved(tuple(path.split(".")), renames))


def moved(path: Path, renames: Sequence[Rename]) -> Path:
    """Return the path that a field has after the renames."""
    for rename in renames:
        path = _replaced(path, rename.old_path, rename.new_path) or path
    return path


def origins(path: Path, renames: Sequence[Rename]) -> tuple[Path, ...]:
    """Return a path, and the paths that the field may have had before the renames."""
    paths = {path: None}
    for rename in reversed(renames):
        for known in list(paths):
            if earlier := _replaced(known, rename.new_path, rename.old_path):
                paths[earlier] = None
    return tuple(paths)


def _replaced(path: Path, start: Path, other: Path) -> Path:
    """Return a path with another start; an empty one if it does not have this start."""
    return other + path[len(start) :] if path[: len(start)] == start else ()


@dataclass(frozen=True, slots=True)
class Former:
    """The earlier names of the fields of a struct, and of the fields inside them."""

    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inside: Mapping[str, "Former"] = field(default_factory=dict)

    def of(self, name: str) -> tuple[str, ...]:
        """Return the earlier names of a field."""
        return self.names.get(name, ())

    def at(self, name: str) -> "Former":
        """Return the earlier names inside a field. Those in a list are at ``element``, those in a map at ``value``."""
        return self.inside.get(name, NONE)


NONE = Former()


def former_names(columns: Sequence[Column], renames: Sequence[Rename]) -> Former:
    """Return the names that the columns had before the renames, unless another field of the struct has the name now."""
    if not renames:
        return NONE
    return _former(Struct(tuple((column.name, types.parse(column.type)) for column in columns)), (), renames)


def _former(kind: Type, path: Path, renames: Sequence[Rename]) -> Former:
    match kind:
        case Struct(fields):
            present = {name for name, _ in fields}
            names = {name: _earlier((*path, name), renames, present) for name, _ in fields}
            parts = fields
        case ListOf(element):
            names, parts = {}, (("element", element),)
        case MapOf(_, value):
            names, parts = {}, (("value", value),)
        case _:
            return NONE
    inside = {name: _former(part, (*path, name), renames) for name, part in parts}
    return Former(
        {name: found for name, found in names.items() if found},
        {name: found for name, found in inside.items() if found != NONE},
    )


def _earlier(path: Path, renames: Sequence[Rename], present: set[str]) -> tuple[str, ...]:
    found = dict.fromkeys(known[-1] for known in origins(path, renames))
    return tuple(name for name in found if name not in present)


# Names in tables


@dataclass(frozen=True, slots=True)
class Renaming:
    """Changes of a table's names. ``steps`` has the present path of each column that gets another name, and this name."""

    steps: tuple[tuple[str, str], ...]
    fields: Fields
    """The fields of the table after the changes."""
    former: FormerNames
    """The earlier names by field id after the changes."""
    before: FormerNames = field(default_factory=dict)
    """The earlier names that the table has now."""
    followed: tuple[Rename, ...] = ()
    """The renames that the table follows, in order."""
    collisions: tuple[Rename, ...] = ()
    """Renames that the table cannot follow, because another column has the later name, or had it."""
    missing: Rename | None = None
    """A rename of a column that the table does not have under either name."""

    @property
    def following(self) -> tuple[Rename, ...]:
        """Return the renames from all earlier names to those of the table, those of a struct before those of its members."""
        return tuple(_following(self.fields, self.former, ""))

    @property
    def properties(self) -> dict[str, str]:
        """Return `FORMER_NAMES` with its value, if it changes."""
        if self.former == self.before:
            return {}
        return {FORMER_NAMES: written_names(self.former)}

    @property
    def texts(self) -> list[str]:
        """Return the changes for users."""
        return [f"column {path} renamed to {name}" for path, name in self.steps]


def planned(fields: Fields, former: FormerNames, renames: Sequence[Rename], aliases: Sequence[Rename] = ()) -> Renaming:
    """Return the changes that give the columns of a table their later names. A rename that was made before changes nothing.

    ``aliases`` are renames of other schemas of producers, of which any may be the older one. So they give no column an
    earlier name back.
    """
    after = json.loads(json.dumps(list(fields)))
    paths = {each["id"]: (path, each["name"]) for path, each in all_fields(fields)}
    names = _Names(after, dict(former))
    collisions = [each for each in aliases if not names.follow(each, alias=True)]
    collisions += [each for each in renames if not names.follow(each, alias=False)]
    missing = None
    for number, rename in enumerate(renames):
        if missing is None and not _reaches(after, moved(rename.new_path, renames[number + 1 :]), names.earlier):
            missing = rename
    steps = tuple(
        (paths[each["id"]][0], each["name"]) for _, each in all_fields(after) if paths[each["id"]][1] != each["name"]
    )
    return Renaming(steps, after, names.earlier, former, tuple(names.followed), tuple(collisions), missing)


@dataclass(slots=True)
class _Names:
    """The names of a table's columns while it follows renames. ``fields`` get their later names."""

    fields: Fields
    earlier: dict[int, tuple[str, ...]]
    followed: list[Rename] = field(default_factory=list)
    returned: dict[int, str] = field(default_factory=dict)
    """The earlier name that the field of a column has again, by the id of the column. The column keeps its later name."""

    def follow(self, rename: Rename, *, alias: bool) -> bool:
        """Follow a rename. Return False if another column has the later name, or had it."""
        siblings, found = _find(self.fields, rename.old_path, self.returned)
        if found is None and alias:
            found = next((each for each in siblings if self.returned.get(each["id"]) == rename.old_name), None)
        if found is None:
            self.followed.append(rename)
            if rename.by_schema:
                _learn(siblings, rename, self.earlier)
            return True
        if any(_has(each, rename.name, self.earlier) for each in siblings if each is not found):
            return False
        earlier = self.earlier.get(found["id"], ())
        if alias and rename.name in earlier:
            self.returned[found["id"]] = rename.name
            return True
        self.returned.pop(found["id"], None)
        self.followed.append(rename)
        if rename.name != found["name"]:
            names = [name for name in earlier if name != rename.name]
            self.earlier[found["id"]] = tuple(dict.fromkeys((*names, found["name"])))
            found["name"] = rename.name
        return True


def _has(field: Mapping[str, Any], name: str, earlier: FormerNames) -> bool:
    """Return whether a field has a name, or had it. Spark cannot read columns whose names differ only in case."""
    return name.casefold() == field["name"].casefold() or name in earlier.get(field["id"], ())


def _learn(siblings: Fields, rename: Rename, earlier: dict[int, tuple[str, ...]]) -> None:
    """Note an earlier name that the table never had. Records of producers that have not been renamed yet may have it."""
    if any(rename.old_name in earlier.get(each["id"], ()) for each in siblings):
        return
    for each in siblings:
        if each["name"] == rename.name:
            earlier[each["id"]] = (*earlier.get(each["id"], ()), rename.old_name)


def parts(kind: Any) -> Fields:
    """Return the fields directly inside a type. ``element`` and ``value`` are the names of those in lists and maps."""
    match kind:
        case {"type": "struct", "fields": fields}:
            return list(fields)
        case {"type": "list"}:
            return [{"id": kind["element-id"], "name": "element", "type": kind["element"]}]
        case {"type": "map"}:
            return [{"id": kind["value-id"], "name": "value", "type": kind["value"]}]
    return []


def all_fields(fields: Fields, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield fields, and those inside them, with their paths. ``path`` is that of the struct, with a dot."""
    for each in fields:
        yield path + each["name"], each
        yield from all_fields(parts(each["type"]), f"{path}{each['name']}.")


def ids(field: Mapping[str, Any]) -> set[int]:
    """Return the id of a field, and those of the fields inside it."""
    return {each["id"] for _, each in all_fields([dict(field)])}


def _find(fields: Fields, path: Path, returned: Mapping[int, str]) -> tuple[Fields, dict[str, Any] | None]:
    """Return the fields of the struct that the end of a path is in, and the field at its end. A missing struct has no fields.

    ``returned``: the earlier names that fields have again. A path to a member may contain them.
    """
    first, rest = path[0], path[1:]
    found = next((each for each in fields if each["name"] == first), None)
    if not rest:
        return fields, found
    found = found or next((each for each in fields if returned.get(each["id"]) == first), None)
    return ((), None) if found is None else _find(parts(found["type"]), rest, returned)


def _reaches(fields: Fields, path: Path, earlier: FormerNames) -> bool:
    """Return whether a path leads to a field. Each step may be an earlier name, which another client has changed."""
    first, rest = path[0], path[1:]
    found = next((each for each in fields if each["name"] == first), None)
    found = found or next((each for each in fields if first in earlier.get(each["id"], ())), None)
    return found is not None and (not rest or _reaches(parts(found["type"]), rest, earlier))


def _following(fields: Fields, former: FormerNames, path: str) -> Iterator[Rename]:
    present = {each["name"] for each in fields}
    for each in fields:
        for name in former.get(each["id"], ()):
            if name not in present:
                yield Rename(old=path + name, new=path + each["name"])
        yield from _following(parts(each["type"]), former, f"{path}{each['name']}.")


def reused(fields: Fields, former: FormerNames, columns: Sequence[Column]) -> tuple[str, str] | None:
    """Return a new column with the earlier name of another one, as its path, and the present name of the other one."""
    return _reused(fields, former, tuple((each.name, types.parse(each.type)) for each in columns), "")


def _reused(
    fields: Fields, former: FormerNames, members: Sequence[tuple[str, Type]], path: str
) -> tuple[str, str] | None:
    known = {each["name"]: each for each in fields}
    for name, kind in members:
        if name in known:
            found = _reused(parts(known[name]["type"]), former, _members(kind), f"{path}{name}.")
        else:
            other = next((each["name"] for each in fields if name in former.get(each["id"], ())), None)
            found = None if other is None else (path + name, other)
        if found is not None:
            return found
    return None


def _members(kind: Type) -> Sequence[tuple[str, Type]]:
    match kind:
        case Struct(fields):
            return fields
        case ListOf(element):
            return (("element", element),)
        case MapOf(_, value):
            return (("value", value),)
    return ()
