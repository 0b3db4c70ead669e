"""The metadata store as the parts of a broker use it: no call reaches the coordinator while it may lack acknowledged
commits.

A call then raises UnavailableError, so that clients get the answers of an outage and maintenance deletes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import structlog
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn_broker.access_types import Access, AccessVersion
from firn_broker.cluster.continuity import Continuity
from firn_broker.log_types import (
    ACCESS,
    PRODUCERS,
    TOPICS,
    BatchOutcome,
    Commit,
    Lookup,
    LookupResult,
    Node,
    NodeAddress,
    NodeLease,
    Partition,
    Topics,
    TopicsVersion,
)
from firn_broker.ports import (
    AccessStore,
    GroupStore,
    LogStore,
    MergeStore,
    MetadataStore,
    NodeStore,
    RetentionStore,
    TopicStore,
    WentBackError,
)

log = structlog.get_logger()

AHEAD = 10_000
"""Offsets at most for which a broker remembers that a consumer is ahead."""


class GuardedStore:
    """`MetadataStore` with a guard before every call."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.continuity = Continuity(store)
        self.nodes = cast(NodeStore, _Nodes(store, "nodes", self.continuity))
        self.topics = cast(TopicStore, _Topics(store, "topics", self.continuity))
        self.log = cast(LogStore, _Log(store, "log", self.continuity))
        self.merges = cast(MergeStore, _Port(store, "merges", self.continuity))
        self.retention = cast(RetentionStore, _Port(store, "retention", self.continuity))
        self.groups = cast(GroupStore, _Port(store, "groups", self.continuity))
        self.access = cast(AccessStore, _Access(store, "access", self.continuity))

    async def start(self) -> None:
        """Start the store."""
        await self._store.start()

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    async def cluster_id(self) -> str:
        """Return the cluster's id."""
        return await self._store.cluster_id()


class _Port:
    """A port of the store. Each call passes if the coordinator has all that it acknowledged."""

    def __init__(self, store: MetadataStore, name: str, continuity: Continuity) -> None:
        self._port: Any = getattr(store, name)
        self._continuity = continuity

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*values: Any, **named: Any) -> Any:
            self._continuity.require()
            return await getattr(self._port, name)(*values, **named)

        # Python does not call __getattr__ again for an attribute that exists.
        self.__dict__[name] = call
        return call


class _Nodes(_Port):
    async def join(self, address: NodeAddress, ttl_ms: int, node_id: int | None = None) -> NodeLease:
        await self._continuity.check()
        lease: NodeLease = await self._port.join(address, ttl_ms, node_id)
        return lease

    async def renew(self, lease: NodeLease, ttl_ms: int) -> Sequence[Node]:
        alive: Sequence[Node] = await self._port.renew(lease, ttl_ms)
        try:
            async with asyncio.timeout(ttl_ms / 2000):
                await self._continuity.check(lease, ttl_ms)
        except WentBackError:
            raise
        except (UnavailableError, TimeoutError) as error:
            # The lease is renewed all the same. The next renewal checks again.
            log.warning("cannot compare the coordinator with its past", error=str(error))
            self._continuity.require()
        return alive

    async def leave(self, lease: NodeLease) -> None:
        await self._port.leave(lease)

    async def allocate_producer_ids(self, count: int) -> int:
        self._continuity.require()
        first: int = await self._port.allocate_producer_ids(count)
        self._continuity.saw(PRODUCERS, first + count)
        return first


class _Topics(_Port):
    async def load_topics(self, known: TopicsVersion | None = None) -> Topics | None:
        self._continuity.require()
        topics: Topics | None = await self._port.load_topics(known)
        if topics is not None:
            self._continuity.saw(TOPICS, topics.version.number)
        return topics


class _Access(_Port):
    async def load_access(self, known: AccessVersion | None = None) -> Access | None:
        self._continuity.require()
        access: Access | None = await self._port.load_access(known)
        if access is not None:
            self._continuity.saw(ACCESS, access.version.number)
        return access


class _Log(_Port):
    def __init__(self, store: MetadataStore, name: str, continuity: Continuity) -> None:
        super().__init__(store, name, continuity)
        self._checking = asyncio.Lock()
        self._next_check: asyncio.Task[None] | None = None
        self._ahead: dict[tuple[Partition, int], float] = {}
        """Since when consumers have asked for an offset that is ahead of its partition."""

    async def commit(self, commit: Commit) -> Sequence[BatchOutcome]:
        self._continuity.require()
        return await self._continuity.commit(commit)

    async def find(self, lookups: Sequence[Lookup], *max_ranges: int) -> Sequence[LookupResult]:
        self._continuity.require()
        results: Sequence[LookupResult] = await self._port.find(lookups, *max_ranges)
        if any(map(_is_ahead, lookups, results)):
            # A consumer that reset its offset because of a lost commit would skip or repeat records.
            await self._check()
            results = await self._port.find(lookups, *max_ranges)
            results = [self._unless_lost(lookup, result) for lookup, result in zip(lookups, results, strict=True)]
        return results

    async def _check(self) -> None:
        """Compare the coordinator with the remembered values, in a check that begins after this call. Calls share the
        next check: many consumers would otherwise delay the call that renews the lease."""
        if self._next_check is None:
            self._next_check = asyncio.create_task(self._begin_check())
            # The calls that wait may all be cancelled.
            self._next_check.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._next_check)

    async def _begin_check(self) -> None:
        async with self._checking:
            self._next_check = None
            await self._continuity.check()

    def _unless_lost(self, lookup: Lookup, result: LookupResult) -> LookupResult:
        """Reject a consumer that is ahead of a partition only after every broker has had time to miss its commits."""
        patience = self._continuity.noticed_seconds
        if not patience or not _is_ahead(lookup, result):
            return result
        now, position = asyncio.get_running_loop().time(), (lookup.partition, lookup.offset)
        # A client that asks again much later may be ahead because of another loss.
        if now - self._ahead.get(position, now) > 10 * patience or len(self._ahead) >= AHEAD:
            self._ahead.clear()
        if now - self._ahead.setdefault(position, now) < patience:
            return LookupResult(ErrorCode.kafka_storage_error)
        del self._ahead[position]
        return result


def _is_ahead(lookup: Lookup, result: LookupResult) -> bool:
    return result.error is ErrorCode.offset_out_of_range and lookup.offset > result.high_watermark
