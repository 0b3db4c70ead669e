"""A story: clients of all kinds work while faults happen, then the faults end, and the log is checked."""

import asyncio
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from firn_broker.maintenance import fsck
from firn_broker.network.router import Client
from tests.fakes.virtual_time import run
from tests.simulation.broker import history, wire
from tests.simulation.broker.clients import RETRIABLE, Admin, Consumer, Member, Producer, somewhere
from tests.simulation.broker.connected import ConnectedConsumer
from tests.simulation.broker.followers import Follower, FollowingConsumer
from tests.simulation.broker.history import History, Log
from tests.simulation.broker.losses import Losses, forget_reports, how_often
from tests.simulation.broker.world import COORDINATOR, LEASE_SECONDS, OBJECTS, OFTEN, STEPS, Dead, World, only_errors

KEPT_TOPIC, TRIMMED, REMADE = "kept", "trimmed", "remade"
PARTITIONS = {KEPT_TOPIC: 3, TRIMMED: 2, REMADE: 1}
GROUP, MEMBERS = "group", 3
BROKERS = 3
WINDOWS = 7
CHAOS_SECONDS = 45
PEACE_SECONDS = 240
"""Time limit for brokers and clients to recover after the last fault."""
HOUR = 3600.0
OPERATIONS, FAULTS, ACKNOWLEDGED = 2000, 30, 80
"""Lower bounds of a story. A shorter story would prove too little."""


@dataclass
class Outcome:
    """The outcome of a seed."""

    history: History
    operations: int
    faults: dict[str, int]
    wrong: list[str]
    repeated: int
    """Fetches that a timer answered."""


def run_story(seed: int) -> Outcome:
    """Run the story of a seed, which is always the same."""
    world, record = World(seed), History()
    wrong: list[str] = []
    with only_errors(world.errors):
        try:
            run(_story(world, record, how_often(seed)))
        except Exception as error:
            wrong.append("".join(traceback.format_exception(error)[-6:]))
    if record.lost_seconds:
        forget_reports(world)
    wrong += [f"unexpected: {error}" for error in world.errors]
    if not wrong:
        wrong += history.violations(record)
    return Outcome(record, world.operations, dict(world.faults), wrong, world.repeated)


@dataclass
class _Readers:
    """The clients that read. ``logs`` are those of the topics that no client re-creates."""

    logs: list[Log]
    consumers: list[Consumer]
    members: list[Member]


async def _story(world: World, record: History, losses: int) -> None:
    """Let clients work during the faults and after them, then read everything.

    The coordinator loses commits ``losses`` times. The steps draw random numbers in this order. Another order would give
    each seed another story.
    """
    chance = world.chance
    await world.store.start()
    for _ in range(BROKERS):
        await world.start()
    admin = await _admin_with_topics(world, record)
    world.trouble, world.slowness = chance.choice((0.02, 0.08, 0.2)), chance.choice((0.01, 0.2, 1.0))
    world.objects.share = world.trouble / 2
    producers = _producers(world, record)
    readers = _readers(world, record)
    chaos = world.later(_chaos(world))
    trimming = world.later(admin.trim())
    reading = [world.later(consumer.run()) for consumer in readers.consumers] + [
        world.later(member.run()) for member in readers.members
    ]
    loss = Losses(world, record, admin)
    work = asyncio.gather(_remake(world, admin), *(producer.run() for producer in producers), loss.run(losses))
    broken = [world.later(loss.broken())] if losses else []
    async with asyncio.timeout(600):
        await asyncio.wait([work, *broken], return_when=asyncio.FIRST_COMPLETED)
    await _stop(chaos, trimming, *broken)
    _heal(world)
    if losses and not (work.done() and await loss.decided()):
        await _stop(work, *reading)
        await loss.recover()
        await _start_missing(world)
        await _read_logs(world, record, readers.logs)
    else:
        await work
        await _settle(world, readers.members)
        await _stop(*reading)
        await _read_everything(world, record, readers)
    report = await fsck.check(world.store.retention, world.objects, read=True)
    assert not report.lost, f"objects are lost: {report}"
    world.end()


