"""CPU of process trees, measured on real processes that count their own."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.bench.measuring.process_tree import (
    Sampler,
    busy_cpu,
    cpu_by_part,
    foreign_cpu,
    members,
    memory_bytes,
    processes,
    share_memory,
)

WORKER = """
import subprocess, sys, time
generations = int(sys.argv[1])
if generations > 1:
    subprocess.run([sys.executable, "-S", __file__, str(generations - 1)], stdin=subprocess.DEVNULL, check=True)
while time.process_time() < 0.15:
    pass
print(time.process_time(), flush=True)
sys.stdin.read()
"""
GENERATIONS = 3


@pytest.fixture
def family(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that waits, and whose child and grandchild have ended.

    Each of them prints the CPU seconds that it has used itself."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    process = subprocess.Popen(
        [sys.executable, "-S", str(worker), str(GENERATIONS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield process
    process.communicate()


def used(family: subprocess.Popen[str]) -> float:
    """Return the CPU seconds that the process family reports. Waits for all reports."""
    assert family.stdout is not None
    return sum(float(family.stdout.readline()) for _ in range(GENERATIONS))


def test_cpu_of_a_tree_includes_dead_descendants(family: subprocess.Popen[str]) -> None:
    cpu_seconds = used(family)
    assert cpu_seconds >= 0.45
    assert (
        cpu_by_part(family.pid)["root"] >= cpu_seconds - 2 * 0.01 * GENERATIONS
    )  # /proc counts in hundredths, user and system apart


def test_a_tree_is_its_root_with_all_descendants(family: subprocess.Popen[str]) -> None:
    everyone = processes()
    assert family.pid in {process.pid for process in members(family.pid, everyone)}
    assert os.getpid() not in {process.pid for process in members(family.pid, everyone)}
    assert family.pid in {process.pid for process in members(os.getpid(), everyone)}


def test_the_benchmark_and_its_descendants_are_not_foreign(family: subprocess.Popen[str]) -> None:
    all_before, foreign_before = busy_cpu(), foreign_cpu(processes())
    cpu_seconds = used(family)
    foreign_after, all_after = foreign_cpu(processes()), busy_cpu()
    # The outer readings include the time of the inner ones, so other processes cannot make the difference smaller.
    own = (all_after - all_before) - (foreign_after - foreign_before)
    assert own >= cpu_seconds - 0.3


def test_memory_of_a_tree_counts_only_live_processes(family: subprocess.Popen[str]) -> None:
    used(family)
    assert memory_bytes(family.pid) > 1_000_000
    family.communicate()
    assert memory_bytes(family.pid) == 0


def test_samples_never_go_down_even_when_the_tree_ends(family: subprocess.Popen[str]) -> None:
    with Sampler(family.pid, interval=0.01, memory_interval=0.01).sampling() as sampler:
        used(family)
        sampler.sample()
        family.communicate()
        sampler.sample()
    readings = [sample.cpu for sample in sampler.samples]
    assert readings == sorted(readings)
    assert readings[-1] >= 0.45 - 2 * 0.01 * GENERATIONS
    assert sampler.peak_bytes > 1_000_000


def test_a_thread_differs_from_a_process_with_its_own_memory(family: subprocess.Popen[str]) -> None:
    started, done = threading.Event(), threading.Event()

    def run() -> None:
        started.set()
        done.wait()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        assert share_memory(os.getpid(), thread.native_id or 0)
    finally:
        done.set()
        thread.join()
    assert not share_memory(os.getpid(), family.pid)
