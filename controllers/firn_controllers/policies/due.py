"""When a table is due under a policy. Pure.

What a person asks for (annotation ``firn.dev/run-now``) is due at once, whatever triggers, windows and earlier failures say; after a run
for it that failed it is tried again like all else. A slot of the schedule stays due until a run has answered it: one that nobody was there
for is made up for, once. Slots that were past when policy or schedule took the topic over are nobody's
(`firn_controllers.policies.runs.History.under`). Triggers wait for ``minInterval`` from the end of the last run. After a failure, all of
them wait, each time twice as long, unless the policy is another one since. What a run left unfinished waits for nothing but the policy of
the other kind, which may want the table too.
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
"""Another run, perhaps of a process that is gone, has the table's lease."""
TURN = timedelta(seconds=15)
"""After a run that was left unfinished, the table is free for so long: who waits for it looks more often than that
(`firn_controllers.reconcilers.policy.BLOCKED`). Otherwise work that is never done would keep it for ever."""
_PAUSES = {"Busy": BUSY_RETRY, "Unfinished": TURN}


@dataclass(frozen=True, slots=True)
class Due:
    """A run is due: ``since`` when, as far as can be told, and why."""

    since: datetime
    why: str
    slot: datetime | None = None
    requests: Mapping[str, str] = field(default_factory=dict)

    @property
    def everything(self) -> bool:
        """By the schedule or on demand, not by a trigger: Sort and ZOrder take in all files."""
        return self.slot is not None or bool(self.requests)


@dataclass(frozen=True, slots=True)
class TableDecision:
    """``due`` now, or ``next`` at the earliest, as far as can be told."""

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
    """Whether a table is due. ``generation``: of the policy's spec; ``requests``: values of run-now of topic and policy."""
    if terms.idle or terms.suspended:
        return TableDecision()
    asked = {who: value for who, value in requests.items() if value != history.requests.get(who)}
    slot = terms.slots.last(now) if terms.slots is not None else None
    if slot is not None and (history.slot is None or slot <= history.slot):
        slot = None
    left = history.finished + _PAUSES.get(history.result or "", timedelta()) if history.finished is not None else now
    ready = max(left, _retry(history, generation, now))
    next_slot = terms.windows.first(max(ready, terms.slots.next(now))) if terms.slots is not None else None
    new = any(value != history.failed.get(who) for who, value in asked.items())
    if asked and (new or ready <= now):
        if now < left:
            return TableDecision(next=left)
        return TableDecision(Due(now, "a run was asked for", slot, asked), next_slot)
    found: list[Due] = []
    times = [] if next_slot is None else [next_slot]
    if asked:
        times.append(ready)
    if slot is not None:
        assert terms.slots is not None
        found.append(Due(terms.slots.due(slot), "the schedule is due", slot))
    if terms.triggers is not None and debt is not None:
        rested = ready
        if history.finished is not None and history.result != "Unfinished":
            rested = max(ready, history.finished + terms.triggers.min_interval)
        triggered = _triggered(terms.triggers, debt, now)
        if triggered is not None and rested <= now:
            found.append(triggered)
        elif triggered is not None:
            times.append(terms.windows.first(rested))
        elif debt.oldest_due is not None and terms.triggers.max_age is not None:
            times.append(terms.windows.first(max(rested, debt.oldest_due + terms.triggers.max_age)))
    opened = terms.windows.opened(now)
    if found and ready <= now and opened is not None:
        first = min(found, key=lambda due: due.since)
        return TableDecision(Due(max(first.since, opened), first.why, slot), min(times, default=None))
    if found:
        times.append(terms.windows.first(max(ready, now)))
    return TableDecision(next=min(times, default=None))


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
