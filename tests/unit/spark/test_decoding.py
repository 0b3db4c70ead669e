"""Batches become rows and dead letters."""

import json
from typing import Any

import pyarrow as pa
import pytest

from firn.decoders.bad_records import Code
from firn.model.jobs import Column
from firn.tables import rows
from firn_spark.worker.decoding import DEAD_LETTER_SCHEMA, Decoder
from tests.unit.spark.records import NOON, fetched, job

INGESTED_AT = 1_700_000_123_456_789
GOOD = b'{"a": 1}'
BAD = b'{"a": "x"}'


def decoder(given: Any = None, **options: Any) -> Any:
    return Decoder(given or job(("a", "int")), ingested_at=INGESTED_AT, **options)


def test_rows_have_the_tables_columns_in_order() -> None:
    decoded = decoder().decode(fetched([GOOD, b"{}", None]))
    assert decoded.rows.column_names == ["a", "_kafka"]
    assert decoded.rows["a"].to_pylist() == [1, None, None]
    assert decoded.dead is None
    flat = decoder(job(("a", "int"), metadata_columns="Flat")).decode(fetched([GOOD]))
    assert flat.rows.column_names == ["a", *(f"_kafka_{name}" for name, _ in rows.METADATA)]


def test_kafka_columns_have_the_origin_of_a_record() -> None:
    headers = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], []]
    given = fetched(
        [GOOD, GOOD], key=[b"k", None], partition=[3, 4], offset=[7, 2**40], timestampType=[0, 1], headers=headers
    )
    first, second = decoder().decode(given).rows["_kafka"].to_pylist()
    assert (first["key"], first["partition"], first["offset"], first["timestamp_type"]) == (b"k", 3, 7, 0)
    assert (second["key"], second["partition"], second["offset"], second["timestamp_type"]) == (None, 4, 2**40, 1)
    assert (first["headers"], second["headers"]) == tuple(headers)
    assert first["timestamp_ms"] == NOON
    assert first["timestamp"].timestamp() * 1000 == NOON


@pytest.mark.parametrize("shape", ["Struct", "Flat"])
def test_rows_of_a_shared_table_name_their_topic(shape: str) -> None:
    alone = job(("a", "int"), metadata_columns=shape)
    shared = alone.model_copy(
        update={"version": 2, "topic_id": "id-1", "table": alone.table.model_copy(update={"shared_by": "t"})}
    )
    decoded = decoder(shared).decode(fetched([GOOD, BAD, GOOD]))
    names = ("topic", "topic_id", "schema_id")
    if shape == "Flat":
        found = [tuple(row[f"_kafka_{name}"] for name in names) for row in decoded.rows.to_pylist()]
    else:
        found = [tuple(row[name] for name in names) for row in decoded.rows["_kafka"].to_pylist()]
    assert found == [("t", "id-1", None)] * 2
    assert decoded.rows.schema == decoder(shared).schema
    assert decoded.dead.schema == DEAD_LETTER_SCHEMA


def times(given: Any) -> Any:
    kafka = decoder().decode(given).rows["_kafka"].combine_chunks()
    return kafka.field("timestamp").cast(pa.int64()).to_pylist(), kafka.field("timestamp_ms").to_pylist()


def test_times_outside_the_column_type_are_null() -> None:
    far = 2**63 - 1
    assert times(fetched([GOOD] * 3, timestamp=[-1000, 0, 1_234_000])) == ([None, 0, 1_234_000], [-1, 0, 1234])
    limit = far // 1000
    milliseconds = [-1, 0, limit, limit + 1, far, -limit, -far - 1]
    assert times(fetched([GOOD] * 7, timestamp_ms=milliseconds)) == (
        [None, 0, limit * 1000, None, None, -limit * 1000, None],
        milliseconds,
    )


def test_a_dead_letter_has_bytes_reason_and_origin() -> None:
    given = fetched([GOOD, BAD, GOOD], key=[b"1", b"2", b"3"], offset=[5, 6, 9])
    decoded = decoder().decode(given)
    assert decoded.rows["a"].to_pylist() == [1, 1]
    assert decoded.dead.schema == DEAD_LETTER_SCHEMA
    (letter,) = decoded.dead.to_pylist()
    assert (letter["error_code"], letter["error_stage"], letter["error_path"]) == ("WrongKind", "Schema", "$.a")
    assert letter["error_detail"] == 'expected int, found string "x"'
    assert (letter["key"], letter["value"], letter["generation"]) == (b"2", BAD, 7)
    assert decoded.dead["ingested_at"].cast(pa.int64()).to_pylist() == [INGESTED_AT]
    assert (letter["_kafka"]["offset"], letter["_kafka"]["key"]) == (6, b"2")


def test_every_offset_is_decoded_once() -> None:
    values = [b"", b"{", None, GOOD, b"\xff", b"[]", BAD, b'{"a": 1.0}'] * 50
    given = job(Column(name="a", type="int", required=True))
    decoded = decoder(given).decode(fetched(values))
    offsets = [place["offset"] for table in (decoded.rows, decoded.dead) for place in table["_kafka"].to_pylist()]
    assert sorted(offsets) == list(range(400))
    assert decoded.rows.num_rows == 50
    assert set(decoded.dead["error_code"].to_pylist()) == {
        Code.EMPTY_PAYLOAD, Code.INVALID_JSON, Code.TOMBSTONE, Code.INVALID_UTF8, Code.NOT_AN_OBJECT, Code.WRONG_KIND, Code.INEXACT,
    }  # fmt: skip


