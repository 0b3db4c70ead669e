"""Reasons why pods do not run, in texts that stay the same while the cause does.

Messages of kubelet and scheduler contain back-off times, counts and uids. A condition that repeated them would change
every few seconds. So they become one of a closed set of troubles, and a message made of names only.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import ExitCode
from firn_controllers.ports import PodState

IMAGE_REASONS = frozenset(
    {
        "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)  # fmt: skip
CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
OUT_OF_MEMORY_EXIT = 137
FAST_FAILURES = 5
"""Number of restarts without becoming ready from which waiting does not solve the failure."""

MORE_MEMORY = "raise the memory of its group or profile in the chart's values"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Reason why a pod is not ready. ``stalled``: a user has to act."""

    reason: Reason
    message: str
    stalled: bool = False


def pod_trouble(pod: PodState, image: str, namespace: str) -> Trouble | None:
    """Return why ``pod`` is not ready. None if it is ready, starting or being deleted."""
    if pod.ready or pod.deleting:
        return None
    pending = _pending(pod, image, f"pod {pod.name}", f"kubectl -n {namespace} describe pod {pod.name}")
    if pending is not None:
        return pending
    logs = f"see kubectl -n {namespace} logs {pod.name} --previous"
    stalled = pod.restarts >= FAST_FAILURES
    match pod.last_exit_code, pod.last_exit_reason:
        case _, "OOMKilled":
            return Trouble(
                Reason.OUT_OF_MEMORY, f"pod {pod.name} ran out of memory and was killed; {MORE_MEMORY}", stalled
            )
        case code, _ if code == OUT_OF_MEMORY_EXIT:
            return Trouble(
                Reason.OUT_OF_MEMORY,
                f"pod {pod.name} was killed, probably because it ran out of memory; {MORE_MEMORY}",
                stalled,
            )
        case ExitCode.OUT_OF_MEMORY, _:
            what = f"Spark's JVM in pod {pod.name} ran out of heap; raise heap and memory of its group in the chart's values by the same amount"
            return Trouble(Reason.OUT_OF_MEMORY, what, stalled)
        case ExitCode.CONFIGURATION, _:
            return Trouble(Reason.BACKING_OFF, f"pod {pod.name} rejected its configuration; {logs}", stalled=True)
        case ExitCode.CORRUPT, _:
            return Trouble(Reason.BACKING_OFF, f"pod {pod.name} read corrupt data; {logs}", stalled=True)
        case None, _:
            return None
        case ((0 | ExitCode.TEMPORARY), _) if pod.waiting_reason != "CrashLoopBackOff":
            return None
        case _:
            return Trouble(Reason.BACKING_OFF, f"pod {pod.name} keeps terminating; {logs}", stalled)


def _pending(pod: PodState, image: str, subject: str, command: str) -> Trouble | None:
    """Return why ``pod`` is not started. A message calls the pod ``subject`` and advises the command ``command``."""
    if pod.unschedulable is not None:
        causes = scheduler_causes(pod.unschedulable)
        return Trouble(Reason.UNSCHEDULABLE, f"no node can take {subject}: {causes}; see {command}")
    if pod.waiting_reason in IMAGE_REASONS:
        return Trouble(Reason.IMAGE_PULL_FAILED, f"image {image} of {subject} cannot be pulled; see {command}")
    if pod.waiting_reason in CONFIG_REASONS:
        return Trouble(
            Reason.BACKING_OFF,
            f"{subject} cannot start ({pod.waiting_reason}); a Secret or ConfigMap may be missing; see {command}",
            stalled=True,
        )
    return None


def executor_trouble(pods: Sequence[PodState], image: str, namespace: str, group: str) -> Trouble | None:
    """Return why none of a group's Spark executors runs, or None if one does.

    Spark creates pods with new names again and again, so no message contains a name. Spark deletes executors that
    terminate; the driver reports on those.
    """
    kept = sorted((pod for pod in pods if not pod.deleting), key=lambda pod: pod.name)
    if any(pod.running for pod in kept):
        return None
    labels = ",".join(f"{key}={value}" for key, value in (names.EXECUTOR_ROLE | {names.LABEL_GROUP: group}).items())
    command = f"kubectl -n {namespace} describe pods -l {labels}"
    troubles = (_pending(pod, image, "an executor pod", command) for pod in kept)
    return next(filter(None, troubles), Trouble(Reason.STARTING, "no executor runs yet"))


def worst_trouble(pods: Sequence[PodState], image: str, namespace: str) -> Trouble | None:
    """Return the trouble of the first pod, by name, that has one."""
    troubles = (pod_trouble(pod, image, namespace) for pod in sorted(pods, key=lambda pod: pod.name))
    return next((item for item in troubles if item is not None), None)


def scheduler_causes(message: str) -> str:
    """Return the causes in a scheduler's message without counts: ``0/3 nodes are available: 1 Insufficient memory,
    ...``.
    """
    _, _, causes = message.partition(": ")
    causes = (causes or message).split(". ")[0].rstrip(".")
    parts = {re.sub(r"^\d+ ", "", part.strip()) for part in causes.split(", ")}
    return ", ".join(sorted(parts))
