"""Watch a fleet of brokers: pods as the API server shows them, partitions as Kafka shows them, and clients that do
not stop."""

import json
import subprocess
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from firn.model import names
from hack import quickstart
from hack.quickstart import SYSTEM, Manifest, T, get, kubectl

PATIENCE = 480
"""Time limit in seconds. Four brokers, Spark and the cluster share one machine, which may be small and busy."""

PRODUCE = """
import json, select, sys, time
from confluent_kafka import Producer
bootstrap, topic = sys.argv[1:3]
acknowledged, failed, longest, last = 0, [], 0.0, time.monotonic()
def delivered(error, message):
    global acknowledged, longest, last
    if error:
        failed.append(str(error))
    else:
        acknowledged += 1
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
timeouts = {}
def count_timeouts(text):
    for name, broker in json.loads(text)["brokers"].items():
        timeouts[name] = max(timeouts.get(name, 0), broker["req_timeouts"])
producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 20,
                     "statistics.interval.ms": 1000, "stats_cb": count_timeouts})
number = 0
while not select.select([sys.stdin], [], [], 0.05)[0]:
    for _ in range(20):
        value = json.dumps({"id": number, "note": f"n{number}"})
        while True:
            try:
                producer.produce(topic, key=str(number), value=value, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        number += 1
    producer.poll(0)
    if number % 1000 == 0:
        print(json.dumps({"acknowledged": acknowledged}), flush=True)
unsent = producer.flush(240)
print(json.dumps({"sent": number, "acknowledged": acknowledged, "failed": failed[:3], "unsent": unsent,
                  "request_timeouts": sum(timeouts.values()), "longest_silence_seconds": round(longest, 1)}), flush=True)
"""

CONSUME = """
import json, select, sys, time
from confluent_kafka import Consumer
bootstrap, topic = sys.argv[1:3]
settings = {"group.id": f"{topic}-readers", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 1000}
consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
consumer.subscribe([topic])
seen, records, reported = set(), 0, 0.0
while not select.select([sys.stdin], [], [], 0)[0]:
    for message in consumer.consume(500, 0.5):
        if message.error() is None:
            records += 1
            seen.add(int(message.key()))
    if time.monotonic() - reported > 1:
        reported = time.monotonic()
        print(json.dumps({"records": records, "distinct": len(seen)}), flush=True)
consumer.close()
"""

LOOK = """
import json, select, sys
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
admin = AdminClient({"bootstrap.servers": sys.argv[1], "socket.timeout.ms": 3000, "log_level": 0})
while not select.select([sys.stdin], [], [], 0.4)[0]:
    try:
        seen = admin.list_topics(timeout=5)
    except KafkaException as error:
        print(json.dumps({"error": str(error)}), flush=True)
        continue
    partitions = [partition for topic in seen.topics.values() for partition in topic.partitions.values()]
    print(json.dumps({
        "brokers": len(seen.brokers),
        "offline": sum(partition.leader < 0 for partition in partitions),
        "too_few_in_sync": sum(len(partition.isrs) < 2 for partition in partitions if len(partition.replicas) >= 3),
        "lagging": sum(len(partition.isrs) < len(partition.replicas) for partition in partitions),
    }), flush=True)
"""


def await_until(description: str, condition: Callable[[], T | None], every: float = 1) -> T:
    """Call `quickstart.await_until` with a time limit that suits a fleet."""
    return quickstart.await_until(description, condition, PATIENCE, every)


