"""Whole brokers over one memory in virtual time. Tests send frames as a connection would."""

import asyncio
import dataclasses
import io
import struct
from collections.abc import AsyncIterator, Awaitable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from random import Random
from typing import Any, TypeVar, get_args, get_type_hints
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta

from firn.records.message_reader import decode_answer
from firn_broker import api_table
from firn_broker.broker import Broker, Ports
from firn_broker.log_types import Endpoint, NodeAddress
from firn_broker.metadata_store.sqlite.database import Inline
from firn_broker.metadata_store.sqlite.store import SqliteStore
from firn_broker.network.budget import Counted
from firn_broker.network.router import Client
from firn_broker.ports import History, SubjectLookup
from firn_broker.settings import BrokerSettings, DirectorySettings, SqliteSettings
from firn_broker.storage.objects import MemoryObjects
from firn_broker.wire import headers
from tests.fakes.virtual_time import LoopClock

T = TypeVar("T")
DESCRIBE_CREDENTIALS = 50


class Shared:
    """The stores that brokers of a cluster share. The end of a broker does not close them."""

    def __init__(self) -> None:
        self.objects = MemoryObjects()
        self.store = SharedStore(":memory:", LoopClock(), "cluster", Inline())


class SharedStore(SqliteStore):
    """A store that starts once and is never closed."""

    started = False

    async def start(self) -> None:
        if not self.started:
            self.started = True
            await super().start()

    async def close(self) -> None:
        pass


class Silence(Exception):
    """The request gets no reply (acks=0)."""


class Asked:
    """A broker, and a client of it."""

    def __init__(self, broker: Broker, client: Client | None = None) -> None:
        self.broker = broker
        self.client = client or Client("test:1", "test")

    async def raw(self, api: int, version: int, body: bytes) -> bytes:
        """Return the body of the reply."""
        head = struct.pack(">hhi", api, version, 7) + struct.pack(">h", 4) + b"test"
        if headers.is_flexible(api, version):
            head += b"\0"
        # A failed request of SASL closes its connection. Each request here may be the first of a new one.
        self.client.closing = False
        frame = memoryview(bytearray(head + body))
        chunks = await self.broker.router.handle(headers.read(frame), frame, self.client)
        if chunks is None:
            raise Silence
        answer = b"".join(chunks)
        if isinstance(chunks, Counted):
            chunks.share.release()
        return answer[len(headers.response(headers.read(frame))) :]

    async def ask(self, api: int, version: int, **fields: Any) -> Any:
        """Return the reply as kio reads it."""
        schema = load_request_schema(api, version)
        buffer = io.BytesIO()
        entity_writer(schema)(buffer, fill(schema, fields))
        body, answers = await self.raw(api, version, buffer.getvalue()), load_response_schema(api, version)
        if api == DESCRIBE_CREDENTIALS:
            # kio does not skip tagged fields that Kafka does not have.
            return decode_answer(answers, api, version, memoryview(body), 0)
        answer, _ = entity_reader(answers)(body, 0)
        return answer


def fill(schema: Any, fields: Mapping[str, Any]) -> Any:
    """Return a message from nested dicts.

    Fields that the version lacks are omitted. Missing fields get their default, or an empty value."""
    values = {}
    for field, inner in _fields(schema):
        if field.name in fields:
            value = fields[field.name]
            values[field.name] = (
                tuple(fill(inner, element) for element in value) if inner is not None and value is not None else value
            )
        elif field.default is dataclasses.MISSING:
            values[field.name] = _NOTHING.get(field.metadata.get("kafka_type", ""), () if inner is not None else None)
    return schema(**values)


@cache
def _fields(schema: Any) -> list[tuple[Any, Any]]:
    hints = get_type_hints(schema)
    return [(field, nested_entity(hints[field.name])) for field in dataclasses.fields(schema)]


_NOTHING: dict[str, Any] = {
    "bool": False,
    "int8": 0,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "uuid": None,
    "string": None,
    "bytes": b"",
}


def nested_entity(hint: Any) -> Any:
    if isinstance(hint, type) and getattr(hint, "__type__", None) is EntityType.nested:
        return hint
    for argument in get_args(hint):
        if (entity := nested_entity(argument)) is not None:
            return entity
    return None


@asynccontextmanager
async def broker(
    shared: Shared | None = None,
    seed: int = 1,
    external: Endpoint | None = None,
    decoder: Executor | None = None,
    registries: SubjectLookup | None = None,
    tables: History | None = None,
    **settings: Any,
) -> AsyncIterator[Asked]:
    """Run a broker until the end of the block. ``tables`` rebuilds batches whose records lie in tables."""
    outside = shared or Shared()
    ports = Ports(outside.store, outside.objects, LoopClock(), Random(seed), decoder, history=tables)
    if registries is not None:
        ports = dataclasses.replace(ports, registries=registries)
        settings["registries"] = {"main": {"url": "http://nowhere"}}
    made = Broker(
        ports,
        BrokerSettings(
            coordinator=SqliteSettings(path=":memory:"), objects=DirectorySettings(path="/nowhere"), **settings
        ),
    )
    address = NodeAddress("127.0.0.1", 9092 + seed, made.settings.zone, external)
    await made.start(address, api_table.routes(made))
    try:
        yield Asked(made)
    finally:
        await made.leave_service()
        await made.stop()


async def create(asked: Asked, name: str, partitions: int = 1, **configs: str) -> UUID:
    """Create a topic and return its id."""
    answer = await asked.ask(
        19, 7,
        topics=[
            {
                "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [],
                "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
            }
        ],
        timeout=zero(), validate_only=False,
    )  # fmt: skip
    assert not answer.topics[0].error_code, answer.topics[0].error_message
    id: UUID = answer.topics[0].topic_id
    return id


def zero() -> Any:
    """Return a time-out of zero."""
    return i32Timedelta.parse(timedelta(0))


async def counting_turns(work: Awaitable[T]) -> tuple[T, int]:
    """Return the result of the work, and how often other tasks ran during it."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    try:
        return await work, turns
    finally:
        beside.cancel()


async def settle() -> None:
    """Run every task that can run now."""
    for _ in range(50):
        await asyncio.sleep(0)
