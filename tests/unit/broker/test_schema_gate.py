"""Topics with a gate accept only values with a schema id of their subject."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import AccessDeniedError, UnavailableError
from firn.records.cursor import MalformedError
from firn.schema_registry import RegistryAwayError
from firn_broker import metrics
from firn_broker.network.router import Client
from firn_broker.topics import gate, quick_values
from firn_broker.topics.value_checks import MOST_NAMED
from tests.fakes.schemas import FakeSubjects
from tests.fakes.virtual_time import run
from tests.unit.broker import batches
from tests.unit.broker.test_contents import CODECS, record
from tests.unit.broker.test_whole_brokers import fetch, produce, produce_answer
from tests.unit.broker.whole import Asked, Silence, broker, create, settle, zero

OURS, LATER, OTHER, MISSING = 7, 8, 100, 101
AWAY = RegistryAwayError("schema registry main: no answer from http://registry; check the registry")


def at_a_gate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test in virtual time, with a broker whose topic ``orders`` has a gate and whose topic ``free`` has none."""

    def in_virtual_time(**parameters: Any) -> None:
        run(_with_broker(test, parameters))

    given = inspect.signature(test).parameters
    in_virtual_time.__name__ = test.__name__
    in_virtual_time.__signature__ = inspect.Signature(list(given.values())[2:])  # type: ignore[attr-defined]
    return in_virtual_time


async def _with_broker(test: Callable[..., Awaitable[None]], parameters: Mapping[str, Any]) -> None:
    registry = FakeSubjects()
    registry.registered = {OURS: {"orders-value", "x"}, OTHER: {"refunds-value"}}
    async with broker(registries=registry) as asked:
        await create(asked, "orders", firn_schema_gate="Id", firn_schema_registry="main")
        await create(asked, "free")
        await test(asked, registry, **parameters)


def framed(number: int, rest: bytes = b"rest") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + rest


def values(*of: bytes | int | None, codec: str = "none", sequence: int = -1) -> memoryview:
    """Return a batch with these values; a number is a value with this schema id."""
    number, compress = CODECS[codec]
    body = b"".join(
        record(delta, value=framed(value) if isinstance(value, int) else value) for delta, value in enumerate(of)
    )
    return raw_batch(compress(body), len(of), number, sequence)


def raw_batch(body: bytes, count: int, codec: int = 0, sequence: int = -1) -> memoryview:
    producer = 5 if sequence >= 0 else -1
    return batches.raw(
        count, body=body, producer=producer, epoch=0 if sequence >= 0 else -1, sequence=sequence, attributes=codec
    )


async def end_of(asked: Asked, topic: str = "orders") -> int:
    end: int = (await fetch(asked, topic, 0, 0, wait=0)).high_watermark
    return end


@pytest.mark.parametrize("codec", CODECS)
@at_a_gate
async def test_values_with_ids_of_the_subject_and_tombstones_are_accepted(
    asked: Asked, registry: FakeSubjects, codec: str
) -> None:
    answer = await produce(asked, "orders", 0, values(OURS, None, OURS, codec=codec))
    assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 0)
    assert await end_of(asked) == 3


@pytest.mark.parametrize("version", [8, 9, 11])
@at_a_gate
async def test_the_answer_names_each_record_without_an_id_of_the_subject(
    asked: Asked, registry: FakeSubjects, version: int
) -> None:
    batch = values(
        OURS, b"{}", OTHER, None, MISSING, b"", OURS, framed(OURS, b"")[:4], b"\0\xff\xff\xff\xff", codec="zstd"
    )
    answer = await produce(asked, "orders", 0, batch, version)
    assert answer.error_code is ErrorCode.invalid_record
    # The reasons that need no registry are found first.
    assert [error.batch_index for error in answer.record_errors] == [1, 5, 7, 8]
    assert all("does not begin with a byte 0" in error.batch_index_error_message for error in answer.record_errors)
    assert answer.error_message.startswith("4 of 9 records have no schema of subject orders-value; record 1: the value")
    answer = await produce(asked, "orders", 0, values(OURS, OTHER, MISSING), version)
    assert [error.batch_index for error in answer.record_errors] == [1, 2]
    assert "no schema with id 101 in subject orders-value" in answer.record_errors[1].batch_index_error_message
    assert await end_of(asked) == 0


