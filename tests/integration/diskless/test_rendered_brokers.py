"""Run what the operator renders for a diskless fleet: real brokers over PostgreSQL and a bucket, started by the
script of their pods."""

import itertools
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer

from firn.model.config import Config
from firn.model.jobs import GroupSettings, KafkaConnection
from firn_controllers.children import Owner
from firn_controllers.fleet import kinds
from firn_controllers.fleet.diskless import stateful_set
from firn_controllers.fleet.diskless.layout import CONFIG_PATH, DisklessFleet
from firn_controllers.ingestion_group.settings import group_settings
from firn_operator.adapters.kafka.topics import Brokers, KafkaTopics
from firn_spark.kafka.diskless.direct_reads import DirectReader
from firn_spark.worker.fetching.objects import Objects
from firn_spark.worker.fetching.slices import Slice
from tests import gen
from tests.servers.postgres import Postgres
from tests.servers.process import await_true, free_port, listens, running, stop
from tests.servers.s3 import S3

_numbers = itertools.count()


@dataclass
class Pod:
    """A broker as in its pod, on the loopback interface and its own ports."""

    process: "subprocess.Popen[bytes]"
    port: int
    probes: int
    internal: int

    def probe(self, path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.probes}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


def configured(database: Postgres, storage: S3, **more: Any) -> Config:
    """Return a configuration with a diskless profile of a new name, which is the last one."""
    profile = gen.diskless(
        coordinator={
            "uri": database.uri, "user": database.user, "password": {"secret": "firn-postgres", "key": "password"},
        },
        objectStore={
            "url": f"s3://{storage.bucket}/diskless",
            "properties": {
                "aws_endpoint": storage.endpoint, "aws_region": "us-east-1", "aws_virtual_hosted_style_request": "false",
            },
            "secretProperties": {
                "aws_access_key_id": {"secret": "firn-s3", "key": "access-key"},
                "aws_secret_access_key": {"secret": "firn-s3", "key": "secret-key"},
            },
        },
        flushInterval="50ms",
        # The server of the tests does not flush.
        config={
            "leaseSeconds": 2, "groups": {"initialRebalanceMs": 100}, "requireDurable": False,
        },
        **more,
    )  # fmt: skip
    return gen.config(profiles={"classic": {}, f"waves-{next(_numbers)}": profile})


def fleet(database: Postgres, storage: S3) -> DisklessFleet:
    return fleet_of(configured(database, storage))


def fleet_of(config: Config) -> DisklessFleet:
    managed = kinds.managed_fleet(config, list(config.profiles)[-1], Owner("firn-system", "u"), None)
    assert isinstance(managed, DisklessFleet)
    return managed


@contextmanager
def pod(managed: DisklessFleet, ordinal: int, directory: Path, secrets: Path) -> Iterator[Pod]:
    """Run a broker with its ConfigMap, Secrets and variables. Only ports and paths differ from a pod."""
    home = directory / str(ordinal)
    home.mkdir()
    port, probes, internal = free_port(), free_port(), free_port()
    data: dict[str, str] = kinds.config_map(managed)["data"]
    settings: dict[str, Any] = yaml.safe_load(data["broker.yaml"].replace("/etc/firn/secrets", str(secrets)))
    settings["listener"]["bind"] = f"127.0.0.1:{port}"
    settings["metricsListen"] = f"127.0.0.1:{probes}"
    if "internal" in settings:
        settings["internal"]["bind"] = f"127.0.0.1:{internal}"
    (home / "broker.yaml").write_text(yaml.safe_dump(settings))
    script = data["start.sh"].replace(CONFIG_PATH, str(home))
    (home / "start.sh").write_text(script.replace("$HOSTNAME.$FIRN_SERVICE:9092", f"127.0.0.1:{port}"))
    (home / "firn-broker").write_text(f'#!/bin/sh\nexec {sys.executable} -m firn_broker "$@"\n')
    (home / "firn-broker").chmod(0o755)
    (container,) = stateful_set.build(managed, 0)["spec"]["template"]["spec"]["containers"]
    environment = {variable["name"]: variable.get("value", "") for variable in container["env"]} | {
        "HOSTNAME": f"{managed.service}-{ordinal}",
        "PATH": f"{home}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    probe = container["startupProbe"]["httpGet"]["path"]
    command = ["/bin/sh", str(home / "start.sh")]
    with running(command, lambda: listens(probes), home / "log", environment=environment) as process:
        started = Pod(process, port, probes, internal)
        await_true("started", lambda: started.probe(probe) == 200)
        yield started


@pytest.fixture
def secrets(tmp_path: Path, database: Postgres, storage: S3) -> Path:
    directory = tmp_path / "secrets"
    for path, value in (
        ("firn-postgres/password", database.password),
        ("firn-s3/access-key", storage.access_key),
        ("firn-s3/secret-key", storage.secret_key),
    ):
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value)
    return directory


