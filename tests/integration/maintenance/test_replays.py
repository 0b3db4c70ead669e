"""Dead letters come back: a replay decodes them with the current schema, and each record is a row or a letter, exactly once."""

import json
import uuid
from typing import Any

import pytest

from firn.decoders.bad_records import Code
from firn.model import names
from firn.model.errors import ExitCode, FencedError
from firn.model.jobs import Column, ProjectedColumn, Projection, RecordSchema, RegistryConnection, Subject, WriterSchema
from firn.model.maintenance import ReplayReport, ReplayWork
from firn.model.progress import Replaying
from firn.schema_registry import Registered
from firn_spark.ingestion.publishing.switching import land_on
from firn_spark.maintenance.replaying import letters as replayed
from firn_spark.maintenance.replaying.decoding import Decoding, Result
from firn_spark.maintenance.steps import audit
from firn_spark.maintenance.steps.changes import Guard, NewSnapshot
from firn_spark.schemas import registries
from firn_spark.tables import dead_letters
from firn_spark.tables.commits import Extras, newest, read_landed
from firn_spark.worker.formats.writer_schemas import Reference, Refusal
from firn_spark.worker.landing import LandingPlan, TopicLanding, land
from tests.integration.maintenance.lake import FIELDS, Lake, Topic
from tests.unit.spark import records
from tests.unit.spark.tables import results

GOOD = {"id": 1, "name": "a", "at": "2024-05-05T12:00:00Z"}


class Letters:
    """A topic of which some records are dead letters, because the schema was wrong when they landed."""

    def __init__(self, lake: Lake, **changes: Any) -> None:
        self.topic = Topic(lake, **changes)
        self.lake = lake
        self.job = self.topic.job.model_copy(update={"topic_id": "topic-id"})
        self.dead = dead_letters.create(lake.tables, self.job)
        self.epoch_landed = dead_letters.claim(self.topic.committer, self.dead, "topic-id", 1)
        self.topic_id = "topic-id"
        self.writers: dict[Reference, WriterSchema | Refusal | int] = {}

    def ingest(self, *values: bytes, **more: Any) -> None:
        """Land values as a round does: dead letters first, then the rows."""
        topic = self.topic
        start, topic.end = topic.end, topic.end + len(values)
        batch = records.batch(list(values), offset=list(range(start, topic.end)), **more)
        moment = dead_letters.moment([self.epoch_landed], dead_letters.now())
        landing = TopicLanding(
            self.job, topic.spec, self.lake.tables.spec(self.dead), writer_schemas=dict(self.writers)
        )
        output = results(land(iter([batch]), LandingPlan({"t": landing}, ingested_at=moment)))["t"]
        if "dead" in output:
            files = [json.dumps(each) for each in output["dead"]]
            self.epoch_landed = dead_letters.commit(
                topic.committer, self.dead, files, self.epoch_landed, 1, {0: topic.end}, moment
            )
        files = [json.dumps(each) for each in output.get("data", ())]
        topic.landed = topic.committer.commit(
            topic.table, files, topic.landed, self.topic_id, 1, {0: topic.end}, Extras(records=True)
        )

    def create_again(self) -> None:
        """Create the topic again, so that its offsets begin at 0."""
        self.topic_id, self.topic.end = "topic-2", 0
        self.job = self.job.model_copy(update={"topic_id": self.topic_id})
        self.epoch_landed = dead_letters.claim(self.topic.committer, self.dead, self.topic_id, 1, commit_again=True)

    def refuse_unknown_fields(self) -> None:
        schema = self.job.record_schema.model_copy(update={"unknown_fields": "DeadLetter"})
        self.job = self.job.model_copy(update={"record_schema": schema})

    def mend(self) -> None:
        """Let the schema take texts as ids' names: numbers fit a column of text then."""
        schema = self.job.record_schema.model_copy(update={"fields": (*FIELDS, Column(name="extra", type="string"))})
        self.job = self.job.model_copy(update={"record_schema": schema, "generation": 2})
        self.topic.table = self.lake.tables.ensure(self.job)
        self.topic.spec = self.lake.tables.spec(self.topic.table)

    def work(self, **changes: Any) -> ReplayWork:
        return ReplayWork(**{"uid": "replay-1", "job": self.job, "enforce": True, **changes})

    def replay(self, **changes: Any) -> ReplayReport:
        registries = {"main": RegistryConnection(url="http://registry")}
        report = self.lake.run(self.topic.work(replay=self.work(**changes)), registries=registries)
        assert report.replay is not None, report
        return report.replay

    def letters(self) -> list[int]:
        frame = self.lake.spark.read.format("iceberg").load(f"{self.topic.identifier}__dlq")
        return sorted(row[0] for row in frame.select("_kafka.offset").collect())

    def offsets(self) -> list[int]:
        return [row["_kafka"]["offset"] for row in self.topic.rows()]

    def marker(self) -> Replaying | None:
        return Replaying.read(self.topic.fresh().properties().get(names.REPLAY))

    def under_way(self) -> bool:
        """Return whether audits leave out letters whose offset has a row."""
        return audit.is_replaying(self.topic.fresh())

    def evict(self, failpoint: str, **changes: Any) -> None:
        """Replay until the pod ends at a failpoint, without a report."""
        run = self.lake.prepare(self.topic.work(replay=self.work(**changes)), failpoints=failpoint)
        assert run.work() == ExitCode.TEMPORARY, run.report()
        assert run.report().tables[0].replay is None

    def audited(self) -> tuple[int, int]:
        """Return the missing and the doubled offsets that an audit finds now."""
        table, dead = self.topic.fresh(), self.dead
        dead.refresh()
        source = audit.Source(table, "")
        rows = audit.Rows(
            self.lake.spark,
            source,
            table.currentSnapshot(),
            audit.Source(dead, ""),
            0,
            replaying=audit.is_replaying(table),
        )
        counted, window = audit.Counted({}), {0: (0, self.topic.end)}
        counted.add(window, rows.chunks(window))
        return sum(end - start for gaps in counted.gaps.values() for start, end in gaps), counted.doubled

    def check(self, end: int) -> None:
        """Check that each record is a row or a letter, once, and that ingestion continues where it was."""
        assert sorted([*self.offsets(), *self.letters()]) == list(range(end))
        landed = read_landed(self.topic.fresh())
        assert landed is not None
        assert dict(landed.offsets) == {0: end}

    def use(self, schema: RecordSchema) -> None:
        """Give topic and table another schema."""
        self.job = self.job.model_copy(update={"record_schema": schema})
        self.topic.table = self.lake.tables.ensure(self.job)
        self.topic.spec = self.lake.tables.spec(self.topic.table)