@at_a_gate
async def test_older_versions_get_the_error_without_indexes(asked: Asked, registry: FakeSubjects) -> None:
    answer = await produce(asked, "orders", 0, values(MISSING), 7)
    assert answer.error_code is ErrorCode.invalid_record


@at_a_gate
async def test_a_refused_batch_does_not_affect_other_partitions_and_topics(
    asked: Asked, registry: FakeSubjects
) -> None:
    data = [
        {"name": "orders", "partition_data": [{"index": 0, "records": bytes(values(MISSING))}]},
        {"name": "free", "partition_data": [{"index": 0, "records": bytes(values(MISSING, b"any"))}]},
    ]
    answer = await asked.ask(0, 9, acks=-1, timeout=zero(), topic_data=data)
    errors = [topic.partition_responses[0].error_code for topic in answer.responses]
    assert errors == [ErrorCode.invalid_record, ErrorCode.none]


@at_a_gate
async def test_a_rejection_with_acks_0_closes_the_connection(asked: Asked, registry: FakeSubjects) -> None:
    with pytest.raises(Silence):
        await produce_answer(asked, "orders", 0, values(OURS), acks=0)
    with pytest.raises(MalformedError):
        await produce_answer(asked, "orders", 0, values(MISSING), acks=0)


@at_a_gate
async def test_records_that_the_broker_cannot_decode_are_refused(asked: Asked, registry: FakeSubjects) -> None:
    for batch in (raw_batch(b"x" * 20, 2), raw_batch(b"x" * 20, 2, 4)):
        answer = await produce(asked, "orders", 0, batch)
        assert answer.error_code is ErrorCode.invalid_record
        assert "the broker checks the values of topic orders, and cannot read the batch" in answer.error_message


@at_a_gate
async def test_a_known_id_is_asked_for_once_and_needs_no_registry_later(asked: Asked, registry: FakeSubjects) -> None:
    await produce(asked, "orders", 0, values(OURS))
    registry.problem = AWAY
    registry.registered.clear()
    await asyncio.sleep(100)
    assert not (await produce(asked, "orders", 0, values(OURS))).error_code
    assert registry.asked == [OURS]


@at_a_gate
async def test_an_absent_id_is_asked_for_again_after_ten_seconds(asked: Asked, registry: FakeSubjects) -> None:
    for _ in range(3):
        assert (await produce(asked, "orders", 0, values(LATER))).error_code is ErrorCode.invalid_record
    assert registry.asked == [LATER, LATER]
    registry.registered[LATER] = {"orders-value"}
    await asyncio.sleep(gate.AGAIN_SECONDS + 0.1)
    assert not (await produce(asked, "orders", 0, values(LATER))).error_code


@at_a_gate
async def test_a_registry_may_learn_of_a_new_id_with_a_delay(asked: Asked, registry: FakeSubjects) -> None:
    waiting = asyncio.create_task(produce(asked, "orders", 0, values(LATER)))
    await asyncio.sleep(gate.LATE_SECONDS / 2)
    assert registry.asked == [LATER]
    registry.registered[LATER] = {"orders-value"}
    assert not (await waiting).error_code


