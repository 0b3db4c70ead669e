"""StatefulSets, Jobs and pods of the operator's namespace as the watches show them, reduced to what conditions need."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from firn.model import names
from firn_controllers.ports import JobState, PodState, StatefulSetState

Manifest = Mapping[str, Any]
CALM = timedelta(minutes=10)
"""Duration of a container's run from which its earlier restarts no longer count."""
_ON_THE_WAY = frozenset({"ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class Applied:
    """The manifest from which an object was applied, and the edition of the object that is live."""

    hash: str | None
    """The annotation ``firn.dev/template-hash``."""
    edition: str
    """Changes with every edit of the spec: uid and generation, or the resource version of a kind that has no generation."""
    version: str
    """The resource version."""

    @classmethod
    def of(cls, manifest: Manifest) -> "Applied":
        """Return hash, edition and version of a live object."""
        metadata = manifest["metadata"]
        version = metadata["resourceVersion"]
        hash_ = (metadata.get("annotations") or {}).get(names.TEMPLATE_HASH)
        edition = (
            f"{metadata['uid']} generation {metadata['generation']}"
            if "generation" in metadata
            else f"version {version}"
        )
        return cls(hash_, edition, version)


@dataclass(frozen=True, slots=True)
class _Kept:
    version: int
    uid: str
    state: PodState | StatefulSetState | JobState
    applied: Applied
    calm_restarts: int = 0
    """Number of restarts of a pod's main container up to its last run of `CALM` or longer."""


class Workloads:
    """The newest known state of each object, from watches and lists. A list also shows which objects were deleted."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], _Kept] = {}

    def seen(self, manifest: Manifest) -> bool:
        """Store an object; return False if a newer state of it is known."""
        kind = manifest["kind"]
        metadata = manifest["metadata"]
        key = (kind, metadata["name"])
        version = int(metadata["resourceVersion"])
        old = self._kept.get(key)
        if old is not None and old.uid == metadata["uid"] and version <= old.version:
            return False
        state = _READERS[kind](manifest)
        calm = 0
        if isinstance(state, PodState):
            same_pod = old is not None and old.uid == metadata["uid"]
            # A ready pod that this process has not seen before has recovered from its restarts.
            before = old.calm_restarts if old is not None and same_pod else state.restarts if state.ready else 0
            calm = _calm_restarts(manifest, before)
            state = replace(state, restarts=max(0, state.restarts - calm))
        self._kept[key] = _Kept(version, metadata["uid"], state, Applied.of(manifest), calm)
        return True

    def gone(self, manifest: Manifest) -> None:
        """Remove a deleted object, unless another one has its name by now."""
        metadata = manifest["metadata"]
        key = (manifest["kind"], metadata["name"])
        old = self._kept.get(key)
        if old is not None and old.uid == metadata["uid"]:
            del self._kept[key]

    def listed(self, kind: str, manifests: Iterable[Manifest], version: int) -> list[str]:
        """Store a whole list that was read at ``version``; return the names of objects that it no longer has."""
        manifests = list(manifests)
        for manifest in manifests:
            self.seen(manifest)
        present = {manifest["metadata"]["name"] for manifest in manifests}
        missing = [
            key
            for key, kept in self._kept.items()
            if key[0] == kind and key[1] not in present and kept.version <= version
        ]
        for key in missing:
            del self._kept[key]
        return [name for _, name in missing]

    def pods(self, labels: Mapping[str, str]) -> Sequence[PodState]:
        """Return the pods with all these labels, by name."""
        states = (kept.state for (kind, _), kept in sorted(self._kept.items()) if kind == "Pod")
        return [
            state for state in states if isinstance(state, PodState) and labels.items() <= dict(state.labels).items()
        ]

    def jobs(self, labels: Mapping[str, str]) -> Sequence[JobState]:
        """Return the Jobs with all these labels, by name."""
        states = (kept.state for (kind, _), kept in sorted(self._kept.items()) if kind == "Job")
        return [
            state for state in states if isinstance(state, JobState) and labels.items() <= dict(state.labels).items()
        ]

    def stateful_set(self, name: str) -> StatefulSetState | None:
        """Return a StatefulSet by name."""
        kept = self._kept.get(("StatefulSet", name))
        return kept.state if kept is not None and isinstance(kept.state, StatefulSetState) else None

    def applied(self, name: str) -> Applied | None:
        """Return hash and edition of a live StatefulSet; None if it does not exist."""
        kept = self._kept.get(("StatefulSet", name))
        return kept.applied if kept is not None else None


def _calm_restarts(pod: Manifest, before: int) -> int:
    """Return how many restarts no longer count as failures in quick succession, given the number ``before`` this state.

    A container that ran long enough works. The kubelet also ends its growing delays after ten minutes.
    """
    main = _main_container(pod)
    restarts: int = main.get("restartCount", 0)
    ended = main.get("lastState", {}).get("terminated") or {}
    begun, finished = _time(ended.get("startedAt")), _time(ended.get("finishedAt"))
    if begun is not None and finished is not None and finished - begun >= CALM:
        # The restart after that run is the first of a new series.
        return max(before, restarts - 1)
    return before


def _main_container(pod: Manifest) -> Manifest:
    """Return the status of the first container of the spec; an empty one before it exists."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    return next((each for each in statuses if each["name"] == pod["spec"]["containers"][0]["name"]), {})


def pod_state(pod: Manifest) -> PodState:
    """Return the state of a pod. Its main container is the first of its spec."""
    metadata, status = pod["metadata"], pod.get("status", {})
    every = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    main = _main_container(pod)
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    waiting: Manifest = next(
        (
            wait
            for container in every
            if (wait := container.get("state", {}).get("waiting")) and wait.get("reason") not in _ON_THE_WAY
        ),
        {},
    )
    ended = main.get("state", {}).get("terminated") or main.get("lastState", {}).get("terminated") or {}
    scheduled = conditions.get("PodScheduled", {})
    terminated = main.get("state", {}).get("terminated") or {}
    unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    return PodState(
        name=metadata["name"],
        ready=conditions.get("Ready", {}).get("status") == "True",
        running="running" in main.get("state", {}),
        phase=status.get("phase", "Pending"),
        labels=metadata.get("labels", {}),
        template_hash=metadata.get("annotations", {}).get(names.TEMPLATE_HASH),
        waiting_reason=waiting.get("reason"),
        waiting_message=waiting.get("message"),
        unschedulable=scheduled.get("message", "unschedulable") if unschedulable else None,
        last_exit_code=ended.get("exitCode"),
        # An evicted pod may have no container status, but a reason of its own.
        last_exit_reason=ended.get("reason") or status.get("reason"),
        restarts=main.get("restartCount", 0),
        deleting="deletionTimestamp" in metadata,
        node=pod["spec"].get("nodeName"),
        created=_time(metadata.get("creationTimestamp")),
        finished=_time(terminated.get("finishedAt")),
        message=terminated.get("message", ""),
        ports=frozenset(port["name"] for port in pod["spec"]["containers"][0].get("ports", []) if "name" in port),
    )


def job_state(job: Manifest) -> JobState:
    """Return the state of a Job."""
    metadata, status = job["metadata"], job.get("status", {})
    conditions = status.get("conditions", [])
    true = {condition["type"]: condition for condition in conditions if condition["status"] == "True"}
    ended: Manifest = true.get("Complete") or true.get("Failed") or {}
    created = _time(metadata["creationTimestamp"])
    assert created is not None
    return JobState(
        name=metadata["name"],
        labels=metadata.get("labels", {}),
        annotations=metadata.get("annotations", {}),
        created=created,
        finished=_time(status.get("completionTime") or ended.get("lastTransitionTime")) if ended else None,
        succeeded="Complete" in true,
        failure=true.get("Failed", {}).get("reason", ""),
        deleting="deletionTimestamp" in metadata,
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def stateful_set_state(manifest: Manifest) -> StatefulSetState:
    """Return the state of a StatefulSet, with its manifest without status and managed fields."""
    metadata, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status", {})
    kept = {key: value for key, value in metadata.items() if key != "managedFields"}
    annotations = spec["template"].get("metadata", {}).get("annotations", {})
    return StatefulSetState(
        name=metadata["name"],
        template_hash=annotations.get(names.TEMPLATE_HASH),
        replicas=spec.get("replicas", 1),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        current_revision=status.get("currentRevision", ""),
        update_revision=status.get("updateRevision", ""),
        partition=spec.get("updateStrategy", {}).get("rollingUpdate", {}).get("partition", 0),
        generation_observed=status.get("observedGeneration", 0) >= metadata.get("generation", 0),
        manifest={
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": kept,
            "spec": spec,
        },
    )


_READERS: Mapping[str, Callable[[Manifest], PodState | StatefulSetState | JobState]] = {
    "Pod": pod_state,
    "StatefulSet": stateful_set_state,
    "Job": job_state,
}
