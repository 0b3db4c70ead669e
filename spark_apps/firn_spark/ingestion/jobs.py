"""Sources of job contracts: ConfigMaps in the operator's namespace, or a directory of JSON files.

Both implement `JobSource`: they keep the current set of contracts in memory. A contract that cannot be parsed is
logged, and its last valid version stays in force, so that it affects no other topic.
"""

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import structlog
from kubernetes import watch
from pydantic import ValidationError

from firn.model import names
from firn.model.jobs import IngestJob

log = structlog.get_logger()

JOB_KEY = "job.json"
PAGE_OBJECTS = 500
"""Number of contracts on a page of a list."""


class JobSource(Protocol):
    """The job contracts of one group."""

    def start(self) -> None:
        """Start to follow the contracts. Returns at once."""
        ...

    def current(self) -> Mapping[str, IngestJob] | None:
        """Return the contracts by uid; None before the first complete list."""
        ...

    def stop(self) -> None:
        """Stop following the contracts."""
        ...


def parse(text: str, origin: str) -> IngestJob | None:
    """Parse a contract. Log the problems and return None if it is invalid."""
    try:
        return IngestJob.model_validate_json(text)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        log.error("job contract cannot be read", origin=origin, problems=problems)
        return None


def jobs_of_group(jobs: Iterable[IngestJob | None], group: str) -> dict[str, IngestJob]:
    """Return the jobs of one group by uid. A topic may have moved to another group."""
    return {job.uid: job for job in jobs if job is not None and job.group == group}


class _Follower:
    """A thread that follows contracts, and the newest complete set of them."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._jobs: dict[str, IngestJob] | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="jobs", daemon=True)

    def start(self) -> None:
        """Implement `JobSource.start`."""
        self._thread.start()

    def current(self) -> Mapping[str, IngestJob] | None:
        """Implement `JobSource.current`."""
        return self._jobs

    def _follow(self) -> None:
        raise NotImplementedError


class DirectoryJobs(_Follower):
    """Contracts as ``*.json`` files of a directory, read every ``interval`` seconds. Write a file under another name
    and rename it."""

    def __init__(self, directory: str, group: str, interval: float = 0.5) -> None:
        super().__init__(group)
        self._directory = Path(directory)
        self._interval = interval
        self._files: dict[str, tuple[tuple[int, int, int], IngestJob | None]] = {}

    def stop(self) -> None:
        """Implement `JobSource.stop`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _follow(self) -> None:
        while True:
            try:
                self._jobs = self._read()
            except OSError as error:
                log.error("directory of job contracts cannot be read", directory=str(self._directory), error=str(error))
            if self._stop.wait(self._interval):
                return

    def _read(self) -> dict[str, IngestJob]:
        """Return the contracts. The result is the same object until one of them changes."""
        files: dict[str, tuple[tuple[int, int, int], IngestJob | None]] = {}
        with os.scandir(self._directory) as entries:
            found = sorted((entry for entry in entries if entry.name.endswith(".json")), key=lambda entry: entry.name)
        for entry in found:
            try:
                stat = entry.stat()
                version = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                earlier = self._files.get(entry.name)
                if earlier is not None and earlier[0] == version:
                    files[entry.name] = earlier
                    continue
                job = parse(Path(entry.path).read_text(), entry.path)
            except FileNotFoundError:
                continue
            files[entry.name] = (version, job if job is not None or earlier is None else earlier[1])
        if self._jobs is not None and files == self._files:
            return self._jobs
        self._files = files
        return jobs_of_group((job for _, job in files.values()), self._group)


@dataclass(frozen=True, slots=True)
class _Contract:
    """A contract as its ConfigMap has it. ``job`` is the last valid one, which an invalid ``text`` keeps in force."""

    text: str
    job: IngestJob


