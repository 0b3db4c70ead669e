"""Actions of stories: clients write, processes stop, logs and tables change under the product."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from firn.model import names
from firn.model.errors import CorruptDataError
from firn_spark.tables.commits import carried, newest
from tests.fakes.lake.java import DirectGateway, JavaTable, Session
from tests.fakes.lake.memory import (
    MAIN,
    Lake,
    Metadata,
    RefusedError,
    Snapshot,
    compacted,
    expired,
    rolled_back,
    unreachable,
)
from tests.simulation.product.faults import Fault
from tests.simulation.product.log import PROFILE
from tests.simulation.product.world import LETTERS, TABLE, TOPIC, World, quality

HOUR = 3600.0
KEPT_SECONDS = 20.0
"""Time after a rollback without expiry. Until the next commit, the history completes the offsets of the snapshot."""


def produce(world: World, partition: int, count: int, bad: bool) -> None:
    """Append records, the last of which is ``bad``, and an offset without a record."""
    for number in range(count):
        world.log.append(TOPIC, partition, world.scheduler.now, bad=bad and number == count - 1)
    if count > 3:
        world.log.append(TOPIC, partition, world.scheduler.now, hole=True)


def written(world: World, partition: int, offset: int, records: int) -> None:
    """Append a batch at the offset at which the brokers' own story has it."""
    found = world.log.of(TOPIC)
    while found is not None and found[1][partition].end < offset:
        world.log.append(TOPIC, partition, world.scheduler.now, hole=True)
    for _ in range(records):
        world.log.append(TOPIC, partition, world.scheduler.now)


def arm(world: World, process: str, call: str, kind: str, skip: int, seconds: float) -> None:
    """Let a later call of a process fail."""
    host = world.find(process)
    if host is not None:
        host.armed.append(Fault(call, kind, skip, seconds))


def kill(world: World, process: str, seconds: float) -> None:
    """Kill a process wherever it is. A driver starts again after this time."""
    host = world.find(process)
    if host is not None and not host.dead:
        world.happened[f"death of {process}"] += 1
        host.kill()
        if process == "driver":
            world.down_until = world.scheduler.now + seconds


def freeze(world: World, process: str, seconds: float) -> None:
    """Stop a process for a while. It goes on where it was."""
    host = world.find(process)
    if host is not None:
        world.happened[f"{process} frozen"] += 1
        host.frozen_until = host.troubled_at = world.scheduler.now + seconds


def second_driver(world: World) -> None:
    """Start another driver of the same group, as a pod on a lost node is."""
    if world.find("rival") is None:
        world.happened["second driver"] += 1
        world.new_driver()


def clock(world: World, process: str, seconds: float) -> None:
    """Move the wall clock of a process."""
    host = world.find(process)
    if host is not None:
        world.happened["clock moved"] += 1
        host.skew = seconds


def outage(world: World, system: str, seconds: float) -> None:
    """Let a system answer no process for a while."""
    world.happened[f"{system} gone"] += 1
    world.outages.until[system] = world.scheduler.now + seconds
    if system == "cluster":
        # The operator's pauses grow to twice the time that has passed.
        world.operator.host.troubled_at = world.scheduler.now + 3 * seconds


def retention(world: World, partition: int, share: float) -> None:
    """Let the log delete records, whether they have landed or not."""
    world.happened["retention"] += 1
    world.log.delete_before(TOPIC, partition, share)


def cut_back(world: World, partition: int, count: int) -> None:
    """Let the brokers lose the newest records."""
    world.happened["log cut back"] += 1
    world.log.cut_back(TOPIC, partition, count)


def recreate_topic(world: World) -> None:
    """Delete the Kafka topic, which the operator or the next client creates again."""
    topics = world.log.topics.topics
    if (PROFILE, TOPIC) in topics:
        world.happened["topic re-created"] += 1
        del topics[PROFILE, TOPIC]
        drop_visits(world)


def grow(world: World) -> None:
    """Let a user raise the number of partitions."""
    world.happened["partitions added"] += 1
    spec = world.cluster.topic(TOPIC)["spec"]
    if spec["partitions"] < 4:
        world.cluster.edit(TOPIC, lambda live: live["spec"].__setitem__("partitions", spec["partitions"] + 1))


