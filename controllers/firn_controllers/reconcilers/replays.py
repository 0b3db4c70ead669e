"""The reconcile of one DeadLetterReplay: observe -> decide -> start -> report, and its deletion after its time to live."""

from collections.abc import Sequence
from datetime import timedelta

from firn.model import names
from firn.model.jobs import IngestJob
from firn_controllers.cache.replays import KIND, ReplayEntry, replay_entry
from firn_controllers.cache.topics import Name
from firn_controllers.conditions import announcements
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.iceberg_topic.observed import LiveJob
from firn_controllers.policies.runs import PolicyRun
from firn_controllers.ports import Manifest, NoRunMeter, RunMeter
from firn_controllers.queue import Lane, Outcome
from firn_controllers.reconcilers.context import Context
from firn_controllers.reconcilers.policy.reconciler import BLOCKED, LISTEN
from firn_controllers.reconcilers.policy.reporting import EndedRuns
from firn_controllers.reconcilers.policy.runs import PolicyRuns
from firn_controllers.reconcilers.policy.subjects import target_table
from firn_controllers.replays.decision import ObservedReplay, ReplayDecision, decide
from firn_controllers.replays.status import invalid_status, paused_status, replay_status


class ReplayReconciler:
    """Reconciles DeadLetterReplays."""

    def __init__(self, context: Context, runs: PolicyRuns, meter: RunMeter | None = None) -> None:
        self._context = context
        self._cache = context.replays
        self._runs = runs
        self._ended = EndedRuns(context, meter or NoRunMeter())

    async def reconcile(self, name: Name) -> Outcome:
        """Bring the run and the status of a replay closer to its spec."""
        replay = self._cache.get(name)
        runs = await self._own_runs(name, replay)
        if replay is None:
            self._ended.forget(KIND, name)
            self._runs.forget(KIND, name)
            return Outcome()
        now = self._context.ports.clock.now()
        if replay.finished:
            return await self._expire(replay)
        if replay.problem is not None:
            await self._write(replay, invalid_status(replay, replay.problem, now))
            return self._context.resync()
        if replay.paused:
            await self._write(replay, paused_status(replay, now))
            return Outcome()
        self._ended.note_policy(replay.policy)
        decision = decide(await self._observe(replay, runs), self._context.config)
        done: list[Announcement] = []
        if decision.start is not None:
            started = await self._runs.start(replay.policy, [decision.start])
            place = self._context.owner.namespace
            done = [Announcement("Normal", EventReason.RUN_STARTED, f"created Job {place}/{each}") for each in started]
        self._ended.count(replay.policy, [run for run in runs if not run.active and run.settled(now)])
        await self._write(replay, replay_status(replay, decision, now), done + _ended(decision))
        return self._next_look(decision)

    async def _own_runs(self, name: Name, replay: ReplayEntry | None) -> list[PolicyRun]:
        """Return the runs of the replay. Runs of a deleted replay of this name are stopped."""
        own = []
        for run in await self._runs.read(KIND, name):
            if replay is not None and run.job.labels.get(names.LABEL_POLICY_UID) == replay.uid:
                own.append(run)
            else:
                await self._runs.stop(run)
        return own

    async def _observe(self, replay: ReplayEntry, runs: Sequence[PolicyRun]) -> ObservedReplay:
        assert replay.resource is not None
        topic = self._context.topics.get((replay.name[0], replay.resource.spec.topic_ref.name))
        return ObservedReplay(
            replay=replay,
            topic=topic,
            table=target_table(self._context, topic, of_topic=True) if topic is not None else None,
            job=await self._contract(topic.uid) if topic is not None else None,
            runs=tuple(runs),
            active=tuple(await self._runs.active()),
            claimed=self._runs.claimed,
            making=self._runs.making,
            now=self._context.ports.clock.now(),
        )

    async def _contract(self, uid: str) -> IngestJob | None:
        """Return the topic's job contract in force, which has its current schema."""
        cluster, namespace = self._context.ports.cluster, self._context.owner.namespace
        live = LiveJob.read(await cluster.get("v1", "ConfigMap", namespace, names.job(uid)))
        return live.job if live is not None else None

    async def _expire(self, replay: ReplayEntry) -> Outcome:
        """Delete the replay if its time to live is over."""
        if replay.ttl is None or replay.finish_time is None:
            return Outcome()
        # The sum of both times may be beyond the last date of Python.
        left = replay.ttl - (self._context.ports.clock.now() - replay.finish_time)
        if left > timedelta():
            return Outcome(after=left.total_seconds() + 0.1)
        await self._context.ports.cluster.delete(names.API_VERSION, KIND, *replay.name)
        return Outcome()

    async def _write(self, replay: ReplayEntry, status: Manifest, done: Sequence[Announcement] = ()) -> None:
        """Write the status if it differs, and announce ``done`` and the transitions."""
        cluster = self._context.ports.cluster
        await self._announce(replay, done)
        if status == replay.status:
            return
        live = await cluster.patch_status(*replay.name, status, replay.resource_version, KIND)
        if live is None:
            self._cache.remove(replay.name, replay.uid)
            return
        written = replay_entry(live, self._context.config)
        self._cache.put(written)
        if written.finished and written.topic is not None and self._context.topics.get(written.topic) is not None:
            # The topic need not keep its snapshots for the replay any more.
            self._context.wake_topic(written.topic, Lane.ROUTINE)
        await self._announce(replay, announcements.transitions(replay.status, status))

    async def _announce(self, replay: ReplayEntry, items: Sequence[Announcement]) -> None:
        for item in items:
            await self._context.ports.cluster.event(
                *replay.name, replay.uid, KIND, item.type, str(item.reason), item.message
            )

    def _next_look(self, decision: ReplayDecision) -> Outcome:
        if decision.state == "Waiting":
            return Outcome(after=BLOCKED)
        if decision.start is not None or (decision.run is not None and not decision.run.active):
            return Outcome(after=LISTEN)
        return self._context.resync()


def _ended(decision: ReplayDecision) -> list[Announcement]:
    """Return the Event of a replay that has just ended."""
    if decision.state == "Succeeded":
        return [Announcement("Normal", EventReason.REPLAYED, decision.message)]
    return [Announcement("Warning", EventReason.RUN_FAILED, decision.message)] if decision.state == "Failed" else []
