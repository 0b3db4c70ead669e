"""Leases: one run at a time works on a table, and one driver serves a group. No commit's safety depends on them.

A lease is a record of its holder and its end. The store replaces a record only if it has not changed since it was
read (`Store`: Kubernetes Leases, or files without Kubernetes). A thread renews the lease three times in its duration.
A holder that could not renew it in time has lost it, and stops before another run can acquire it. The clocks of nodes
may differ by less than a third of the duration. If they differ by more, two runs may work on one table, and one of
them loses its commits.
"""

import fcntl
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import structlog
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from firn.model.errors import FencedError, UnavailableError

log = structlog.get_logger()

SOON = 10
"""Retries of a failed renewal within the usual pause between two renewals."""


STORED_PRECISION = 1e-4
"""Seconds by which a store may round the time of a renewal. Kubernetes keeps microseconds."""


@dataclass(frozen=True, slots=True)
class Record:
    """A lease as its store has it. ``version`` changes with every write."""

    holder: str
    renewed: float
    """Unix seconds."""
    seconds: int
    version: str = ""


class Store(Protocol):
    """Stores leases. Every method raises UnavailableError."""

    def read(self, name: str) -> Record | None:
        """Return the lease of this name; None if it does not exist."""
        ...

    def write(self, name: str, record: Record, version: str | None) -> Record | None:
        """Replace the record with ``version``, or create one if that is None. Return None if the stored version
        differs."""
        ...

    def remove(self, name: str, version: str) -> None:
        """Delete the lease if it still has ``version``."""
        ...


