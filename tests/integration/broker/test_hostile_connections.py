"""Clients that attack the listener of a broker with TLS: they stop in the middle, downgrade, replay and send anything.

`make test-long` sends more of each."""

import asyncio
import json
import os
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import ScramMechanism

from firn.records.cursor import varint
from firn.sasl.scram import Scram
from tests.authority import Authority
from tests.integration.broker.secure_clients import Login
from tests.integration.broker.test_authentication import PASSWORD, USER, errors_of, put_password
from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.process import await_true, free_port
from tests.unit.broker.test_unauthenticated_frames import conversation

LONG = "FIRN_LONG" in os.environ
STOPPED = 10_000 if LONG else 300
"""Clients that stop in the middle."""
AT_ONCE = 300
FRAMES = 1_000_000 if LONG else 50_000
ATTACKERS = 4
AT_MOST = 60
"""Frames before the last ones of a connection. Most have an answer, and then the connection stays open."""
TEXTS = ["".join(Random(size).choices("aZ0-. \n\0é漢😀", k=size)).encode() for size in (0, 1, 2, 3, 5, 8, 50, 200)]
"""Names of clients and of their software."""
SECONDS = 3
"""The time that the broker gives a client to authenticate."""
MEBIBYTE = 1 << 20
HANDSHAKE, AUTHENTICATE = 17, 36


@dataclass(frozen=True)
class Target:
    """A broker whose clients have to authenticate with SCRAM-SHA-512 over TLS."""

    broker: FirnBroker
    port: int
    authority: Authority

    @property
    def login(self) -> Login:
        return Login(f"127.0.0.1:{self.port}", self.authority.file, "SCRAM-SHA-512", USER, PASSWORD)

    @property
    def memory(self) -> int:
        """Return the resident memory of the broker in bytes."""
        assert self.broker.process is not None
        lines = Path(f"/proc/{self.broker.process.pid}/status").read_text().splitlines()
        (line,) = [line for line in lines if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.file))

    def serves(self) -> None:
        """Check that a client with a password is served, and soon."""
        begun = time.monotonic()
        producer = Producer(self.login.librdkafka())
        assert producer.list_topics(timeout=30).brokers
        assert time.monotonic() - begun < 20

    def unharmed(self) -> None:
        """Check that no attack caused an error in the broker."""
        self.serves()
        text = self.broker.log.read_text()
        assert "Traceback" not in text, text[text.index("Traceback") - 2000 :][:6000]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    directory = tmp_path_factory.mktemp("target")
    authority, port = Authority(directory), free_port()
    pair = authority.issue("broker", "127.0.0.1")
    tls = {"certFile": str(pair.certificate), "keyFile": str(pair.key)}
    settings = {
        "LISTENERS": {"secure": {"bind": f"127.0.0.1:{port}", "tls": tls, "authentication": ["ScramSha512"]}},
        "AUTHORIZATION": {"type": "Acl", "superUsers": ["User:ANONYMOUS"]},
        "CONNECTIONS": {
            "authenticationSeconds": SECONDS,
            "maxUnauthenticatedPerAddress": AT_ONCE + 10,
            "failureSeconds": 0,
        },
    }
    environment = {f"FIRN_BROKER_{name}": json.dumps(value) for name, value in settings.items()}
    with embedded(directory / "data", **environment) as broker:
        for mechanism in (ScramMechanism.SCRAM_SHA_512, ScramMechanism.SCRAM_SHA_256):
            put_password(broker, USER, PASSWORD, mechanism)
        yield Target(broker, port, authority)


def framed(api: int, version: int, body: bytes) -> bytes:
    data = struct.pack(">hhih", api, version, 1, 4) + b"test" + body
    return struct.pack(">i", len(data)) + data


def said(text: bytes) -> bytes:
    """Return a SaslAuthenticate request."""
    return framed(AUTHENTICATE, 0, struct.pack(">i", len(text)) + text)


def named(mechanism: bytes) -> bytes:
    """Return a SaslHandshake request."""
    return framed(HANDSHAKE, 1, struct.pack(">h", len(mechanism)) + mechanism)


async def stopped(target: Target, kind: int) -> None:
    """Connect, stop at one of four places, and wait until the broker closes the connection."""
    context = target.context() if kind >= 2 else None
    # The broker may close the connection at any time, but it has to close it.
    with suppress(ConnectionError, ssl.SSLError):
        async with asyncio.timeout(SECONDS + 60):
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port, ssl=context)
            match kind:
                case 1:  # the first bytes of a ClientHello
                    writer.write(bytes.fromhex("16030101000100"))
                case 2:
                    writer.write(named(b"SCRAM-SHA-512") + said(b"n,,n=nobody,r=abc"))
                case 3:  # a frame that ends early
                    writer.write(named(b"SCRAM-SHA-512")[:-3])
            while await reader.read(65536):
                pass
            writer.transport.abort()


def test_clients_that_stop_in_the_middle_are_closed_and_others_are_served(target: Target) -> None:
    target.serves()
    before = target.memory

    async def attack() -> None:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with places:
                await stopped(target, number % 4)

        attackers = [asyncio.create_task(one(number)) for number in range(STOPPED)]
        await asyncio.sleep(0)
        await asyncio.to_thread(target.serves)
        await asyncio.gather(*attackers)

    asyncio.run(attack())
    assert target.memory - before < 100 * MEBIBYTE
    target.unharmed()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_of_tls_are_refused(target: Target, version: ssl.TLSVersion) -> None:
    context = target.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version

    async def connect() -> None:
        await asyncio.open_connection("127.0.0.1", target.port, ssl=context)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        asyncio.run(connect())
    target.unharmed()


