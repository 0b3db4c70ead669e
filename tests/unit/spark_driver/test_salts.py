"""Rounds and replays give tasks the salts of a topic's digests. Without a salt, its topic waits, and others land."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model.errors import NotReadyError
from firn.model.jobs import Column, IngestJob, KafkaConnection, ProjectedColumn, Projection, RecordSchema
from firn.schemas.other_clients import Followed
from firn.tables import rows
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds import rounds
from firn_spark.ingestion.rounds.landing_job import LandingJobs
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.ingestion.rounds.rounds import Rounds
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.maintenance.replaying import decoding
from firn_spark.maintenance.replaying.decoding import Decoding
from firn_spark.worker.landing import LandingPlan
from tests.unit.spark import tables
from tests.unit.spark_driver import topic as topics

SALT = b"a salt of 24 random bytes"
SCHEMA = RecordSchema(
    format="Json",
    fields=(Column(name="mail", type="string"),),
    projection=Projection(
        columns=(ProjectedColumn(name="hash", type="string", source="$.mail", function="Sha256", salt="people"),)
    ),
)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Return the files of two salts. The file of the second one does not exist."""
    (tmp_path / "people").write_bytes(SALT + b"\n")
    return {name: str(tmp_path / name) for name in ("people", "gone")}


class Spark:
    """Takes the plan of a job, and runs no task."""

    plan: LandingPlan

    @property
    def sparkContext(self) -> "Spark":
        return self

    def parallelize(self, *_: Any) -> "Spark":
        return self

    def selectExpr(self, *_: str) -> "Spark":
        return self

    def coalesce(self, _: int) -> "Spark":
        return self

    def mapPartitions(self, work: Any) -> "Spark":
        self.plan = work.args[2]
        return self

    def mapInArrow(self, work: Any, _: str) -> "Spark":
        self.plan = work.keywords["plan"]
        return self

    def collect(self) -> list[Any]:
        return []


def read(files: dict[str, str], tmp_path: Path, *landing: Topic) -> LandingPlan:
    """Return the plan of a job that reads a record of each topic."""
    kafka: Any = SimpleNamespace(connection=KafkaConnection(bootstrap_servers="kafka:9092"))
    spark = Spark()
    for each in landing:
        each.table.spec = tables.table_of(each.job, tmp_path / each.job.name)
    LandingJobs(spark, lambda _: kafka, tasks=1, buffer_bytes=1, salts=files).run(
        {each: {0: (0, 1)} for each in landing}
    )
    return spark.plan


def test_the_tasks_of_a_round_get_the_salts_of_each_topic_as_they_are_now(
    files: dict[str, str], tmp_path: Path
) -> None:
    people, plain = topics.topic("people", record_schema=SCHEMA), topics.topic("plain")
    plan = read(files, tmp_path, people, plain)
    assert {name: landing.salts for name, landing in plan.topics.items()} == {"people": {"people": SALT}, "plain": {}}
    Path(files["people"]).write_bytes(SALT * 2)
    assert read(files, tmp_path, people).topics["people"].salts == {"people": SALT * 2}


def test_a_topic_without_its_salt_waits_and_the_others_of_its_round_land(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[str] = []

    def plan(ready: Sequence[Topic], *_: Any) -> dict[Topic, Any]:
        planned.extend(each.job.topic for each in ready)
        return {}

    monkeypatch.setattr(rounds, "plan", plan)
    nothing: Any = None
    preparation = Preparation(nothing, nothing, nothing, nothing, Failpoints(), salts={"people": files["gone"]})
    turns: Any = SimpleNamespace(round_bytes=lambda _: 1, next_bytes=lambda _: 0)
    running = Rounds(lambda _: nothing, preparation, nothing, nothing, Failpoints(), turns, nothing)
    salted, plain = topics.topic("salted", record_schema=SCHEMA, claimed=True), topics.topic("plain", claimed=True)
    running.run([salted, plain])
    assert planned == ["plain"]
    assert str(salted.attempts.error).startswith(f"salt people: secret file {files['gone']} cannot be read")
    Path(files["gone"]).write_bytes(SALT)
    salted.letters.claimed = True
    running.run([salted])
    assert planned == ["plain", "salted"], "no restart is necessary"


class Columns:
    """A catalog whose table has the columns of the job."""

    def __init__(self, job: IngestJob) -> None:
        self._job = job

    def followed(self, *_: Any) -> Followed:
        return Followed()

    def columns(self, _: Any) -> dict[str, str]:
        return {each.name: each.type for each in rows.columns_of_table(self._job.record_schema, self._job.table)}

    def spec(self, _: Any) -> Any:
        return None


def test_a_replay_computes_the_digests_with_the_salt(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "texts", dict)
    job = topics.job(record_schema=SCHEMA)
    table: Any = SimpleNamespace(properties=dict, name=lambda: "lake.shop.orders")
    spark, nothing = Spark(), cast(Any, None)
    replaying = Decoding(spark, cast(Any, Columns(job)), table, job, 1)
    replaying.run(spark, 1, table, nothing, files)
    assert spark.plan.topics["orders"].salts == {"people": SALT}
    with pytest.raises(NotReadyError, match="salt people is not in the settings of this process"):
        replaying.run(spark, 1, table, nothing, {})
