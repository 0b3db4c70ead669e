"""Maintenance runs on REST catalogs whose tokens and vended credentials expire during the work."""

from collections import Counter
from typing import Any

import httpx
import pytest

from firn.model.errors import ExitCode
from firn.model.maintenance import CompactionWork, RetentionWork, RowsWork, SnapshotsWork
from firn_spark import failpoints
from firn_spark.failpoints import Failpoints
from firn_spark.tables.catalogs import catalog_conf
from tests.integration.maintenance.lake import DAY, Lake, ago
from tests.servers.iceberg_rest import IcebergRest, Rules
from tests.servers.process import await_true

COMPACTION = {"compaction": CompactionWork(open_grace_ms=0)}
RETENTION = {
    "retention": RetentionWork(
        enforce=True, snapshots=SnapshotsWork(max_age_ms=0, min_keep=1), metadata_keep=5, orphan_min_age_ms=0
    )
}


class Expiry(Failpoints):
    """Lets everything that was handed out expire at a passage of a place."""

    def __init__(self, rules: Rules, place: str, passage: int = 1) -> None:
        super().__init__()
        self._rules, self._place, self._passage = rules, place, passage
        self.passages: Counter[str] = Counter()

    def reach(self, name: failpoints.Name) -> None:
        self.passages[name] += 1
        if (name, self.passages[name]) == (self._place, self._passage):
            self._rules.expire()


def expires_at(rules: Rules, lake: Lake, place: str, status: int, **work: Any) -> ExitCode:
    """Let everything expire at ``place`` of a run. Check that no row is lost or duplicated, and that the next attempt
    and ingestion succeed. Return the exit code of the first attempt."""
    topic = lake.topic()
    topic.ingest(4)
    rules.expired_status = status
    expiry = Expiry(rules, place)
    run = lake.prepare(topic.work(**work), failpoints=expiry)
    code = run.work()
    assert expiry.passages[place]
    # An expiry is no wrong setting: the Job makes another attempt.
    assert code in (ExitCode.DONE, ExitCode.TEMPORARY), run.report()
    topic.check()
    lake.run(topic.work(**work))
    assert len(topic.data_files()) == 1
    topic.ingest(1)
    topic.check()
    return code


@pytest.mark.parametrize(
    ("place", "status", "code"),
    [
        pytest.param("before-rewrite", 401, ExitCode.TEMPORARY, marks=pytest.mark.long),
        # Credentials are renewed before the commit.
        ("after-rewrite", 401, ExitCode.DONE),
        ("in-commit", 419, ExitCode.TEMPORARY),
        pytest.param("after-commit", 401, ExitCode.TEMPORARY, marks=pytest.mark.long),
        # The merge of manifests reads the table after that.
        pytest.param("after-readback", 401, ExitCode.TEMPORARY, marks=pytest.mark.long),
        pytest.param("before-deletion", 401, ExitCode.TEMPORARY, marks=pytest.mark.long),
    ],
)
def test_a_run_survives_the_expiry_of_its_credentials_at_each_place(
    iceberg_catalog: IcebergRest, fixture_lake: Lake, place: str, status: int, code: ExitCode
) -> None:
    assert expires_at(iceberg_catalog.rules, fixture_lake, place, status, **COMPACTION, **RETENTION) == code


@pytest.mark.parametrize(
    ("place", "status", "code"),
    [
        pytest.param("after-rewrite", 401, ExitCode.DONE, marks=pytest.mark.long),
        ("in-commit", 419, ExitCode.TEMPORARY),
        pytest.param("before-rewrite", 401, ExitCode.TEMPORARY, marks=pytest.mark.long),
    ],
)
def test_a_run_on_nessie_survives_the_expiry_of_its_credentials(
    proxied_nessie: IcebergRest, nessie_lake: Lake, place: str, status: int, code: ExitCode
) -> None:
    assert expires_at(proxied_nessie.rules, nessie_lake, place, status, **COMPACTION) == code


class Renewals(Failpoints):
    """Holds the run before it rewrites files, until its client has got two more tokens by itself."""

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self._rules = rules
        self.held = False

    def reach(self, name: failpoints.Name) -> None:
        if name == "before-rewrite" and not self.held:
            self.held, issued = True, self._rules.issued
            await_true("two more tokens", lambda: self._rules.issued >= issued + 2, 60)


def test_a_run_outlasts_its_tokens(iceberg_catalog: IcebergRest, fixture_lake: Lake) -> None:
    topic = fixture_lake.topic()
    topic.ingest(4)
    iceberg_catalog.rules.life_seconds = 4
    renewals = Renewals(iceberg_catalog.rules)
    run = fixture_lake.prepare(topic.work(**COMPACTION, **RETENTION), failpoints=renewals)
    assert run.work() == ExitCode.DONE, run.report()
    assert renewals.held
    assert len(topic.data_files()) == 1
    topic.check()


def test_a_retention_run_keeps_what_another_branch_of_nessie_needs(
    proxied_nessie: IcebergRest, nessie_lake: Lake, spark: Any
) -> None:
    topic = nessie_lake.topic()
    topic.ingest(3, at=ago(40))
    topic.ingest(4, at=ago(1))
    origin = proxied_nessie.direct.uri.removesuffix("/iceberg/")
    main = httpx.get(f"{origin}/api/v2/trees/main").json()["reference"]
    httpx.post(f"{origin}/api/v2/trees", params={"name": "audit", "type": "BRANCH"}, json=main).raise_for_status()
    branch = nessie_lake.contract.model_copy(
        update={"catalogs": {"branch": proxied_nessie.direct.model_copy(update={"uri": f"{origin}/iceberg/audit/"})}}
    )
    for key, setting in catalog_conf(branch).items():
        spark.conf.set(key, setting)
    there = f"branch.{topic.job.table.namespace}.{topic.job.table.name}"
    before = topic.objects()
    rows = RowsWork(column="at", max_age_ms=30 * DAY)
    work = RETENTION["retention"].model_copy(update={"rows": rows})
    run = nessie_lake.prepare(topic.work(**COMPACTION, retention=work))
    assert run.work() == ExitCode.CONFIGURATION
    (report,) = run.report().tables
    assert (report.outcome, report.reason) == ("Failed", "NotAllowed")
    assert "may have branches, tags or earlier versions of its own" in report.message
    # Rows and small files are no deletion of files: both parts work.
    assert report.rows is not None
    assert report.rows.items == 30
    assert (report.snapshots, report.metadata, report.orphans) == (None, None, None)
    assert topic.ids() == list(range(30, 70))
    assert len(topic.data_files()) == 1
    assert before <= topic.objects()
    frame = spark.read.format("iceberg").load(there)
    assert sorted(row["id"] for row in frame.select("id").collect()) == list(range(70))
    topic.ingest(1, at=ago(1))
    assert topic.ids() == list(range(30, 80))