async def test_drivers_read_the_bucket_as_rendered(
    tmp_path: Path, database: Postgres, storage: S3, secrets: Path
) -> None:
    reader = {
        "aws_access_key_id": {"secret": "firn-reader", "key": "access-key"},
        "aws_secret_access_key": {"secret": "firn-reader", "key": "secret-key"},
    }
    config = configured(database, storage, directReads={"secretProperties": reader})
    managed = fleet_of(config)
    for path, value in (
        (f"firn-direct-reads-{managed.name}/token", "the-token"),
        ("firn-reader/access-key", storage.access_key),
        ("firn-reader/secret-key", storage.secret_key),
    ):
        (secrets / path).parent.mkdir(exist_ok=True)
        (secrets / path).write_text(value)
    rendered = group_settings(config, "default").model_dump_json().replace("/etc/firn/secrets", str(secrets))
    direct = GroupSettings.model_validate_json(rendered).direct[managed.name]
    with ExitStack() as all_:
        broker = all_.enter_context(pod(managed, 0, tmp_path, secrets))
        await_true("ready", lambda: broker.probe("/readyz") == 200)
        bootstrap = f"127.0.0.1:{broker.port}"
        topics = all_.enter_context(closing(topics_at(bootstrap)))
        await topics.create("waves", "flights", 1, {})
        state = await topics.describe("waves", "flights")
        assert state is not None
        producer = Producer({"bootstrap.servers": bootstrap})
        for number in range(50):
            producer.produce("flights", b"%d" % number, partition=0)
        assert producer.flush(30) == 0
        asking = DirectReader("waves", direct.model_copy(update={"address": f"http://127.0.0.1:{broker.internal}"}))
        ((part,),) = asking.locate([[Slice("flights", 0, 0, 50)]], {"flights": state.topic_id})
        bucket = asking.bucket()
        assert bucket is not None
        objects = Objects(bucket, [part])
        assert [value for block in objects.blocks() for value in block.values.to_list()] == [
            b"%d" % n for n in range(50)
        ]
        assert objects.rest == []


def topics_at(bootstrap: str) -> KafkaTopics:
    return KafkaTopics({"waves": Brokers(KafkaConnection(bootstrap_servers=bootstrap))})


async def test_brokers_start_scale_and_drain_as_rendered(
    tmp_path: Path, database: Postgres, storage: S3, secrets: Path
) -> None:
    managed = fleet(database, storage)
    with ExitStack() as all_:
        first, second = (all_.enter_context(pod(managed, number, tmp_path, secrets)) for number in (0, 1))
        for each in (first, second):
            await_true("ready", lambda each=each: each.probe("/readyz") == 200)  # type: ignore[misc]
            assert each.probe("/metrics") == 200
        bootstrap = f"127.0.0.1:{first.port},127.0.0.1:{second.port}"
        topics = all_.enter_context(closing(topics_at(bootstrap)))
        for each in (first, second):
            address = f"127.0.0.1:{each.port}"
            await_true(
                "both brokers list both",
                lambda bootstrap_server=address: nodes(bootstrap_server) == {0: first.port, 1: second.port},  # type: ignore[misc]
            )
        await topics.create("waves", "flights", 4, {"retention.ms": "60000"})
        state = await topics.describe("waves", "flights")
        assert state is not None
        assert (state.partitions, dict(state.configs)) == (4, {"retention.ms": "60000"})
        fleet_state = await topics.fleet("waves", replicas=True)
        assert (fleet_state.brokers, fleet_state.under_replicated) == (2, 0)

        failed: list[str] = []
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

        def produce(start: int) -> None:
            for number in range(start, start + 200):
                producer.produce(
                    "flights",
                    key=str(number),
                    value=b"x",
                    on_delivery=lambda error, _: failed.append(str(error)) if error else None,
                )
            producer.poll(0)

        produce(0)
        assert producer.flush(30) == 0
        produce(200)
        stop(second.process)
        assert second.process.returncode == 0, "a broker drains after SIGTERM"
        produce(400)
        assert producer.flush(60) == 0
        assert failed == []
        await_true("one broker is left", lambda: nodes(f"127.0.0.1:{first.port}") == {0: first.port})
        consumer = Consumer(
            {"bootstrap.servers": f"127.0.0.1:{first.port}", "group.id": "readers", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["flights"])
        keys: list[int] = []

        def all_read() -> bool:
            messages = consumer.consume(500, 0.5)
            keys.extend(int(message.key() or b"") for message in messages if message.error() is None)
            return len(keys) >= 600

        await_true("all records are read", all_read)
        consumer.close()
        assert sorted(keys) == list(range(600))


def nodes(bootstrap: str) -> dict[int, int]:
    """Return the port of each node id that Metadata names."""
    metadata = Producer({"bootstrap.servers": bootstrap}).list_topics(timeout=10)
    return {node.id: node.port for node in metadata.brokers.values()}
