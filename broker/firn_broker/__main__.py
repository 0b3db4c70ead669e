"""The process ``firn-broker``: settings, ports, listeners, and a shutdown that loses no acknowledged record."""

import argparse
import asyncio
import ctypes
import fcntl
import gc
import json
import os
import random
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import structlog
import uvloop

from firn.model.clock import Clock, SystemClock
from firn.model.errors import ExitCode, InvalidSpecError, UnavailableError
from firn_broker import api_table, telemetry
from firn_broker import settings as configuration
from firn_broker.broker import Broker, Ports
from firn_broker.cluster import processes
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.jobs import run_job
from firn_broker.cluster.process_setup import log_as_json
from firn_broker.cluster.processes import Supervisor
from firn_broker.history.rebuilding.workers import HistoryWorkers
from firn_broker.internal.gates import AccountTokens, Gate, SharedToken
from firn_broker.internal.listener import InternalListener
from firn_broker.log_types import EXTERNAL, MAIN, Endpoint, NodeAddress, Partition
from firn_broker.maintenance import fsck, placeholders, recovery
from firn_broker.maintenance.known_topics import KnownTopic, read_topics
from firn_broker.metadata_store.downgrade import RELEASES, downgrade, downgrade_postgres
from firn_broker.metadata_store.opened import open_store
from firn_broker.network.server import Server
from firn_broker.network.tls import TlsContext
from firn_broker.settings import BrokerSettings, InternalSettings, Listener, SqliteSettings
from firn_broker.storage import wal
from firn_broker.storage.objects import open_objects
from firn_broker.topics.configs import TopicConfigs
from firn_broker.topics.registries import HttpRegistries

log = structlog.get_logger()

DRAIN_SECONDS = 20
SWITCH_SECONDS = 0.0002
"""Seconds after which the decoding thread yields to the event loop. Each request takes the lock of the interpreter many times."""
CHILD = [sys.executable, "-m", "firn_broker", "--config"]
ALLOCATOR = {-1: 64 << 20, -3: 16 << 20, -8: 2}
"""glibc's M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX. Freed buffers of batches stay with the process, because new pages
cost more than the read of a batch. Few arenas keep the memory of freed buffers in one place."""
RESTORING = "firn_broker.history.restoring.process"
SERVE, FSCK, DOWNGRADE = "serve", "fsck", "downgrade"
RECOVERING = "a recovery runs or did not end: wait for its end, or repeat firn-broker fsck --recover"
"""The reason why brokers do not serve during a recovery. It stays if the recovery does not end."""
ACCEPTING = "objects without a commit are given up, or this did not end: repeat firn-broker fsck --accept"
"""The reason why brokers do not serve while fsck gives up objects that the coordinator does not know."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT. The exit code is one of `ExitCode`."""
    options = command_line().parse_args(arguments)
    log_as_json()
    try:
        if options.data_dir is not None:
            if options.command != FSCK:
                options.data_dir.mkdir(parents=True, exist_ok=True)
                lock = (options.data_dir / "lock").open("w")
                try:
                    # The kernel releases the lock when the process ends, even if it is killed.
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    print(f"{options.data_dir} is in use by another broker", file=sys.stderr)
                    return ExitCode.CONFIGURATION
            settings = configuration.embedded(options.data_dir, os.environ)
        else:
            settings = configuration.load(options.config, os.environ)
        listener = settings.listener.model_copy(update={"bind": options.listen} if options.listen else {})
        settings = settings.model_copy(
            update={"listener": listener, "metrics_listen": options.metrics_listen or settings.metrics_listen}
        )
        environments = processes.environments(settings, options.processes)
    except InvalidSpecError as error:
        print(error, file=sys.stderr)
        return ExitCode.CONFIGURATION
    try:
        if options.command == DOWNGRADE:
            return take_back(settings, options.to)
        if options.command == SERVE and options.processes > 1:
            return asyncio.run(Supervisor([*CHILD, str(options.config)], environments).run())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings) if options.command == SERVE else run_fsck(settings, options))
    except InvalidSpecError as error:
        print(error, file=sys.stderr)
        return ExitCode.CONFIGURATION
    except UnavailableError as error:
        print(error, file=sys.stderr)
        return ExitCode.TEMPORARY


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="firn-broker", description="A Kafka broker that keeps its log in an object store."
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--data-dir", type=Path, help="run a single broker that stores all data in this directory")
    where.add_argument("--config", type=Path, help="run a broker of a fleet, with this configuration file (YAML)")
    parser.add_argument(
        "command",
        nargs="?",
        choices=(SERVE, FSCK, DOWNGRADE),
        default=SERVE,
        help="serve: run the broker (default). fsck: compare the bucket with the coordinator. downgrade: prepare the coordinator for"
        " an earlier version of the broker",
    )
    parser.add_argument(
        "--to", choices=tuple(RELEASES), help="with downgrade, while the broker is stopped: the version to go back to"
    )
    parser.add_argument(
        "--read", action="store_true", help="with fsck: also read every object, and verify its checksums"
    )
    repair = parser.add_mutually_exclusive_group()
    repair.add_argument(
        "--recover",
        action="store_true",
        help="with fsck, while no broker runs: commit the records of objects without a commit again, at the next free offsets,"
        " and allow brokers to serve clients again after the coordinator went back",
    )
    repair.add_argument(
        "--accept",
        action="store_true",
        help="with fsck: give up the objects without a commit. After the coordinator went back, while no broker runs, also"
        " allow brokers to serve clients again",
    )
    parser.add_argument(
        "--topics",
        type=Path,
        metavar="FILE",
        help="with --recover: the topics that a lost coordinator had, as firn recovery-topics prints them. The coordinator is created"
        " if it does not exist",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address on which the broker listens for clients (default: listener.bind of the configuration, or 127.0.0.1:9092)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="run N brokers of a fleet, each in a process of its own with the next port and node id (default: 1)",
    )
    parser.add_argument(
        "--metrics-listen", metavar="HOST:PORT", help="address on which the broker serves /metrics, /livez and /readyz"
    )
    return parser


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidSpecError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _advertised(listener: Listener, bound: tuple[str, int]) -> Endpoint:
    return Endpoint(*(_address(listener.advertised) if listener.advertised else bound))


