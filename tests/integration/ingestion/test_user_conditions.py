"""Operator and driver together: conditions while access is denied, while records wait, and after another driver took
over.

Each of these conditions recovers by itself when its cause is removed."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from firn.model import names
from firn.model.errors import ExitCode
from firn_spark.ingestion.driver import Driver
from firn_spark.ingestion.jobs import DirectoryJobs
from tests import apiserver
from tests.apiserver import SYSTEM
from tests.integration.ingestion.stage import WAIT, Pod, Secrets, Stage, driver_settings
from tests.integration.operator.conftest import World
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres
from tests.servers.process import await_true, free_port, tail
from tests.servers.proxies.tcp import Proxy
from tests.servers.s3 import S3

ROOT = Path(__file__).parents[3]
ADMINISTRATION = ("DESCRIBE", "CREATE", "ALTER", "ALTER_CONFIGS", "DESCRIBE_CONFIGS", "DELETE")
_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """Return a topic name that only this module uses."""
    return f"condition-{next(_numbers)}"


@pytest.fixture(scope="module")
def admin(broker: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def slow(database: Postgres) -> Iterator[Proxy]:
    """Run a proxy between the driver and the database of catalog ``slow``."""
    with Proxy(database.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def stage(
    tmp_path_factory: pytest.TempPathFactory,
    broker: Kafka,
    database: Postgres,
    storage: S3,
    spark: object,
    admin: AdminClient,
    secrets: Secrets,
    slow: Proxy,
) -> Iterator[Stage]:
    with apiserver.prepared() as api, psycopg.connect(**sql(database)) as connection:
        api.call("POST", f"/api/v1/namespaces/{SYSTEM}/configmaps", {"metadata": {"name": names.CONFIG_OBJECT}})
        connection.execute("create role rotated login password 'first' in role firn")
        connection.commit()
        set_password(admin, "guest", "guest")
        set_password(admin, "member", "first")
        grant(admin, "member", "*", *ADMINISTRATION, "READ")
        operator = World(api, broker, database, tmp_path_factory.mktemp("operator"))
        config = operator.configuration(
            resync="5s",
            progressInterval="1s",
            groups={"default": {"cores": 2}, "other": {}},
            profiles={
                "classic": {"bootstrapServers": broker.bootstrap},
                "guest": guarded(broker, secrets, "guest", "guest"),
                "member": guarded(broker, secrets, "member", "first", "wrong"),
            },
            catalogs={
                "lake": catalog(database, storage, secrets, "lake"),
                "slow": catalog(database, storage, secrets, "slow"),
                "rotated": catalog(database, storage, secrets, "rotated", user="rotated", password="first"),
                "closed": catalog(database, storage, secrets, "closed", storage_key="wrong"),
            },
        )
        made = Stage(operator, config, secrets, spark, {"default": free_port(), "other": free_port()})
        through = made.settings.catalogs["slow"].model_copy(
            update={"uri": f"postgresql://127.0.0.1:{slow.port}/postgres"}
        )
        made.settings = made.settings.model_copy(update={"catalogs": {**made.settings.catalogs, "slow": through}})
        with made:
            yield made


def sql(database: Postgres) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": database.port, "user": database.user, "password": database.password,
            "dbname": "postgres"}  # fmt: skip


def guarded(broker: Kafka, secrets: Secrets, user: str, password: str, given: str | None = None) -> dict[str, Any]:
    """Return a profile with a login."""
    assert broker.secure is not None
    ca = (broker.directory / "tls" / "ca.crt").read_text()
    sasl = {"mechanism": "SCRAM-SHA-512", "username": user, "password": secrets.put(user, "password", password, given)}
    security = {"tls": True, "ca": secrets.put(user, "ca.crt", ca), "sasl": sasl}
    return {"bootstrapServers": broker.secure, "security": security}


def catalog(
    database: Postgres,
    storage: S3,
    secrets: Secrets,
    name: str,
    user: str = "",
    password: str = "",
    storage_key: str | None = None,
) -> dict[str, Any]:
    """Return a catalog with its own Secrets."""
    return {
        "type": "sql",
        "uri": database.uri,
        "warehouse": f"s3://{storage.bucket}/{name}",
        "properties": {**storage.properties, "user": user or database.user},
        "secretProperties": {
            "password": secrets.put(name, "password", password or database.password),
            "s3.secret-access-key": secrets.put(name, "secret-key", storage.secret_key, storage_key),
        },
    }


def set_password(admin: AdminClient, user: str, password: str) -> None:
    mechanism = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    upsertion = UserScramCredentialUpsertion(user, mechanism, password.encode())
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(30)


def grant(admin: AdminClient, user: str, topic: str, *operations: str) -> None:
    bindings = [
        AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", getattr(AclOperation, operation),
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]  # fmt: skip
    for future in admin.create_acls(bindings).values():
        future.result(30)


def test_a_condition_reports_missing_kafka_rights(stage: Stage, admin: AdminClient, name: str) -> None:
    stage.apply(name, profile="guest")
    denied = stage.await_condition(
        name,
        "TopicReady",
        "False",
        "AccessDenied",
        saying=(name, "uthorization failed", "grant the operator's user Describe, Create"),
    )
    assert denied in stage.operator.condition(name, "Ready")[2]
    grant(admin, "guest", name, *ADMINISTRATION)
    stage.await_condition(name, "TopicReady", "True", "Created")
    stage.produce(name, 0, 5)
    # The driver may describe the topic now, and may not read it.
    stage.await_condition(
        name,
        "IngestionReady",
        "False",
        "BackingOff",
        saying=(name, "uthorization failed", "grant the driver's user Describe and Read"),
    )
    assert stage.status_and_reason(name, "TopicReady")[0] == "True"
    grant(admin, "guest", name, "READ")
    stage.await_condition(name, "Ready", "True")
    stage.await_landed(name, "lake", 5)


def test_a_condition_reports_a_wrong_kafka_password(stage: Stage, admin: AdminClient, name: str) -> None:
    stage.apply(name, profile="member")
    stage.await_condition(
        name,
        "TopicReady",
        "False",
        "AccessDenied",
        saying=("uthentication failed", "correct the profile's credentials"),
    )
    stage.rotate("member", "password", "first")
    stage.await_condition(name, "Ready", "True")
    stage.produce(name, 0, 5)
    stage.await_landed(name, "lake", 5)
    # The password changes at the brokers first, and in the Secret later.
    set_password(admin, "member", "second")
    stage.produce(name, 5, 5)
    stage.await_condition(
        name,
        "IngestionReady",
        "False",
        "BackingOff",
        saying=("uthentication failed", "correct the profile's credentials"),
    )
    stage.rotate("member", "password", "second")
    stage.await_condition(name, "Ready", "True")
    stage.await_landed(name, "lake", 10)


@pytest.mark.long
def test_a_condition_reports_a_changed_database_password(stage: Stage, database: Postgres, name: str) -> None:
    stage.apply(name, table={"catalog": "rotated"})
    stage.await_condition(name, "Ready", "True")
    stage.produce(name, 0, 5)
    stage.await_landed(name, "rotated", 5)
    with psycopg.connect(**sql(database), autocommit=True) as connection:
        connection.execute("alter role rotated password 'second'")
        connection.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'rotated'")
    stage.await_condition(
        name,
        "TableReady",
        "False",
        "AccessDenied",
        saying=("catalog rotated", "password authentication failed", "check the catalog's credentials"),
    )
    assert stage.status_and_reason(name, "TopicReady")[0] == "True"
    stage.produce(name, 5, 5)
    stage.await_condition(
        name,
        "IngestionReady",
        "False",
        "BackingOff",
        saying=("password authentication failed", "correct its credentials"),
    )
    stage.rotate("rotated", "password", "second")
    stage.await_condition(name, "Ready", "True")
    stage.await_landed(name, "rotated", 10)


def test_a_condition_reports_wrong_storage_credentials(stage: Stage, storage: S3, name: str) -> None:
    stage.apply(name, table={"catalog": "closed"})
    stage.await_condition(
        name, "TableReady", "False", "AccessDenied", saying=("closed.demo", "check the catalog's credentials")
    )
    stage.rotate("closed", "secret-key", storage.secret_key)
    stage.await_condition(name, "Ready", "True")
    stage.produce(name, 0, 5)
    stage.await_landed(name, "closed", 5)


def test_fresh_reports_waiting_records_and_ready_stays_true(stage: Stage, slow: Proxy, name: str) -> None:
    stage.apply(name, table={"catalog": "slow"})
    stage.await_condition(name, "Ready", "True")
    stage.await_condition(name, "Fresh", "Unknown", "NoRecords")
    stage.produce(name, 0, 5)
    stage.await_condition(name, "Fresh", "True", "WithinTarget")
    stage.await_landed(name, "slow", 5)
    slow.hold()
    try:
        stage.produce(name, 5, 5)
        assert "longer than 5s" in stage.await_condition(name, "Fresh", "False", "Behind")
        assert stage.status_and_reason(name, "Ready") == ("True", "AllReady")
    finally:
        slow.release()
    stage.await_condition(name, "Fresh", "True", "WithinTarget")
    stage.await_landed(name, "slow", 10)


@pytest.mark.long
def test_fresh_reports_waiting_records_without_a_catalog(stage: Stage, slow: Proxy, name: str) -> None:
    stage.apply(name, table={"catalog": "slow"})
    stage.await_condition(name, "Ready", "True")
    stage.produce(name, 0, 5)
    stage.await_condition(name, "Fresh", "True", "WithinTarget")
    stage.await_landed(name, "slow", 5)
    slow.cut()
    try:
        stage.produce(name, 5, 5)
        stage.await_condition(name, "IngestionReady", "False", "BackingOff")
        stage.await_condition(name, "Fresh", "False", "Behind")
    finally:
        slow.mend()
    stage.await_condition(name, "Fresh", "True", "WithinTarget")
    stage.await_condition(name, "Ready", "True")
    stage.await_landed(name, "slow", 10)


@pytest.mark.long
def test_a_driver_that_lost_its_epoch_waits_until_the_other_stops(
    stage: Stage, spark: object, name: str, tmp_path: Path
) -> None:
    settings = driver_settings(stage.config, "other", stage.secrets.given, stage.ports["other"])
    settings = settings.model_copy(update={"jobs_directory": str(tmp_path / "jobs")})
    (tmp_path / "jobs").mkdir()
    (tmp_path / "group.json").write_text(settings.model_dump_json())
    stage.apply(name, ingestion={"freshness": "5s", "group": "other"})
    (tmp_path / "jobs" / "job.json").write_text(stage.job(name))
    pod = Pod(stage, "other")

    def run_another(count: int) -> None:
        """Run a later driver of the same group until ``count`` records have landed."""
        another = Driver(
            settings.model_copy(update={"listen": "127.0.0.1:0"}), spark, DirectoryJobs(str(tmp_path / "jobs"), "other")
        )
        with ThreadPoolExecutor(1) as pool:
            code = pool.submit(another.run)
            try:
                await_true(f"{count} records", lambda: stage.landed(name, "lake") == {0: count}, WAIT)
            finally:
                another.loop.stop()
            assert code.result(60) == ExitCode.DONE

    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'spark_apps'}"}
    command = [sys.executable, str(ROOT / "spark_apps" / "ingest.py"), str(tmp_path / "group.json")]
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    pod.running()
    try:
        stage.await_condition(name, "Ready", "True")
        stage.produce(name, 0, 5)
        stage.await_landed(name, "lake", 5)
        # The first driver is frozen while a later driver lands records. Then it continues.
        driver.send_signal(signal.SIGSTOP)
        stage.produce(name, 5, 5)
        run_another(10)
        stage.produce(name, 10, 5)
        driver.send_signal(signal.SIGCONT)
        stage.await_condition(name, "IngestionReady", "False", "Fenced", saying=["make sure that only one"])
        assert stage.status_and_reason(name, "Ready") == ("False", "Fenced")
        stage.await_landed(name, "lake", 15)
        stage.await_condition(name, "IngestionReady", "True")
        assert driver.poll() is None, tail(tmp_path / "driver.log")
    finally:
        driver.kill()
        driver.wait(30)
        pod.delete()
