"""Named places where a test can make the driver die, stand still or fail. Off unless ``FIRN_FAILPOINTS`` names some.

``FIRN_FAILPOINTS=after-dlq-commit=kill:1,before-commit=raise:3`` kills the process (SIGKILL) the first time it
reaches ``after-dlq-commit``, and raises at the third passage of ``before-commit``. ``stop`` stops the process
(SIGSTOP) until SIGCONT, so that a test can act while the process stands at that place.
"""

import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Literal, get_args

import structlog

from firn.model.errors import InvalidSpecError

VARIABLE = "FIRN_FAILPOINTS"
Ingestion = Literal[
    "after-claim",
    "after-data-files",
    "before-dlq-create",
    "after-dlq-create",
    "before-dlq-commit",
    "after-dlq-commit",
    "before-commit",
    "in-commit",
    "after-commit",
    "after-readback",
]
Publishing = Literal["before-publish", "after-publish"]
Maintenance = Literal[
    "before-rewrite",
    "after-rewrite",
    "in-commit",
    "after-commit",
    "after-readback",
    "before-deletion",
]
Replay = Literal["after-replay-append", "after-replay-deletion", "after-replay-end"]
Name = Literal[Ingestion, Publishing, Maintenance, Replay]
Action = Literal["kill", "stop", "raise"]

log = structlog.get_logger()


class FailpointError(RuntimeError):
    """Raised at a failpoint that is set to ``raise``; nothing else raises it."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    """The action at a place, and the passage at which it happens (1 is the first)."""

    action: Action
    passage: int


class Failpoints:
    """The failpoints of a process, parsed from the variable's value ``text``. Raises InvalidSpecError if it cannot be
    parsed."""

    def __init__(self, text: str = "") -> None:
        self._points: dict[str, Failpoint] = {}
        self._passages: Counter[str] = Counter()
        self._lock = threading.Lock()
        for part in filter(None, (piece.strip() for piece in text.split(","))):
            name, _, rest = part.partition("=")
            action, _, passage = rest.partition(":")
            if name not in get_args(Name) or action not in get_args(Action) or not (passage or "1").isdigit():
                raise InvalidSpecError(
                    f"{VARIABLE}: {part!r} is not NAME=kill|stop|raise[:PASSAGE] with a name of {', '.join(get_args(Name))}"
                )
            self._points[name] = Failpoint(action, int(passage or 1))  # type: ignore[arg-type]
        if self._points:
            log.warning("failpoints are on", failpoints=sorted(self._points))

    @property
    def active(self) -> bool:
        """True if any failpoint is set."""
        return bool(self._points)

    def reach(self, name: Name) -> None:
        """Pass a place. Raises FailpointError, or kills or stops the process, if a failpoint is set there."""
        point = self._points.get(name)
        if point is None:
            return
        with self._lock:
            self._passages[name] += 1
            passage = self._passages[name]
        if passage != point.passage:
            return
        if point.action != "raise":
            os.kill(os.getpid(), signal.SIGKILL if point.action == "kill" else signal.SIGSTOP)
            return
        raise FailpointError(f"failpoint {name}, passage {passage}")


def from_environment() -> Failpoints:
    """Return the failpoints that the process's environment sets."""
    return Failpoints(os.environ.get(VARIABLE, ""))
