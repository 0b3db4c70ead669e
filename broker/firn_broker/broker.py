"""The broker: its parts, composed from its ports, and its background tasks. The handlers of APIs work with it."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar
from uuid import UUID

import structlog

from firn.event_loop import follow_stalls
from firn.model.clock import Clock
from firn.model.errors import UnavailableError
from firn_broker import metrics
from firn_broker.access.admissions import Proofs, admission
from firn_broker.access.audit import Audit
from firn_broker.access.authorizer import Authorizer
from firn_broker.access.changes import Attempt
from firn_broker.access.directory import AccessDirectory
from firn_broker.access.mechanisms.jwks import key_set
from firn_broker.access.mechanisms.scram import Credentials
from firn_broker.access.mechanisms.tokens import TokenVerifier
from firn_broker.access.quotas import Quotas
from firn_broker.access.uses import CredentialUses
from firn_broker.access_types import ANONYMOUS, ResourceType
from firn_broker.cluster.guarded_store import GuardedStore
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.membership import Membership
from firn_broker.cluster.producer_ids import ProducerIds
from firn_broker.groups.coordinator import GroupCoordinator
from firn_broker.groups.group import GroupError
from firn_broker.groups.lag import GroupLag
from firn_broker.history.indexing.schedule import Indexings
from firn_broker.log.blocks import BlockCache
from firn_broker.log.checks import Checks
from firn_broker.log.decoder import Decoder
from firn_broker.log.fetch_sessions import FetchSessions
from firn_broker.log.reader import Reader
from firn_broker.log.repeated_fetches import RepeatedFetches
from firn_broker.log.watermarks import Watermarks
from firn_broker.log.writer import WalWriter
from firn_broker.log_types import Endpoint, Node, NodeAddress
from firn_broker.maintenance.compaction import Compaction
from firn_broker.maintenance.merges.schedule import Merges
from firn_broker.maintenance.orphans import OrphanSweep
from firn_broker.maintenance.retention import Maintenance
from firn_broker.network.budget import Budget
from firn_broker.network.router import Call, Client, Route, Router
from firn_broker.network.server import Entrance
from firn_broker.ports import History, MetadataStore, ObjectStore, SubjectLookup
from firn_broker.settings import BrokerSettings, DirectorySettings, Listener
from firn_broker.storage.put_budget import BUCKET_PUTS, DIRECTORY_PUTS, PutBudget
from firn_broker.topics.configs import TopicConfigs
from firn_broker.topics.creation import TopicCreator, TopicError
from firn_broker.topics.gate import SchemaGate
from firn_broker.topics.registries import HttpRegistries
from firn_broker.topics.topic_metadata import TopicMetadata
from firn_broker.topics.value_checks import ValueChecks

log = structlog.get_logger()
T = TypeVar("T")

STOP_SECONDS = 5.0
"""Seconds that a stopping broker waits for its last commits, and then for its background tasks."""
HISTORY_SECONDS = 30.0
"""Seconds between two looks whether the processes that rebuild batches run."""
JOIN_SECONDS = 1.0
"""Seconds between two attempts of a starting broker to reach the coordinator."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports and clocks that a broker needs."""

    metadata_store: MetadataStore
    objects: ObjectStore
    clock: Clock
    random: Random
    decoder: Executor | None = None
    """A thread that decodes records; None decodes in the event loop."""
    own_processes: bool = False
    """True if processes of their own check batches for compacted topics and values for gates, and merge objects."""
    history: History | None = None
    """The batches whose records lie in tables; None without such topics."""
    registries: SubjectLookup = field(default_factory=lambda: HttpRegistries({}))
    """The schema registries of topics with a gate."""