def unknown(number: int) -> bytes:
    return json.dumps({**GOOD, "id": number, "extra": f"e{number}"}).encode()


def wrong(number: int) -> bytes:
    return json.dumps({**GOOD, "id": f"not a number {number}"}).encode()


def fitting(number: int) -> bytes:
    return json.dumps({**GOOD, "id": number}).encode()


@pytest.fixture
def letters(lake: Lake) -> Letters:
    """Offsets 0 and 5 are rows, 1, 2 and 4 are letters that the mended schema takes, and 3 is one that it does not take."""
    made = Letters(lake)
    made.refuse_unknown_fields()
    made.ingest(fitting(0), unknown(1), unknown(2), wrong(3))
    made.ingest(unknown(4), fitting(5))
    assert made.letters() == [1, 2, 3, 4]
    made.mend()
    return made


def test_letters_that_fit_the_current_schema_become_rows_at_their_own_offsets(letters: Letters) -> None:
    report = letters.replay()
    assert report == ReplayReport(
        matched=4,
        landed=3,
        failed=1,
        remaining=1,
        codes={"UnknownField": 3, "WrongKind": 1},
        failures={"WrongKind": 1},
    )
    assert letters.letters() == [3]
    assert letters.offsets() == [0, 1, 2, 4, 5]
    assert {row["id"]: row["extra"] for row in letters.topic.rows()} == {0: None, 1: "e1", 2: "e2", 4: "e4", 5: None}
    assert not letters.under_way()
    letters.check(6)


def test_ingestion_goes_on_after_a_replay(letters: Letters) -> None:
    letters.replay()
    letters.topic.landed = read_landed(letters.topic.table)
    letters.dead.refresh()
    letters.ingest(fitting(6), wrong(7))
    letters.check(8)


def test_a_dry_run_changes_nothing(letters: Letters) -> None:
    before = letters.topic.kinds()
    report = letters.replay(enforce=False)
    assert (report.matched, report.landed, report.failed, report.remaining) == (4, 3, 1, 1)
    assert letters.topic.kinds() == before
    assert letters.letters() == [1, 2, 3, 4]


