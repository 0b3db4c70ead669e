"""The numbers of Protobuf fields whose values a column has. The number identifies a field, whatever names it has in schemas.

The table property `NUMBERS` keeps them by field id. So a driver finds a renamed field, although it knows none of the earlier schemas.
"""

import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Projection, RecordSchema, Rename, SchemaFormat, WriterRename
from firn.schemas import protobuf
from firn.schemas.protobuf import Field, Map, Message, Repeated
from firn.tables import evolution, renames, rows, types
from firn.tables.renames import Fields, FormerNames
from firn.tables.types import MapOf, Type

NUMBERS = "firn.field-numbers"
"""Property with the numbers of the fields that columns belong to: a JSON object with the name of the message, and by field id the
id of the newest schema with such a field, and the numbers."""


@dataclass(frozen=True, slots=True)
class Known:
    """The numbers of the fields that a column belongs to. ``schema`` is the id of the newest schema with one of them."""

    schema: int
    numbers: frozenset[int]


MOST_STRUCT_PATHS = 100
"""Most paths of one struct for which `implied` yields renames of its members. Each level with three names triples the paths of the
structs in it, so ten levels would have 59,049."""

Numbers = Mapping[int, Known]
"""The numbers by the id of a column in the table."""


def read(text: str, message: str, contract: RecordSchema | None = None) -> Numbers:
    """Return the numbers in the value of the property. A value of another message, or one that is not valid, counts as none.

    ``contract``: its message is ``message``, and may have had another name.
    """
    try:
        found = json.loads(text)
        if found["message"] != message and not _was(found["message"], message, contract):
            return {}
        columns = found["columns"].items()
        return {int(number): Known(int(schema), frozenset(map(int, each))) for number, (schema, *each) in columns}
    except (ValueError, AttributeError, TypeError, KeyError):
        return {}


def _was(earlier: str, message: str, contract: RecordSchema | None) -> bool:
    """Return whether the text of the contract has given the message another name."""
    if contract is None or contract.message:
        return False
    try:
        return protobuf.message_name(contract.model_copy(update={"found_message": earlier})) == message
    except InvalidSpecError:
        return False


@dataclass(frozen=True, slots=True)
class _Seen:
    """A field of a schema, or a column that belongs to fields. ``inside``: its members by number, of the struct behind ``way``."""

    schema: int
    name: str
    kind: Type
    way: str = ""
    inside: "Mapping[int, Sequence[_Seen]] | None" = None
    prefixes: frozenset[str] = frozenset()
    """The names of the columns that have values of the field: that with its name, and those of its other types."""


Members = dict[int, list[_Seen]]


def _of_message(message: Message, schema: int) -> Members:
    found: Members = {}
    for each in message.fields:
        seen = _of_field(each, schema)
        if seen is not None:
            found.setdefault(each.number, []).append(seen)
    return found


def _of_field(field: Field, schema: int) -> _Seen | None:
    kind = protobuf.column_type(field.type)
    if kind is None:
        return None
    way, inner = _message(field.type)
    inside = _of_message(inner, schema) if inner is not None else None
    return _Seen(schema, field.name, kind, way, inside, frozenset({field.name}))


def _message(node: protobuf.Node) -> tuple[str, Message | None]:
    """Return the message whose fields become the members of a struct, and the way to it."""
    match node:
        case Repeated(item):
            return f"element.{_message(item)[0]}", _message(item)[1]
        case Map():
            return f"value.{_message(node.value)[0]}", _message(node.value)[1]
        case Message() if not protobuf.is_timestamp(node) and protobuf.wrapped_field(node) is None:
            return "", node
    return "", None


def _of_table(fields: Fields, known: Numbers, bases: Mapping[str, str]) -> Members:
    """Return what the columns of a table belong to. ``bases`` has the fields of columns for other types."""
    found: Members = {}
    for each in fields:
        if each["id"] in known:
            seen = _of_column(each, known, bases)
            for number in known[each["id"]].numbers:
                found.setdefault(number, []).append(seen)
    return found


def _of_column(column: Mapping[str, Any], known: Numbers, bases: Mapping[str, str]) -> _Seen:
    way, parts = _struct(column["type"])
    inside = _of_table(parts, known, {}) if parts else None
    name = bases.get(column["name"], column["name"])
    kind = types.of_table(types.of_json(column["type"]))
    schema = known[column["id"]].schema if column["id"] in known else 0
    return _Seen(schema, name, kind, way, inside, frozenset({name, column["name"]}))