class KubernetesJobs(_Follower):
    """Contracts as ConfigMaps with the group's label: listed and watched, and listed again after each error and every
    ``resync`` seconds."""

    def __init__(self, api: Any, namespace: str, group: str, resync: float = 300.0) -> None:
        super().__init__(group)
        self._api = api
        self._namespace = namespace
        self._resync = resync
        self._selector = f"{names.LABEL_GROUP}={group},{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
        self._by_name: dict[str, _Contract] | None = None
        self._changed = False
        self._lock = threading.Lock()
        """Guards ``_by_name`` and ``_changed``."""
        self._watch: Any = None

    def current(self) -> Mapping[str, IngestJob] | None:
        """Implement `JobSource.current`. Many changes since the last call cost one new mapping."""
        with self._lock:
            if self._by_name is not None and self._changed:
                self._jobs = jobs_of_group((contract.job for contract in self._by_name.values()), self._group)
                self._changed = False
            return self._jobs

    def stop(self) -> None:
        """Implement `JobSource.stop`. A watch that is waiting for the server ends with the process."""
        self._stop.set()
        if self._watch is not None:
            self._watch.stop()

    def _follow(self) -> None:
        delay = 1.0
        while not self._stop.is_set():
            try:
                version = self._list()
                delay = 1.0
                until = time.monotonic() + self._resync
                while not self._stop.is_set() and time.monotonic() < until:
                    # Without the client's classes, because their construction takes most of the time of a contract.
                    self._watch = watch.Watch(return_type="object")
                    for event in self._watch.stream(
                        self._api.list_namespaced_config_map,
                        self._namespace,
                        label_selector=self._selector,
                        resource_version=version,
                        timeout_seconds=max(1, int(until - time.monotonic())),
                        _request_timeout=(10, self._resync + 30),
                    ):
                        version = event["object"]["metadata"]["resourceVersion"]
                        self._apply(event["type"], event["object"])
                        if self._stop.is_set():
                            return
            except Exception as error:
                # 410 Gone, a lost connection, a missing grant: list again, with a longer pause after each failure.
                log.warning(
                    "watching job contracts failed, listing again", error=f"{type(error).__name__}: {str(error)[:300]}"
                )
                self._stop.wait(delay)
                delay = min(delay * 2, 30.0)

    def _list(self) -> str:
        previous = self._by_name or {}
        listed: dict[str, _Contract] = {}
        page: dict[str, Any] = {"continue": None}
        while "continue" in page:
            answer = self._api.list_namespaced_config_map(
                self._namespace,
                label_selector=self._selector,
                limit=PAGE_OBJECTS,
                _continue=page["continue"],
                _preload_content=False,
                _request_timeout=(10, 30),
            )
            document = json.loads(answer.data)
            for item in document["items"]:
                name = item["metadata"]["name"]
                contract = self._contract(name, item, previous.get(name))
                if contract is not None:
                    listed[name] = contract
            page = {key: value for key, value in document["metadata"].items() if value}
        with self._lock:
            self._by_name, self._changed = listed, True
        return str(page["resourceVersion"])

    def _apply(self, kind: str, item: Mapping[str, Any]) -> None:
        assert self._by_name is not None
        name = item["metadata"]["name"]
        known = self._by_name.get(name)
        if kind in ("ADDED", "MODIFIED"):
            contract = self._contract(name, item, known)
        elif kind == "DELETED":
            contract = None
        else:
            return
        with self._lock:
            if contract is not None:
                self._by_name[name] = contract
            else:
                self._by_name.pop(name, None)
            self._changed = True

    def _contract(self, name: str, item: Mapping[str, Any], known: _Contract | None) -> _Contract | None:
        """Return the contract of a ConfigMap; None if it has none. ``known`` is the earlier one of this name."""
        text = (item.get("data") or {}).get(JOB_KEY)
        if text is None:
            return None
        if known is not None and text == known.text:
            return known
        job = parse(text, f"ConfigMap {self._namespace}/{name}")
        if job is not None:
            return _Contract(text, job)
        return _Contract(text, known.job) if known is not None else None
