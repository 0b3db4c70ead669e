"""IcebergTopic: a Kafka topic and an Iceberg table that holds the same records, exactly once.

The descriptions, bounds, defaults and CEL rules here are those of the CRD and of docs/reference/api.md. The
properties and methods of `IcebergTopic` resolve what a spec leaves unset.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, ValidationError, WithJsonSchema

from firn import member_paths
from firn.api.model import DURATION, ApiModel, Condition, Duration, Int64, ObjectMeta, Rule, up_to_a_day
from firn.api.structural import Schema, structural, unchecked
from firn.api.v1alpha1.policy import NAME_RULE, ConfiguredName, RunStatus
from firn.decoders import checks, defaults
from firn.model import durations, names
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import (
    Adoption,
    Column,
    Epoch,
    Evolution,
    KeySchema,
    ProjectedColumn,
    Projection,
    Publish,
    PublishCheck,
    QualityRule,
    RecordSchema,
    Rename,
    SchemaFormat,
    SinkCommits,
    StartFrom,
    Subject,
    TableTarget,
)
from firn.model.maintenance import MOST_RANGES
from firn.schemas import columns, projections
from firn.tables import evolution, rows, types
from firn.tables.renames import has_path, moved

KIND = "IcebergTopic"
PLURAL = "icebergtopics"


def _immutable(path: str) -> Rule:
    """Return the rule that ``path`` is never changed, set or removed later. Only a rule on the parent sees the last two."""
    steps = path.split(".")
    has = " && ".join(f"has(self.{'.'.join(steps[: length + 1])})" for length in range(len(steps)))
    now = f"({has} ? self.{path} : '')"
    return Rule(
        f"{now} == {now.replace('self', 'oldSelf')}",
        f"{path.replace('__', '')} is immutable: it cannot be set, changed or removed later; to change it, delete this IcebergTopic with"
        " deletionPolicy Retain, and create it again",
    )


Retention = Literal["Retain", "Delete"]
BoundedText = Annotated[str, Field(max_length=4096)]
Term = Annotated[str, Field(min_length=1, max_length=256)]
ColumnName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
MemberName = Annotated[str, Field(pattern=r"^[^\x00-\x1f]+$", max_length=128)]
"""The name of a member of a record."""
_STEPS = r"\$(\.[A-Za-z_][A-Za-z0-9_]*|\[['\"].*\])+"
"""The form of a path. `member_paths.parse` explains what is wrong in brackets."""
RuleName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""The name of a quality rule or of a check."""
TableName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$", max_length=128)]
ResourceName = Annotated[str, Field(max_length=253)]
RangeText = Annotated[str, Field(max_length=64)]


MOST_SCHEMA_TEXT = 250_000
"""Longest Avro or Protobuf schema in a resource, in characters. From about 100,000 on, ``kubectl apply`` needs ``--server-side``, because
it keeps a copy of the resource in an annotation otherwise."""
MOST_KEY_TEXT = 50_000
"""Longest schema of keys in a resource, in characters."""
MOST_MESSAGE_NAME = 512
MOST_PROPOSED, MOST_PROPOSED_TEXT = 100, 1024
"""Most proposed changes in the status, and the longest text of one."""
MOST_PATH = 1024
"""Longest path of a column, in characters."""
MOST_KEY_BYTES = 150_000
"""Most bytes of a schema of keys with its columns, beside that of the values."""
KEY_TEXT = "spec.schema.key.text"
MOST_ROUTES = 50
"""Most tables of a topic beside its own."""
MOST_CONTRACT_BYTES = 700_000
"""Most bytes of a schema with its columns. The operator stores both in a ConfigMap, which has at most 1 MiB."""


MessageName = Annotated[
    str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$", max_length=MOST_MESSAGE_NAME)
]


class FieldSpec(ApiModel):
    """A column of the table. It is filled from the member of the same name in each JSON record."""

    name: MemberName = Field(
        description="Name of the member in the record, and of the column in the table. A name that no column can have, such as order-id,"
        " needs an entry of columns that reads it: from: $['order-id'].",
    )
    type: str = Field(
        min_length=1,
        max_length=4096,
        description="An Iceberg type: boolean, int, long, float, double, decimal(P,S), date, time, timestamp, timestamptz, string, uuid,"
        " fixed[L], binary, list<T>, map<K,V>, struct<a: T, 'b-c': T>. With table.formatVersion: 3 also timestamp_ns, timestamptz_ns"
        " and variant, which holds any JSON value.",
    )
    required: bool = Field(
        default=False,
        description="If true, a record without this member, or with null, becomes a dead letter. It can change to false later, and never back.",
    )
    doc: str | None = Field(default=None, max_length=1024, description="Comment of the column in the table.")
    epoch: Epoch | None = Field(
        default=None,
        description="Unit of integers in a timestamp or timestamptz, which count from 1970 in UTC: s, ms, us or ns. It also applies to times"
        " inside a list, map or struct. Default: ms. A change applies to records that land later.",
    )
    default: BoundedText | None = Field(
        default=None,
        description="Value of the column in records without this member, and in rows before the column, as text. A member that is null stays"
        " null. The type can be boolean, int, long, float, double, decimal(P,S), string, date or uuid. It needs table.formatVersion: 3.",
    )


class KeyFieldSpec(FieldSpec):
    """A field of the key, which becomes a column or a member of a column."""

    name: ColumnName = Field(description="Name of the member in the key, and of its column.")


class ColumnSpec(ApiModel):
    """A column of the table that is computed from each record."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.from) != has(self.constant)",
            "set either from or constant",
        ),
        Rule(
            "has(self.from) || !(has(self.with) || has(self.epoch))",
            "with and epoch need from",
        ),
        Rule("!has(self.salt) || (has(self.with) && self.with == 'Sha256')", "salt needs with: Sha256"),
    )

    name: ColumnName = Field(description="Name of the column in the table.")
    source: (
        Annotated[
            str,
            Field(
                pattern=rf"^(key|value|header:.+|{_STEPS})$",
                max_length=1024,
            ),
        ]
        | None
    ) = Field(
        default=None,
        alias="from",
        description="What the column reads: $.FIELD is a field of the record, $.FIELD.MEMBER a member of a struct. Write a name with characters"
        r" other than letters, digits and _ in brackets: $['order-id'], $.customer['user.name']. In them, \' is ' and \\ is \."
        " header:NAME is the last header with this name. key and value are those of the Kafka record. Without a header or a key, the column is null.",
    )
    constant: BoundedText | None = Field(
        default=None,
        description="The same value for every row, as text. The type can be string, boolean, int, long, double, decimal(P,S), date, time,"
        " timestamp or timestamptz.",
    )
    type: Annotated[str, Field(min_length=1, max_length=4096)] | None = Field(
        default=None,
        description="Type of the column. Default: the type of the field, and string for a header, key, value or constant. A record whose"
        " value cannot become this type becomes a dead letter. binary has the bytes of a header, key or value as they are.",
    )
    function: Literal["Mask", "Sha256"] | None = Field(
        default=None,
        alias="with",
        description="Function of the value. Mask: a text with * for each character, except the last four of a text of eight or more."
        " Sha256: the SHA-256 digest in hexadecimal of a text, bytes or an integer. With salt, it is a keyed digest (HMAC).",
    )
    salt: ConfiguredName | None = Field(
        default=None,
        description="A salt of the operator's configuration, for Sha256. Without it, a reader of the table can compute the digests of guessed"
        " values. Rows that land later get other digests after a change of the salt.",
    )
    epoch: Epoch | None = Field(
        default=None,
        description="Unit of integers that become timestamp or timestamptz, and of these times if they become long. The integers count from"
        " 1970 in UTC: s, ms, us or ns. Default: ms.",
    )
    required: bool = Field(
        default=False,
        description="If true, a record without this value becomes a dead letter. It can change to false later, and never back.",
    )
    doc: str | None = Field(default=None, max_length=1024, description="Comment of the column in the table.")

    def projected(self) -> ProjectedColumn:
        """Return the column of a contract. Its type is not known yet. Raises InvalidSpecError (BadSchema) for a bad path."""
        source = self.source or ""
        try:
            if source.startswith("$"):
                source = member_paths.shown(member_paths.parse(source))
        except member_paths.BadPathError as error:
            raise InvalidSpecError(f"{projections.PLACE}: {self.name}: {error}", reason=Reason.BAD_SCHEMA) from None
        return ProjectedColumn(
            name=self.name,
            source=source,
            constant=self.constant,
            function=self.function,
            cast=self.type or "",
            required=self.required,
            doc=self.doc,
            epoch=self.epoch,
            salt=self.salt or "",
        )


class RegistrySpec(ApiModel):
    """A subject of a schema registry, and the place of the id of a schema in this registry."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("!(has(self.subject) && has(self.subjectStrategy))", "set subject or subjectStrategy, not both"),
    )

    name: ConfiguredName = Field(description="Name of a schema registry in the operator's configuration.")
    subject: Annotated[str, Field(pattern=r"^[^:]", max_length=256)] | None = Field(
        default=None,
        description="The subject whose latest schema gives a new table its columns. The operator also checks the spec with this schema."
        " Default: TOPIC-value, with the name of the Kafka topic, and TOPIC-key for keys. A context belongs into the URL of the registry.",
    )
    subject_strategy: Literal["TopicName", "RecordName", "TopicRecordName"] | None = Field(
        default=None,
        description="The rule by which producers choose the subject, in place of subject. TopicName: TOPIC-value, and TOPIC-key for keys."
        " RecordName: the name of the record in message. TopicRecordName: TOPIC-MESSAGE. Records with other names are bad records.",
    )
    id_in: Literal["Payload", "Header", "None"] = Field(
        default="Payload",
        description="The place of the id. Payload: each value begins with a byte 0 and an id of four bytes. Header: the header"
        " __value_schema_id, or __key_schema_id for keys, has the id or the GUID; without this header, a value begins with the id. None:"
        " there is no id, and the latest schema of the subject reads all values.",
    )

    def named(self, topic: str, part: Literal["key", "value"], message: str) -> Subject:
        """Return the subject for the keys or the values of a topic. ``message`` is the name of their record."""
        names_of = {"RecordName": message, "TopicRecordName": f"{topic}-{message}"}
        default = names_of.get(self.subject_strategy or "", f"{topic}-{part}")
        return Subject(registry=self.name, name=self.subject or default, id_in=self.id_in)