def test_a_replay_takes_only_the_letters_that_it_selects(letters: Letters) -> None:
    assert letters.replay(codes=("WrongKind",)).matched == 1
    report = letters.replay(uid="replay-2", codes=("WrongKnd",))
    assert report == ReplayReport(remaining=4, causes={"UnknownField": 3, "WrongKind": 1})
    assert letters.replay(uid="replay-3", generations=(9,)).matched == 0
    assert letters.replay(uid="replay-4", records=1).landed <= 1
    letters.check(6)


@pytest.mark.parametrize(
    ("failpoint", "rows_landed"),
    [
        pytest.param("in-commit=raise:1", False, marks=pytest.mark.long),
        ("after-replay-append=raise:1", True),
        ("in-commit=raise:2", True),
        pytest.param("after-replay-deletion=raise:1", True, marks=pytest.mark.long),
    ],
)
def test_the_next_attempt_completes_a_replay_that_ended_anywhere(
    letters: Letters, failpoint: str, rows_landed: bool
) -> None:
    first = letters.lake.prepare(letters.topic.work(replay=letters.work()), failpoints=failpoint)
    code = first.work()
    assert code in (ExitCode.TEMPORARY, ExitCode.DONE)
    if code == ExitCode.TEMPORARY:
        assert letters.under_way() == rows_landed
    assert letters.audited() == (0, 0)
    # Snapshots expire, and with them the marks in their summaries.
    letters.topic.sql("CALL tidy_lake.system.expire_snapshots(table => '{t}', older_than => now(), retain_last => 1)")
    report = letters.replay()
    assert letters.offsets() == [0, 1, 2, 4, 5]
    assert letters.letters() == [3]
    assert not letters.under_way()
    if code == ExitCode.TEMPORARY:
        assert (report.matched, report.landed, report.remaining) == (4, 3, 1)
    letters.check(6)


@pytest.mark.parametrize("limit", [pytest.param(None, marks=pytest.mark.long), 3])
def test_a_pod_after_the_end_of_a_replay_reports_its_counts_and_lands_nothing(
    letters: Letters, limit: int | None
) -> None:
    """The first pod is evicted after the end of its work, before the operator has its report."""
    letters.evict("after-replay-end=raise:1", records=limit)
    ended, left = letters.marker(), letters.letters()
    assert ended is not None
    assert (ended.done, ended.decoded) == (True, limit or 4)
    letters.topic.landed = read_landed(letters.topic.table)
    letters.dead.refresh()
    letters.ingest(fitting(6), wrong(7))
    kinds = letters.topic.kinds()
    report = letters.replay(records=limit)
    assert (report.matched, report.landed + report.failed, report.remaining) == (4, limit or 4, len(left))
    assert report.codes == {"UnknownField": 3, "WrongKind": 1}
    assert (letters.topic.kinds(), letters.letters()) == (kinds, [*left, 7])
    assert not letters.under_way()
    letters.check(8)


