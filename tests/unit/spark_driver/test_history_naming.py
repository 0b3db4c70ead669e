"""Drivers name data files to brokers: which offsets, which files, and the tags that hold them."""

import time
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from firn.driver_requests.landed_offsets import (
    LANDED_PATH,
    UNINDEXED_PATH,
    FirstOffset,
    FirstOffsets,
    Landed,
    LandedAnswer,
    LandedRange,
    Refusal,
)
from firn.model.errors import UnavailableError
from firn.model.jobs import Column, DirectReads, KeySchema, RecordSchema, TableTarget
from firn.model.names import LOG_TAG as TAG
from firn.model.progress import HistoryProgress
from firn_spark.ingestion.history import naming
from firn_spark.ingestion.history.naming import HistoryNaming
from firn_spark.ingestion.history.tags import hold, release
from firn_spark.ingestion.topics.state import History
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import TopicInfo
from firn_spark.kafka.diskless.listener import InternalListener
from firn_spark.tables.commits import Claim
from tests.unit.spark_driver.topic import job

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The id 1 in Kafka's base64."""
FORMS = {"Struct": "_kafka.", "Flat": "_kafka_"}


class FakeTable:
    """A table of Java with snapshots in a line. Each is (operation, its files as (partition, first, last, path))."""

    def __init__(self, *operations: str) -> None:
        self.operations = list(operations)
        self.tags: dict[str, int] = {}
        self.files: list[tuple[int, int, int, str]] = []
        self.forever: set[str] = set()
        self.ignores_tags = False
        """True for a catalog that accepts tags and does not keep them."""

    def snapshot(self, id: int | None) -> Any:
        if id is None or not 1 <= id <= len(self.operations):
            return None
        parent = id - 1 or None
        return SimpleNamespace(
            snapshotId=lambda: id, parentId=lambda: parent, operation=lambda: self.operations[id - 1]
        )

    def head(self) -> Any:
        return self.snapshot(len(self.operations))

    def refs(self) -> dict[str, Any]:
        return {name: SimpleNamespace(snapshotId=lambda id=id: id) for name, id in {"main": 1, **self.tags}.items()}

    def refresh(self) -> None:
        if self.ignores_tags:
            self.tags.clear()

    def properties(self) -> dict[str, str]:
        return {}

    def manageSnapshots(self) -> Any:
        table, changes = self, list[Any]()

        class Change:
            def createTag(self, name: str, id: int) -> "Change":
                assert name not in table.tags
                changes.append(lambda: table.tags.update({name: id}))
                return self

            def replaceTag(self, name: str, id: int) -> "Change":
                assert name in table.tags
                changes.append(lambda: table.tags.update({name: id}))
                return self

            def removeTag(self, name: str) -> "Change":
                changes.append(lambda: table.tags.pop(name))
                return self

            def setMaxRefAgeMs(self, name: str, age: int) -> "Change":
                table.forever.add(name)
                return self

            def commit(self) -> None:
                for change in changes:
                    change()

        return Change()

    def name(self) -> str:
        return "lake.shop.orders"

    def schema(self) -> Any:
        ids = {name: number for number, name in enumerate(self.columns(), 1)}
        return SimpleNamespace(
            findField=lambda name: SimpleNamespace(fieldId=lambda: ids[name]) if name in ids else None
        )

    def columns(self) -> list[str]:
        kafka = ("partition", "offset", "timestamp_ms", "key", "headers")
        return ["value", *(form + each for form in FORMS.values() for each in kafka)]

    def newScan(self) -> Any:
        table = self

        class Scan:
            wanted: Any

            def useSnapshot(self, id: int) -> "Scan":
                assert id == len(table.operations)
                return self

            def filter(self, wanted: Any) -> "Scan":
                self.wanted = wanted
                return self

            def planFiles(self) -> Any:
                found = [path for *bounds, path in table.files if self.wanted(*bounds)]
                left = list(found)
                iterator = SimpleNamespace(hasNext=lambda: bool(left), next=lambda: _task(left.pop(0)))
                return SimpleNamespace(iterator=lambda: iterator, close=lambda: None)

        return Scan()


def _task(path: str) -> Any:
    return SimpleNamespace(file=lambda: SimpleNamespace(location=lambda: path, fileSizeInBytes=lambda: 9))


class Expressions:
    """Iceberg's expressions about the bounds of a file: partition, first and last offset."""

    def greaterThanOrEqual(self, column: str, value: int) -> Any:
        return lambda partition, first, last: last >= value

    def lessThanOrEqual(self, column: str, value: int) -> Any:
        return lambda partition, first, last: first <= value

    def equal(self, column: str, value: int) -> Any:
        return lambda partition, first, last: partition == value


