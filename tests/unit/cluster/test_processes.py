"""Only the recorded process is stopped."""

import subprocess
from pathlib import Path

from hack.support.process import Process


def test_a_process_is_stopped(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        Process.write(tmp_path / "process.json", Process.running(child.pid))
        [remembered] = Process.read(tmp_path / "process.json")
        assert remembered.alive
        remembered.end()
        assert not remembered.alive
    assert child.returncode == -9


def test_another_process_with_the_same_pid_is_not_stopped() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        stranger = Process(child.pid, Process.running(child.pid).started - 1)
        assert not stranger.alive
        stranger.end()
        assert child.poll() is None
        child.kill()


def test_a_missing_file_lists_no_process(tmp_path: Path) -> None:
    assert Process.read(tmp_path / "missing.json") == []
