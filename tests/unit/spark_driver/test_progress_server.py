"""The driver's HTTP server and clients that disconnect before they have their answer."""

import socket
import struct
import threading

import pytest

from firn_spark.ingestion.progress import Metrics, Server
from firn_spark.ingestion.topics.report import progress_of
from tests.unit.spark_driver.topic import topic

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def answer_after_a_disconnect(problem: Exception | None = None) -> None:
    """Send a probe, disconnect while the server computes the answer, and wait until it has tried to send it."""
    asked, disconnected = threading.Event(), threading.Event()
    handlers: list[threading.Thread] = []

    def ready() -> str | None:
        handlers.append(threading.current_thread())
        asked.set()
        disconnected.wait(10)
        if problem is not None:
            raise problem
        return "starting"

    server = Server("127.0.0.1:0", Metrics(), lambda: b"{}", lambda: None, ready, lambda: None)
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(b"GET /readyz HTTP/1.1\r\nHost: driver\r\n\r\n")
            assert asked.wait(10)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        disconnected.set()
        handlers[0].join(10)
        assert not handlers[0].is_alive()
    finally:
        server.stop()


def test_counters_of_a_topic_exist_before_its_first_commit() -> None:
    metrics = Metrics()
    made = topic()
    metrics.reported(made, progress_of(made, 0.0, 0.0), 0.0)
    labels = {"namespace": "shop", "topic": "orders"}
    for counter in ("rows", "bytes", "dead_letters", "skipped", "failures", "lost_records"):
        assert metrics.registry.get_sample_value(f"firn_ingest_{counter}_total", labels) == 0, counter


def test_the_lag_is_split_into_unread_and_uncommitted_records() -> None:
    metrics, labels = Metrics(), {"namespace": "shop", "topic": "orders"}
    made = topic()
    report = progress_of(made, 0.0, 1_000.0).model_copy(update={"lag_records": 50, "last_commit": 940.0})
    made.reading.uncommitted = 20
    metrics.reported(made, report, 1_000.0)
    value = metrics.registry.get_sample_value
    assert value("firn_ingest_lag_records", labels) == 50
    assert value("firn_ingest_uncommitted_records", labels) == 20
    assert value("firn_ingest_last_commit_age_seconds", labels) == 60
    metrics.forget(made)
    assert value("firn_ingest_last_commit_age_seconds", labels) is None


def test_a_client_that_disconnects_is_not_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    answer_after_a_disconnect()
    assert capsys.readouterr().err == ""


def test_an_error_of_the_driver_is_still_printed(capsys: pytest.CaptureFixture[str]) -> None:
    answer_after_a_disconnect(KeyError("no such topic"))
    assert "no such topic" in capsys.readouterr().err
