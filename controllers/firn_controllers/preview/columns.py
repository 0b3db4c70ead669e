"""Effects of a new record schema on the columns of the table and on the records that land."""

from collections.abc import Iterator

from firn.model.jobs import Column, ProjectedColumn, RecordSchema
from firn.schemas import changes
from firn.schemas.changes import Change
from firn.tables import renames, rows
from firn_controllers.preview.effects import Effect, changed
from firn_controllers.preview.fields import Difference

SCHEMA = "spec.schema"
TEXT = "spec.schema.text"
RENAMES = "spec.schema.renames"
_ADVICE = {
    "gate": {
        "Id": "the brokers reject later batches with a record that has no schema id of the subject",
        "Decode": "the brokers reject later batches with a record whose value does not fit its schema",
        "None": "the brokers accept any record",
    },
    "registry.idIn": {
        "Header": "later values name their schemas in a header; a value without it still begins with an id",
        "Payload": "later values begin with the ids of their schemas",
        "None": "the latest schema of the subject reads all later values",
    },
    "unknownFields": {
        "Ignore": "members that are not in fields are left out of later records",
        "DeadLetter": "later records with a member that is not in fields become dead letters",
        "Keep": "members that are not in fields are in the variant of later rows",
    },
    "nanoseconds": {
        "Keep": "new columns for times keep the nanoseconds; present columns do not change",
        "Ignore": "in Avro and Protobuf, new columns for times in nanoseconds are long or have microseconds, and present columns do not"
        " change; in JSON, later records with digits below the microsecond are bad records",
        "Truncate": "later rows have times without the digits below the microsecond",
    },
    "framing": {
        "Registry": "later values begin with the five bytes of a schema registry",
        "None": "later values begin without the five bytes of a schema registry",
    },
    "otherFields": {
        "Keep": "the table has columns for fields that no entry of columns reads",
        "Drop": "later rows have no values of fields that no entry of columns reads",
    },
    "evolution.drop": {
        "KeepNull": "the columns of fields that a later schema lacks stay, and are null in later rows",
        "DropColumn": "the table loses the columns of fields that a later schema lacks, after an approval",
        "Refuse": "a schema that lacks a field of the table is refused",
    },
    **{
        f"evolution.{kind}": {
            "Auto": f"{text} at once",
            "ByIdentity": f"{text} at once",
            "Propose": f"{text} after an approval by the annotation firn.dev/approve",
            "Refuse": f"a spec or a schema that needs {noun} is refused",
        }
        for kind, text, noun in (
            ("add", "the table gets later columns", "a new column"),
            ("widen", "columns of the table get wider types", "a wider column"),
            ("optional", "required columns become optional", "an optional column"),
            ("rename", "columns of the table get other names", "another name of a column"),
            ("partition", "the table gets another partitioning", "another partitioning"),
            ("sort", "the table gets another sort order", "another sort order"),
        )
    },
    "evolution.incompatible": {
        "Hold": "a record whose schema the table cannot hold makes the topic wait",
        "DeadLetter": "records whose schema the table cannot hold are bad records",
        "NewColumn": "a field whose values its column cannot hold gets a column of its own",
    },
}
"""Effects by field of the schema and its new value."""
_JSON = {"", "Json"}
"""Values of the format of keys that equal none."""
_UNSET = {"", "Auto", "ByIdentity", "Hold"}
"""Values of the evolution policy that equal none."""


