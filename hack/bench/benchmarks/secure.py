"""Compare TLS and authentication of the diskless broker with Apache Kafka: the same client commands, in turn.

Both brokers run at the same time, and one of them is idle. Kafka's own tools produce and consume, without encryption and over TLS with
SCRAM-SHA-512. The broker has a directory. The CPU time is that of the broker's process. A login is one connection over TLS 1.3 that
authenticates by SCRAM-SHA-512 and ends. The client knows its salted password, because it would otherwise spend most of the time.
"""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import statistics
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from firn.sasl import scram
from hack.bench.benchmarks.broker import (
    BATCHES,
    PEER,
    READINGS,
    SERVER,
    Brokers,
    Seen,
    charged,
    child,
    consume,
    median,
    produce,
    records,
)
from hack.bench.measuring.figures import Better, Figure
from hack.bench.options import Options
from hack.support.progress import say
from tests.servers.firn_broker import embedded
from tests.servers.kafka import PASSWORD, USER, certificates, kafka
from tests.servers.process import free_port

WARM_UP_MB = 400
LOGINS, WARM_UP_LOGINS = 2_000, 1_000
HANDSHAKE, AUTHENTICATE = 17, 36

UNITS: dict[str, tuple[str, Better]] = {
    "produce": ("MB/s in over TLS, batches of 1 MiB", "higher"),
    "produce_cpu": ("broker CPU s per GB in over TLS", "lower"),
    "produce_cost": ("broker CPU s per GB in over TLS, in units of the same without TLS", "lower"),
    "consume": ("MB/s out over TLS, from the page cache", "higher"),
    "consume_cpu": ("broker CPU s per GB out over TLS", "lower"),
    "consume_cost": ("broker CPU s per GB out over TLS, in units of the same without TLS", "lower"),
    "logins": ("logins/s of one client, TLS 1.3 and SCRAM-SHA-512", "higher"),
    "login_cpu": ("broker CPU ms a login", "lower"),
}


@dataclass(frozen=True)
class Secured:
    """A contestant, and its listener with TLS."""

    brokers: Brokers
    address: str
    authority: Path
    user: str
    password: str

    def over_tls(self) -> Brokers:
        """Return the contestant as clients of the listener with TLS see it."""
        return replace(self.brokers, bootstrap=self.address, login=self.properties(), admin=self.brokers.bootstrap)

    def properties(self) -> Path:
        """Write the properties of a Java client."""
        file = self.brokers.directory / "client.properties"
        login = f'username="{self.user}" password="{self.password}"'
        file.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.authority}\n"
            f"sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required {login};\n"
        )
        return file


def measure(options: Options) -> Iterator[Figure]:
    """Measure the contestants in turn, `Options.repeats` times, and yield medians with Kafka's as the peer's."""
    runs: dict[str, list[Seen]] = {"kafka": [], "firn": []}
    for turn in range(options.repeats):
        with ExitStack() as stack:
            contestants: dict[str, Secured] = {}
            for name, serve in (("kafka", on_kafka), ("firn", on_firn)):
                directory = options.directory / f"secure-{name}-{turn}"
                directory.mkdir()
                stack.callback(shutil.rmtree, directory)
                contestants[name] = stack.enter_context(serve(directory))
            for name, seen in contest(contestants, options.megabytes).items():
                runs[name].append(seen)
    for figure, (unit, better) in UNITS.items():
        ours, theirs = (statistics.median(seen[figure] for seen in runs[name]) for name in ("firn", "kafka"))
        yield Figure(f"secure_{figure}", ours, unit, better, PEER, theirs)


def contest(contestants: Mapping[str, Secured], megabytes: int) -> dict[str, Seen]:
    """Measure the contestants, with ``megabytes`` in and out, and return the figures of each."""
    seen: dict[str, Seen] = {name: {} for name in contestants}
    for kind in ("plain", "tls"):
        brokers = {name: each.over_tls() if kind == "tls" else each.brokers for name, each in contestants.items()}
        for name, each in brokers.items():
            say(f"{name}: {kind}")
            seen[name] |= into(each, kind, megabytes)
        for name, values in out_of(brokers, kind, megabytes).items():
            seen[name] |= values
    for name, secured in contestants.items():
        say(f"{name}: logins")
        seen[name] |= logins(secured)
    return {name: figures(values) for name, values in seen.items()}


def into(brokers: Brokers, kind: str, megabytes: int) -> Seen:
    """Measure a producer."""
    produce(brokers, f"warm-{kind}", records(WARM_UP_MB), BATCHES["1m"])
    consume(brokers, f"warm-{kind}", records(WARM_UP_MB))
    spent, sent = charged(brokers, lambda: produce(brokers, f"in-{kind}", records(megabytes), BATCHES["1m"]))
    return {f"{kind}_in": sent.rate, f"{kind}_in_cpu": spent.broker / megabytes * 1000}