def _struct(kind: object) -> tuple[str, Fields]:
    """Return the fields of the struct in a type, and the way to it."""
    match kind:
        case {"type": "list"} | {"type": "map"}:
            part = renames.parts(kind)[0]
            way, found = _struct(part["type"])
            return f"{part['name']}.{way}", found
        case {"type": "struct", "fields": fields}:
            return "", list(fields)
    return "", ()


def _fits(one: _Seen, other: _Seen) -> bool:
    """Return whether a column can hold the values of both."""
    match one.kind, other.kind:
        case MapOf(key), MapOf(other_key) if key != other_key:
            return False
    if one.inside is None or other.inside is None:
        return one.inside is other.inside and evolution.merged(one.kind, other.kind) is not None
    return one.way == other.way and all(
        any(_fits(first, second) for first in members for second in other.inside[number])
        for number, members in one.inside.items()
        if number in other.inside
    )


def implied(
    messages: Iterable[tuple[int, Message]], fields: Fields, known: Numbers, bases: Mapping[str, str]
) -> Iterator[Rename]:
    """Yield the renames of fields that have another name in a later schema, by the messages of schemas and the columns of a table.

    ``messages`` have the ids of their schemas. A later schema has a larger id. If a struct has more than `MOST_STRUCT_PATHS` paths,
    the renames are those for the latest names, which the table has after the renames of the structs around it.
    """
    found = _of_table(fields, known, bases)
    for schema, message in messages:
        _add(found, _of_message(message, schema))
    yield from _implied(found, ("",))


def _add(found: Members, more: Mapping[int, Sequence[_Seen]]) -> None:
    for number, members in more.items():
        found.setdefault(number, []).extend(members)


def _implied(found: Members, prefixes: Sequence[str]) -> Iterator[Rename]:
    for seen in found.values():
        ordered = sorted(seen, key=lambda each: each.schema)
        for at, later in enumerate(ordered):
            earlier = next((each for each in reversed(ordered[:at]) if _fits(each, later)), later)
            if earlier.name != later.name:
                for prefix in prefixes:
                    yield Rename(old=prefix + earlier.name, new=prefix + later.name, by_schema=True)
        for way in dict.fromkeys(each.way for each in ordered if each.inside is not None):
            inside: Members = {}
            structs = [each for each in ordered if each.inside is not None and each.way == way]
            for each in structs:
                _add(inside, each.inside or {})
            names = dict.fromkeys(name for each in reversed(structs) for name in sorted(each.prefixes))
            ways = (f"{prefix}{name}.{way}" for prefix in prefixes for name in names)
            yield from _implied(inside, list(itertools.islice(ways, MOST_STRUCT_PATHS)))


def bases_of(fields: Fields, versions: Mapping[int, str], former: FormerNames) -> dict[str, str]:
    """Return the present names of the fields of columns for other types. ``versions`` has their names at that time, by field id."""
    present = {name: each["name"] for each in fields for name in former.get(each["id"], ())}
    present |= {each["name"]: each["name"] for each in fields}
    return {
        each["name"]: present.get(versions[each["id"]], versions[each["id"]])
        for each in fields
        if each["id"] in versions
    }


def columns_of_fields(projection: Projection | None, table: Fields) -> Fields:
    """Return the columns of a table that fields of the record belong to by their names: those that are not computed."""
    if projection is None:
        return table
    if not projection.keeps_others:
        return ()
    computed = {column.name for column in projection.columns}
    return [each for each in table if each["name"] not in computed]


