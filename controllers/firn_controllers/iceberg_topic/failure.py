"""The refusal of a spec, and the checks that refuse."""

from collections.abc import Callable
from dataclasses import dataclass

from firn.model.conditions import Reason
from firn_controllers.iceberg_topic.observed import ObservedTopic


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a spec is refused: a reason of SpecValid False, and a message that names the field and the next
    step.
    """

    reason: Reason
    message: str
    owner: str = ""
    """Message that names the IcebergTopic of another namespace: for the operator's log and ``firn plan``, not for a status."""


Check = Callable[[ObservedTopic], Failure | None]