def out_of(contestants: Mapping[str, Brokers], kind: str, megabytes: int) -> dict[str, Seen]:
    """Measure a consumer of each contestant in turn, `READINGS` times, and return medians.

    Kafka leaves what it receives in the page cache, and the diskless broker writes past it. So all records are read once before."""
    topic, count = f"in-{kind}", records(megabytes)
    for brokers in contestants.values():
        consume(brokers, topic, count)
    readings: dict[str, list[Seen]] = {name: [] for name in contestants}
    for _ in range(READINGS):
        for name, brokers in contestants.items():
            spent, rate = charged(brokers, partial(consume, brokers, topic, count))
            readings[name].append({f"{kind}_out": rate, f"{kind}_out_cpu": spent.broker / megabytes * 1000})
    return {name: median(seen) for name, seen in readings.items()}


def logins(secured: Secured) -> Seen:
    """Measure a client that logs in again and again."""
    log_in(secured, WARM_UP_LOGINS)
    began = time.monotonic()
    spent, _ = charged(secured.brokers, lambda: log_in(secured, LOGINS))
    return {"logins": LOGINS / (time.monotonic() - began), "login_cpu": spent.broker / LOGINS * 1000}


def figures(seen: Seen) -> Seen:
    """Return the figures of a contestant."""
    return {
        "produce": seen["tls_in"],
        "produce_cpu": seen["tls_in_cpu"],
        "produce_cost": seen["tls_in_cpu"] / seen["plain_in_cpu"],
        "consume": seen["tls_out"],
        "consume_cpu": seen["tls_out_cpu"],
        "consume_cost": seen["tls_out_cpu"] / seen["plain_out_cpu"],
        "logins": seen["logins"],
        "login_cpu": seen["login_cpu"],
    }


def log_in(secured: Secured, times: int) -> None:
    """Log in, one connection after the other."""
    context = ssl.create_default_context(cafile=str(secured.authority))
    host, _, port = secured.address.rpartition(":")
    for _ in range(times):
        with (
            socket.create_connection((host, int(port)), 30) as plain,
            context.wrap_socket(plain, server_hostname=host) as connected,
        ):
            mechanism = b"SCRAM-SHA-512"
            answer = ask(connected, HANDSHAKE, 1, struct.pack(">h", len(mechanism)) + mechanism)
            assert answer[:2] == b"\0\0", answer
            exchange = Remembering("SCRAM-SHA-512", secured.user, secured.password)
            exchange.check(said(connected, exchange.final(said(connected, exchange.first()))))


class Remembering(scram.Scram):
    """An exchange that computes each salted password once."""

    known: ClassVar[dict[tuple[bytes, int], bytes]] = {}

    def _salted(self, salt: bytes, iterations: int) -> bytes:
        if (salt, iterations) not in self.known:
            self.known[salt, iterations] = super()._salted(salt, iterations)
        return self.known[salt, iterations]


def said(connected: ssl.SSLSocket, message: bytes) -> bytes:
    """Send a message of the exchange, and return the broker's."""
    answer = ask(connected, AUTHENTICATE, 0, struct.pack(">i", len(message)) + message)
    code, text = struct.unpack_from(">hh", answer)
    assert code == 0, answer
    place = 4 + max(text, 0)
    (size,) = struct.unpack_from(">i", answer, place)
    return answer[place + 4 : place + 4 + size]


def ask(connected: ssl.SSLSocket, api: int, version: int, body: bytes) -> bytes:
    """Send a request, and return the body of the answer."""
    frame = struct.pack(">hhih", api, version, 1, -1) + body
    connected.sendall(struct.pack(">i", len(frame)) + frame)
    (size,) = struct.unpack(">i", received(connected, 4))
    return received(connected, size)[4:]


def received(connected: ssl.SSLSocket, size: int) -> bytes:
    """Return the next bytes."""
    data = b""
    while len(data) < size:
        piece = connected.recv(size - len(data))
        assert piece, "the broker closed the connection"
        data += piece
    return data


@contextmanager
def on_kafka(directory: Path) -> Iterator[Secured]:
    """Run one node of Apache Kafka with a listener for TLS and SCRAM."""
    with kafka(directory, secure=True, java=SERVER, log__retention__check__interval__ms="86400000") as server:
        assert server.secure is not None
        brokers = Brokers("kafka", server.bootstrap, child("java"), directory)
        yield Secured(brokers, server.secure, directory / "tls" / "ca.crt", USER, PASSWORD)


@contextmanager
def on_firn(directory: Path) -> Iterator[Secured]:
    """Run one diskless broker with a directory and a listener for TLS and SCRAM."""
    port, tls = free_port(), directory / "tls"
    certificates(tls, "localhost")
    listener = {
        "bind": f"127.0.0.1:{port}", "advertised": f"localhost:{port}", "authentication": ["ScramSha512"],
        "tls": {"certFile": str(tls / "server.crt"), "keyFile": str(tls / "server.key")},
    }  # fmt: skip
    with embedded(directory / "data", FIRN_BROKER_LISTENERS=json.dumps({"secure": listener})) as server:
        assert server.process is not None
        put: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(
                USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), PASSWORD.encode()
            )
        ]
        # The futures of a client that is not referenced fail.
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        for future in admin.alter_user_scram_credentials(put).values():
            future.result(30)
        brokers = Brokers("firn", server.bootstrap, server.process.pid, directory)
        yield Secured(brokers, f"localhost:{port}", tls / "ca.crt", USER, PASSWORD)