async def _admin_with_topics(world: World, record: History) -> Admin:
    """Create the topics, and return the client that trims one of them and re-creates another."""
    admin = Admin(world, record, TRIMMED, PARTITIONS[TRIMMED], REMADE)
    await admin.make(KEPT_TOPIC, PARTITIONS[KEPT_TOPIC], {"retention.ms": "-1"})
    await admin.make(
        TRIMMED, PARTITIONS[TRIMMED], {"retention.bytes": "20000", "message.timestamp.type": "LogAppendTime"}
    )
    await admin.make(REMADE, PARTITIONS[REMADE], {"retention.ms": "-1"})
    return admin


def _producers(world: World, record: History) -> list[Producer]:
    """Return idempotent and other producers for all topics."""

    def enough() -> bool:
        # The last part, without faults, adds about a third.
        return world.operations >= 0.7 * OPERATIONS and world.faults.total() >= FAULTS

    kinds: list[tuple[type[Producer], Log, bool]] = [
        *((Follower, (KEPT_TOPIC, part), True) for part in (0, 1, 2)),
        (Producer, (KEPT_TOPIC, 0), True), (Producer, (KEPT_TOPIC, 1), False),
        (Producer, (TRIMMED, 0), True), (Producer, (TRIMMED, 1), False), (Producer, (REMADE, 0), False),
    ]  # fmt: skip
    return [
        kind(world, record, number, log, WINDOWS, idempotent=idempotent, enough=enough)
        for number, (kind, log, idempotent) in enumerate(kinds)
    ]


def _readers(world: World, record: History) -> _Readers:
    """Return consumers of each log that use any broker, one broker or the leader, slow consumers, and the members of a
    group."""
    logs = [(topic, part) for topic in (KEPT_TOPIC, TRIMMED) for part in range(PARTITIONS[topic])]
    consumers = [Consumer(world, record, f"reader of {log}", log) for log in logs if log[1] == 0]
    consumers += [
        ConnectedConsumer(world, record, f"connected reader of {log}", log, in_session=log[0] == TRIMMED or log[1] == 2)
        for log in logs
        if log[1] > 0
    ]
    consumers += [FollowingConsumer(world, record, f"follower of {log}", log) for log in logs if log[0] == KEPT_TOPIC]
    # These are too slow for records that retention deletes.
    consumers += [Consumer(world, record, f"slow reader of {log}", log, 10.0) for log in logs if log[0] == TRIMMED]
    instances = ["static", *[None] * (MEMBERS - 1)]
    members = [Member(world, record, GROUP, KEPT_TOPIC, PARTITIONS[KEPT_TOPIC], instance) for instance in instances]
    return _Readers(logs, consumers, members)


async def _settle(world: World, members: list[Member]) -> None:
    """End all faults, and wait until every partition has a member of the group."""
    _heal(world)
    await _start_missing(world)
    everything = list(range(PARTITIONS[KEPT_TOPIC]))
    async with asyncio.timeout(PEACE_SECONDS):
        # Retention runs meanwhile, and must not delete any referenced object.
        await asyncio.sleep(12)
        while (
            not all(member.stable for member in members)
            or sorted(part for member in members for part in member.mine) != everything
        ):
            await asyncio.sleep(0.5)
        await asyncio.sleep(3)


async def _start_missing(world: World) -> None:
    while len(world.hosts) < BROKERS:
        await world.start()


async def _read_everything(world: World, record: History, readers: _Readers) -> None:
    """Read all logs and the group's offsets, and let each consumer reach the end of its log at a new broker."""
    fresh = await world.start()
    await asyncio.sleep(2)
    await _read_logs(world, record, [*readers.logs, (REMADE, 0)])
    async with asyncio.timeout(PEACE_SECONDS):
        for consumer in readers.consumers:
            while not await consumer.read(fresh):
                await asyncio.sleep(0.1)
        for partition in range(PARTITIONS[KEPT_TOPIC]):
            while not await _committed(world, readers.members[0], partition):
                await asyncio.sleep(0.1)


async def _read_logs(world: World, record: History, logs: Sequence[Log]) -> None:
    async with asyncio.timeout(PEACE_SECONDS):
        for log in logs:
            record.logs[log] = await _read_all(world, log)


async def _committed(world: World, member: Member, partition: int) -> bool:
    try:
        return await member.committed(await somewhere(world), partition) is not None
    except Dead:
        return False


