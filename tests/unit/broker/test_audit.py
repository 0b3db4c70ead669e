"""The audit log: which lines it has, and their bounds."""

import asyncio
from collections import Counter
from typing import Any

from structlog.testing import capture_logs

from firn_broker.access.audit import EVENTS, EVENTS_OF_SOURCE, REPEAT_SECONDS, Audit
from firn_broker.access.changes import LINES, NAMES, NAMES_OF_LINE, NAMES_OF_SUM, PERIOD_SECONDS, Attempt
from firn_broker.access_types import Caller, Operation, ResourceType
from tests.fakes.clock import FakeClock

ALICE = Caller("User:alice", "10.0.0.1")
TOPIC = ResourceType.TOPIC


def lines(audit: Audit, *denied: str, caller: Caller = ALICE) -> list[Any]:
    with capture_logs() as written:
        for name in denied:
            audit.denied(caller, Operation.DESCRIBE_CONFIGS, TOPIC, name)
    return list(written)


def change(audit: Audit, operation: str, *names: str, caller: Caller = ALICE, unknown: bool = False) -> None:
    changes = audit.changes(caller, operation)
    changes.note(Attempt([(TOPIC, name) for name in names]), unknown=unknown)
    changes.write()


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
            change(audit, "CreateTopics", "n" * 10_000)
    assert len(written) == EVENTS + LINES
    assert max(len(str(line)) for line in written) < 600
    assert len(audit._failures._events) == EVENTS
    clock.advance(REPEAT_SECONDS)
    with capture_logs() as written:
        audit.failed("10.1.0.0", "PLAIN", "wrong password")
        change(audit, "CreateTopics", "orders")
    assert [(line["event"], line["address"], line.get("requests")) for line in written] == [
        ("authentication failed", "10.1.0.0", None), ("changed", "10.0.0.1", 3 * EVENTS - LINES),
        ("changed", "10.0.0.1", None),
    ]  # fmt: skip
    assert len(audit._failures._events) == 1
    assert len(audit._failures._of_source) == 1


def test_a_request_has_one_line_with_the_number_of_its_changes_and_their_names() -> None:
    audit = Audit(FakeClock())
    changes = audit.changes(ALICE, "CreateAcls")
    with capture_logs() as written:
        changes.note(Attempt([(TOPIC, "orders"), (TOPIC, "carts"), (ResourceType.GROUP, "readers")]))
        changes.note(Attempt([(TOPIC, "lost")]), unknown=True)
        changes.write()
    common = {
        "log_level": "info", "audit": True, "principal": "User:alice", "address": "10.0.0.1", "operation": "CreateAcls",
    }  # fmt: skip
    resources = ["Topic:orders", "Topic:carts", "Group:readers"]
    assert written == [
        {"event": "changed", "counts": {"Topic": 2, "Group": 1}, "resources": resources, **common},
        {"event": "change with an unknown outcome", "counts": {"Topic": 1}, "resources": ["Topic:lost"], **common},
    ]


def test_further_lines_have_the_other_names_of_a_large_request() -> None:
    audit, number = Audit(FakeClock()), 4 * NAMES_OF_LINE
    with capture_logs() as written:
        change(audit, "CreateAcls", *(f"topic-{each}" for each in range(number)))
    assert written[0]["counts"] == {"Topic": number}
    assert [line.get("part") for line in written] == [None, 2, 3, 4]
    assert {name for line in written for name in line["resources"]} == {f"Topic:topic-{each}" for each in range(number)}
    with capture_logs() as written:
        change(audit, "DeleteAcls", *(f"topic-{each}" for each in range(NAMES + 5)), *["n" * 10_000] * 3)
    assert written[0]["counts"] == {"Topic": NAMES + 8}
    assert written[0]["unnamed"] == 8


def test_the_names_of_a_line_have_a_bound_together() -> None:
    with capture_logs() as written:
        change(Audit(FakeClock()), "CreateAcls", *(f"{each}-{'n' * 10_000}" for each in range(NAMES_OF_LINE)))
    assert max(len(str(line)) for line in written) < 9_000
    assert sum(len(line["resources"]) for line in written) == NAMES_OF_LINE


def test_requests_beyond_the_bound_have_one_line_for_each_operation_and_outcome() -> None:
    clock = FakeClock()
    audit = Audit(clock)
    elsewhere = Caller("User:alice", "10.0.0.9")
    with capture_logs() as written:
        for number in range(LINES):
            change(audit, "AlterConfigs", f"topic-{number}")
        for number in range(NAMES_OF_SUM + 50):
            change(audit, "CreateTopics", f"topic-{number}", caller=elsewhere if number else ALICE)
        change(audit, "DeleteTopics", "orders", unknown=True)
    assert len(written) == LINES
    clock.advance(PERIOD_SECONDS)
    with capture_logs() as written:
        audit._changes.flush()
    sums = [(line["event"], line["operation"], line["requests"], line["counts"]["Topic"]) for line in written]
    assert sums == [
        ("changed", "CreateTopics", NAMES_OF_SUM + 50, NAMES_OF_SUM + 50),
        ("change with an unknown outcome", "DeleteTopics", 1, 1),
    ]
    assert (written[0]["address"], written[0]["unnamed"]) == ("10.0.0.1, 10.0.0.9", 50)
    assert not audit._changes._principals


async def test_the_sum_of_further_requests_is_written_when_the_broker_stops() -> None:
    audit = Audit(FakeClock())
    keeping = asyncio.create_task(audit.keep())
    await asyncio.sleep(0)
    with capture_logs() as written:
        for _ in range(LINES + 2):
            change(audit, "AlterConfigs", "orders")
        keeping.cancel()
        await asyncio.wait((keeping,))
    assert (len(written), written[-1]["requests"]) == (LINES + 1, 2)


def test_connections_without_authentication_cannot_fill_the_log() -> None:
    audit = Audit(FakeClock())
    with capture_logs() as written:
        for number in range(1_000):
            address = f"10.0.0.{number % 10}"
            audit.handshake_failed(address, "WRONG_VERSION_NUMBER")
            audit.refused(address, "too many connections")
            audit.closed(address, "", f"a request has {number} bytes", authenticated=False)
    by_event = Counter(line["event"] for line in written)
    assert by_event == {
        "TLS handshake failed": 10, "connection refused": 10, "connection closed": 10 * (EVENTS_OF_SOURCE + 1),
    }  # fmt: skip
    assert all(line["audit"] for line in written)


def test_the_end_of_an_authenticated_connection_is_not_in_the_audit_log() -> None:
    with capture_logs() as written:
        Audit(FakeClock()).closed("10.0.0.1", "reader", "idle", authenticated=True)
    assert written == [
        {"event": "connection closed", "log_level": "info", "address": "10.0.0.1", "client": "reader", "reason": "idle"}
    ]


def test_changes_of_one_principal_hide_none_of_another() -> None:
    audit = Audit(FakeClock())
    with capture_logs() as written:
        for number in range(2 * LINES):
            change(audit, "AlterConfigs", f"t{number}", caller=Caller("User:noise", "10.0.0.1"))
        change(audit, "DeleteTopics", "orders", caller=Caller("User:thief", "10.0.0.2"))
    assert [line["principal"] for line in written].count("User:noise") == LINES
    assert written[-1]["principal"] == "User:thief"
