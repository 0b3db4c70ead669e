"""A bound on the bytes that all connections together hold in memory. A request that would exceed it waits in line, and
its socket is not read.

No client can take the whole budget. Each connection, and each address, has a share of an eighth of it. A connection
beyond the share of its address leaves one share free, and a connection beyond its own share leaves two. So a client
that holds little always finds memory."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence

SHARES = 8
"""Shares of a budget."""
SPARE = 0.8
"""The part of a budget that clients may fill without being asked to pause."""
Ready = Callable[[int], None]
"""Called with the granted bytes."""


class _Line:
    """The callers that wait for memory at one distance from their share."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Bytes of the budget that this line may fill."""
        self.growing: OrderedDict[Ready, tuple[int, str]] = OrderedDict()
        """Callers that hold bytes already. They go first."""
        self.new: OrderedDict[Ready, tuple[int, str]] = OrderedDict()
        self.elder = ""
        """The connection that may exceed the budget. Each growing caller holds bytes that the others wait for, so one of
        them has to complete."""

    @property
    def waiting(self) -> int:
        """Return the number of callers in line."""
        return len(self.growing) + len(self.new)


class Budget:
    """Grants bytes, in the order of the requests within a line. A request larger than the whole budget is granted when
    nothing else is held."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._share = total // SHARES
        self._held: Counter[str] = Counter()
        """Bytes by connection ("ADDRESS:PORT") and by address."""
        self._beyond: Counter[str] = Counter()
        """Bytes that connections hold beyond the budget."""
        self._lines = [_Line(total - free * self._share) for free in range(3)]

    def acquire(self, size: int, peer: str, ready: Ready, *, growing: bool = False) -> bool:
        """Acquire ``size`` bytes for the connection ``peer`` now and return True, or return False and call ``ready`` with
        the size when they are granted.

        A caller waits for one grant at a time. A ``growing`` caller keeps the bytes that it holds while it waits for
        more.
        """
        line = self._lines[self._distance(peer, size)]
        if growing:
            granted = (line.elder == peer or not line.growing) and self._grant_growing(line, size, peer)
        elif granted := not line.growing and not line.new and self._fits(line, size):
            self._count(size, peer)
        if not granted:
            (line.growing if growing else line.new)[ready] = size, peer
        return granted

    def cancel(self, ready: Ready) -> None:
        """Remove a waiting caller from its line, if it is in one."""
        for line in self._lines:
            line.growing.pop(ready, None)
            line.new.pop(ready, None)
        self._serve()

    def release(self, size: int, peer: str) -> None:
        """Return bytes to the budget, and grant them to the callers in line."""
        beyond = min(size, self._beyond[peer])
        self._beyond[peer] -= beyond
        if not self._beyond[peer]:
            del self._beyond[peer]
            for line in self._lines:
                if line.elder == peer:
                    line.elder = ""
        self.used += beyond
        self._count(-size, peer)
        self._serve()

    @property
    def held(self) -> int:
        """Return all bytes that callers hold."""
        return self.used + self._beyond.total()

    @property
    def waiting(self) -> int:
        """Return the number of callers in line."""
        return sum(line.waiting for line in self._lines)

    def contended(self, peer: str) -> bool:
        """Return whether callers wait that hold no more of their shares than the connection ``peer``."""
        return any(line.waiting for line in self._lines[: self._distance(peer, 0) + 1])

    def fullness(self, peer: str) -> float:
        """Return how full the budget is for the connection ``peer``, from 0 (up to `SPARE`) to 1.

        Only the part counts that connections farther from their share leave free: a client that fills its own part
        does not make the budget full for others.
        """
        distance = self._distance(peer, 0)
        limit = self._lines[distance].limit
        start = self._lines[distance + 1].limit if distance + 1 < len(self._lines) else 0
        spare = (limit - start) * SPARE
        return min(max((self.used - start - spare) / (limit - start - spare), 0), 1)

    def _distance(self, peer: str, size: int) -> int:
        """Return 0 if the connection and its address stay within a share, 1 if only the connection does, else 2."""
        if self._held[peer] + size > self._share:
            return 2
        return int(self._held[_address(peer)] + size > self._share)

    def _fits(self, line: _Line, size: int) -> bool:
        return self.used + size <= line.limit or self.used == 0

    def _grant_growing(self, line: _Line, size: int, peer: str) -> bool:
        if self._fits(line, size):
            self._count(size, peer)
            return True
        if line.elder not in ("", peer):
            return False
        line.elder = peer
        self._beyond[peer] += size
        self._count(size, peer)
        self.used -= size
        return True

    def _count(self, size: int, peer: str) -> None:
        self.used += size
        for party in (peer, _address(peer)):
            self._held[party] += size
            if not self._held[party]:
                del self._held[party]

    def _serve(self) -> None:
        for line in self._lines:
            while line.growing:
                ready, (size, peer) = next(iter(line.growing.items()))
                if not self._grant_growing(line, size, peer):
                    break
                del line.growing[ready]
                ready(size)
            while line.new and not line.growing:
                ready, (size, peer) = next(iter(line.new.items()))
                if not self._fits(line, size):
                    break
                del line.new[ready]
                self._count(size, peer)
                ready(size)


class Quota:
    """Counts what holders keep, within a limit. It grants nothing and no caller waits. The holders of one address leave an
    eighth of the limit to others."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._sizes: dict[str, Mapping[str, int]] = {}
        """The amounts of each holder, by address."""
        self._of_address: Counter[str] = Counter()

    def fits(self, address: str, size: int) -> bool:
        """Return whether ``size`` more fits for clients at ``address``."""
        share = self.total // SHARES
        kept = share if self._of_address[address] + size > share else 0
        return self.used + size <= self.total - kept

    def of(self, holder: str) -> int:
        """Return the amount that a holder keeps."""
        return sum(self._sizes.get(holder, {}).values())

    def count(self, holder: str, sizes: Mapping[str, int]) -> None:
        """Count ``sizes``, by address, as the amounts of ``holder`` from now on."""
        self.forget(holder)
        self._sizes[holder] = sizes
        self._of_address.update(sizes)
        self.used += sum(sizes.values())

    def forget(self, holder: str) -> None:
        """Count nothing for ``holder``."""
        if (sizes := self._sizes.pop(holder, None)) is None:
            return
        self.used -= sum(sizes.values())
        for address, size in sizes.items():
            self._of_address[address] -= size
            if not self._of_address[address]:
                del self._of_address[address]


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]