@pytest.fixture
def days(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Letters:
    """A topic with a dead letter at every offset. Those of each of three days are a part: 0 and 1, 2, and 3 to 5.

    The current schema takes all but 1 and 2.
    """
    made, now = Letters(lake), dead_letters.now()
    made.refuse_unknown_fields()
    for day, values in enumerate(([unknown(0), wrong(1)], [wrong(2)], [unknown(3), unknown(4), unknown(5)])):
        monkeypatch.setattr(dead_letters, "now", lambda day=day: now + day * 86_400_000_000)
        made.ingest(*values)
    made.mend()
    parts = replayed.parts
    monkeypatch.setattr(replayed, "parts", lambda frame: parts(frame, 1))
    return made


def test_the_limit_and_the_counts_of_a_replay_hold_over_its_pods(days: Letters) -> None:
    limit = 4
    days.evict("after-replay-deletion=raise:1", records=limit)
    assert days.letters() == [1, 2, 3, 4, 5]
    # The second pod ends after a part without a row, whose counts it has stored.
    days.evict("after-readback=raise:1", records=limit)
    assert days.letters() == [1, 2, 3, 4, 5]
    assert days.audited() == (0, 0)
    report = days.replay(records=limit)
    assert report == ReplayReport(
        matched=6,
        landed=2,
        failed=2,
        remaining=4,
        codes={"UnknownField": 4, "WrongKind": 2},
        failures={"WrongKind": 2},
    )
    assert len(days.offsets()) == 2
    days.check(6)


def test_a_replay_of_a_topic_that_is_created_again_does_not_count_the_letters_that_stay(days: Letters) -> None:
    days.evict("after-replay-deletion=raise:1")
    days.create_again()
    report = days.replay()
    assert (report.matched, report.landed, report.remaining) == (6, 1, None)


@pytest.mark.long
def test_letters_that_do_not_fit_are_counted_once_over_the_pods(days: Letters) -> None:
    days.evict("after-replay-append=raise:1")
    report = days.replay()
    assert (report.landed, report.failures, report.remaining) == (4, {"WrongKind": 2}, 2)
    days.check(6)


def test_another_replay_follows_one_that_has_ended(letters: Letters) -> None:
    assert letters.replay(records=1, codes=("UnknownField",)).landed == 1
    letters.evict("after-replay-append=raise:1", uid="replay-2")
    assert letters.under_way()
    assert letters.audited() == (0, 0)
    report = letters.replay(uid="replay-2")
    assert (report.matched, report.landed, report.failed, report.remaining) == (3, 2, 1, 1)
    ended = letters.marker()
    assert ended is not None
    assert (ended.replay, ended.done, ended.part) == ("replay-2", True, 1)
    assert letters.letters() == [3]
    letters.check(6)


def test_a_replay_that_selects_nothing_ends_another_that_ended_early(letters: Letters) -> None:
    letters.evict("after-replay-append=raise:1")
    for _ in range(2):
        report = letters.replay(uid="replay-2", codes=("WrongKnd",))
        assert report == ReplayReport(remaining=1, causes={"WrongKind": 1})
        assert not letters.under_way()
    letters.check(6)


def test_a_replay_does_not_overwrite_the_counts_of_another(letters: Letters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replay changes the property while this one decodes letters, none of which becomes a row."""
    other, decode = Replaying(replay="replay-2", decoded=1).model_dump_json(), Decoding.run

    def overtaken(*args: Any) -> Result:
        letters.lake.spark.sql(
            f"ALTER TABLE {letters.topic.identifier} SET TBLPROPERTIES ('{names.REPLAY}' = '{other}')"
        )
        return decode(*args)

    monkeypatch.setattr(Decoding, "run", overtaken)
    for codes in (("WrongKind",), ("UnknownField",)):
        run = letters.lake.prepare(letters.topic.work(replay=letters.work(codes=codes)))
        letters.topic.sql("ALTER TABLE {t} UNSET TBLPROPERTIES IF EXISTS ('firn.replay')")
        assert run.work() == ExitCode.TEMPORARY
        assert "another replay works on the dead letters" in run.report().tables[0].message
        assert letters.marker() == Replaying.read(other)
    assert letters.letters() == [1, 2, 3, 4]


@pytest.mark.parametrize("fenced", [True, False])
def test_an_append_without_an_answer_can_land_after_the_next_pod_began(
    letters: Letters, monkeypatch: pytest.MonkeyPatch, *, fenced: bool
) -> None:
    """The next pod sets the property only, so a REST catalog can still complete the append, which needs the same branch."""
    build, appended, lost = NewSnapshot.build, [], []

    def unanswered(change: NewSnapshot, table: Any) -> None:
        appended.append(build(change, table)[1])
        counts = Replaying(replay="replay-1", decoded=1).model_dump_json()
        letters.lake.spark.sql(
            f"ALTER TABLE {letters.topic.identifier} SET TBLPROPERTIES ('{names.REPLAY}' = '{counts}')"
        )
        lost.append(fenced)
        raise OSError("no answer")

    def check(guard: Guard) -> None:
        if any(lost):
            raise FencedError("the lease is lost")

    with monkeypatch.context() as patched:
        patched.setattr(NewSnapshot, "build", unanswered)
        patched.setattr(Guard, "check", check)
        run = letters.lake.prepare(letters.topic.work(replay=letters.work()))
        assert run.work() == ExitCode.TEMPORARY
        assert run.report().tables[0].reason == ("Fenced" if fenced else "NotReady")
    land_late(letters.topic, appended[0])
    assert letters.offsets() == [0, 1, 2, 4, 5]
    letters.replay()
    assert letters.letters() == [3]
    letters.check(6)


def land_late(topic: Topic, updated: Any) -> None:
    """Complete an append as a REST catalog does: on top of the present properties, and with those of the append."""
    operations, snapshot = topic.fresh().operations(), updated.currentSnapshot()
    base = operations.current()
    builder = topic.lake.spark._jvm.org.apache.iceberg.TableMetadata.buildFrom(base).setBranchSnapshot(snapshot, "main")
    operations.commit(base, builder.setProperties({names.REPLAY: updated.properties()[names.REPLAY]}).build())


def test_commits_of_ingestion_and_of_a_replay_do_not_disturb_each_other(letters: Letters) -> None:
    """The driver plans its round before the replay and commits it afterwards."""
    base = letters.topic.landed
    letters.replay()
    letters.topic.landed = base
    letters.ingest(fitting(6), wrong(7))
    letters.check(8)


def test_letters_of_a_round_whose_rows_are_not_committed_stay(lake: Lake) -> None:
    made = Letters(lake)
    made.ingest(fitting(0))
    base, end = made.topic.landed, made.topic.end
    made.ingest(wrong(1))
    # The crash came between the two commits of the round.
    assert base is not None
    made.topic.sql(f"CALL tidy_lake.system.rollback_to_snapshot('{{t}}', {base.snapshot_id})")
    assert made.replay().matched == 0
    assert made.letters() == [end]


def test_a_letter_whose_offset_the_log_gave_to_another_record_stays(letters: Letters) -> None:
    """A row with the offset of a letter and another timestamp is another record."""
    letters.topic.sql(
        "INSERT INTO {t} SELECT id, name, at, named_struct('partition', _kafka.partition, 'offset', 1L, 'timestamp', _kafka.timestamp,"
        " 'timestamp_ms', 7L, 'timestamp_type', _kafka.timestamp_type, 'key', _kafka.key, 'headers', _kafka.headers), extra"
        " FROM {t} WHERE _kafka.offset = 0"
    )
    report = letters.replay()
    assert report.failures == {"WrongKind": 1, "OffsetTaken": 1}
    assert letters.letters() == [1, 3]
    assert letters.offsets() == [0, 1, 2, 4, 5]


def test_letters_whose_offset_is_taken_count_within_the_limit(letters: Letters) -> None:
    letters.topic.sql(
        "INSERT INTO {t} SELECT id, name, at, named_struct('partition', _kafka.partition, 'offset', 1L, 'timestamp', _kafka.timestamp,"
        " 'timestamp_ms', 7L, 'timestamp_type', _kafka.timestamp_type, 'key', _kafka.key, 'headers', _kafka.headers), extra"
        " FROM {t} WHERE _kafka.offset = 0"
    )
    report = letters.replay(records=2, codes=("UnknownField",))
    assert (report.landed, report.failures) == (2, {})
    assert letters.letters() == [1, 3]


@pytest.mark.parametrize("crashes", [pytest.param(False, marks=pytest.mark.long), True])
def test_letters_land_beside_rows_of_an_earlier_topic_with_the_same_offsets(lake: Lake, *, crashes: bool) -> None:
    """The producer sends its records again: they have the offsets, times and keys of those of the earlier topic."""
    made = Letters(lake)
    made.refuse_unknown_fields()
    made.ingest(fitting(0), fitting(1), unknown(2))
    made.create_again()
    made.ingest(fitting(0), unknown(1), wrong(2))
    made.mend()
    if crashes:
        lake.prepare(made.topic.work(replay=made.work()), failpoints="after-replay-append=raise:1").work()
        assert made.offsets() == [0, 0, 1, 1]
    report = made.replay()
    assert (report.matched, report.landed, report.failures) == (2, 1, {"WrongKind": 1})
    assert made.offsets() == [0, 0, 1, 1]
    assert made.letters() == [2, 2]


def test_a_replay_does_not_land_letters_that_are_rows_already(letters: Letters) -> None:
    """Even if a user has removed the mark of a replay that crashed."""
    work = letters.topic.work(replay=letters.work())
    letters.lake.prepare(work, failpoints="after-replay-append=raise:1").work()
    letters.topic.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('firn.replay')")
    letters.replay()
    assert letters.offsets() == [0, 1, 2, 4, 5]
    assert letters.letters() == [3]


AVRO = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}%s]}'
NAMED, SIZED = AVRO % ', {"name": "name", "type": "string"}', AVRO % ', {"name": "size", "type": "int"}'


GUID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")


class Registry:
    """A schema registry that now has schema 7, of which the driver knew nothing, and schema 9, whose field no column holds."""

    def __init__(self, *_: object) -> None:
        pass

    def by_id(self, number: int) -> Registered | None:
        texts = {7: NAMED, 9: SIZED}
        return Registered(number, "AVRO", WriterSchema(text=texts[number])) if number in texts else None

    def id_of(self, guid: str) -> int | None:
        return 7 if guid == str(GUID) else None

    def subjects(self, number: int, *, deleted: bool) -> frozenset[str]:
        return frozenset({"t-value"})


def test_letters_of_a_registered_schema_land_and_others_stay(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "SchemaRegistry", Registry)
    made = Letters(lake)
    subject = Subject(registry="main", name="t-value")
    text = AVRO % ""
    made.use(RecordSchema(format="Avro", fields=FIELDS, text=text, framing="Registry", subject=subject, schema_id=1))
    made.writers = {number: Refusal(Code.UNKNOWN_SCHEMA, "no such schema") for number in (7, 8, 9)}
    made.ingest(*(b"\0\0\0\0" + bytes([number]) + b"\x0a\x02a" for number in (7, 8, 9)))
    assert made.letters() == [0, 1, 2]
    report = made.replay()
    assert (report.landed, report.failures) == (1, {"UnknownSchema": 1, "IncompatibleSchema": 1})
    (row,) = made.topic.rows()
    assert (row["id"], row["name"], row["at"], row["_kafka"]["schema_id"]) == (5, "a", None, 7)


def test_letters_are_read_with_the_ids_in_their_headers(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "SchemaRegistry", Registry)
    made = Letters(lake)
    subject = Subject(registry="main", name="t-value", id_in="Header")
    schema = RecordSchema(
        format="Avro", fields=FIELDS, text=AVRO % "", framing="Registry", subject=subject, schema_id=1
    )
    made.use(schema)
    other = uuid.UUID(int=7)
    made.writers = {each: Refusal(Code.UNKNOWN_SCHEMA, "no such schema") for each in (7, str(GUID), str(other))}
    ids = (b"\0\0\0\0\7", b"\1" + GUID.bytes, b"\1" + other.bytes, b"\0\7")
    made.ingest(*[b"\x0a\x02a"] * 5, headers=[*([{"key": "__value_schema_id", "value": each}] for each in ids), None])
    assert made.letters() == [0, 1, 2, 3, 4]
    report = made.replay()
    assert (report.landed, report.failures) == (2, {"UnknownSchema": 3})
    assert [(row["id"], row["name"], row["_kafka"]["schema_id"]) for row in made.topic.rows()] == [(5, "a", 7)] * 2


def test_letters_land_in_computed_columns(letters: Letters) -> None:
    """A projection that reads the field which the schema lacked before."""
    computed = ProjectedColumn(name="word", type="string", source="$.extra")
    schema = letters.job.record_schema
    letters.use(schema.model_copy(update={"projection": Projection(columns=(computed,), keeps_others=True)}))
    assert letters.replay().landed == 3
    assert {row["id"]: row["word"] for row in letters.topic.rows()} == {0: None, 1: "e1", 2: "e2", 4: "e4", 5: None}


def test_letters_land_on_the_branch_and_reach_main_with_the_next_publishing(letters: Letters) -> None:
    topic, committer = letters.topic, letters.topic.committer
    topic.landed = land_on(committer, topic.table, "staging", topic.landed, letters.topic_id, 1)
    lake, work = letters.lake, topic.work(replay=letters.work())
    lake.prepare(work, failpoints="after-replay-append=raise:1").work()
    assert letters.audited() == (0, 0)
    assert letters.replay().landed == 3
    assert letters.letters() == [3]
    assert letters.offsets() == [0, 5], "readers of main see no row before the publishing"
    branch = lake.spark.read.format("iceberg").option("branch", "staging").load(topic.identifier)
    assert sorted(row[0] for row in branch.select("_kafka.offset").collect()) == [0, 1, 2, 4, 5]
    topic.landed = land_on(committer, topic.table, "main", newest(topic.fresh()), letters.topic_id, 1)
    letters.check(6)
