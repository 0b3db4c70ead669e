"""The driver as a process: what it tells over HTTP, and how it ends."""

import signal

from tests.integration.ingestion.world import World, value
from tests.servers.process import await_true


def test_a_driver_tells_how_it_does_and_ends_when_it_is_told_to(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, name="orders")
    world.produce(topic, [b"bad", *(value(number) for number in range(20))])
    world.apply(job)
    with world.spawn() as driver:

        def landed() -> bool:
            assert driver.process.poll() is None, (world.directory / "driver.log").read_text()[-3000:]
            answer = driver.get("/progress")
            return answer is not None and [one["rows"] for one in answer.json()["topics"]] == [20]

        await_true("twenty rows in /progress", landed, 300)
        (told,) = driver.get("/progress").json()["topics"]
        assert (told["uid"], told["generation"], told["state"], told["dead_letters"]) == (job.uid, 1, "CaughtUp", 1)
        assert (told["topic_id"], told["table_ready"]) == (world.topic_id(topic), True)
        assert told["lag_records"] == 0
        metrics = driver.get("/metrics").text
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
        assert driver.get("/readyz").status_code == 200
        assert driver.get("/livez").status_code == 200
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(120) == 0
    log = (world.directory / "driver.log").read_text()
    assert "correct horse" not in log
    assert "firn-secret" not in log
    assert len(world.rows(job)) == 20


def test_settings_that_mean_nothing_end_the_process_for_good(world: World) -> None:
    world.settings = world.settings.model_copy(
        update={"catalogs": {"lake": world.settings.catalogs["lake"].model_copy(update={"uri": "what"})}}
    )
    with world.spawn() as driver:
        assert driver.process.wait(120) == 2
    assert "catalog lake" in (world.directory / "driver.log").read_text()
