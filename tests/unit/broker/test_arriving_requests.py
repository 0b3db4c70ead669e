"""The bytes of a request arrive as they were sent, however large it is and however they are divided."""

import asyncio
from random import Random

import pytest

from firn_broker.network.router import Buffers, Client
from firn_broker.network.server import AT_ONCE, STEP
from firn_broker.wire.headers import RequestHeader
from tests.unit.broker.connections import PRODUCE, Router, answers, request, serving


class Keeper(Router):
    """Keeps the bytes of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []

    async def handle(self, header: RequestHeader, frame: memoryview, client: Client) -> Buffers | None:
        self.frames.append(bytes(frame))
        return await super().handle(header, frame, client)


@pytest.mark.parametrize(
    "size",
    [20, STEP - 1, STEP, STEP + 1, AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE + STEP, 5 * AT_ONCE + 3],
)
async def test_a_request_arrives_as_it_was_sent(size: int) -> None:
    random = Random(size)
    sent = [request(PRODUCE, number, size)[:14] + random.randbytes(size - 10) for number in (1, 2)]
    keeper = Keeper()
    async with serving(keeper, max_request_bytes=64 << 20, read_ahead_requests=2) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        together = b"".join(sent)
        place = 0
        while place < len(together):
            end = place + random.choice((1, 5, STEP, AT_ONCE))
            writer.write(together[place:end])
            await writer.drain()
            place = end
        assert await answers(reader, 2) == [1, 2]
        writer.close()
    assert keeper.frames == [frame[4:] for frame in sent]
