"""Carries out the reconcile of one policy: whom it governs -> what came of its runs -> who is due -> runs -> status, from the top each time.

Runs are known by their Jobs alone. A run that was started by a process that is gone is found among them, and the name of a run is the
same for the same tables after the same runs: so whatever happens, no table is given to two runs.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from firn.model import durations, names
from firn.model.config import Config
from firn.model.errors import InvalidSpecError
from firn.model.jobs import TableTarget
from firn_controllers.board import Board
from firn_controllers.cache.policies import Kind, PolicyCache, PolicyEntry, policy_entry
from firn_controllers.cache.topics import Name, TopicCache, TopicEntry
from firn_controllers.children import COMPONENT, Owner
from firn_controllers.conditions import announcements, pods
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.policies import due as dues
from firn_controllers.policies import plan, runs, status
from firn_controllers.policies.due import TableDecision
from firn_controllers.policies.outcome import SECTIONS, PolicyOutcome
from firn_controllers.policies.plan import DueTable
from firn_controllers.policies.runs import PolicyRun, RunHistory
from firn_controllers.ports import Manifest, NoRunMeter, PodState, Ports, RunMeter
from firn_controllers.queue import Outcome

REPORT_GRACE = timedelta(seconds=15)
"""So long after a Job ended its pod's last word may still be on its way."""
LISTEN = 1.0
"""Seconds until the next look for a last word."""
BLOCKED = 5.0
"""Seconds until the next look for room to run."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What was found out about the topics of a policy."""

    governed: Mapping[Name, PolicyOutcome]
    uids: Mapping[str, Name]
    bound: Mapping[Name, str]
    """Because of what, of all that it governs, those too that it does not fit."""
    refused: int
    waiting: Sequence[DueTable]
    held: bool
    """Some table that is due is in the hands of another policy's run."""
    next: datetime | None
    """When the first of those that do not wait may be due, or overdue."""


