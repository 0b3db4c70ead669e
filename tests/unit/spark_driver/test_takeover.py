"""A table of Kafka Connect is continued only if its connector has stopped and every written file is in the table."""

import json
import uuid
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model.conditions import Reason
from firn.model.errors import CorruptDataError, NotReadyError
from firn.model.jobs import Adoption, SinkCommits, StartFrom
from firn.model.progress import Offsets
from firn_spark.ingestion import takeover
from firn_spark.ingestion.takeover import Takeover
from firn_spark.kafka.admin import TopicInfo
from firn_spark.tables.commits import Landed, OtherWriter
from tests.unit.spark_driver import sink_events as events
from tests.unit.spark_driver.topic import job

SINK = SinkCommits(control_topic="control", group="connect-orders")
KEY = "kafka.connect.offsets.control.connect-orders"
OF_SINK, OF_FIRN, OF_RUN = {KEY: "{}"}, {KEY: "{}", "firn.kind": "ingest"}, {"firn.kind": "compact"}
PLACE = '{"group": "connect-orders", "offsets": {"0": 30, "1": 20}}'
LIVE = TopicInfo("id-1", (0, 1))
WRITTEN = [events.start_commit(), events.data_written()]


@dataclass
class Brokers:
    """A connector that has stopped, and committed all events before offset 4 of the control topic."""

    members: dict[str, int] = field(default_factory=dict)
    committed_offsets: Offsets = field(default_factory=lambda: {0: 30, 1: 20})
    coordinated: Offsets = field(default_factory=lambda: {0: 4})
    log: list[bytes | None] = field(default_factory=lambda: [*WRITTEN, *WRITTEN])
    """Events of the control topic by offset; None for the end of a transaction."""
    start: int = 0
    open: int = 0
    control: Any = field(default_factory=lambda: TopicInfo("id-2", (0,)))
    ends_of_topic: Offsets = field(default_factory=lambda: {0: 50, 1: 60})
    profile: str = "classic"

    def group_members(self, group: str) -> int:
        return self.members.get(group, 0)

    def topics(self, names: list[str]) -> dict[str, Any]:
        return {"control": self.control}

    def starts(self, topics: Any) -> dict[str, Offsets]:
        return {"control": {0: self.start}, "orders": {0: 5, 1: 7}}

    def ends(self, topics: Any) -> dict[str, Offsets]:
        return {"control": {0: len(self.log)}, "orders": self.ends_of_topic}

    def high_watermarks(self, topics: Any) -> dict[str, Offsets]:
        return {"control": {0: len(self.log) + self.open}}

    def group_offsets(self, group: str, topic: str, partitions: Any) -> Offsets:
        return {("connect-orders", "orders"): self.committed_offsets}.get((group, topic), self.coordinated)

    def committed(self, topic: str, starts: Offsets, ends: Offsets) -> list[bytes]:
        return [value for value in self.log[starts[0] : ends[0]] if value is not None]


def find(
    brokers: Brokers,
    recorded: str | None = '{"0":4}',
    offsets: Offsets | None = None,
    table_uuid: uuid.UUID = events.TABLE_UUID,
    landed: Landed | None = None,
    rows: int = 0,
) -> Takeover:
    summary = {} if recorded is None else {KEY: recorded, "added-records": str(rows)}
    # Ingestion came before the commit of the sink, and maintenance of another engine after it.
    before = [OF_FIRN] if landed is not None and recorded is not None else []
    table = table_of(*before, summary, {"operation": "replace"}, table_uuid=table_uuid)
    adopt = Adoption(connect=SINK, offsets=offsets or {})
    return takeover.find(job(adopt=adopt), SINK, table, landed, LIVE, cast(Any, brokers))


def table_of(
    *summaries: dict[str, str], table_uuid: uuid.UUID = events.TABLE_UUID, properties: dict[str, str] | None = None
) -> Any:
    """Return a table whose snapshots have these summaries, oldest first."""
    snapshots = [
        SimpleNamespace(
            summary=lambda summary=summary: summary,
            parentId=lambda parent=number: parent - 1 if parent else None,
            snapshotId=lambda number=number: number,
        )
        for number, summary in enumerate(summaries)
    ]
    return SimpleNamespace(
        currentSnapshot=lambda: snapshots[-1],
        snapshot=snapshots.__getitem__,
        uuid=lambda: table_uuid,
        properties=lambda: properties or {},
    )


def is_due(landed: Landed | None, *summaries: dict[str, str], place: str = "", **offsets: Any) -> bool:
    """Return whether a takeover is due of a table with these summaries, oldest first."""
    table = table_of(*summaries, properties={"firn.connector": place})
    adopted = job(adopt=Adoption(connect=SINK))
    return takeover.is_due(adopted, SINK, table, landed, cast(Any, Brokers(**offsets)))