def suspend(world: World, seconds: float) -> None:
    """Let a user suspend ingestion for a while."""
    world.happened["suspended"] += 1
    world.cluster.edit(TOPIC, lambda live: live["spec"].__setitem__("suspend", True))

    def resume() -> None:
        world.scheduler.sleep(seconds)
        world.cluster.edit(TOPIC, lambda live: live["spec"].__setitem__("suspend", False))

    world.scheduler.spawn(world.scheduler.world, resume)


def add_column(world: World) -> None:
    """Let a user add a column."""
    world.happened["column added"] += 1
    fields = world.cluster.topic(TOPIC)["spec"]["schema"]["fields"]
    added = {"name": f"more{len(fields)}", "type": "string"}
    change = {"format": "Json", "fields": [*fields, added]}
    world.cluster.edit(TOPIC, lambda live: live["spec"].__setitem__("schema", change))


def drop_table(world: World) -> None:
    """Let a user drop the table. The operator creates another one."""
    if TABLE in world.lake.tables:
        world.happened["table dropped"] += 1
        world.lake.drop(TABLE)
        drop_visits(world)


def replace_table(world: World) -> None:
    """Let a user drop the table and create another one of the same name."""
    live = world.lake.tables.get(TABLE)
    if live is not None:
        world.happened["table replaced"] += 1
        world.lake.drop(TABLE)
        kept = {names.TABLE_OWNER: live.properties.get(names.TABLE_OWNER, "")}
        world.lake.create(TABLE, live.schema, kept)
        drop_visits(world)


def roll_back(world: World) -> None:
    """Let a user roll the table back by one snapshot: what it had landed lands again."""
    base = world.lake.tables.get(TABLE)
    if base is None or rolled_back(base) is base:
        return
    after = rolled_back(base)
    try:
        landed = newest(JavaTable(Session(world.lake, DirectGateway(), "lake"), TABLE, after))
    except CorruptDataError:
        # The snapshot has only the offsets that changed, and an expiry has removed those before: ingestion would stop.
        return
    world.happened["rolled back"] += 1
    world.kept_until = world.scheduler.now + KEPT_SECONDS
    world.checker.rolled_back(landed)
    world.lake.update(TABLE, lambda _: after)


def drop_visits(world: World) -> None:
    """Let the operator's resync, which comes every few minutes, come now: a story is shorter than that."""
    world.operator.host.kill()


def compact(world: World, letters: bool, seconds: float, foreign: bool, then_expire: bool) -> None:
    """Rewrite all files as one. It begins now and commits later, on the newest metadata, as Iceberg does.

    ``then_expire`` leaves only its snapshot.
    """
    name = LETTERS if letters else TABLE
    base = world.lake.tables.get(name)
    if base is None or base.landing is None or len(base.landing.files) < 2:
        return
    world.happened["compaction"] += 1
    files, uuid = base.landing.files, base.uuid

    def work() -> None:
        world.scheduler.sleep(seconds)
        live = world.lake.tables.get(name)
        if live is None or live.uuid != uuid or live.landing is None or set(files) - set(live.landing.files):
            return
        summary = {} if foreign else {names.SUMMARY_KIND: "compact", **_carried(world.lake, name, live)}
        at = int(world.clock.time() * 1000)
        world.lake.update(name, lambda present: compacted(world.lake, present, files, at, summary))
        if then_expire:
            expire(world, letters, 1)

    world.scheduler.spawn(world.scheduler.world, work)


def _carried(lake: Lake, name: str, live: Metadata) -> dict[str, str]:
    return carried(newest(JavaTable(Session(lake, DirectGateway(), "lake"), name, live)))


def expire(world: World, letters: bool, keep: int) -> None:
    """Remove old snapshots, and the files that only they had."""
    name = LETTERS if letters else TABLE
    base = world.lake.tables.get(name)
    if base is None or base.head is None or world.scheduler.now < world.kept_until:
        return
    world.happened["expiry"] += 1
    try:
        after = expired(base, keep)
    except RefusedError:
        return
    gone = unreachable(world.lake, base, after)
    world.lake.update(name, lambda _: after)
    for path in gone:
        world.lake.objects.pop(path, None)