class Share:
    """The bytes of a budget that one request or one answer holds.

    It acquires them once. A request holds them until it is answered, an answer until it is sent or dropped.
    """

    __slots__ = ("_budget", "_peer", "_ready", "_size")

    def __init__(self, budget: Budget, peer: str) -> None:
        self._budget = budget
        self._peer = peer
        self._size = 0
        self._ready: asyncio.Future[None]

    async def acquire(self, size: int) -> None:
        """Wait in line for ``size`` bytes. A share that holds bytes acquires no more, so that no two shares wait for
        each other."""
        if not self.begin(size):
            await self.granted()

    def begin(self, size: int) -> bool:
        """Acquire ``size`` bytes now and return True, or take a place in line and return False: `granted` waits there."""
        if self._budget.acquire(size, self._peer, self._granted):
            self._size = size
            return True
        self._ready = asyncio.get_running_loop().create_future()
        return False

    async def granted(self) -> None:
        """Wait for the bytes after `begin` has returned False."""
        try:
            await self._ready
        except asyncio.CancelledError:
            self._budget.cancel(self._granted)
            self.release()
            raise

    def _granted(self, size: int) -> None:
        self._size = size
        if not self._ready.done():
            self._ready.set_result(None)

    def release(self) -> None:
        """Return all bytes to the budget. A second call returns none."""
        size, self._size = self._size, 0
        self._budget.release(size, self._peer)

    @property
    def contended(self) -> bool:
        """Return whether the share holds bytes that other callers wait for."""
        return self._size > 0 and self._budget.contended(self._peer)


class Counted(list[bytes | memoryview]):
    """Buffers of an answer, with the share of a budget that they hold."""

    def __init__(self, buffers: list[bytes | memoryview], share: Share) -> None:
        super().__init__(buffers)
        self.share = share


def release_answer(answer: "asyncio.Future[Sequence[bytes | memoryview] | None]") -> None:
    """Release the memory of an answer that is sent or dropped, if it holds any."""
    if not answer.cancelled() and answer.exception() is None and isinstance(buffers := answer.result(), Counted):
        buffers.share.release()
