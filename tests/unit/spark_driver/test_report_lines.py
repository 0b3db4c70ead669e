"""The lines of `/progress` documents that follow each other: each is what the report of the topic says at that time."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from firn.model.errors import FencedError, UnavailableError
from firn.model.progress import HaltedAt, Losses
from firn_spark.ingestion.topics import report
from firn_spark.ingestion.topics.report import ReportLines, progress_of
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import TopicInfo
from firn_spark.tables.commits import Landed
from firn_spark.worker.formats.format import Times
from tests.unit.spark_driver.topic import job, topic

CHANGES: dict[str, Callable[[Topic, random.Random], Any]] = {
    "contract": lambda made, dice: made.accept(
        job("orders", generation=dice.randrange(3), suspended=dice.random() < 0.3)
    ),
    "failure": lambda made, dice: made.failed(UnavailableError(f"catalog {dice.randrange(2)}"), 100.0),
    "fence": lambda made, _: made.failed(FencedError("another driver"), 100.0),
    "failures": lambda made, dice: setattr(made.attempts, "failures", dice.randrange(3)),
    "forgotten ends": lambda made, _: made.log.forget(),
    "success": lambda made, _: made.attempts.succeeded(),
    "prepared": lambda made, dice: made.was_prepared(complete=dice.random() < 0.8),
    "unfenced": lambda made, _: setattr(made, "fenced", False),
    "halt": lambda made, dice: setattr(
        made, "halted", dice.choice([None, HaltedAt(partition=0, offset=dice.randrange(9), code="WrongKind")])
    ),
    "ends": lambda made, dice: made.observe(100.0 + dice.random(), {0: dice.choice([0, 5, 9])}),
    "position": lambda made, dice: made.reading.position.update({0: dice.choice([0, 5, 9])}),
    "older": lambda made, dice: setattr(made.reading, "older", dice.choice([None, {0: 5}, {0: 9}])),
    "log": lambda made, dice: setattr(
        made.log, "live", dice.choice([None, TopicInfo("id-1", (0,)), TopicInfo("other", (0,))])
    ),
    "read": lambda made, dice: setattr(made.reading, "topic", TopicInfo(dice.choice(["id-1", "other"]), (0,))),
    "silent brokers": lambda made, dice: setattr(made.log, "error", dice.choice([None, UnavailableError("away")])),
    "table": lambda made, dice: setattr(made.table, "uuid", dice.choice([None, "a", "b"])),
    "place": lambda made, dice: setattr(made.table, "location", dice.choice([None, "s3://a"])),
    "table error": lambda made, dice: setattr(made.table, "error", dice.choice([None, UnavailableError("away")])),
    "landed": lambda made, dice: setattr(
        made.table, "landed", dice.choice([None, Landed("id-1", 1, {0: dice.choice([0, 5])})])
    ),
    "losses": lambda made, dice: setattr(
        made.table, "losses", dice.choice([None, Losses(table="t", dropped=dice.randrange(3))])
    ),
    "letters": lambda made, dice: setattr(made.letters, "landed", dice.choice([None, Landed("id-1", 1, {})])),
    "totals": lambda made, dice: setattr(made.totals, dice.choice(["rows", "dead", "skipped"]), dice.randrange(9)),
    "commit": lambda made, dice: setattr(made.totals, "last_commit", dice.choice([None, 1.0, 2.0])),
    "recent": lambda made, dice: made.recent.add(dice.randrange(3), dice.randrange(3), "WrongKind", "$.id"),
    "times": lambda made, dice: made.recent.add_times(
        {"at": Times(values=2, wrong=dice.randrange(3), epoch="ms", sample=7)}
    ),
}


@pytest.mark.parametrize("seed", range(20))
def test_a_line_says_what_the_report_of_the_topic_says_after_any_changes(seed: int) -> None:
    dice = random.Random(seed)
    made, lines, now = topic(), ReportLines(), 100.0
    for _ in range(300):
        name = dice.choice(list(CHANGES))
        CHANGES[name](made, dice)
        now += dice.choice([0.0, 0.5, 30.0])
        (line,) = lines.of([made], now, now + 1e9)
        assert line == progress_of(made, now, now + 1e9).model_dump_json(), name


def test_every_kind_of_change_shows_in_the_line_of_an_idle_topic() -> None:
    shown = set()
    for name, change in CHANGES.items():
        for seed in range(30):
            made, lines = topic(), ReportLines()
            made.log.ends, made.reading.position, made.table.uuid = {0: 5}, {0: 5}, "a"
            made.recent.add(3, 0, "", "")
            before = lines.of([made], 100.0, 0.0)
            change(made, random.Random(seed))
            if lines.of([made], 100.0, 0.0) != before:
                shown.add(name)
    assert set(CHANGES) - shown <= {"position", "success", "unfenced", "prepared"}


def test_the_line_of_an_idle_topic_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Topic] = []

    def counted(topic: Topic, now: float, wall: float) -> Any:
        made.append(topic)
        return progress_of(topic, now, wall)

    monkeypatch.setattr(report, "progress_of", counted)
    lines, idle, busy = ReportLines(), topic("idle"), topic("busy", lag=5)
    for now in range(5):
        lines.of([idle, busy], float(now), float(now))
    assert (made.count(idle), made.count(busy)) == (1, 5)
    lines.of([busy], 9.0, 9.0)
    lines.of([idle], 9.0, 9.0)
    assert made.count(idle) == 2, "a topic that left the group is not remembered"