def move_main(world: World, seconds: float) -> None:
    """Let another writer change main, which rows reach from a branch. A user rolls main back after a while."""
    live = world.lake.tables.get(TABLE)
    if live is None or live.branch == MAIN or live.head is None or live.waiting() is None:
        return
    world.happened["main moved"] += 1
    head = live.head
    made = Snapshot(world.lake.number(), head.id, head.at_ms, "append", {}, head.files)
    world.checker.by_user = True
    world.lake.update(TABLE, lambda _: live.with_snapshot(made))

    def back() -> None:
        world.scheduler.sleep(seconds)
        restore_main(world)

    world.scheduler.spawn(world.scheduler.world, back)


def restore_main(world: World) -> None:
    """Let a user roll main back to the branch, if another writer has moved it."""
    live = world.lake.tables.get(TABLE)
    if live is not None and live.head is not None and live.waiting() is None:
        before = live.head.parent
        assert before is not None
        world.checker.by_user = True
        world.lake.update(TABLE, lambda _: replace(live, references={**live.references, MAIN: before}))


def approve(world: World) -> None:
    """Let a user publish the rows whose check failed, as the status says."""
    status = world.cluster.topic(TOPIC)["status"].get("publish") or {}
    held = status.get("heldSnapshot")
    if held is not None:
        world.happened["rows approved"] += 1
        world.checker.approved.add(int(held))
        world.cluster.edit(TOPIC, lambda live: _annotate(live, names.PUBLISH, held), spec=False)


def _annotate(live: Any, key: str, value: str) -> None:
    live["metadata"]["annotations"] = {**(live["metadata"].get("annotations") or {}), key: value}


def stop_publishing(world: World, seconds: float) -> None:
    """Let a user remove publishing for a while."""
    quality = world.cluster.topic(TOPIC)["spec"].get("quality")
    if quality is None:
        return
    world.happened["publishing removed"] += 1
    world.cluster.edit(TOPIC, lambda live: live["spec"].pop("quality"))

    def again() -> None:
        world.scheduler.sleep(seconds)
        world.cluster.edit(TOPIC, lambda live: live["spec"].setdefault("quality", quality))

    world.scheduler.spawn(world.scheduler.world, again)


def heal(world: World) -> None:
    """End all faults: one driver and one operator run, every system answers, and no check holds rows."""
    world.outages.until.clear()
    world.down_until = 0.0
    for host in world.hosts():
        host.armed.clear()
        host.skew, host.frozen_until = 0.0, min(host.frozen_until, world.scheduler.now)
    rival = world.find("rival")
    if rival is not None:
        rival.kill()
    if world.options.publish:
        restore_main(world)
        world.checker.least = 0
        world.cluster.edit(TOPIC, lambda live: live["spec"].__setitem__("quality", quality(0)))


ARGUMENTS: dict[str, Callable[[Random], tuple[Any, ...]]] = {
    "kill": lambda chance: (chance.choice(("driver", "driver", "rival", "operator")), chance.choice((0.0, 0.0, 40.0))),
    "freeze": lambda chance: (chance.choice(("driver", "rival", "operator")), round(20 * chance.random(), 2)),
    "second_driver": lambda chance: (),
    "clock": lambda chance: (chance.choice(("driver", "rival", "operator")), chance.choice((-HOUR, 50.0, HOUR))),
    "outage": lambda chance: (chance.choice(("catalog", "store", "kafka", "cluster")), chance.choice((3.0, 45.0, 45.0))),
    "retention": lambda chance: (chance.randrange(3), chance.choice((0.5, 1.0, 1.0))),
    "cut_back": lambda chance: (chance.randrange(3), chance.randint(1, 6)),
    "recreate_topic": lambda chance: (),
    "grow": lambda chance: (),
    "suspend": lambda chance: (round(10 * chance.random(), 2),),
    "add_column": lambda chance: (),
    "drop_table": lambda chance: (),
    "replace_table": lambda chance: (),
    "roll_back": lambda chance: (),
    "compact": lambda chance: (chance.random() < 0.3, round(6 * chance.random(), 2), chance.random() < 0.5, chance.random() < 0.3),
    "expire": lambda chance: (chance.random() < 0.3, chance.choice((1, 1, 3))),
}  # fmt: skip
"""Action -> its arguments, by chance."""
OF_PUBLISHING: dict[str, Callable[[Random], tuple[Any, ...]]] = {
    "move_main": lambda chance: (round(15 * chance.random(), 2),),
    "approve": lambda chance: (),
    "stop_publishing": lambda chance: (round(15 * chance.random(), 2),),
}
"""Action for tables with a landing branch -> its arguments, by chance."""
