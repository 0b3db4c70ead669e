"""The whole product in virtual time: clients, log, drivers, catalog, operator and cluster, and the faults between them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import structlog

from firn.model import names
from firn.model.jobs import TableTarget
from firn.model.progress import GroupProgress
from firn_controllers.ports import Manifest, Ports
from firn_controllers.reconcile import Controllers
from tests import gen
from tests.fakes.cluster import FakeCluster
from tests.fakes.lake.memory import Lake, LakeTables
from tests.fakes.schemas import FakeSchemas
from tests.simulation.product.checker import CHECKS, LEAST, Checker, conditions
from tests.simulation.product.driver import GROUP, Driver
from tests.simulation.product.faults import Host, Outages, Port
from tests.simulation.product.log import PROFILE, SimulatedLog
from tests.simulation.product.threads import AsyncLoop, Clock, Scheduler

TOPIC, NAMESPACE = "flights", "demo"
RESOURCE = TOPIC
TARGET = TableTarget(catalog="lake", namespace=NAMESPACE, name=TOPIC)
TABLE = f"{NAMESPACE}.{TOPIC}"
LETTERS = TABLE + names.DEAD_LETTER_SUFFIX
FRESHNESS = 5.0
TOLERANCE = 20.0
"""Seconds within which the status follows: reports of the driver count for 15 s, and the operator asks every 5 s."""
EXPECTED = (
    "records were deleted from the log before they landed",
    "the log has other records than those that landed",
)
"""Errors of processes that belong to the faults of a story."""
RESTART_SECONDS = 3.0
PUBLISHED_WITHIN = 10.0
"""Seconds in which a driver publishes rows that are due."""
EVERY = 10.0
"""Seconds after which rows on the branch are checked."""
POD = f"{names.ingestion(GROUP)}-0"


@dataclass(frozen=True)
class Options:
    """The choices of a story besides its steps."""

    seed: int = 0
    catalog: str = "sql"
    partitions: int = 2
    on_bad_record: str = "DeadLetter"
    bytes_per_commit: int = 64 * 1024
    """Few bytes give rounds of a few records, so that the next round is read during a commit."""
    publish: bool = False
    """Rows land on a branch, and reach main after a check."""


class Operator:
    """A process of the operator with its queue and its reconcilers."""

    def __init__(self, world: "World", host: Host) -> None:
        self.host = host
        self._world = world
        ports: Any = Ports(
            topics=Port("topics", world.log.topics, host),  # type: ignore[arg-type]
            tables=Port("tables", world.operator_tables, host),  # type: ignore[arg-type]
            cluster=Port("cluster", world.cluster, host),  # type: ignore[arg-type]
            progress=world,
            schemas=FakeSchemas(),
            clock=Clock(world.scheduler),
        )
        chance = Random(world.chance.random())
        self.controllers = Controllers(gen_config(), "config-uid", ports, jitter=chance.random)
        self._loop: AsyncLoop | None = None

    def start(self) -> None:
        """Start the process: it lists everything, and then watches."""
        for kind in ("Job", "IcebergTopic"):
            for manifest in self._world.cluster.all(kind):
                self._show("seen", manifest)
        self.host.scheduler.spawn(self.host, self._run)

    def watched(self, change: str, manifest: Manifest) -> None:
        """Show the process a change."""
        if self.host.dead:
            return
        if self._loop is None:
            # A change between the list and the watch is not lost.
            self._show(change, manifest)
        else:
            self._loop.call_soon_threadsafe(self._show, change, manifest)

    def _show(self, change: str, manifest: Manifest) -> None:
        if manifest["kind"] == "Job":
            self.controllers.child_seen(manifest["metadata"]["labels"])
        elif change == "seen":
            self.controllers.topic_seen(manifest)
        else:
            self.controllers.topic_gone(manifest)

    def _run(self) -> None:
        self._loop = AsyncLoop(self.host.scheduler)
        self._loop.set_exception_handler(self._escaped)
        try:
            self.controllers.synced()
            self._loop.run_until_complete(self.controllers.run())
        finally:
            # The tasks of a killed process do not run again.
            for task in asyncio.all_tasks(self._loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            self._loop._ready.clear()  # type: ignore[attr-defined]
            self._loop.close()

    def _escaped(self, _: object, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        if isinstance(problem, Exception):
            self.host.scheduler.errors.append(problem)


class World:
    """Everything that a story needs. Use it inside `quiet` and `threads.virtual`."""

    def __init__(self, options: Options, scheduler: Scheduler, checks: Set[str] = CHECKS) -> None:
        self.options = options
        self.scheduler = scheduler
        self.chance = Random(options.seed)
        self.clock = Clock(scheduler)
        self.happened: Counter[str] = Counter()
        self.outages = Outages()
        self.lake = Lake(options.catalog)
        self.operator_tables = LakeTables(self.lake)
        self.log = SimulatedLog()
        self.cluster = FakeCluster(clock=self.clock)  # type: ignore[arg-type]
        skips = options.on_bad_record == "Skip"
        self.checker = Checker(self.log, self.lake, TABLE, skips=skips, checks=checks)
        self.lake.watch = self._changed
        self.every_host: list[Host] = []
        self.drivers: list[Driver] = []
        """Every driver that ever ran. The last one that is not a ``rival`` belongs to the pod."""
        self.pod: Driver | None = None
        self._answer: tuple[GroupProgress, float] | None = None
        self.kept_until = 0.0
        """Until when no engine expires snapshots."""
        self.down_until = 0.0
        """Until when the kubelet starts no driver again."""
        self._true_since: dict[str, float] = {}
        """Condition -> since when it is True, and must not be."""
        self._committed: dict[int, float] = {}
        """Snapshot -> when it was committed."""
        self._incomplete = False
        """True after the status showed a loss."""
        self.cluster.watch = [self._watched]
        spec: dict[str, Any] = {"freshness": f"{FRESHNESS:.0f}s", "onBadRecord": options.on_bad_record}
        more = {"quality": quality(LEAST)} if options.publish else {}
        self.cluster.create(
            gen.topic(RESOURCE, namespace=NAMESPACE, partitions=options.partitions, ingestion=spec, **more)
        )
        self.operator = self.new_operator()
        scheduler.spawn(scheduler.world, self._kubelet)

    # Processes

    def host(self, name: str) -> Host:
        """Return a new machine."""
        host = Host(name, self.scheduler, Random(self.chance.random()), self.outages, self.happened)
        self.every_host.append(host)
        return host

    def new_operator(self) -> Operator:
        """Start the operator."""
        before = self.operator.host.troubled_at if hasattr(self, "operator") else 0.0
        self.operator = Operator(self, self.host("operator"))
        self.operator.host.troubled_at = max(before, self.scheduler.now)
        self.operator.start()
        return self.operator

    def new_driver(self) -> Driver:
        """Start a driver."""
        host = self.host(f"driver-{len(self.drivers)}")
        driver = Driver(host, self.log, self.lake, self.cluster, self.options.bytes_per_commit)
        self.drivers.append(driver)
        driver.start()
        return driver

    def hosts(self) -> list[Host]:
        """Return the processes that live."""
        hosts = [self.operator.host, *(driver.host for driver in self.drivers)]
        return [host for host in hosts if not host.dead]

    def find(self, process: str) -> Host | None:
        """Return the process that a step names: ``operator``, ``driver`` (that of the pod), or ``rival``."""
        if process == "operator":
            return self.operator.host
        if process == "driver":
            return self.pod.host if self.pod is not None else None
        rivals = [driver.host for driver in self.drivers if driver is not self.pod and not driver.host.dead]
        return rivals[-1] if rivals else None

    async def read(self, group: str, max_age: float) -> tuple[GroupProgress, float] | None:
        """Implement `Progress.read`: the driver's newest answer. It stays if the driver stops answering."""
        if self.pod is not None and self.pod.progress is not None:
            self._answer = self.pod.progress
        return self._answer

    def _watched(self, change: str, manifest: Manifest) -> None:
        if hasattr(self, "operator"):
            self.operator.watched(change, manifest)

    def _changed(self, name: str, before: Any, after: Any) -> None:
        for snapshot in after.all_snapshots if after is not None else ():
            self._committed.setdefault(snapshot.id, self.scheduler.now)
        self.checker.changed(name, before, after)

    # The node

    def _kubelet(self) -> None:
        while True:
            self.scheduler.sleep(1.0)
            self._run_containers()
            self._resume()
            self._check_status()

    def _run_containers(self) -> None:
        now = self.scheduler.now
        if self.operator.host.dead and now - self.operator.host.troubled_at >= RESTART_SECONDS:
            self.new_operator()
        self.cluster.run_pods()
        state = self.cluster.pod_states.get(POD)
        if state is None:
            return
        if self.pod is None:
            self.pod = self.new_driver()
        elif self.pod.host.dead:
            restarts = max(self.pod.host.troubled_at + RESTART_SECONDS, self.down_until) <= now
            self.cluster.pod_states[POD] = replace(state, ready=restarts, running=restarts)
            if restarts:
                self.pod = self.new_driver()

    def _resume(self) -> None:
        """Let a user send a record at which ingestion halted to the dead letters, as the status says."""
        live = self.cluster.topic(RESOURCE, NAMESPACE)
        place = (live["status"].get("ingestion") or {}).get("haltedAt")
        wanted = f"skip:{place['partition']}:{place['offset']}" if place is not None else None
        present = (live["metadata"].get("annotations") or {}).get(names.RESUME)
        if wanted is not None and wanted != present:
            self.happened["halt"] += 1
            notes = {**(live["metadata"].get("annotations") or {}), names.RESUME: wanted}
            self.cluster.edit(RESOURCE, lambda live: live["metadata"].update(annotations=notes), spec=False)

    # The status

    def conditions(self) -> dict[str, str]:
        """Return the status of each condition."""
        return conditions(self.cluster.topic(RESOURCE, NAMESPACE))

    def _check_status(self) -> None:
        """Invariant 16: Ready, Fresh and Complete are not True for long while that is wrong."""
        now, found = self.scheduler.now, self.conditions()
        waiting = self.checker.unlanded(TOPIC)
        self._incomplete = self._incomplete or found.get("Complete") == "False"
        wrong = {
            "Ready": self._stopped(),
            "Fresh": bool(waiting) and now - waiting[0][2] > FRESHNESS,
            "Complete": self._lost(),
        }
        for name, reason in wrong.items():
            if not reason or found.get(name) != "True":
                self._true_since.pop(name, None)
                continue
            since = self._true_since.setdefault(name, now)
            # An operator that is dead, frozen or without the API server cannot write the status.
            if now - max(since, self.operator.host.troubled_at) > TOLERANCE:
                self.checker.report("16", f"{name} is True since {since:.0f} s, and must not be")

    def _stopped(self) -> bool:
        """Return whether no driver runs, or a system that it needs answers no process."""
        gone = any(self.outages.holds(system, self.scheduler.now) for system in ("catalog", "store", "kafka"))
        return gone or self.pod is None or self.pod.host.dead

    def unsettled(self) -> list[str]:
        """Return what is not yet as it must be in peace."""
        problems = [f"{part}:{offset} has not landed" for part, offset, _ in self.checker.unlanded(TOPIC)[:3]]
        problems += [f"{part}:{offset} is not recorded as lost" for _, part, offset in self.checker.replaced()[:3]]
        found, complete = self.conditions(), "False" if self._lost() else "True"
        # A topic that was re-created may have no record.
        wanted = {"Ready": ("True",), "Fresh": ("True", "Unknown"), "Complete": (complete,)}
        if self.options.publish:
            wanted["Published"] = ("True",)
            if (behind := self._behind()) > EVERY + PUBLISHED_WITHIN:
                problems.append(f"main is {behind:.0f} s behind the branch")
        return problems + [
            f"{name} is {found.get(name)}: {self.message(name)}"
            for name, status in wanted.items()
            if found.get(name) not in status
        ]

    def _behind(self) -> float:
        """Return the seconds since the oldest commit with rows that main lacks; 0 if main has all rows."""
        live = self.lake.tables.get(TABLE)
        waiting = live.waiting() if live is not None else []
        if waiting is None:
            return self.scheduler.now
        landed = [self._committed[each.id] for each in waiting if each.operation == "append" and each.added]
        return self.scheduler.now - min(landed, default=self.scheduler.now)

    def _lost(self) -> bool:
        """Return whether a loss has to be visible. No user acknowledges one, so it stays after its table is gone."""
        losses = self.checker.losses()
        return self._incomplete or (losses is not None and bool(losses.ranges))

    def message(self, name: str) -> str:
        """Return the message of a condition."""
        items = self.cluster.topic(RESOURCE, NAMESPACE)["status"].get("conditions", [])
        return next((str(item["message"]) for item in items if item["type"] == name), "")


