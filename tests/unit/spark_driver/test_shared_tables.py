"""Commits to a table that several topics share: each topic is fenced and continued on its own, as if it were alone."""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest

from firn.model import names
from firn.model.errors import (
    CommitConflictError,
    CommitUnknownError,
    ConflictError,
    CorruptDataError,
    FencedError,
    FirnError,
)
from firn.model.jobs import Adoption, CatalogConnection, GroupSettings, IngestJob, TableTarget
from firn.model.progress import Cause, Gap, SharedOffsets, View
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds import adoption
from firn_spark.tables import claims
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.commits import (
    Committer,
    Extras,
    Landed,
    carried_from,
    newest,
    read_claim,
    read_landed,
    read_losses,
)
from firn_spark.tables.java_tables import Tables
from firn_spark.tables.swaps import read_back
from tests.fakes.lake import java
from tests.fakes.lake.memory import Lake, Metadata, Row, Snapshot
from tests.unit.spark_driver.topic import job

T = TypeVar("T")
NAME = "lake.shop.all"


@dataclass
class Gateway(java.DirectGateway):
    """Requests of which those that replace metadata first call ``before``, and then ``after``."""

    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None

    def request(self, name: str, effect: Callable[[], T]) -> T:
        if name != "catalog.commit":
            return super().request(name, effect)
        self.before()
        done = super().request(name, effect)
        self.after()
        return done


@dataclass
class Setting:
    """A shared table in memory, and the newest commits that its writers know."""

    kind: str = "sql"
    lake: Lake = field(init=False)
    gateway: Gateway = field(default_factory=Gateway)

    def __post_init__(self) -> None:
        self.lake = Lake(self.kind)
        connection = CatalogConnection(type="sql", uri="postgresql://db/lake", warehouse="s3://firn/lake")
        settings = GroupSettings(group="test", catalogs={"lake": connection})
        self.tables = Tables(Catalogs(java.spark(self.lake, self.gateway), settings))
        self.tables.ensure(contract("eu"))

    def table(self) -> Any:
        return self.tables.load("lake", "shop", "all")

    def committer(self, writer: str) -> Committer:
        return Committer(self.tables, writer, Failpoints())

    def commit(
        self,
        topic: str,
        base: Landed | None,
        end: int,
        *,
        writer: str = "one",
        epoch: int = 1,
        table: Any = None,
        **more: Any,
    ) -> Landed:
        """Commit the rows of a topic up to ``end``."""
        start = base.offsets.get(0, 0) if base is not None and base.topic_id == topic else 0
        path = f"s3://firn/{topic}-{self.lake.number()}"
        self.lake.put(path, [Row(0, offset, ord(topic[0])) for offset in range(start, end)])
        files = [json.dumps({"path": path, "file-path": path, "record-count": end - start})]
        extras = Extras(records=True, shared_by=more.pop("shared_by", topic), **more)
        table = table if table is not None else self.table()
        return self.committer(writer).commit(table, files, base, topic, epoch, {0: end}, extras)

    def landed(self, topic: str) -> Landed | None:
        return read_landed(self.table(), View(topic, topic))

    def offsets(self, topic: str) -> dict[int, int] | None:
        landed = self.landed(topic)
        return landed.offsets if landed is not None else None

    @property
    def metadata(self) -> Metadata:
        return self.lake.tables["shop.all"] if "shop.all" in self.lake.tables else next(iter(self.lake.tables.values()))

    def rows(self) -> Counter[tuple[int, int]]:
        """Return how often each (topic, offset) is a row."""
        return Counter((row.serial, row.offset) for row in self.lake.rows(self.metadata.head))


def contract(topic: str, *, shared: bool = True, **changes: Any) -> IngestJob:
    target = TableTarget(catalog="lake", namespace="shop", name="all", shared_by=topic if shared else "")
    return job(topic, version=2 if shared else 1, topic_id=topic, table=target, **changes)


@pytest.fixture(params=["sql", "rest"])
def setting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr("firn_spark.tables.swaps.time.sleep", lambda _: None)
    return Setting(request.param)


