"""Changes of a record schema that keep the table readable: add a field, widen a type, drop ``required``, change a doc.

Source: Iceberg specification, "Schema Evolution".
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from firn.model.jobs import Column, RecordSchema, SchemaFormat
from firn.tables import renames, rows, types
from firn.tables.types import Decimal, ListOf, MapOf, Primitive, Struct, Type

_WIDER = {("int", "long"), ("float", "double")}


def can_become(old: Type, new: Type) -> bool:
    """Return True if values of ``old`` can be read as ``new`` without a rewrite. Structs may get more members, in any order."""
    match old, new:
        case Primitive(a), Primitive(b):
            return a == b or (a, b) in _WIDER
        case Decimal(p, s), Decimal(q, t):
            return s == t and q >= p
        case ListOf(a), ListOf(b):
            return can_become(a, b)
        case MapOf(k, v), MapOf(m, w):
            return k == m and can_become(v, w)
        case Struct(before), Struct(after):
            members = dict(after)
            return all(name in members and can_become(kind, members[name]) for name, kind in before)
        case _:
            return old == new


_DIGITS = {"int": 10, "long": 19}
"""Most decimal digits of an integer."""
_Reads = Callable[[Type, Type], bool]


def is_read_as(written: Type, column: Type, form: SchemaFormat, *, all_values: bool = False) -> bool:
    """Return whether a column of another type takes values that were written as ``written``. Types with parts are not compared.

    The decoders change no value. Only a JSON number can be rounded, as each number in a column of type double: the decoder reads it
    by the type of the column. A text in a binary column of JSON is base64, and in other formats the bytes of the text. A record with
    a value that does not fit is a bad record. With ``all_values``, return True only if every value fits.
    """
    match written, column:
        case Primitive("int"), Primitive("double"):
            return True
        case Primitive("long"), Primitive("double"):
            return form is SchemaFormat.JSON or (form is SchemaFormat.AVRO and not all_values)
        case Primitive("string"), Primitive("binary"):
            return form in (SchemaFormat.AVRO, SchemaFormat.PROTOBUF)
        case Primitive("binary"), Primitive("string"):
            return form in (SchemaFormat.AVRO, SchemaFormat.PROTOBUF) and not all_values
        case Primitive("int" | "long" as kind), Decimal(precision, scale):
            return precision - scale >= _DIGITS[kind]
    return False


def merged(one: Type, other: Type) -> Type | None:
    """Return the narrowest type that both can become, or None. A struct gets the members of both, first those of ``one``."""
    return _merged(one, other, lambda written, column: False)


def holding(column: Type, written: Type, form: SchemaFormat, *, all_values: bool = False) -> Type | None:
    """Return the type that lets a column take values that were written as ``written``, or None.

    The column changes only as `can_become` allows. It keeps its type if the decoders read the values as this type, with
    ``all_values`` only if all values fit. A column of type float becomes double for integers that a double takes.
    """
    return _merged(column, written, lambda other, own: is_read_as(other, own, form, all_values=all_values))


def _merged(one: Type, other: Type, reads: _Reads) -> Type | None:
    match one, other:
        case Decimal(p, s), Decimal(q, t) if s == t:
            return Decimal(max(p, q), s)
        case ListOf(a), ListOf(b):
            element = _merged(a, b, reads)
            return None if element is None else ListOf(element)
        case MapOf(k, v), MapOf(m, w) if k == m:
            value = _merged(v, w, reads)
            return None if value is None else MapOf(k, value)
        case Struct(before), Struct(after):
            members = dict(before)
            for name, kind in after:
                both = _merged(members[name], kind, reads) if name in members else kind
                if both is None:
                    return None
                members[name] = both
            return Struct(tuple(members.items()))
    if can_become(one, other):
        return other
    if one == Primitive("float") and reads(other, Primitive("double")):
        return Primitive("double")
    return one if can_become(other, one) or reads(other, one) else None


def merged_columns(known: Sequence[Column], new: Sequence[Column], form: SchemaFormat) -> tuple[Column, ...]:
    """Return the columns ``new`` with the types that the columns ``known`` need to take their values, written in the format ``form``.

    If there is no such type, a column keeps its new type, and `problems` reports it.
    """
    earlier = {column.name: column.type for column in known}

    def fit(column: Column) -> Column:
        if column.name not in earlier:
            return column
        both = holding(types.of_table(earlier[column.name]), types.parse(column.type), form)
        return column if both is None else column.model_copy(update={"type": str(both)})

    return tuple(fit(column) for column in new)


def _hint(name: str, fields: Iterable[str], known: Collection[str]) -> str:
    added = [each for each in fields if each not in known]
    return (
        f"; or rename the column by spec.schema.renames: [{{from: {name}, to: {added[0]}}}]" if len(added) == 1 else ""
    )


def problems(old: RecordSchema, new: RecordSchema) -> list[str]:
    """List the reasons why a table created for ``old`` cannot change to ``new``. Empty: it can."""
    if (old.format, old.raw_as) != (new.format, new.raw_as):
        before, after = (
            f"Raw {schema.raw_as}" if schema.format is SchemaFormat.RAW else schema.format for schema in (old, new)
        )
        return [f"the format cannot change from {before} to {after}"]
    reasons = []
    after_columns = rows.schema_columns(new)
    fields = {field.name: field for field in after_columns}
    old_fields = renames.renamed_columns(rows.schema_columns(old), rows.column_renames(new, new.renames))
    old_names = {field.name for field in old_fields}
    keeps = new.evolution.drop in ("KeepNull", "DropColumn") or (new.evolution.drop is None and new.has_writers)
    added = ", ".join(name for name in fields if name not in old_names)
    beside = f", and add {added} beside it" if added else ""
    for field in old_fields:
        after_field = fields.get(field.name)
        if after_field is None and keeps:
            # The column stays. If Spark cannot read its type, the operator
            # plans no run for the table only while the schema has the field.
            if types.unreadable(types.parse(field.type)):
                reasons.append(f"field {field.name} of type {field.type} cannot be removed: keep it{beside}")
        elif after_field is None:
            hint = _hint(field.name, fields, old_names) if new.projection is None else ""
            reasons.append(f"field {field.name} is missing, and cannot be removed: keep it{beside}{hint}")
        elif not can_become(types.parse(field.type), types.parse(after_field.type)):
            reasons.append(f"field {field.name} cannot change from {field.type} to {after_field.type}")
        elif after_field.required and not field.required:
            reasons.append(f"field {field.name} cannot become required")
    reasons += [
        f"field {name} is new and cannot be required"
        for name, field in fields.items()
        if field.required and name not in old_names
    ]
    return reasons + _problems_of_key(rows.key_columns(old.key), rows.key_columns(new.key))


def _problems_of_key(old: Sequence[Column], new: Sequence[Column]) -> list[str]:
    reasons, after = [], {column.name: column for column in new}
    for column in old:
        later = after.pop(column.name, None)
        if later is None:
            reasons.append(
                f"column {column.name} of the key is missing, and cannot be removed: restore spec.schema.key"
            )
        elif not can_become(types.parse(column.type), types.parse(later.type)):
            reasons.append(
                f"column {column.name} of the key cannot change from {column.type} to {later.type}: restore its type in spec.schema.key,"
                " or in the schema that it names"
            )
        elif later.required and not column.required:
            reasons.append(
                f"column {column.name} of the key cannot become required, because earlier rows may lack it: let its field be optional"
            )
    return reasons + [
        f"column {name} of the key is new and cannot be required, because earlier rows lack it: let its field be optional"
        for name in after
        if after[name].required
    ]
