"""The order of the requests of one connection: a request reads what the requests before it wrote."""

import struct

from tests.unit.broker.batches import raw
from tests.unit.broker.test_disconnected_clients import request, serving
from tests.unit.broker.whole import Shared

PRODUCE, LIST_OFFSETS = 0, 2
LATEST = -1


def produce(acks: int) -> bytes:
    data = bytes(raw())
    body = struct.pack(">hhih", PRODUCE, 7, 1, 4) + b"test"
    body += struct.pack(">hhiihsiii", -1, acks, 1000, 1, 1, b"t", 1, 0, len(data)) + data
    return len(body).to_bytes(4, "big") + body


async def test_offsets_count_the_batches_that_the_connection_sent_before() -> None:
    async with serving(Shared()) as (_, _, connect):
        client = await connect()
        ends = []
        for _ in range(3):
            client.send(produce(0) + produce(0))
            topics = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": LATEST}]}]
            answer = await client.ask(
                LIST_OFFSETS, 3, request(LIST_OFFSETS, 3, replica_id=-1, isolation_level=0, topics=topics)
            )
            ends.append(answer.topics[0].partitions[0].offset)
        assert ends == [2, 4, 6]
        client.go()