def once(action: Callable[[], object]) -> Callable[[], None]:
    """Return a function that acts at its first call only."""
    left = [action]

    def act() -> None:
        if left:
            left.pop()()

    return act


def test_commits_of_another_topic_do_not_refuse_a_commit(setting: Setting) -> None:
    eu = setting.commit("eu", None, 5)
    us = setting.commit("us", None, 9)
    setting.gateway.before = once(lambda: setting.commit("us", us, 12))
    setting.commit("eu", eu, 7)
    assert (setting.offsets("eu"), setting.offsets("us")) == ({0: 7}, {0: 12})
    assert setting.rows() == Counter({(ord("e"), n): 1 for n in range(7)}) + Counter(
        {(ord("u"), n): 1 for n in range(12)}
    )


def test_a_commit_of_the_same_topic_refuses_an_outdated_one_and_deletes_its_files(setting: Setting) -> None:
    eu = setting.commit("eu", None, 5)
    us = setting.commit("us", None, 9)

    def first() -> None:
        setting.commit("eu", eu, 6, writer="two", epoch=2)
        setting.commit("us", us, 12)

    setting.gateway.before = once(first)
    objects = len(setting.lake.objects)
    with pytest.raises(FencedError, match="writer two committed with epoch 2"):
        setting.commit("eu", eu, 8)
    assert len(setting.lake.objects) == objects + 2
    assert setting.rows()[ord("e"), 7] == 0


def test_a_commit_without_an_answer_is_found_below_commits_of_another_topic(setting: Setting) -> None:
    eu = setting.commit("eu", None, 5)

    def after() -> None:
        setting.commit("us", None, 9)
        raise java.error("java.io.IOException", "no answer")

    setting.gateway.after = once(after)
    landed = setting.commit("eu", eu, 7)
    assert setting.landed("eu") == landed
    assert setting.rows()[ord("e"), 6] == 1


def test_claims_fence_one_topic_only(setting: Setting) -> None:
    table = setting.table()

    def claim(writer: str, topic: str, base: Landed | None) -> int:
        work = claims.Work(topic, base, lambda: "kafka-1", view=View(topic, topic))
        return claims.take(setting.committer(writer), setting.table(), None, 0, work)

    eu = setting.commit("eu", None, 5, epoch=claim("one", "eu", None))
    assert claim("two", "us", None) == 1
    setting.commit("us", None, 3, writer="two")
    eu = setting.commit("eu", eu, 6)
    assert claim("two", "eu", eu) == 2
    with pytest.raises(FencedError, match="writer two claimed epoch 2"):
        setting.commit("eu", eu, 7)
    table.refresh()
    assert read_claim(table, View("eu", "eu")) != read_claim(table, View("us", "us"))
    assert table.properties()["firn.kafka-cluster.eu"] == "kafka-1"


def test_maintenance_snapshots_and_expiry_keep_the_offsets_of_all_topics(setting: Setting) -> None:
    setting.commit("eu", None, 5)
    setting.commit("us", None, 9)
    compact(setting)
    assert (setting.offsets("eu"), setting.offsets("us")) == ({0: 5}, {0: 9})
    setting.lake.update(setting.metadata.name, only_newest)
    assert (setting.offsets("eu"), setting.offsets("us")) == ({0: 5}, {0: 9})
    setting.lake.update(setting.metadata.name, lambda live: only_newest(live.with_snapshot(follow(live, {}))))
    assert (setting.offsets("eu"), setting.offsets("us")) == ({0: 5}, {0: 9})


def follow(live: Metadata, summary: dict[str, str]) -> Snapshot:
    assert live.head is not None
    return Snapshot(live.head.id + 1000, live.head.id, live.head.at_ms + 1, "replace", summary, live.head.files)


def only_newest(live: Metadata) -> Metadata:
    assert live.head is not None
    gone = {each.id for each in live.all_snapshots} - {live.head.id}
    references = {"main": live.head.id}
    return replace(live, references=references).without(gone)