class _JsonCommand(AbstractContextManager["_JsonCommand"]):
    """A command that prints JSON documents, one a line. They are read while it runs. It ends when its standard input
    closes."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quickstart.environment()
        )
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join(300)
        self._process.terminate()
        self._process.wait(30)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.take(json.loads(line))

    def take(self, document: dict[str, Any]) -> None:
        raise NotImplementedError


class Producing(_JsonCommand):
    """Produce numbered records with ``acks=all``, about 400 a second, until `stop`."""

    def __init__(self, topic: Manifest, client: str) -> None:
        status = topic["status"]
        command = ["python", "-c", PRODUCE, status["bootstrapServers"], status["topicName"]]
        super().__init__("kubectl", "-n", client, "exec", "-i", "client", "--", *command)
        self.acknowledged = 0
        self.end: dict[str, Any] = {}

    def take(self, document: dict[str, Any]) -> None:
        self.acknowledged = document["acknowledged"]
        if "sent" in document:
            self.end = document

    def await_more(self, count: int = 1000) -> None:
        """Wait until ``count`` more records are acknowledged."""
        aim = self.acknowledged + count
        await_until(f"{aim} records are acknowledged", lambda: self.acknowledged >= aim)

    def finish(self) -> int:
        """Stop, and return the number of records, all of which were acknowledged."""
        self.stop()
        quickstart.say(f"producer: {self.end}")
        assert self.end, "the producer died"
        assert (self.end["failed"], self.end["unsent"]) == ([], 0)
        assert self.end["acknowledged"] == self.end["sent"]
        return int(self.end["sent"])


class Consuming(_JsonCommand):
    """Read a topic from its beginning in a group of one member, and commit, until `stop`."""

    def __init__(self, topic: Manifest, client: str) -> None:
        status = topic["status"]
        command = ["python", "-c", CONSUME, status["bootstrapServers"], status["topicName"]]
        super().__init__("kubectl", "-n", client, "exec", "-i", "client", "--", *command)
        self.records = 0
        self.distinct = 0

    def take(self, document: dict[str, Any]) -> None:
        self.records, self.distinct = document["records"], document["distinct"]

    def await_more(self, count: int) -> None:
        """Wait until ``count`` more records are read."""
        aim = self.records + count
        await_until(f"{aim} records are consumed", lambda: self.records >= aim)

    def await_distinct(self, count: int) -> None:
        """Wait until this many different records have been read. No others exist."""
        await_until(f"{count} different records are consumed", lambda: self.distinct >= count)
        assert self.distinct == count


class Partitions(_JsonCommand):
    """Sample Kafka's description of brokers and partitions about twice a second."""

    def __init__(self, bootstrap: str, client: str) -> None:
        super().__init__("kubectl", "-n", client, "exec", "-i", "client", "--", "python", "-c", LOOK, bootstrap)
        self.samples: list[dict[str, Any]] = []

    def take(self, document: dict[str, Any]) -> None:
        self.samples.append(document)

    def await_newest(self, description: str, **values: int) -> None:
        """Wait for a new sample with these values."""
        begin = len(self.samples)

        def sampled() -> bool:
            return any(values.items() <= sample.items() for sample in self.samples[begin:])

        await_until(description, sampled)

    def await_in_sync(self) -> None:
        """Wait until three brokers have all replicas in sync."""
        self.await_newest("all replicas are in sync", brokers=3, lagging=0)

    def assert_always_available(self) -> None:
        """Fail if a partition ever had no leader, too few in-sync replicas for a write, or if a second broker was
        down."""
        seen = [sample for sample in self.samples if "error" not in sample]
        assert len(seen) > 10, self.samples[-3:]
        assert not [
            sample for sample in seen if sample["offline"] or sample["too_few_in_sync"] or sample["brokers"] < 2
        ]


