"""The lease of an ingestion group: one driver of the group in a release serves its topics.

Two drivers of one group would fence each other in turns, because a driver cannot know whether another one that is
silent has stopped. The lease tells it. No commit's safety depends on the lease: fences and epochs guard every table.
So a driver that cannot ask for the lease serves its topics without it.
"""

import threading
import time
from collections.abc import Callable, Mapping

import structlog

from firn.model.jobs import IngestJob
from firn_spark.ingestion.jobs import JobSource
from firn_spark.leases import Lease, Leases

log = structlog.get_logger()

LEASE_SECONDS = 15
"""Time without a renewal after which another driver may serve the group."""
UNANSWERED_SECONDS = 30.0
"""Time without an answer about the lease after which the driver serves without it."""


def holder(environment: Mapping[str, str], host: str) -> str:
    """Return the holder of leases that this process is; ``host`` is its host name.

    A container that starts again in its pod still has the lease. A new pod of the same name waits: the old one may
    still run on a node that does not answer.
    """
    uid = environment.get("POD_UID")
    return f"{host}/{uid}" if uid else host


class LeasedJobs:
    """The contracts of ``jobs`` while this driver holds the lease ``name``. Implements `JobSource`."""

    def __init__(
        self,
        jobs: JobSource,
        leases: Leases,
        name: str,
        *,
        pause: float = LEASE_SECONDS / 15,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pause`` is in seconds, between two looks at the lease."""
        self._jobs = jobs
        self._leases = leases
        self._name = name
        self._pause = pause
        self._clock = clock
        self._lease: Lease | None = None
        self._serving = False
        self._served = False
        self._unanswered_since: float | None = None
        self._other = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group-lease", daemon=True)

    def start(self) -> None:
        """Implement `JobSource.start`."""
        self._jobs.start()
        self._thread.start()

    def current(self) -> Mapping[str, IngestJob] | None:
        """Implement `JobSource.current`. Without the lease there is no job; None before this driver had it."""
        if self._serving:
            return self._jobs.current()
        return NO_JOBS if self._served else None

    def stop(self) -> None:
        """Implement `JobSource.stop`. Another driver can serve the group at once."""
        self._jobs.stop()
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=15)
        if self._lease is not None:
            self._lease.release()

    def _run(self) -> None:
        while True:
            self.look()
            if self._stop.wait(self._pause):
                return

    def look(self) -> None:
        """Acquire the lease if nothing holds it, and notice when another driver has taken it."""
        if self._lease is not None and self._lease.lost:
            log.warning("another driver serves the group now", lease=self._name)
            self._lease, self._serving = None, False
        if self._lease is None:
            self._acquire()

    def _acquire(self) -> None:
        try:
            self._lease = self._leases.acquire(self._name)
            other = "" if self._lease is not None else self._leases.holder(self._name)
        except Exception as error:
            # Whatever it is: the driver must not wait for a lease that it cannot ask for.
            self._unanswered(error)
            return
        self._unanswered_since = None
        self._serving = self._lease is not None
        self._served = self._served or self._serving
        if other and other != self._other:
            log.warning("another driver serves the group; waiting for its lease", lease=self._name, holder=other)
        self._other = other

    def _unanswered(self, error: Exception) -> None:
        now = self._clock()
        if self._unanswered_since is None:
            self._unanswered_since = now
        if not self._serving and now - self._unanswered_since >= UNANSWERED_SECONDS:
            log.warning(
                "serving without the lease of the group", lease=self._name, error=f"{type(error).__name__}: {error}"
            )
            self._serving = self._served = True


NO_JOBS: Mapping[str, IngestJob] = {}
