"""Turns go round the parties that wait."""

import asyncio

from firn_broker.log.turns import Turns
from tests.unit.broker.whole import settle


class Work:
    """Callers that hold their turns until the test ends them."""

    def __init__(self, total: int, of_party: int) -> None:
        self._turns = Turns(total, of_party)
        self.running: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def begin(self, *names: str) -> None:
        """Begin callers. The first letter of each name is its party."""
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._work(name))
        await settle()

    async def _work(self, name: str) -> None:
        async with self._turns.turn(name[0]):
            self.running.append(name)
            try:
                await self._ends[name].wait()
            finally:
                self.running.remove(name)

    async def end(self, name: str) -> list[str]:
        """End a caller, and return those that run afterwards."""
        self._ends[name].set()
        await settle()
        return self.running

    async def cancel(self, *names: str) -> list[str]:
        """Cancel callers, and return those that run afterwards."""
        for name in names:
            self.tasks[name].cancel()
        await settle()
        return self.running


async def test_a_party_waits_for_one_turn_of_each_other_party() -> None:
    work = Work(1, 1)
    await work.begin("a1", "a2", "a3", "b1", "c1", "b2")
    order = list(work.running)
    for _ in range(5):
        order += await work.end(order[-1])
    assert order == ["a1", "a2", "b1", "c1", "a3", "b2"]


async def test_a_party_has_a_limited_number_of_turns_at_the_same_time() -> None:
    work = Work(3, 2)
    await work.begin("a1", "a2", "a3")
    assert work.running == ["a1", "a2"]
    await work.begin("b1", "b2")
    assert work.running == ["a1", "a2", "b1"]
    assert await work.end("b1") == ["a1", "a2", "b2"], "a has as many turns as it may have"
    assert await work.end("a1") == ["a2", "b2", "a3"]


async def test_a_cancelled_caller_leaves_its_turn_to_others() -> None:
    work = Work(1, 1)
    await work.begin("a1", "a2", "b1", "a3")
    assert await work.cancel("a2") == ["a1"]
    assert await work.cancel("a1") == ["a3"], "a is still in front of b"
    assert await work.cancel("a3") == ["b1"]
    assert await work.cancel("b1") == []
    await work.begin("a4")
    assert work.running == ["a4"]


async def test_a_caller_that_is_cancelled_with_its_turn_granted_leaves_it_to_others() -> None:
    work = Work(1, 1)
    await work.begin("a1", "b1", "c1")
    work.tasks["a1"].cancel()
    await asyncio.sleep(0)
    # b1 has its turn, and does not know it yet.
    work.tasks["b1"].cancel()
    await settle()
    assert work.running == ["c1"]
