"""Rules for when a table is due under a policy. Pure.

- A request (annotation ``firn.dev/run-now``) is due at once, whatever triggers, windows and earlier failures say. If a
  run for it fails, it is retried like any other run.
- A slot of the schedule stays due until a run has answered it. One run answers all missed slots. Slots that were
  past when policy or schedule took the topic over are ignored
  (`firn_controllers.policies.runs.RunHistory.governed_by`).
- Triggers wait for ``minInterval`` from the end of the last run.
- After a failure all of these wait, each time twice as long, until the policy's spec changes.
- The rest of an unfinished run waits only for a policy of the other kind, which may need the table, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from firn_controllers.policies.runs import RunHistory
from firn_controllers.ports import TableDebt
from firn_controllers.specs.terms import PolicyTerms, TriggerTerms

FIRST_RETRY = timedelta(minutes=1)
LONGEST_RETRY = timedelta(hours=6)
BUSY_RETRY = timedelta(seconds=30)
"""Pause while another run holds the table's lease, perhaps a run of a process that ended."""
TURN = timedelta(seconds=15)
"""Time for which the table stays free after an unfinished run.

A policy that waits for the table checks more often than that (`firn_controllers.reconcilers.policy.reconciler.BLOCKED`).
Otherwise a run that never finishes would keep the table.
"""
_PAUSES = {"Busy": BUSY_RETRY, "Unfinished": TURN}


@dataclass(frozen=True, slots=True)
class Due:
    """A due run: since when, and why."""

    since: datetime
    why: str
    slot: datetime | None = None
    requests: Mapping[str, str] = field(default_factory=dict)

    @property
    def everything(self) -> bool:
        """True if the run is due by schedule or by request. Sort and ZOrder then rewrite all files."""
        return self.slot is not None or bool(self.requests)


@dataclass(frozen=True, slots=True)
class TableDecision:
    """The run that is ``due`` now, or the earliest time of the ``next`` one."""

    due: Due | None = None
    next: datetime | None = None


def decide_table(
    terms: PolicyTerms,
    now: datetime,
    *,
    history: RunHistory,
    generation: int,
    debt: TableDebt | None,
    requests: Mapping[str, str],
) -> TableDecision:
    """Return when a table is due.

    ``generation`` is that of the policy's spec. ``requests`` are the values of ``run-now`` of topic and policy.
    """
    if terms.idle or terms.suspended:
        return TableDecision()
    asked = {source: value for source, value in requests.items() if value != history.requests.get(source)}
    slot = _unanswered_slot(terms, history, now)
    free = history.finished + _PAUSES.get(history.result or "", timedelta()) if history.finished is not None else now
    ready = max(free, _retry(history, generation, now))
    next_slot = terms.windows.first(max(ready, terms.slots.next(now))) if terms.slots is not None else None
    new = any(value != history.failed.get(source) for source, value in asked.items())
    if asked and (new or ready <= now):
        if now < free:
            return TableDecision(next=free)
        return TableDecision(Due(now, "a run was requested", slot, asked), next_slot)
    by_schedule = None
    if slot is not None and terms.slots is not None:
        by_schedule = Due(terms.slots.due(slot), "the schedule is due", slot)
    by_debt, debt_time = _due_by_debt(terms, history, debt, ready, now)
    reasons = [due for due in (by_schedule, by_debt) if due is not None]
    times = [time for time in (next_slot, ready if asked else None, debt_time) if time is not None]
    opened = terms.windows.opened(now)
    if reasons and ready <= now and opened is not None:
        first = min(reasons, key=lambda due: due.since)
        return TableDecision(Due(max(first.since, opened), first.why, slot), min(times, default=None))
    if reasons:
        times.append(terms.windows.first(max(ready, now)))
    return TableDecision(next=min(times, default=None))


def _unanswered_slot(terms: PolicyTerms, history: RunHistory, now: datetime) -> datetime | None:
    """Return the newest slot of the schedule, unless a run has answered it or it was past when the schedule took the
    topic over.
    """
    slot = terms.slots.last(now) if terms.slots is not None else None
    return slot if slot is not None and history.slot is not None and slot > history.slot else None


def _due_by_debt(
    terms: PolicyTerms, history: RunHistory, debt: TableDebt | None, ready: datetime, now: datetime
) -> tuple[Due | None, datetime | None]:
    """Return whether triggers make the table due now, or else when they may."""
    triggers = terms.triggers
    if triggers is None or debt is None:
        return None, None
    rested = ready
    if history.finished is not None and history.result != "Unfinished":
        rested = max(ready, history.finished + triggers.min_interval)
    due = _triggered(triggers, debt, now)
    if due is not None:
        return (due, None) if rested <= now else (None, terms.windows.first(rested))
    if debt.oldest_due is not None and triggers.max_age is not None:
        return None, terms.windows.first(max(rested, debt.oldest_due + triggers.max_age))
    return None, None


def _retry(history: RunHistory, generation: int, now: datetime) -> datetime:
    if not history.failures or history.finished is None or history.result == "Unfinished":
        return now
    if history.generation != generation:
        return now
    pause = FIRST_RETRY * (1 << min(history.failures - 1, 16))
    return history.finished + min(pause, LONGEST_RETRY)


def _triggered(triggers: TriggerTerms, debt: TableDebt, now: datetime) -> Due | None:
    if not debt.due_files:
        return None
    if triggers.max_age is not None and debt.oldest_due is not None and debt.oldest_due + triggers.max_age <= now:
        return Due(debt.oldest_due + triggers.max_age, "a file waits for longer than triggers.maxAge")
    if triggers.small_files is not None and debt.due_files >= triggers.small_files:
        return Due(now, "as many small files as triggers.smallFiles wait")
    if triggers.small_bytes is not None and debt.due_bytes >= triggers.small_bytes:
        return Due(now, "as many bytes as triggers.smallBytes wait in small files")
    if triggers.deletes and debt.due_for_deletes:
        return Due(now, "deleted rows have reached triggers.deleteFileRatio")
    return None