def make_ports(settings: BrokerSettings, clock: Clock, chance: random.Random, *, migrates: bool = True) -> Ports:
    """Return the ports that the settings name. Raises InvalidSpecError."""
    metadata_store = open_store(settings, clock, str(Identifiers(clock, chance).uuid4()), migrates=migrates)
    objects = open_objects(settings.objects)
    decoder = ThreadPoolExecutor(1, thread_name_prefix="decoder")
    registries = HttpRegistries(settings.registries)
    history = HistoryWorkers(settings)
    return Ports(
        metadata_store, objects, clock, chance, decoder, own_processes=True, history=history, registries=registries
    )


def _tls(name: str, listener: Listener) -> TlsContext | None:
    if listener.tls is None:
        return None
    return TlsContext(
        name or listener.name, listener.tls, certificates_only=listener.authentication == ("Certificate",)
    )


async def _bind_internal(settings: InternalSettings, broker: Broker, server: Server) -> asyncio.Server | None:
    """Bind the internal listener. Returns its server; None if ``server`` serves it, with TLS."""
    gate: Gate
    if settings.token_file:
        gate = SharedToken(Path(settings.token_file))
    else:
        assert broker.verifier is not None, "the settings have an issuer"
        gate = AccountTokens(broker.verifier, broker.authorizer, broker.topic_metadata, broker.audit.failed)
    listener, place = InternalListener(broker.metadata_store.log, gate, broker.indexings.add), _address(settings.bind)
    if settings.tls is None:
        return await listener.bind(*place)
    await server.bind_tls(*place, TlsContext("internal", settings.tls), listener.protocol)
    return None