def test_a_rollback_moves_every_topic_to_its_offsets_of_that_snapshot(setting: Setting) -> None:
    eu = setting.commit("eu", None, 5)
    us = setting.commit("us", None, 9)
    before = setting.metadata.references["main"]
    setting.commit("eu", eu, 7)
    setting.commit("us", us, 12)
    setting.lake.update(
        setting.metadata.name, lambda live: replace(live, references={**live.references, "main": before})
    )
    assert (setting.offsets("eu"), setting.offsets("us")) == ({0: 5}, {0: 9})
    setting.commit("us", setting.landed("us"), 10)
    assert (setting.offsets("eu"), setting.offsets("us")) == ({0: 5}, {0: 10})


def test_offsets_of_a_snapshot_outside_the_history_do_not_count(setting: Setting) -> None:
    setting.commit("eu", None, 5)

    def foreign(live: Metadata) -> Metadata:
        assert live.head is not None
        return live.with_snapshot(Snapshot(99_999, None, live.head.at_ms + 1, "append", {}, ()))

    setting.lake.update(setting.metadata.name, foreign)
    with pytest.raises(CorruptDataError, match="the newest ingestion commit is not in its history"):
        setting.offsets("eu")


def test_a_new_topic_of_a_resource_begins_on_top_of_the_earlier_one(setting: Setting) -> None:
    old = setting.commit("eu", None, 5, epoch=4)
    again = View("eu-2", "eu")
    assert read_landed(setting.table(), again) == setting.landed("eu") == old
    setting.commit("eu-2", old, 3, epoch=5, shared_by="eu")
    landed = read_landed(setting.table(), again)
    assert landed is not None
    assert (landed.topic_id, landed.offsets) == ("eu-2", {0: 3})
    assert setting.offsets("eu") == {0: 5}


def test_a_resource_adopts_only_a_topic_that_it_has_landed_itself(setting: Setting) -> None:
    """A mirror has the same records again, so a resource of another name would land them twice."""
    setting.commit("eu", None, 3)
    mirror = contract("mirror", adopt=Adoption(topic_id="eu", offsets={0: 3}))
    with pytest.raises(ConflictError, match="IcebergTopic eu has landed topic eu of spec.ingestion.adopt"):
        adoption.check_resource(mirror, setting.table(), setting.landed("mirror"))
    own = contract("eu", adopt=Adoption(topic_id="eu", offsets={0: 3}))
    adoption.check_resource(own, setting.table(), read_landed(setting.table(), View("eu-2", "eu")))


def test_the_offsets_of_the_spec_count_for_an_adopted_topic_without_an_entry(setting: Setting) -> None:
    with_offsets = contract("mirror", adopt=Adoption(topic_id="ended", offsets={0: 3}))
    without = contract("mirror", adopt=Adoption(topic_id="ended"))
    assert not adoption.check_resource(without, setting.table(), None), "a table without a commit"
    eu = setting.commit("eu", None, 3)
    assert adoption.check_resource(with_offsets, setting.table(), None)
    with pytest.raises(ConflictError, match=r"no offsets of topic ended .* set the first offsets to land"):
        adoption.check_resource(without, setting.table(), None)
    assert not adoption.check_resource(without, setting.table(), None, replaced=True)
    assert not adoption.check_resource(without, setting.table(), eu)


def test_losses_of_two_topics_have_different_names(setting: Setting) -> None:
    for topic in ("eu", "us"):
        setting.commit(topic, None, 5, gaps=[Gap(partition=0, start=0, end=2, cause=Cause.DELETED)])
    table = setting.table()
    eu, us = (read_losses(table, View(topic, topic)) for topic in ("eu", "us"))
    assert (eu.newest, us.newest) == (1, 1)
    assert not eu.covers(us.name)
    assert read_losses(table).newest == 0


def test_a_table_is_of_one_topic_or_shared(setting: Setting) -> None:
    with pytest.raises(ConflictError, match="is shared by topics"):
        setting.tables.ensure(contract("us", shared=False))
    setting.commit("eu", None, 5)
    with pytest.raises(CorruptDataError, match="invalid ingestion offsets"):
        newest(setting.table())
    with pytest.raises(CorruptDataError, match="invalid ingestion offsets"):
        setting.commit("us", None, 5, shared_by="")
    assert setting.offsets("us") is None


