"""Clients of the simulation. They record their actions and observations in a `History`, and use random brokers."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from kio.static.primitive import i32Timedelta

from firn_broker.network.router import Client
from tests.simulation.broker import wire
from tests.simulation.broker.history import Assignment, Bounds, History, Log, OffsetCommit, OffsetRead, Sent
from tests.simulation.broker.wire import call
from tests.simulation.broker.world import Dead, Host, World

UNKNOWN_TOPIC, OUT_OF_RANGE, OUT_OF_ORDER = 3, 1, 45
RETRIABLE = {UNKNOWN_TOPIC, 5, 6, 7, 56, 100}
LOADING, NOT_AVAILABLE, NOT_COORDINATOR, ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE = 14, 15, 16, 22, 25, 27
MEMBER_ID_REQUIRED, FENCED_INSTANCE = 79, 82
RESTARTS = 0.3
"""Share of joins at which a static member forgets its member id."""
ELSEWHERE = {LOADING, NOT_AVAILABLE, NOT_COORDINATOR}


def milliseconds(count: int) -> Any:
    return i32Timedelta.parse(timedelta(milliseconds=count))


async def somewhere(world: World) -> Host:
    """Choose a live broker; wait until there is one."""
    while not world.hosts:
        await asyncio.sleep(0.2)
    return world.chance.choice(world.hosts)


class Producer:
    """Sends windows of up to five batches without waiting for replies, and repeats the rest of a window in order.

    Without ``idempotent`` a window has one batch. The producer ends after ``windows`` windows and when ``enough``
    returns True.
    """

    def __init__(
        self,
        world: World,
        history: History,
        number: int,
        log: Log,
        windows: int,
        *,
        idempotent: bool,
        enough: Callable[[], bool],
    ) -> None:
        self._world = world
        self._history = history
        self._number = number
        self._log = log
        self._windows = windows
        self._idempotent = idempotent
        self._enough = enough
        self._producer_id = -1
        self._sequence = 0
        self._sent = 0

    async def run(self) -> None:
        chance = self._world.chance
        while self._windows > 0 or not self._enough():
            self._windows -= 1
            id = self._producer_id = await self._begin(self._producer_id)
            await asyncio.sleep(chance.random() * 0.8)
            window = []
            for _ in range(chance.randint(1, 5) if self._idempotent else 1):
                count = chance.randint(1, 4)
                sequence = {"producer": id, "epoch": 0, "sequence": self._sequence} if self._idempotent else {}
                data = wire.batch(self._sent, self._number, count, chance.randrange(1500), **sequence)
                sent = Sent(self._log, self._number, self._sent, count, self._idempotent, id)
                self._history.sent.append(sent)
                window.append((sent, data))
                self._sent += 1
                self._sequence += count
            acks = -1 if self._idempotent else chance.choice((-1, 1, 0))
            while window:
                window = await self._send(window, acks)

    async def _begin(self, id: int) -> int:
        """Return the producer id for the next window."""
        return await self._id() if self._idempotent and id < 0 else id

    async def _id(self) -> int:
        while True:
            try:
                answer = await call(
                    self._world,
                    await somewhere(self._world),
                    22,
                    2,
                    transactional_id=None,
                    transaction_timeout=milliseconds(0),
                )
            except Dead:
                continue
            if not answer.error_code:
                self._history.producer_ids.append(answer.producer_id)
                self._history.allocated[answer.producer_id] = self._world.now()
                return int(answer.producer_id)
            await asyncio.sleep(0.2)

    async def _send(self, window: list[tuple[Sent, memoryview]], acks: int) -> list[tuple[Sent, memoryview]]:
        """Send the window and return the batches that are left to send."""
        world = self._world
        host, client = await somewhere(world), Client("peer")
        if len(window) == 5 and world.chance.random() < 0.3:
            # A connection reports this when it is not read any more.
            asyncio.get_running_loop().call_soon(host.stalled)
        for sent, _ in window:
            sent.times += 1
            sent.began = world.now()
        answers = await asyncio.gather(
            *(wire.produce(world, host, client, *self._log, data, acks=acks) for _, data in window),
            return_exceptions=True,
        )
        if acks == 0:
            return []
        taken = 0
        for (sent, _), answer in zip(window, answers, strict=True):
            if isinstance(answer, Dead):
                break
            if isinstance(answer, BaseException):
                raise answer
            error, offset = answer
            if error:
                # Batches after one that has to be repeated are out of order. None is lost: the producer repeats them
                # too.
                assert error in RETRIABLE or (error == OUT_OF_ORDER and self._history.lost_seconds), (
                    f"error {error} for {sent}"
                )
                break
            sent.offset, sent.acknowledged = offset, world.now()
            taken += 1
        for (sent, _), answer in list(zip(window, answers, strict=True))[taken + 1 :]:
            if not isinstance(answer, BaseException) and not isinstance(answers[taken], BaseException):
                assert answer[0], f"{sent} was committed before {window[taken][0]}"
        if taken < len(window):
            await asyncio.sleep(world.chance.random())
        return window[taken:]


class Consumer:
    """Reads a partition to its end from any broker, repeatedly, at most ``pace`` seconds apart, until the story
    stops it."""

    def __init__(self, world: World, history: History, name: str, log: Log, pace: float = 0.8) -> None:
        self._world = world
        self._history = history
        self._name = name
        self._log = log
        self._pace = pace
        self._offset = 0

    async def run(self) -> None:
        chance = self._world.chance
        while True:
            await asyncio.sleep(chance.random() * self._pace)
            wait = 500 if chance.random() < 0.5 else 0
            await self._fetch(await self._choose(), wait_ms=wait)

    async def _choose(self) -> Host:
        """Return the broker for the next fetch."""
        return await somewhere(self._world)

    async def read(self, host: Host) -> bool:
        """Fetch once, and return True if the end is reached."""
        answer = await self._fetch(host)
        return answer is not None and not answer.error and self._offset >= answer.high

    async def _fetch(self, host: Host, *, wait_ms: int = 0) -> wire.Fetched | None:
        """Fetch once, and return the answer; None for a broker that does not answer or has an error that may pass."""
        world, history = self._world, self._history
        began = world.now()
        try:
            answer = await self._ask(host, wait_ms)
        except Dead:
            return None
        if answer.error == OUT_OF_RANGE:
            history.skipped.append((self._name, self._log, self._offset, answer.start))
            history.skipped_at.append(world.now())
            self._offset = answer.start
        elif answer.error:
            assert answer.error in RETRIABLE, f"error {answer.error} at {self._offset} of {self._log}"
            return None
        history.bounds.append(Bounds(self._log, began, world.now(), answer.start, answer.high))
        if answer.batches:
            history.seen.append((self._name, self._log, answer.batches))
            history.seen_at.append(world.now())
            last = answer.batches[-1]
            self._offset = last.offset + last.records
        return answer

    async def _ask(self, host: Host, wait_ms: int) -> wire.Fetched:
        """Send a fetch on a connection of its own. Raises Dead."""
        return await wire.fetch(self._world, host, Client("reader"), *self._log, self._offset, wait_ms=wait_ms)


class Member:
    """A member of a classic group. It reads its assigned partitions and commits its positions.

    With an ``instance`` it is a static member, which sometimes forgets its member id and joins again, as after a
    restart.
    """

    def __init__(
        self, world: World, history: History, group: str, topic: str, partitions: int, instance: str | None = None
    ) -> None:
        self._world = world
        self._history = history
        self._group = group
        self._topic = topic
        self._partitions = partitions
        self._instance = instance
        self._id = ""
        self._generation = -1
        self._host: Host | None = None
        self.mine: tuple[int, ...] = ()
        self.stable = False

    async def run(self) -> None:
        while True:
            with suppress(Dead):
                await self._live()
            self._host, self.stable = None, False
            await asyncio.sleep(0.2 + self._world.chance.random() * 0.5)
            if self._instance is not None and self._world.chance.random() < RESTARTS:
                self._id = ""

    async def _ask(self, api: int, version: int, *, seconds: float = 4.0, **fields: Any) -> Any:
        assert self._host is not None
        return await call(self._world, self._host, api, version, seconds=seconds, **fields)

    async def _live(self) -> None:
        """Work as a member until an error occurs."""
        answer = await call(self._world, await somewhere(self._world), 10, 2, key=self._group, key_type=0)
        if answer.error_code:
            return
        self._host = next((host for host in self._world.hosts if host.number == answer.port), None)
        if self._host is None or not await self._join():
            return
        positions = {}
        for partition in self.mine:
            if (offset := await self.committed(self._host, partition)) is None:
                return
            positions[partition] = max(offset, 0)
        self.stable = True
        while await self._beat():
            await asyncio.sleep(0.4 + self._world.chance.random() * 0.6)
            for partition in self.mine:
                end = await self._read(partition, positions[partition])
                if end != positions[partition]:
                    positions[partition] = end
                    if not await self._commit(partition, end):
                        return

    async def _join(self) -> bool:
        began = self._world.now()
        topic = self._topic.encode()
        joined: Any = await self._ask(
            11, 5, seconds=20.0, group_id=self._group, session_timeout=milliseconds(6000), rebalance_timeout=milliseconds(6000), member_id=self._id,
            group_instance_id=self._instance, protocol_type="consumer", protocols=[{"name": "range", "metadata": topic}],
        )  # fmt: skip
        self._id = joined.member_id
        if joined.error_code:
            self._look_at(joined.error_code)
            return False
        self._generation = joined.generation_id
        assignments = []
        if joined.leader == self._id:
            members = sorted(member.member_id for member in joined.members)
            parts = {id: bytes(range(self._partitions)[place :: len(members)]) for place, id in enumerate(members)}
            assignments = [{"member_id": id, "assignment": part} for id, part in parts.items()]
        synced: Any = await self._ask(
            14, 3, seconds=12.0, group_id=self._group, generation_id=self._generation, member_id=self._id, group_instance_id=self._instance,
            assignments=assignments,
        )  # fmt: skip
        if synced.error_code:
            self._look_at(synced.error_code)
            return False
        self.mine = tuple(synced.assignment)
        self._history.assignments.append(
            Assignment(self._group, self._generation, self._instance or self._id, self.mine, began, self._world.now())
        )
        return True

    def _look_at(self, error: int) -> None:
        # No other member has its instance, and this error ends a real client. A new client takes its place if the
        # coordinator lost its last join.
        assert error != FENCED_INSTANCE or self._history.lost_seconds, "a static member was fenced"
        if error in (UNKNOWN_MEMBER, FENCED_INSTANCE):
            self._id = ""

    async def _beat(self) -> bool:
        answer: Any = await self._ask(
            12,
            3,
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._id,
            group_instance_id=self._instance,
        )
        return self._in(answer.error_code)

    def _in(self, error: int) -> bool:
        self._look_at(error)
        assert (
            error == FENCED_INSTANCE
            or not error
            or error in ELSEWHERE | {ILLEGAL_GENERATION, UNKNOWN_MEMBER, REBALANCE}
        ), error
        return not error

    async def _read(self, partition: int, offset: int) -> int:
        log = self._topic, partition
        try:
            answer = await wire.fetch(self._world, await somewhere(self._world), Client("member"), *log, offset)
        except Dead:
            return offset
        assert answer.error in RETRIABLE | {0}, answer.error
        for batch in answer.batches:
            offset = batch.offset + batch.records
            self._history.consumed[log].update(range(batch.offset, offset))
        return offset

    async def _commit(self, partition: int, offset: int) -> bool:
        commit = OffsetCommit((self._topic, partition), offset, self._world.now())
        self._history.commits.append(commit)
        answer: Any = await self._ask(
            8, 7, group_id=self._group, generation_id_or_member_epoch=self._generation, member_id=self._id, group_instance_id=self._instance,
            topics=[
                {
                    "name": self._topic,
                    "partitions": [
                        {
                            "partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        )  # fmt: skip
        error = answer.topics[0].partitions[0].error_code
        if not error:
            commit.ended = self._world.now()
        return self._in(error)

    async def committed(self, host: Host, partition: int) -> int | None:
        """Ask ``host`` for the group's offset; return None after an error. Raises Dead."""
        began = self._world.now()
        answer = await call(
            self._world, host, 9, 5, group_id=self._group, topics=[{"name": self._topic, "partition_indexes": [partition]}]
        )  # fmt: skip
        partition_answer = answer.topics[0].partitions[0]
        if answer.error_code or partition_answer.error_code:
            return None
        offset = int(partition_answer.committed_offset)
        self._history.reads.append(OffsetRead((self._topic, partition), offset, began, self._world.now()))
        return offset


