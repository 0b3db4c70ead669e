"""The configs of a Kafka topic that a RetentionPolicy's ``log`` sets, and what a dry run proposes.

The topic's own ``spec.config`` takes precedence. A lower retention deletes records and a higher one keeps them. So
while the policy cannot be followed, is suspended or is a dry run, the configs that it set before stay.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from firn.api.v1alpha1 import RetentionPolicy
from firn.api.v1alpha1.retention_policy import LogRetention as LogPart
from firn.model import durations, quantities
from firn_controllers.policies.outcome import TopicMaintenance

AGE, BYTES = "retention.ms", "retention.bytes"


@dataclass(frozen=True, slots=True)
class LogRetention:
    """The configs that the policy asks for."""

    configs: Mapping[str, str] = field(default_factory=dict)
    """Configs to set on the broker, unless ``spec.config`` sets them."""
    proposed: Mapping[str, str] = field(default_factory=dict)
    """Configs that the policy would set if it were enforced."""
    held: bool = False
    """True if configs that the policy set before stay."""

    def over(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return the configs in force: those of the spec, and the policy's where the spec has none."""
        return {**self.configs, **config}

    def owned(self, config: Mapping[str, str], before: frozenset[str]) -> frozenset[str]:
        """Return the names of the configs that the policy has set on the broker, given those of ``before``."""
        return (before if self.held else frozenset(self.configs)) - config.keys()

    def proposal(self, config: Mapping[str, str], live: Mapping[str, str]) -> str:
        """Describe the configs that differ from the ``live`` ones; empty if none does."""
        differing = [
            f"{key} {value} ({'now ' + live[key] if key in live else 'not set now'})"
            for key, value in sorted(self.proposed.items())
            if key not in config and live.get(key) != value
        ]
        return " and ".join(differing)


def configs_of(log: LogPart) -> dict[str, str]:
    """Return the topic configs for the log of a RetentionPolicy."""
    wanted = {}
    if log.max_age is not None:
        wanted[AGE] = str(durations.milliseconds(log.max_age))
    if log.max_bytes is not None:
        wanted[BYTES] = str(quantities.size(log.max_bytes))
    return wanted


def log_retention(maintenance: TopicMaintenance) -> LogRetention:
    """Return the configs that the governing RetentionPolicy asks for."""
    binding = maintenance.bindings.get("RetentionPolicy")
    if binding is None or binding.resolution.reason is not None:
        return LogRetention(held=True)
    policy = binding.resolution.policy
    if policy is None or not isinstance(policy.resource, RetentionPolicy):
        return LogRetention()
    spec = policy.resource.spec
    if spec.log is None:
        return LogRetention()
    wanted = configs_of(spec.log)
    if not policy.resource.enforced:
        return LogRetention(proposed=wanted, held=True)
    return LogRetention(held=True) if spec.suspend else LogRetention(configs=wanted)
