"""Decides when drivers restart: which members of the configuration each driver has, and which group restarts now. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from firn.model.jobs import GroupSettings
from firn_controllers.cache.contracts import Need
from firn_controllers.ingestion_group.needs import UNUSED_SECONDS, of_settings

PATIENCE = 300.0
"""Most seconds for which other groups wait until the restarted driver of a group answers."""


@dataclass(slots=True)
class Members:
    """The members of the configuration that the driver of a group has."""

    settings: GroupSettings | None = None
    """The settings that the driver starts with; None if it has none yet."""
    unused: dict[Need, float] = field(default_factory=dict)
    """Since when no topic uses a member, in monotonic seconds."""

    def choose(self, needed: frozenset[Need], now: float, *, runs: bool, complete: bool) -> frozenset[Need]:
        """Return the members that the driver gets.

        A driver that ``runs`` keeps unused members for a while, and all of them until ``needed`` is ``complete``.
        """
        present = of_settings(self.settings) if self.settings is not None and runs else frozenset()
        idle = present - needed
        self.unused = {need: self.unused.get(need, now) for need in idle}
        kept = {need for need, since in self.unused.items() if not complete or now - since < UNUSED_SECONDS}
        return needed | kept

    def reconnects(self, wanted: GroupSettings) -> bool:
        """Return whether the driver has to reach brokers in another way, so that its topics may stand still until it restarts."""
        before: Mapping[str, object] = self.settings.kafka if self.settings is not None else {}
        return any(before[name] != wanted.kafka[name] for name in before.keys() & wanted.kafka.keys())


@dataclass(slots=True)
class Turn:
    """The turn to restart a driver. One group has it at a time, so that a change of many groups does not stop all of them at once."""

    group: str = ""
    until: float = 0.0
    """Monotonic time at which the turn ends, also if the driver does not answer."""

    def take(self, group: str, now: float) -> bool:
        """Give the turn to ``group``. Return False if another group has it."""
        if self.group not in ("", group) and now < self.until:
            return False
        if self.group != group:
            self.group, self.until = group, now + PATIENCE
        return True

    def end(self, group: str) -> None:
        """End the turn of ``group``, whose driver answers."""
        if self.group == group:
            self.group = ""