def test_a_mechanism_that_the_listener_does_not_have_is_refused(target: Target) -> None:
    weaker = Login(f"127.0.0.1:{target.port}", target.authority.file, "SCRAM-SHA-256", USER, PASSWORD)
    assert "SCRAM-SHA-512" in errors_of(weaker), "the error names the mechanisms of the listener"


def test_replayed_messages_of_an_exchange_are_refused(target: Target) -> None:
    async def answers(*frames: bytes) -> list[bytes]:
        """Send requests one after the other, and return the answers without their heads."""
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port, ssl=target.context())
        found = []
        for each in frames:
            writer.write(each)
            size = int.from_bytes(await reader.readexactly(4), "big")
            found.append((await reader.readexactly(size))[4:])
        writer.transport.abort()
        return found

    def words(answer: bytes) -> bytes:
        """Return the message of an answer to SaslAuthenticate. Its text is null."""
        assert answer[:4] == b"\0\0\xff\xff", answer
        return answer[8:]

    async def story() -> None:
        client = Scram("SCRAM-SHA-512", USER, PASSWORD)
        first = client.first()
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port, ssl=target.context())

        async def ask(frame: bytes) -> bytes:
            writer.write(frame)
            return (await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))[4:]

        await ask(named(b"SCRAM-SHA-512"))
        final = client.final(words(await ask(said(first))))
        client.check(words(await ask(said(final))))
        writer.transport.abort()
        refused = (await answers(named(b"SCRAM-SHA-512"), said(first), said(final)))[-1]
        assert int.from_bytes(refused[:2], "big") == 58, "SASL_AUTHENTICATION_FAILED"

    asyncio.run(story())


@pytest.mark.timeout(7200 if LONG else 600)
def test_any_frames_over_tls_leave_the_broker_unharmed(target: Target) -> None:
    target.serves()
    attackers = [Attacker(target, Random(seed)) for seed in range(ATTACKERS)]
    before = target.memory
    if LONG:
        # glibc keeps freed buffers of many sizes. Only what grows after that can be a leak.
        attack(attackers, FRAMES // 3)
        settled = target.memory
        assert settled - before < 512 * MEBIBYTE
        before = settled
    attack(attackers, FRAMES)
    assert sum(each.frames for each in attackers) >= FRAMES
    await_true("the memory is free again", lambda: target.memory - before < 100 * MEBIBYTE, 30)
    target.unharmed()


class Attacker:
    """A client that sends any frames on one connection after the other, and counts those that the broker has read."""

    def __init__(self, target: Target, chance: Random) -> None:
        self._address = "127.0.0.1", target.port
        self._context = target.context()
        self._chance = chance
        self._session: ssl.SSLSession | None = None
        self.frames = 0

    def send(self, frames: int) -> None:
        """Send frames until the broker has read as many in all. It reads one after the other, and answers each until it closes
        the connection at one of them."""
        while self.frames < frames:
            self._connect()

    def _connect(self) -> None:
        with (
            socket.create_connection(self._address, 60) as plain,
            # A resumed session costs no signature.
            self._context.wrap_socket(plain, server_hostname="127.0.0.1", session=self._session) as connected,
        ):
            received = bytearray()
            with suppress(ConnectionError, ssl.SSLError):
                connected.sendall(
                    b"".join(answered(self._chance) for _ in range(AT_MOST))
                    + hostile(self._chance)
                    + framed(0x7FFF, 0, b"")  # ends the connection if nothing before it did
                )
                while data := connected.recv(1 << 16):
                    received += data
            self._session = connected.session or self._session
        self.frames += answers(received) + 1


def attack(attackers: Sequence[Attacker], frames: int) -> None:
    """Let all attackers together send so many frames."""
    with ThreadPoolExecutor(len(attackers)) as threads:
        for ended in [threads.submit(each.send, -(-frames // len(attackers))) for each in attackers]:
            ended.result()


def answers(received: bytes | bytearray) -> int:
    """Count the complete answers."""
    count = place = 0
    while (place := place + 4 + int.from_bytes(received[place : place + 4], "big")) <= len(received):
        count += 1
    return count


def answered(chance: Random) -> bytes:
    """Return a request of ApiVersions that the broker answers in most cases, whatever it contains. A few are mutated."""
    version = chance.choice((0, 1, 2, 3, 4, chance.randrange(-(1 << 15), 1 << 15)))
    client, body = chance.choice(TEXTS), b""
    head = struct.pack(">hhih", 18, version, chance.randrange(-(1 << 31), 1 << 31), len(client)) + client
    if version >= 3:
        body += tags(chance)
    if version in (3, 4):
        body += compact(chance.choice(TEXTS)) + compact(chance.choice(TEXTS)) + tags(chance)
    elif version not in (0, 1, 2):
        body += chance.randbytes(chance.randrange(100))
    data = bytearray(head + body)
    if chance.random() < 0.05:
        data[chance.randrange(len(data))] = chance.randrange(256)
    return struct.pack(">i", len(data)) + bytes(data)


def compact(data: bytes) -> bytes:
    return varint(len(data) + 1) + data


def tags(chance: Random) -> bytes:
    """Return tagged fields that the broker does not know."""
    fields = [
        varint(tag) + varint(size) + chance.randbytes(size)
        for tag in range(chance.choice((0, 0, 0, 5)))
        for size in [tag * 30]
    ]
    return varint(len(fields)) + b"".join(fields)


def hostile(chance: Random) -> bytes:
    """Return about three frames: of a mutated exchange, or of any API with any content."""
    if chance.random() < 0.5:
        return conversation(chance)
    return b"".join(
        framed(chance.randrange(90), chance.randrange(20), chance.randbytes(chance.randrange(200))) for _ in range(3)
    )