def refused(brokers: Brokers, recorded: str | None = '{"0":4}') -> str:
    with pytest.raises(NotReadyError) as raised:
        find(brokers, recorded)
    assert raised.value.reason == Reason.WAITING_FOR_CONNECTOR
    return str(raised.value)


def test_a_topic_continues_at_the_offsets_of_the_connectors_group() -> None:
    assert find(Brokers()) == Takeover({0: 30, 1: 20}, OtherWriter(KEY, '{"0":4}', json.dumps({"0": 4}), PLACE))


def test_the_first_commit_ends_the_control_topic_for_the_sink() -> None:
    found = find(Brokers(log=[*WRITTEN, *WRITTEN, events.start_commit(), None]))
    assert json.loads(found.sink.value) == {"0": 6}


def test_a_partition_that_the_sink_has_not_read_begins_at_its_start() -> None:
    assert find(Brokers(committed_offsets={1: 20})).offsets == {0: 5, 1: 20}


@pytest.mark.parametrize("group", ["connect-orders", "connect-orders-coord"])
def test_a_connector_that_runs_keeps_its_table(group: str) -> None:
    assert f"consumer group {group} has 2 members, so the connector runs" in refused(Brokers(members={group: 2}))


def test_written_files_without_a_commit_are_not_passed_over() -> None:
    waiting = Brokers(log=[*WRITTEN, *WRITTEN, events.data_written(records=(3, 0, 2)), None])
    assert "table lake.shop.orders: files that the connector has written wait for their commit (2)" in refused(waiting)


def test_events_that_the_coordinator_has_done_without_a_snapshot_do_not_wait() -> None:
    # The table lost its newest snapshot by a rollback, which the sink does not repair.
    done = Brokers(log=[*WRITTEN, *WRITTEN, events.data_written(), None], coordinated={0: 6})
    assert find(done).offsets == {0: 30, 1: 20}


@pytest.mark.parametrize(
    "other",
    [
        events.data_written(group="connect-payments"),
        events.data_written(table="payments"),
        events.data_written(namespace="bank"),
        events.data_written(table_uuid=uuid.UUID(int=7)),
        events.data_written(records=(0,)),
    ],
)
def test_files_of_other_tables_and_connectors_do_not_wait(other: bytes) -> None:
    assert find(Brokers(log=[*WRITTEN, *WRITTEN, other])).offsets == {0: 30, 1: 20}


def test_files_of_a_sink_of_version_1_10_wait_too() -> None:
    old = Brokers(log=[*WRITTEN, *WRITTEN, events.data_written(table_uuid=None)])
    assert "wait for their commit (1)" in refused(old)


def test_an_open_transaction_is_awaited() -> None:
    assert "control topic control has an open transaction" in refused(Brokers(open=1))


def test_events_that_the_control_topic_has_deleted_may_have_named_files() -> None:
    assert "partition 0 begins at offset 5, and the connector's last commit was at offset 4" in refused(
        Brokers(log=[*WRITTEN, *WRITTEN, None, None], start=5)
    )


def test_a_table_without_the_key_of_the_sink_is_refused() -> None:
    assert f"no snapshot has the key {KEY}" in refused(Brokers(), None)


def test_a_control_topic_that_does_not_exist_is_refused() -> None:
    missing = Brokers(control=NotReadyError("unknown topic"))
    assert "control topic control does not exist in profile classic" in refused(missing)


def test_expired_offsets_of_the_group_are_refused() -> None:
    assert "consumer group connect-orders has no offsets" in refused(Brokers(committed_offsets={}))


def test_offsets_beyond_the_log_are_of_another_topic() -> None:
    assert "partition 0 ends at offset 50, before offset 51" in refused(Brokers(committed_offsets={0: 51, 1: 20}))


def test_listed_offsets_replace_those_of_the_group() -> None:
    waiting = Brokers(log=[*WRITTEN, *WRITTEN, events.data_written()], committed_offsets={})
    assert find(waiting, offsets={0: 12}).offsets == {0: 12, 1: 7}
    with pytest.raises(NotReadyError, match="so the connector runs"):
        find(Brokers(members={"connect-orders": 1}), offsets={0: 12})


@pytest.fixture(autouse=True)
def _summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "texts", dict)