async def _remake(world: World, admin: Admin) -> None:
    for _ in range(2):
        await asyncio.sleep(1 + world.chance.random() * 6)
        await admin.remake()


async def _stop(*tasks: "asyncio.Future[Any]") -> None:
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _heal(world: World) -> None:
    world.trouble, world.slowness = 0.0, 0.01
    world.objects.share = 0.0
    world.down = {COORDINATOR: 0.0, OBJECTS: 0.0}
    world.clock.skew = 0.0
    for host in list(world.hosts):
        host.doom, host.cut, host.clock.skew = None, 0.0, 0.0
        world.thaw(host)


async def _read_all(world: World, log: Log) -> tuple[int, list[history.Batch]]:
    """Read a log from its start, from any broker; return its log start and its batches."""
    batches: list[history.Batch] = []
    start = offset = -1
    while True:
        answer = await wire.fetch(world, await somewhere(world), Client("last"), *log, max(offset, 0))
        if answer.error in RETRIABLE:
            await asyncio.sleep(0.5)
            continue
        if offset < 0:
            start = offset = answer.start
            continue
        assert not answer.error, f"error {answer.error} at {offset} of {log}"
        batches += answer.batches
        offset = batches[-1].offset + batches[-1].records if batches else offset
        if offset >= answer.high:
            return start, batches


# Faults


async def _chaos(world: World) -> None:
    """Cause random faults, until a time at which clients have to finish."""
    chance = world.chance
    kinds = (_kill, _kill, _kill, _freeze, _cut, _coordinator_gone, _restart, _store_gone, _clock)
    while world.now() < CHAOS_SECONDS:
        await asyncio.sleep(chance.expovariate(1.2))
        world.later(chance.choice(kinds)(world))


async def _kill(world: World) -> None:
    """Kill a broker at a step, if it reaches the step soon, and start another broker in its place."""
    if not world.hosts:
        return
    host = world.chance.choice(world.hosts)
    host.doom = world.chance.choice(STEPS[:OFTEN] if world.chance.random() < 0.7 else STEPS)
    await asyncio.sleep(4)
    if not host.dead and not host.spared:
        world.faults["death at any time"] += 1
        world.kill(host)
    await asyncio.sleep(world.chance.random() * 3)
    if len(world.hosts) < BROKERS:
        await world.start()


async def _freeze(world: World) -> None:
    """Freeze a process. It continues as a zombie if it was frozen for longer than its lease."""
    if not world.hosts:
        return
    host = world.chance.choice(world.hosts)
    if host.thawed is None:
        seconds = world.chance.random() * 2.5 * LEASE_SECONDS
        world.faults["zombie" if seconds > LEASE_SECONDS else "pause"] += 1
        world.freeze(host)
        await asyncio.sleep(seconds)
        world.thaw(host)


async def _cut(world: World) -> None:
    if world.hosts:
        host = world.chance.choice(world.hosts)
        world.faults["cut off from the coordinator"] += 1
        host.cut = world.now() + world.chance.random() * 2.5 * LEASE_SECONDS


async def _coordinator_gone(world: World) -> None:
    """Stop the coordinator, sometimes for longer than all leases."""
    world.faults["coordinator gone"] += 1
    seconds = world.chance.choice((1.0, 2.0, 1.5 * LEASE_SECONDS))
    world.down[COORDINATOR] = world.now() + world.chance.random() * seconds


async def _restart(world: World) -> None:
    world.faults["coordinator restarted"] += 1
    world.down[COORDINATOR] = world.now() + 0.2 + world.chance.random()
    await world.restart_coordinator()


async def _store_gone(world: World) -> None:
    """Stop the object store, sometimes for longer than an upload is tried."""
    world.faults["store gone"] += 1
    world.down[OBJECTS] = world.now() + world.chance.random() * world.chance.choice((1.0, 6.0))


async def _clock(world: World) -> None:
    """Move a wall clock by up to two hours, back or forth. Leases and retention use the coordinator's clock."""
    chance = world.chance
    world.faults["clock jumped"] += 1
    clock = world.clock if chance.random() < 0.5 or not world.hosts else chance.choice(world.hosts).clock
    clock.skew = chance.choice((-1, 1)) * chance.choice((1.0, 10.0, 2 * HOUR)) * chance.random()
