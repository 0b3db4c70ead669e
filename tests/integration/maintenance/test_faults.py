"""Runs that are killed, disconnected, fenced, raced, or lose their table lose and duplicate no row, and ingestion
continues."""

import signal
import threading
import time
from collections.abc import Callable
from typing import Any, get_args

import pytest

from firn.model import names
from firn.model.errors import ExitCode
from firn.model.maintenance import CompactionWork, RetentionWork, RowsWork, SnapshotsWork
from firn.tables.compaction import MIN_FILES
from firn_spark import failpoints
from firn_spark.leases import Files, Lease, Leases, Record
from firn_spark.maintenance.steps import retention
from firn_spark.tables.commits import newest
from tests.contract.driver_tables import commit_ahead
from tests.integration.maintenance.equality_deletes import delete_values
from tests.integration.maintenance.lake import CATALOG, DAY, Lake, Topic, ago
from tests.integration.maintenance.test_compaction import while_rewriting
from tests.servers.postgres import Postgres
from tests.servers.process import await_true
from tests.servers.proxies.tcp import Proxy

NOW = CompactionWork(open_grace_ms=0)
ALL = {
    "compaction": NOW,
    "retention": RetentionWork(enforce=True, snapshots=SnapshotsWork(max_age_ms=0, min_keep=1), metadata_keep=5),
}


ROWS = {"retention": RetentionWork(enforce=True, rows=RowsWork(column="at", max_age_ms=30 * DAY))}


def goes_on(lake: Lake, topic: Topic) -> None:
    """Check that no row is lost or duplicated, and that ingestion and the next run succeed."""
    topic.check()
    topic.ingest(1)
    topic.check()
    lake.run(topic.work(**ALL))
    files = topic.data_files()
    assert len(files) < MIN_FILES * len({str(file.get("partition")) for file in files})
    topic.check()


EVERYWHERE = [
    place if place in ("after-commit", "before-deletion") else pytest.param(place, marks=pytest.mark.long)
    for place in get_args(failpoints.Maintenance)
]


@pytest.mark.parametrize("place", EVERYWHERE)
def test_a_failure_at_each_place_loses_no_row(lake: Lake, place: str) -> None:
    topic = lake.topic()
    topic.ingest(4)
    run = lake.prepare(topic.work(**ALL), failpoints=f"{place}=raise:1")
    code = run.work()
    (report,) = run.report().tables
    if place == "after-commit":
        # The commit took effect, so the run does not trust the exception.
        assert (code, report.outcome) == (ExitCode.DONE, "Done")
    else:
        assert (code, report.outcome, report.reason) == (ExitCode.TEMPORARY, "Failed", "RunFailed")
    goes_on(lake, topic)