class PolicyReconciler:
    """Reconciles policies of both kinds; ``told`` is given each topic of which there is something new to say."""

    def __init__(
        self,
        config: Config,
        owner: Owner,
        ports: Ports,
        index: TopicCache,
        policies: PolicyCache,
        board: Board,
        told: Callable[[Name], None],
        jitter: Callable[[], float],
        meter: RunMeter | None = None,
    ) -> None:
        self._config = config
        self._owner = owner
        self._ports = ports
        self._index = index
        self._policies = policies
        self._board = board
        self._told = told
        self._jitter = jitter
        self._meter = meter or NoRunMeter()
        self._resync = durations.milliseconds(config.resync) / 1000
        self._started = ports.clock.now()
        self.making: set[str] = set()
        """Names of runs whose Job is being made."""
        self._claimed: set[str] = set()  # uids of their topics
        self._governed: dict[tuple[Kind, Name], frozenset[str]] = {}
        self._noticed: dict[tuple[Kind, str], datetime] = {}  # since when a topic, by uid, is due
        self._reported: dict[
            tuple[Kind, Name], dict[str, PolicyRun]
        ] = {}  # by name, runs that have said their last word
        self._metered: dict[tuple[Kind, Name], frozenset[str]] = {}  # names of runs that ended and were counted

    async def reconcile(self, kind: Kind, name: Name) -> Outcome:
        """Bring the policy's runs and status closer to what they should be."""
        policy = self._policies.get(kind, name)
        mine = await self._runs(kind, name)
        if policy is None:
            for run in mine:
                await self._stop(run)
            self._release(kind, name, {})
            self._metered.pop((kind, name), None)
            self._reported.pop((kind, name), None)
            return Outcome()
        self._meter.known(kind, *name)
        # While paused too: nothing is begun then, but neither is anything deleted that nobody wants deleted any more.
        mine = [run for run in mine if not await self._withdrawn(policy, run)]
        if policy.paused:
            await self._write(policy, status.paused(policy, self._ports.clock.now()), [])
            return Outcome()
        everywhere = await self._all_active()
        look = self._look(policy, mine, everywhere)
        self._release(kind, name, look.uids)
        self._tell(policy, look)
        started, blocked = await self._start(policy, look, mine, everywhere)
        if started:
            mine = await self._runs(kind, name)
        await self._report(policy, look, mine, started)
        return self._outcome(look, mine, blocked=blocked or look.held)

    # What is there

    async def _runs(self, kind: Kind, name: Name) -> list[PolicyRun]:
        labels = plan.run_labels(kind, *name)
        by_run: defaultdict[str, list[PodState]] = defaultdict(list)
        for pod in await self._ports.cluster.pods(labels):
            by_run[pod.labels.get(names.LABEL_RUN, "")].append(pod)
        known = self._reported.get((kind, name), {})
        found: dict[str, PolicyRun] = {}
        for job in await self._ports.cluster.jobs(labels):
            run = known.get(job.name) or runs.read_run(job, by_run[job.name])
            if run is not None:
                found[job.name] = self._troubled(run, by_run[job.name])
        # What was said once is not unpacked again: of an hour's runs there may be hundreds.
        over = {key: run for key, run in found.items() if run.reported and not run.active}
        self._reported[kind, name] = over
        return list(found.values())

    def _troubled(self, run: PolicyRun, found: Sequence[PodState]) -> PolicyRun:
        if not run.active:
            return run
        image = (self._config.maintenance.image or self._config.images.spark).image
        waiting = [pod for pod in found if not pod.running and pod.finished is None]
        trouble = pods.worst_trouble(waiting, image, self._owner.namespace)
        return replace(run, trouble=trouble.message) if trouble is not None else run

    async def _all_active(self) -> Sequence[PolicyRun]:
        jobs = await self._ports.cluster.jobs({COMPONENT: runs.COMPONENT_RUN})
        read = (runs.read_run(job, ()) for job in jobs)
        return [run for run in read if run is not None and run.active]

    def _settled(self, run: PolicyRun) -> bool:
        """The run ended, and all that it will ever say is here."""
        ended = run.job.finished
        return ended is not None and (run.reported or self._ports.clock.now() >= ended + REPORT_GRACE)

    async def _withdrawn(self, policy: PolicyEntry, run: PolicyRun) -> bool:
        """Stop a run whose policy is not the one any more that wanted it; True where it is another's or was stopped."""
        another = run.job.labels.get(names.LABEL_POLICY_UID) != policy.uid
        suspended = policy.terms is not None and policy.terms.suspended
        if run.active and (another or suspended or self._spared(policy, run)):
            await self._stop(run)
            return True
        return another

    def _spared(self, policy: PolicyEntry, run: PolicyRun) -> bool:
        """Deleting needs an explicit word: a run that deletes, of which the policy says something else by now, or does not say it any more
        of all its tables. Its other tables have not failed: they are due at once."""
        if run.mark.mode != "Enforce":
            return False
        if run.mark.work != plan.work_hash(policy):
            return True
        topics = self._index.in_namespace(policy.name[0])
        governed = {topic.uid for topic in topics if self._governs(policy, topic) and self._table(topic) is not None}
        return not run.uids <= governed

    def _governs(self, policy: PolicyEntry, topic: TopicEntry) -> bool:
        resolution = self._policies.resolve(policy.kind, topic)
        return resolution.policy is not None and resolution.policy.uid == policy.uid and resolution.followed

    async def _stop(self, run: PolicyRun) -> None:
        if run.active and not run.job.deleting:
            await self._ports.cluster.delete("batch/v1", "Job", self._owner.namespace, run.name)

    # Who is due

    def _look(self, policy: PolicyEntry, mine: Sequence[PolicyRun], everywhere: Sequence[PolicyRun]) -> _Look:
        now = self._ports.clock.now()
        ended: defaultdict[str, list[PolicyRun]] = defaultdict(list)
        for run in sorted((it for it in mine if self._settled(it)), key=lambda it: (it.job.finished, it.name)):
            for uid in run.uids:
                ended[uid].append(run)
        unheard = [run for run in mine if not self._settled(run)]
        own = frozenset[str]().union(*(run.uids for run in unheard))
        busy = own.union(self._claimed, *(run.uids for run in everywhere))
        governed: dict[Name, PolicyOutcome] = {}
        uids: dict[str, Name] = {}
        bound: dict[Name, str] = {}
        waiting: list[DueTable] = []
        refused, held = 0, False
        times: list[datetime] = []
        for topic in self._index.in_namespace(policy.name[0]):
            resolution = self._policies.resolve(policy.kind, topic)
            if resolution.policy is None or resolution.policy.uid != policy.uid:
                continue
            bound[topic.name] = str(resolution.because)
            if not resolution.followed:
                refused += 1
                continue
            history = self._history(policy, topic, now)
            for run in ended.get(topic.uid, ()):
                history = history.after(run, topic.uid)
            self._outdate(policy.kind, topic.uid, history)
            decision, table = self._decide(policy, topic, history, now)
            overdue = ""
            if decision.due is None or topic.uid in own:
                self._noticed.pop((policy.kind, topic.uid), None)
            elif table is not None and policy.terms is not None:
                in_other_hands = topic.uid in busy
                if in_other_hands:
                    held = True
                else:
                    waiting.append(table)
                since = self._noticed.setdefault((policy.kind, topic.uid), now)
                if now > since + policy.terms.deadline:
                    overdue = "a run is due, and has not started within run.deadline: " + (
                        "other runs hold the table" if in_other_hands else "more run.maxConcurrent may help"
                    )
                else:
                    times.append(since + policy.terms.deadline)
            if decision.next is not None:
                times.append(decision.next)
            governed[topic.name] = PolicyOutcome(policy.name[1], history, decision.next, overdue)
            uids[topic.uid] = topic.name
        return _Look(governed, uids, bound, refused, waiting, held, min(times, default=None))

    def _outdate(self, kind: Kind, uid: str, history: RunHistory) -> None:
        """Forget what was measured before a run that ended: it is paid by now, and no reason for another one."""
        known = self._board.outcomes.get((uid, kind))
        if known is not None and known.history.finished != history.finished:
            self._board.debts.pop(uid, None)

    def _history(self, policy: PolicyEntry, topic: TopicEntry, now: datetime) -> RunHistory:
        """What is known of the topic, as it counts under the policy: the newer of what status keeps and what was last found out, as the
        status may not be written yet."""
        found = RunHistory.of((topic.status.get("maintenance") or {}).get(SECTIONS[policy.kind]) or {})
        known = self._board.outcomes.get((topic.uid, policy.kind))
        if known is not None and (known.history.finished or runs.EARLIEST) >= (found.finished or runs.EARLIEST):
            found = known.history
        slots = policy.terms.slots if policy.terms is not None else None
        asked = plan.run_requests(policy, topic).get("policy")
        answered = asked if asked == policy.status.get("lastRequest") else None
        if slots is None:
            return found.under(policy.uid, "", None, answered)
        return found.under(policy.uid, slots.cron.text, slots.last(now), answered)

    def _decide(
        self, policy: PolicyEntry, topic: TopicEntry, history: RunHistory, now: datetime
    ) -> tuple[TableDecision, DueTable | None]:
        table = self._table(topic)
        terms = policy.terms
        if table is None or terms is None:
            return TableDecision(), None
        target, uuid = table
        debt = self._board.debts.get(topic.uid)
        decision = dues.decide_table(
            terms,
            now,
            history=history,
            generation=policy.generation,
            debt=debt if debt is not None and debt.table_uuid == uuid else None,
            requests=plan.run_requests(policy, topic),
        )
        if decision.due is None:
            return decision, None
        return decision, DueTable(topic, target, uuid, debt, decision.due, (history.last or {}).get("name", ""))

    def _table(self, topic: TopicEntry) -> tuple[TableTarget, str] | None:
        """The topic's table and its uuid, where there is one that may be worked on."""
        resource = topic.resource
        if resource is None or resource.metadata.deletion_timestamp is not None:
            return None
        if resource.metadata.annotations.get(names.PAUSE) == "true":
            return None
        holder = self._index.holder(topic.table_claim) if topic.table_claim else None
        uuid = (topic.status.get("table") or {}).get("uuid")
        if holder is None or holder.uid != topic.uid or not uuid:
            return None
        try:
            target = resource.table_target(self._config.default_catalog)
        except InvalidSpecError:
            return None
        return (target, uuid) if target.catalog in self._config.catalogs else None

    # What follows

    def _release(self, kind: Kind, name: Name, uids: Mapping[str, Name]) -> None:
        """Forget the topics that the policy governs no more, unless another policy has taken them over."""
        for uid in self._governed.pop((kind, name), frozenset()) - uids.keys():
            self._noticed.pop((kind, uid), None)
            known = self._board.outcomes.get((uid, kind))
            if known is not None and known.policy == name[1]:
                del self._board.outcomes[uid, kind]
        if uids:
            self._governed[kind, name] = frozenset(uids)

    def _tell(self, policy: PolicyEntry, look: _Look) -> None:
        for uid, name in look.uids.items():
            found = look.governed[name]
            if self._board.outcomes.get((uid, policy.kind)) != found:
                self._board.outcomes[uid, policy.kind] = found
                self._told(name)

    async def _start(
        self, policy: PolicyEntry, look: _Look, mine: Sequence[PolicyRun], everywhere: Sequence[PolicyRun]
    ) -> tuple[list[str], bool]:
        """Start the runs that there is room for; their names, and whether tables are left that wait for room."""
        terms = policy.terms
        if terms is None or not look.waiting:
            return [], False
        at_work = self.making.union(run.name for run in everywhere)
        room = min(
            terms.max_concurrent - sum(run.active for run in mine), self._config.maintenance.max_runs - len(at_work)
        )
        chosen = plan.planned_runs(policy, look.waiting, self._config, room)
        taken = {table.topic.uid for batch in chosen for table in batch.tables}
        made = {plan.run_name(policy, batch) for batch in chosen}
        self._claimed |= taken
        self.making |= made
        started = []
        try:
            for batch in chosen:
                run = plan.contract(policy, batch, self._config, self._ports.clock.now())
                await self._ports.cluster.apply(plan.config_map(policy, run, self._owner))
                await self._ports.cluster.apply(plan.job(policy, batch, run, self._config, self._owner))
                started.append(run.name)
        finally:
            self._claimed -= taken
            self.making -= made
        for uid in taken:
            self._noticed.pop((policy.kind, uid), None)
        return started, len(taken) < len(look.waiting)

    async def _report(
        self, policy: PolicyEntry, look: _Look, mine: Sequence[PolicyRun], started: Sequence[str]
    ) -> None:
        """Write the status if it says something new, announce what came of it, count what ended."""
        governed = {"/".join(name): upkeep for name, upkeep in look.governed.items()}
        heard = [run for run in mine if run.active or self._settled(run)]
        now = self._ports.clock.now()
        bound = {name: because for (_, name), because in look.bound.items()}
        document = status.of(status.Observed(policy, governed, bound, look.refused, heard, now))
        done = [
            Announcement("Normal", EventReason.RUN_STARTED, f"Job {self._owner.namespace}/{name} was made")
            for name in started
        ]
        before = (policy.status.get("lastRun") or {}).get("finishTime", "")
        ended = [run for run in heard if not run.active]
        key = (policy.kind, policy.name)
        metered = self._metered.get(key, frozenset())
        self._metered[key] = frozenset(run.name for run in ended)
        for run in ended:
            told = status.run(run)
            if told["finishTime"] > before:
                done += announcements.run_ended(told)
            if run.name not in metered and run.job.finished is not None and run.job.finished >= self._started:
                self._meter.ended(policy.kind, *policy.name, told)
        await self._write(policy, document, done)

    async def _write(self, policy: PolicyEntry, document: Manifest, done: list[Announcement]) -> None:
        if document != policy.status:
            namespace, name = policy.name
            live = await self._ports.cluster.patch_status(
                namespace, name, document, policy.resource_version, policy.kind
            )
            if live is not None:
                self._policies.put(policy_entry(live, self._config))
            else:
                self._policies.remove(policy.kind, policy.name, policy.uid)
            done += announcements.transitions(policy.status, document)
        for item in done:
            await self._ports.cluster.event(
                *policy.name, policy.uid, policy.kind, item.type, str(item.reason), item.message
            )

    def _outcome(self, look: _Look, mine: Sequence[PolicyRun], *, blocked: bool) -> Outcome:
        after = self._resync * (0.8 + 0.2 * self._jitter())
        if look.next is not None:
            # A little later than the very moment: clocks differ, and a second look that comes too early is for nothing.
            after = min(after, max(0.0, (look.next - self._ports.clock.now()).total_seconds()) + 0.1)
        if blocked:
            after = min(after, BLOCKED)
        if any(run.trouble for run in mine):
            after = min(after, status.TROUBLED_AFTER.total_seconds())
        if any(run.job.finished is not None and not self._settled(run) for run in mine):
            after = min(after, LISTEN)
        return Outcome(after=after)
