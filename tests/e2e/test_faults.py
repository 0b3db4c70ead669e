"""Kill pods while a producer writes. At the end every acknowledged record is in the table exactly once."""

import os
import random
import threading

from hack.quickstart import SYSTEM, apply, await_until, get, kubectl, say
from tests.e2e.commands import firn
from tests.e2e.topics import LONG, Produce, await_ready, await_rows, numbered, rows, topic_manifest

BATCH = 200
BATCHES = int(os.environ.get("FIRN_FAULT_BATCHES", "150" if LONG else "12"))
FAULTS = 7 if LONG else 3
"""Number of pods that the test kills. The producer writes at least ``BATCHES`` batches, and continues until the last pod is killed."""


def kill(pod: str) -> None:
    """Kill a pod without grace and wait for its replacement."""
    old = get("pod", pod)
    kubectl("-n", SYSTEM, "delete", "pod", pod, "--grace-period=0", "--force", check=False)
    uid = old["metadata"]["uid"] if old else None
    await_until(f"{pod} is replaced", lambda: (get("pod", pod) or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid)


def test_killed_processes_lose_and_duplicate_no_record(namespace: str, produce: Produce) -> None:
    apply(topic_manifest("numbered", namespace, partitions=3))
    topic = await_ready("numbered", namespace)
    problems: list[BaseException] = []
    finish = threading.Event()
    written_batches = 0

    def write() -> None:
        nonlocal written_batches
        try:
            while written_batches < BATCHES or not finish.is_set():
                produce(topic, numbered(written_batches * BATCH, BATCH))
                written_batches += 1
        except BaseException as error:
            problems.append(error)

    chance = random.Random(20_261_121)
    writer = threading.Thread(target=write)
    writer.start()
    victims = ["firn-ingest-default-0", "firn-broker-classic-0", "operator"]
    try:
        for number in range(FAULTS):
            victim = victims[number] if number < 3 else chance.choice(victims[:2])
            say(f"kill {victim}")
            if victim == "operator":
                operator = ["-l", "app.kubernetes.io/component=operator"]
                kubectl("-n", SYSTEM, "delete", "pod", *operator, "--grace-period=0", "--force")
            else:
                kill(victim)
            writer.join(timeout=chance.uniform(5, 15))
    finally:
        finish.set()
        writer.join()
    assert not problems, problems
    total = BATCH * written_batches
    table = topic["status"]["table"]["identifier"]
    await_rows(table, total, timeout=300)
    assert rows(f"select count(distinct id) as n, min(id) as low, max(id) as high from {table}") == [
        {"n": total, "low": 0, "high": total - 1}
    ]
    firn("audit", f"{namespace}/numbered")
    await_ready("numbered", namespace)
