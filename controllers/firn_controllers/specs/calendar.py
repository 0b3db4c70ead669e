"""The times in a policy: slots of its schedule, with time zone and jitter, and windows in which runs may start.

When clocks change, a slot is where Debian's cron has it (library cronsim). A slot that the clock skips comes right
after; a slot that the clock shows twice comes once.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from firn.api.v1alpha1.policy import Schedule, Window
from firn.model import durations
from firn.model.errors import InvalidSpecError

_SLOTS_KEPT = 4096


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A cron expression in a time zone. `parse` checks it."""

    expression: str
    zone: ZoneInfo

    @classmethod
    def parse(cls, expression: str, time_zone: str, field: str) -> "CronExpression":
        """Parse and check an expression. Raises InvalidSpecError that names the part of ``field``."""
        try:
            zone = ZoneInfo(time_zone)
        except (OSError, ValueError, KeyError) as error:
            message = f"{field}.timeZone: {time_zone!r} is not a time zone of the IANA database; use one such as Europe/Berlin"
            raise InvalidSpecError(message) from error
        words = " ".join(expression.split())
        try:
            next(CronSim(words, datetime(2000, 1, 1, tzinfo=UTC)))
        except CronSimError as error:
            raise InvalidSpecError(
                f"{field}.cron: {expression!r}: {error}; write minute (0-59), hour (0-23), day of month (1-31), month (1-12) and day of week"
                " (0-7), such as '0 3 * * *'"
            ) from error
        except StopIteration as error:
            raise InvalidSpecError(
                f"{field}.cron: {expression!r} matches no date; correct the day or the month"
            ) from error
        return cls(words, zone)

    @property
    def text(self) -> str:
        """Expression and zone, on which the slots depend."""
        return f"{self.expression} {self.zone.key}"

    def last(self, at: datetime) -> datetime:
        """Return the newest slot that is not after ``at``, in UTC."""
        return _last(self.expression, self.zone, at.astimezone(UTC).replace(second=0, microsecond=0))

    def next(self, at: datetime) -> datetime:
        """Return the oldest slot after ``at``, in UTC."""
        return _next(self.expression, self.zone, at.astimezone(UTC).replace(second=0, microsecond=0))


# Slots are whole minutes, so all moments of a minute have the same neighbours. A policy asks for them once for each of
# its topics, and each answer takes a tenth of a millisecond.


@lru_cache(_SLOTS_KEPT)
def _last(expression: str, zone: ZoneInfo, minute: datetime) -> datetime:
    # cronsim excludes the given time.
    given = minute.astimezone(zone) + timedelta(seconds=1)
    return next(CronSim(expression, given, reverse=True)).astimezone(UTC)


@lru_cache(_SLOTS_KEPT)
def _next(expression: str, zone: ZoneInfo, minute: datetime) -> datetime:
    return next(CronSim(expression, minute.astimezone(zone))).astimezone(UTC)


@dataclass(frozen=True, slots=True)
class Slots:
    """Slots of a schedule. Each is due a share of ``jitter`` later, which depends only on slot and ``seed``."""

    cron: CronExpression
    jitter: timedelta
    seed: str

    @classmethod
    def parse(cls, schedule: Schedule, seed: str) -> "Slots":
        """Parse the times of a policy. Raises InvalidSpecError that names the field."""
        jitter = durations.parse(schedule.jitter) if schedule.jitter else timedelta()
        return cls(CronExpression.parse(schedule.cron, schedule.time_zone, "spec.schedule"), jitter, seed)

    def due(self, slot: datetime) -> datetime:
        """Return when runs of this slot start."""
        text = f"{self.seed} {slot.timestamp():.0f}"
        share = int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48
        return slot + timedelta(seconds=int(self.jitter.total_seconds() * share))

    def last(self, now: datetime) -> datetime:
        """Return the newest slot that is due."""
        slot = self.cron.last(now)
        return slot if self.due(slot) <= now else self.cron.last(slot - timedelta(seconds=1))

    def next(self, now: datetime) -> datetime:
        """Return when the next slot will be due."""
        slot = self.cron.last(now)
        return self.due(slot) if self.due(slot) > now else self.due(self.cron.next(now))


@dataclass(frozen=True, slots=True)
class Opening:
    """A window in which runs may start."""

    cron: CronExpression
    duration: timedelta


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows in which runs may start. Without windows runs may start at any time."""

    openings: tuple[Opening, ...] = ()

    @classmethod
    def parse(cls, windows: tuple[Window, ...]) -> "Windows":
        """Parse the times of a policy. Raises InvalidSpecError that names the field."""
        return cls(
            tuple(
                Opening(
                    CronExpression.parse(window.cron, window.time_zone, f"spec.windows[{number}]"),
                    durations.parse(window.duration),
                )
                for number, window in enumerate(windows)
            )
        )

    def opened(self, now: datetime) -> datetime | None:
        """Return since when runs may start, or None while they may not."""
        if not self.openings:
            return datetime.min.replace(tzinfo=UTC)
        since = [slot for window in self.openings if now < (slot := window.cron.last(now)) + window.duration]
        return min(since, default=None)

    def first(self, at: datetime) -> datetime:
        """Return the first time, from ``at`` on, at which runs may start."""
        if self.opened(at) is not None:
            return at
        return min(window.cron.next(at) for window in self.openings)
