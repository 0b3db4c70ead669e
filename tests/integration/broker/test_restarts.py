"""A broker that stops or is killed loses nothing that it acknowledged, and groups continue where they were."""

import socket
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.broker.test_librdkafka import create, group, produce, read, take
from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.process import free_port


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_restart_loses_no_record(tmp_path: Path, name: str, ending: str) -> None:
    with embedded(tmp_path / "data", FIRN_BROKER_GROUPS__INITIAL_REBALANCE_MS="100") as broker:
        create(broker, name, 2)
        produce(broker, name, [{"key": b"%d" % number, "value": b"%d" % number} for number in range(1000)])
        member = group(broker, name)
        member.subscribe([name])
        take(member, 400)
        member.commit(asynchronous=False)
        if ending == "stop":
            assert broker.stop() == 0
        else:
            broker.kill()
        broker.start()
        assert len(take(member, 600)) == 600, "the group continues with the same member"
        member.close()
        assert sorted(int(message.value()) for message in read(broker, name, 1000)) == list(range(1000))
        offsets = produce(broker, name, [{"value": b"after", "partition": 0}])
        assert offsets == [len([message for message in read(broker, name, 1001) if message.partition() == 0]) - 1]


def test_a_broker_serves_metrics_and_probes(tmp_path: Path) -> None:
    port = free_port()
    with embedded(tmp_path / "data", FIRN_BROKER_METRICS_LISTEN=f"127.0.0.1:{port}") as broker:
        produce(broker, "t", [{"value": b"v"}])
        pages = {}
        for page in ("metrics", "livez", "readyz"):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}") as answer:
                pages[page] = answer.read().decode()
                assert answer.status == 200
        assert "firn_broker_put_bytes_total" in pages["metrics"]


def test_each_listener_advertises_its_own_addresses(tmp_path: Path) -> None:
    outside = f"localhost:{free_port()}"
    bind = outside.replace("localhost", "127.0.0.1")
    with embedded(
        tmp_path / "data", FIRN_BROKER_EXTERNAL__BIND=bind, FIRN_BROKER_EXTERNAL__ADVERTISED=outside
    ) as broker:
        addresses = {}
        for listener in (broker.bootstrap, outside):
            brokers = AdminClient({"bootstrap.servers": listener}).list_topics(timeout=10).brokers.values()
            addresses[listener] = [f"{node.host}:{node.port}" for node in brokers]
        assert addresses == {broker.bootstrap: [broker.bootstrap], outside: [outside]}
        produce(broker, "t", [{"value": b"v"}])
        broker.bootstrap_servers = outside
        assert [message.value() for message in read(broker, "t", 1)] == [b"v"]
        broker.bootstrap_servers = ""


def test_an_invalid_request_closes_only_its_connection(firn: FirnBroker, name: str) -> None:
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x7f\xff\xff\xff",
        b"\0\0\0\x08" + b"\xff" * 8,
        b"\0\0\0\x0a\0\x03\0\x63\0\0\0\1\0\0",
    ):
        with socket.create_connection(("127.0.0.1", firn.port), 10) as client:
            client.sendall(data)
            # The server closes with or without a reset, because unread bytes may be left.
            with suppress(ConnectionResetError):
                assert client.recv(100) == b""
    assert produce(firn, name, [{"value": b"v"}]) == [0]
