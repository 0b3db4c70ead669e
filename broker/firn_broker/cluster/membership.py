"""This process as a node: its id and epoch, the other live nodes, and the leader of each partition.

Leadership is advice, not ownership: any broker serves any partition. It spreads clients over brokers, and sends the
clients of one zone to one broker. So commits to a partition do not wait for one another, and one cache serves many
clients. Rendezvous hashing over the live nodes chooses the leader, so a broker that joins or leaves moves only its own
share of the partitions.

*History brokers* lead no partition, unless only they are alive. They coordinate groups as all brokers do: the choice must not depend on
settings, which differ while a fleet is updated. The other brokers send consumers of old records
to them, and they send the consumers back. So backfills take no CPU time from producers."""

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from uuid import UUID

import structlog
from crc32c import crc32c

from firn.model.errors import FencedError, UnavailableError
from firn_broker.log_types import MAIN, Lease, Node, NodeAddress, NodeLease, Partition
from firn_broker.ports import NodeStore

log = structlog.get_logger()


TOPICS = 1 << 15
"""Topics whose leaders are remembered, for each set of nodes near a client."""


def _score(node: int, subject: bytes) -> int:
    # CRC is linear: without a mix at the end, nodes would share each other's order for related keys.
    value = crc32c(subject, crc32c(node.to_bytes(8, "big")))
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16


def preferred_node(nodes: Sequence[Node], subject: bytes) -> Node:
    """Choose the node for ``subject`` by rendezvous hashing."""
    return max(nodes, key=lambda node: (_score(node.id, subject), -node.id))


def leader(near: Sequence[Node], partition: Partition) -> Node:
    """Choose the leader of ``partition`` among the nodes near a client."""
    return preferred_node(near, partition.topic.bytes + partition.index.to_bytes(4, "big"))


@lru_cache(maxsize=TOPICS)
def leaders(near: tuple[int, ...], topic: UUID, partitions: int) -> tuple[int, ...]:
    """Choose the leaders of a topic's partitions among the ids of the nodes near a client.

    Metadata asks this for all partitions again and again, and each choice takes 10 µs.
    """
    return _chosen(near, topic, partitions)


@lru_cache(maxsize=TOPICS)
def replicas(
    near: tuple[int, ...], groups: tuple[tuple[int, ...], ...], topic: UUID, partitions: int
) -> tuple[tuple[int, ...], ...]:
    """Choose the replicas of a topic's partitions: the leader among the nodes near a client, and a node of each group.

    Every broker serves every partition. A Java client fetches only from brokers that Metadata names as replicas, and
    assigns partitions to consumers in the racks of their replicas.
    """
    # Without a cache for each group: the results of all topics would not fit.
    chosen = (leaders(near, topic, partitions), *(_chosen(group, topic, partitions) for group in groups))
    return tuple(tuple(dict.fromkeys(of_partition)) for of_partition in zip(*chosen, strict=True))


def choose(nodes: tuple[int, ...], partition: Partition) -> int:
    """Choose one of the nodes with these ids for a partition: that of `leaders`."""
    subject = partition.topic.bytes + partition.index.to_bytes(4, "big")
    return max(nodes, key=lambda node: (_score(node, subject), -node))


def _chosen(nodes: tuple[int, ...], topic: UUID, partitions: int) -> tuple[int, ...]:
    return tuple(choose(nodes, Partition(topic, index)) for index in range(partitions))


