"""Offsets of a shared table end only after Kafka certainly has no topic for them, and no IcebergTopic continues them."""

import json
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from firn.model import names
from firn.model.errors import AccessDeniedError, FirnError, NotReadyError, UnavailableError
from firn.model.jobs import Adoption, IngestJob
from firn.model.progress import SharedOffsets, View
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion import ended_topics
from firn_spark.ingestion.ended_topics import EndedTopics
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import Kafka, TopicInfo
from firn_spark.tables import claims, dead_letters
from firn_spark.tables.commits import Extras, Landed, read_landed
from tests.fakes.lake.memory import Row
from tests.unit.spark_driver.losing import topic_commits
from tests.unit.spark_driver.results import landed
from tests.unit.spark_driver.test_shared_tables import Setting, contract

DAY = 24 * 3600 * 1000
BEYOND = 40


@dataclass
class Brokers:
    """A Kafka cluster with ids by topic name."""

    ids: dict[str, str] = field(default_factory=dict)
    cluster: str = "kafka-1"
    failures: dict[str, FirnError] = field(default_factory=dict)
    asked: list[set[str]] = field(default_factory=list)

    def cluster_id(self) -> str:
        return self.cluster

    def starts(self, topics: Collection[str]) -> dict[str, dict[int, int]]:
        return {name: {0: 0} for name in topics}

    def ends(self, topics: Collection[str]) -> dict[str, dict[int, int]]:
        return {name: {0: 3} for name in topics}

    def topics(self, wanted: Collection[str]) -> dict[str, TopicInfo | FirnError]:
        self.asked.append(set(wanted))
        if "all" in self.failures:
            raise self.failures["all"]
        gone = NotReadyError("no topic")
        return {
            name: self.failures.get(name) or (TopicInfo(self.ids[name], (0,)) if name in self.ids else gone)
            for name in wanted
        }