def column_effects(
    before: RecordSchema, after: RecordSchema, table: str, layout: tuple[Change, ...] = ()
) -> Iterator[Effect]:
    """Yield the effects on the columns of the table, from the schema in force to a schema that may follow it.

    ``layout``: the changes of partitioning and sort order, which may need an approval too.
    """
    named = rows.column_renames(after, after.renames)
    present = renames.renamed_columns(rows.schema_columns(before), named)
    old, new = ({column.name: column for column in columns} for columns in (present, rows.schema_columns(after)))
    computed = _computed(after)
    for rename in named:
        if renames.has_path(before.fields, rename.old_path) and not renames.has_path(before.fields, rename.new_path):
            text = f"column {rename.old} of table {table} is renamed to {rename.new}; data files stay as they are, earlier rows have the new name"
            yield changed(TEXT if rename.by_schema else RENAMES, text, rename.old, rename.new)
    waiting = changes.judged((*changes.between(before, after), *layout), after.evolution, "", 0).proposed
    if waiting:
        texts = ", ".join(each.text for each in waiting)
        text = f"the spec waits for an approval of: {texts}; the status gets its value, and ingestion continues under the spec in force"
        yield changed("spec.schema.evolution", text)
    for name, column in new.items():
        of_text = after.has_writers and name not in computed
        field = TEXT if of_text else f"{SCHEMA}.{'columns' if name in computed else 'fields'}[{name}]"
        if name not in old:
            yield changed(field, f"table {table} gets column {name} {column.type}, which is null in earlier rows")
        else:
            for part, text, before_value, after_value in _column(old[name], column, table):
                yield changed(TEXT if of_text else f"{field}.{part}", text, before_value, after_value)
    for name, column in old.items():
        if name not in new:
            text = f"column {name} of table {table} stays, and is null in later rows"
            if after.evolution.drop == "DropColumn":
                text = f"column {name} of table {table} is null in later rows, and is dropped after an approval"
            yield changed(f"{SCHEMA}.columns" if after.projection is not None else TEXT, text, column.type)
    origins, earlier = _origins(after), _origins(before)
    for name in sorted(computed & new.keys() & old.keys()):
        if origins[name] != earlier[name]:
            text = f"column {name} of table {table} is computed in another way in records that land later"
            yield changed(f"{SCHEMA}.columns[{name}]", text, earlier[name], origins[name])


def _computed(schema: RecordSchema) -> set[str]:
    return {column.name for column in schema.projection.columns} if schema.projection is not None else set()


def _origins(schema: RecordSchema) -> dict[str, str]:
    """Return what each column of a schema is computed from, by its name."""
    computed = {column.name: _origin(column) for column in (schema.projection.columns if schema.projection else ())}
    return {column.name: f"$.{column.name}" for column in rows.schema_columns(schema)} | computed


def _origin(column: ProjectedColumn) -> str:
    if column.constant is not None:
        return repr(column.constant)
    source = column.source if column.epoch is None else f"{column.source} in {column.epoch}"
    arguments = f"{source}, salt {column.salt}" if column.salt else source
    return f"{column.function}({arguments})" if column.function is not None else source


def _column(before: Column, after: Column, table: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield for each changed part of a column: its name, the effect, and the values before and after."""
    name = after.name
    if before.type != after.type:
        text = f"column {name} of table {table} changes its type; data files stay as they are"
        yield "type", text, before.type, after.type
    if before.required and not after.required:
        yield "required", f"column {name} of table {table} becomes optional, which cannot be undone", "true", "false"
    if before.doc != after.doc and after.doc is not None:
        yield "doc", f"the comment of column {name} changes", before.doc or "", after.doc
    if before.default != after.default:
        text = f"later records without {name} have this value in column {name} of table {table}"
        if after.default is None:
            text = f"column {name} of table {table} is null in later records without {name}"
        yield "default", text, before.default or "", after.default or ""
    if before.epoch != after.epoch:
        yield (
            "epoch",
            f"integers in {name} count in {after.epoch} in records that land later",
            before.epoch,
            after.epoch,
        )


def schema_effect(difference: Difference) -> Effect | None:
    """Return the effect of a field of the schema that changes no column; None for the fields of columns."""
    field = difference.path.removeprefix(f"{SCHEMA}.")
    if field.startswith(("fields", "renames", "columns")) or (field == "key.format" and set(difference.texts) <= _JSON):
        return None
    if field == "key.framing" and "Registry" not in difference.texts:
        return None
    if field in ("key.format", "key.text", "key.message", "key.framing") or field.startswith("key.registry"):
        text = "the driver decodes every key that lands later by this; let all records with earlier keys land first"
        return changed(difference.path, text)
    if field == "text":
        text = "the driver decodes every record that lands later with this schema; let all records of the old schema land first"
        return changed(difference.path, text)
    if field.startswith("key"):
        text = "later rows have these columns of the key; columns that are new are null in earlier rows"
        return changed(difference.path, text, *difference.texts)
    before, after = difference.texts
    if field.startswith("evolution") and {before, after} <= _UNSET:
        return None
    text = _ADVICE.get(field, {}).get(after, "")
    return changed(difference.path, text, before, after)