class Admin:
    """Moves the log start of one topic, and deletes and re-creates another topic under the same name."""

    def __init__(self, world: World, history: History, trimmed: str, partitions: int, remade: str) -> None:
        self._world = world
        self._history = history
        self._trimmed = trimmed
        self._partitions = partitions
        self._remade = remade
        self._remaking = asyncio.Lock()

    async def trim(self) -> None:
        """Move log starts until cancelled."""
        chance = self._world.chance
        while True:
            await asyncio.sleep(chance.expovariate(0.8))
            log = self._trimmed, chance.randrange(self._partitions)
            high = max(
                (bound.high for bound in self._history.bounds if bound.log == log and bound.high >= 0), default=0
            )
            began = self._world.now()
            try:
                answer = await call(
                    self._world, await somewhere(self._world), 21, 1, timeout=milliseconds(1000),
                    topics=[{"name": log[0], "partitions": [{"partition_index": log[1], "offset": chance.randint(0, high)}]}],
                )  # fmt: skip
            except Dead:
                continue
            partition_answer = answer.topics[0].partitions[0]
            # The high watermark that is known here may be one of lost commits.
            lost = {OUT_OF_RANGE} if self._history.lost_seconds else set()
            assert partition_answer.error_code in RETRIABLE | {0} | lost, partition_answer.error_code
            if not partition_answer.error_code:
                self._history.bounds.append(Bounds(log, began, self._world.now(), partition_answer.low_watermark, -1))

    async def remake(self) -> None:
        """Delete and re-create the topic.

        Waits for each reply, because a late request must not take effect after the next one.
        """
        async with self._remaking:
            await self._remake()

    async def _remake(self) -> None:
        began = self._world.now()
        await self._until(
            20, 3, {0, UNKNOWN_TOPIC}, lambda reply: reply.responses[0].error_code, topic_names=[self._remade]
        )
        await self.make(self._remade, 1, {})
        self._history.made_anew.setdefault(self._remade, []).append((began, self._world.now()))

    async def make(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        """Create a topic."""
        topic = {
            "name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [],
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }  # fmt: skip
        await self._until(19, 5, {0, 36}, lambda reply: reply.topics[0].error_code, topics=[topic], validate_only=False)

    async def _until(self, api: int, version: int, done: set[int], error: Callable[[Any], int], **fields: Any) -> None:
        while True:
            try:
                answer = await call(
                    self._world,
                    await somewhere(self._world),
                    api,
                    version,
                    seconds=300.0,
                    timeout=milliseconds(1000),
                    **fields,
                )
                if error(answer) in done:
                    return
            except Dead:
                pass
            await asyncio.sleep(0.3)