class Files:
    """Leases as files of a directory."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)

    def read(self, name: str) -> Record | None:
        """Implement `Store.read`."""
        try:
            return Record(**json.loads((self._directory / f"{name}.json").read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UnavailableError(f"lease {name}: {error}") from error

    def write(self, name: str, record: Record, version: str | None) -> Record | None:
        """Implement `Store.write`."""
        with self._locked(name):
            stored = self.read(name)
            if (stored.version if stored is not None else None) != version:
                return None
            # Never the version of a removed lease: a holder that remembers it must not take the new lease for its own.
            written = Record(record.holder, record.renewed, record.seconds, f"{time.time_ns()}.{os.getpid()}")
            draft = self._directory / f"{name}.draft"
            draft.write_text(json.dumps({key: getattr(written, key) for key in Record.__slots__}))
            os.replace(draft, self._directory / f"{name}.json")
            return written

    def remove(self, name: str, version: str) -> None:
        """Implement `Store.remove`."""
        with self._locked(name):
            stored = self.read(name)
            if stored is not None and stored.version == version:
                (self._directory / f"{name}.json").unlink()

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        with (self._directory / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


_TIMED = {"_request_timeout": (5, 10)}
"""Seconds to connect and to answer. Without them a run could hang on a dead connection and never release its lease."""


class KubernetesLeases:
    """Leases of coordination.k8s.io in one namespace. ``api`` is a ``CoordinationV1Api``."""

    def __init__(self, api: Any, namespace: str, labels: dict[str, str] | None = None) -> None:
        self._api = api
        self._namespace = namespace
        self._labels = labels or {}

    def read(self, name: str) -> Record | None:
        """Implement `Store.read`."""
        lease = self._call(lambda: self._api.read_namespaced_lease(name, self._namespace, **_TIMED), name, 404)
        return None if lease is None else _record(lease)

    def write(self, name: str, record: Record, version: str | None) -> Record | None:
        """Implement `Store.write`."""
        # A whole second would be sent without microseconds, and the API server accepts no such MicroTime.
        moment = datetime.fromtimestamp(record.renewed, UTC)
        moment = moment.replace(microsecond=max(1, moment.microsecond))
        body = {
            "metadata": {
                "name": name,
                "labels": self._labels,
                **(_meant(version) if version is not None else {}),
            },
            "spec": {
                "holderIdentity": record.holder,
                "leaseDurationSeconds": record.seconds,
                "renewTime": moment,
                "acquireTime": moment,
            },
        }
        if version is None:
            written = self._call(lambda: self._api.create_namespaced_lease(self._namespace, body, **_TIMED), name, 409)
        else:
            written = self._call(
                lambda: self._api.replace_namespaced_lease(name, self._namespace, body, **_TIMED), name, 409, 404
            )
        return None if written is None else _record(written)

    def remove(self, name: str, version: str) -> None:
        """Implement `Store.remove`."""
        body = {"preconditions": _meant(version)}
        self._call(
            lambda: self._api.delete_namespaced_lease(name, self._namespace, body=body, **_TIMED), name, 409, 404
        )

    def _call(self, call: Callable[[], Any], name: str, *none: int) -> Any | None:
        try:
            return call()
        except ApiException as error:
            if error.status in none:
                return None
            raise UnavailableError(
                f"lease {self._namespace}/{name}: {error.status} {error.reason}; allow the pod's service account to get, create, update "
                "and delete leases there"
            ) from error
        except HTTPError as error:
            raise UnavailableError(f"lease {self._namespace}/{name}: {error}") from error


def _meant(version: str) -> dict[str, str]:
    """Return the preconditions of a request. Without the UID, the API server creates a lease again that was deleted."""
    uid, _, resource = version.partition("/")
    return {"uid": uid, "resourceVersion": resource}


def _record(lease: Any) -> Record:
    spec = lease.spec
    return Record(
        spec.holder_identity or "",
        spec.renew_time.timestamp() if spec.renew_time is not None else 0.0,
        spec.lease_duration_seconds or 0,
        f"{lease.metadata.uid}/{lease.metadata.resource_version}",
    )


class Lease:
    """A lease that this process holds. A thread renews it until `release`."""

    def __init__(self, store: Store, name: str, record: Record, asked: float, clock: Callable[[], float]) -> None:
        self._store = store
        self.name = name
        self._record = record
        self._clock = clock
        self._until = asked + record.seconds * 2 / 3
        self._lost = ""
        self._unanswered: deque[float] = deque(maxlen=100)
        """Times of the renewals since ``record`` that may be stored."""
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"lease-{name}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise FencedError if the lease is lost, or may be by now. The run must not commit or delete anything then."""
        if self._lost or self._clock() >= self._until:
            raise FencedError(
                f"lease {self.name}: {self._lost or 'it could not be renewed in time'}; another process may have it"
            )

    @property
    def lost(self) -> bool:
        """Return whether another process holds the lease, or it was released. A lease that could not be renewed is not lost yet."""
        return bool(self._lost)

    def release(self) -> None:
        """Release the lease for other runs. Best effort: a lease that could not be released expires by itself."""
        self._stop.set()
        with self._lock:
            if self._lost:
                return
            self._lost = "released"
            try:
                self._store.remove(self.name, self._record.version)
            except UnavailableError as error:
                log.warning("lease could not be released; it expires by itself", lease=self.name, error=str(error))

    def renew(self) -> bool:
        """Renew the lease once. Return False if the next renewal should come soon, because this one failed or was not
        answered."""
        with self._lock:
            if self._lost:
                return True
            asked = self._clock()
            record = Record(self._record.holder, time.time(), self._record.seconds)
            # Before the answer: the HTTP client may send a request again, and return only that the second one was refused.
            self._unanswered.append(record.renewed)
            try:
                written = self._store.write(self.name, record, self._record.version)
                if written is None:
                    stored = self._store.read(self.name)
                    if stored is not None and self._wrote(stored):
                        # Only the next renewal shows until when the lease holds.
                        self._record = stored
                        self._unanswered.clear()
                        return False
                    self._lost = f"{stored.holder if stored is not None else 'no process'} holds it now"
                    log.error("lease lost", lease=self.name, why=self._lost)
                    return True
            except UnavailableError as error:
                log.warning("lease could not be renewed", lease=self.name, error=str(error))
                return False
            self._record, self._until = written, asked + record.seconds * 2 / 3
            self._unanswered.clear()
            return True

    def _wrote(self, stored: Record) -> bool:
        """Return True if ``stored`` is a renewal of this process without an answer.

        The holder alone proves nothing: a later process may have the same holder.
        """
        return stored.holder == self._record.holder and any(
            abs(stored.renewed - renewed) < STORED_PRECISION for renewed in self._unanswered
        )

    def _run(self) -> None:
        usual = self._record.seconds / 3
        pause = usual
        while not self._lost and not self._stop.wait(pause):
            pause = usual if self.renew() else usual / SOON


class Leases:
    """Acquires leases for one process. ``holder`` has to be unique to it."""

    def __init__(self, store: Store, holder: str, seconds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._holder = holder
        self._seconds = seconds
        self._clock = clock

    def acquire(self, name: str) -> Lease | None:
        """Acquire the lease; None if another run holds it. Raises UnavailableError."""
        asked = self._clock()
        stored = self._store.read(name)
        if stored is not None and stored.holder != self._holder and time.time() < stored.renewed + stored.seconds:
            return None
        record = Record(self._holder, time.time(), self._seconds)
        written = self._store.write(name, record, stored.version if stored is not None else None)
        if written is None:
            return None
        return Lease(self._store, name, written, asked, self._clock)

    def holder(self, name: str) -> str:
        """Return the holder of a lease; an empty text if there is none."""
        stored = self._store.read(name)
        return stored.holder if stored is not None else ""