class Pods(_JsonCommand):
    """Watch every change of the pods of a fleet through the API server."""

    def __init__(self, selector: str, count: int) -> None:
        super().__init__(
            "kubectl", "-n", SYSTEM, "get", "pods", "-l", selector, "--watch", "--output-watch-events", "-o", "json"
        )
        self._count = count
        self._up: dict[str, tuple[str, int] | None] = {}
        """Pod -> its uid and restarts, from its first moment as ready until it ends or starts again."""
        self._uids: dict[str, str] = {}
        self.replaced: list[str] = []
        """Names of the replaced pods, in order."""
        self.most_down = 0
        """Greatest number of pods that were away at the same time. A pod that misses a probe on a busy machine is not."""

    def stop(self) -> None:
        self._process.terminate()
        super().stop()

    def take(self, document: dict[str, Any]) -> None:
        pod = document["object"]
        meta = pod["metadata"]
        name, uid = meta["name"], meta["uid"]
        old_uid = self._uids.get(name)
        if document["type"] != "DELETED" and old_uid != uid:
            self._uids[name] = uid
            if old_uid is not None:
                self.replaced.append(name)
        ready = any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in pod["status"].get("conditions", [])
        )
        gone = document["type"] == "DELETED" or "deletionTimestamp" in meta
        states = pod["status"].get("containerStatuses", [])
        life = uid, sum(state["restartCount"] for state in states)
        misses = bool(states) and all("running" in state["state"] for state in states) and self._up.get(name) == life
        self._up[name] = life if not gone and (ready or misses) else None
        if len(self._up) == self._count:
            self.most_down = max(self.most_down, sum(life is None for life in self._up.values()))

    def await_all_seen(self) -> None:
        await_until(
            "the watch shows all pods ready", lambda: sum(life is not None for life in self._up.values()) == self._count
        )


def await_rolled(name: str, replicas: int) -> Manifest:
    """Return the StatefulSet after all its pods run the newest template and are ready, and the operator has lowered
    the partition to 0."""

    def rolled() -> Manifest | None:
        live = get("statefulset", name)
        if live is None or live["status"].get("observedGeneration") != live["metadata"]["generation"]:
            return None
        status, partition = live["status"], live["spec"]["updateStrategy"]["rollingUpdate"]["partition"]
        counts = (status.get("updatedReplicas"), status.get("readyReplicas"), partition)
        settled = status["currentRevision"] == status["updateRevision"] and counts == (replicas, replicas, 0)
        return live if settled else None

    return await_until(f"{name} runs its newest template", rolled, every=2)


def delete_fleet(profile: str) -> None:
    """Delete brokers, volumes and Secrets of a profile that the configuration no longer has. The operator keeps them."""
    label = f"{names.LABEL_PROFILE}={profile}"
    kinds = "statefulsets,services,configmaps,poddisruptionbudgets,jobs,secrets"
    kubectl("-n", SYSTEM, "delete", kinds, "-l", label, "--timeout=120s")
    kubectl("-n", SYSTEM, "wait", "--for=delete", "pods", "-l", label, "--timeout=480s")
    kubectl("-n", SYSTEM, "delete", "persistentvolumeclaims", "-l", label, "--timeout=120s")


def uids(selector: str) -> dict[str, str]:
    """Return the uid of each pod with this label, by name."""
    items = json.loads(quickstart.read(f"/api/v1/namespaces/{SYSTEM}/pods?labelSelector={quote(selector)}")[1])["items"]
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in items}


def kill(pod: str) -> None:
    """Send SIGKILL to a pod of a StatefulSet, and return when another pod exists, ready or not."""

    def uid() -> str:
        live = get("pod", pod)
        return str(live["metadata"]["uid"]) if live else ""

    old = uid()
    quickstart.say(f"kill {pod}")
    quickstart.kubectl("-n", SYSTEM, "delete", "pod", pod, "--grace-period=0", "--force")
    await_until(f"{pod} is another one", lambda: uid() not in ("", old))


def metric(line: str) -> float:
    """Return a metric of the operator, or -1 while it does not answer."""
    path = f"/api/v1/namespaces/{SYSTEM}/services/firn-operator:metrics/proxy/metrics"
    lines = [text for text in quickstart.read(path)[1].decode().splitlines() if text.startswith(line + " ")]
    return float(lines[0].split()[-1]) if lines else -1.0


def events(reason: str) -> list[str]:
    """Return the messages of Events with this reason on the object that owns the fleets."""
    fields = f"involvedObject.name=firn-config,reason={reason}"
    items = json.loads(quickstart.read(f"/api/v1/namespaces/{SYSTEM}/events?fieldSelector={quote(fields)}")[1])["items"]
    return [item["message"] for item in items]
