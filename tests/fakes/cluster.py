"""Port `Cluster` in memory: objects, resource versions, finalizers, and StatefulSets whose pods a test starts and
ends."""

import copy
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from firn.model import names
from firn.model.errors import CommitConflictError, ConflictError, InvalidSpecError, UnavailableError
from firn_controllers.ports import JobState, Manifest, PodState, StatefulSetState
from firn_operator.adapters.kube.workloads import job_state
from firn_operator.cli.resources.manifests import merged, three_way
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Faults, effect
from tests.gen import pod, topic
from tests.listed_messages import check_listed

Place = tuple[str, str, str, str]
KIND = "IcebergTopic"


class FakeCluster:
    """The cluster in memory. It calls ``watch`` for each change of a Firn resource or a Job, with ``("seen" |
    "gone", manifest)``."""

    def __init__(self, faults: Faults | None = None, clock: FakeClock | None = None) -> None:
        self.faults = faults or Faults()
        self.clock = clock or FakeClock()
        self.objects: dict[Place, Manifest] = {}
        self.pod_states: dict[str, PodState] = {}
        self.events: list[tuple[str, str, str]] = []
        self.watch: list[Callable[[str, Manifest], None]] = []
        self.rivals: dict[str, str] = {}
        """Namespace of resources -> namespace of another release that has claimed it."""
        self.broken_images: set[str] = set()
        """Pods of a template with one of these images never become ready: their container fails repeatedly."""
        self.refused_topics: dict[str, str] = {}
        """Name of an IcebergTopic that the API server refuses -> its cause."""
        self.keys = '{"keys": [{"kid": "one", "kty": "RSA"}]}'
        """The public keys of the tokens of ServiceAccounts."""
        self.logs: dict[str, str] = {}
        """Pod -> what it has logged."""
        self._set_applied: dict[Place, Manifest] = {}
        """IcebergTopic -> fields that a TopicSet last applied."""
        self._created: Counter[Place] = Counter()
        self._applied: dict[Place, Manifest] = {}
        """Content of each object after its last apply."""
        self._version = 100
        self._rolled_out: dict[str, str] = {}
        """StatefulSet -> hash of the last template with which all its pods were ready."""

    # The port

    async def apply(self, manifest: Manifest, *, always: bool = False) -> bool:
        place = _place(manifest)
        live = self.objects.get(place)
        hash_ = manifest["metadata"]["annotations"][names.TEMPLATE_HASH]
        same = live is not None and live["metadata"]["annotations"].get(names.TEMPLATE_HASH) == hash_
        if (
            live is not None
            and same
            and (place[1] == "Job" or self._applied.get(place) == _content(live))
            and not always
        ):
            return False
        await self._write(manifest, live)
        return True

    @effect
    async def _write(self, manifest: Manifest, live: Manifest | None) -> None:
        place = _place(manifest)
        new = copy.deepcopy(manifest)
        new["metadata"]["uid"] = live["metadata"]["uid"] if live else f"uid-{place[3]}"
        new["metadata"]["resourceVersion"] = self._next()
        if place[1] == "Job":
            new["metadata"]["creationTimestamp"] = (
                (live or {}).get("metadata", {}).get("creationTimestamp", time_text(self.clock.now()))
            )
        if live is not None and "status" in live:
            new["status"] = live["status"]
        self.objects[place] = new
        self._applied[place] = _content(new)
        self.faults.log.append(f"apply {place[1]} {place[3]}")

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Manifest | None:
        return copy.deepcopy(self.objects.get((api_version, kind, namespace, name)))

    @effect
    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        live = self.objects.pop((api_version, kind, namespace, name), None)
        if live is not None:
            self.faults.log.append(f"delete {kind} {name}")
            if kind == "Job":
                self.drop_job(live)
            if api_version == names.API_VERSION:
                for watch in self.watch:
                    watch("gone", live)
            for state in [state for state in self.pod_states.values() if state.name.rsplit("-", 1)[0] == name]:
                self.pod_states[state.name] = replace(state, deleting=True)

    async def token_keys(self) -> str:
        return self.keys

    async def stateful_set(self, name: str) -> StatefulSetState | None:
        live = next(
            (live for place, live in self.objects.items() if place[1] == "StatefulSet" and place[3] == name), None
        )
        if live is None:
            return None
        spec = live["spec"]
        pods = [state for state in self.pod_states.values() if state.name.rsplit("-", 1)[0] == name]
        hash_ = _template_hash(live)
        return StatefulSetState(
            name=name,
            template_hash=hash_,
            replicas=spec["replicas"],
            ready=sum(state.ready for state in pods),
            updated=sum(state.template_hash == hash_ for state in pods),
            current_revision=self._rolled_out.get(name, hash_),
            update_revision=hash_,
            partition=spec["updateStrategy"].get("rollingUpdate", {}).get("partition", 0),
            generation_observed=True,
            manifest=copy.deepcopy(live),
        )

    async def pods(self, labels: Mapping[str, str]) -> Sequence[PodState]:
        return [state for state in self.pod_states.values() if labels.items() <= state.labels.items()]

    async def pod_log(self, name: str, seconds: int) -> str:
        if name not in self.pod_states:
            raise UnavailableError(f"pod {name} not found")
        return self.logs.get(name, "")

    async def jobs(self, labels: Mapping[str, str]) -> Sequence[JobState]:
        jobs = [live for place, live in sorted(self.objects.items()) if place[1] == "Job"]
        return [job_state(job) for job in jobs if labels.items() <= job["metadata"]["labels"].items()]

    async def list_names(self, api_version: str, kind: str, labels: Mapping[str, str]) -> Sequence[str]:
        return [
            place[3]
            for place, live in self.objects.items()
            if place[:2] == (api_version, kind) and labels.items() <= (live["metadata"].get("labels") or {}).items()
        ]

    @effect
    async def patch_status(
        self, namespace: str, name: str, status: Manifest, resource_version: str, kind: str = KIND
    ) -> Manifest | None:
        for condition in status.get("conditions", ()):
            check_listed(condition["message"])
        live = self._checked(namespace, name, resource_version, kind)
        if live is None:
            return None
        live["status"] = json.loads(json.dumps(status))
        self.faults.log.append(f"status {name}")
        return self._changed(live)

    @effect
    async def apply_topic(self, manifest: Manifest, *, create: bool) -> Manifest:
        place, metadata = _place(manifest), manifest["metadata"]
        live = self.objects.get(place)
        if (create and live is not None) or (
            not create and (live or {"metadata": {}})["metadata"].get("uid") != metadata["uid"]
        ):
            raise ConflictError(f"IcebergTopic {place[3]} exists already")
        if place[3] in self.refused_topics:
            raise InvalidSpecError(f"the API server refuses IcebergTopic {place[3]}: {self.refused_topics[place[3]]}")
        wanted = {"metadata": {key: metadata[key] for key in ("labels", "annotations")}, "spec": manifest["spec"]}
        if live is None:
            self._created[place] += 1
            live = topic(place[3], namespace=place[2])
            live["metadata"]["uid"] += f"-{self._created[place]}" if self._created[place] > 1 else ""
            live["metadata"]["creationTimestamp"] = time_text(self.clock.now())
            live["spec"] = {}
            live["metadata"]["generation"] = 0
        before = {"metadata": live["metadata"], "spec": live["spec"]}
        changed = merged(before, three_way(self._set_applied.get(place, {}), wanted, before))
        live["metadata"]["generation"] += changed["spec"] != live["spec"]
        live["metadata"] |= {key: changed["metadata"][key] for key in ("labels", "annotations")}
        live["spec"] = changed["spec"]
        if "ownerReferences" in metadata:
            live["metadata"]["ownerReferences"] = metadata["ownerReferences"]
        self._set_applied[place] = copy.deepcopy(wanted)
        self.objects[place] = live
        self.faults.log.append(f"apply IcebergTopic {place[3]}")
        return self._changed(live)

    @effect
    async def delete_topic(self, namespace: str, name: str, uid: str) -> None:
        place = (names.API_VERSION, KIND, namespace, name)
        live = self.objects.get(place)
        if live is None or live["metadata"]["uid"] != uid:
            return
        self._set_applied.pop(place, None)
        self.faults.log.append(f"delete IcebergTopic {name}")
        if live["metadata"].get("finalizers"):
            live["metadata"]["deletionTimestamp"] = time_text(self.clock.now())
            self._changed(live)
        else:
            self._remove(live)

    @effect
    async def set_finalizers(
        self, namespace: str, name: str, finalizers: Sequence[str], resource_version: str, kind: str = KIND
    ) -> Manifest | None:
        live = self._checked(namespace, name, resource_version, kind)
        if live is None:
            return None
        live["metadata"]["finalizers"] = list(finalizers)
        self.faults.log.append(f"finalizers {name} {list(finalizers)}")
        if not finalizers and "deletionTimestamp" in live["metadata"]:
            self._remove(live)
            return None
        return self._changed(live)

    async def rival(self, namespace: str) -> str | None:
        return self.rivals.get(namespace)

    async def event(
        self, namespace: str, name: str, uid: str, kind: str, type_: str, reason: str, message: str
    ) -> None:
        check_listed(message)
        self.events.append((name, reason, message))

    # What users do

    def create(self, manifest: Manifest) -> None:
        """Create an object, as kubectl create does."""
        live = copy.deepcopy(manifest)
        self.objects[_place(live)] = live
        self._changed(live)

    def edit(
        self,
        name: str,
        change: Callable[[Manifest], Any],
        namespace: str = "demo",
        *,
        spec: bool = True,
        kind: str = KIND,
    ) -> None:
        """Edit an object, as kubectl edit does, or kubectl annotate with ``spec=False``."""
        live = self.resource(kind, name, namespace)
        change(live)
        if spec:
            live["metadata"]["generation"] += 1
        self._changed(live)

    def remove(self, name: str, namespace: str = "demo", kind: str = KIND) -> None:
        """Delete an object, as kubectl delete does."""
        live = self.resource(kind, name, namespace)
        if live["metadata"].get("finalizers"):
            live["metadata"]["deletionTimestamp"] = "2026-03-01T12:00:00Z"
            live["metadata"]["generation"] += 1
            self._changed(live)
        else:
            self._remove(live)

    def resource(self, kind: str, name: str, namespace: str = "demo") -> Manifest:
        """Return a live resource, not a copy."""
        return self.objects[(names.API_VERSION, kind, namespace, name)]

    def topic(self, name: str, namespace: str = "demo") -> Manifest:
        """Return the live IcebergTopic, not a copy."""
        return self.resource(KIND, name, namespace)

    def all(self, kind: str) -> list[Manifest]:
        """Return copies of all live objects of a kind."""
        return [copy.deepcopy(live) for place, live in self.objects.items() if place[1] == kind]

    def topics(self) -> list[Manifest]:
        """Return copies of all live IcebergTopics."""
        return self.all(KIND)

    def contracts(self) -> dict[str, Manifest]:
        """Return the job contracts by uid."""
        prefix = names.job("")
        return {
            place[3].removeprefix(prefix): live for place, live in self.objects.items() if place[3].startswith(prefix)
        }

    # What Kubernetes does

    def run_pods(self) -> None:
        """Do one step of the StatefulSet controller and the kubelet.

        Missing pods start and are ready at once, one pod of an old template is replaced, and deleted pods end."""
        for ending in [state.name for state in self.pod_states.values() if state.deleting]:
            del self.pod_states[ending]
        for place, live in list(self.objects.items()):
            if place[1] != "StatefulSet":
                continue
            name, spec = place[3], live["spec"]
            labels, hash_ = spec["template"]["metadata"]["labels"], _template_hash(live)
            partition = spec["updateStrategy"].get("rollingUpdate", {}).get("partition", 0)
            wanted = {f"{name}-{number}" for number in range(spec["replicas"])}
            for gone in [
                pod_name
                for pod_name in self.pod_states
                if pod_name.rsplit("-", 1)[0] == name and pod_name not in wanted
            ]:
                del self.pod_states[gone]
            for number in range(spec["replicas"]):
                self.pod_states.setdefault(f"{name}-{number}", self._made(f"{name}-{number}", labels, live))
            for number in reversed(range(partition, spec["replicas"])):
                old = self.pod_states[f"{name}-{number}"]
                if old.template_hash != hash_:
                    self.pod_states[old.name] = self._made(old.name, labels, live)
                    break
            mine = [self.pod_states[pod_name] for pod_name in wanted]
            if all(state.ready and state.template_hash == hash_ for state in mine):
                self._rolled_out[name] = hash_

    def _made(self, name: str, labels: Mapping[str, str], live: Manifest) -> PodState:
        hash_ = _template_hash(live)
        container = live["spec"]["template"]["spec"]["containers"][0]
        image, ports = container["image"], frozenset(port["name"] for port in container.get("ports", []))
        if image in self.broken_images:
            trouble = {"waiting_reason": "CrashLoopBackOff", "last_exit_code": 1, "last_exit_reason": "Error"}
            return pod(
                name, labels=labels, template_hash=hash_, ready=False, running=False, restarts=2, ports=ports, **trouble
            )
        return pod(name, labels=labels, template_hash=hash_, ports=ports)

    def end_job(
        self, name: str, message: str | None = "", *, failure: str = "", exit_code: int = 0, attempt: int = 0
    ) -> None:
        """End a Job and its pod with this termination message (None: the pod is gone). ``failure`` is why the Job
        failed."""
        live = next(job for place, job in self.objects.items() if place[1] == "Job" and place[3] == name)
        now = self.clock.now()
        if message is not None:
            labels = live["spec"]["template"]["metadata"]["labels"]
            ended = pod(
                f"{name}-{attempt}",
                labels=labels,
                ready=False,
                running=False,
                phase="Failed" if failure else "Succeeded",
            )
            self.pod_states[ended.name] = replace(
                ended, created=now, finished=now, message=message, last_exit_code=exit_code
            )
        condition = {
            "type": "Failed" if failure else "Complete",
            "status": "True",
            "lastTransitionTime": time_text(now),
        }
        live["status"] = {"conditions": [condition | ({"reason": failure} if failure else {})]}
        self._changed(live)

    def drop_job(self, live: Manifest) -> None:
        """Remove a Job and its pods, and report it to the watch."""
        name = live["metadata"]["name"]
        self.objects.pop(_place(live), None)
        for gone in [state for state in self.pod_states.values() if state.labels.get(names.LABEL_RUN) == name]:
            del self.pod_states[gone.name]
        for callback in self.watch:
            callback("gone", copy.deepcopy(live))

    def _checked(self, namespace: str, name: str, resource_version: str, kind: str = KIND) -> Manifest | None:
        live = self.objects.get((names.API_VERSION, kind, namespace, name))
        if live is not None and live["metadata"]["resourceVersion"] != resource_version:
            raise CommitConflictError(f"{kind} {namespace}/{name} has moved on")
        return live

    def _changed(self, live: Manifest) -> Manifest:
        live["metadata"]["resourceVersion"] = self._next()
        for callback in self.watch:
            callback("seen", copy.deepcopy(live))
        return copy.deepcopy(live)

    def _remove(self, live: Manifest) -> None:
        del self.objects[_place(live)]
        for callback in self.watch:
            callback("gone", copy.deepcopy(live))

    def _next(self) -> str:
        self._version += 1
        return str(self._version)


def _place(manifest: Manifest) -> Place:
    metadata = manifest["metadata"]
    return (manifest["apiVersion"], manifest["kind"], metadata["namespace"], metadata["name"])


def _content(live: Manifest) -> Manifest:
    """Return a copy of what an apply sets: everything except metadata and status."""
    return copy.deepcopy({key: value for key, value in live.items() if key not in ("metadata", "status")})


def time_text(moment: datetime) -> str:
    """Return a time as Kubernetes writes it."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _template_hash(live: Manifest) -> str:
    text: str = live["spec"]["template"]["metadata"]["annotations"][names.TEMPLATE_HASH]
    return text
