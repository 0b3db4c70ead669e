"""Ends a run before its work is complete: at its deadline, or when the process receives a signal."""

import threading
from collections.abc import Callable

from firn.model.errors import FirnError


class StoppedError(FirnError):
    """The run has to end and must not start new work."""


class Stop:
    """A reason to stop, set once from any thread. ``cancel`` cancels Spark's current jobs."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._event = threading.Event()
        self.why = ""

    def set(self, why: str) -> None:
        """Stop the run for a reason. Only the first reason counts."""
        if self._event.is_set():
            return
        self.why = why
        self._event.set()
        # In a thread of its own: the gateway may be busy, and a signal handler must not wait for it.
        threading.Thread(target=self._cancel, name="cancel", daemon=True).start()

    def check(self) -> None:
        """Raise StoppedError if the run has to end."""
        if self._event.is_set():
            raise StoppedError(f"stopped: {self.why}")

    @property
    def is_set(self) -> bool:
        """True if the run has to end."""
        return self._event.is_set()