@dataclass(slots=True)
class Belonging:
    """The numbers of the fields that each column belongs to, by the path of its struct, and by name.

    `moved` decides by them about the column of each field. `learn` adds those of a schema.
    """

    message: str = ""
    """The name of the message in the contract. A text with one outer message may give it another name."""
    contract: RecordSchema | None = None
    selected: Collection[str] | None = None
    """The names of the fields that have columns, if not all have them."""
    known: dict[str, dict[str, Known]] = field(default_factory=dict)
    owners: dict[str, dict[int, str]] = field(default_factory=dict)
    """The column that a field of another schema goes to, by the path of the struct and the number of the field."""
    declared: dict[str, dict[int, Field]] = field(default_factory=dict)
    """The fields of schemas, by the path of the struct and the number, that of the contract first."""
    fixed: Mapping[str, _Seen] = field(default_factory=dict)
    """The columns that keep their names, by their paths: none in the driver, which renames columns. A field with another name goes to
    the column of its number, if the types fit."""

    @classmethod
    def of_table(
        cls,
        contract: RecordSchema,
        fields: Fields = (),
        numbers: str = "",
        versions: Collection[int] = (),
        *,
        fixed: bool = False,
    ) -> "Belonging":
        """Return the numbers of a table's columns, and of those that the contract adds. The names of both are the later ones.

        ``numbers`` is the value of `NUMBERS`, and ``versions`` has the ids of columns for other types. ``fixed``: the columns keep their names.
        """
        message = message_of(contract)
        if message is None:
            return cls()
        found, kept = cls(message.name, contract, rows.read_fields(contract)), read(numbers, message.name, contract)
        own = [each for each in columns_of_fields(contract.projection, fields) if each["id"] not in versions]
        if fixed:
            found.fixed = {path: _of_column(each, kept, {}) for path, each in renames.all_fields(fields)}
        columns = [(path, kept[each["id"]]) for path, each in renames.all_fields(own) if each["id"] in kept]
        for path, each in sorted(columns, key=lambda item: item[1].schema):
            struct, _, name = path.rpartition(".")
            found.known.setdefault(struct, {})[name] = each
            found.owners.setdefault(struct, {}).update(dict.fromkeys(each.numbers, name))
        if next(found._foreign(message, ""), None) is None:
            # The operator has accepted the names of the contract.
            for struct, inner in _structs(message, ""):
                owners = found.owners[struct] = dict(found.owners.get(struct, {}))
                owners.update({each.number: each.name for each in inner.fields})
                found._add(struct, inner, contract.schema_id or 0, of_contract=True)
        return found

    def learn(self, of_writer: RecordSchema) -> None:
        """Learn the numbers of a schema whose fields have the names of their columns. Raises InvalidSpecError (BadSchema)."""
        if not self.message:
            return
        message = protobuf.message_of(of_writer, whole=True)
        for struct, inner in _structs(message, ""):
            self._add(struct, inner, of_writer.schema_id or 0)

    def _add(self, struct: str, message: Message, schema: int, *, of_contract: bool = False) -> None:
        known, owners = self.known.setdefault(struct, {}), self.owners.setdefault(struct, {})
        taken = {each.number for each in message.fields} if of_contract else set()
        for each in message.fields:
            before = known.get(each.name)
            if before is not None:
                before = Known(before.schema, before.numbers - taken)
            known[each.name] = _both(before, Known(schema, frozenset({each.number})))
            owners.setdefault(each.number, each.name)
            self.declared.setdefault(struct, {}).setdefault(each.number, each)

    def moved(self, of_writer: RecordSchema, place: str) -> tuple[RecordSchema, tuple[WriterRename, ...]]:
        """Return a schema of a writer with the renames that bring its fields to the columns of their numbers, and these renames.

        They are about fields whose name belongs to another number. The names are those after the renames of the schema. Raises
        InvalidSpecError (BadSchema) that names ``place`` if fields have exchanged their names, or if a field without a column has
        the name of another field.
        """
        if not self.message:
            return of_writer, ()
        try:
            message = protobuf.message_of(of_writer, whole=True)
        except InvalidSpecError as error:
            raise InvalidSpecError(f"{place}: {error}", reason=error.reason) from None
        number, followed = of_writer.schema_id or 0, {(each.old, each.new) for each in of_writer.renames}
        found = self._moves(message, "", place, followed)
        moves = tuple(WriterRename(old=old, new=new, schema_id=number) for old, new in found)
        renamed = of_writer.model_copy(update={"renames": (*of_writer.renames, *moves)})
        if moves:
            message = protobuf.message_of(renamed, whole=True)
        for path, name, other in self._foreign(message, ""):
            raise InvalidSpecError(
                f"{place}: field {path}{name} has another number than before, and field {path}{other} has the earlier one; give both"
                " fields new names, or new numbers",
                reason=Reason.BAD_SCHEMA,
            )
        return renamed, moves

    def _moves(
        self, message: Message, struct: str, place: str, followed: Collection[tuple[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yield the earlier and later paths of the fields of a message at ``struct`` that go to a column of another name.

        Such a field leaves its name to the field whose number the column of this name has. ``followed`` are the renames of the schema.
        They did not reach this field, because its later name was not free.
        """
        known, path = self.known.get(struct, {}), f"{struct}." if struct else ""
        later = {each.name: each.name for each in message.fields}
        waiting = self._waiting(message, struct, followed)
        while waiting:
            # A field gets its name after the field that has it now.
            name = next((name for name, wanted in waiting.items() if wanted not in later.values()), None)
            if name is None:
                raise self._exchanged(message, struct, waiting, place)
            later[name] = waiting.pop(name)
            yield path + name, path + later[name]
        for each in message.fields:
            column, (way, inner) = known.get(later[each.name]), _message(each.type)
            if inner is not None and column is not None and each.number in column.numbers:
                yield from self._moves(inner, _inside(path + later[each.name], way), place, followed)

    def _waiting(self, message: Message, struct: str, followed: Collection[tuple[str, str]]) -> dict[str, str]:
        """Return the fields of a message at ``struct`` that go to a column of another name, with this name."""
        known, owners = self.known.get(struct, {}), self.owners.get(struct, {})
        path, names = f"{struct}." if struct else "", {each.name for each in message.fields}
        waiting: dict[str, str] = {}
        for each in message.fields:
            owner = owners.get(each.number)
            if owner is None or each.name not in known or each.number in known[each.name].numbers:
                continue
            if struct or self._has_column(each.name) or self._has_column(owner):
                waiting[each.name] = owner
        for each in message.fields:
            owner = owners.get(each.number, "")
            if each.name in known:
                continue
            if owner in waiting:
                if (path + each.name, path + owner) in followed or self._is_declared(struct, each):
                    waiting[each.name] = owner
            elif owner not in names and path + each.name not in self.fixed:
                seen, column = _of_field(each, 0), self.fixed.get(path + owner)
                if seen is not None and column is not None and _fits(column, seen):
                    waiting[each.name] = owner
        return waiting

    def _foreign(self, message: Message, struct: str) -> Iterator[tuple[str, str, str]]:
        """Yield the fields that have the column of another field of the message: path of the struct, name, and the other name."""
        known, path = self.known.get(struct, {}), f"{struct}." if struct else ""
        for each in message.fields:
            column = known.get(each.name)
            if column is None or not (struct or self._has_column(each.name)):
                continue
            if each.number not in column.numbers:
                others = (one.name for one in message.fields if one.number in column.numbers)
                yield from ((path, each.name, other) for other in others)
                continue
            way, inner = _message(each.type)
            if inner is not None:
                yield from self._foreign(inner, _inside(path + each.name, way))

    def _exchanged(self, message: Message, struct: str, waiting: Mapping[str, str], place: str) -> InvalidSpecError:
        """Return the error about fields of a message that wait for the names of each other."""
        known, path = self.known[struct], f"{struct}." if struct else ""
        field = next(each for each in message.fields if each.name in waiting and each.name in known)
        other = path + waiting[field.name]
        return protobuf.exchanged(place, path + field.name, field.number, other, known[field.name].numbers)

    def _is_declared(self, struct: str, field: Field) -> bool:
        """Return whether a column holds the values of a field, and those of the known field with its number."""
        other = self.declared.get(struct, {}).get(field.number)
        one, known = _of_field(field, 0), _of_field(other, 0) if other is not None else None
        return one is not None and known is not None and _fits(known, one)

    def _has_column(self, name: str) -> bool:
        return self.selected is None or name in self.selected

    def properties(self, before: Mapping[str, str], fields: Fields) -> dict[str, str]:
        """Return `NUMBERS` for a table with these fields, if it changes."""
        known = read(before.get(NUMBERS, ""), self.message, self.contract)
        present = {path: each["id"] for path, each in renames.all_fields(fields)}
        after = dict(known)
        for struct, columns_of_struct in self.known.items():
            for name, each in columns_of_struct.items():
                column = present.get(f"{struct}.{name}" if struct else name)
                if column is not None:
                    after[column] = _both(known.get(column), each)
        if after == known:
            return {}
        columns = {str(number): [each.schema, *sorted(each.numbers)] for number, each in sorted(after.items())}
        return {NUMBERS: json.dumps({"message": self.message, "columns": columns})}


def _both(one: Known | None, other: Known) -> Known:
    return other if one is None else Known(max(one.schema, other.schema), one.numbers | other.numbers)


def _structs(message: Message, struct: str) -> Iterator[tuple[str, Message]]:
    """Yield a message whose fields have columns, and those inside it, with the paths of their structs."""
    yield struct, message
    path = f"{struct}." if struct else ""
    for each in message.fields:
        way, inner = _message(each.type)
        if inner is not None:
            yield from _structs(inner, _inside(path + each.name, way))


def _inside(path: str, way: str) -> str:
    """Return the path of the struct behind ``way`` in the column at ``path``."""
    return f"{path}.{way}".removesuffix(".")


def message_of(schema: RecordSchema) -> Message | None:
    """Return the message of a schema with all its fields; None if it is not Protobuf, or has no descriptors that can be read."""
    if schema.format is not SchemaFormat.PROTOBUF or not schema.descriptors:
        return None
    try:
        return protobuf.message_of(schema, whole=True)
    except InvalidSpecError:
        return None
