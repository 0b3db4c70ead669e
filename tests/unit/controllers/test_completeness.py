"""The condition Complete: a loss is reported until it is acknowledged. The message of Fresh warns before a loss."""

from dataclasses import replace
from typing import Any

import pytest

from firn.model import names
from firn.model.conditions import ConditionType
from firn.model.progress import Cause, Gap, Losses
from firn_controllers.conditions.announcements import EventReason, transitions
from firn_controllers.iceberg_topic import status
from tests import gen
from tests.unit.controllers.test_status import HEALTHY, conditions_of, documented, landing, message

NONE = Losses()
GAP = Gap(partition=0, start=100, end=200, cause=Cause.DELETED)
LOST = NONE.plus([GAP], "id-1", "3fa9c1d2-0000", 0.0)


def reporting(losses: Losses | None, **changes: Any) -> Any:
    return landing(progress=gen.progress(losses=losses), **changes)


def acknowledging(name: str) -> Any:
    return gen.topic(
        "flights", lambda manifest: manifest["metadata"].update(annotations={names.ACKNOWLEDGE_LOSS: name})
    )


def test_a_topic_without_losses_is_complete() -> None:
    assert conditions_of(reporting(NONE))["Complete"] == ("True", "EveryOffset")


def test_a_loss_is_reported_with_its_ranges_and_does_not_lower_ready() -> None:
    observed = reporting(LOST)
    conditions = conditions_of(observed)
    assert (conditions["Complete"], conditions["Ready"]) == (("False", "RecordsLost"), ("True", "AllReady"))
    text = message(observed, ConditionType.COMPLETE)
    assert "100 offsets are lost: partition 0, offsets 100 to 199" in text
    assert text.endswith("annotate --overwrite itopic flights firn.dev/acknowledge-loss=1-3fa9c1d2")


def test_an_acknowledged_loss_is_no_longer_reported_and_the_next_one_is() -> None:
    manifest = acknowledging(LOST.name)
    assert conditions_of(reporting(LOST, manifest=manifest))["Complete"] == ("True", "EveryOffset")
    more = LOST.plus([GAP.model_copy(update={"start": 300, "end": 301})], "id-1", "3fa9c1d2-0000", 0.0)
    observed = reporting(more, manifest=manifest)
    assert conditions_of(observed)["Complete"] == ("False", "RecordsLost")
    assert message(observed, ConditionType.COMPLETE).startswith("1 offsets are lost: partition 0, offsets 300 to 300")


def test_an_annotation_that_acknowledges_no_loss_of_the_table_is_answered() -> None:
    answer = "annotation firn.dev/acknowledge-loss names no loss of this table"
    assert message(reporting(LOST, manifest=acknowledging("1-deadbeef")), ConditionType.COMPLETE).endswith(answer)
    more = LOST.plus([GAP.model_copy(update={"start": 300, "end": 301})], "id-1", "3fa9c1d2-0000", 0.0)
    assert answer not in message(reporting(more, manifest=acknowledging(LOST.name)), ConditionType.COMPLETE)


@pytest.mark.parametrize("progress", [None, gen.progress(state="BackingOff")], ids=["no report", "no table"])
def test_a_loss_stays_reported_while_the_driver_does_not_know_the_table(progress: Any) -> None:
    before = documented(reporting(LOST))
    silent = landing(manifest=gen.topic("flights", gen.with_status(before)), progress=progress)
    assert conditions_of(silent)["Complete"] == ("False", "RecordsLost")
    assert message(silent, ConditionType.COMPLETE) == message(reporting(LOST), ConditionType.COMPLETE)
    assert conditions_of(landing(progress=progress))["Complete"] == ("Unknown", "Unknown")


REPLACED = Gap(partition=1, start=0, end=7, cause=Cause.REPLACED)
OF_ANOTHER = NONE.plus([REPLACED], "id-1", "77aa0000-0000", 0.0)


