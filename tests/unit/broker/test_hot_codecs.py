"""The hand-written codecs of Produce and Fetch agree with kio, in every version that both have."""

import dataclasses
import io
from contextlib import suppress
from datetime import timedelta
from typing import Any, get_args, get_type_hints
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta

from firn.records.cursor import Cursor, MalformedError
from firn.records.message_writer import encode
from firn_broker.wire import fetch, headers, produce
from firn_broker.wire.fetch import FetchPartition, FetchResult
from firn_broker.wire.produce import ProduceResult

ZERO = UUID(int=0)
TOPIC = UUID(int=77)


def nested(schema: type, field: str) -> Any:
    """Return the class of the elements of a field."""
    return get_args(get_type_hints(schema)[field])[0]


def write(entity: Any) -> memoryview:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return memoryview(buffer.getvalue())


def read_answer(api: int, version: int, body: bytes) -> Any:
    answer, size = entity_reader(load_response_schema(api, version))(body, 0)
    assert size == len(body)
    return answer


@pytest.mark.parametrize("version", range(3, 12))
def test_a_produce_request_is_read(version: int) -> None:
    schema = load_request_schema(0, version)
    topic = nested(schema, "topic_data")
    partition = nested(topic, "partition_data")
    request = schema(
        transactional_id=None, acks=-1, timeout=i32Timedelta.parse(timedelta(seconds=3)),
        topic_data=(topic(name="a", partition_data=(partition(index=1, records=b"abc"), partition(index=2, records=None))),
                    topic(name="b", partition_data=())),
    )  # type: ignore[call-arg]  # fmt: skip
    decoded = produce.read(write(request), 0, version)
    assert (decoded.transactional_id, decoded.acks, decoded.timeout_ms) == (None, -1, 3000)
    assert [(name, [(part.index, part.records and bytes(part.records)) for part in parts]) for name, parts in decoded.topics] == [
        ("a", [(1, b"abc"), (2, None)]), ("b", []),
    ]  # fmt: skip


@pytest.mark.parametrize("version", range(3, 12))
def test_kio_reads_a_produce_answer(version: int) -> None:
    results = [
        (
            "a",
            [
                ProduceResult(0, ErrorCode.none, 5, 77, 2),
                ProduceResult(1, ErrorCode.message_too_large, message="too large"),
            ],
        ),
        ("b", []),
    ]
    answer = read_answer(0, version, produce.write(version, results))
    first, second = answer.responses
    assert (first.name, second.name, second.partition_responses) == ("a", "b", ())
    accepted, rejected = first.partition_responses
    assert (accepted.index, accepted.error_code, accepted.base_offset) == (0, ErrorCode.none, 5)
    assert (rejected.index, rejected.error_code, rejected.base_offset) == (1, ErrorCode.message_too_large, -1)
    if version >= 5:
        assert accepted.log_start_offset == 2
    if version >= 8:
        assert (accepted.error_message, rejected.error_message) == (None, "too large")


@pytest.mark.parametrize("version", range(4, 17))
def test_a_fetch_request_is_read(version: int) -> None:
    fields: dict[str, Any] = {
        "max_wait": i32Timedelta.parse(timedelta(seconds=1)), "min_bytes": 2, "max_bytes": 3, "isolation_level": 1, "session_id": 4,
        "session_epoch": 5, "rack_id": "z", "replica_id": -1,
    }  # fmt: skip
    schema = load_request_schema(1, version)
    topic = nested(schema, "topics")
    partition = nested(topic, "partitions")
    part = {
        "partition": 6, "current_leader_epoch": 0, "fetch_offset": 8, "last_fetched_epoch": 0, "log_start_offset": -1,
        "partition_max_bytes": 9,
    }  # fmt: skip
    names = {"topic": "t", "topic_id": TOPIC}
    if version >= 7:
        forgotten = nested(schema, "forgotten_topics_data")
        fields["forgotten_topics_data"] = (fill(forgotten, {**names, "partitions": (1, 2)}),)
    request = fill(schema, {**fields, "topics": (fill(topic, {**names, "partitions": (fill(partition, part),)}),)})
    decoded = fetch.read(write(request), 0, version)
    assert (decoded.max_wait_ms, decoded.min_bytes, decoded.max_bytes, decoded.isolation) == (1000, 2, 3, 1)
    assert decoded.topics == [(TOPIC if version >= 13 else "t", [FetchPartition(6, 0 if version >= 9 else -1, 8, 9)])]
    assert (decoded.session_id, decoded.session_epoch) == ((4, 5) if version >= 7 else (0, -1))
    assert decoded.forgotten == ([(TOPIC if version >= 13 else "t", index) for index in (1, 2)] if version >= 7 else [])
    assert decoded.rack == ("z" if version >= 11 else "")