async def _serve(settings: BrokerSettings) -> int:
    stop = asyncio.Event()
    sys.setswitchinterval(SWITCH_SECONDS)
    _tune_allocator()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(make_ports(settings, SystemClock(), random.Random()), settings)
    server = Server(settings.connections, broker.audit)
    # Bind before joining: a broker that cannot listen must not become a node.
    bound: dict[str, tuple[str, int]] = {}
    places: dict[str, Endpoint] = {}
    for name, listener in settings.named_listeners().items():
        bound[name] = await server.bind(*_address(listener.bind), broker.entrance(name, listener), _tls(name, listener))
        places[name] = _advertised(listener, bound[name])
    host, port = bound[MAIN]
    internal = None if settings.internal is None else await _bind_internal(settings.internal, broker, server)
    others = {name: place for name, place in places.items() if name not in (MAIN, EXTERNAL)}
    address = NodeAddress(*places[MAIN], settings.zone, places.get(EXTERNAL), others)
    starting = asyncio.create_task(broker.start(address, api_table.routes(broker)))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        log.info("stopping before joining the cluster")
        starting.cancel()
        await asyncio.wait({starting}, timeout=DRAIN_SECONDS)
        return ExitCode.DONE
    starting.result()
    await server.accept(broker.router)
    probes = await telemetry.serve(settings.metrics_listen, _address, broker) if settings.metrics_listen else None
    if internal is not None:
        await internal.start_serving()
    # Objects of the start live as long as the process, and later ones are freed by reference counts: frequent
    # collections only cost time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    print(f"ready {host}:{port}", flush=True)
    log.info("ready", host=host, port=port, node=broker.membership.lease.node, cluster=broker.cluster_id)
    outlived = broker.metadata_store.continuity.outlived
    over = asyncio.create_task(outlived.wait())
    await asyncio.wait({stopped, over}, return_when=asyncio.FIRST_COMPLETED)
    log.info("stopping")
    if internal is not None:
        internal.close()
    await broker.leave_service()
    await server.stop(DRAIN_SECONDS, broker.wake)
    await broker.stop()
    if probes is not None:
        probes.close()
    return ExitCode.TEMPORARY if outlived.is_set() else ExitCode.DONE


def _tune_allocator() -> None:
    # Other C libraries than glibc have no mallopt.
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        for option, value in ALLOCATOR.items():
            mallopt(option, value)


async def run_fsck(settings: BrokerSettings, options: argparse.Namespace) -> int:
    """Check the bucket, repair the coordinator if the options say so, and return the exit code. Raises InvalidSpecError."""
    if options.topics is not None and not options.recover:
        raise InvalidSpecError("--topics needs fsck --recover; add --recover, or leave --topics out")
    topics = None if options.topics is None else read_topics(options.topics)
    ports = make_ports(settings, SystemClock(), random.Random(), migrates=topics is not None)
    store = ports.metadata_store
    await store.start()
    try:
        stopped = (await store.nodes.progress()).stopped
        # Brokers that start during the recovery must not serve before its end.
        if options.recover and not await store.nodes.stop_idle(RECOVERING):
            return _live()
        findings = await fsck.check(store.retention, ports.objects, read=options.read)
        report, complete = {**findings.report(), "stopped": stopped}, not findings.lost
        if options.recover:
            recovered, complete = await _recovered(settings, ports, findings, topics)
            report |= recovered
        if options.accept:
            # A live broker may still repeat the commits of objects that the coordinator does not know.
            idle = bool(findings.newer) and await store.nodes.stop_idle(ACCEPTING)
            keep_ms = int(settings.upkeep.uncommitted_seconds * 1000)
            newer = findings.newer if idle else ()
            report["accepted"] = await recovery.accept(store, findings.uncommitted, newer, keep_ms)
        print(json.dumps(report, indent=2))
        repaired = options.recover or (options.accept and (stopped or findings.newer))
        if repaired and not await store.nodes.allow_serving():
            return _live()
    finally:
        await store.close()
        await ports.objects.close()
    if options.recover or options.accept:
        return ExitCode.DONE if complete else ExitCode.CORRUPT
    if stopped or findings.newer:
        print(
            f"brokers stopped: {stopped}"
            if stopped
            else f"{len(findings.newer)} objects are newer than the coordinator, so it was probably restored from a backup",
            "Start no broker before you have read 'Restore the coordinator from a backup' in docs/operations/diskless-brokers.md",
            sep=". ",
            file=sys.stderr,
        )
    return ExitCode.CORRUPT if stopped else findings.verdict