def after(earlier: Any, losses: Losses | None, acknowledge: str | None = None) -> Any:
    """Return the state after the status ``earlier``, when the driver reports these losses."""
    manifest = gen.topic("flights", gen.with_status(earlier)) if acknowledge is None else acknowledging(acknowledge)
    manifest["status"] = earlier
    return reporting(losses, manifest=manifest)


def test_a_loss_stays_reported_after_its_table_was_replaced() -> None:
    replaced = after(documented(reporting(LOST)), NONE)
    assert conditions_of(replaced)["Complete"] == ("False", "RecordsLost")
    text = message(replaced, ConditionType.COMPLETE)
    assert "100 offsets are lost: partition 0, offsets 100 to 199" in text
    assert text.endswith("firn.dev/acknowledge-loss=1-3fa9c1d2")
    again = after(documented(replaced), None)
    assert message(again, ConditionType.COMPLETE) == text


def test_a_loss_of_a_replaced_table_is_acknowledged_by_its_name_for_good() -> None:
    replaced = after(documented(reporting(LOST)), NONE, LOST.name)
    assert conditions_of(replaced)["Complete"] == ("True", "EveryOffset")
    assert "losses" not in documented(replaced)
    assert conditions_of(after(documented(replaced), NONE))["Complete"] == ("True", "EveryOffset")


def test_losses_of_several_tables_are_reported_together_and_the_newest_name_acknowledges_all() -> None:
    both = after(documented(reporting(LOST)), OF_ANOTHER)
    text = message(both, ConditionType.COMPLETE)
    assert text.startswith("107 offsets are lost: partition 0, offsets 100 to 199, deleted from the log")
    assert "partition 1, offsets 0 to 6, before the first offset of this table, which replaced an earlier one" in text
    assert text.endswith("firn.dev/acknowledge-loss=1-77aa0000")
    assert [item["name"] for item in documented(both)["losses"]] == ["1-3fa9c1d2", "1-77aa0000"]
    assert conditions_of(after(documented(both), OF_ANOTHER, LOST.name))["Complete"] == ("False", "RecordsLost")
    acknowledged = after(documented(both), OF_ANOTHER, OF_ANOTHER.name)
    assert conditions_of(acknowledged)["Complete"] == ("True", "EveryOffset")
    assert conditions_of(after(documented(acknowledged), NONE, OF_ANOTHER.name))["Complete"][0] == "True"


def test_a_table_without_its_record_of_a_loss_does_not_end_the_report() -> None:
    """A user removed the property, or restored an earlier version of the metadata."""
    known = LOST.plus([GAP.model_copy(update={"start": 300, "end": 301})], "id-1", "3fa9c1d2-0000", 0.0)
    restored = after(documented(reporting(known)), LOST)
    assert message(restored, ConditionType.COMPLETE).startswith("101 offsets are lost")


def test_the_status_lists_a_bounded_number_of_losses_and_forgets_no_offset() -> None:
    state = documented(reporting(LOST))
    for number in range(20):
        state = documented(after(state, NONE.plus([REPLACED], "id-1", f"{number:08}-0000", 0.0)))
    assert len(state["losses"]) == 8
    assert sum(item["offsets"] for item in state["losses"]) == 100 + 20 * 7


def test_a_loss_is_an_event() -> None:
    [event] = transitions(documented(reporting(NONE)), documented(reporting(LOST)))
    assert (event.type, event.reason) == ("Warning", EventReason.RECORDS_LOST)


def test_a_later_loss_is_an_event_too() -> None:
    more = LOST.plus([GAP.model_copy(update={"start": 300, "end": 301})], "id-1", "3fa9c1d2-0000", 0.0)
    [event] = transitions(documented(reporting(LOST)), documented(reporting(more)))
    assert event.reason == EventReason.RECORDS_LOST
    assert not transitions(documented(reporting(more)), documented(reporting(more)))


