"""Clients that fail to authenticate: their pipelined requests do not run, and others keep their memory and their audit lines."""

import asyncio
import struct
from typing import Any

import pytest
from structlog.testing import capture_logs

from firn_broker.access.mechanisms.exchange import AuthenticationError, Step
from firn_broker.access.session import Admission, Session
from firn_broker.network import input as reading
from firn_broker.network.server import Entrance, Server
from firn_broker.settings import ConnectionSettings, Listener
from firn_broker.wire import headers
from tests.fakes.virtual_time import run
from tests.unit.broker.connections import Router, gone, request, serving
from tests.unit.broker.whole import Asked, broker

HANDSHAKE, AUTHENTICATE, VERSIONS, METADATA = 17, 36, 18, 3


class Refusing:
    """An exchange that accepts one password."""

    async def step(self, data: bytes) -> Step:
        if data != b"right":
            raise AuthenticationError("no", "a wrong password")
        return Step(b"", "User:ana")


ADMISSION = Admission({"PLAIN": Refusing})


def frame(api: int, version: int, body: bytes) -> memoryview:
    return memoryview(bytearray(struct.pack(">hhih", api, version, 7, 4) + b"test" + body))


async def send(asked: Asked, api: int, version: int, body: bytes) -> Any:
    """Return the answer of the router to a frame; None if there is none."""
    data = frame(api, version, body)
    return await asked.broker.router.handle(headers.read(data), data, asked.client)


def message(text: bytes) -> bytes:
    return struct.pack(">i", len(text)) + text


def test_requests_behind_a_failed_authentication_do_not_run() -> None:
    async def story() -> None:
        async with broker() as asked:
            asked.client.session = Session(ADMISSION)
            assert await send(asked, HANDSHAKE, 1, b"\0\5PLAIN")
            assert await send(asked, AUTHENTICATE, 0, message(b"wrong"))
            assert asked.client.closing
            assert await send(asked, HANDSHAKE, 1, b"\0\5PLAIN") is None
            assert await send(asked, AUTHENTICATE, 0, message(b"right")) is None
            assert asked.client.principal == "User:ANONYMOUS"

    run(story())


async def test_requests_before_authentication_take_no_memory_of_producers() -> None:
    server, router = Server(ConnectionSettings()), Router()
    router.hold(1, 2)
    _, port = await server.bind("127.0.0.1", 0, Entrance(admission=ADMISSION))
    await server.accept(router)  # type: ignore[arg-type]
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(VERSIONS, 1, size=60_000) + request(VERSIONS, 2, size=60_000))
        await router.until(1)
        assert server._budget.held == 0
        # The second request is not read before the first one is answered.
        (connection,) = server._connections
        assert connection._input.paused
        router.gates[1].set()
        await router.until(1, 2)
        writer.close()
        router.gates[2].set()
    finally:
        await server.stop(1, lambda: None)


async def test_a_client_that_does_not_read_its_last_answer_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CLOSE_SECONDS", 0.1)
    router = Router()
    # More than the buffers of both sockets take.
    router.answer, router.closes = bytes(64 << 20), True
    async with serving(router, authentication_seconds=600, idle_seconds=600) as (server, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request(VERSIONS, 1))
        await router.until(1)
        (connection,) = server._connections
        assert connection._transport.is_closing()
        assert connection._transport.get_write_buffer_size() > 0
        await gone(server, 0)
        writer.transport.abort()


def test_a_listener_that_gives_all_rights_to_everyone_is_a_warning() -> None:
    async def story() -> None:
        async with broker(authorization={"type": "Acl", "super_users": ["User:ANONYMOUS"]}) as asked:
            with capture_logs() as lines:
                asked.broker.entrance("", Listener(bind="127.0.0.1:9092"))
                assert not lines
                asked.broker.entrance("", Listener(bind="0.0.0.0:9092"))
            assert [line["log_level"] for line in lines] == ["warning"]

    run(story())