def _message_rules(is_protobuf: str) -> tuple[Rule, ...]:
    """Return the rules of a spec with message and registry. ``is_protobuf`` is the CEL condition that its format is Protobuf."""
    return (
        Rule(
            f"!has(self.message) || {is_protobuf}"
            " || (has(self.registry) && has(self.registry.subjectStrategy) && self.registry.subjectStrategy != 'TopicName')",
            "message needs format: Protobuf, or registry.subjectStrategy: RecordName or TopicRecordName",
        ),
        Rule(
            "!has(self.registry) || !has(self.registry.subjectStrategy) || self.registry.subjectStrategy == 'TopicName' || has(self.message)",
            "registry.subjectStrategy: RecordName and TopicRecordName need message, the name of the record",
        ),
    )


Way = Literal["Auto", "Propose", "Refuse"]
_WAYS = "Auto: the table follows at once. Propose: the change waits in status.schema.proposed for an approval. Refuse: never."


class EvolutionSpec(ApiModel):
    """Changes of the schema that the table follows, and treatment of records whose schema does not fit the table."""

    add: Way = Field(default="Auto", description=f"New columns, also inside structs. {_WAYS}")
    widen: Way = Field(
        default="Auto",
        description=f"int to long, float to double, and higher precisions of decimals. {_WAYS}",
    )
    optional: Way = Field(default="Auto", description=f"Required columns that become optional. {_WAYS}")
    rename: Literal["ByIdentity", "Propose", "Refuse"] = Field(
        default="ByIdentity",
        description="Columns that get another name by schema.renames, by aliases in Avro or by field numbers in Protobuf. ByIdentity: the"
        " table follows at once. Propose: the change waits in status.schema.proposed for an approval. Refuse: never.",
    )
    drop: Literal["KeepNull", "DropColumn", "Refuse"] | None = Field(
        default=None,
        description="Fields that the schema no longer has. KeepNull: the column stays, and is null in later rows. DropColumn: after an"
        " approval, the table loses the column, and its data files stay. Refuse: the operator refuses the schema. Default: KeepNull"
        " with text or registry, Refuse with fields.",
    )
    partition: Way = Field(
        default="Auto", description=f"Changes of table.partitionBy. {_WAYS} Data files stay in their partitions."
    )
    sort: Way = Field(default="Auto", description=f"Changes of table.sortBy. {_WAYS}")
    incompatible: Literal["Hold", "DeadLetter", "NewColumn"] = Field(
        default="Hold",
        description="Treatment of records whose schema the table cannot hold, for example because a field has another type than its"
        " column. Hold: all records of the topic wait. DeadLetter: these records are bad records, and ingestion.onBadRecord applies to"
        " them. NewColumn: the table gets the column NAME_v2 for values of the other type, then NAME_v3.",
    )


class RenameSpec(ApiModel):
    """Another name for a column. Its field id and its data files stay."""

    old: Annotated[str, Field(min_length=1, max_length=MOST_PATH)] = Field(
        alias="from",
        description="The name before, such as carrier. For a member of a struct, the path with dots, such as customer.mail; inside a list"
        " after element, inside a map after value.",
    )
    new: Annotated[str, Field(min_length=1, max_length=MOST_PATH)] = Field(
        alias="to", description="The name after, with the same path before its last dot. The schema must have it."
    )


