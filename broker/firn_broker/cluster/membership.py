"""This process among the brokers: its node id and epoch, who else is alive, and who leads what.

Leadership is advice, not ownership: any broker serves any partition. It spreads clients, and sends those of one zone to one broker, which
keeps commits from waiting for one another and lets one cache serve many. It follows from the live nodes by rendezvous hashing, so a broker
that comes or goes moves only its own share.
"""

import asyncio
from collections.abc import Sequence

import structlog
from crc32c import crc32c

from firn.model.errors import FencedError, UnavailableError
from firn_broker.log_types import Lease, Node, NodeAddress, NodeLease, Partition
from firn_broker.ports import NodeStore

log = structlog.get_logger()


def _score(node: int, what: bytes) -> int:
    # CRC is linear: without a mix at the end, nodes would share each other's order for related keys.
    value = crc32c(what, crc32c(node.to_bytes(8, "big")))
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16


def favourite(nodes: Sequence[Node], what: bytes) -> Node:
    """The node that ``what`` hashes to."""
    return max(nodes, key=lambda node: (_score(node.id, what), -node.id))


def leader(near: Sequence[Node], partition: Partition) -> Node:
    """Which of the nodes near a client it should ask for ``partition``."""
    return favourite(near, partition.topic.bytes + partition.index.to_bytes(4, "big"))


class Membership:
    """Keeps the node lease alive, and takes a new one when it was lost."""

    def __init__(self, nodes: NodeStore, address: NodeAddress, *, ttl_ms: int, wanted: int | None = None) -> None:
        self._nodes = nodes
        self._address = address
        self._ttl_ms = ttl_ms
        self._wanted = wanted
        self.lease = NodeLease(-1, -1)
        self.nodes: Sequence[Node] = ()
        """Who was alive when that was last heard, we among them."""
        self._listed: Sequence[Node] = ()
        """Who was alive by the coordinator's last answer."""
        self._missed: Sequence[Node] = ()
        """Who was alive before our lease ran out, for one more lease: they may have had the same trouble, and come back as we did. Brokers that
        name one another by turns would confuse clients (librdkafka 2.16 loses a request that it has sent to one that another does not name)."""
        self._missed_until = 0.0
        self.until = 0.0
        """When the node lease ends if it is not renewed, by the event loop's clock: others may have what was ours from then on."""
        self.term = 0
        """Raised when there is a new lease, and when one was renewed too late to be sure that nobody had what was ours meanwhile."""

    async def join(self) -> None:
        """Become a node. Raises UnavailableError."""
        while True:
            self.lease = await self._nodes.join(self._address, self._ttl_ms, self._wanted)
            self.term += 1
            try:
                await self._renew()
                break
            except FencedError:
                # The first answer was so long under way that the id is another's by now.
                self._wanted = None
        self._wanted = self.lease.node
        log.info("joined", node=self.lease.node, epoch=self.lease.epoch)

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
        nodes = {it.id: it for it in (*self._missed, *alive)}
        self.nodes = [nodes[id] for id in sorted(nodes)]
        self.until = asked + self._ttl_ms / 1000

    async def keep(self) -> None:
        """Renew for ever. Whoever took the id away has it; we take another."""
        while True:
            await asyncio.sleep(self._ttl_ms / 5000)
            try:
                try:
                    await self._renew()
                except FencedError:
                    log.warning("node lease lost", node=self.lease.node, epoch=self.lease.epoch)
                    self._wanted = None
                    await self.join()
            except UnavailableError as error:
                # Others may take us for dead by now. We serve what we can, and commits are refused if our place was taken.
                log.warning("cannot keep the node lease", error=str(error))
            except Exception:
                log.exception("cannot keep the node lease")

    async def leave(self) -> None:
        """Be gone, as far as the coordinator can be told."""
        try:
            await self._nodes.leave(self.lease)
        except UnavailableError as error:
            log.warning("cannot leave", error=str(error))

    async def acquire(self, name: str) -> Lease | None:
        """Acquire the lease ``name`` for this node; return None while another live node holds it. Raises FencedError, UnavailableError."""
        return await self._nodes.acquire(name, self.lease)

    @property
    def adrift(self) -> bool:
        """Whether our lease has run out, while there are others as far as we know. They may be well: clients go there, and nothing is begun here.
        When nobody is well, clients go round until somebody is."""
        return asyncio.get_running_loop().time() >= self.until and any(
            node.id != self.lease.node for node in self.nodes
        )

    @property
    def serving(self) -> Sequence[Node]:
        """The nodes that clients are sent to."""
        return [node for node in self.nodes if node.id != self.lease.node] if self.adrift else self.nodes

    def reachable(self, *, external: bool) -> Sequence[Node]:
        """Those that clients of this listener can reach: while a fleet gets its external one, some have none yet."""
        for nodes in (self.serving, self.nodes):
            if found := [node for node in nodes if node.address.endpoint(external=external) is not None]:
                return found
        return ()

    def leader(self, partition: Partition, zone: str, *, external: bool = False) -> Node:
        """Whom a client in ``zone`` should ask for ``partition``."""
        return leader(self.near(zone, external=external), partition)

    def near(self, zone: str, *, external: bool) -> Sequence[Node]:
        """The nodes that a client in ``zone`` should go to."""
        nodes = self.reachable(external=external)
        return [node for node in nodes if node.address.zone == zone] or nodes

    def of_shard(self, shard: int) -> Node:
        """The node that coordinates the groups of ``shard``: the same for every zone."""
        return favourite(self.serving, b"shard" + shard.to_bytes(4, "big"))
