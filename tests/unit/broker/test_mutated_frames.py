"""Mutated frames through the connections of a whole broker. Each is answered or rejected, without a crash, an endless
request or a leak of memory.

Every change runs 50,000 frames, and `make test-long` a million."""

import asyncio
import os
import resource
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from firn_broker import api_table
from firn_broker.network import server
from firn_broker.network.router import Route
from firn_broker.network.server import PLAIN, Connection, Entrance, Server
from firn_broker.settings import ConnectionSettings
from firn_broker.wire import headers
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_decoding import SAMPLES, sample, written
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Asked, broker, create

SEEDS = 1000 if os.environ.get("FIRN_LONG") else 50
FRAMES = 1000
"""Number of frames for each seed, and so for each broker."""
PRODUCE = 0
SAMPLED = 8
"""Messages of one API and version, each of which is mutated in many ways."""
GROWTH = 96 << 20
"""Bytes by which the process may grow. A leak of 2 KiB for each frame would exceed them."""
HOSTILE = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\1", b"\xff\xff\xff\xff\x0f", b"\x80\0", b"")


class Transport:
    """A socket that accepts everything."""

    def __init__(self) -> None:
        self.ended = False
        self.answers = 0

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.ended

    def writelines(self, buffers: list[bytes]) -> None:
        self.answers += 1

    def close(self) -> None:
        self.ended = True

    abort = close


@cache
def samples(api: int, version: int) -> list[bytes]:
    """Return messages with a value in every field. A broker would accept the batches in them."""
    chance = Random(api << 8 | version)
    before = SAMPLES["records"]
    SAMPLES["records"] = bytes(raw(3))
    try:
        return [written(sample(load_request_schema(api, version), chance)) for _ in range(SAMPLED)]
    finally:
        SAMPLES["records"] = before


def frame(routes: list[Route], chance: Random) -> bytes:
    """Return a request with header and size, some bytes of which are changed, added or removed."""
    route = chance.choice(routes)
    low, high = route.versions
    version = chance.randint(max(low, 3) if route.key == PRODUCE else low, high)
    head = struct.pack(">hhih", route.key, version, 7, 4) + b"fuzz" + b"\0" * headers.is_flexible(route.key, version)
    data = bytearray(head + chance.choice(samples(route.key, version)))
    for _ in range(chance.choice((0, 1, 1, 2, 3))):
        # Sometimes the header, too. More often it would only name another API.
        place = chance.randrange(0 if chance.random() < 0.1 else min(len(head), len(data)), len(data) + 1)
        match chance.choice((0, 0, 0, 1, 1, 2, 3)):
            case 0:
                data[place : place + 1] = chance.randbytes(1)
            case 1:
                data[place : place + 4] = chance.choice(HOSTILE)
            case 2:
                del data[place:]
            case 3:
                data[place:place] = data[place : place + chance.randrange(40)]
    size = len(data) if chance.random() < 0.98 else chance.choice((0, -1, 7, len(data) + 100, 1 << 20, (1 << 31) - 1))
    return struct.pack(">i", size) + bytes(data)


async def send(listener: Server, data: bytes, entrance: Entrance = PLAIN) -> int:
    """Send frames through a new connection, in pieces that fit its buffer, wait for the end of the connection, and return the
    number of answers."""
    connection: Connection = listener.protocol(entrance)
    transport = Transport()
    connection.connection_made(transport)
    rest = memoryview(data)
    while len(rest) and not transport.ended:
        room = connection.get_buffer(-1)
        taken = min(len(room), len(rest))
        room[:taken] = rest[:taken]
        rest = rest[taken:]
        connection.buffer_updated(taken)
    connection.stop()
    assert connection.writer is not None
    # In virtual time. A fetch may ask for days of waiting, and then the client disconnects first.
    await asyncio.wait((connection.writer,), timeout=5000)
    connection.connection_lost(None)
    connection.check_timeouts(asyncio.get_running_loop().time())
    await asyncio.wait((connection.writer,), timeout=30 * 86400)
    assert connection.writer.done(), data.hex()
    return transport.answers


def rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.fixture(scope="module")
def memory() -> Iterator[list[int]]:
    """Collect the memory of the process after each seed, and fail if it grows."""
    sizes: list[int] = []
    yield sizes
    # The first seeds load modules, schemas and readers.
    assert len(sizes) < 10 or sizes[-1] - sizes[4] < GROWTH, sizes


def crashes_of_requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the unexpected errors that the server will log."""
    crashes: list[str] = []

    class Log:
        def info(self, event: str, **words: Any) -> None: ...

        def warning(self, event: str, **words: Any) -> None: ...

        def exception(self, event: str, **words: Any) -> None:
            crashes.append(f"{event}: {words}")

    monkeypatch.setattr(server, "log", Log())
    return crashes


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_mutated_frames_break_nothing(seed: int, memory: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    crashes = crashes_of_requests(monkeypatch)

    async def story() -> None:
        chance = Random(seed)
        async with broker() as asked:
            await create(asked, "text", 4)
            listener = Server(ConnectionSettings())
            listener._router = asked.broker.router
            routes = list(api_table.routes(asked.broker))
            for _ in range(FRAMES // 10):
                frames = [frame(routes, chance) for _ in range(10)]
                await asyncio.gather(*(send(listener, mutated) for mutated in frames))
                assert not crashes, [mutated.hex() for mutated in frames]
            assert listener._budget.used == listener._budget.waiting == len(listener._connections) == 0
            await works(asked)

    run(story())
    memory.append(rss())


async def works(asked: Asked) -> None:
    """The topic may not exist any more, because requests include DeleteTopics."""
    await create(asked, "after")
    assert (await produce(asked, "after", 0, raw())).error_code == ErrorCode.none
    assert asked.broker.healthy