def test_a_table_of_one_topic_takes_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting()
    setting.lake.tables.clear()
    setting.tables.ensure(contract("eu", shared=False))
    setting.commit("eu", None, 5, shared_by="")
    with pytest.raises(ConflictError, match="was made for one topic"):
        setting.tables.ensure(contract("us"))
    with pytest.raises(CorruptDataError, match="does not have the offsets of a shared table"):
        setting.commit("us", None, 5)
    assert setting.rows() == Counter({(ord("e"), n): 1 for n in range(5)})


def test_every_summary_has_the_offsets_of_all_topics(setting: Setting) -> None:
    eu = setting.commit("eu", None, 5)
    setting.commit("us", None, 9)
    setting.commit("eu", eu, 7)
    for snapshot in setting.metadata.all_snapshots[1:]:
        assert SharedOffsets.read(snapshot.properties[names.SUMMARY_OFFSETS]).topics.keys() == {"eu", "us"}
    assert (
        setting.metadata.properties[names.SUMMARY_OFFSETS]
        == SharedOffsets.read(setting.metadata.properties[names.SUMMARY_OFFSETS]).encode()
    )


@dataclass
class Driver:
    """A driver of one topic, which loses the answers of some of its requests."""

    setting: Setting
    topic: str
    name: str
    random: random.Random
    base: Landed | None = None
    epoch: int | None = None
    table: Any = None

    def step(self) -> None:
        """Claim the table, or land some records."""
        try:
            if self.epoch is None:
                self._claim()
                return
            start = self.base.offsets.get(0, 0) if self.base is not None else 0
            self.base = self.setting.commit(
                self.topic,
                self.base,
                start + self.random.randint(0, 3),
                writer=self.name,
                epoch=self.epoch,
                table=self.table,
            )
        except FencedError:
            self.epoch = None
        except (CommitConflictError, CommitUnknownError):
            self._read()
        except FirnError:
            self._read()

    def _claim(self) -> None:
        self._read()
        work = claims.Work(self.topic, self.base, lambda: "kafka-1", view=View(self.topic, self.topic))
        self.epoch = claims.take(self.setting.committer(self.name), self.table, None, 0, work)

    def _read(self) -> None:
        self.table = self.setting.table()
        read_back(self.table)
        self.base = newest(self.table, view=View(self.topic, self.topic))


@pytest.mark.parametrize("seed", range(40))
def test_any_interleaving_of_drivers_and_lost_answers_lands_each_record_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("firn_spark.tables.swaps.time.sleep", lambda _: None)
    chance = random.Random(seed)
    setting = Setting(chance.choice(["sql", "rest"]))
    drivers = [Driver(setting, topic, f"{topic}{n}", chance) for topic in ("eu", "us", "jp") for n in range(2)]
    depth = 0

    def interrupt() -> None:
        nonlocal depth
        if depth < 3 and chance.random() < 0.5:
            depth += 1
            chance.choice(drivers).step()
            depth -= 1
        if chance.random() < 0.15:
            raise java.error("java.io.IOException", "no answer")

    setting.gateway.before = setting.gateway.after = interrupt
    for _ in range(60):
        chance.choice(drivers).step()
        if chance.random() < 0.1:
            compact(setting)
    ends = {topic: (setting.offsets(topic) or {0: 0})[0] for topic in ("eu", "us", "jp")}
    assert setting.rows() == Counter({(ord(topic[0]), n): 1 for topic, end in ends.items() for n in range(end)})
    assert sum(ends.values()) > 0


def compact(setting: Setting) -> None:
    """Add a snapshot of maintenance, if the table has one of ingestion."""
    summary = {names.SUMMARY_KIND: "compact", **carried_from(setting.table())}
    if setting.metadata.head is not None:
        setting.lake.update(setting.metadata.name, lambda live: live.with_snapshot(follow(live, summary)))
