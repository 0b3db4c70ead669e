"""``firn plan`` and ``firn status`` beside a real operator: the plan says what the operator then does."""

import os
import subprocess
import sys
from typing import Any

import yaml

from firn.model import names
from tests.apiserver import SYSTEM
from tests.integration.operator.conftest import REPOSITORY, World
from tests.servers.process import await_true

PROGRAM = "import sys; from firn_operator.cli.main import main; sys.exit(main())"
CONFIG = f"/api/v1/namespaces/{SYSTEM}/configmaps/{names.CONFIG_OBJECT}"
FIELDS = [{"name": "id", "type": "int"}]


def firn(world: World, *arguments: str, text: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the command line tool as an administrator."""
    environment = {
        **os.environ,
        "KUBECONFIG": str(world.api.kubeconfig),
        "PYTHONPATH": os.pathsep.join(str(REPOSITORY / part) for part in (".", "operator", "controllers")),
    }
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, env=environment)


def announced(world: World, name: str) -> str:
    """Return the messages of all Events about a topic."""
    found = world.api.call("GET", "/api/v1/namespaces/demo/events")["items"]
    return " ".join(each["message"] for each in found if each["involvedObject"]["name"] == name)


def partitions(world: World, name: str) -> int:
    """Return the partitions in the status, which the operator writes last."""
    topic = world.topic(name)
    assert topic is not None
    return int(topic["status"]["partitions"])


def test_the_operator_does_what_the_plan_says(world: World, name: str) -> None:
    text = yaml.safe_dump(world.configuration())
    world.api.call("PATCH", CONFIG, {"data": {"config.yaml": text}}, "application/merge-patch+json")
    spec: dict[str, Any] = {"partitions": 2, "schema": {"format": "Json", "fields": FIELDS}}
    wanted: dict[str, Any] = {
        "partitions": 4,
        "config": {"retention.ms": "86400000"},
        "schema": {"format": "Json", "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}]},
        "table": {"partitionBy": ["bucket(2, id)"], "properties": {"a": "b"}},
    }
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": "IcebergTopic",
        "metadata": {"name": name, "namespace": "demo"},
    }
    with world.operator():
        done = firn(world, "plan", "-f", "-", text=yaml.safe_dump({**manifest, "spec": spec}))
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"Kafka topic {name} in profile classic with 2 partitions" in done.stdout
        world.apply(name, spec)
        world.await_made(name)

        done = firn(world, "plan", "-f", "-", text=yaml.safe_dump({**manifest, "spec": wanted}))
        assert done.returncode == 2, done.stdout + done.stderr
        for effect in (
            "spec.partitions: 2 -> 4",
            "retention.ms is set to 86400000",
            "spec.schema.fields[id].type: int -> long",
            "gets column note string",
            'spec.table.partitionBy: (unset) -> ["bucket(2, id)"]',
            "gets property a",
        ):
            assert effect in done.stdout
        world.apply(name, wanted)
        done_by_operator = ("column id", "column note added", "partition field id_bucket added", "property a set")
        await_true("the operator follows", lambda: all(word in announced(world, name) for word in done_by_operator), 60)
        await_true("the status follows", lambda: partitions(world, name) == 4, 60)

        assert firn(world, "plan", "-f", "-", text=yaml.safe_dump({**manifest, "spec": wanted})).returncode == 0
        refused = {**wanted, "schema": {"format": "Json", "fields": [{"name": "id", "type": "string"}]}}
        done = firn(world, "plan", "-f", "-", text=yaml.safe_dump({**manifest, "spec": refused}))
        assert done.returncode == 3, done.stdout + done.stderr
        world.apply(name, refused)
        world.await_condition(name, "SpecValid", "False", "IncompatibleSchema")
        message = world.condition(name, "SpecValid")[2]
        assert message in done.stdout
        shown = firn(world, "status", f"demo/{name}")
        assert shown.returncode == 3
        assert f"Next step: {message}" in shown.stdout
