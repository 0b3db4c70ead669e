"""How a run ends before its work does: at its deadline, or when the process is told to."""

import threading
from collections.abc import Callable

from firn.model.errors import FirnError


class StoppedError(FirnError):
    """The run has to end: nothing may be begun any more."""


class Stop:
    """Set once, from any thread. ``cancel`` ends what Spark is doing at that moment."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._event = threading.Event()
        self.why = ""

    def set(self, why: str) -> None:
        """Ends the run for this reason; the first one counts."""
        if self._event.is_set():
            return
        self.why = why
        self._event.set()
        # Not in a signal handler's or timer's own time: the gateway may be busy.
        threading.Thread(target=self._cancel, name="cancel", daemon=True).start()

    def check(self) -> None:
        """Raises StoppedError once the run has to end."""
        if self._event.is_set():
            raise StoppedError(f"stopped: {self.why}")

    @property
    def is_set(self) -> bool:
        """Whether the run has to end."""
        return self._event.is_set()