@pytest.mark.parametrize(
    "problem",
    [AWAY, AccessDeniedError("rejects the credentials"), UnavailableError("HTTP 500"), RuntimeError("bug")],
    ids=repr,
)
@at_a_gate
async def test_while_the_registry_does_not_answer_only_unknown_ids_wait(
    asked: Asked, registry: FakeSubjects, problem: Any
) -> None:
    registry.registered[LATER] = {"orders-value"}
    await produce(asked, "orders", 0, values(OURS))
    registry.problem = problem
    for _ in range(3):
        answer = await produce(asked, "orders", 0, values(LATER))
        assert answer.error_code is ErrorCode.kafka_storage_error
        assert str(problem) in answer.error_message
        assert not (await produce(asked, "orders", 0, values(OURS))).error_code
    assert registry.asked == [OURS, LATER]
    registry.problem = None
    await asyncio.sleep(gate.RETRY_SECONDS + 0.1)
    assert not (await produce(asked, "orders", 0, values(LATER))).error_code


@at_a_gate
async def test_a_slow_registry_holds_only_the_first_request_with_an_unknown_id(
    asked: Asked, registry: FakeSubjects
) -> None:
    registry.registered[LATER] = {"orders-value"}
    registry.answering.clear()
    started = asyncio.get_running_loop().time()
    waiting = asyncio.create_task(produce(asked, "orders", 0, values(LATER)))
    await settle()
    other = Asked(asked.broker)
    assert not (await produce(other, "free", 0, values(b"any"))).error_code
    assert not waiting.done()
    assert (await waiting).error_code is ErrorCode.kafka_storage_error
    assert asyncio.get_running_loop().time() - started < gate.HOLD_SECONDS + 1
    started = asyncio.get_running_loop().time()
    assert (await produce(asked, "orders", 0, values(LATER))).error_code is ErrorCode.kafka_storage_error
    assert asyncio.get_running_loop().time() == started
    registry.answering.set()
    await settle()
    assert not (await produce(asked, "orders", 0, values(LATER))).error_code
    assert registry.asked == [LATER]


@at_a_gate
async def test_requests_that_need_one_id_share_its_lookup(asked: Asked, registry: FakeSubjects) -> None:
    registry.answering.clear()
    requests = [asyncio.create_task(produce(Asked(asked.broker), "orders", 0, values(OURS))) for _ in range(5)]
    await settle()
    registry.answering.set()
    answers = await asyncio.gather(*requests)
    assert not any(answer.error_code for answer in answers)
    assert registry.asked == [OURS]


@at_a_gate
async def test_a_client_that_leaves_takes_no_lookup_away(asked: Asked, registry: FakeSubjects) -> None:
    registry.answering.clear()
    leaving = asyncio.create_task(produce(asked, "orders", 0, values(OURS)))
    await settle()
    leaving.cancel()
    registry.answering.set()
    await settle()
    assert not (await produce(Asked(asked.broker), "orders", 0, values(OURS))).error_code
    assert registry.asked == [OURS]


@at_a_gate
async def test_a_batch_with_many_new_ids_needs_several_attempts(asked: Asked, registry: FakeSubjects) -> None:
    many = range(200, 200 + gate.MOST_LOOKUPS * 2)
    registry.registered |= {number: {"orders-value"} for number in many}
    assert (await produce(asked, "orders", 0, values(*many))).error_code is ErrorCode.kafka_storage_error
    assert not (await produce(asked, "orders", 0, values(*many))).error_code


def _many_ids_of_one_address(asked: Asked, connections: int) -> list[asyncio.Task[Any]]:
    """Send a batch with unknown ids on each of many connections of an address."""
    numbers = [range(first, first + gate.MOST_LOOKUPS) for first in range(1000, 1000 + connections * 100, 100)]
    return [
        asyncio.create_task(
            produce(Asked(asked.broker, Client(f"10.0.0.9:{each[0]}", "many")), "orders", 0, values(*each))
        )
        for each in numbers
    ]


