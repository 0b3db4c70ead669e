"""Topics whose gate decodes values accept only values of their schema."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from kio.schema.errors import ErrorCode

from firn.decoders import checks as decoding
from firn.decoders.checks import packed
from firn.model.jobs import Column, RecordSchema, WriterSchema
from firn.records.record_batch import InvalidBatchError, parse
from firn.schema_registry import MissingReferenceError, Registered, RegistryAwayError, UnusableSchemaError
from firn_broker import metrics
from firn_broker.log.decoder import Decoder
from firn_broker.topics import gate, quick_values, value_checks
from firn_broker.topics.quick_values import ALL, QuickValues
from firn_broker.topics.value_checks import Judge, ValueChecks, ValueSchema, Verdict
from tests.fakes.schemas import FakeSubjects
from tests.fakes.virtual_time import run
from tests.unit.broker.test_schema_gate import AWAY, alter, framed, values
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import broker, counting_turns, create

JSON = RecordSchema(format="Json", fields=(Column(name="id", type="long", required=True),))
GOOD, BAD = b'{"id": 1}', b'{"id": "one"}'
DOUBTFUL = b'{"id": 1, "other": [1]}'
"""A good value that no quick check accepts."""
AVRO = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
PROTO = 'syntax = "proto3"; message R { int32 id = 1; } message S { string a = 1; }'


def inline(schema: RecordSchema = JSON) -> dict[str, str]:
    return {"firn_schema_gate": "Decode", "firn_schema_contract": packed(schema)}


def by_registry(**more: str) -> dict[str, str]:
    return {"firn_schema_gate": "Decode", "firn_schema_registry": "main", **more}


def with_schemas(**texts: str) -> FakeSubjects:
    """Return a registry with schemas of the subject ``orders-value``, with the ids 7, 8, ..."""
    registry = FakeSubjects()
    for number, (kind, text) in enumerate(texts.items(), 7):
        registry.registered[number] = {"orders-value"}
        registry.schemas[number] = Registered(number, kind, WriterSchema(text=text))
    return registry


async def answered(configs: dict[str, str], registry: FakeSubjects, *batches: Any) -> list[Any]:
    async with broker(registries=registry) as asked:
        await create(asked, "orders", 1, **configs)
        return [await produce(asked, "orders", 0, batch) for batch in batches]


def refused(answer: Any) -> list[int]:
    return [error.batch_index for error in answer.record_errors]


def test_a_schema_of_the_topic_decides_about_each_value() -> None:
    good, bad, tombstone = run(
        answered(inline(), FakeSubjects(), values(GOOD, framed(7, GOOD)), values(GOOD, BAD, b"{"), values(None))
    )
    assert (good.error_code, good.base_offset) == (ErrorCode.none, 0)
    assert bad.error_code is ErrorCode.invalid_record
    assert refused(bad) == [1, 2]
    assert bad.record_errors[0].batch_index_error_message == 'WrongKind: $.id: expected long, found string "one"'
    assert bad.error_message.startswith("2 of 3 records do not fit the schema of topic orders; record 1: WrongKind")
    assert tombstone.error_code is ErrorCode.invalid_record


def test_a_protobuf_text_of_the_topic_is_compiled() -> None:
    schema = RecordSchema(format="Protobuf", text=PROTO, message="S")
    good, bad = run(answered(inline(schema), FakeSubjects(), values(b"\x0a\x01a"), values(b"\x0a\x01\xff")))
    assert not good.error_code
    assert refused(bad) == [0]
    assert "InvalidUtf8: $.a" in bad.error_message


@pytest.mark.parametrize("registry", [False, True])
def test_times_that_keep_nanoseconds_have_a_range_of_their_own(registry: bool) -> None:
    text = (
        'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message R { google.protobuf.Timestamp at = 1; }'
    )
    prefix = framed(7, b"\0") if registry else b""
    in_2300 = values(prefix + b"\x0a\x06\x08\x80\xb6\xd7\xe5\x26")

    def answer(*, keep: bool) -> Any:
        schema = RecordSchema(
            format="Protobuf",
            text="" if registry else text,
            message="R",
            framing="Registry" if registry else "None",
            nanoseconds=keep,
        )
        configs = by_registry(firn_schema_contract=packed(schema)) if registry else inline(schema)
        return run(answered(configs, with_schemas(PROTOBUF=text), in_2300))[0]

    assert not answer(keep=False).error_code
    assert "OutOfRange: $.at" in answer(keep=True).error_message


@pytest.mark.parametrize("registry", [False, True])
def test_times_that_are_truncated_can_have_more_digits(registry: bool) -> None:
    text = json.dumps({"properties": {"at": {"type": "string", "format": "date-time"}}})
    value = b'{"at": "2026-11-28T12:30:00.1234567Z"}'
    fields = () if registry else (Column(name="at", type="timestamptz"),)

    def answer(*, truncate: bool) -> Any:
        schema = RecordSchema(
            format="Json", fields=fields, framing="Registry" if registry else "None", truncate_times=truncate
        )
        configs = by_registry(firn_schema_contract=packed(schema)) if registry else inline(schema)
        return run(answered(configs, with_schemas(JSON=text), values(framed(7, value) if registry else value)))[0]

    assert not answer(truncate=True).error_code
    assert "Inexact: $.at" in answer(truncate=False).error_message


@pytest.mark.parametrize("variants", [True, False, None])
def test_a_member_without_one_type_is_a_variant_if_the_table_may_have_variants(variants: bool | None) -> None:
    text = json.dumps(
        {"properties": {"id": {"type": "integer"}, "more": {}, "all": {"items": {"type": ["integer", "string"]}}}}
    )
    configs = by_registry()
    if variants is not None:
        contract = packed(RecordSchema(format="Json", framing="Registry", variants=variants))
        configs = by_registry(firn_schema_contract=contract)
    good = framed(7, b'{"id": 1, "more": {"a": [1, null]}, "all": [1, "a"]}')
    bad = framed(7, b'{"id": 1, "more": {"a": 1e999}}')
    answer, other = run(answered(configs, with_schemas(JSON=text), values(good), values(good, bad)))
    if variants is False:
        assert "set spec.table.formatVersion: 3" in answer.error_message
        return
    assert not answer.error_code
    assert refused(other) == [1]
    assert "OutOfRange: $.more.a" in other.error_message


def test_a_value_is_decoded_by_the_schema_of_its_id() -> None:
    other = {**AVRO, "fields": [{"name": "name", "type": "string"}]}
    registry = with_schemas(
        AVRO=json.dumps(AVRO), PROTOBUF=PROTO, JSON=json.dumps({"properties": {"a": {"type": "integer"}}})
    )
    registry.registered[10], registry.schemas[10] = (
        {"orders-value"},
        Registered(10, "AVRO", WriterSchema(text=json.dumps(other))),
    )
    good = values(framed(7, b"\x02"), framed(10, b"\x02a"), framed(8, b"\0\x08\x05"), framed(9, b'{"a": 1}'), None)
    bad = values(
        framed(7, b"\x02a"), framed(10, b"\x02"), framed(8, b"\0\x0a\x05"), framed(9, b'{"a": "b"}'), framed(7, b"\x04")
    )
    accepted, answer = run(answered(by_registry(), registry, good, bad))
    assert not accepted.error_code
    assert refused(answer) == [0, 1, 2, 3]


def test_members_with_names_that_no_path_can_have_are_not_decoded() -> None:
    text = json.dumps(
        {
            "type": "object",
            "properties": {
                "a\u0001b": {"type": "string"},
                "s": {"type": "object", "properties": {"c\td": {"type": "string"}, "k": {"type": "integer"}}},
            },
        }
    )
    sent = values(*(b"\0\0\0\0\7" + each for each in (b'{"s": {"k": 1, "c\\td": 2}}', b'{"s": {"k": "one"}}')))
    contract = packed(RecordSchema(format="Json"))
    (answer,) = run(answered(by_registry(firn_schema_contract=contract), with_schemas(JSON=text), sent))
    assert refused(answer) == [1]


def test_values_with_a_schema_of_another_format_or_without_columns_are_refused() -> None:
    texts = {"JSON": '{"properties": {"a": {"type": "integer"}}}', "AVRO": '"null"'}
    contract = packed(RecordSchema(format="Avro"))
    json_answer, number = run(
        answered(
            by_registry(firn_schema_contract=contract),
            with_schemas(**texts),
            values(framed(7, b"{}")),
            values(framed(8, b"\x02")),
        )
    )
    assert (
        "schema 7 of schema registry main has the type JSON, and the topic has format: Avro"
        in json_answer.error_message
    )
    assert "schema 8: the schema" in number.error_message
    assert {json_answer.error_code, number.error_code} == {ErrorCode.invalid_record}


def test_a_text_that_protoc_rejects_is_no_outage() -> None:
    [answer] = run(answered(by_registry(), with_schemas(PROTOBUF="message {"), values(framed(7, b"\0"))))
    assert answer.error_code is ErrorCode.invalid_record
    assert "protoc rejects the text" in answer.error_message


def test_a_schema_that_is_too_large_is_no_outage() -> None:
    registry = with_schemas(AVRO=json.dumps(AVRO))
    registry.unusable = UnusableSchemaError("schema registry main: an answer has more than 8 MiB")
    [answer] = run(answered(by_registry(), registry, values(framed(7, b"\0"))))
    assert answer.error_code is ErrorCode.invalid_record
    assert "an answer has more than 8 MiB" in answer.error_message


def test_a_schema_whose_reference_is_missing_is_refused_for_ten_seconds() -> None:
    async def scenario() -> None:
        registry = with_schemas(AVRO=json.dumps(AVRO))
        registry.unusable = MissingReferenceError("schema registry main: a schema refers to version 3 of subject money")
        async with broker(registries=registry) as asked:
            await create(asked, "orders", 1, **by_registry())
            for _ in range(2):
                answer = await produce(asked, "orders", 0, values(framed(7, b"\x02")))
                assert answer.error_code is ErrorCode.invalid_record
                assert "record 0: schema registry main: a schema refers to version 3" in answer.error_message
            assert registry.asked == [7] * 3, "its subjects, and twice the schema"
            registry.unusable = None
            await asyncio.sleep(gate.AGAIN_SECONDS + 0.1)
            assert not (await produce(asked, "orders", 0, values(framed(7, b"\x02")))).error_code

    run(scenario())


def test_a_reference_may_come_late() -> None:
    async def scenario() -> None:
        registry = with_schemas(AVRO=json.dumps(AVRO))
        registry.unusable = MissingReferenceError("schema registry main: a schema refers to version 3 of subject money")
        async with broker(registries=registry) as asked:
            await create(asked, "orders", 1, **by_registry())
            waiting = asyncio.create_task(produce(asked, "orders", 0, values(framed(7, b"\x02"))))
            await asyncio.sleep(gate.LATE_SECONDS / 2)
            registry.unusable = None
            assert not (await waiting).error_code

    run(scenario())


def test_a_text_of_the_topic_that_protoc_rejects_refuses_each_record() -> None:
    schema = RecordSchema(format="Protobuf", text="message {")
    refusals = metrics.REFUSED_RECORDS.labels("orders")
    before = refusals._value.get()
    [answer] = run(answered(inline(schema), FakeSubjects(), values(b"\0", b"\0")))
    why = "the schema of topic orders cannot be used: protoc rejects the text"
    assert answer.error_message.startswith(
        f"2 of 2 records cannot be checked by the schema of topic orders; record 0: {why}"
    )
    for message in (answer.error_message, *(each.batch_index_error_message for each in answer.record_errors)):
        assert why in message
        assert (
            "ask the owner of its IcebergTopic to check the condition SpecValid and to correct spec.schema" in message
        )
    assert refused(answer) == [0, 1]
    assert refusals._value.get() - before == 2


def test_an_id_of_another_subject_is_refused_before_values_are_decoded() -> None:
    registry = with_schemas(AVRO=json.dumps(AVRO))
    registry.registered[8] = {"refunds-value"}
    [answer] = run(answered(by_registry(), registry, values(framed(7, b"xx"), framed(8, b"\x02"))))
    assert refused(answer) == [1]
    assert "no schema with id 8 in subject orders-value" in answer.error_message


def test_while_the_registry_does_not_answer_only_new_ids_wait() -> None:
    async def scenario() -> None:
        registry = with_schemas(AVRO=json.dumps(AVRO))
        registry.registered[8] = {"orders-value"}
        async with broker(registries=registry) as asked:
            await create(asked, "orders", 1, **by_registry())
            assert not (await produce(asked, "orders", 0, values(framed(7, b"\x02")))).error_code
            registry.problem = AWAY
            assert not (await produce(asked, "orders", 0, values(framed(7, b"\x02")))).error_code
            for _ in range(2):
                answer = await produce(asked, "orders", 0, values(framed(8, b"\x02")))
                assert answer.error_code is ErrorCode.kafka_storage_error
            registry.problem = None
            registry.schemas[8] = registry.schemas[7]
            await asyncio.sleep(gate.RETRY_SECONDS + 0.1)
            assert not (await produce(asked, "orders", 0, values(framed(8, b"\x02")))).error_code

    run(scenario())


def test_a_new_schema_of_the_topic_counts_at_once() -> None:
    async def scenario() -> None:
        async with broker(registries=FakeSubjects()) as asked:
            await create(asked, "orders", 1, **inline())
            assert (await produce(asked, "orders", 0, values(BAD))).error_code is ErrorCode.invalid_record
            text = JSON.model_copy(update={"fields": (Column(name="id", type="string"),)})
            await alter(asked, {"firn.schema.contract": packed(text)})
            assert not (await produce(asked, "orders", 0, values(BAD))).error_code
            assert (await produce(asked, "orders", 0, values(GOOD))).error_code is ErrorCode.invalid_record

    run(scenario())


def test_a_gate_without_registry_and_schema_is_not_valid() -> None:
    async def scenario() -> None:
        async with broker(registries=FakeSubjects()) as asked:
            await create(asked, "orders")
            message = await alter(asked, {"firn.schema.gate": "Decode"}, ErrorCode.invalid_config)
            assert "one of the broker's registries" in (message or "")
            await alter(
                asked, {"firn.schema.gate": "Id", "firn.schema.contract": packed(JSON)}, ErrorCode.invalid_config
            )

    run(scenario())


def test_batches_that_are_too_large_to_decode_name_the_limit() -> None:
    many, large = (
        values(*[GOOD] * (value_checks.MOST_RECORDS + 1)),
        values(b" " * value_checks.MOST_BYTES + GOOD, codec="lz4"),
    )
    for answer in run(answered(inline(), FakeSubjects(), many, large)):
        assert answer.error_code is ErrorCode.message_too_large
        assert "send smaller batches" in answer.error_message


def test_an_answer_names_a_thousand_records_and_details_of_a_hundred() -> None:
    [answer] = run(answered(inline(), FakeSubjects(), values(*[BAD] * 1_500)))
    assert answer.error_message.startswith("1500 of 1500 records")
    found = [error.batch_index_error_message for error in answer.record_errors]
    assert len(found) == value_checks.MOST_NAMED
    assert [message == "WrongKind" for message in found].index(True) == value_checks.MOST_DETAILED


def test_schemas_that_take_too_much_memory_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    other = json.dumps({**AVRO, "name": "S"})
    registry = with_schemas(AVRO=json.dumps(AVRO))
    registry.registered[8], registry.schemas[8] = {"orders-value"}, Registered(8, "AVRO", WriterSchema(text=other))
    monkeypatch.setattr(gate, "MOST_SCHEMAS", 700)
    batches = [values(framed(number, b"\x02")) for number in (7, 8, 7, 8)]
    answers = run(answered(by_registry(), registry, *batches))
    assert not any(answer.error_code for answer in answers)
    assert registry.asked.count(7) > 1


def test_values_of_a_very_large_schema_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MOST_SCHEMA", 10)
    [answer] = run(answered(by_registry(), with_schemas(AVRO=json.dumps(AVRO)), values(framed(7, b"any"))))
    assert not answer.error_code


SCHEMA = ValueSchema(JSON.model_dump_json(), "one")


@pytest.fixture
async def checks() -> AsyncIterator[ValueChecks]:
    with ThreadPoolExecutor(1) as thread:
        checks = ValueChecks(Decoder(thread), own_process=True)
        yield checks
        checks.close()


def batch(*of: Any) -> Any:
    return parse(values(*of))


async def test_a_process_of_its_own_decodes_values(checks: ValueChecks) -> None:
    for _ in range(2):
        verdict = await checks.judge(batch(GOOD, BAD, BAD), {ALL: SCHEMA}, "10.0.0.1")
        assert (verdict.count, [index for index, _ in verdict.refused]) == (2, [1, 2])
    other = ValueSchema(json.dumps({"format": "Avro", "text": json.dumps(AVRO)}), "two")
    verdicts = await asyncio.gather(
        *(
            checks.judge(batch(b"\x02"), {ALL: (SCHEMA, other)[number % 2]}, f"10.0.0.{number % 3}")
            for number in range(20)
        )
    )
    assert [verdict.count for verdict in verdicts] == [1, 0] * 10


def framed_batch(*ids: int) -> memoryview:
    return batch(*(framed(number, b'{"id": 1}') for number in ids)).data


def named(*ids: int) -> dict[bytes, str]:
    return {framed(number, b""): f"schema {number}" for number in ids}


def texts(*ids: int) -> dict[str, str]:
    return {f"schema {number}": JSON.model_dump_json() for number in ids}


def test_a_new_schema_replaces_none_of_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_checks, "MOST_KEPT", 2)
    judge = Judge()
    judge.judge(framed_batch(1), named(1), texts(1))
    judge.judge(framed_batch(2), named(2), texts(2))
    assert judge.judge(framed_batch(1, 3), named(1, 3), {}).needed == ["schema 3"]
    assert judge.judge(framed_batch(1, 3), named(1, 3), texts(3)) == Verdict()
    assert judge.judge(framed_batch(1, 2, 3), named(1, 2, 3), texts(2)) == Verdict()
    assert judge.judge(framed_batch(4), named(4), texts(4)) == Verdict()
    assert judge.judge(framed_batch(2), named(2), {}) == Verdict()


def test_schemas_of_other_topics_take_no_memory_from_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge()
    judge.judge(framed_batch(1), named(1), texts(1))
    opened = decoding.check_of

    def scarce(schema: RecordSchema) -> Any:
        if judge._kept:
            raise MemoryError
        return opened(schema)

    monkeypatch.setattr(decoding, "check_of", scarce)
    assert judge.judge(framed_batch(2), named(2), texts(2)).needed == ["schema 2"]
    assert judge.judge(framed_batch(2), named(2), texts(2)) == Verdict()


async def test_a_process_that_ends_lets_the_client_send_again(checks: ValueChecks) -> None:
    await checks.judge(batch(DOUBTFUL), {ALL: SCHEMA}, "10.0.0.1")
    [process] = _value_processes()
    os.kill(process, signal.SIGKILL)
    with pytest.raises(InvalidBatchError) as error:
        await checks.judge(batch(BAD), {ALL: SCHEMA}, "10.0.0.1")
    assert error.value.code is ErrorCode.kafka_storage_error
    assert (await checks.judge(batch(BAD), {ALL: SCHEMA}, "10.0.0.1")).count == 1


def has_process(checks: ValueChecks) -> bool:
    assert checks._process is not None
    return checks._process._process is not None


async def test_small_batches_with_plain_values_need_no_process(checks: ValueChecks) -> None:
    avro = ValueSchema(json.dumps({"format": "Avro", "text": json.dumps(AVRO)}), "two")
    for schema, good, bad in ((SCHEMA, GOOD, BAD), (avro, b"\x02", b"\x02\x02")):
        assert await checks.judge(batch(good, good), {ALL: schema}, "10.0.0.1") == Verdict()
        assert not has_process(checks)
        many = batch(*[good] * (quick_values.INLINE_RECORDS + 1), bad)
        assert (await checks.judge(many, {ALL: schema}, "10.0.0.1")).count == 1
        assert (await checks.judge(batch(good, bad), {ALL: schema}, "10.0.0.1")).count == 1
        assert has_process(checks)
        checks.close()


async def test_the_order_of_members_is_learned_from_a_batch_that_the_process_accepts(checks: ValueChecks) -> None:
    fields = (Column(name="id", type="long"), Column(name="name", type="string"))
    schema = ValueSchema(JSON.model_copy(update={"fields": fields}).model_dump_json(), "ordered")
    other = batch(b'{"name": "a", "id": 1}')
    assert await checks.judge(other, {ALL: schema}, "10.0.0.1") == Verdict()
    assert has_process(checks)
    checks.close()
    assert await checks.judge(other, {ALL: schema}, "10.0.0.1") == Verdict()
    assert not has_process(checks)


async def test_values_of_several_schemas_are_checked_by_their_own(checks: ValueChecks) -> None:
    texts = [JSON.model_dump_json(), json.dumps({"format": "Avro", "text": json.dumps(AVRO), "framing": "Registry"})]
    schemas = {framed(number, b""): ValueSchema(text, str(number)) for number, text in enumerate(texts, 7)}
    mixed = [framed(7, GOOD), framed(8, b"\x02"), None, framed(9, b"of no schema")]
    assert await checks.judge(batch(*mixed), schemas, "10.0.0.1") == Verdict()
    assert not has_process(checks)
    verdict = await checks.judge(batch(*mixed, framed(8, GOOD)), schemas, "10.0.0.1")
    assert [index for index, _ in verdict.refused] == [4]


class Frames:
    """Notes the batches of each frame that a process gets, which may end instead of answering."""

    def __init__(self, checks: ValueChecks, deadly: memoryview | None = None) -> None:
        self.seen: list[list[int]] = []
        self._deadly = deadly
        assert checks._process is not None
        self._ask = checks._process.ask
        checks._process.ask = self.ask  # type: ignore[method-assign]

    async def ask(self, *frame: bytes) -> bytes:
        self.seen.append([parse(memoryview(part)).records for part in frame[2:]])
        if self._deadly is not None and bytes(self._deadly) in frame[2:]:
            raise asyncio.IncompleteReadError(b"", 4)
        return await self._ask(*frame)


async def test_small_batches_that_wait_are_decoded_together(checks: ValueChecks) -> None:
    await checks.judge(batch(DOUBTFUL), {ALL: SCHEMA}, "a")
    frames = Frames(checks)
    many = [batch(*[DOUBTFUL] * 100, *([BAD] if number == 5 else [])) for number in range(12)]
    verdicts = await asyncio.gather(*(checks.judge(each, {ALL: SCHEMA}, "a") for each in many))
    assert [verdict.count for verdict in verdicts] == [0] * 5 + [1] + [0] * 6
    assert len(frames.seen) < 5
    assert all(sum(records) <= value_checks.TOGETHER_RECORDS for records in frames.seen)


async def test_a_client_waits_for_one_frame_of_another_client(checks: ValueChecks) -> None:
    await checks.judge(batch(DOUBTFUL), {ALL: SCHEMA}, "a")
    frames = Frames(checks)
    large = [batch(*[DOUBTFUL] * 600) for _ in range(4)]
    busy = [asyncio.create_task(checks.judge(each, {ALL: SCHEMA}, "a")) for each in large]
    await asyncio.sleep(0)
    assert (await checks.judge(batch(BAD), {ALL: SCHEMA}, "b")).count == 1
    assert frames.seen[:2] in ([[600], [600]], [[600], [1]])
    assert sum(records == [600] for records in frames.seen[:3]) <= 2
    await asyncio.gather(*busy)


async def test_only_the_batch_that_ends_the_process_fails(checks: ValueChecks) -> None:
    deadly = batch(DOUBTFUL, DOUBTFUL)
    Frames(checks, deadly.data)
    batches = [batch(DOUBTFUL), deadly, batch(BAD)]
    judged = (checks.judge(each, {ALL: SCHEMA}, "a") for each in batches)
    first, second, third = await asyncio.gather(*judged, return_exceptions=True)
    assert first == Verdict()
    assert isinstance(second, InvalidBatchError)
    assert second.code is ErrorCode.kafka_storage_error
    assert isinstance(third, Verdict)
    assert third.count == 1


async def test_batches_that_wait_when_the_broker_ends_are_sent_again(checks: ValueChecks) -> None:
    await checks.judge(batch(DOUBTFUL), {ALL: SCHEMA}, "a")
    large = batch(*[DOUBTFUL] * 600)
    waiting = [asyncio.create_task(checks.judge(large, {ALL: SCHEMA}, "a")) for _ in range(3)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert checks._work is not None
    assert not checks._work.done()
    with structlog.testing.capture_logs() as logged:
        checks.close()
        for each in waiting:
            with pytest.raises(InvalidBatchError, match="the broker stopped before") as error:
                await each
            assert error.value.code is ErrorCode.kafka_storage_error
    assert logged == []


async def test_the_process_outlives_a_signal_to_all_processes_of_the_broker(checks: ValueChecks) -> None:
    await checks.judge(batch(DOUBTFUL), {ALL: SCHEMA}, "a")
    [process] = _value_processes()
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process, number)
    with structlog.testing.capture_logs() as logged:
        assert (await checks.judge(batch(BAD), {ALL: SCHEMA}, "a")).count == 1
    assert logged == []
    assert _value_processes() == [process]


async def test_batches_that_are_decoded_again_when_the_broker_ends_are_sent_again(checks: ValueChecks) -> None:
    await checks.judge(batch(DOUBTFUL), {ALL: SCHEMA}, "a")
    asked: list[int] = []

    async def end(*frame: bytes) -> bytes:
        asked.append(len(frame) - 2)
        if len(asked) > 1:
            await asyncio.sleep(60)
        raise asyncio.IncompleteReadError(b"", 4)

    assert checks._process is not None
    checks._process.ask = end  # type: ignore[method-assign]
    waiting = [asyncio.create_task(checks.judge(batch(DOUBTFUL), {ALL: SCHEMA}, "a")) for _ in range(3)]
    while len(asked) < 2:
        await asyncio.sleep(0.01)
    assert asked == [3, 1]
    checks.close()
    for each in waiting:
        with pytest.raises(InvalidBatchError) as error:
            await asyncio.wait_for(each, 5)
        assert error.value.code is ErrorCode.kafka_storage_error


async def test_the_batch_of_a_client_that_disconnects_delays_no_other(checks: ValueChecks) -> None:
    await checks.judge(batch(DOUBTFUL), {ALL: SCHEMA}, "a")
    gone = [asyncio.create_task(checks.judge(batch(*[DOUBTFUL] * 600), {ALL: SCHEMA}, "a")) for _ in range(3)]
    await asyncio.sleep(0)
    for each in gone:
        each.cancel()
    assert (await checks.judge(batch(BAD), {ALL: SCHEMA}, "a")).count == 1
    assert has_process(checks)


def test_a_check_that_never_knows_is_asked_less_often() -> None:
    async def scenario() -> None:
        quick = QuickValues(Decoder(None))
        schemas = {ALL: ("one", JSON.model_dump_json())}
        assert not any([await quick.accept(batch(DOUBTFUL), schemas, "a") for _ in range(20)])
        found = [await quick.accept(batch(GOOD), schemas, "a") for _ in range(20)]
        first = found.index(True)
        assert 0 < first < 16
        assert all(found[first:])

    run(scenario())


def test_schemas_in_use_keep_their_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick_values, "MOST_KEPT", 2)

    async def scenario() -> None:
        quick = QuickValues(Decoder(None))

        async def accepted(name: str) -> bool:
            return await quick.accept(batch(GOOD), {ALL: (name, JSON.model_dump_json())}, "a")

        assert [await accepted(name) for name in "abcab"] == [True, True, False, True, True]
        await asyncio.sleep(quick_values.IDLE_SECONDS)
        assert [await accepted(name) for name in "cba"] == [True, True, False]

    run(scenario())


def test_schemas_that_are_wrong_or_very_large_have_no_quick_check(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        quick = QuickValues(Decoder(None))
        wrong = RecordSchema(format="Avro", text="{").model_dump_json()
        assert not await quick.accept(batch(GOOD), {ALL: ("wrong", wrong)}, "a")
        monkeypatch.setattr(quick_values, "MOST_TEXT", 10)
        assert not await quick.accept(batch(GOOD), {ALL: ("large", JSON.model_dump_json())}, "a")

    run(scenario())


def test_values_are_checked_a_few_kilobytes_at_a_time() -> None:
    async def scenario() -> None:
        fields = (Column(name="id", type="long"), Column(name="text", type="string"))
        schemas = {ALL: ("one", JSON.model_copy(update={"fields": fields}).model_dump_json())}
        quick = QuickValues(Decoder(None))
        value = b'{"text": "' + b"x" * 50_000 + b'"}'
        assert not await quick.accept(batch(b'{"text": "' + b"x" * 200_000 + b'"}'), schemas, "a")
        accepted, turns = await counting_turns(quick.accept(batch(*[value] * 5), schemas, "a"))
        assert accepted
        assert turns == 2

    run(scenario())


def _value_processes() -> list[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(child) for child in children if b"value_process" in Path(f"/proc/{child}/cmdline").read_bytes()]


async def test_a_hostile_value_takes_little_memory(checks: ValueChecks) -> None:
    await checks.judge(batch(DOUBTFUL), {ALL: SCHEMA}, "10.0.0.1")
    [process] = _value_processes()
    many = b'{"id": 1, "other": [' + b"1," * (value_checks.MOST_BYTES // 2 - 50) + b"1]}"
    with suppress(InvalidBatchError):
        await checks.judge(batch(many), {ALL: SCHEMA}, "10.0.0.1")
    assert (await checks.judge(batch(GOOD, BAD), {ALL: SCHEMA}, "10.0.0.1")).count == 1
    [peak] = re.findall(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert int(peak) < 220_000


def test_metrics_count_records_that_do_not_fit() -> None:
    counters = [counter.labels("orders") for counter in (metrics.GATED_RECORDS, metrics.REFUSED_RECORDS)]
    before = [counter._value.get() for counter in counters]
    run(answered(inline(), FakeSubjects(), values(GOOD, BAD, BAD)))
    assert [counter._value.get() - start for counter, start in zip(counters, before, strict=True)] == [3, 2]


def test_an_access_error_of_the_registry_is_an_outage() -> None:
    registry = with_schemas(AVRO=json.dumps(AVRO))
    registry.problem = RegistryAwayError("no answer")
    [answer] = run(answered(by_registry(), registry, values(framed(7, b"\x02"))))
    assert answer.error_code is ErrorCode.kafka_storage_error