class KeySpec(ApiModel):
    """Conversion of record keys to columns."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.columns in ['Flat', 'Struct']) == (has(self.fields) || has(self.text) || has(self.registry))",
            "columns: Flat and Struct need fields, text or registry, and these need columns: Flat or Struct",
        ),
        Rule(
            "!(has(self.text) && has(self.registry)) && (!has(self.fields) || !(has(self.text) || has(self.registry)))",
            "set one of fields, text and registry",
        ),
        Rule("!has(self.fields) || self.format == 'Json'", "fields need format: Json"),
        Rule("!has(self.text) || self.format != 'Json'", "text needs format: Avro or Protobuf"),
        Rule(
            "has(self.text) || self.framing == 'None'",
            "framing needs text; remove framing: keys with a registry have these bytes",
        ),
        *_message_rules("self.format == 'Protobuf'"),
    )

    columns: Literal["None", "Binary", "Flat", "Struct"] = Field(
        default="None",
        description="Columns of the key. None: only Kafka's columns have it. Binary: a column key with the bytes. Flat: a column key_NAME for"
        " each field. Struct: a struct column key with the fields. It can change from None, and not later.",
    )
    format: Literal["Json", "Avro", "Protobuf"] = Field(
        default="Json",
        description="Encoding of the keys of Flat and Struct. Json needs fields or registry, Avro and Protobuf need text or registry.",
    )
    text: Annotated[str, Field(min_length=1, max_length=MOST_KEY_TEXT)] | None = Field(
        default=None,
        description="The schema with which producers write keys: an Avro schema as JSON, or a .proto text. An Avro schema is a"
        " record, or a value other than bytes, which has one column.",
    )
    message: MessageName | None = Field(
        default=None, description="Full name of the record of the keys, with the rules of spec.schema.message."
    )
    framing: Literal["None", "Registry"] = Field(
        default="None", description="Bytes before each Avro or Protobuf key, with the rules of spec.schema.framing."
    )
    registry: RegistrySpec | None = Field(
        default=None, description="The schema registry in which producers register the schemas of keys."
    )
    fields: Annotated[tuple[KeyFieldSpec, ...], Field(min_length=1, max_length=100)] | None = Field(
        default=None,
        description="The fields of the key, with the rules of spec.schema.fields. The type time is not allowed.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )


class SchemaSpec(ApiModel):
    """Conversion of record values to columns: JSON with named and typed fields, Avro or Protobuf with a schema, or raw."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.raw) != has(self.format)",
            "set either raw, or format: Json with fields or registry, or format: Avro or Protobuf with text or registry",
        ),
        Rule(
            "has(self.format) && self.format == 'Json' ? has(self.fields) != has(self.registry) : !has(self.fields)",
            "format: Json needs fields or registry, not both, and fields need format: Json",
        ),
        Rule(
            "has(self.format) && self.format in ['Avro', 'Protobuf'] ? has(self.text) || has(self.registry) : !has(self.text)",
            "format: Avro and format: Protobuf need text or registry, and text needs one of these formats",
        ),
        Rule("has(self.format) || !has(self.registry)", "registry needs a format"),
        *_message_rules("(has(self.format) && self.format == 'Protobuf')"),
        Rule(
            "self.gate == 'None' || has(self.registry) || (self.gate == 'Decode' && has(self.format))",
            "gate: Id needs registry, and gate: Decode needs format",
        ),
        Rule(
            "!has(self.registry) || self.registry.idIn == 'Payload' || self.gate == 'None'",
            "gate needs registry.idIn: Payload, because brokers read the id before the value",
        ),
        Rule("has(self.format) || !has(self.evolution)", "evolution needs format"),
        Rule(
            "has(self.registry) || !has(self.evolution) || self.evolution.incompatible == 'Hold'",
            "evolution.incompatible: DeadLetter and NewColumn need registry",
        ),
        Rule(
            "!has(self.columns) || !has(self.evolution) || self.evolution.incompatible != 'NewColumn'",
            "evolution.incompatible: NewColumn needs a schema without columns",
        ),
        Rule("has(self.format) || !has(self.renames)", "renames need format"),
        Rule(
            "!(has(self.text) && has(self.registry))",
            "set text or registry, not both: with registry, the schema comes from the registry",
        ),
        Rule(
            "!has(self.key) || self.key.columns == 'None' || has(self.format)",
            "key needs format; without format, the table has column key already",
        ),
        Rule(
            "has(self.fields) || self.unknownFields == 'Ignore'"
            " || (self.unknownFields == 'Keep' && has(self.format) && self.format == 'Json' && has(self.registry))",
            "unknownFields needs fields, and Keep needs format: Json with fields or registry",
        ),
        Rule(
            "(self.unknownFields == 'Keep') == has(self.unknownFieldsColumn)",
            "unknownFields: Keep needs unknownFieldsColumn, and unknownFieldsColumn needs unknownFields: Keep",
        ),
        Rule(
            "!has(self.unknownFieldsColumn) || !has(self.columns) || self.otherFields == 'Keep'",
            "unknownFieldsColumn beside columns needs otherFields: Keep",
        ),
        Rule(
            "self.nanoseconds != 'Keep' || (has(self.format) && self.format in ['Avro', 'Protobuf'])",
            "nanoseconds: Keep needs format: Avro or Protobuf; in JSON, fields have a type",
        ),
        Rule(
            "self.nanoseconds != 'Truncate' || (has(self.format) && self.format == 'Json')",
            "nanoseconds: Truncate needs format: Json",
        ),
        Rule(
            "has(self.text) || self.framing == 'None'",
            "framing needs text; remove framing: values with a registry have these bytes",
        ),
        Rule("has(self.columns) || self.otherFields == 'Drop'", "otherFields needs columns"),
        Rule(
            "has(self.columns) || !has(self.fields) || self.fields.all(field, field.name.matches('^[A-Za-z_][A-Za-z0-9_]*$'))",
            "without columns, names of fields have letters, digits and _, and begin with no digit; read others by columns, as in"
            " from: $['order-id']",
        ),
    )

    raw: Literal["Binary", "String"] | None = Field(
        default=None,
        description="No decoding. The table has the columns key and value, as bytes or as text."
        " With String, a record that is not UTF-8 becomes a dead letter.",
    )
    format: Literal["Json", "Avro", "Protobuf"] | None = Field(
        default=None,
        description="Encoding of record values. Json needs fields or registry, Avro and Protobuf need text or registry.",
    )
    text: Annotated[str, Field(min_length=1, max_length=MOST_SCHEMA_TEXT)] | None = Field(
        default=None,
        description="The schema with which producers write record values: an Avro schema as JSON, or a .proto text. An Avro"
        " schema is a record, or a value other than bytes, which has the column value."
        " The fields of the record or message become the columns. Values are in the binary encoding of the format.",
    )
    message: MessageName | None = Field(
        default=None,
        description="Full name of the Protobuf message of the records, such as shop.v1.Order. Default: the first message of"
        " the first .proto text. Later texts keep it. A text with only one outer message may give it another name."
        " With registry, records with other messages are bad records. With registry.subjectStrategy, also the full name of an Avro record,"
        " or the title of a JSON schema.",
    )
    framing: Literal["None", "Registry"] = Field(
        default="None",
        description="Bytes before each Avro or Protobuf value. Registry: a byte 0 and a schema id of four bytes, as serializers of a schema"
        " registry write them. In Protobuf, the indexes of the message follow. The driver ignores the id, and decodes all values with text."
        " In JSON topics, the driver accepts values with and without these bytes.",
    )
    registry: RegistrySpec | None = Field(
        default=None,
        description="The schema registry in which producers register their schemas. Each value names its schema by an id."
        " The driver adds columns to the table when a schema has new fields.",
    )
    gate: Literal["None", "Id", "Decode"] = Field(
        default="None",
        description="Check of records when producers send them, in a profile of kind Diskless. Id: the brokers reject a batch (INVALID_RECORD)"
        " unless each value begins with the id of a schema of the subject. Decode: they also decode each value, and reject a batch with a"
        " value that does not fit its schema. With registry, this is the schema of the id; the registries of the profile must have it.",
    )
    evolution: EvolutionSpec | None = Field(
        default=None,
        description="Changes of the schema that the table follows, and treatment of records whose schema does not fit the table.",
    )
    fields: Annotated[tuple[FieldSpec, ...], Field(min_length=1, max_length=types.MOST_COLUMNS)] | None = Field(
        default=None,
        description="The columns, in order. Later you can add a field that is not required, widen a type, set required to false, and"
        " change doc and epoch.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    renames: Annotated[tuple[RenameSpec, ...], Field(max_length=100)] | None = Field(
        default=None,
        description="Columns that get another name, in the order of the changes. The table keeps its data files, and earlier rows have the"
        " new name. Values may have either name. A rename that was made stays after you remove it from this list.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    key: KeySpec | None = Field(default=None, description="Conversion of record keys to columns.")
    unknown_fields: Literal["Ignore", "DeadLetter", "Keep"] = Field(
        default="Ignore",
        description="Treatment of members of a record that have no column. Ignore: leave them out. DeadLetter: make the record a dead letter,"
        " not with a registry. Keep: unknownFieldsColumn has them. Members of structs that the type does not name are left out with Keep.",
    )
    unknown_fields_column: ColumnName | None = Field(
        default=None,
        description="Name of a column of type variant, for unknownFields: Keep. It is an object with the members of the record that have no"
        " column, or null if there are none. It needs table.formatVersion: 3.",
    )
    nanoseconds: Literal["Ignore", "Keep", "Truncate"] = Field(
        default="Ignore",
        description="Times in nanoseconds. In Avro, they have the logical type timestamp-nanos or local-timestamp-nanos, in Protobuf the type"
        " google.protobuf.Timestamp. Ignore: the column is long, in Protobuf timestamptz. Keep: timestamptz_ns or timestamp_ns, which needs"
        " table.formatVersion: 3. A table that has the columns cannot change between the two. In JSON, columns of time, timestamp and"
        " timestamptz have microseconds. Ignore: a value with finer digits makes a bad record. Truncate: Firn cuts off these digits.",
    )
    columns: Annotated[tuple[ColumnSpec, ...], Field(min_length=1, max_length=types.MOST_COLUMNS)] | None = Field(
        default=None,
        description="Columns that are computed from the record: renamed, nested, converted, hashed or masked fields, headers, keys and"
        " constants. The table has these columns in place of the fields. Default: each field is a column.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    filter: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        default=None,
        description="Condition on the columns of the table, in the language of quality rules. Only records for which it is true land. Other"
        " records, also those for which it is null, are counted and do not land. It does not decide about bad records.",
    )
    other_fields: Literal["Drop", "Keep"] = Field(
        default="Drop",
        description="Fields that no entry of columns reads. Drop: the table does not have them. Keep: they are columns, as without columns."
        " A field that an entry reads in part is not kept.",
    )

    @property
    def projection(self) -> Projection | None:
        """Return the projection of a contract, without the types of its columns. Raises InvalidSpecError (BadSchema) for a bad path."""
        if self.columns is None:
            return None
        return Projection(
            columns=tuple(column.projected() for column in self.columns), keeps_others=self.other_fields == "Keep"
        )


class TableSpec(ApiModel):
    """The Iceberg table."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.metadataColumns == oldSelf.metadataColumns",
            "metadataColumns is immutable: it cannot be changed later",
        ),
        Rule("self.formatVersion >= oldSelf.formatVersion", "formatVersion can only be increased"),
        Rule("self.shared == oldSelf.shared", "shared is immutable: it cannot be changed later"),
    )

    catalog: ConfiguredName | None = Field(
        default=None, description="A catalog of the operator's configuration. Default: its defaultCatalog. Immutable."
    )
    namespace: TableName | None = Field(
        default=None,
        description="Namespace in the catalog. Default: the namespace of the resource, with _ for -. Immutable.",
    )
    name: (
        Annotated[
            TableName,
            Rule("!self.endsWith('__dlq')", "table.name must not end in __dlq, the suffix of dead-letter tables"),
        ]
        | None
    ) = Field(
        default=None,
        description="Name of the table. Default: the name of the topic in lower case, with _ for other characters. Immutable.",
    )
    partition_by: Annotated[tuple[Term, ...], Field(max_length=16)] | None = Field(
        default=None,
        description="Iceberg partition transforms: a column, year(column), month(column), day(column), hour(column), bucket(N, column),"
        " truncate(N, column). It can be changed later. [] means no partitioning. Default: an existing table keeps its own.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    sort_by: Annotated[tuple[Term, ...], Field(max_length=16)] | None = Field(
        default=None,
        description="Sort order inside files: columns or transforms with asc or desc, nulls first or nulls last. It can be changed later."
        " [] means no order. Default: an existing table keeps its own.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    metadata_columns: Literal["Struct", "Flat"] = Field(
        default="Struct",
        description="Columns for partition, offset, timestamp, key and headers: the struct column _kafka,"
        " or columns with the prefix _kafka_, such as _kafka_offset. Immutable.",
    )
    format_version: Literal[2, 3] = Field(default=2, description="Iceberg format version. It can only be increased.")
    shared: bool = Field(
        default=False,
        description="True lets other IcebergTopics of the namespace land in the table, too. Each of them has shared: true and the same"
        " spec.table. Immutable.",
    )
    properties: Annotated[
        dict[str, BoundedText],
        Field(max_length=64),
        Rule(
            "self.all(key, key.size() <= 256 && !key.startsWith('firn.'))",
            "a property name must have at most 256 characters and must not start with firn., which Firn reserves",
        ),
    ] = Field(default_factory=dict, description="Properties of the table, by Iceberg's names.")


_TIMESTAMP = "ISO 8601 time with a zone. Ingestion starts at the first record at or after it."


class TimestampStart(ApiModel):
    """Start of ingestion at the first record at or after a time."""

    timestamp: AwareDatetime = Field(description=_TIMESTAMP)


_START_FROM = {
    "x-kubernetes-preserve-unknown-fields": True,
    # Strings: the two words. Objects: timestamp alone.
    "pattern": "^(Earliest|Latest)$",
    "properties": {"timestamp": {"type": "string", "format": "date-time", "description": _TIMESTAMP}},
    "required": ["timestamp"],
    "maxProperties": 1,
    # Numbers, lists and booleans: nothing passes.
    "minimum": 1,
    "maximum": 0,
    "minItems": 1,
    "maxItems": 0,
    "not": {"enum": [True, False]},
}
"""A schema for a string or an object. A structural schema has no unions, and CEL does not see a field without a type. But each
keyword of JSON schema applies to values of one type only, so all of them together describe the union."""


class AdoptedOffset(ApiModel):
    """The first offset of a partition to land."""

    partition: int = Field(ge=0, le=2**31 - 1, description="The partition.", json_schema_extra={"format": "int32"})
    offset: Int64 = Field(ge=0, description="The first offset to land.")


class ConnectSinkSpec(ApiModel):
    """A connector of the Apache Iceberg sink of Kafka Connect that has written the table. It has to be stopped."""

    group: Annotated[str, Field(min_length=1, max_length=255)] = Field(
        description="Consumer group of the connector: its property iceberg.connect.group-id, or connect-NAME with the name of the connector."
    )
    control_topic: Annotated[str, Field(min_length=1, max_length=249)] = Field(
        default="control-iceberg", description="The connector's property iceberg.control.topic."
    )


class AdoptSpec(ApiModel):
    """Continuation of a table that has the records of a topic of another Kafka cluster, or that Kafka Connect has written."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.topicId) != has(self.connect)",
            "set either topicId, to continue a table of another Kafka cluster, or connect, to continue a table of Kafka Connect",
        ),
    )

    topic_id: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="Kafka's id of the earlier topic: the table property firn.topic-id. For any other earlier topic, adopt has no effect.",
    )
    connect: ConnectSinkSpec | None = Field(
        default=None,
        description="Continue the table where a stopped connector of the Apache Iceberg sink ended. The driver finds the place in the table,"
        " the connector's consumer group and its control topic. Without effect if ingestion committed after the connector.",
    )
    offsets: Annotated[tuple[AdoptedOffset, ...], Field(max_length=10_000)] = Field(
        default=(),
        description="Offsets in the new topic. A partition that is not listed begins at the start of its log. With connect, these offsets"
        " replace those that the driver finds; leave them out.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["partition"]},
    )