def test_a_takeover_is_due_while_the_connector_wrote_last() -> None:
    landed = Landed("id-1", 3, {0: 40, 1: 5})
    assert is_due(None, OF_SINK)
    assert not is_due(landed, OF_SINK, OF_FIRN)
    assert not is_due(landed, OF_SINK, OF_FIRN, OF_RUN)
    assert is_due(landed, OF_FIRN, OF_SINK)
    assert is_due(landed, OF_FIRN, OF_SINK, OF_RUN)
    assert not is_due(landed, OF_RUN), "the history does not say who wrote last"
    assert is_due(Landed("id-0", 3, {}), OF_FIRN, OF_SINK), (
        "the connector continued with the topic that was created again"
    )


def test_the_offsets_of_the_group_decide_if_another_engine_expired_the_snapshots() -> None:
    landed = Landed("id-1", 3, {0: 40, 1: 5})
    assert not is_due(landed, OF_RUN, place=PLACE), "the connector is where it was at the takeover"
    assert is_due(landed, OF_RUN, place=PLACE, committed_offsets={0: 31, 1: 20})
    assert not is_due(landed, OF_RUN, place="{}", committed_offsets={0: 31, 1: 20}), "an earlier version took it over"
    assert not is_due(landed, OF_FIRN, OF_RUN, place=PLACE, committed_offsets={0: 31, 1: 20})


def test_rows_of_a_connector_that_was_resumed_are_in_the_table_twice() -> None:
    """It began again at the offsets of the takeover, and ingestion had landed the same records."""
    landed = Landed("id-1", 3, {0: 25, 1: 15})
    assert find(Brokers(), landed=landed, rows=10).offsets == {0: 30, 1: 20}
    with pytest.raises(
        NotReadyError, match="committed 11 rows .* only 10 .* roll the table back to snapshot 0"
    ) as raised:
        find(Brokers(), landed=landed, rows=11)
    assert raised.value.reason == Reason.WAITING_FOR_CONNECTOR
    assert find(Brokers(), landed=landed, rows=11, offsets={0: 30, 1: 20}).offsets == {0: 30, 1: 20}


def test_commits_of_a_resumed_connector_that_have_expired_are_not_passed_over() -> None:
    landed = Landed("id-1", 3, {0: 40, 1: 5})
    with pytest.raises(NotReadyError, match="rows may be in the table twice; stop the connector, delete such rows"):
        find(Brokers(), None, landed=landed)
    assert find(Brokers(), None, landed=landed, offsets={0: 12}).offsets == {0: 40, 1: 7}


def test_records_that_landed_before_the_connector_continued_do_not_land_again() -> None:
    assert find(Brokers(), landed=Landed("id-1", 3, {0: 40, 1: 5})).offsets == {0: 40, 1: 20}


def test_offsets_that_landed_of_an_earlier_topic_say_nothing_about_the_topic() -> None:
    assert find(Brokers(), landed=Landed("id-0", 3, {0: 40, 1: 5})).offsets == {0: 30, 1: 20}


def test_a_table_of_a_connector_waits_until_the_contract_names_a_start() -> None:
    with pytest.raises(NotReadyError, match=f"has the key {KEY} .* set spec.ingestion.adopt.connect") as raised:
        takeover.check_named(job(), table_of({}, OF_SINK, OF_RUN))
    assert raised.value.reason == Reason.WAITING_FOR_CONNECTOR
    for kind in ("Latest", "Timestamp"):
        takeover.check_named(job(start_from=StartFrom(kind=kind, timestamp_ms=0)), table_of(OF_SINK))
    takeover.check_named(job(adopt=Adoption(connect=SINK)), table_of(OF_SINK))
    takeover.check_named(job(), table_of(OF_SINK, OF_FIRN))
    shared = job().table.model_copy(update={"shared_by": "topic"})
    with pytest.raises(
        NotReadyError, match="has the key"
    ):  # the commit of Firn may be that of another topic of the connector
        takeover.check_named(job(table=shared, version=2, topic_id="id-1"), table_of(OF_SINK, OF_FIRN))
    takeover.check_named(job(), table_of({}, OF_RUN))
    many = [{"firn.kind": "ingest"}] * (takeover.MOST_SNAPSHOTS + 1)
    with pytest.raises(NotReadyError, match="has the key"):
        takeover.check_named(job(table=shared, version=2, topic_id="id-1"), table_of(OF_SINK, *many))
    takeover.check_named(job(), table_of(OF_SINK, *([{}] * takeover.MOST_SNAPSHOTS)))


def test_a_record_that_is_no_event_names_the_control_topic() -> None:
    with pytest.raises(CorruptDataError, match="control topic control: a record is no event .* list the first offsets"):
        find(Brokers(log=[*WRITTEN, *WRITTEN, b"text"]))


def test_a_summary_without_offsets_is_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="has no offsets, but 'all'"):
        find(Brokers(), "all")
