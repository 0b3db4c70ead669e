"""The schema of its writer names the message of a record, and so the table of the record. No value is decoded for it."""

import base64
import json
import random
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from firn import protoc
from firn.decoders.bad_records import Code
from firn.decoders.protobuf import Bytes, read_indexes
from firn.model.errors import InvalidSpecError
from firn.model.jobs import IngestJob, RecordSchema, Route, SchemaFormat, Subject, WriterSchema
from firn.schemas.routes import MESSAGE, message_names, registry_schema, value_schema
from firn_spark.worker.decoding import Decoder, Known
from firn_spark.worker.formats.writer_schemas import Refusal, SchemasNeededError, WriterSchemas
from firn_spark.worker.landing import Kind, LandingPlan, TopicLanding, land
from firn_spark.worker.projections import messages
from firn_spark.worker.projections.routing import RouteValues
from tests.unit.spark import records, tables
from tests.unit.spark.records import batch, fetched, job

GUID = uuid.UUID(int=5)
UNKNOWN = Refusal(Code.UNKNOWN_SCHEMA, "the registry does not have it")
REST = "rest"
PROTO = 'syntax = "proto3"; package shop; message Order { message Line { int32 n = 1; } int32 id = 1; } message Refund { int32 id = 1; }'


def avro(**record: Any) -> WriterSchema:
    return WriterSchema(text=json.dumps({"type": "record", "fields": [{"name": "id", "type": "int"}], **record}))


def protobuf(text: str) -> WriterSchema:
    return WriterSchema(text=text, descriptors=base64.b64encode(protoc.descriptors(text, ())).decode())


AVRO: WriterSchemas = {
    1: avro(name="Order", namespace="shop"),
    2: avro(name="shop.Order", aliases=["shop.Bill"]),
    3: avro(name="Refund", namespace="shop"),
    4: WriterSchema(text='"string"'),
    9: UNKNOWN,
    str(GUID): 3,
}
PROTOBUF: WriterSchemas = {1: protobuf(PROTO), 2: protobuf(PROTO.replace("shop", "pay")), 3: WriterSchema(text="no")}


def framed(number: int, content: bytes = b"\2") -> bytes:
    return b"\0" + number.to_bytes(4) + content


def contracts(
    form: SchemaFormat, *matches: str, id_in: Any = "Payload", by: str = MESSAGE, **more: Any
) -> dict[str, IngestJob]:
    """Return a contract for each value of ``by``, and one for the rest. All tables have the bytes of the values."""
    values = registry_schema(form, "main", id_in, by)
    routes = {match: Route(values=values, match=match, before=matches[:at]) for at, match in enumerate(matches)}
    routes[REST] = Route(values=values, before=matches, **more)
    return {name: job().model_copy(update={"route": route}) for name, route in routes.items()}


def divided(
    made: dict[str, IngestJob], known: WriterSchemas, values: Sequence[bytes | None], **columns: Any
) -> dict[str, Any]:
    """Return the offsets of the rows of each table, and the codes of its dead letters by offset. Each record is at one place."""
    given, shared, found = fetched(values, **columns), RouteValues(), {}
    places: list[int] = []
    for name, contract in made.items():
        decoder = Decoder(contract, ingested_at=1, route_values=shared, known=Known(route_schemas=known))
        decoded = decoder.decode(given)
        rows = [row["_kafka"]["offset"] for row in decoded.rows.to_pylist()]
        letters = [] if decoded.dead is None else decoded.dead.to_pylist()
        dead = {letter["_kafka"]["offset"]: letter["error_code"] for letter in letters}
        assert decoded.unrouted == len(values) - len(rows) - len(dead)
        found[name] = (rows, dead)
        places += [*rows, *dead]
    assert sorted(places) == list(range(len(values)))
    return found


def test_the_name_of_an_avro_record_decides_whatever_version_and_subject_its_schema_has() -> None:
    values = [framed(number) for number in (1, 3, 2, 1, 4)]
    found = divided(contracts(SchemaFormat.AVRO, "shop.Order", "shop.R.*"), AVRO, values)
    assert found == {"shop.Order": ([0, 2, 3], {}), "shop.R.*": ([1], {}), REST: ([], {4: "NoRoute"})}


