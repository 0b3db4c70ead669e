"""Lose the coordinator of the diskless profile, or the bucket too, and make a new one, as docs/operations/diskless-brokers.md describes."""

import json
import re
from typing import Any

from firn.model import names
from hack import quickstart
from hack.quickstart import SYSTEM, apply, get, kubectl, say
from tests.e2e.brokers import PATIENCE, await_rolled, await_until, uids
from tests.e2e.commands import firn

PROFILE, BROKERS, OPERATOR, POD = "diskless", "firn-broker-diskless", "deployment/firn-operator", "fsck-0"
SELECTOR = f"firn.dev/profile={PROFILE},app.kubernetes.io/component=broker"
EMPTY = """
import asyncio, os, pathlib
from firn_broker import settings
from firn_broker.storage import objects, wal

async def main():
    loaded = settings.load(pathlib.Path("/etc/firn/broker/broker.yaml"), os.environ)
    bucket = objects.open_objects(loaded.objects)
    await bucket.delete([key for key, _ in await bucket.list(wal.PREFIX)])
    assert await bucket.list(wal.PREFIX) == []
    await bucket.close()

asyncio.run(main())
"""
"""Deletes all objects of the brokers."""
LEFT_OUT = ("startupProbe", "readinessProbe", "livenessProbe", "lifecycle")


def replace_coordinator(brokers: int = 1) -> dict[str, Any]:
    """Drop the database's schema of the brokers, and repair it from the bucket and the tables. Return the report of the repair."""
    topics = firn("recovery-topics", PROFILE)
    say("the coordinator is lost")
    _stop()
    _drop_schema()
    return _recovered(topics, brokers)


def move_to_new_cluster(manifest: dict[str, Any], brokers: int = 1) -> dict[str, Any]:
    """Make the log of a topic from its table, with a new coordinator and an empty bucket. Return the report.

    The topic gets a new resource without a status, as in another Kubernetes cluster."""
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    say("the topic moves to an empty cluster")
    _stop()
    _drop_schema()
    kubectl("-n", SYSTEM, "exec", POD, "--", "python", "-c", EMPTY)
    kubectl("-n", SYSTEM, "delete", "pod", POD, "--grace-period=1")
    kubectl(
        "-n", namespace, "patch", "icebergtopic", name, "--type=merge", "--patch", '{"metadata":{"finalizers":null}}'
    )
    kubectl("-n", namespace, "delete", "icebergtopic", name)
    paused = {**manifest["metadata"], "annotations": {names.PAUSE: "true"}}
    apply({**manifest, "metadata": paused})
    kubectl("-n", SYSTEM, "scale", OPERATOR, "--replicas=1")
    await_rolled(BROKERS, brokers)
    # The exit code is 4, because other topics of the profile have no tables with raw values.
    command = ["exec", OPERATOR, "--", "firn", "recovery-topics", PROFILE, "--from-tables"]
    topics = kubectl("-n", SYSTEM, *command, check=False)
    _stop()
    report = _recovered(topics, brokers)
    kubectl("-n", namespace, "annotate", "icebergtopic", name, f"{names.PAUSE}-")
    return report


def _stop() -> None:
    """Stop the operator and the brokers, and start the pod for commands."""
    kubectl("-n", SYSTEM, "scale", OPERATOR, "--replicas=0")
    kubectl("-n", SYSTEM, "scale", f"statefulset/{BROKERS}", "--replicas=0")
    await_until("all brokers have ended", lambda: not uids(SELECTOR))
    start_pod()


def _drop_schema() -> None:
    settings = kubectl("-n", SYSTEM, "exec", POD, "--", "cat", "/etc/firn/broker/broker.yaml")
    (schema,) = set(re.findall(r'"?schemaName"?: "?(\w+)', settings))
    statement = f"DROP SCHEMA {schema} CASCADE"
    kubectl("-n", SYSTEM, "exec", "firn-postgres-0", "--", "psql", "-qU", "firn", "-d", "firn", "-c", statement)


def _recovered(topics: str, brokers: int) -> dict[str, Any]:
    """Make the coordinator, and start the operator and the brokers. Return the report."""
    command = ["sh", "/etc/firn/broker/start.sh", "fsck", "--recover", "--topics", "/dev/stdin"]
    # The exit code is 4 if records of other topics of the profile land a second time.
    output = kubectl("-n", SYSTEM, "exec", "-i", POD, "--", *command, stdin=topics, check=False)
    report: dict[str, Any] = json.loads(output)
    kubectl("-n", SYSTEM, "delete", "pod", POD, "--grace-period=1")
    kubectl("-n", SYSTEM, "scale", OPERATOR, "--replicas=1")
    await_rolled(BROKERS, brokers)
    return report


def start_pod() -> None:
    """Run a pod like those of the brokers, in which no broker runs."""
    live = get("statefulset", BROKERS)
    assert live is not None
    spec = live["spec"]["template"]["spec"]
    container = {key: value for key, value in spec["containers"][0].items() if key not in LEFT_OUT}
    container["command"] = ["sleep", "3600"]
    apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": POD, "namespace": SYSTEM, "labels": live["spec"]["template"]["metadata"]["labels"]},
            "spec": {**spec, "containers": [container], "restartPolicy": "Never"},
        }
    )
    quickstart.kubectl("-n", SYSTEM, "wait", "--for=condition=Ready", f"pod/{POD}", f"--timeout={PATIENCE}s")