def test_a_run_and_ingestion_continue_on_a_table_that_is_ahead_of_the_clock(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(4)
    ahead = int(time.time() * 1000) + 3_600_000
    commit_ahead(lake.spark._jvm, topic.table, ahead)
    report = lake.run(topic.work(**ALL))
    assert (report.outcome, report.files_after) == ("Done", 1)
    goes_on(lake, topic)
    assert max(int(each.timestampMillis()) for each in topic.fresh().snapshots()) == ahead


def killed(lake: Lake, place: str) -> None:
    topic = lake.topic()
    topic.ingest(4)
    with lake.spawn(topic.work(**ALL), failpoints=f"{place}=kill:1", lease_seconds=3) as run:
        assert run.wait() == -signal.SIGKILL, run.log_tail()
    goes_on(lake, topic)


def test_kill_9_in_a_commit_loses_no_row(lake: Lake) -> None:
    killed(lake, "in-commit")


@pytest.mark.long
@pytest.mark.parametrize("place", [place for place in get_args(failpoints.Maintenance) if place != "in-commit"])
def test_kill_9_at_each_place_loses_no_row(lake: Lake, place: str) -> None:
    killed(lake, place)


def old_and_young(lake: Lake) -> Topic:
    """Return a table with a file of old rows, a file of young rows, and a file in which every second row is old. 15
    of 30 rows are to be deleted."""
    topic = lake.topic(properties={"write.delete.mode": "merge-on-read"})
    for at in ([ago(40)], [ago(40), ago(1)], [ago(1)]):
        topic.ingest(1, at=at)
    return topic


YOUNG = [*range(11, 20, 2), *range(20, 30)]


@pytest.mark.parametrize(
    "place",
    [
        place if place == "in-commit" else pytest.param(place, marks=pytest.mark.long)
        for place in get_args(failpoints.Maintenance)
        if place != "before-deletion"
    ],
)
@pytest.mark.parametrize("passage", [1, 2])
def test_a_failure_while_rows_are_dropped_keeps_the_others(lake: Lake, place: str, passage: int) -> None:
    topic = old_and_young(lake)
    run = lake.prepare(topic.work(**ROWS), failpoints=f"{place}=raise:{passage}")
    run.work()
    assert set(YOUNG) <= set(topic.ids())
    assert len(topic.ids()) in (30, 20, 15)
    lake.run(topic.work(**ROWS))
    assert topic.ids() == YOUNG
    topic.ingest(1, at=ago(1))
    assert topic.ids() == [*YOUNG, *range(30, 40)]


def foreign_compaction(lake: Lake, topic: Topic) -> None:
    table = f"{topic.job.table.namespace}.{topic.job.table.name}"
    call = f"CALL {CATALOG}.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
    lake.spark.sql(call).collect()


OTHERS: dict[str, tuple[Callable[[Lake, Topic], None], list[int]]] = {
    "deletes rows": (lambda lake, topic: topic.sql("DELETE FROM {t} WHERE id IN (3, 13, 23)"), [13, 23]),
    "deletes values": (lambda lake, topic: delete_values(topic, [3, 13, 23]), [13, 23]),
    "compacts": (foreign_compaction, []),
    "appends": (lambda lake, topic: topic.ingest(1, at=ago(1)), []),
}


@pytest.mark.parametrize("other_commit", OTHERS)
@pytest.mark.parametrize("whole", [True, pytest.param(False, marks=pytest.mark.long)])
def test_concurrent_commits_are_kept_while_rows_are_dropped(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, other_commit: str, whole: bool
) -> None:
    """Plan the rows before, and drop them after, commits of other writers: whole files, or rewritten files."""
    topic = old_and_young(lake)
    act, deleted = OTHERS[other_commit]
    if whole:
        plain, acted = retention.past_files, list[Any]()

        def past(*args: Any) -> Any:
            result = plain(*args)
            if not acted:
                acted.append(True)
                act(lake, topic)
            return result

        monkeypatch.setattr(retention, "past_files", past)
    else:
        while_rewriting(monkeypatch, lambda: act(lake, topic))
    lake.run(topic.work(**ROWS))
    more = range(30, 40) if other_commit == "appends" else range(0)
    assert topic.ids() == [n for n in [*YOUNG, *more] if n not in deleted]
    landed = newest(topic.fresh())
    assert landed is not None
    assert dict(landed.offsets) == {0: topic.end}


def test_a_process_writes_its_report_and_exits_on_sigterm(lake: Lake) -> None:
    topic, other = lake.topic(), lake.topic()
    topic.ingest(4)
    # An earlier attempt seems to have left a lease, so the run waits for its expiry.
    store = Files(str(lake.contract.leases_directory))
    assert store.write(names.table_lease(other.uuid), Record(f"{lake.contract.name}/x", time.time(), 600), None)
    works = topic.work(**ALL), other.work(**ALL)
    with lake.spawn(*works, cores=1, lease_seconds=600) as run:
        await_true("the first table is compacted", lambda: topic.kinds()[-1] == "compact", 240)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == ExitCode.TEMPORARY, run.log_tail()
        first, second = run.report().tables
    assert first.outcome in ("Done", "Unfinished")
    assert (second.uid, second.outcome) == (other.job.uid, "Unfinished")
    assert "received SIGTERM" in second.message
    topic.check()
    log = run.log.read_text()
    assert "correct horse" not in log
    assert "firn-secret" not in log


def test_an_invalid_contract_has_an_exit_code_without_retry(lake: Lake) -> None:
    with lake.spawn(leases_directory=None) as run:
        assert run.wait() == ExitCode.CONFIGURATION, run.log_tail()
    assert "leases" in run.log_tail()


@pytest.fixture
def proxy(database: Postgres) -> Any:
    with Proxy(database.port) as proxy:
        yield proxy


@pytest.mark.parametrize("expiry", [False, True])
def test_a_commit_without_an_answer_is_read_back(lake: Lake, proxy: Proxy, expiry: bool) -> None:
    topic = lake.topic()
    topic.ingest(4)
    connection = lake.contract.catalogs[CATALOG]
    uri = f"postgresql://127.0.0.1:{proxy.port}/postgres"
    catalogs = {CATALOG: connection.model_copy(update={"uri": uri})}
    run = lake.prepare(topic.work(**ALL), catalogs=catalogs)
    proxy.lose_answer_to(b"UPDATE", after=1 if expiry else 0)
    code = run.work()
    assert proxy.lost
    (report,) = run.report().tables
    assert (code, report.outcome) == (ExitCode.DONE, "Done")
    assert topic.kinds() == ["compact"]
    # The committed files exist, so the run did not treat the commit as rejected.
    goes_on(lake, topic)


def test_of_two_concurrent_runs_one_works_on_a_table(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(6)
    runs = [lake.prepare(topic.work(**ALL)) for _ in range(2)]
    busy = lake.leases("somebody").acquire(names.table_lease(topic.uuid))
    assert busy is not None
    assert runs[0].work() == ExitCode.DONE
    assert [table.outcome for table in runs[0].report().tables] == ["Busy"]
    assert "somebody" in runs[0].report().tables[0].message
    busy.release()
    assert runs[1].work() == ExitCode.DONE
    assert [table.outcome for table in runs[1].report().tables] == ["Done"]
    goes_on(lake, topic)


def test_two_concurrent_runs_without_leases_lose_no_row(lake: Lake) -> None:
    """Leases only save work. The way in which commits are made protects the tables."""
    topic = lake.topic()
    topic.ingest(6)
    first = lake.prepare(topic.work(**ALL))
    other = Lake(lake.contract, lake.spark, lake.tables, lake.storage, lake.directory / "elsewhere").prepare(
        topic.work(**ALL)
    )
    threads = [threading.Thread(target=run.work) for run in (first, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    goes_on(lake, topic)


def test_a_run_that_lost_its_lease_commits_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic()
    topic.ingest(4)
    held: list[Lease] = []
    acquire = Leases.acquire

    def taken(self: Leases, name: str) -> Lease | None:
        lease = acquire(self, name)
        assert lease is not None
        held.append(lease)
        return lease

    def rob() -> None:
        store = Files(str(lake.contract.leases_directory))
        there = store.read(held[0].name)
        assert there is not None
        store.write(held[0].name, Record("robber", time.time(), 600), there.version)
        held[0].renew()

    monkeypatch.setattr(Leases, "acquire", taken)
    while_rewriting(monkeypatch, rob)
    run = lake.prepare(topic.work(**ALL))
    assert run.work() == ExitCode.TEMPORARY
    (report,) = run.report().tables
    assert (report.outcome, report.reason) == ("Failed", "Fenced")
    assert topic.kinds() == ["ingest"] * 4
    # The files that the run had written are deleted with it.
    assert sum(path.startswith("data/") for path in topic.objects()) == 4
    topic.check()


def drop(lake: Lake, topic: Topic, purge: bool) -> Callable[[], None]:
    return lambda: lake.spark.sql(f"DROP TABLE {topic.identifier} {'PURGE' if purge else ''}")


@pytest.mark.parametrize("purge", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_table_dropped_during_a_run_is_reported_as_gone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, purge: bool
) -> None:
    topic, other = lake.topic(), lake.topic()
    for ingested in (topic, other):
        ingested.ingest(4)
    while_rewriting(monkeypatch, drop(lake, topic, purge))
    run = lake.prepare(topic.work(**ALL), other.work(**ALL), cores=1)
    assert run.work() == ExitCode.DONE
    assert [table.outcome for table in run.report().tables] == ["Gone", "Done"]
    other.check()
    assert lake.run(topic.work(**ALL)).outcome == "Gone"


def test_a_recreated_table_of_the_same_name_is_not_changed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic()
    topic.ingest(4)

    def replace() -> None:
        drop(lake, topic, False)()
        again = Topic.__new__(Topic)
        again.__dict__.update(topic.__dict__)
        again.table = again.tables.ensure(topic.job)
        again.spec, again.landed, again.end = again.tables.spec(again.table), None, 0
        again.ingest(4)
        made.append(again)

    made: list[Topic] = []
    work = topic.work(**ALL)
    while_rewriting(monkeypatch, replace)
    assert lake.run(work).outcome == "Gone"
    assert made[0].kinds() == ["ingest"] * 4
    made[0].check()
    assert lake.run(work).outcome == "Gone"


@pytest.mark.parametrize("why", ["deadline", pytest.param("received SIGTERM", marks=pytest.mark.long)])
def test_a_stopped_run_leaves_uncommitted_work_unfinished(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    topic, other = lake.topic(), lake.topic()
    topic.ingest(4)
    other.ingest(4)
    run = lake.prepare(topic.work(**ALL), other.work(**ALL), cores=1)
    while_rewriting(monkeypatch, lambda: run.stop.set(why))
    assert run.work() == (ExitCode.DONE if why == "deadline" else ExitCode.TEMPORARY)
    assert [(table.outcome, table.begun) for table in run.report().tables] == [
        ("Unfinished", True),
        ("Unfinished", False),
    ]
    for unfinished in (topic, other):
        assert unfinished.kinds() == ["ingest"] * 4
        assert sum(path.startswith("data/") for path in unfinished.objects()) == 4
        goes_on(lake, unfinished)


def test_a_run_ends_at_its_deadline(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(4)
    store = Files(str(lake.contract.leases_directory))
    store.write(names.table_lease(topic.uuid), Record(f"{lake.contract.name}/before", time.time(), 600), None)
    run = lake.prepare(topic.work(**ALL), deadline_ms=300, lease_seconds=600)
    assert run.work() == ExitCode.DONE
    (report,) = run.report().tables
    assert (report.outcome, report.message) == ("Unfinished", "stopped: deadline")


@pytest.mark.long
def test_ingestion_keeps_its_rate_during_maintenance(lake: Lake) -> None:
    topic = lake.topic(partition_by=("bucket(2, id)",))
    topic.ingest(4)
    stop = threading.Event()
    failures: list[BaseException] = []

    def ingest() -> None:
        try:
            while not stop.is_set():
                topic.ingest(1, count=1_000)
                stop.wait(0.25)  # still several times the rate that any freshness requires
        except BaseException as error:
            failures.append(error)

    writer = threading.Thread(target=ingest)
    writer.start()
    try:
        outcomes = [lake.run(topic.work(**ALL)).outcome for _ in range(2)]
    finally:
        stop.set()
        writer.join()
    assert not failures
    assert "Done" in outcomes
    goes_on(lake, topic)


def test_a_rewrite_gives_up_when_its_snapshot_expires(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another engine expires snapshots during a rewrite without a lease: the rewrite gives up, and nothing is lost."""
    topic = lake.topic()
    topic.ingest(4)

    def expire() -> None:
        topic.ingest(1)
        expiry = topic.fresh().expireSnapshots().expireOlderThan(int(time.time() * 1000) + DAY).retainLast(1)
        expiry.commit()

    while_rewriting(monkeypatch, expire)
    lake.run(topic.work(compaction=NOW))
    goes_on(lake, topic)