setattr(Expressions, "and", lambda self, a, b: lambda *bounds: a(*bounds) and b(*bounds))
setattr(Expressions, "or", lambda self, a, b: lambda *bounds: a(*bounds) or b(*bounds))


class Stage:
    """A driver with one topic, its table, and brokers that answer from ``waiting`` and ``older``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, history: str = "Single", shape: str = "Struct") -> None:
        self.table = FakeTable("append")
        self.waiting: dict[int, int] = {}
        self.older: dict[int, int] = {}
        self.generation = 0
        """The generation of the batches in ``older``."""
        self.refusal: Refusal | None = None
        self.error: Exception | None = None
        self.named: list[Landed] = []
        self.asked: list[int] = []
        self.offsets = {0: 100, 1: 50}
        self.now = 1_000_000.0
        iceberg = SimpleNamespace(expressions=SimpleNamespace(Expressions=Expressions()))
        jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(iceberg=iceberg)))
        self.names: tuple[Any, Any] = (), {}
        tables = SimpleNamespace(load=lambda *_: self.table, names=lambda _: self.names, jvm=jvm)
        reads = DirectReads(address="http://brokers", token_path="/none", url="s3://b")
        target = TableTarget(
            catalog="lake",
            namespace="shop",
            name="orders",
            history=history,
            metadata_columns=shape,
        )
        self.topic = Topic(job(table=target, record_schema=RecordSchema(format="Raw")))
        self.topic.prepared, self.topic.reading.topic = True, TopicInfo(TOPIC_ID, (0, 1))
        self.topic.table.java = self.table
        monkeypatch.setattr(naming, "head", lambda table: table.head())
        monkeypatch.setattr(naming, "newest", lambda table: SimpleNamespace(topic_id=TOPIC_ID, offsets=self.offsets))
        self.claimed: Claim | None = None
        monkeypatch.setattr(naming, "read_claim", lambda table, view: self.claimed)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "time", lambda: self.now)
        monkeypatch.setattr(InternalListener, "ask", lambda _, *asked: self.answer(*asked))
        self.naming = HistoryNaming(tables, {"classic": reads}, lambda: [self.topic], 3_600.0)  # type: ignore[arg-type]

    def answer(self, path: str, question: Any, kind: Any, most: int) -> Any:
        if self.error is not None:
            raise self.error
        if path == UNINDEXED_PATH:
            ((id, generation, tagged),) = question.topics
            assert id == UUID(int=1)
            self.asked.append(generation)
            untagged = self.older if self.generation not in tagged else {}
            return FirstOffsets(topics=(FirstOffset("", self.waiting, self.older, untagged),))
        assert path == LANDED_PATH
        self.named.append(question)
        return LandedAnswer(refusal=self.refusal)

    def look(self, later: float = 3_601.0) -> HistoryProgress | None:
        self.now += later
        self.naming.look(self.topic)
        return self.topic.history.report


def test_offsets_that_brokers_have_not_compared_are_named_with_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting = {0: 40, 1: 50, 2: 0}
    stage.table.files = [(0, 0, 39, "a"), (0, 30, 60, "b"), (1, 0, 49, "c"), (0, 61, 120, "d")]
    assert stage.look() == HistoryProgress(waiting=stage.waiting, untagged={})
    (named,) = stage.named
    assert (named.topic, named.ranges) == (UUID(int=1), (LandedRange(0, 40, 99),)), "the table has no others"
    assert [file.path for file in named.files] == ["b", "d"]
    assert {f"{TAG}{named.generation}": 1} == stage.table.tags
    assert stage.table.forever == set(stage.table.tags)
    assert named.until_ms == (stage.now + naming.VALID_SECONDS) * 1000
    assert named.fields == (2, 3, 4, 5, 1, 6)


def test_columns_of_a_flat_table_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, shape="Flat")
    stage.waiting = {0: 0}
    stage.look()
    assert stage.named[0].fields == (7, 8, 9, 10, 1, 11)


def test_files_are_named_once_in_an_hour_and_again_if_brokers_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting = {0: 40}
    stage.look()
    stage.look(later=1_800.0)
    assert len(stage.named) == 1
    stage.offsets = {0: 130}
    stage.look()
    assert [each.ranges for each in stage.named] == [(LandedRange(0, 40, 99),), (LandedRange(0, 100, 129),)]
    for _ in range(4):
        stage.look()
    assert len(stage.named) == 2, "the brokers may still compare them"
    stage.look()
    assert stage.named[2].ranges == (LandedRange(0, 40, 129),)


def test_batches_of_earlier_generations_are_named_from_their_first_offset_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting = {0: 90}
    stage.look()
    stage.older, stage.waiting = {0: 5, 1: 7}, {0: 95}
    stage.look()
    assert stage.named[1].ranges == (LandedRange(0, 5, 99), LandedRange(1, 7, 49))


def test_a_request_has_few_files_and_the_rest_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.offsets, stage.waiting = {0: 10_000}, {0: 0}
    stage.table.files = [(0, first, first, str(first)) for first in range(10_000)]
    stage.look()
    assert stage.named[0].ranges == (LandedRange(0, 0, 2_499),)
    assert len(stage.named[0].files) == 2_500
    stage.look()
    assert stage.named[1].ranges[0].first == 2_500


def test_an_offset_with_too_many_files_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting, stage.offsets = {0: 0, 1: 0}, {0: 9, 1: 9}
    stage.table.files = [(0, 0, 9, str(number)) for number in range(5_000)]
    report = stage.look()
    assert report is not None
    assert "do not fit into a request (at most 4000 files" in report.problem
    assert stage.named == []


def test_long_names_of_files_make_a_smaller_request(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.offsets, stage.waiting = {0: 4_000}, {0: 0}
    stage.table.files = [(0, first, first, "x" * 960) for first in range(4_000)]
    stage.look()
    assert len(stage.named[0].files) == 1_000
    assert stage.named[0].model_dump_json().__len__() < 2 << 20


def test_many_partitions_have_a_short_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.offsets = dict.fromkeys(range(200), 20)
    stage.waiting = dict.fromkeys(range(200), 10)
    stage.table.files = [(0, 0, 9, "old"), (7, 0, 10, "new"), (300, 15, 16, "other")]
    stage.look()
    assert [file.path for file in stage.named[0].files] == ["new", "other"]


@pytest.mark.parametrize(
    ("refusal", "text"),
    [(Refusal.COPY, "firn.history=Single"), (Refusal.NO_STORE, "history.stores of the profile")],
)
def test_a_refusal_is_reported_and_tried_again_soon(
    monkeypatch: pytest.MonkeyPatch, refusal: Refusal, text: str
) -> None:
    stage = Stage(monkeypatch)
    stage.waiting, stage.refusal = {0: 0}, refusal
    report = stage.look()
    assert report is not None
    assert text in report.problem
    stage.refusal = None
    assert stage.look(later=61.0) == HistoryProgress(waiting={0: 0}, untagged={})
    assert len(stage.named) == 2


def test_an_outage_is_reported_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting, stage.error = {0: 0}, UnavailableError("no broker answers")
    report = stage.look()
    assert report is not None
    assert "no broker answers" in report.problem
    assert stage.named == []


def test_a_profile_without_direct_reads_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.topic.job = stage.topic.job.model_copy(update={"profile": "other"})
    report = stage.look()
    assert report is not None
    assert "profile other" in report.problem
    assert "set directReads" in report.problem


def test_values_that_are_no_bytes_of_records_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting = {0: 0}
    stage.topic.job = job(table=stage.topic.job.table, record_schema=RecordSchema(format="Avro"))
    report = stage.look()
    assert report is not None
    assert "brokers cannot rebuild values in Avro" in report.problem
    assert stage.table.tags == {}


STRUCT = {"type": "struct", "fields": [{"id": 21, "name": "city", "required": False, "type": "string"}]}
LIST = {"type": "list", "element-id": 22, "element-required": False, "element": STRUCT}
MAP = {"type": "map", "key-id": 23, "key": "string", "value-id": 24, "value-required": False, "value": LIST}
FIELDS = [
    {"id": 11, "name": "id", "required": False, "type": "long"},
    {"id": 12, "name": "place", "required": False, "type": STRUCT},
    {"id": 13, "name": "places", "required": False, "type": MAP},
    {"id": 14, "name": "key_id", "required": False, "type": "long"},
    {"id": 15, "name": "_kafka", "required": False, "type": STRUCT},
    {"id": 16, "name": "_kafkaesque", "required": False, "type": "string"},
]


def test_the_columns_of_json_members_are_named_under_all_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting, stage.table.files = {0: 0}, [(0, 0, 99, "a")]
    key = KeySchema(format="Json", columns="Flat", fields=(Column(name="id", type="long"),))
    schema = RecordSchema(format="Json", fields=(Column(name="id", type="long"),), key=key)
    stage.topic.job = job(table=stage.topic.job.table, record_schema=schema)
    stage.names = FIELDS, {11: ("number",), 21: ("town",)}
    report = stage.look()
    assert report is not None
    assert report.problem == ""
    (named,) = stage.named
    assert named.fields.value is None
    assert {tuple(each) for each in named.members} == {
        (-1, "id", 11), (-1, "number", 11), (-1, "place", 12), (12, "city", 21), (12, "town", 21), (-1, "places", 13),
        (-1, "_kafkaesque", 16),
        (22, "city", 21), (22, "town", 21),
    }  # fmt: skip


def test_names_that_do_not_fit_into_a_request_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting, stage.table.files = {0: 0}, [(0, 0, 99, "a")]
    stage.topic.job = job(table=stage.topic.job.table, record_schema=RecordSchema(format="Json"))
    stage.names = [{"id": 1, "name": "a", "type": "long"}], {1: tuple(map(str, range(20_000)))}
    report = stage.look()
    assert report is not None
    assert "the names of 20001 members do not fit into a request to brokers" in report.problem
    assert stage.named == []


def test_brokers_that_are_busy_are_asked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting, stage.refusal = {0: 0}, Refusal.BUSY
    assert stage.look() == HistoryProgress(waiting={0: 0}, untagged={})
    stage.refusal = None
    stage.look(later=301.0)
    stage.look(later=301.0)
    assert len(stage.named) == 2


def test_a_catalog_that_keeps_no_tags_is_reported_and_gets_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting, stage.table.ignores_tags = {0: 0}, True
    report = stage.look()
    assert report is not None
    assert "the catalog did not keep tag firn-log-" in report.problem
    assert stage.named == []


def test_a_driver_whose_table_another_one_has_claimed_moves_no_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting, stage.topic.epoch, stage.claimed = {0: 0}, 3, Claim(4, "other")
    stage.look()
    assert (stage.named, stage.table.tags) == ([], {})
    stage.claimed = Claim(3, "own")
    stage.look()
    assert len(stage.named) == 1


def test_one_tag_follows_appends_and_another_begins_after_a_rewrite() -> None:
    table = FakeTable("append")
    first = hold(table, table.head())
    assert hold(table, table.head()) == first
    table.operations += ["append", "append"]
    assert hold(table, table.head()) == first
    assert table.tags == {f"{TAG}{first}": 3}
    table.operations += ["replace", "append"]
    second = hold(table, table.head())
    assert second > first
    assert table.tags == {f"{TAG}{first}": 3, f"{TAG}{second}": 5}
    assert release(table, second) == [f"{TAG}{first}"]
    assert table.tags == {f"{TAG}{second}": 5}
    table.tags.clear()
    assert hold(table, table.head()) >= first, "another client dropped the tag"


def test_the_tag_of_an_earlier_generation_stays_while_brokers_may_use_its_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    stage.look()
    (first,) = stage.table.tags
    stage.table.operations.append("replace")
    stage.older = {0: 0}
    for _ in range(6):
        stage.look()
    assert len(stage.table.tags) == 2, "brokers have batches of it"
    stage.older = {}
    stage.look()
    assert first not in stage.table.tags


def test_records_that_only_files_without_a_tag_have_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting = {0: 0}
    stage.look()
    stage.generation, stage.older = stage.named[0].generation, {0: 5}
    stage.table.operations.append("replace")
    report = stage.look()
    assert report is not None
    assert (len(stage.table.tags), report.untagged) == (2, {}), "the first tag holds the files"
    stage.table.tags.pop(f"{TAG}{stage.generation}")
    report = stage.look()
    assert report is not None
    assert report.untagged == {0: 5}
    stage.error = UnavailableError("no broker answers")
    report = stage.look()
    assert report is not None
    assert report.untagged == {0: 5}
    stage.error, stage.older = None, {}
    assert stage.look(later=61.0) == HistoryProgress(waiting={0: 0}, untagged={})


def test_a_driver_that_has_not_asked_the_brokers_reports_nothing_of_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.error = UnavailableError("no broker answers")
    report = stage.look()
    assert report is not None
    assert report.untagged is None


def test_tags_go_four_hours_after_the_next_generation_however_often_others_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    for _ in range(12):
        stage.table.operations.append("replace")
        stage.look()
    assert len(stage.table.tags) == 5, "a request with their files may still be valid"


def test_a_driver_that_restarts_drops_no_tag_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.look()
    stage.table.operations.append("replace")
    stage.look()
    stage.topic.history = History()
    stage.look()
    assert len(stage.table.tags) == 2


def test_another_topic_of_the_name_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    stage.waiting = {0: 40}
    stage.look()
    stage.topic.reading.topic = TopicInfo("AAAAAAAAAAAAAAAAAAAAAg", (0, 1))
    assert stage.look(later=1.0) == HistoryProgress(untagged={}), "the table has no record of it yet"
    assert stage.topic.history.named == {}


def test_a_topic_that_went_back_to_copy_loses_its_last_tag_with_its_last_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, history="Copy")
    stage.look()
    assert stage.asked == [], "a table without tags causes no request"
    stage.table.tags = {f"{TAG}7": 1}
    for _ in range(3):
        stage.look()
    assert stage.table.tags, "a request from before the change may still be valid"
    stage.older = {0: 3}
    for _ in range(5):
        assert stage.look() is None
    assert stage.table.tags, "brokers have batches of it"
    assert stage.named == []
    stage.older = {}
    stage.look()
    assert stage.table.tags == {}