def test_skip_counts_the_skipped_records() -> None:
    decoded = decoder(job(("a", "int"), on_bad_record="Skip")).decode(fetched([GOOD, BAD, BAD, GOOD]))
    assert (decoded.rows.num_rows, decoded.dead, decoded.skipped, decoded.halts) == (2, None, 2, ())


def test_halt_keeps_earlier_records_and_other_partitions() -> None:
    halting = decoder(job(("a", "int"), on_bad_record="Halt"))
    first = halting.decode(
        fetched([GOOD, GOOD, BAD, GOOD, BAD, GOOD], partition=[0, 1, 0, 0, 0, 1], offset=[0, 0, 1, 2, 3, 1])
    )
    places = [(place["partition"], place["offset"]) for place in first.rows["_kafka"].to_pylist()]
    assert places == [(0, 0), (1, 0), (1, 1)]
    (halt,) = first.halts
    assert (halt.partition, halt.offset, halt.error.code) == (0, 1, Code.WRONG_KIND)
    later = halting.decode(fetched([GOOD, GOOD, BAD], partition=[0, 1, 1], offset=[4, 2, 3]))
    assert [place["offset"] for place in later.rows["_kafka"].to_pylist()] == [2]
    assert [(halt.partition, halt.offset) for halt in later.halts] == [(1, 3)]
    assert later.dead is None


@pytest.mark.parametrize("policy", ["DeadLetter", "Halt", "Skip"])
def test_forced_records_are_dead_letters_under_any_policy(policy: Any) -> None:
    given = job(("a", "int"), on_bad_record=policy)
    decoded = decoder(given, force_dead={0: frozenset({1, 2})}).decode(fetched([GOOD, BAD, GOOD, GOOD]))
    assert decoded.rows.num_rows == 2
    assert decoded.halts == ()
    codes = dict(
        zip(
            (place["offset"] for place in decoded.dead["_kafka"].to_pylist()),
            decoded.dead["error_code"].to_pylist(),
            strict=True,
        )
    )
    assert codes == {1: "WrongKind", 2: "Skipped"}


def test_excluded_records_are_dropped() -> None:
    records = fetched([GOOD, BAD, BAD, GOOD])
    exclude = {0: {1: (b"another", records.identity(1)), 3: (records.identity(3),)}, 1: {0: (records.identity(0),)}}
    decoded = decoder(exclude=exclude).decode(records)
    assert [place["offset"] for place in decoded.rows["_kafka"].to_pylist()] == [0]
    assert [place["offset"] for place in decoded.dead["_kafka"].to_pylist()] == [2]
    assert decoded.excluded == 2


def test_another_record_with_an_excluded_offset_lands() -> None:
    earlier = fetched([GOOD, BAD])
    exclude = {0: {offset: (earlier.identity(offset),) for offset in (0, 1)}}
    decoded = decoder(exclude=exclude).decode(fetched([BAD, GOOD]))
    assert [place["offset"] for place in decoded.rows["_kafka"].to_pylist()] == [1]
    assert [place["offset"] for place in decoded.dead["_kafka"].to_pylist()] == [0]
    assert decoded.excluded == 0


def test_an_identity_distinguishes_times_keys_values_and_nulls() -> None:
    variants = [
        fetched([value], key=[key], timestamp_ms=[time])
        for value in (b"", b"a", b"ab", None)
        for key in (b"", b"b", None)
        for time in (1, 2)
    ]
    assert len({records.identity(0) for records in variants}) == len(variants)


def test_raw_topics_keep_bytes_unchanged() -> None:
    decoded = decoder(job()).decode(fetched([b"\xff", None, b""], key=[None, b"k", b""]))
    assert decoded.rows["value"].to_pylist() == [b"\xff", None, b""]
    assert decoded.rows["key"].to_pylist() == [None, b"k", b""]
    assert decoded.rows.schema.field("value").type == pa.binary()


def test_raw_topics_of_text_reject_other_bytes() -> None:
    given = fetched(["é".encode(), b"\xff", b"ok", None], key=[b"k", b"k", b"\xc0", None])
    decoded = decoder(job(raw_as="String")).decode(given)
    assert decoded.rows["value"].to_pylist() == ["é", None]
    assert decoded.dead["error_path"].to_pylist() == ["$.value", "$.key"]
    assert set(decoded.dead["error_code"].to_pylist()) == {Code.INVALID_UTF8}


def test_large_records_and_empty_batches_are_decoded() -> None:
    text = "x" * (1 << 20)
    decoded = decoder(job(("a", "string"))).decode(fetched([json.dumps({"a": text}).encode()] * 3))
    assert decoded.rows["a"].to_pylist() == [text] * 3
    assert decoder().decode(fetched([])).rows.num_rows == 0


@pytest.mark.slow
def test_bad_records_do_not_change_the_order_of_good_ones() -> None:
    values = [
        json.dumps({"a": n}).encode() if n % 7 else json.dumps({"a": n, "b": "\\ud800"}).encode() for n in range(100)
    ]
    values[50] = b'{"a": 50, "deep": "\\ud800"}'  # valid, but only for the strict decoder
    decoded = decoder(job(("a", "long"))).decode(fetched(values))
    assert decoded.rows["a"].to_pylist() == list(range(100))