def test_the_branch_of_a_union_decides() -> None:
    refund = {"type": "record", "name": "Refund", "namespace": "shop", "fields": []}
    known: WriterSchemas = {
        1: WriterSchema(text=json.dumps(["null", "shop.Order", refund, "string"])),
        2: avro(name="Refund", namespace="shop"),
        3: WriterSchema(text='{"type": ["shop.Order"]}'),
    }
    values = [
        *(framed(1, branch) for branch in (b"\2\2", b"\4", b"\0", b"\6\0", b"\x08", b"\1", b"")),
        *(framed(2), framed(3, b"\0\2"), framed(3, b"\2\2"), None),
    ]
    found = divided(contracts(SchemaFormat.AVRO, "shop.Order", "shop.Refund"), known, values)
    wrong = dict.fromkeys((4, 5, 6, 9), "InvalidAvro")
    assert found["shop.Order"] == ([0, 8], {})
    assert found["shop.Refund"] == ([1, 7], {})
    assert found[REST] == ([], {**dict.fromkeys((2, 3, 10), "NoRoute"), **wrong})


def test_the_message_indexes_choose_the_message_of_a_protobuf_schema() -> None:
    values = [framed(1, b"\0"), framed(1, b"\2\2"), framed(2, b"\0"), framed(1, b"\4\0\0"), framed(1, b"\2\0")]
    made = contracts(SchemaFormat.PROTOBUF, "shop.Order", "shop.Refund", "shop.Order.Line", otherwise="Table")
    found = divided(made, PROTOBUF, values)
    assert found["shop.Order"] == ([0, 4], {})
    assert found["shop.Refund"] == ([1], {})
    assert found["shop.Order.Line"] == ([3], {})
    assert found[REST] == ([2], {})


def test_the_title_of_a_json_schema_decides() -> None:
    known: WriterSchemas = {
        1: WriterSchema(text='{"title": "Order"}'),
        2: WriterSchema(text="{}"),
        3: WriterSchema(text="true"),
    }
    values = [framed(number, b"{}") for number in (1, 2, 3)]
    found = divided(contracts(SchemaFormat.JSON, "Order"), known, values)
    assert found == {"Order": ([0], {}), REST: ([], {1: "NoRoute", 2: "NoRoute"})}


def test_ids_and_guids_of_headers_decide() -> None:
    header, guid = b"\0" + (1).to_bytes(4), b"\1" + GUID.bytes
    headers = [[{"key": "__value_schema_id", "value": each}] for each in (header, guid, b"\7", b"\0\0\0\0\x09")]
    values = [b"\2", b"\2", b"\2", b"\2", framed(3), None]
    made = contracts(SchemaFormat.AVRO, "shop.Order", "shop.Refund", id_in="Header")
    found = divided(made, AVRO, values, headers=[*headers, None, None])
    assert found["shop.Order"] == ([0], {})
    assert found["shop.Refund"] == ([1, 4], {})
    assert found[REST] == ([], {2: "UnknownSchema", 3: "UnknownSchema", 5: "NoRoute"})
    indexed = [[{"key": "__value_schema_id", "value": header + b"\2\2"}]]
    made = contracts(SchemaFormat.PROTOBUF, "shop.Refund", id_in="Header")
    assert divided(made, PROTOBUF, [b""], headers=indexed)["shop.Refund"] == ([0], {})


def test_a_record_whose_message_cannot_be_known_is_a_dead_letter_of_the_topic_only() -> None:
    values = [framed(9), b"no framing", b"", None, framed(1)]
    found = divided(contracts(SchemaFormat.AVRO, "shop.Order", otherwise="Table"), AVRO, values)
    assert found == {
        "shop.Order": ([4], {}),
        REST: ([3], {0: "UnknownSchema", 1: "UnknownSchema", 2: "EmptyPayload"}),
    }
    wrong = [framed(1, b"\1"), framed(1, b"\2\x63"), framed(1, b"\2"), framed(1, b"\x40"), framed(3, b"\0"), framed(1)]
    found = divided(contracts(SchemaFormat.PROTOBUF, "shop.Order", otherwise="Table"), PROTOBUF, wrong)
    assert found == {"shop.Order": ([], {}), REST: ([], dict.fromkeys(range(6), "InvalidProtobuf"))}