def test_a_loss_wakes_the_topic() -> None:
    digests = {status.driver_digest(gen.progress(losses=losses), 60_000) for losses in (None, NONE, LOST)}
    assert len(digests) == 3


SHORT = {"retention.ms": "3600000"}
DAY = {"retention.ms": "86400000"}
SMALL = {"retention.bytes": "1000000"}


@pytest.mark.parametrize(
    ("configs", "defaults", "lag", "size", "warned"),
    [
        (SHORT, {}, 1700.0, None, ""),
        (SHORT, {}, 1900.0, None, "retention.ms=3600000"),
        ({"retention.ms": "-1"}, {}, 1e9, 1e12, ""),
        ({**SHORT, "cleanup.policy": "compact"}, {}, 1900.0, None, ""),
        ({**SHORT, "cleanup.policy": "compact,delete"}, {}, 1900.0, None, "retention.ms=3600000"),
        ({}, DAY, 11 * 3600.0, None, ""),
        ({}, DAY, 13 * 3600.0, None, "retention.ms=86400000"),
        ({}, {**DAY, "cleanup.policy": "compact"}, 13 * 3600.0, None, ""),
        ({"retention.ms": "604800000"}, DAY, 13 * 3600.0, None, ""),
        ({}, {}, 1e9, None, ""),
        (SMALL, {}, 100.0, 400_000.0, ""),
        (SMALL, {}, 100.0, 600_000.0, "retention.bytes=1000000"),
        ({}, SMALL, 100.0, 600_000.0, "retention.bytes=1000000"),
        ({**SMALL, "retention.bytes": "many"}, {}, 100.0, 600_000.0, ""),
    ],
)
def test_fresh_warns_when_records_near_the_retention_of_the_log(
    configs: dict[str, str], defaults: dict[str, str], lag: float, size: float | None, warned: str
) -> None:
    findings = replace(HEALTHY, topic=gen.topic_state(configs=configs, defaults=defaults))
    observed = landing(progress=gen.progress(lag_seconds=lag, lag_bytes=size, backfilling=bool(warned)))
    text = message(observed, ConditionType.FRESH, findings)
    assert conditions_of(observed, findings)["Fresh"] == ("False", "RetentionNear" if warned else "Behind")
    assert (f"more than half of the log's {warned}; raise it before the log deletes these records" in text) is bool(
        warned
    )


def test_records_near_the_retention_of_the_log_are_an_event() -> None:
    findings = replace(HEALTHY, topic=gen.topic_state(defaults=DAY))
    behind, near = (documented(landing(progress=gen.progress(lag_seconds=lag)), findings) for lag in (100.0, 4e5))
    assert [event.reason for event in transitions(behind, near)] == [EventReason.RETENTION_NEAR]
    assert not transitions(near, near)


@pytest.mark.parametrize("freshness_ms", [60_000, 86_400_000])
@pytest.mark.parametrize("configs", [SHORT, SMALL])
def test_a_lag_wakes_the_topic_when_it_nears_the_retention_of_the_log(
    configs: dict[str, str], freshness_ms: int
) -> None:
    low, near, nearer = (
        status.driver_digest(gen.progress(lag_seconds=lag, lag_bytes=300 * lag), freshness_ms, configs)
        for lag in (100.0, 3500.0, 3600.0)
    )
    assert low != near == nearer


def test_records_of_a_suspended_topic_near_the_retention_of_the_log_are_an_event() -> None:
    findings = replace(HEALTHY, topic=gen.topic_state(configs=SHORT))
    waiting, near = (
        landing(manifest=gen.topic(suspend=True), progress=gen.progress(state="Suspended", lag_seconds=lag))
        for lag in (100.0, 3500.0)
    )
    assert "set spec.suspend to false" in message(near, ConditionType.FRESH, findings)
    events = transitions(documented(waiting, findings), documented(near, findings))
    assert [event.reason for event in events] == [EventReason.RETENTION_NEAR]
