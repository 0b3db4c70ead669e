"""Ends the process that is being tested at its n-th call to the outside, before or after the call has had its effect."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Killed(BaseException):
    """Not an Exception: nothing that is being tested may catch it, as nothing catches a kill."""


class Faults:
    """Counts calls that change something; ``kill_at`` names the one that is the last."""

    def __init__(self) -> None:
        self.calls = 0
        self.kill_at: int | None = None
        self.after_effect = False
        self.log: list[str] = []

    def writes(self) -> int:
        return len(self.log)


def effect(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Marks a port's method that changes the outside: counted, logged, and a place to be killed at."""

    @wraps(method)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        fake: Any = args[0]
        faults: Faults = fake.faults
        faults.calls += 1
        mine = faults.calls == faults.kill_at
        if mine and not faults.after_effect:
            raise Killed(method.__name__)
        result = await method(*args, **kwargs)
        if mine:
            raise Killed(method.__name__)
        return result

    return call
