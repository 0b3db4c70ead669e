"""What a RetentionPolicy's ``log`` means for a Kafka topic: which configs are set on the broker, and what a dry run says of them.

The topic's own ``spec.config`` goes before the policy. Records are deleted by a lower retention and kept by a higher one, so nothing is
taken back on a doubt: where the policy cannot be followed, is suspended or only tries, what it set before stays as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from firn.api.v1alpha1 import RetentionPolicy
from firn.model import durations, quantities
from firn_controllers.policies.outcome import TopicMaintenance

AGE, BYTES = "retention.ms", "retention.bytes"


@dataclass(frozen=True, slots=True)
class LogRetention:
    """The policy's say in a topic's configs."""

    configs: Mapping[str, str] = field(default_factory=dict)
    """Set on the broker where ``spec.config`` says nothing of them."""
    proposed: Mapping[str, str] = field(default_factory=dict)
    """Would be, if the policy were enforced."""
    held: bool = False
    """What the policy set before stays."""

    def over(self, config: Mapping[str, str]) -> dict[str, str]:
        """The configs in force: those of the spec, and the policy's where it says nothing."""
        return {**self.configs, **config}

    def owned(self, config: Mapping[str, str], before: frozenset[str]) -> frozenset[str]:
        """Names of the configs that are on the broker for the policy's sake, given those that were ``before``."""
        return (before if self.held else frozenset(self.configs)) - config.keys()

    def proposal(self, config: Mapping[str, str], live: Mapping[str, str]) -> str:
        """What enforcing would change of the ``live`` configs; empty for nothing."""
        differing = [
            f"{key} {value} ({'now ' + live[key] if key in live else 'not set now'})"
            for key, value in sorted(self.proposed.items())
            if key not in config and live.get(key) != value
        ]
        return f"would set {' and '.join(differing)}" if differing else ""


def log_retention(maintenance: TopicMaintenance) -> LogRetention:
    """What the policy that governs has to say."""
    binding = maintenance.bindings.get("RetentionPolicy")
    if binding is None or binding.resolution.reason is not None:
        return LogRetention(held=True)
    policy = binding.resolution.policy
    if policy is None or not isinstance(policy.resource, RetentionPolicy):
        return LogRetention()
    spec = policy.resource.spec
    if spec.log is None:
        return LogRetention()
    wanted = {}
    if spec.log.max_age is not None:
        wanted[AGE] = str(durations.milliseconds(spec.log.max_age))
    if spec.log.max_bytes is not None:
        wanted[BYTES] = str(quantities.size(spec.log.max_bytes))
    if not policy.resource.enforced:
        return LogRetention(proposed=wanted, held=True)
    return LogRetention(held=True) if spec.suspend else LogRetention(configs=wanted)
