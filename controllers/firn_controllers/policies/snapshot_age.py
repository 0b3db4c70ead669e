"""The time for which ingestion keeps snapshots in a table's metadata, given the policies of the topic."""

from firn.api.v1alpha1 import RetentionPolicy
from firn.model import durations
from firn_controllers.policies.outcome import TopicMaintenance


def keep_snapshots_ms(maintenance: TopicMaintenance, configured: str) -> int | None:
    """Return the time in milliseconds; None if ingestion removes no snapshots.

    ``configured`` is ``keepSnapshots`` of the topic's group. A run, also that of a replay, needs the snapshot from which
    it planned until its deadline. Runs of a policy that enforces ``snapshots`` delete the files of the snapshots that they expire. If
    ingestion came first, only orphan removal would find these files. A policy that cannot be followed may be such a
    policy.
    """
    keep = max(durations.milliseconds(configured), maintenance.replay_ms)
    if maintenance.bindings.get("RetentionPolicy") is None:
        return None
    for binding in maintenance.bindings.values():
        entry = binding.resolution.policy
        if entry is None and binding.resolution.reason is None:
            continue
        policy = entry.resource if entry is not None and binding.resolution.followed else None
        if policy is None:
            return None
        keep = max(keep, durations.milliseconds(policy.spec.run.deadline))
        if isinstance(policy, RetentionPolicy) and policy.spec.snapshots is not None:
            if policy.enforced and not policy.spec.suspend:
                return None
            keep = max(keep, durations.milliseconds(policy.spec.snapshots.max_age))
    return keep