class Broker:
    """A broker: its parts by name. Requests arrive through `router`, so it needs no socket."""

    def __init__(self, ports: Ports, settings: BrokerSettings) -> None:
        self.settings = settings
        self.clock = ports.clock
        self.metadata_store = store = GuardedStore(ports.metadata_store)
        self.objects = ports.objects
        self.identifiers = Identifiers(ports.clock, ports.random)
        self.watermarks = Watermarks()
        self.decoder = Decoder(ports.decoder)
        self._own_processes = ports.own_processes
        self.checks = Checks(self.decoder, own_process=ports.own_processes)
        self.registries = ports.registries
        self.value_checks = ValueChecks(self.decoder, own_process=ports.own_processes)
        self.gate = SchemaGate(ports.registries, self.decoder, self.value_checks)
        self.cache = BlockCache(settings.reader.tail_cache_bytes, settings.reader.history_cache_bytes)
        self.topic_metadata = TopicMetadata(store.topics, self.watermarks)
        self.access = AccessDirectory(store.access)
        self.audit = Audit(ports.clock)
        self.authorizer = Authorizer(self.access, settings.authorization, self.audit)
        self.quotas = Quotas(self.access, lambda: asyncio.get_running_loop().time())
        self._uses = CredentialUses(store.access, ports.clock)
        self._passwords = ThreadPoolExecutor(1, thread_name_prefix="passwords")
        self._keys = None if settings.oauth is None else key_set(settings.oauth)
        self.verifier = (
            None if settings.oauth is None or self._keys is None else TokenVerifier(settings.oauth, self._keys)
        )
        """Checks tokens; None without the settings of an issuer."""
        self._proofs = self._made_proofs()
        self.configs = TopicConfigs(settings.topics.configs)
        self.topics = TopicCreator(
            store.topics,
            self.topic_metadata,
            self.identifiers,
            settings.topics,
            settings.upkeep.compacted_bytes,
            settings.registries,
        )
        self.producer_ids = ProducerIds(store.nodes, ports.random)
        self._history = ports.history if settings.history.stores else None
        self.indexings = Indexings(settings, lambda: self.membership.lease, self._single)
        self.reader = Reader(store.log, ports.objects, self.cache, self.watermarks, settings.reader, ports.history)
        self.parsed = Budget(settings.connections.buffered_bytes)
        """Bounds what produce requests take besides their bytes, from their parsing until their answer."""
        self.fetch_sessions = FetchSessions(settings.reader.max_session_partitions, self.identifiers)
        self.repeated_fetches = RepeatedFetches(
            self.watermarks, self.fetch_sessions, self.authorizer, self.quotas, settings.reader
        )
        self.large_fetches = Budget(settings.connections.buffered_bytes // 2)
        """Limits the memory that fetches of many partitions take besides records, from before their parsing until the
        answer is written."""
        self.cluster_id = ""
        self.routes: Sequence[Route] = ()
        self.router: Router
        self.membership: Membership
        self.writer: WalWriter
        self.groups: GroupCoordinator
        self._background: list[asyncio.Task[None]] = []

    def _single(self, topic: UUID) -> bool:
        """Return whether the log keeps no copy of a topic's records that its table gives back."""
        known = self.topic_metadata.by_id.get(topic)
        return known is not None and self.configs.single(known)

    async def _keep_history_ready(self, history: History) -> None:
        """Start the processes that rebuild batches if a topic has its history in its table. Runs until it is cancelled."""
        while True:
            if any(map(self.configs.single, self.topic_metadata.by_id.values())):
                try:
                    await history.start()
                except UnavailableError as error:
                    log.warning(
                        "cannot start a process that rebuilds batches; the next read starts it", error=str(error)
                    )
            await asyncio.sleep(HISTORY_SECONDS)

    def _made_proofs(self) -> Proofs:
        return Proofs(
            Credentials(lambda key: self.access.credential(*key), lambda: self.access.secret),
            self._passwords,
            self.verifier,
            self.access,
            self._uses,
        )

    async def start(self, address: NodeAddress, routes: Sequence[Route]) -> None:
        """Join the cluster as a node at ``address`` as soon as the coordinator can be reached, and start the background
        tasks."""
        await _reached(self.metadata_store.start)
        self.cluster_id = await _reached(self.metadata_store.cluster_id)
        settings = self.settings
        self.membership = Membership(
            self.metadata_store.nodes,
            address,
            ttl_ms=int(settings.lease_seconds * 1000),
            node_id=settings.node_id,
            history_brokers=settings.history_brokers,
        )
        await _reached(self.membership.join)
        await _reached(self.topic_metadata.refresh)
        await _reached(self.access.refresh)
        await _reached(self.producer_ids.reserve)
        self.writer = WalWriter(
            self.metadata_store.log,
            self.objects,
            self.membership,
            self.cache,
            self.watermarks,
            self.identifiers,
            settings.writer,
            PutBudget(_puts_per_second(settings)),
        )
        self.groups = GroupCoordinator(
            self.metadata_store.groups, self.metadata_store.nodes, self.membership, self.topic_metadata, self.identifiers,
            self.clock, self.decoder, settings.groups,
        )  # fmt: skip
        maintenance, merges = self._maintenance()
        self.routes = routes
        self.router = Router(routes, self.writer.flush_early, self.quotas)
        for name, work in (
            ("lease", self.membership.keep()),
            ("topics", self.topic_metadata.keep()),
            ("access", self.access.keep()),
            ("uses of credentials", self._uses.keep()),
            ("producer ids", self.producer_ids.keep()),
            ("audit", self.audit.keep()),
            ("commits", self.writer.run()),
            ("keys of abandoned files", self.writer.settle()),
            ("watermarks", self.reader.poll(lambda: len(self.membership.nodes) <= 1)),
            ("maintenance", maintenance.run()),
            ("merges", merges.run()),
            ("indexings", self.indexings.run()),
            ("groups", self.groups.run()),
            ("expiry of groups", self.groups.expire()),
        ):
            self._work(name, work)
        if self._history is not None:
            self._work("processes of the history", self._keep_history_ready(self._history))
        if settings.metrics_listen:
            self._work("stalls of the event loop", measure_stalls())
            self._work("lag of groups", GroupLag(self.metadata_store.groups, self.groups, self.topic_metadata).run())

    def _maintenance(self) -> tuple[Maintenance, Merges]:
        settings = self.settings
        compaction = Compaction(
            self.metadata_store.log, self.objects, self.membership, self.reader, self.identifiers, self.configs,
            self.decoder, settings.upkeep.compacted_bytes,
        )  # fmt: skip
        merges = Merges(
            self.metadata_store,
            self.objects,
            self.membership,
            self.identifiers,
            settings,
            own_process=self._own_processes,
        )
        orphans = OrphanSweep(self.metadata_store.retention, self.objects, self.clock)
        maintenance = Maintenance(
            self.metadata_store.retention, self.objects, self.membership, self.topic_metadata, self.configs, compaction,
            orphans, settings.upkeep,
        )  # fmt: skip
        return maintenance, merges

    def _work(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(_ended)
        self._background.append(task)

    @property
    def healthy(self) -> bool:
        """Return whether all background tasks are running."""
        return bool(self._background) and not any(task.done() for task in self._background)

    @property
    def not_ready(self) -> str | None:
        """Return why this broker serves no client; None if it does."""
        if reason := self.metadata_store.continuity.stopped:
            return reason
        if not self.healthy:
            return "a background task ended"
        if not any(node.id == self.membership.lease.node for node in self.live_nodes()):
            return "this broker is no node of the cluster"
        if self.writer.failing:
            return "the coordinator answers commits with unexpected errors, which the log of this broker has"
        return None

    def live_nodes(self) -> Sequence[Node]:
        """List all live brokers, this one included."""
        return self.membership.nodes

    def entrance(self, name: str, listener: Listener) -> Entrance:
        """Return what the connections of a listener have in common. Raises InvalidSpecError."""
        way = admission(listener, self._proofs, self.settings.connections.session_seconds)
        open_to_all = not way.required and not listener.bind.startswith(("127.", "localhost:", "[::1]:"))
        if open_to_all and not self.authorizer.open and ANONYMOUS in self.settings.authorization.super_users:
            log.warning("clients that do not authenticate have all rights at a listener", bind=listener.bind)
        beside = listener.tls is None and any(each.tls is not None for each in self.settings.named_listeners().values())
        return Entrance(name, way, self._note_unencrypted if beside else None, self.audit.failed)

    def _note_unencrypted(self, client: Client) -> None:
        self.audit.unencrypted(client.caller, client.id)

    def endpoints(self, client: Client) -> Sequence[tuple[Node, Endpoint]]:
        """List the brokers that this client can reach, with their addresses at the listener that the client uses.

        A broker that redirects its clients does not name itself, and the others do not name it: librdkafka 2.16 loses a
        request to a broker that a later answer does not name."""
        return [
            (node, endpoint)
            for node in self.membership.reachable(client.listener)
            if (endpoint := node.address.endpoint(client.listener)) is not None
        ]

    def controller(self, nodes: Sequence[tuple[Node, Endpoint]]) -> int:
        """Return the id of the node to which clients send changes of topics: this one if it is one of ``nodes``, else the lowest; or -1.

        Each node can make them. A node that died stays in the list until its lease ends. librdkafka 2.16 waits for such a controller even
        when later answers name another one."""
        ids = [node.id for node, _ in nodes]
        own = self.membership.lease.node
        return own if own in ids else min(ids, default=-1)

    @contextmanager
    def changing(self, call: Call, resources: Iterable[tuple[ResourceType, str]]) -> Iterator[Attempt]:
        """Note the changes that are made within this context in the audit log, if the caller sets `Attempt.made`.

        If an error leaves their outcome unknown, they are noted so: they may have taken effect."""
        attempt = Attempt(list(resources))
        try:
            yield attempt
        except BaseException as error:
            if not isinstance(error, TopicError | GroupError) or isinstance(error.__cause__, UnavailableError):
                self._note(call, attempt, unknown=True)
            raise
        if attempt.made:
            self._note(call, attempt)

    def _note(self, call: Call, attempt: Attempt, *, unknown: bool = False) -> None:
        if self.authorizer.open:
            return
        if call.changes is None:
            operation = next(
                (route.name for route in self.routes if route.key == call.header.api), str(call.header.api)
            )
            call.changes = self.audit.changes(call.client.caller, operation)
        call.changes.note(attempt, unknown=unknown)

    def observe(self) -> None:
        """Update the gauges that are read from the parts."""
        metrics.CACHE_HITS.set(self.cache.hits)
        metrics.CACHE_MISSES.set(self.cache.misses)
        metrics.CACHE_BYTES.labels("tail").set(self.cache.tail.used)
        metrics.CACHE_BYTES.labels("history").set(self.cache.history.used)
        metrics.ANSWERING.set(self.reader.answers.used)
        metrics.GROUP_BYTES.set(self.groups.shards.memory.used)
        metrics.SESSION_PARTITIONS.set(self.fetch_sessions.partitions.used)
        metrics.GROUPS.clear()
        for state, count in self.groups.counts().items():
            metrics.GROUPS.labels(state).set(count)

    async def leave_service(self) -> None:
        """Hand over to other brokers: release the groups and redirect the clients. Requests in progress are still
        answered."""
        for task in self._background:
            if task.get_name() == "lease":
                task.cancel()
                await asyncio.wait((task,), timeout=STOP_SECONDS)
        self.groups.stop()
        await self.membership.leave()

    def wake(self) -> None:
        """End long polls: consumers get the records that there are."""
        self.reader.stop()

    async def stop(self) -> None:
        """Wait briefly for pending commits, then stop all background tasks. Call `leave_service` before."""
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self.writer.drain()
        except TimeoutError:
            # The producers got no answer either, and retry with another broker.
            log.warning("stopped with uncommitted objects", objects=self.writer.unfinished)
        for task in self._background:
            task.cancel()
        await asyncio.wait(self._background, timeout=STOP_SECONDS)
        self._passwords.shutdown(wait=False)
        if self._keys is not None:
            self._keys.close()
        self.checks.close()
        self.value_checks.close()
        self.registries.close()
        self.reader.close()
        await self.metadata_store.close()
        await self.objects.close()


def _puts_per_second(settings: BrokerSettings) -> float:
    if settings.writer.puts_per_second is not None:
        return settings.writer.puts_per_second
    return DIRECTORY_PUTS if isinstance(settings.objects, DirectorySettings) else BUCKET_PUTS


async def _reached(step: Callable[[], Awaitable[T]]) -> T:
    """Repeat the step until the coordinator can be reached, and return its result. Fleet and database may start
    together."""
    while True:
        try:
            return await step()
        except UnavailableError as error:
            log.warning("cannot join the cluster yet", error=str(error))
            await asyncio.sleep(JOIN_SECONDS)


async def measure_stalls() -> None:
    """Measure how late the event loop runs a timer. Runs until it is cancelled."""
    await follow_stalls(metrics.LOOP_STALL_SECONDS.observe, metrics.LOOP_CPU_WAIT.inc)


def _ended(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a background task failed", work=task.get_name(), exc_info=error)
