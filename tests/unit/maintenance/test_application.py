"""The checks of a contract before a run starts."""

from pathlib import Path

import pytest

from firn.model import names
from firn.model.config import Executors
from firn.model.errors import InvalidSpecError
from firn.model.jobs import TableTarget
from firn.model.maintenance import CompactionWork, MaintenanceRun, RetentionWork, RowsWork, TableWork
from firn_spark import documents, session
from firn_spark.maintenance.application import following, leases_of

WORK = TableWork(
    uid="u",
    namespace="n",
    name="t",
    table=TableTarget(catalog="lake", namespace="n", name="t"),
    table_uuid="x",
    compaction=CompactionWork(strategy="ZOrder", columns=("a",), everything=True, target_file_bytes=7),
    retention=RetentionWork(enforce=True, rows=RowsWork(column="at", max_age_ms=5), metadata_keep=3),
)
RUN = MaintenanceRun(name="firn-run-nightly-0a1b2c", tables=(WORK,), namespace="firn-system")


def test_a_contract_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(RUN.model_dump_json())
    assert documents.load(MaintenanceRun, str(file)) == RUN


@pytest.mark.parametrize("text", [None, "{", '{"name": "r", "tables": [{"uid": 3}]}'])
def test_an_error_names_the_file_of_an_invalid_contract(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "run.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InvalidSpecError, match=r"run\.json"):
        documents.load(MaintenanceRun, str(file))


def test_a_run_requires_the_location_of_leases() -> None:
    with pytest.raises(InvalidSpecError, match="leases"):
        leases_of(RUN.model_copy(update={"namespace": ""}))


def test_two_attempts_of_a_run_are_two_holders(tmp_path: Path) -> None:
    run = RUN.model_copy(update={"leases_directory": str(tmp_path)})
    first = leases_of(run).acquire("l")
    assert first is not None
    assert leases_of(run).acquire("l") is None
    assert leases_of(run).holder("l").startswith(f"{run.name}/")
    first.release()


def test_dead_letter_tables_are_compacted_by_their_own_columns() -> None:
    compact, retain = following(WORK)
    assert compact == CompactionWork(target_file_bytes=7)
    assert retain is not None
    assert retain.rows == RowsWork(column="ingested_at", max_age_ms=5)
    assert (retain.enforce, retain.metadata_keep) == (True, 3)
    assert following(WORK.model_copy(update={"compaction": None, "retention": None})) == (None, None)


def test_executors_of_a_run_use_the_address_of_the_driver() -> None:
    run = RUN.model_copy(update={"executors": Executors(instances=2), "executor_image": "firn-spark:1"})
    conf = session.spark_conf(run, {"POD_NAME": "p", "POD_IP": "10.0.0.9"}, "abc123")
    assert conf["spark.driver.host"] == "10.0.0.9"
    assert conf["spark.kubernetes.executor.podNamePrefix"] == "firn-run-nightly-0a1b2c-abc123"
    assert conf[f"spark.kubernetes.executor.label.{names.LABEL_RUN}"] == run.name
    assert "spark.sql.extensions" in conf
    assert "TieredStopAtLevel" not in conf["spark.driver.extraJavaOptions"]
    long = run.model_copy(update={"name": "firn-run-" + "x" * 50})
    conf = session.spark_conf(long, {"POD_NAME": "p", "POD_IP": "10.0.0.9"}, "abc123")
    prefix = conf["spark.kubernetes.executor.podNamePrefix"]
    assert prefix.endswith("-abc123")
    assert len(prefix) < 40
