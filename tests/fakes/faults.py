"""End the tested process at its n-th call to the outside, before or after the effect of the call."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Killed(BaseException):
    """Not an Exception, because the tested code must not catch it: no process catches SIGKILL."""


class Faults:
    """Count calls that change the outside. ``kill_at`` is the number of the last call."""

    def __init__(self) -> None:
        self.calls = 0
        self.kill_at: int | None = None
        self.after_effect = False
        self.log: list[str] = []

    def writes(self) -> int:
        return len(self.log)


def effect(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Mark a method of a port that changes the outside. Each call is counted and logged, and may end the process."""

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