async def _recovered(
    settings: BrokerSettings, ports: Ports, findings: fsck.Findings, topics: Sequence[KnownTopic] | None
) -> tuple[dict[str, object], bool]:
    """Commit the records of objects without a commit. Return the report, and whether all records have their offsets."""
    store, objects = ports.metadata_store, ports.objects
    keys = [*findings.uncommitted, *findings.newer]
    restored = await _restored(settings, keys)
    keys += restored["keys"]
    made = await placeholders.begin(store, objects, topics or (), keys)
    if made.stale:
        await recovery.accept(store, [], made.stale, int(settings.upkeep.uncommitted_seconds * 1000))
    new = [key for topic in made.waiting for key in await _from_table(settings, topic)]
    keys = [key for key in dict.fromkeys([*keys, *new]) if key not in made.stale]
    created = await placeholders.prepare(store, objects, topics or (), keys)
    recovered = await recovery.recover(
        store,
        objects,
        keys,
        TopicConfigs(settings.topics.configs),
        findings.missing,
        restored["unreadable"],
        restored["copies"],
        {Partition(topic.id, index): landed for topic in topics or () for index, landed in topic.next.items()},
    )
    gaps = await placeholders.gaps(store, objects)
    findings.missing = await fsck.still_missing(store.retention, findings.missing)
    report: dict[str, object] = {
        "missing": findings.missing,
        "recovered": recovered.report(),
        "restored": restored,
        "gaps": gaps,
    }
    if topics is not None:
        report |= {"topics": [*made.created, *created], "unchanged": made.unchanged}
    return report, not (findings.lost or gaps or made.unchanged) and recovered.complete


async def _restored(settings: BrokerSettings, keys: Sequence[str]) -> Mapping[str, Any]:
    """Give the batches of the history objects among these back to the WAL. Raises UnavailableError."""
    found: dict[str, Any] = {"keys": [], "copies": [], "unreadable": {}}
    for key in (key for key in keys if key.endswith(wal.HISTORY)):
        # A process has an hour, and an object has at most 1 GiB of records.
        asked = {"settings": settings.model_dump(by_alias=True, mode="json"), "keys": [key]}
        work, advice = f"restores the records of {key} from a table", "give the command more memory"
        one = await run_job(RESTORING, asked, work=work, advice=advice)
        found["keys"] += one["keys"]
        found["copies"] += one["copies"]
        found["unreadable"] |= one["unreadable"]
    return found


async def _from_table(settings: BrokerSettings, topic: KnownTopic) -> Sequence[str]:
    """Upload the records of a topic from its table, and return the keys. Raises UnavailableError."""
    asked = {"settings": settings.model_dump(by_alias=True, mode="json"), "topic": topic.question()}
    work = f"makes the log of topic {topic.name} from its table"
    advice = "give the command more memory, or leave table of this topic out of the file"
    found = await run_job(RESTORING, asked, work=work, advice=advice, bounded=False)
    return cast(Sequence[str], found["keys"])


def take_back(settings: BrokerSettings, release: str | None) -> int:
    """Take the coordinator's schema back to that of a release, and return the exit code. Raises InvalidSpecError, UnavailableError."""
    if release is None:
        raise InvalidSpecError(f"downgrade needs --to with one of the versions {', '.join(RELEASES)}")
    if isinstance(settings.coordinator, SqliteSettings):
        downgrade(settings.coordinator.path, release)
        print(f"{settings.coordinator.path} has the schema of version {release}. Start this version")
    else:
        asyncio.run(downgrade_postgres(settings.coordinator, release))
        print(f"version {release} works with the schema in PostgreSQL as it is. Start this version")
    return ExitCode.DONE


def _live() -> int:
    print("a broker is live: stop all brokers, wait for leaseSeconds, and repeat the command", file=sys.stderr)
    return ExitCode.TEMPORARY


if __name__ == "__main__":
    sys.exit(main())