def test_a_task_names_the_schemas_that_routes_need(tmp_path: Any) -> None:
    landings = {
        f"t/{place}": TopicLanding(made, tables.table_of(made, tmp_path / str(place)))
        for place, made in enumerate(contracts(SchemaFormat.AVRO, "shop.Order").values())
    }
    blocks = [batch([framed(7), framed(8)]), batch([framed(6)])]
    found = tables.results(land(iter(blocks), LandingPlan(landings, ingested_at=0)))
    for name in landings:
        ((kind, [needed]),) = found[name].items()
        assert (kind, sorted(needed["ids"]), needed["reader"]) == (Kind.SCHEMAS_NEEDED, [6, 7, 8], "routes")


def test_guids_are_needed_by_routes() -> None:
    headers = [[{"key": "__value_schema_id", "value": b"\1" + uuid.UUID(int=6).bytes}]]
    made = contracts(SchemaFormat.AVRO, "shop.Order", id_in="Header")[REST]
    with pytest.raises(SchemasNeededError) as raised:
        Decoder(made, ingested_at=1).decode(fetched([b"\2"], headers=headers))
    assert (raised.value.ids, raised.value.reader) == ([str(uuid.UUID(int=6))], "routes")


def test_each_schema_and_each_list_of_indexes_of_a_block_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Bytes] = []

    def counted(data: Bytes) -> list[int]:
        read.append(data)
        return read_indexes(data)

    monkeypatch.setattr(messages, "read_indexes", counted)
    values = [framed(n % 2 + 1, b"\0" if n % 3 else b"\2\2") for n in range(600)]
    found = divided(contracts(SchemaFormat.PROTOBUF, "shop.Order", "pay.Refund"), PROTOBUF, values)
    assert (len(found["shop.Order"][0]), len(found["pay.Refund"][0])) == (200, 100)
    assert len(read) == 2


@pytest.mark.parametrize("form", [SchemaFormat.AVRO, SchemaFormat.PROTOBUF])
def test_random_values_are_divided_exactly_once(form: SchemaFormat) -> None:
    random_ = random.Random(74)
    known = AVRO if form is SchemaFormat.AVRO else {**PROTOBUF, 4: UNKNOWN, 9: UNKNOWN}
    for _ in range(10):
        values: list[bytes | None] = [
            random_.choice(
                [None, b"", framed(random_.choice([1, 2, 3, 4, 9]), random_.randbytes(random_.randrange(4)))]
            )
            for _ in range(200)
        ]
        divided(
            contracts(form, "shop.Order", ".*Refund", otherwise=random_.choice(["Table", "DeadLetter"])), known, values
        )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"type": "record", "name": "a.B", "namespace": "c", "fields": []}', "a.B"),
        ('{"type": "record", "name": "B", "namespace": "", "fields": []}', "B"),
        ('{"type": {"type": "record", "name": "B", "fields": []}}', "B"),
        ('"shop.Order"', "shop.Order"),
        ('"long"', None),
        ('{"type": "record", "name": 5}', None),
        ('{"type": "enum", "name": "E", "symbols": []}', None),
        ('["null"]', None),
        ('["A"]', None),
        (r'{"type": "record", "name": "B\ud800"}', "B?"),
        ("{", None),
    ],
)
def test_the_full_name_of_an_avro_record(text: str, name: str | None) -> None:
    assert message_names(SchemaFormat.AVRO, WriterSchema(text=text)).get((), "") == (name or "")


def test_a_title_with_half_of_a_surrogate_pair_is_a_text() -> None:
    assert message_names(SchemaFormat.JSON, WriterSchema(text=r'{"title": "B\ud800"}')) == {(): "B?"}


def test_a_message_needs_ids_of_a_registry() -> None:
    subject = Subject(registry="main", name="s", id_in="None")
    with pytest.raises(InvalidSpecError, match="message needs the id of a schema in each record"):
        value_schema(RecordSchema(format=SchemaFormat.AVRO, subject=subject), MESSAGE)
    with pytest.raises(InvalidSpecError, match="message needs a schema with registry"):
        value_schema(records.job().record_schema, MESSAGE)