class IngestionSpec(ApiModel):
    """Ingestion of records into the table."""

    group: ConfiguredName | None = Field(
        default=None,
        description="An ingestion group of the operator's configuration. Default: its defaultGroup. It can be changed later.",
    )
    freshness: Annotated[Duration, DURATION.bounded(up_to_a_day("5s"), "freshness must be between 5s and 1d")] = Field(
        default="60s",
        description="Longest time from writing a record to the topic until it is in the table: 5s to 1d, such as 30s.",
    )
    start_from: Annotated[Literal["Earliest", "Latest"] | TimestampStart, WithJsonSchema(_START_FROM)] = Field(
        default="Earliest",
        description="Start of ingestion for a table without landed offsets: Earliest, Latest, or {timestamp: ISO 8601 with zone}.",
    )
    adopt: AdoptSpec | None = Field(
        default=None,
        description="Approval to continue a table whose records are of another Kafka cluster, such as after a move of the topic. Or the"
        " connector whose table the topic continues.",
    )
    on_bad_record: Literal["DeadLetter", "Halt", "Skip"] = Field(
        default="DeadLetter",
        description="Action for a record that does not fit the schema. DeadLetter: store it in the dead-letter table. Halt: stop ingestion of"
        " this topic. Skip: count and drop it.",
    )


class QualityRuleSpec(ApiModel):
    """A condition on the rows of the table."""

    name: RuleName = Field(description="Name of the rule. Dead letters, metrics and status have it.")
    check: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        description="The condition, such as temperature between -90 and 60. A record for which it is false fails the rule. As in SQL, a"
        " condition that is null because a column is null does not fail. The operators are those of SQL: and, or, not, =, !=, <, <=, >, >=,"
        " between, in, is null, like, + - * /. Also matches 'RE2', length(x), lower(x), upper(x), date '...', timestamp '...', and the"
        " members of structs by dots.",
    )
    on_fail: Literal["DeadLetter", "Halt", "Count"] = Field(
        default="DeadLetter",
        description="Action for a record that fails the rule. DeadLetter: store it in the dead-letter table. Halt: stop ingestion of this topic."
        " Count: count it, and land its row.",
    )


class PublishCheckSpec(ApiModel):
    """A condition on the rows that wait for publishing."""

    name: RuleName = Field(description="Name of the check. Metrics and status have it.")
    check: Annotated[str, Field(min_length=1, max_length=1024)] = Field(
        description="The condition, such as count(*) >= 1000 and null_share(customer) < 0.01. It is about all rows that main does not have. Its"
        " aggregates are count(*), count(column), null_share(column), min(column) and max(column). min and max take numbers, dates and times. The"
        " operators are those of rules. A condition that is null passes.",
    )


class PublishSpec(ApiModel):
    """Publishing after checks: rows land on a branch, and main of the table follows it."""

    branch: Annotated[
        str,
        Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$", max_length=63),
        Rule("self != 'main' && !self.startsWith('firn')", "branch must not be main, and must not start with firn"),
    ] = Field(
        default="staging",
        description="Branch of the table on which rows land. Firn creates it at main, and drops it when publish is removed.",
    )
    every: Annotated[Duration, DURATION.bounded(up_to_a_day("10s"), "every must be between 10s and 1d")] = Field(
        default="5m",
        description="Time after which a row that has landed is checked and published: 10s to 1d. Freshness counts until the row is on the branch.",
    )
    checks: Annotated[tuple[PublishCheckSpec, ...], Field(max_length=16)] = Field(
        default=(),
        description="Conditions on the rows that main does not have yet. Commits without rows are published without checks.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    on_fail: Literal["Hold", "Publish"] = Field(
        default="Hold",
        description="Action if a check fails. Hold: main stays until the checks pass or the annotation firn.dev/publish publishes the rows; rows"
        " land on the branch meanwhile. Publish: count the failure, and publish. Checks without a result hold the rows with both.",
    )


class QualitySpec(ApiModel):
    """Rules for the rows of the table."""

    row_rules: Annotated[tuple[QualityRuleSpec, ...], Field(max_length=32)] = Field(
        default=(),
        alias="rules",
        description="Rules that each row has to satisfy. The driver checks them after it decodes a record, and before it writes the row. If a"
        " record fails several rules, a rule with Halt takes precedence, and then the first rule with DeadLetter. They apply to records that"
        " land later.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    publish: PublishSpec | None = Field(
        default=None,
        description="Publishing after checks. Without it, rows land on main. If it is removed, main gets all rows of the branch at once.",
    )


def _route_schema() -> Schema:
    return unchecked(structural(SchemaSpec.model_json_schema(by_alias=True)))


class RouteTableSpec(ApiModel):
    """A table of a topic with routes, and the records that go to it."""

    match: Annotated[str, Field(min_length=1, max_length=512)] = Field(
        description="An RE2 expression for the whole value, such as order or refund.*. The first route that matches takes the record."
    )
    name: TableName = Field(
        description="Name of the table, in the catalog and namespace of spec.table. The operator makes an IcebergTopic for it, whose name is"
        " that of this IcebergTopic, -, and this name with - for _."
    )
    record_schema: Annotated[dict[str, Any], WithJsonSchema(_route_schema())] | None = Field(
        default=None,
        alias="schema",
        description="Conversion of record values to the columns of this table, as spec.schema. Default: spec.schema and spec.quality.",
    )
    partition_by: Annotated[tuple[Term, ...], Field(max_length=16)] | None = Field(
        default=None,
        description="Iceberg partition transforms. Default: those of spec.table, if the route has no schema of its own.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    sort_by: Annotated[tuple[Term, ...], Field(max_length=16)] | None = Field(
        default=None,
        description="Sort order inside files. Default: that of spec.table, if the route has no schema of its own.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class RoutesSpec(ApiModel):
    """Distribution of the records of a topic over several tables."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.by == oldSelf.by && self.otherwise == oldSelf.otherwise && self.tables.map(each, each.name + ' ' + each.match) =="
            " oldSelf.tables.map(each, each.name + ' ' + each.match)",
            "by, otherwise, and the order, names and expressions of tables are immutable: records that have landed would be in the wrong table;"
            " to change them, delete this IcebergTopic with deletionPolicy Retain, and create it again with other tables",
        ),
    )

    by: Annotated[str, Field(pattern=rf"^(key|message|header:.+|{_STEPS})$", max_length=MOST_PATH)] = Field(
        description="The value that decides, as text: $.FIELD of the record, $.FIELD.MEMBER of a struct, header:NAME, key, or message. A path can"
        " have names in brackets, such as $['order-id']. A field"
        " can have the type string, int, long, boolean or uuid. In JSON, it need not be a column. In Avro and Protobuf with schema.registry, it"
        " is a field of the schema with which the record was written. message is the full name of the Avro"
        " record or Protobuf message, or the title of the JSON schema, with which the record was written. It needs schema.registry."
    )
    tables: Annotated[tuple[RouteTableSpec, ...], Field(min_length=1, max_length=MOST_ROUTES)] = Field(
        description="The routes, in order.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    otherwise: Literal["DeadLetter", "Table"] = Field(
        default="DeadLetter",
        description="Treatment of records that no route takes. DeadLetter: they are bad records, and spec.ingestion.onBadRecord applies."
        " Table: they are rows of the topic's own table.",
    )


class RouteSpec(ApiModel):
    """The route of an IcebergTopic that the operator made for a table of another one."""

    of: ResourceName = Field(
        description="metadata.name of the IcebergTopic whose spec.routes has this table. Immutable."
    )


class DeletionPolicy(ApiModel):
    """Deletion of data together with the resource."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.table != 'Delete' || self.topic == 'Delete'",
            "deletionPolicy.table: Delete needs deletionPolicy.topic: Delete",
        ),
    )

    topic: Retention = Field(default="Retain", description="Retain: the Kafka topic stays. Delete: it is deleted.")
    table: Retention = Field(
        default="Retain",
        description=(
            "Retain: the table and its dead letters stay. Delete: they are deleted, with all files in the data and metadata"
            " folders of their locations. Delete needs topic: Delete."
        ),
    )


