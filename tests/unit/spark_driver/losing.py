"""Topics, tables and brokers for tests of lost offsets."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from firn.model import names
from firn.model.errors import FirnError
from firn.model.progress import Gap, Losses
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds.committing import TopicCommits
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import LogEnd
from firn_spark.tables.commits import Extras, Landed
from tests.unit.spark_driver.topic import topic


class Table:
    """A table with the losses that its commits record."""

    def __init__(self) -> None:
        self.losses = Losses()

    def properties(self) -> Mapping[str, str]:
        return {names.TABLE_LOST: self.losses.model_dump_json()}


class Committer:
    """A committer that keeps the offsets and gaps of its commits. It fails with ``failure`` if set."""

    def __init__(self) -> None:
        self.made: list[tuple[Mapping[int, int], list[Gap]]] = []
        self.leader_epochs: list[dict[int, int]] = []
        self.failure: Exception | None = None
        self.writer = "ours"
        self.landed: Landed | None = None

    def commit(
        self, table: Table, files: object, base: object, topic_id: str, epoch: int, offsets: Any, extras: Extras
    ) -> Landed:
        if self.failure is not None:
            raise self.failure
        self.made.append((dict(offsets), list(extras.gaps)))
        self.leader_epochs.append(dict(extras.leader_epochs))
        table.losses = table.losses.plus(extras.gaps, topic_id, "3fa9c1d2", 0.0)
        commit_id = str(len(self.made))
        epochs = dict(extras.leader_epochs)
        self.landed = Landed(
            topic_id, epoch, dict(offsets), commit_id=commit_id, writer=self.writer, leader_epochs=epochs
        )
        return self.landed


class Brokers:
    """Brokers with one partition.

    Its leader has this epoch, and ``differs`` is the first offset with another record than earlier leaders had."""

    def __init__(self, start: int, end: int, epoch: int | None = None, differs: int | None = None) -> None:
        self.start, self.end, self.epoch, self.differs = start, end, epoch, differs
        self.asked: list[Any] = []
        self.failing: dict[str, FirnError] = {}

    def starts(self, topics: Any) -> Any:
        return {name: dict.fromkeys(parts, self.start) for name, parts in topics.items()}

    def log_ends(self, topics: Any) -> Any:
        return {name: dict.fromkeys(parts, LogEnd(self.end, self.epoch)) for name, parts in topics.items()}

    def divergences(self, topics: Mapping[str, Mapping[int, LogEnd]]) -> Any:
        self.asked += [(part, *end) for ends in topics.values() for part, end in ends.items()]
        return {
            name: self.failing.get(
                name,
                {
                    part: self.differs
                    for part, end in ends.items()
                    if self.differs is not None and self.differs < end.offset
                },
            )
            for name, ends in topics.items()
        }


def topic_commits(committer: Committer, counted: list[int]) -> TopicCommits:
    """Return the commits of rounds. They add the lost offsets to ``counted``."""
    preparation = SimpleNamespace(follow_table=lambda topic: None, begin=lambda topic: None)
    meter = SimpleNamespace(
        lost=lambda topic, offsets: counted.append(offsets), landed=lambda *_: None, audited=lambda *_, agrees: None
    )
    nothing: Any = None
    return TopicCommits(nothing, cast(Any, committer), cast(Any, preparation), Failpoints(), cast(Any, meter))


def landed_to(offset: int, leader_epoch: int | None = None, name: str = "orders") -> Topic:
    """Return a topic whose records before ``offset`` have landed from the leader of this epoch."""
    made = topic(name, epoch=1)
    made.table.java, made.table.losses = Table(), Losses()
    made.table.landed = Landed("id-1", 1, {0: offset}, commit_id="before")
    if leader_epoch is not None:
        made.table.landed = replace(made.table.landed, leader_epochs={0: leader_epoch})
        made.reading.leader_epochs = {0: leader_epoch}
    made.reading.position = {0: offset}
    return made