class Membership:
    """Keeps the node lease alive, and acquires a new one after it was lost."""

    def __init__(
        self,
        nodes: NodeStore,
        address: NodeAddress,
        *,
        ttl_ms: int,
        node_id: int | None = None,
        history_brokers: int = 0,
    ) -> None:
        self._nodes = nodes
        self._address = address
        self._ttl_ms = ttl_ms
        self._requested_id = node_id
        self._history_brokers = history_brokers
        self.lease = NodeLease(-1, -1)
        self.nodes: Sequence[Node] = ()
        """The live nodes as last reported by the coordinator, with this one, and `_missed`."""
        self._listed: Sequence[Node] = ()
        """The live nodes in the coordinator's last reply."""
        self._missed: Sequence[Node] = ()
        """The nodes that were alive before this node's lease expired. They stay in `nodes` for one more lease, because
        the same outage may have hit them. Otherwise brokers would name one another by turns, and librdkafka 2.16 loses
        a request to a broker that another one does not name."""
        self._missed_until = 0.0
        self.until = 0.0
        """The end of the node lease by the event loop's clock. From then on other nodes may acquire the leases of this
        one."""
        self.term = 0
        """Incremented with each new lease, and with each renewal after the lease expired: another node may have held
        the leases of this one."""

    async def join(self) -> None:
        """Become a node. Raises UnavailableError."""
        while True:
            self.lease = await self._nodes.join(self._address, self._ttl_ms, self._requested_id)
            self.term += 1
            try:
                await self._renew()
                break
            except FencedError:
                # The reply to the join took so long that another node has the id by now.
                self._requested_id = None
        self._requested_id = self.lease.node
        log.info("the broker joined the cluster", node=self.lease.node, epoch=self.lease.epoch)

    async def _renew(self) -> None:
        clock = asyncio.get_running_loop().time
        asked = clock()
        alive = await self._nodes.renew(self.lease, self._ttl_ms)
        if clock() >= self.until:
            self.term += 1
            self._missed, self._missed_until = self._listed, asked + self._ttl_ms / 1000
        elif asked >= self._missed_until:
            self._missed = ()
        self._listed = alive
        nodes = {node.id: node for node in (*self._missed, *alive)}
        self.nodes = [nodes[id] for id in sorted(nodes)]
        self.until = asked + self._ttl_ms / 1000

    async def keep(self) -> None:
        """Renew the lease until cancelled. If another process has taken the node id, join with another id."""
        while True:
            await asyncio.sleep(self._ttl_ms / 5000)
            try:
                try:
                    await self._renew()
                except FencedError:
                    log.warning("node lease lost", node=self.lease.node, epoch=self.lease.epoch)
                    self._requested_id = None
                    await self.join()
            except UnavailableError as error:
                # Other nodes may consider this one dead by now. It serves what it can, and the coordinator fences its
                # commits if needed.
                log.warning("cannot keep the node lease", error=str(error))
            except Exception:
                log.exception("cannot keep the node lease")

    async def leave(self) -> None:
        """End the lease now, if the coordinator can be reached."""
        try:
            await self._nodes.leave(self.lease)
        except UnavailableError as error:
            log.warning("cannot end the node lease; it expires by itself", error=str(error))

    async def acquire(self, name: str) -> Lease | None:
        """Acquire the lease ``name`` for this node; return None while another live node holds it. Raises FencedError,
        UnavailableError."""
        return await self._nodes.acquire(name, self.lease)

    @property
    def redirects(self) -> bool:
        """Return whether this broker redirects its clients: its lease has expired, and it knows other nodes.

        Those may reach the coordinator. If none does, clients try one broker after the other until one answers.
        """
        return asyncio.get_running_loop().time() >= self.until and any(
            node.id != self.lease.node for node in self.nodes
        )

    @property
    def serving(self) -> Sequence[Node]:
        """List the nodes to which clients are sent."""
        return [node for node in self.nodes if node.id != self.lease.node] if self.redirects else self.nodes

    def reachable(self, listener: str = MAIN) -> Sequence[Node]:
        """List the nodes that clients of this listener can reach: while a fleet gets a listener, some nodes do not have it
        yet."""
        for nodes in (self.serving, self.nodes):
            if with_endpoint := [node for node in nodes if node.address.endpoint(listener) is not None]:
                return with_endpoint
        return ()

    def leader(self, partition: Partition, zone: str, listener: str = MAIN) -> Node:
        """Choose the leader of ``partition`` for clients in ``zone``."""
        return leader(self.near(zone, listener), partition)

    def near(self, zone: str, listener: str = MAIN) -> Sequence[Node]:
        """List the nodes for clients in ``zone``: those of the zone, or all if it has none. History brokers only without others."""
        nodes = self._first(self.reachable(listener))
        return [node for node in nodes if node.address.zone == zone] or nodes

    def zones(self, listener: str = MAIN) -> tuple[tuple[int, ...], ...]:
        """List the ids of the nodes that clients of this listener can reach, by zone, without nodes of no zone and history brokers."""
        by_zone: dict[str, list[int]] = {}
        for node in self._first(self.reachable(listener)):
            if node.address.zone:
                by_zone.setdefault(node.address.zone, []).append(node.id)
        return tuple(map(tuple, by_zone.values()))

    def nearer(self, rack: str, listener: str = MAIN) -> tuple[int, ...]:
        """List the ids of the nodes in a consumer's rack, if this node is in another zone (KIP-392)."""
        if not rack or rack == self._address.zone or self.is_history_broker:
            return ()
        return tuple(node.id for node in self._first(self.reachable(listener)) if node.address.zone == rack)

    @property
    def is_history_broker(self) -> bool:
        """Return whether this broker serves only consumers of old records."""
        return self.lease.node < self._history_brokers

    def history_brokers(self, listener: str = MAIN) -> tuple[int, ...]:
        """List the ids of the history brokers that clients of this listener can reach."""
        return tuple(node.id for node in self.reachable(listener) if node.id < self._history_brokers)

    def _first(self, nodes: Sequence[Node]) -> Sequence[Node]:
        """List the nodes to which clients go first: those that are no history brokers, or all if there are none."""
        return [node for node in nodes if node.id >= self._history_brokers] or nodes

    def shard_coordinator(self, shard: int) -> Node:
        """Choose the node that coordinates the groups of ``shard``: the same one for all zones."""
        return preferred_node(self.serving, b"shard" + shard.to_bytes(4, "big"))