class PolicyRef(ApiModel):
    """A policy in the same namespace."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=names.LONGEST_NAME)] = Field(
        description="metadata.name of the policy."
    )


class StorageSpec(ApiModel):
    """Storage of the records of a topic with diskless brokers."""

    history: Literal["Copy", "Single"] = Field(
        default="Copy",
        description="Copy: log and table both have each record. Single: the brokers delete batches of the log that the table gives back byte"
        " for byte, and rebuild them for consumers. It needs a raw or JSON schema, and history in the profile of the operator's"
        " configuration. You can change it at any time.",
    )


class IcebergTopicSpec(ApiModel):
    """Desired state."""

    rules: ClassVar[tuple[Rule, ...]] = (
        _immutable("profile"),
        _immutable("topicName"),
        _immutable("table.catalog"),
        _immutable("table.__namespace__"),
        _immutable("table.name"),
        _immutable("route.of"),
        Rule(
            "has(self.routes) == has(oldSelf.routes)",
            "routes is immutable: it cannot be set or removed later; to change it, delete this IcebergTopic with deletionPolicy Retain, and create"
            " it again with other tables",
        ),
        Rule("!has(self.routes) || !has(self.route)", "set routes or route, not both"),
    )

    profile: ConfiguredName | None = Field(
        default=None,
        description="A profile of the operator's configuration. Default: its defaultProfile at the creation of the topic. Immutable.",
    )
    topic_name: (
        Annotated[
            str,
            Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=249),
            Rule(
                "self != '.' && self != '..' && !self.startsWith('__')",
                "topicName must not be . or .., and must not start with __, which Kafka reserves",
            ),
        ]
        | None
    ) = Field(
        default=None,
        description="Name of the Kafka topic. Default: metadata.name. Immutable. All namespaces of a profile share its topic names.",
    )
    partitions: (
        Annotated[
            int,
            Field(ge=1, le=10000),
            Rule(
                "self >= oldSelf",
                "partitions can only be increased: set the number in status.partitions or more; for fewer, create an IcebergTopic with another"
                " topicName",
            ),
        ]
        | None
    ) = Field(
        default=None,
        description="Number of partitions. It can only be increased. Default: for a new topic, defaultPartitions of the profile; for an existing"
        " topic, its current number.",
    )
    config: Annotated[
        dict[str, BoundedText],
        Field(max_length=64),
        Rule(
            "self.all(key, key.size() <= 128 && key.matches('^[a-z][a-z0-9.]*$'))",
            "names of topic configs must have at most 128 characters: lower-case letters, digits and dots",
        ),
    ] = Field(default_factory=dict, description="Topic configs, by Kafka's names. Values are strings.")
    record_schema: SchemaSpec | None = Field(
        default=None,
        alias="schema",
        description="Conversion of record values to columns. Default: raw, with key and value as bytes.",
    )
    table: TableSpec = Field(default=TableSpec(), description="The Iceberg table.")
    ingestion: IngestionSpec = Field(default=IngestionSpec(), description="Ingestion of records into the table.")
    storage: StorageSpec | None = Field(
        default=None, description="Storage of the records in log and table. Default: both have them."
    )
    routes: RoutesSpec | None = Field(
        default=None,
        description="Further tables for the records of the topic. Each record goes to one of them, or to the topic's own table.",
    )
    route: RouteSpec | None = Field(
        default=None,
        description="Set by the operator in the IcebergTopics that it makes for spec.routes. They land records of a topic that another"
        " IcebergTopic manages. Change that IcebergTopic, because the operator restores their spec.",
    )
    quality: QualitySpec | None = Field(default=None, description="Rules for the rows of the table.")
    compaction_policy_ref: PolicyRef | None = Field(
        default=None,
        description="The CompactionPolicy that governs the table. Default: a policy whose selector matches the topic.",
    )
    retention_policy_ref: PolicyRef | None = Field(
        default=None,
        description="The RetentionPolicy that governs topic and table. Default: a policy whose selector matches the topic.",
    )
    suspend: bool = Field(default=False, description="If true, ingestion stops. Topic and table stay.")
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy(), description="Deletion of data together with the resource."
    )


class ProposedChange(ApiModel):
    """A change of the table that waits for an approval."""

    change: str = Field(max_length=MOST_PROPOSED_TEXT, description="The change, such as add column note: string.")
    approve: str = Field(
        max_length=64, description="Value of the annotation firn.dev/approve that approves all changes of the list."
    )


class SchemaStatus(ApiModel):
    """Changes of the table that the schema needs."""

    proposed: Annotated[tuple[ProposedChange, ...], Field(max_length=MOST_PROPOSED)] = Field(
        default=(),
        description="Changes that wait for an approval. More than 100 are cut off, and an approval applies to all of them.",
    )


class TableStatus(ApiModel):
    """Observed state of the table."""

    identifier: str | None = Field(
        default=None, max_length=512, description="Name of the table: catalog.namespace.name."
    )
    uuid: str | None = Field(default=None, max_length=64, description="Iceberg's UUID of the table.")
    location: str | None = Field(default=None, max_length=2048, description="Location of the table's files.")
    dead_letters: str | None = Field(
        default=None,
        max_length=512,
        description="Name of the dead-letter table. It exists after the first dead letter.",
    )


class RoutedTableStatus(ApiModel):
    """Observed state of a table of spec.routes. Its IcebergTopic has more."""

    name: str = Field(max_length=128, description="Name of the table.")
    topic: str = Field(max_length=253, description="metadata.name of the IcebergTopic of the table.")
    identifier: str | None = Field(
        default=None, max_length=512, description="Name of the table: catalog.namespace.name."
    )
    uuid: str | None = Field(default=None, max_length=64, description="Iceberg's UUID of the table.")
    ready: Literal["True", "False", "Unknown"] = Field(description="Status of Ready of the IcebergTopic.")
    reason: str = Field(max_length=64, description="Reason of Ready of the IcebergTopic.")
    fresh: Literal["True", "False", "Unknown"] = Field(description="Status of Fresh of the IcebergTopic.")
    last_commit_time: datetime | None = Field(default=None, description="Time of the last commit with records.")
    dead_letters: Int64 | None = Field(
        default=None, description="Number of records that have landed in the dead-letter table of this table."
    )


class HaltedAt(ApiModel):
    """The record at which ingestion stopped."""

    partition: int = Field(description="Partition of the record.")
    offset: Int64 = Field(description="Offset of the record.")


class Lag(ApiModel):
    """How far the table is behind the Kafka topic. Metrics have live figures."""

    records: Int64 = Field(description="Number of records that had not landed.")
    seconds: Int64 = Field(
        description="Seconds for which the oldest of these records may have waited; 0 if none waited."
    )
    time: datetime = Field(description="Time of these figures.")


class IngestionStatus(ApiModel):
    """Coarse figures of ingestion. Metrics have live figures."""

    group: str | None = Field(default=None, max_length=253, description="The ingestion group that serves the topic.")
    last_commit_time: datetime | None = Field(
        default=None, description="Time of the last commit to the table. Updated at most once a minute."
    )
    dead_letters: Int64 | None = Field(
        default=None, description="Number of records that have landed as dead letters. Updated at most once a minute."
    )
    filtered: Int64 | None = Field(
        default=None,
        description="Number of records that schema.filter left out since the driver started. Updated at most once a minute.",
    )
    lag: Lag | None = Field(
        default=None,
        description="How far the table is behind the Kafka topic. Updated at most once a minute: after a commit, or when a figure passes a"
        " power of two.",
    )
    halted_at: HaltedAt | None = Field(default=None, description="The record at which ingestion stopped.")


class FailedRule(ApiModel):
    """A quality rule, and the records that failed it."""

    rule: str = Field(max_length=63, description="Name of the rule.")
    failed: Int64 = Field(
        description="Number of records that failed the rule since the driver started. Updated at most once a minute."
    )


class CheckStatus(ApiModel):
    """A check of the rows that wait for publishing."""

    check: str = Field(max_length=63, description="Name of the check.")
    passed: bool | None = Field(default=None, description="Result of the last check. Absent before the first one.")
    values: str | None = Field(
        default=None,
        max_length=1024,
        description="Aggregates of the last check, such as null_share(customer) = 0.02.",
    )
    failed: Int64 = Field(
        description="How often the check failed since the driver started. Updated at most once a minute."
    )


class PublishStatus(ApiModel):
    """How far main of the table is behind the branch on which rows land."""

    branch: str = Field(max_length=63, description="Branch on which rows land.")
    waiting_rows: Int64 = Field(description="Number of rows that main does not have. Updated at most once a minute.")
    waiting_since: datetime | None = Field(
        default=None, description="Time of the oldest commit that main does not have. Absent if main has them all."
    )
    held_snapshot: str | None = Field(
        default=None,
        max_length=20,
        description="Value of the annotation firn.dev/publish that publishes the rows whose checks failed or have no result.",
    )
    checks: Annotated[tuple[CheckStatus, ...], Field(max_length=16)] = Field(default=(), description="The checks.")


class PolicyBinding(ApiModel):
    """A policy that governs the topic, and the result of its runs."""

    policy: str | None = Field(
        default=None,
        max_length=253,
        description="Name of the policy. Absent while the policy does not fit the topic; the condition PoliciesResolved says why.",
    )
    because: Literal["NamedByTopic", "Selected"] | None = Field(
        default=None,
        description="NamedByTopic: the topic's spec names the policy. Selected: the policy's selector matches, and no other match takes precedence.",
    )
    last_run: RunStatus | None = Field(default=None, description="The last run, with its result for this table.")
    policy_uid: str | None = Field(
        default=None,
        max_length=64,
        description="uid of the policy to which failures, lastScheduleTime, lastRequest and failedRequest belong.",
    )
    failures: int | None = Field(default=None, description="Number of failed runs since the last successful run.")
    failed_generation: Int64 | None = Field(
        default=None,
        description="Generation of the policy's spec at the last failed run. After a change of the spec, the next run starts without a pause.",
    )
    schedule: str | None = Field(
        default=None,
        max_length=200,
        description="The schedule to which lastScheduleTime belongs, as cron and time zone.",
    )
    last_schedule_time: datetime | None = Field(
        default=None,
        description="Newest scheduled time that needs no run any more: a run has served it, or the policy or its schedule began to apply later.",
    )
    next_run_time: datetime | None = Field(
        default=None, description="Time of the next scheduled run, or of the next retry."
    )
    last_request: Annotated[dict[str, Annotated[str, Field(max_length=128)]], Field(max_length=2)] = Field(
        default_factory=dict,
        description="Values of the annotation firn.dev/run-now that a run has served: the topic's and the policy's.",
    )
    failed_request: Annotated[dict[str, Annotated[str, Field(max_length=128)]], Field(max_length=2)] = Field(
        default_factory=dict,
        description="Values of the annotation firn.dev/run-now whose runs failed. The operator retries after a pause. It serves a new value at once.",
    )


class MaintenanceStatus(ApiModel):
    """Policies of the table, and its pending maintenance. Figures are updated at most once a minute. Metrics have live figures."""

    data_files: Int64 | None = Field(
        default=None, description="Number of data files of the table and its dead-letter table."
    )
    data_bytes: Int64 | None = Field(default=None, description="Bytes of the data files of both tables.")
    small_files: Int64 | None = Field(
        default=None, description="Number of data files below three quarters of the target size, of both tables."
    )
    due_files: Int64 | None = Field(
        default=None,
        description="Number of data files of both tables that a compaction would rewrite now. It leaves out small files that"
        " wait for more files of similar size.",
    )
    delete_files: Int64 | None = Field(
        default=None, description="Number of delete files and deletion vectors of both tables."
    )
    manifests: int | None = Field(
        default=None, description="Number of Iceberg manifests of the newest snapshots of both tables."
    )
    snapshots: int | None = Field(default=None, description="Number of snapshots of both tables.")
    metadata_bytes: Int64 | None = Field(
        default=None,
        description="Bytes of the metadata files and of the newest snapshots' Iceberg manifests, of both tables.",
    )
    oldest_uncompacted_time: datetime | None = Field(
        default=None,
        description="Time from which the oldest due data files have been due. The compaction lag counts from this time.",
    )
    compaction: PolicyBinding | None = Field(default=None, description="The CompactionPolicy that governs the table.")
    retention: PolicyBinding | None = Field(
        default=None, description="The RetentionPolicy that governs the topic and the table."
    )


class FailedAudit(ApiModel):
    """A finding: the wrong offsets of a failed audit."""

    run: str = Field(
        max_length=63,
        description="Name of the run that made the finding: the value of firn.dev/acknowledge-audit that acknowledges it.",
    )
    time: datetime = Field(description="End of this run.")
    topic_id: str = Field(max_length=64, description="Kafka's id of the audited topic.")
    missing: Int64 = Field(default=0, description="Number of records without a row and without a dead letter.")
    doubled: Int64 = Field(default=0, description="Number of surplus rows of offsets that have several.")
    stray: Int64 = Field(default=0, description="Number of rows beyond the landed offsets.")
    partition: int | None = Field(default=None, description="Partition of one of the wrong offsets.")
    offset: Int64 | None = Field(default=None, description="One of the wrong offsets.")


class AuditStatus(ApiModel):
    """Result of the last audit, and its runs."""

    time: datetime | None = Field(default=None, description="End of the run of the last audit.")
    result: Literal["Exact", "Unproved", "Failed"] | None = Field(
        default=None,
        description="Exact: each compared offset has one row or dead letter, or no record. Unproved: the same, as far as the audit can decide."
        " Failed: offsets are wrong.",
    )
    topic_id: str | None = Field(default=None, max_length=64, description="Kafka's id of the audited topic.")
    offsets: Int64 | None = Field(default=None, description="Number of compared offsets.")
    missing: Int64 | None = Field(
        default=None, description="Number of records without a row and without a dead letter."
    )
    doubled: Int64 | None = Field(default=None, description="Number of surplus rows of offsets that have several.")
    stray: Int64 | None = Field(default=None, description="Number of rows beyond the landed offsets.")
    unproved: Int64 | None = Field(default=None, description="Number of offsets for which the audit cannot decide.")
    missing_ranges: list[RangeText] | None = Field(
        default=None,
        max_length=MOST_RANGES,
        description="Ranges with the missing records, as PARTITION:FIRST-LAST. Close ranges may be joined, those of many partitions as *:FIRST-LAST.",
    )
    surplus_ranges: list[RangeText] | None = Field(
        default=None,
        max_length=MOST_RANGES,
        description="Ranges with the doubled and stray rows, in the same form, and in steps of 64 offsets.",
    )
    unsearched_ranges: list[RangeText] | None = Field(
        default=None,
        max_length=MOST_RANGES,
        description="If records are missing: ranges without a row in which the audit did not look for records, in the same form.",
    )
    failed: FailedAudit | None = Field(
        default=None,
        description="The newest finding of wrong offsets. It stays after later audits, so that it is not overlooked.",
    )
    excluded: str | None = Field(
        default=None, max_length=1024, description="The reason why no run audits the topic, if there is one."
    )
    last_run: RunStatus | None = Field(default=None, description="The last run, with its result for this topic.")
    failures: int | None = Field(default=None, description="Number of failed runs since the last successful run.")
    failed_generation: Int64 | None = Field(default=None, description="Always 1 if failures is set.")
    policy_uid: str | None = Field(default=None, max_length=64, description="Always the word audit.")
    schedule: str | None = Field(
        default=None,
        max_length=200,
        description="The schedule to which lastScheduleTime belongs, as cron and time zone.",
    )
    last_schedule_time: datetime | None = Field(
        default=None, description="Newest scheduled time that needs no audit any more."
    )
    next_run_time: datetime | None = Field(default=None, description="Time of the next audit, or of the next retry.")


class UnacknowledgedLoss(ApiModel):
    """Lost offsets of a table that no annotation acknowledges."""

    name: str = Field(
        max_length=64,
        description="Value of the annotation firn.dev/acknowledge-loss that acknowledges this loss and all losses before it in the list.",
    )
    offsets: int = Field(description="Number of lost offsets.", json_schema_extra={"format": "int64"})
    ranges: str = Field(max_length=1024, description="The first ranges of these offsets, each with the cause.")


class IcebergTopicStatus(ApiModel):
    """Observed state."""

    observed_generation: Int64 | None = Field(
        default=None, description="Generation of the spec that this status describes."
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Conditions. Ready sums up SpecValid, TopicReady, TableReady and IngestionReady.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    profile: str | None = Field(default=None, max_length=253, description="Profile under which the topic was created.")
    topic_name: str | None = Field(default=None, max_length=249, description="Name of the Kafka topic.")
    topic_id: str | None = Field(default=None, max_length=64, description="Kafka's id of the topic.")
    partitions: int | None = Field(default=None, description="Number of partitions of the topic.")
    bootstrap_servers: str | None = Field(default=None, max_length=2048, description="Address for Kafka clients.")
    table: TableStatus | None = Field(default=None, description="Observed state of the table.")
    tables: Annotated[tuple[RoutedTableStatus, ...], Field(max_length=MOST_ROUTES)] = Field(
        default=(), description="Observed state of the tables of spec.routes."
    )
    record_schema: SchemaStatus | None = Field(
        default=None, alias="schema", description="Changes of the table that the schema needs."
    )
    ingestion: IngestionStatus | None = Field(
        default=None, description="Coarse figures of ingestion. Metrics have live figures."
    )
    quality: Annotated[tuple[FailedRule, ...], Field(max_length=32)] = Field(
        default=(), description="Quality rules, and the records that failed them."
    )
    publish: PublishStatus | None = Field(
        default=None, description="How far main of the table is behind the branch on which rows land."
    )
    maintenance: MaintenanceStatus | None = Field(
        default=None, description="Policies of the table, and its pending maintenance."
    )
    audit: AuditStatus | None = Field(default=None, description="Result of the last audit, and its runs.")
    losses: Annotated[tuple[UnacknowledgedLoss, ...], Field(max_length=8)] = Field(
        default=(),
        description="Lost offsets that no annotation acknowledges, by table, oldest first. They stay after their table was dropped or replaced.",
    )


class IcebergTopic(ApiModel):
    """A Kafka topic and an Iceberg table that holds the same records, exactly once."""

    rules: ClassVar[tuple[Rule, ...]] = (NAME_RULE,)

    metadata: ObjectMeta
    spec: IcebergTopicSpec = Field(default_factory=IcebergTopicSpec)
    status: IcebergTopicStatus = Field(default_factory=IcebergTopicStatus)

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> Self:
        """Read the resource from a manifest or a live object. Raises InvalidSpecError that names every wrong field."""
        try:
            return cls.model_validate(manifest)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
            name = (manifest.get("metadata") or {}).get("name", "?")
            raise InvalidSpecError(f"IcebergTopic {name}: " + "; ".join(problems)) from error

    @property
    def topic_name(self) -> str:
        """Return the name of the Kafka topic."""
        return self.spec.topic_name or self.metadata.name

    def profile_name(self, default: str) -> str:
        """Return the profile of the spec, else the one under which the topic was created, else ``default`` (the configuration's)."""
        return self.spec.profile or self.status.profile or default

    def group_name(self, default: str) -> str:
        """Return the ingestion group of the spec, else ``default`` (the configuration's)."""
        return self.spec.ingestion.group or default

    @property
    def topic_configs(self) -> dict[str, str]:
        """Return the topic configs of the spec, with those that its gate and its history need."""
        return self.topic_configs_of("")

    def topic_configs_of(self, message: str) -> dict[str, str]:
        """Return `topic_configs`. Brokers check the Protobuf ``message`` if the spec names none; without it, the first of a text."""
        schema = self.spec.record_schema
        single = {names.HISTORY: names.SINGLE} if self.history == names.SINGLE else {}
        if schema is None or schema.gate == "None":
            return {**self.spec.config, **single}
        configs = {**self.spec.config, **single, names.SCHEMA_GATE: schema.gate}
        if schema.registry is not None:
            configs[names.SCHEMA_REGISTRY] = schema.registry.name
            configs[names.SCHEMA_SUBJECT] = schema.registry.named(self.topic_name, "value", schema.message or "").name
        if schema.gate == "Decode":
            configs[names.SCHEMA_CONTRACT] = self._gate_contract(message)
        return configs

    @property
    def gate_contract(self) -> str:
        """Return the schema by which brokers decode values, as a topic config; empty if the schema is not valid."""
        return self._gate_contract("")

    def _gate_contract(self, message: str) -> str:
        try:
            return checks.packed(self._decoded_schema().model_copy(update={"found_message": message}))
        except InvalidSpecError:
            return ""

    @property
    def history(self) -> Literal["Copy", "Single"]:
        """Return ``spec.storage.history``: Copy if the log keeps the records that the table has, else Single."""
        return self.spec.storage.history if self.spec.storage is not None else "Copy"

    @property
    def freshness_ms(self) -> int:
        """Return the milliseconds within which a record must be in the table."""
        return durations.milliseconds(self.spec.ingestion.freshness)

    @property
    def quality_rules(self) -> tuple[QualityRule, ...]:
        """Return the rules that each row has to satisfy."""
        quality = self.spec.quality
        given = quality.row_rules if quality is not None else ()
        return tuple(QualityRule(name=rule.name, check=rule.check, on_fail=rule.on_fail) for rule in given)

    @property
    def publish(self) -> Publish | None:
        """Return how main follows the branch on which rows land, None if they land on main."""
        spec = self.spec.quality.publish if self.spec.quality is not None else None
        if spec is None:
            return None
        approved = self.metadata.annotations.get(names.PUBLISH, "")
        return Publish(
            branch=spec.branch,
            every_ms=durations.milliseconds(spec.every),
            checks=tuple(PublishCheck(name=each.name, check=each.check) for each in spec.checks),
            on_fail=spec.on_fail,
            approved=int(approved) if re.fullmatch("[0-9]{1,19}", approved) else None,
        )

    @property
    def filter(self) -> str:
        """Return the condition for which rows land; empty if all do."""
        schema = self.spec.record_schema
        return (schema and schema.filter) or ""

    @property
    def start_from(self) -> StartFrom:
        """Return the start of ingestion for a table without landed offsets."""
        match self.spec.ingestion.start_from:
            case TimestampStart(timestamp=time):
                return StartFrom(kind="Timestamp", timestamp_ms=round(time.timestamp() * 1000))
            case kind:
                return StartFrom(kind=kind)

    @property
    def adoption(self) -> Adoption | None:
        """Return the topic whose table this one continues."""
        adopt = self.spec.ingestion.adopt
        if adopt is None:
            return None
        sink = adopt.connect
        return Adoption(
            topic_id=adopt.topic_id or "",
            offsets={item.partition: item.offset for item in adopt.offsets},
            connect=SinkCommits(control_topic=sink.control_topic, group=sink.group) if sink is not None else None,
        )

    def record_schema(self) -> RecordSchema:
        """Return the conversion of records to columns. Raises InvalidSpecError (BadSchema) that names the field or column."""
        schema = self.spec.record_schema
        projection = schema.projection if schema is not None else None
        return projections.applied(self._decoded_schema(projection), projection)

    def _decoded_schema(self, projection: Projection | None = None) -> RecordSchema:
        """Return the conversion of values to decoded columns. Raises InvalidSpecError (BadSchema) that names the field.

        With a ``projection``, only the fields that it reads have to be able to become columns.
        With a registry, and in Protobuf, the schema has no columns yet: `with_columns` adds them.
        """
        schema = self.spec.record_schema
        renames, evolution = _renames(schema), self._evolution
        if schema is not None and schema.registry is not None:
            subject = schema.registry.named(self.topic_name, "value", schema.message or "")
            incompatible = schema.evolution.incompatible if schema.evolution is not None else "Hold"
            _check_unknown_column(schema.unknown_fields_column, ())
            return RecordSchema(
                format=SchemaFormat(schema.format or SchemaFormat.AVRO),
                framing="Registry",
                subject=subject,
                message=schema.message if schema.message and schema.format == "Protobuf" else "",
                incompatible=incompatible,
                nanoseconds=schema.nanoseconds == "Keep",
                truncate_times=self._truncates_times,
                variants=schema.format == "Json" and self.spec.table.format_version >= 3,
                unknown_column=schema.unknown_fields_column or "",
                renames=renames,
                evolution=evolution,
            )
        if schema is not None and schema.text is not None:
            of_text = RecordSchema(
                format=SchemaFormat.PROTOBUF if schema.format == "Protobuf" else SchemaFormat.AVRO,
                text=schema.text,
                framing=schema.framing,
                message=schema.message or "",
                nanoseconds=schema.nanoseconds == "Keep",
                renames=renames,
                evolution=evolution,
                projection=projection,
            )
            return of_text if of_text.has_found_columns else with_columns(of_text, "spec.schema.text")
        if schema is None or schema.fields is None:
            return RecordSchema(format=SchemaFormat.RAW, raw_as=(schema and schema.raw) or "Binary")
        found = _columns_of(schema.fields)
        if schema.columns is None:
            _check_names(found)
        _check_unknown_column(schema.unknown_fields_column, found)
        _check_renames(renames, found)
        return RecordSchema(
            format=SchemaFormat(schema.format or SchemaFormat.JSON),
            fields=found,
            unknown_fields="Ignore" if schema.unknown_fields == "Keep" else schema.unknown_fields,
            unknown_column=schema.unknown_fields_column or "",
            truncate_times=self._truncates_times,
            renames=renames,
            evolution=evolution,
        )

    def row_schema(self) -> RecordSchema:
        """Return `record_schema` with the conversion of keys. Raises InvalidSpecError (BadSchema) that names the field."""
        schema, key = self.record_schema(), self._key_schema()
        return schema if key is None else schema.model_copy(update={"key": key})

    def _key_schema(self) -> KeySchema | None:
        """Return the conversion of keys to columns; None without one. Raises InvalidSpecError (BadSchema) that names the field."""
        key = self.spec.record_schema.key if self.spec.record_schema is not None else None
        if key is None or key.columns == "None":
            return None
        if key.text is not None or key.registry is not None:
            return self._decoded_key(key, key.columns)
        try:
            found = KeySchema(
                columns=key.columns, fields=_columns_of(key.fields or ()), truncate_times=self._truncates_times
            )
            kinds = [types.parse(column.type) for column in rows.key_columns(found)]
        except InvalidSpecError as error:
            problem = str(error).removeprefix("spec.schema.fields: ")
            raise InvalidSpecError(f"spec.schema.key.fields: {problem}", reason=error.reason) from None
        for kind in kinds:
            if unusable := types.unreadable(kind) or types.has(kind, types.VARIANT):
                raise InvalidSpecError(
                    f"spec.schema.key.fields: the type {unusable} is not allowed in a key; use string",
                    reason=Reason.BAD_SCHEMA,
                )
            if name := types.quoted_member(kind):
                raise InvalidSpecError(
                    f"spec.schema.key.fields: no column can have a member with the name {name}; remove the member from its struct",
                    reason=Reason.BAD_SCHEMA,
                )
        return found

    def _decoded_key(self, key: KeySpec, columns: Literal["Binary", "Struct", "Flat"]) -> KeySchema:
        """Return the conversion of keys with a text or a registry. With a registry, and in Protobuf, it has no columns yet."""
        message, form = key.message or "", SchemaFormat(key.format)
        decoding = RecordSchema(
            format=form,
            text=key.text or "",
            message=message if form is SchemaFormat.PROTOBUF else "",
            framing=key.framing if key.registry is None else "Registry",
            subject=key.registry.named(self.topic_name, "key", message) if key.registry is not None else None,
            truncate_times=form is SchemaFormat.JSON and self._truncates_times,
        )
        bare = KeySchema(columns=columns, decoding=decoding)
        return (
            bare
            if decoding.has_found_columns
            else key_with_columns(bare, with_columns(decoding, KEY_TEXT, of_key=True))
        )

    @property
    def _truncates_times(self) -> bool:
        """Return whether times in JSON lose their digits below the microsecond."""
        return self.spec.record_schema is not None and self.spec.record_schema.nanoseconds == "Truncate"

    @property
    def _evolution(self) -> Evolution:
        """Return the policy for changes of the table, with the approval of the annotation if a change may need one."""
        spec = self.spec.record_schema and self.spec.record_schema.evolution
        if not spec:
            return Evolution()
        chosen = spec.model_dump(include={"add", "widen", "optional", "rename", "drop", "partition", "sort"})
        proposes = not {"Propose", "DropColumn"}.isdisjoint(chosen.values())
        return Evolution(**chosen, approved=self.metadata.annotations.get(names.APPROVE, "") if proposes else "")

    def table_target(self, default_catalog: str) -> TableTarget:
        """Return the table. Without a catalog in the spec: the catalog in which it was created, or ``default_catalog`` for a new table.

        Raises InvalidSpecError (ResourceConflict) for a derived name that a dead-letter table could have.
        """
        table = self.spec.table
        made_in = ((self.status.table and self.status.table.identifier) or "").partition(".")[0]
        name = table.name or names.table_part(self.topic_name)
        if name.endswith(names.DEAD_LETTER_SUFFIX):
            raise InvalidSpecError(
                f"table name {name}: names that end in {names.DEAD_LETTER_SUFFIX} are reserved for dead-letter tables; create this IcebergTopic again"
                " with another table.name",
                reason=Reason.RESOURCE_CONFLICT,
            )
        return TableTarget(
            catalog=table.catalog or made_in or default_catalog,
            namespace=table.namespace or names.table_part(self.metadata.namespace),
            name=name,
            partition_by=table.partition_by,
            sort_by=table.sort_by,
            metadata_columns=table.metadata_columns,
            format_version=table.format_version,
            properties=table.properties,
            shared_by=self.metadata.name if table.shared else "",
            history=self.history,
        )


def key_with_columns(key: KeySchema, found: RecordSchema) -> KeySchema:
    """Return the conversion of keys with the columns of its schema: ``found``. Raises InvalidSpecError (BadSchema)."""
    whole = key.model_copy(
        update={"decoding": found.model_copy(update={"fields": (), "renames": ()}), "fields": found.fields}
    )
    size = len(whole.model_dump_json().encode())
    if size > MOST_KEY_BYTES:
        raise InvalidSpecError(
            f"spec.schema.key: the schema takes {size} bytes with the types of its columns; a key has at most {MOST_KEY_BYTES} bytes;"
            " remove fields, or set columns: Binary",
            reason=Reason.BAD_SCHEMA,
        )
    for column in rows.key_columns(whole):
        kind = types.parse(column.type)
        if unusable := types.unreadable(kind) or types.has(kind, types.VARIANT):
            raise InvalidSpecError(
                f"spec.schema.key: the schema has a field of the type {unusable}, which is not allowed in a key; remove the field, or set"
                " columns: Binary",
                reason=Reason.BAD_SCHEMA,
            )
    return whole


# A reconcile asks for the columns of a topic and of its gate several times, and 1,000 columns of Avro take tens of milliseconds.
@functools.lru_cache(maxsize=64)
def with_columns(schema: RecordSchema, place: str, *, of_key: bool = False) -> RecordSchema:
    """Return a schema with the columns of its text. ``of_key``: the schema is that of keys.

    Raises InvalidSpecError (BadSchema) that names ``place`` and the field.
    """
    found = columns.columns_of(schema, place, of_key=of_key)
    read, renames = rows.read_fields(schema), (*schema.renames, *columns.aliases(schema))
    if read is not None and projections.lacks(schema.model_copy(update={"fields": found, "renames": renames})):
        # The message about a column that reads a missing field names similar fields of the whole schema.
        found = _all_columns(schema, place) or found
    if schema.subject is None:
        checked = [each for each in schema.renames if read is None or each.new_path[0] in read]
        _check_renames(checked, found)
    whole = schema.model_copy(update={"fields": found, "renames": renames})
    size = len(whole.model_dump_json().encode())
    if size > MOST_CONTRACT_BYTES:
        raise InvalidSpecError(
            f"{place}: the schema takes {size} bytes with the types of its columns; a topic has at most {MOST_CONTRACT_BYTES} bytes;"
            " remove fields",
            reason=Reason.BAD_SCHEMA,
        )
    return whole


def _all_columns(schema: RecordSchema, place: str) -> tuple[Column, ...]:
    """Return the columns of all fields; none if one of them cannot become a column."""
    try:
        return columns.columns_of(schema.model_copy(update={"projection": None}), place)
    except InvalidSpecError:
        return ()


def projected(schema: RecordSchema, projection: Projection | None) -> RecordSchema:
    """Return the schema with the columns of a spec in place of those that it has. Raises InvalidSpecError (BadSchema).

    The schema of a contract has only the fields that its own columns read. New columns may read other fields.
    """
    whole = schema.model_copy(update={"projection": projection})
    if whole == schema or not schema.has_found_columns or not (schema.text and schema.fields):
        return projections.applied(schema, projection)
    read = rows.read_fields(whole)
    found = evolution.merged_columns(schema.fields, columns.columns_of(whole, projections.PLACE), whole.format)
    names = {field.name for field in found}
    kept = (field for field in schema.fields if field.name not in names and (read is None or field.name in read))
    return projections.resolved(whole.model_copy(update={"fields": (*found, *kept)}))


def _columns_of(fields: Sequence[FieldSpec]) -> tuple[Column, ...]:
    """Return the columns of fields in the spec. Raises InvalidSpecError (BadSchema) that names the field."""
    seen: dict[str, str] = {}
    found = []
    for field in fields:
        first_spelling = seen.setdefault(field.name.lower(), field.name)
        if first_spelling != field.name:
            raise _bad_schema(
                f"{first_spelling} and {field.name} differ only in case, which query engines ignore; rename one of them"
            )
        if field.name.startswith("_kafka"):
            raise _bad_schema(
                f"{field.name}: names that start with _kafka are reserved for Kafka's columns; rename the field"
            )
        try:
            kind = types.parse(field.type)
        except InvalidSpecError as error:
            raise _bad_schema(f"{field.name}: {error}") from error
        if field.epoch is not None and "timestamp" not in str(kind):
            raise _bad_schema(f"{field.name}: epoch is for timestamps, and the type is {kind}; remove epoch")
        if field.default is not None:
            try:
                defaults.json_value(kind, field.default)
            except InvalidSpecError as error:
                raise _bad_schema(f"{field.name}: {error}") from error
        epoch = field.epoch or "ms"
        found.append(
            Column(
                name=field.name,
                type=str(kind),
                required=field.required,
                doc=field.doc,
                epoch=epoch,
                default=field.default,
            )
        )
    if len(seen) < len(found):
        raise _bad_schema("two fields have the same name; rename one of them")
    return tuple(found)


def _check_names(columns: Sequence[Column]) -> None:
    """Check that fields, and members of structs, have names of columns. Raises InvalidSpecError (BadSchema)."""
    for column in columns:
        if problem := projections.quoted_name(column):
            raise _bad_schema(problem)


def _check_unknown_column(name: str | None, columns: Sequence[Column]) -> None:
    """Check the name of the column for other members of a record. Raises InvalidSpecError (BadSchema)."""
    if name is None:
        return
    other = next((column.name for column in columns if column.name.lower() == name.lower()), None)
    if other is not None or name.startswith("_kafka"):
        taken = (
            f"field {other} has this name" if other is not None else "names that start with _kafka are Kafka's columns"
        )
        raise InvalidSpecError(
            f"spec.schema.unknownFieldsColumn: {name}: {taken}; choose another name", reason=Reason.BAD_SCHEMA
        )


def _renames(schema: SchemaSpec | None) -> tuple[Rename, ...]:
    """Return the renames of a spec. Raises InvalidSpecError (BadSchema)."""
    found = tuple(Rename(old=each.old, new=each.new) for each in (schema and schema.renames) or ())
    for rename in found:
        place, steps = f"spec.schema.renames: from {rename.old} to {rename.new}", (*rename.old_path, rename.name)
        if rename.old == rename.new or rename.old_path[:-1] != rename.new_path[:-1]:
            problem = (
                f"{place}: a rename changes the last part of a path, and nothing else; write another name at the end"
            )
            raise InvalidSpecError(problem, reason=Reason.BAD_SCHEMA)
        if not all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", step) for step in steps):
            problem = f"{place}: a name has letters, digits and _, and does not begin with a digit; correct it"
            raise InvalidSpecError(problem, reason=Reason.BAD_SCHEMA)
        if steps[0].startswith("_kafka") or rename.name.startswith("_kafka"):
            problem = f"{place}: names that start with _kafka are reserved for Kafka's columns; choose another name"
            raise InvalidSpecError(problem, reason=Reason.BAD_SCHEMA)
    return found


def _check_renames(renames: Sequence[Rename], columns: Sequence[Column]) -> None:
    """Check that the columns have the later names, and no earlier one. Raises InvalidSpecError (BadSchema)."""
    for number, rename in enumerate(renames):
        if rename.by_schema:
            continue
        later, place = renames[number + 1 :], f"spec.schema.renames: from {rename.old} to {rename.new}"
        last = moved(rename.new_path, later)
        if not has_path(columns, last):
            problem = f"{place}: the schema has no field {'.'.join(last)}; add it, or remove the rename"
            raise InvalidSpecError(problem, reason=Reason.BAD_SCHEMA)
        if has_path(columns, rename.old_path) and all(each.new != rename.old for each in later):
            problem = f"{place}: the schema has both fields; remove {rename.old} from it, or remove the rename"
            raise InvalidSpecError(problem, reason=Reason.BAD_SCHEMA)


def _bad_schema(problem: str) -> InvalidSpecError:
    return InvalidSpecError(f"spec.schema.fields: {problem}", reason=Reason.BAD_SCHEMA)