@at_a_gate
async def test_many_ids_of_one_address_leave_room_for_the_ids_of_others(asked: Asked, registry: FakeSubjects) -> None:
    registry.registered[LATER] = {"orders-value"}
    registry.answering.clear()
    many = _many_ids_of_one_address(asked, 2 * gate.MOST_PENDING // gate.MOST_LOOKUPS)
    await settle()
    other = asyncio.create_task(produce(asked, "orders", 0, values(LATER)))
    await settle()
    registry.answering.set()
    assert not (await other).error_code
    answers = await asyncio.gather(*many)
    beyond = [answer for answer in answers if "ids of clients of this address" in (answer.error_message or "")]
    assert {answer.error_code for answer in beyond} == {ErrorCode.kafka_storage_error}
    assert not asked.broker.gate._pending_of


@at_a_gate
async def test_a_wait_for_a_turn_is_no_failure_of_the_registry(asked: Asked, registry: FakeSubjects) -> None:
    registry.registered[LATER] = {"orders-value"}
    answer_at_once = registry.subjects

    async def subjects(name: str, number: int) -> frozenset[str]:
        await asyncio.sleep(0.1)
        return await answer_at_once(name, number)

    registry.subjects = subjects  # type: ignore[assignment, method-assign]
    answers = await asyncio.gather(*_many_ids_of_one_address(asked, 4))
    assert {answer.error_code for answer in answers} == {ErrorCode.kafka_storage_error}
    assert all("took more than 2 s" in answer.error_message for answer in answers)
    assert not (await produce(asked, "orders", 0, values(LATER))).error_code


@at_a_gate
async def test_later_batches_of_a_producer_wait_until_the_registry_answers(
    asked: Asked, registry: FakeSubjects
) -> None:
    registry.registered[LATER] = {"orders-value"}
    await produce(asked, "orders", 0, values(OURS))
    registry.problem = AWAY
    for _ in range(20):  # more than a client has in flight
        for batch in (values(LATER, LATER, sequence=0), values(OURS, sequence=2)):
            assert (await produce(asked, "orders", 0, batch)).error_code is ErrorCode.kafka_storage_error
    registry.problem = None
    await asyncio.sleep(gate.RETRY_SECONDS + 0.1)
    for batch, offset in ((values(LATER, LATER, sequence=0), 1), (values(OURS, sequence=2), 3)):
        answer = await produce(asked, "orders", 0, batch)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, offset)


@at_a_gate
async def test_a_refused_batch_does_not_advance_the_sequence_of_its_producer(
    asked: Asked, registry: FakeSubjects
) -> None:
    assert not (await produce(asked, "orders", 0, values(OURS, sequence=0))).error_code
    assert (await produce(asked, "orders", 0, values(MISSING, sequence=1))).error_code is ErrorCode.invalid_record
    assert not (await produce(asked, "orders", 0, values(OURS, sequence=1))).error_code
    assert await end_of(asked) == 2


@at_a_gate
async def test_the_gate_follows_the_configs_of_the_topic(asked: Asked, registry: FakeSubjects) -> None:
    assert (await produce(asked, "orders", 0, values(OTHER))).error_code is ErrorCode.invalid_record
    await alter(asked, {"firn.schema.subject": "refunds-value"})
    assert not (await produce(asked, "orders", 0, values(OTHER))).error_code
    await alter(asked, {"firn.schema.gate": "None"})
    assert not (await produce(asked, "orders", 0, values(b"any"))).error_code


async def alter(asked: Asked, configs: dict[str, str], code: ErrorCode = ErrorCode.none) -> str | None:
    changes = [{"name": name, "config_operation": 0, "value": value} for name, value in configs.items()]
    answer = await asked.ask(
        44, 1, resources=[{"resource_type": 2, "resource_name": "orders", "configs": changes}], validate_only=False
    )
    assert answer.responses[0].error_code is code, answer.responses[0].error_message
    message: str | None = answer.responses[0].error_message
    return message


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"firn.schema.gate": "Any"}, "it has to be one of None, Id, Decode"),
        ({"firn.schema.contract": "{}"}, "a schema as the operator writes it"),
        ({"firn.schema.registry": "Main!"}, "the name of a schema registry"),
        ({"firn.schema.registry": "other"}, "one of the broker's registries, which are: main; name one of them"),
        ({"firn.schema.registry": ""}, "one of the broker's registries"),
        ({"firn.schema.subject": "a\nb"}, "the name of a subject"),
    ],
)
@at_a_gate
async def test_configs_of_a_gate_are_checked(
    asked: Asked, registry: FakeSubjects, configs: dict[str, str], message: str
) -> None:
    assert message in (await alter(asked, configs, ErrorCode.invalid_config) or "")


