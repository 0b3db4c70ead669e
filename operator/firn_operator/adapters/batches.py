"""Concurrent calls, joined into few requests: during one request, the calls for the next one are collected."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batch(Generic[Item, Result]):
    """Calls of many tasks, answered by one request at a time.

    ``run`` takes the items of one request and returns their results in the same order. A result that is an exception is
    raised to its caller. An exception that ``run`` raises is raised to all callers.
    """

    def __init__(
        self, run: Callable[[Sequence[Item]], Awaitable[Sequence[Result | BaseException]]], limit: int
    ) -> None:
        self._run = run
        self._limit = limit
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._runner: asyncio.Task[None] | None = None

    async def submit(self, item: Item) -> Result:
        """Send ``item`` with the next request, and return its result."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        await asyncio.sleep(0)  # tasks that are ready now join the first request
        while self._waiting:
            taken, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
            try:
                results = await self._run([item for item, _ in taken])
            except BaseException as error:
                results = [error] * len(taken)
                if not isinstance(error, Exception):
                    self._answer(taken, results)
                    raise
            self._answer(taken, results)

    @staticmethod
    def _answer(
        taken: Sequence[tuple[Item, asyncio.Future[Result]]], results: Sequence[Result | BaseException]
    ) -> None:
        for (_, future), result in zip(taken, results, strict=True):
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
