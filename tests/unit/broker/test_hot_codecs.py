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

from firn.records.cursor import MalformedError
from firn.records.message_writer import encode
from firn_broker.wire import fetch, headers, produce
from firn_broker.wire.fetch import FetchPartition, FetchResult
from firn_broker.wire.produce import ProduceResult

ZERO = UUID(int=0)
TOPIC = UUID(int=77)


def nested(schema: type, field: str) -> Any:
    """Class of the elements of a field."""
    return get_args(get_type_hints(schema)[field])[0]


def write(entity: Any) -> memoryview:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return memoryview(buffer.getvalue())


def read_answer(api: int, version: int, body: bytes) -> Any:
    found, size = entity_reader(load_response_schema(api, version))(body, 0)
    assert size == len(body)
    return found


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
    found = produce.read(write(request), 0, version)
    assert (found.transactional_id, found.acks, found.timeout_ms) == (None, -1, 3000)
    assert [(name, [(it.index, it.records and bytes(it.records)) for it in parts]) for name, parts in found.topics] == [
        ("a", [(1, b"abc"), (2, None)]), ("b", []),
    ]  # fmt: skip


@pytest.mark.parametrize("version", range(3, 12))
def test_a_produce_answer_is_what_kio_reads(version: int) -> None:
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
    found = read_answer(0, version, produce.write(version, results))
    first, second = found.responses
    assert (first.name, second.name, second.partition_responses) == ("a", "b", ())
    one, two = first.partition_responses
    assert (one.index, one.error_code, one.base_offset) == (0, ErrorCode.none, 5)
    assert (two.index, two.error_code, two.base_offset) == (1, ErrorCode.message_too_large, -1)
    if version >= 5:
        assert one.log_start_offset == 2
    if version >= 8:
        assert (one.error_message, two.error_message) == (None, "too large")


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
    found = fetch.read(write(request), 0, version)
    assert (found.max_wait_ms, found.min_bytes, found.max_bytes, found.isolation) == (1000, 2, 3, 1)
    assert found.topics == [(TOPIC if version >= 13 else "t", [FetchPartition(6, 0 if version >= 9 else -1, 8, 9)])]
    assert (found.session_id, found.session_epoch) == ((4, 5) if version >= 7 else (0, -1))
    assert found.rack == ("z" if version >= 11 else "")


def fill(schema: Any, fields: dict[str, Any]) -> Any:
    return schema(**{it.name: fields[it.name] for it in dataclasses.fields(schema) if it.name in fields})


@pytest.mark.parametrize("version", range(4, 17))
@pytest.mark.parametrize("isolation", [0, 1])
def test_a_fetch_answer_is_what_kio_reads(version: int, isolation: int) -> None:
    name: str | UUID = TOPIC if version >= 13 else "t"
    results = [
        FetchResult(0, ErrorCode.none, 10, 2, [memoryview(b"abc"), memoryview(b"defg")]),
        FetchResult(1, ErrorCode.offset_out_of_range, 3, 1),
    ]
    body = b"".join(fetch.write(version, isolation, [(name, results)]))
    found = read_answer(1, version, body)
    (topic,) = found.responses
    one, two = topic.partitions
    assert (one.partition_index, one.error_code, one.high_watermark, one.last_stable_offset) == (
        0,
        ErrorCode.none,
        10,
        10,
    )
    assert bytes(one.records) == b"abcdefg"
    assert (two.error_code, bytes(two.records)) == (ErrorCode.offset_out_of_range, b""), "empty, not null"
    assert one.aborted_transactions == (() if isolation else None)


@given(st.binary(max_size=120), st.integers(0, 11), st.integers(4, 16))
def test_anything_is_read_or_malformed(data: bytes, produce_version: int, fetch_version: int) -> None:
    for read, version in ((produce.read, produce_version), (fetch.read, fetch_version)):
        with suppress(MalformedError):
            read(memoryview(data), 0, version)
    with suppress(MalformedError):
        headers.read(memoryview(data))


def test_an_array_longer_than_its_message_costs_nothing() -> None:
    lie = b"\xff\xff" + (-1).to_bytes(2, "big", signed=True) + b"\0\0\0\0" + b"\x7f\xff\xff\xff"
    with pytest.raises(MalformedError):
        produce.read(memoryview(lie), 0, 3)


@pytest.mark.parametrize("version", range(13))
def test_an_answer_leaves_out_what_a_version_lacks(version: int) -> None:
    body = encode(
        3, version,
        {"brokers": [{"node_id": 1, "host": "h", "port": 2, "rack": None}], "cluster_id": "c", "controller_id": 1,
         "topics": [{"error_code": ErrorCode.none, "name": "t", "topic_id": TOPIC, "partitions": [
             {"error_code": ErrorCode.none, "partition_index": 0, "leader_id": 1, "leader_epoch": 0, "replica_nodes": (1,),
              "isr_nodes": (1,), "offline_replicas": ()}]}], "cluster_authorized_operations": -5},
    )  # fmt: skip
    found = read_answer(3, version, body)
    assert (found.brokers[0].host, found.topics[0].name, found.topics[0].partitions[0].leader_id) == ("h", "t", 1)
