"""Columns for fields whose type the column with their name cannot hold: ``NAME_v2``, ``NAME_v3``, in the order of their creation.

The table property `VERSIONS` keeps by field id of which field a column is a version. So all drivers choose the same columns, and a
producer's own field ``NAME_v2`` is never taken for one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, ColumnVersion, Rename, SchemaFormat
from firn.tables import evolution, types
from firn.tables.renames import Fields, destination, renamed_columns

VERSIONS = "firn.column-versions"
"""Property with the fields of columns that are versions: a JSON object, field id -> field."""


def read_versions(properties: Mapping[str, str]) -> dict[int, str]:
    """Return the fields of columns that are versions, by field id. A value that is not valid counts as none."""
    try:
        return {int(number): str(name) for number, name in json.loads(properties.get(VERSIONS, "{}")).items()}
    except (ValueError, AttributeError):
        return {}


def properties(before: Mapping[str, str], fields: Fields, columns: Mapping[str, str]) -> dict[str, str]:
    """Return `VERSIONS` with the new ``columns``, which are versions of the named fields, if it changes."""
    known = read_versions(before)
    made = {each["id"]: columns[each["name"]] for each in fields if each["name"] in columns}
    if known == {**known, **made}:
        return {}
    return {VERSIONS: json.dumps({str(number): name for number, name in sorted({**known, **made}.items())})}


@dataclass(slots=True)
class Versions:
    """The versions of fields in a table. `of_schema` adds to them."""

    columns: dict[str, list[str]] = field(default_factory=dict)
    """The columns of each field, in the order of their creation."""

    @classmethod
    def of_table(cls, fields: Fields, known: Mapping[int, str], named: Sequence[Rename] = ()) -> "Versions":
        """Return the versions in a table. ``known`` has their fields by field id, which ``named`` has renamed since."""
        found = cls()
        for each in sorted(fields, key=lambda each: int(each["id"])):
            if each["id"] in known:
                found.columns.setdefault(destination(known[each["id"]], named), []).append(each["name"])
        return found

    def of_schema(
        self,
        number: int,
        found: Sequence[Column],
        present: Mapping[str, str],
        taken: set[str],
        form: SchemaFormat,
        following: Sequence[Rename] = (),
    ) -> tuple[ColumnVersion, ...]:
        """Return the columns for those fields of a schema that the columns with their names cannot hold.

        ``present`` has the types of all columns, and ``form`` is the format of the records. A new column gets a name that is not in
        ``taken``, which has names in lower case. ``following`` are renames of the table. Raises InvalidSpecError for a field with the
        name of a version.
        """
        made = {name: base for base, names in self.columns.items() for name in names}
        versions = []
        for column in found:
            if column.name in made:
                raise InvalidSpecError(
                    f"field {column.name} has the name of a column for values of field {made[column.name]}; let producers choose another name"
                )
            known, first = self.columns.get(column.name, []), present.get(column.name)
            if first is not None and _holds(first, column.type, form):
                continue
            others = ((each, _version(column, each, following).type) for each in known)
            name = next((each for each, kind in others if _holds(present.get(each), kind, form)), None)
            if name is None and first is None:
                continue  # The column with the name of the field is new.
            if name is None:
                name = self._new(column.name, taken)
            versions.append(ColumnVersion(schema_id=number, field=column.name, column=name))
        return tuple(versions)

    def _new(self, field: str, taken: set[str]) -> str:
        number = 2
        while f"{field}_v{number}".lower() in taken:
            number += 1
        name = f"{field}_v{number}"
        self.columns.setdefault(field, []).append(name)
        taken.add(name.lower())
        return name


def _holds(present: str | None, wanted: str, form: SchemaFormat) -> bool:
    if present is None:
        return True
    return evolution.holding(types.of_table(present), types.parse(wanted), form, all_values=True) is not None


def named(
    found: Sequence[Column], versions: Sequence[ColumnVersion], following: Sequence[Rename] = ()
) -> tuple[Column, ...]:
    """Return the columns of a schema with those of its versions in place of the fields. ``following`` are renames of the table."""
    columns = {each.field: each.column for each in versions}
    return tuple(
        _version(column, columns[column.name], following) if column.name in columns else column for column in found
    )


def _version(column: Column, name: str, following: Sequence[Rename]) -> Column:
    """Return a version of a column. Members may have later names in it than in the column with the name of the field."""
    made = column.model_copy(update={"name": name, "required": False})
    return renamed_columns((made,), [each for each in following if each.old.startswith(f"{name}.")])[0]