@at_a_gate
async def test_clients_see_the_configs_of_the_gate(asked: Asked, registry: FakeSubjects) -> None:
    answer = await asked.ask(
        32, 4, resources=[{"resource_type": 2, "resource_name": "orders", "configuration_keys": None}],
        include_synonyms=False, include_documentation=False,
    )  # fmt: skip
    found = {config.name: config.value for config in answer.results[0].configs if config.name.startswith("firn.")}
    assert found == {
        "firn.history": "Copy",
        "firn.schema.contract": "",
        "firn.schema.gate": "Id",
        "firn.schema.registry": "main",
        "firn.schema.subject": "",
    }


@at_a_gate
async def test_metrics_count_checked_and_refused_records_of_a_topic(asked: Asked, registry: FakeSubjects) -> None:
    counters = [counter.labels("orders") for counter in (metrics.GATED_RECORDS, metrics.REFUSED_RECORDS)]
    before = [counter._value.get() for counter in counters]
    await produce(asked, "orders", 0, values(OURS, OURS))
    await produce(asked, "orders", 0, values(OURS, MISSING, MISSING))
    assert [counter._value.get() - start for counter, start in zip(counters, before, strict=True)] == [5, 2]


def test_large_batches_are_read_outside_the_event_loop() -> None:
    chance, registry = Random(1), FakeSubjects()
    registry.registered = {OURS: {"orders-value"}}
    many = [framed(OURS, chance.randbytes(3)) for _ in range(quick_values.INLINE_RECORDS + 1)]
    large = [framed(OURS, bytes(quick_values.INLINE_BYTES))]

    async def scenario() -> None:
        with ThreadPoolExecutor(1) as thread:
            async with broker(registries=registry, decoder=thread) as asked:
                await create(asked, "orders", firn_schema_gate="Id", firn_schema_registry="main")
                assert not (await produce(asked, "orders", 0, values(*many))).error_code
                assert not (await produce(asked, "orders", 0, values(*large, codec="lz4"))).error_code
                answer = await produce(asked, "orders", 0, values(*many, b"bad", codec="zstd"))
                assert [error.batch_index for error in answer.record_errors] == [len(many)]

    asyncio.run(scenario())


@at_a_gate
async def test_an_answer_names_at_most_a_thousand_records(asked: Asked, registry: FakeSubjects) -> None:
    answer = await produce(asked, "orders", 0, values(*[b""] * (MOST_NAMED + 50)))
    assert len(answer.record_errors) == MOST_NAMED
    assert answer.error_message.startswith("1050 of 1050 records")


@at_a_gate
async def test_the_batches_of_a_request_share_the_names_of_records(asked: Asked, registry: FakeSubjects) -> None:
    await create(asked, "wide", 3, firn_schema_gate="Id", firn_schema_registry="main")
    batch = bytes(values(*[b""] * (MOST_NAMED // 2 + 10)))
    data = [{"name": "wide", "partition_data": [{"index": index, "records": batch} for index in range(4)]}]
    answer = await asked.ask(0, 9, acks=-1, timeout=zero(), topic_data=data)
    found = answer.responses[0].partition_responses
    assert [len(each.record_errors) for each in found] == [510, 490, 0, 0]
    assert [each.error_code for each in found] == [
        *[ErrorCode.invalid_record] * 3,
        ErrorCode.unknown_topic_or_partition,
    ]
    assert found[2].error_message.startswith("510 of 510 records")