@dataclass
class Group:
    """A driver of one group with one shared table, whose Kafka topics have the names of their IcebergTopics."""

    setting: Setting
    brokers: Brokers = field(default_factory=Brokers)
    day: float = 0.0
    known: dict[str, IngestJob] | None = field(default_factory=dict)
    begun: int = 0

    def __post_init__(self) -> None:
        self.ended = EndedTopics(lambda _: cast(Kafka, self.brokers), self.contracts, self.now_ms)

    def contracts(self) -> dict[str, IngestJob] | None:
        return self.known

    def now_ms(self) -> int:
        return int(time.time() * 1000 + self.day * DAY)

    def job(self, resource: str, topic_id: str, **changes: Any) -> IngestJob:
        made = contract(resource, **changes)
        return made.model_copy(update={"topic": resource, "topic_id": topic_id})

    def serve(self, resource: str, topic_id: str, **changes: Any) -> Topic:
        topic = Topic(self.job(resource, topic_id, **changes))
        if self.known is not None:
            self.known[topic.job.uid] = topic.job
        return topic

    def land(self, topic: Topic, end: int, days: float = 0) -> Landed:
        """Prepare a topic, and land the records before ``end``, ``days`` later."""
        job, table = topic.job, self.setting.table()
        look = self.ended.look(topic, table)
        self.day += days
        view = View(job.topic_id or "", job.table.shared_by)
        base = read_landed(table, view)
        committer = self.setting.committer("one")
        committer.now_ms = self.now_ms
        work = claims.Work(view.topic_id, base, self.brokers.cluster_id, view=view)
        epoch = claims.take(committer, table, None, 0, work)
        return committer.commit(
            table, (), base, view.topic_id, epoch, {0: end}, Extras.of(job, records=True, look=look)
        )

    def begin(self, end: int = 1) -> None:
        """Land the first records of another topic, so that the driver looks."""
        self.begun += 1
        name = f"new-{self.begun}"
        self.brokers.ids[name] = f"id-of-{name}"
        self.land(self.serve(name, f"id-of-{name}"), end)

    def end(self, resource: str) -> None:
        """Delete an IcebergTopic."""
        self.known = {uid: job for uid, job in (self.known or {}).items() if job.table.shared_by != resource}

    def look_for(self, days: int = BEYOND) -> None:
        """Let topics begin for some days, one each ten days."""
        for _ in range(days // 10 + 1):
            self.begin()
            self.day += 10

    def entries(self) -> set[str]:
        text = self.setting.metadata.properties[names.SUMMARY_OFFSETS]
        return {topic_id for topic_id in SharedOffsets.read(text).topics if not topic_id.startswith("id-of-new")}

    def offsets(self, topic_id: str, resource: str) -> dict[int, int] | None:
        landed = read_landed(self.setting.table(), View(topic_id, resource))
        return landed.offsets if landed is not None else None


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    monkeypatch.setattr("firn_spark.tables.swaps.time.sleep", lambda _: None)
    monkeypatch.setattr(ended_topics, "PAUSE", 0.0)
    return Group(Setting())


def test_a_deleted_topic_without_its_resource_loses_offsets_and_properties(group: Group) -> None:
    group.brokers.ids["eu"] = "eu-1"
    group.land(group.serve("eu", "eu-1"), 5)
    group.end("eu")
    del group.brokers.ids["eu"]
    group.look_for(20)
    assert group.entries() == {"eu-1"}
    assert any(names.topic_of(key) == "eu-1" for key in group.setting.metadata.properties)
    group.look_for()
    assert group.entries() == set()
    assert not [key for key in group.setting.metadata.properties if "eu-1" in key]
    assert [key for key in group.setting.metadata.properties if key.endswith(".id-of-new-1")]


def test_a_topic_that_kafka_still_has_continues_whenever_its_resource_is_applied_again(group: Group) -> None:
    group.brokers.ids["eu"] = "eu-1"
    group.land(group.serve("eu", "eu-1"), 5)
    group.end("eu")
    group.look_for(400)
    assert group.offsets("eu-1", "eu") == {0: 5}
    assert group.land(group.serve("eu", "eu-1"), 7).offsets == {0: 7}


def test_a_topic_that_is_unknown_for_a_time_continues(group: Group) -> None:
    """Its IcebergTopic is deleted, and applied again after the brokers have the topic again."""
    group.brokers.ids["eu"] = "eu-1"
    group.land(group.serve("eu", "eu-1"), 5)
    group.end("eu")
    for _ in range(5):
        del group.brokers.ids["eu"]
        group.look_for(20)
        group.brokers.ids["eu"] = "eu-1"
        group.begin()
    assert group.offsets("eu-1", "eu") == {0: 5}


def test_the_entries_of_a_topic_that_is_created_again_and_again_stay_few(group: Group) -> None:
    for number in range(30):
        group.brokers.ids["eu"] = f"eu-{number}"
        group.land(group.serve("eu", f"eu-{number}"), 5)
        group.end("eu")
        group.day += 10
        group.begin()
        assert f"eu-{number}" in group.entries()
    assert len(group.entries()) <= 6


def test_a_resource_keeps_its_newest_entry_until_its_new_topic_lands(group: Group) -> None:
    group.brokers.ids["eu"] = "eu-1"
    group.land(group.serve("eu", "eu-1"), 5)
    group.end("eu")
    group.brokers.ids["eu"] = "eu-2"
    topic = group.serve("eu", "eu-2")
    group.look_for(100)
    assert group.offsets("eu-2", "eu") == {0: 5}
    assert group.land(topic, 3).offsets == {0: 3}
    group.look_for()
    assert group.entries() == {"eu-2"}


def test_a_driver_asks_only_with_the_contracts_of_its_group(group: Group) -> None:
    """The first topic that a driver prepares is not the one that continues an entry."""
    group.brokers.ids["eu"] = "eu-1"
    eu = group.serve("eu", "eu-1")
    group.land(eu, 5)
    del group.brokers.ids["eu"]
    contracts, group.known = group.known, None
    group.look_for()
    assert group.brokers.asked == []
    assert group.entries() == {"eu-1"}
    group.known = contracts
    group.look_for()
    assert group.entries() == {"eu-1"}


def test_a_commit_drops_a_look_of_the_day_before(group: Group) -> None:
    group.brokers.ids["eu"] = "eu-1"
    group.land(group.serve("eu", "eu-1"), 5)
    group.end("eu")
    for number, days in enumerate((0.0, 1.1, 0.9)):
        del group.brokers.ids["eu"]
        group.brokers.ids[f"us-{number}"] = f"id-of-us-{number}"
        group.land(group.serve(f"us-{number}", f"id-of-us-{number}"), 1, days)
        group.brokers.ids["eu"] = "eu-1"
        group.day += 10
    text = SharedOffsets.read(group.setting.metadata.properties[names.SUMMARY_OFFSETS])
    assert len(text.topics["eu-1"].absent) == 2


@pytest.mark.parametrize("failure", [AccessDeniedError("denied"), UnavailableError("no leader")])
@pytest.mark.parametrize("name", ["eu", "all"])
def test_an_error_is_no_absence(group: Group, failure: FirnError, name: str) -> None:
    group.brokers.ids["eu"] = "eu-1"
    group.land(group.serve("eu", "eu-1"), 5)
    group.end("eu")
    group.brokers.failures[name] = failure
    group.look_for(100)
    assert group.entries() == {"eu-1"}


@pytest.mark.parametrize("other", ["cluster", "unknown cluster", "group"])
def test_entries_of_other_clusters_and_groups_stay(group: Group, other: str) -> None:
    group.brokers.ids["eu"] = "eu-1"
    group.land(group.serve("eu", "eu-1", group="others") if other == "group" else group.serve("eu", "eu-1"), 5)
    group.end("eu")
    del group.brokers.ids["eu"]
    if other != "group":
        group.brokers.cluster = "kafka-2" if other == "cluster" else ""
    group.look_for(100)
    assert group.entries() == {"eu-1"}


def test_an_entry_that_a_rollback_brings_back_stays(group: Group) -> None:
    group.brokers.ids["eu"] = "eu-1"
    group.land(group.serve("eu", "eu-1"), 5)
    group.end("eu")
    del group.brokers.ids["eu"]
    group.look_for(20)
    before = group.setting.metadata.references["main"]
    group.look_for()
    metadata = group.setting.metadata
    group.setting.lake.update(metadata.name, lambda live: replace(live, references={**live.references, "main": before}))
    group.look_for(100)
    assert group.entries() == {"eu-1"}
    group.brokers.ids["eu"] = "eu-1"
    assert group.land(group.serve("eu", "eu-1"), 7).offsets == {0: 7}


def test_a_driver_looks_once_in_a_while_and_only_for_new_topics(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_topics, "PAUSE", 3600.0)
    topic = group.serve("eu", "eu-1")
    group.land(topic, 5)
    for _ in range(3):
        group.begin()
    assert len(group.brokers.asked) == 1
    monkeypatch.setattr(ended_topics, "PAUSE", 0.0)
    group.land(topic, 7)
    assert len(group.brokers.asked) == 1


@pytest.fixture
def preparation(group: Group, monkeypatch: pytest.MonkeyPatch) -> Preparation:
    """Return the preparations of a driver whose topics have no dead letters."""
    nothing: Any = None
    tables, committer = group.setting.tables, group.setting.committer("one")
    monkeypatch.setattr(tables, "spec", lambda _: None)
    monkeypatch.setattr(dead_letters, "load", lambda *_: None)
    kafka = cast(Kafka, group.brokers)
    return Preparation(nothing, tables, lambda _: kafka, committer, Failpoints(), contracts=group.contracts)


def test_a_mirror_of_an_ended_topic_continues_at_the_offsets_of_its_spec(
    group: Group, preparation: Preparation
) -> None:
    group.begin()
    topic = Topic(group.job("eu", "eu-2", adopt=Adoption(topic_id="eu-1", offsets={0: 2})))
    topic.log.live, topic.log.ends = TopicInfo("eu-2", (0,)), {0: 3}
    preparation.prepare(topic)
    assert topic.attempts.error is None
    assert group.offsets("eu-2", "eu") == topic.reading.position == {0: 2}


def test_the_first_commit_of_rows_has_the_look_of_the_preparation(group: Group, preparation: Preparation) -> None:
    group.brokers.ids["eu"] = "eu-1"
    group.land(group.serve("eu", "eu-1"), 5)
    group.end("eu")
    del group.brokers.ids["eu"]
    topic = Topic(group.job("us", "us-1"))
    topic.log.live, topic.log.ends = TopicInfo("us-1", (0,)), {0: 3}
    preparation.prepare(topic)
    assert topic.attempts.error is None
    assert topic.table.look is not None
    assert topic.table.look.absent.keys() == {"eu-1"}
    preparation.prepare(topic)
    preparation.begin(topic)
    path = "s3://firn/us"
    group.setting.lake.put(path, [Row(0, offset, ord("u")) for offset in range(3)])
    result = landed({0: (0, 3)})
    result.data = [json.dumps({**json.loads(each), "path": path, "file-path": path}) for each in result.data]
    committer = cast(Any, group.setting.committer("one"))
    topic_commits(committer, []).commit(topic, {0: (0, 3)}, result, 0.0)
    assert topic.table.look is None
    text = SharedOffsets.read(group.setting.metadata.properties[names.SUMMARY_OFFSETS])
    assert len(text.topics["eu-1"].absent) == 1
