"""A driver's exit code after its JVM ended."""

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext

from firn.model.errors import ExitCode
from firn_spark import session
from firn_spark.ingestion.driver import Driver


@pytest.fixture
def jvm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in place of the JVM."""
    with subprocess.Popen(["sh", "-c", request.param]) as process:
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=process))
        yield process
        process.kill()


def end(jvm: Any, code: ExitCode) -> ExitCode:
    """Return the exit code of a driver whose loop ended with ``code``."""
    driver: Any = Driver.__new__(Driver)
    driver.server = driver.history = SimpleNamespace(start=lambda: None, stop=lambda: None)
    driver.loop = SimpleNamespace(run=lambda: code)
    driver._catalogs = SimpleNamespace(close=lambda: None)
    driver._spark = SimpleNamespace(sparkContext=SimpleNamespace(_gateway=SimpleNamespace(proc=jvm)))
    return driver.run()


@pytest.mark.parametrize(
    ("jvm", "code", "expected"),
    [
        ("exit 3", ExitCode.TEMPORARY, ExitCode.OUT_OF_MEMORY),
        ("exit 1", ExitCode.TEMPORARY, ExitCode.TEMPORARY),
        ("exit 3", ExitCode.DONE, ExitCode.DONE),
    ],
    indirect=["jvm"],
)
def test_an_exhausted_heap_has_its_own_exit_code(
    jvm: subprocess.Popen[bytes], code: ExitCode, expected: ExitCode
) -> None:
    jvm.wait(30)
    assert end(jvm, code) is expected


@pytest.mark.parametrize("jvm", ["exec sleep 600"], indirect=True)
def test_a_running_jvm_is_not_out_of_heap(jvm: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "JVM_END_SECONDS", 0.0)
    assert not session.heap_exhausted()
    assert end(jvm, ExitCode.TEMPORARY) is ExitCode.TEMPORARY


def test_a_process_without_a_jvm_is_not_out_of_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    assert not session.heap_exhausted()