def fill(schema: Any, fields: dict[str, Any]) -> Any:
    return schema(**{field.name: fields[field.name] for field in dataclasses.fields(schema) if field.name in fields})


@pytest.mark.parametrize("version", range(4, 17))
@pytest.mark.parametrize("isolation", [0, 1])
def test_kio_reads_a_fetch_answer(version: int, isolation: int) -> None:
    name: str | UUID = TOPIC if version >= 13 else "t"
    results = [
        FetchResult(0, ErrorCode.none, 10, 2, [memoryview(b"abc"), memoryview(b"defg")]),
        FetchResult(1, ErrorCode.offset_out_of_range, 3, 1),
    ]
    body = b"".join(fetch.write(version, isolation, [(name, results)]))
    answer = read_answer(1, version, body)
    (topic,) = answer.responses
    full, failed = topic.partitions
    assert (full.partition_index, full.error_code, full.high_watermark, full.last_stable_offset) == (
        0,
        ErrorCode.none,
        10,
        10,
    )
    assert bytes(full.records) == b"abcdefg"
    assert (failed.error_code, bytes(failed.records)) == (ErrorCode.offset_out_of_range, b""), "empty, not null"
    assert full.aborted_transactions == (() if isolation else None)


@pytest.mark.slow
@given(st.binary(max_size=120), st.integers(0, 11), st.integers(4, 16))
def test_any_bytes_are_read_or_malformed(data: bytes, produce_version: int, fetch_version: int) -> None:
    for read, version in ((produce.read, produce_version), (fetch.read, fetch_version)):
        with suppress(MalformedError):
            read(memoryview(data), 0, version)
    with suppress(MalformedError):
        headers.read(memoryview(data))


def test_an_array_longer_than_its_message_allocates_nothing() -> None:
    lie = b"\xff\xff" + (-1).to_bytes(2, "big", signed=True) + b"\0\0\0\0" + b"\x7f\xff\xff\xff"
    with pytest.raises(MalformedError):
        produce.read(memoryview(lie), 0, 3)


@pytest.mark.parametrize("version", range(13))
def test_an_answer_omits_fields_that_a_version_lacks(version: int) -> None:
    body = encode(
        3, version,
        {"brokers": [{"node_id": 1, "host": "h", "port": 2, "rack": None}], "cluster_id": "c", "controller_id": 1,
         "topics": [{"error_code": ErrorCode.none, "name": "t", "topic_id": TOPIC, "partitions": [
             {"error_code": ErrorCode.none, "partition_index": 0, "leader_id": 1, "leader_epoch": 0, "replica_nodes": (1,),
              "isr_nodes": (1,), "offline_replicas": ()}]}], "cluster_authorized_operations": -5},
    )  # fmt: skip
    answer = read_answer(3, version, body)
    assert (answer.brokers[0].host, answer.topics[0].name, answer.topics[0].partitions[0].leader_id) == ("h", "t", 1)


def test_a_varint_has_at_most_five_bytes() -> None:
    largest = Cursor(memoryview(b"\xff\xff\xff\xff\x0f"), 0, flexible=True)
    assert largest.varint() == 2**32 - 1
    long = Cursor(memoryview(b"\x80\x80\x80\x80\x80\x00"), 0, flexible=True)
    with pytest.raises(MalformedError, match="longer than 5 bytes"):
        long.varint()
