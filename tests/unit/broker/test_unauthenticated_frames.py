"""Frames of clients that have not authenticated: no handler sees them, and nothing but an answer of SASL comes back.

Every change sends 50,000 frames, and `make test-long` a million."""

import asyncio
import os
import struct
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from firn_broker import api_table
from firn_broker.access.admissions import Proofs, admission
from firn_broker.access.mechanisms.scram import Credentials, credential
from firn_broker.access_types import CredentialKey, ScramCredential
from firn_broker.metadata_store.sqlite.database import Inline
from firn_broker.network import router
from firn_broker.network.server import Entrance, Server
from firn_broker.settings import ConnectionSettings, Listener, TlsSettings
from firn_broker.wire import headers
from tests.fakes.virtual_time import run
from tests.unit.broker.test_mutated_frames import HOSTILE, crashes_of_requests, frame, send
from tests.unit.broker.whole import broker, create

SEEDS = 1000 if os.environ.get("FIRN_LONG") else 50
FRAMES = 1000
"""Frames of each seed."""
MECHANISMS = (b"SCRAM-SHA-512", b"SCRAM-SHA-256", b"PLAIN", b"GSSAPI", b"")
FIRST = (
    b"n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL",
    b"\0alice\0secret",
    b"n,,n=nobody,r=x",
    b"y,,n=a=2Cb,r=r,tokenauth=true",
)
LAST = (b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=", b"c=,r=,p=", b"v=")
SASL = (17, 18, 36)
"""Keys of the APIs that answer a client before it has authenticated."""


def lookup(key: CredentialKey) -> ScramCredential | None:
    return credential(key, b"x" * 64, b"salt", 4096) if key.user == "alice" else None


def entrance() -> Entrance:
    listener = Listener(
        tls=TlsSettings(cert_file="", key_file="", client_ca_file="ca"),
        authentication=("ScramSha512", "ScramSha256", "Plain", "Certificate"),
    )
    return Entrance("secure", admission(listener, Proofs(Credentials(lookup, lambda: b"secret"), Inline())))


def message(api: int, version: int, body: bytes, chance: Random) -> bytes:
    """Return a request of SASL, some bytes of which are changed, added or removed."""
    head = struct.pack(">hhih", api, version, 7, 4) + b"fuzz" + b"\0" * headers.is_flexible(api, version)
    data = bytearray(head + body)
    for _ in range(chance.choice((0, 0, 1, 2))):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[place : place + 1] = chance.randbytes(1)
            case 1:
                data[place : place + 4] = chance.choice(HOSTILE)
            case 2:
                del data[place : place + chance.randrange(20)]
            case 3:
                data[place:place] = chance.randbytes(chance.randrange(40))
    return struct.pack(">i", len(data)) + bytes(data)


def conversation(chance: Random) -> bytes:
    """Return the frames of a client that begins an exchange, in most cases with a mutated message."""
    name = chance.choice(MECHANISMS)
    frames = [message(17, 1, struct.pack(">h", len(name)) + name, chance)]
    for texts in (FIRST, LAST)[: chance.randint(1, 2)]:
        text = chance.choice(texts)
        frames.append(message(36, chance.randint(0, 1), struct.pack(">i", len(text)) + text, chance))
    if chance.random() < 0.1:
        chance.shuffle(frames)
    return b"".join(frames)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_frames_before_authentication_reach_no_handler(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    crashes = crashes_of_requests(monkeypatch)

    async def story() -> None:
        chance = Random(seed)
        async with broker() as asked:
            await create(asked, "text", 4)
            listener, door = Server(ConnectionSettings()), entrance()
            handled: list[str] = []
            routes = [_noted(route, handled) for route in api_table.routes(asked.broker)]
            listener._router = router.Router(routes, lambda: None, asked.broker.quotas)
            for _ in range(FRAMES // 10):
                sent = [conversation(chance) if chance.random() < 0.5 else frame(routes, chance) for _ in range(10)]
                await asyncio.gather(*(send(listener, frames, door) for frames in sent))
                assert not crashes, [frames.hex() for frames in sent]
            assert set(handled) <= {"SaslHandshake", "SaslAuthenticate", "ApiVersions"}
            assert len(set(handled)) == len(SASL), "the frames reach the handlers that they may reach"
            assert list(asked.broker.topic_metadata.by_name) == ["text"]
            assert len(listener.places) == len(listener._connections) == listener._budget.used == 0

    run(story())


def _noted(route: router.Route, handled: list[str]) -> router.Route:
    """Return the route with a handler that notes its name."""

    async def raw(call: router.Call) -> router.Buffers | None:
        handled.append(route.name)
        assert route.raw is not None
        return await route.raw(call)

    async def handler(request: Any, call: router.Call) -> Any:
        handled.append(route.name)
        assert route.handler is not None
        return await route.handler(request, call)

    return replace(route, raw=route.raw and raw, handler=route.handler and handler)