def quality(least: int) -> dict[str, Any]:
    """Return ``spec.quality``: main gets rows if they are ``least`` at once."""
    checks = [{"name": "rows", "check": f"count(*) >= {least}"}]
    return {"publish": {"branch": "staging", "every": f"{EVERY:.0f}s", "checks": checks}}


def gen_config() -> Any:
    """Return the operator's configuration: one catalog, one group, and brokers that exist."""
    base = gen.config().model_dump(by_alias=True, exclude_unset=True, mode="json")
    return gen.config(
        profiles={PROFILE: {"bootstrapServers": "kafka:9092"}},
        catalogs={"lake": base["catalogs"]["lake"]},
        groups={GROUP: {"keepSnapshots": "5s"}},
    )


@contextmanager
def quiet(errors: list[str]) -> Iterator[None]:
    """Drop the logs of all processes, and collect the errors that no fault explains."""

    def keep(_: Any, level: str, event: Any) -> Any:
        if event.get("exc_info") or (level != "warning" and event["event"] not in EXPECTED):
            errors.append(str(dict(event)))
        raise structlog.DropEvent

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                errors.append(self.format(record))

    before, handler, logger = structlog.get_config(), Handler(logging.WARNING), logging.getLogger("firn_controllers")
    propagate = logger.propagate
    structlog.configure(
        processors=[structlog.processors.format_exc_info, keep],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        cache_logger_on_first_use=False,
    )
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        structlog.configure(**before)
        logger.removeHandler(handler)
        logger.propagate = propagate
