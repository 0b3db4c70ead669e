"""The driver as a process: its HTTP answers, and its exit codes."""

import signal
from pathlib import Path

import httpx
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from firn.model.errors import ExitCode
from tests.integration.ingestion.world import Process, World, exactly, places, value
from tests.servers.kafka import Kafka
from tests.servers.process import await_true


def answer(driver: Process, path: str) -> httpx.Response:
    """Return an answer of the driver. Fail without one."""
    response = driver.get(path)
    assert response is not None, path
    return response


def test_a_driver_reports_progress_and_exits_on_sigterm(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, name="orders")
    world.produce(topic, [b"bad", *(value(number) for number in range(20))])
    world.apply(job)
    with world.spawn() as driver:

        def landed() -> bool:
            assert driver.process.poll() is None, (world.directory / "driver.log").read_text()[-3000:]
            response = driver.get("/progress")
            return response is not None and [
                topic_progress["rows"] for topic_progress in response.json()["topics"]
            ] == [20]

        await_true("twenty rows in /progress", landed, 300)
        (progress,) = answer(driver, "/progress").json()["topics"]
        assert (progress["uid"], progress["generation"], progress["state"], progress["dead_letters"]) == (
            job.uid,
            1,
            "CaughtUp",
            1,
        )
        assert (progress["topic_id"], progress["table_ready"]) == (world.topic_id(topic), True)
        assert progress["lag_records"] == 0
        metrics = answer(driver, "/metrics").text
        labels = '{namespace="tests",topic="orders"}'
        for line in (
            f"firn_ingest_rows_total{labels} 20.0",
            f"firn_ingest_dead_letters_total{labels} 1.0",
            f"firn_ingest_skipped_total{labels} 0.0",
            f"firn_ingest_lag_records{labels} 0.0",
            f"firn_ingest_lag_seconds{labels} 0.0",
            f"firn_ingest_commit_seconds_count{labels} 1.0",
        ):
            assert line in metrics.splitlines()
        assert "firn_ingest_bytes_total" in metrics
        assert answer(driver, "/readyz").status_code == 200
        assert answer(driver, "/livez").status_code == 200
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(120) == 0
    log = (world.directory / "driver.log").read_text()
    assert "correct horse" not in log
    assert "firn-secret" not in log
    assert len(world.rows(job)) == 20


def test_a_restarted_driver_uses_a_rotated_password(world: World, broker: Kafka) -> None:
    """The mounted file changes under the running driver, as in a pod. The driver exits and is restarted."""
    user = f"rotating_{world.suffix}"
    topic = world.topic()
    job = world.job(topic, profile="rotating")
    grant(world, user)
    let_in(world, user, "first")
    connection = broker.secure_connection(user, "first")
    world.settings = world.settings.model_copy(update={"kafka": {"rotating": connection}})
    world.produce(topic, [value(number) for number in range(10)])
    world.apply(job)
    assert connection.sasl_password_path is not None
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 10}, "offset 10", job)
    let_in(world, user, "second")
    Path(connection.sasl_password_path).write_text("second\n")
    [(_, running)] = world.drivers
    running.join(60)
    assert not running.is_alive()
    world.stop()
    world.produce(topic, [value(number) for number in range(10, 20)])
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 20}, "offset 20", job)
    assert places(world.rows(job)) == exactly({0: 20})


def grant(world: World, user: str) -> None:
    """Allow ``user`` all operations on topics."""
    everything = AclBinding(
        ResourceType.TOPIC,
        "*",
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )
    world.admin.create_acls([everything])[everything].result(30)


def let_in(world: World, user: str, password: str) -> None:
    """Set the only password of ``user``."""
    mechanism = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    change = UserScramCredentialUpsertion(user, mechanism, password.encode())
    world.admin.alter_user_scram_credentials([change])[user].result(30)


def test_invalid_settings_have_an_exit_code_without_retry(world: World) -> None:
    world.settings = world.settings.model_copy(
        update={"catalogs": {"lake": world.settings.catalogs["lake"].model_copy(update={"uri": "what"})}}
    )
    with world.spawn() as driver:
        assert driver.process.wait(120) == 2
    assert "catalog lake" in (world.directory / "driver.log").read_text()


def test_an_exhausted_heap_has_its_own_exit_code(world: World) -> None:
    spark_conf = {
        **world.settings.spark_conf,
        "spark.testing.memory": str(2**30),
    }  # allows Spark to start with little memory
    world.settings = world.settings.model_copy(update={"heap": "40m", "spark_conf": spark_conf})
    with world.spawn() as driver:
        assert driver.process.wait(120) == ExitCode.OUT_OF_MEMORY, (world.directory / "driver.log").read_text()[-3000:]
