"""The audit log: which lines it has, and their bounds."""

from typing import Any

from structlog.testing import capture_logs

from firn_broker.access.audit import CHANGES, EVENTS, EVENTS_OF_SOURCE, REPEAT_SECONDS, Audit
from firn_broker.access_types import Caller, Operation, ResourceType
from tests.fakes.clock import FakeClock

ALICE = Caller("User:alice", "10.0.0.1")
TOPIC = ResourceType.TOPIC


def lines(audit: Audit, *denied: str, caller: Caller = ALICE) -> list[Any]:
    with capture_logs() as written:
        for name in denied:
            audit.denied(caller, Operation.DESCRIBE_CONFIGS, TOPIC, name)
    return list(written)


def test_a_denial_names_principal_address_operation_and_resource() -> None:
    assert lines(Audit(FakeClock()), "orders") == [
        {
            "event": "access denied", "log_level": "info", "audit": True, "principal": "User:alice", "address": "10.0.0.1",
            "operation": "DescribeConfigs", "resource": "Topic:orders",
        }
    ]  # fmt: skip


def test_repetitions_have_one_line_a_minute_with_their_count() -> None:
    clock = FakeClock()
    audit = Audit(clock)
    assert len(lines(audit, *["orders"] * 10)) == 1
    clock.advance(REPEAT_SECONDS)
    (repeated,) = lines(audit, *["orders"] * 3)
    assert (repeated["resource"], repeated["count"]) == ("Topic:orders", 9)
    clock.advance(REPEAT_SECONDS)
    (repeated,) = lines(audit, "orders")
    assert repeated["count"] == 3
    clock.advance(REPEAT_SECONDS)
    assert [line["count"] for line in lines(audit, "orders")] == [1]
    clock.advance(2 * REPEAT_SECONDS)
    audit._denials.flush()
    clock.advance(2 * REPEAT_SECONDS)
    assert [line.get("count") for line in lines(audit, "orders")] == [None]


def test_one_principal_cannot_fill_the_log() -> None:
    clock = FakeClock()
    audit = Audit(clock)
    written = lines(audit, *(f"topic-{number}" for number in range(500)))
    assert len(written) == EVENTS_OF_SOURCE + 1
    assert written[-1] == {"event": "access denied", "log_level": "info", "audit": True, "principal": "User:alice"}
    clock.advance(REPEAT_SECONDS)
    bob = Caller("User:bob", "10.0.0.2")
    counted, new = lines(audit, "orders", caller=bob)
    assert (counted["principal"], counted["count"]) == ("User:alice", 500 - EVENTS_OF_SOURCE - 1)
    assert new["principal"] == "User:bob"


def test_the_log_and_its_memory_are_bounded() -> None:
    clock = FakeClock()
    audit = Audit(clock)
    with capture_logs() as written:
        for number in range(3 * EVENTS):
            audit.failed(f"10.0.{number >> 8}.{number & 255}", "SCRAM-SHA-512", "r" * 10_000)
            audit.changed(ALICE, "CreateTopics", TOPIC, "n" * 10_000)
    assert len(written) == EVENTS + CHANGES
    assert max(len(str(line)) for line in written) < 600
    assert len(audit._failures._events) == EVENTS
    clock.advance(REPEAT_SECONDS)
    with capture_logs() as written:
        audit.failed("10.1.0.0", "PLAIN", "wrong password")
        audit.changed(ALICE, "CreateTopics", TOPIC, "orders")
    assert [(line["event"], line["address"]) for line in written] == [
        ("authentication failed", "10.1.0.0"), ("changed", "10.0.0.1"),
    ]  # fmt: skip
    assert len(audit._failures._events) == 1
    assert len(audit._failures._of_source) == 1
