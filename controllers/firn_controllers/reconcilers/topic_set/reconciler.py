"""The reconcile of one TopicSet: match -> plan -> change IcebergTopics -> report, from the top each time."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from firn.model import names
from firn.model.errors import AccessDeniedError, ConflictError, InvalidSpecError
from firn_controllers.cache.topic_sets import SetEntry, set_entry
from firn_controllers.cache.topics import Name, TopicEntry, topic_claim
from firn_controllers.conditions import announcements
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.conditions.stable_text import steady
from firn_controllers.ports import Manifest
from firn_controllers.queue import Lane, Outcome
from firn_controllers.reconcilers.context import Context
from firn_controllers.topic_sets.checks import ReadySet, ready_set
from firn_controllers.topic_sets.listing import Listing
from firn_controllers.topic_sets.plan import ObservedSet, SetPlan, owned, plan_set
from firn_controllers.topic_sets.status import SetReport, paused_status, set_status
from firn_controllers.topic_sets.template import Refusal, Rendered

AT_ONCE = 32
"""Parallel changes of IcebergTopics."""
TURN = 20.0
"""Seconds of changes after which other keys have a turn, and the status shows the progress."""
RENDERED_AT_A_TIME = 50
"""IcebergTopics that are rendered before other tasks have a turn."""


@dataclass(slots=True)
class SetMemory:
    """Results that this process keeps for one generation of a set. All of them can be computed again."""

    uid: str
    generation: int
    ready: ReadySet | InvalidSpecError
    rendered: dict[str, Rendered] = field(default_factory=dict)
    listing: frozenset[str] | None = None
    """The topics that ``rendered`` belongs to."""
    refused: dict[str, tuple[Refusal, float]] = field(default_factory=dict)
    """Digest of a rendered IcebergTopic -> why the API server refused it, and the monotonic time of the next attempt."""
    agreed: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Uid of an IcebergTopic whose spec agreed -> digest of the template, and its generation."""
    deleted: set[str] = field(default_factory=set)
    """Uids of IcebergTopics that this process deleted, and that the watch may still show."""


@dataclass(slots=True)
class Changes:
    """The changes of one pass."""

    created: int = 0
    updated: int = 0
    deleted: int = 0
    refusals: list[Refusal] = field(default_factory=list)

    @property
    def succeeded(self) -> int:
        """Number of IcebergTopics that changed."""
        return self.created + self.updated + self.deleted


class TopicSetReconciler:
    """Reconciles TopicSets."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._memory: dict[Name, SetMemory] = {}

    async def reconcile(self, name: Name) -> Outcome:
        """Bring the IcebergTopics of a set closer to its spec, and update its status."""
        entry = self._context.sets.get(name)
        if entry is None:
            self._memory.pop(name, None)
            return Outcome()
        if entry.paused:
            await self._write(entry, paused_status(entry, self._context.ports.clock.now()))
            return Outcome()
        if entry.deleting:
            return await self._end(entry)
        agreed = await self._agree_finalizers(entry)
        if agreed is None:
            return Outcome()
        memory = self._recall(agreed)
        listing = self._context.board.listings.get(str(agreed.profile), Listing())
        if isinstance(memory.ready, InvalidSpecError):
            await self._report(agreed, listing, None, memory.ready)
            return self._context.resync()
        if listing.topics is None:
            await self._report(agreed, listing, None, None)
            return self._context.resync()  # the list wakes the set
        return await self._converge(agreed, memory, memory.ready, listing, listing.topics)

    async def _converge(
        self, entry: SetEntry, memory: SetMemory, ready: ReadySet, listing: Listing, topics: frozenset[str]
    ) -> Outcome:
        await self._render(memory, ready, topics)
        older = self._older_sets(entry)
        plan = plan_set(self._observe(entry, memory, older, listing.cluster_id))
        changes = Changes()
        if not plan.settled:
            changes = await self._change(entry, memory, plan, topics)
            plan = plan_set(self._observe(entry, memory, older, listing.cluster_id))
        problem = _refused_template(plan, changes, memory.rendered.values())
        await self._report(entry, listing, plan, problem, changes)
        if plan.settled or problem is not None:
            return self._context.resync()
        return Outcome(after=0.0, lane=Lane.DEPENDENCY) if changes.succeeded else self._context.resync()

    def _recall(self, entry: SetEntry) -> SetMemory:
        memory = self._memory.get(entry.name)
        if memory is None or (memory.uid, memory.generation) != (entry.uid, entry.generation):
            memory = SetMemory(entry.uid, entry.generation, self._ready(entry))
            self._memory[entry.name] = memory
        return memory

    def _ready(self, entry: SetEntry) -> ReadySet | InvalidSpecError:
        if entry.resource is None:
            return entry.problem or InvalidSpecError(f"TopicSet {entry.name[1]} cannot be read")
        try:
            return ready_set(entry.resource, self._context.config)
        except InvalidSpecError as error:
            return error

    # Observe

    async def _render(self, memory: SetMemory, ready: ReadySet, topics: frozenset[str]) -> None:
        """Render the IcebergTopics of new topics, and forget those of topics that no longer exist."""
        if memory.listing is topics:
            return
        rendered: dict[str, Rendered] = {}
        ordered = sorted(topics)
        for first in range(0, len(ordered), RENDERED_AT_A_TIME):
            rendered |= ready.render(ordered[first : first + RENDERED_AT_A_TIME], memory.rendered)
            await asyncio.sleep(0)
        memory.rendered, memory.listing = rendered, topics
        memory.agreed = {
            uid: each for uid, each in memory.agreed.items() if self._context.topics.by_uid(uid) is not None
        }

    def _observe(
        self, entry: SetEntry, memory: SetMemory, older: Callable[[str], Name | None], cluster_id: str
    ) -> ObservedSet:
        now = self._context.ports.clock.monotonic()
        memory.refused = {digest: each for digest, each in memory.refused.items() if each[1] > now}
        memory.deleted = {uid for uid in memory.deleted if self._context.topics.by_uid(uid) is not None}
        profile = str(entry.profile)
        return ObservedSet(
            entry=entry,
            rendered=memory.rendered,
            topics=self._context.topics,
            claim=lambda topic: topic_claim(self._context.config, profile, topic),
            older=older,
            refused={digest: refusal for digest, (refusal, _) in memory.refused.items()},
            listed=memory.listing or frozenset(),
            agreed=memory.agreed,
            deleted=frozenset(memory.deleted),
            cluster_id=cluster_id,
        )

    def _older_sets(self, entry: SetEntry) -> Callable[[str], Name | None]:
        """Return a function that names the older set of the same brokers that matches a topic."""
        cluster = self._cluster(entry)
        others: list[tuple[SetEntry, ReadySet]] = []
        for other in sorted(self._context.sets.all(), key=lambda each: each.age):
            if other.uid == entry.uid or other.age >= entry.age or other.deleting or self._cluster(other) != cluster:
                continue
            ready = self._recall(other).ready
            if isinstance(ready, ReadySet):
                others.append((other, ready))
        return lambda topic: next((other.name for other, ready in others if ready.values(topic) is not None), None)

    def _cluster(self, entry: SetEntry) -> str:
        return topic_claim(self._context.config, str(entry.profile), "")[1]

    # Change

    async def _agree_finalizers(self, entry: SetEntry) -> SetEntry | None:
        """Set our finalizer if the deletion of the set deletes IcebergTopics. Returns None if the set was deleted."""
        others = tuple(name for name in entry.finalizers if name != names.TOPIC_SET_FINALIZER)
        wanted = (*others, names.TOPIC_SET_FINALIZER) if entry.deletes else others
        if wanted == entry.finalizers or entry.resource is None:
            return entry
        return await self._set_finalizers(entry, wanted)

    async def _set_finalizers(self, entry: SetEntry, wanted: tuple[str, ...]) -> SetEntry | None:
        live = await self._context.ports.cluster.set_finalizers(*entry.name, wanted, entry.resource_version, "TopicSet")
        if live is None:
            self._context.sets.remove(entry.name, entry.uid)
            return None
        new = set_entry(live)
        self._context.sets.put(new)
        return new

    async def _end(self, entry: SetEntry) -> Outcome:
        """Delete the IcebergTopics of a set that is being deleted, if its spec says so now, and let the set go."""
        if names.TOPIC_SET_FINALIZER not in entry.finalizers:
            return Outcome()
        if entry.deletes:
            live = [each for each in owned(entry, self._context.topics) if each.metadata.deletion_timestamp is None]
            for first in range(0, len(live), AT_ONCE):
                part = live[first : first + AT_ONCE]
                delete = self._context.ports.cluster.delete_topic
                await asyncio.gather(*(delete(*each.name, each.uid) for each in part))
        await self._set_finalizers(entry, tuple(name for name in entry.finalizers if name != names.TOPIC_SET_FINALIZER))
        return Outcome()

    async def _change(self, entry: SetEntry, memory: SetMemory, plan: SetPlan, topics: frozenset[str]) -> Changes:
        """Make the planned changes, for `TURN` seconds."""
        clock, changes = self._context.ports.clock, Changes()
        until = clock.monotonic() + TURN
        work: list[tuple[Rendered, TopicEntry | None]] = [*((each, None) for each in plan.create), *plan.update]
        for first in range(0, len(work), AT_ONCE):
            if clock.monotonic() >= until or (changes.refusals and not changes.succeeded and not plan.made):
                break
            part = work[first : first + AT_ONCE]
            await asyncio.gather(*(self._apply(memory, changes, rendered, live) for rendered, live in part))
        for first in range(0, len(plan.delete), AT_ONCE):
            if clock.monotonic() >= until:
                break
            part_of_deletes = plan.delete[first : first + AT_ONCE]
            await asyncio.gather(*(self._delete(memory, changes, live, topics) for live in part_of_deletes))
        return changes

    async def _apply(self, memory: SetMemory, changes: Changes, rendered: Rendered, live: TopicEntry | None) -> None:
        """Create or update an IcebergTopic."""
        manifest = rendered.manifest if live is None else rendered.over(live)
        try:
            answer = await self._context.ports.cluster.apply_topic(manifest, create=live is None)
        except (InvalidSpecError, AccessDeniedError) as error:
            refusal = Refusal(rendered.topic, "InvalidSpec", steady(str(error)))
        except ConflictError as error:
            # The watch shows the other object soon, and the plan then names it.
            refusal = Refusal(rendered.topic, "NameConflict", steady(str(error)))
        else:
            self._context.topic_applied(answer)
            changes.created += live is None
            changes.updated += live is not None
            shown = self._context.topics.get((manifest["metadata"]["namespace"], manifest["metadata"]["name"]))
            if shown is None or rendered.agrees(shown, memory.agreed):
                return
            # Without this, the operator would send the same change again at once, and for ever.
            refusal = Refusal(
                rendered.topic,
                "InvalidSpec",
                f"IcebergTopic {shown.name[1]} has other values than the template although the operator applied it: an admission webhook or another"
                " client changes them; stop that, or remove these fields from the template",
            )
        changes.refusals.append(refusal)
        again = self._context.ports.clock.monotonic() + self._context.resync_interval / 2
        memory.refused[rendered.digest] = (refusal, again)

    async def _delete(self, memory: SetMemory, changes: Changes, live: TopicEntry, topics: frozenset[str]) -> None:
        """Delete an IcebergTopic whose topic does not match, or does not exist.

        A list of topics may be incomplete, for example after a change of grants. So the brokers are asked for a topic that
        the list does not have.
        """
        topic = live.resource.topic_name if live.resource is not None else ""
        if topic not in topics and await self._context.ports.topics.describe(live.profile, topic) is not None:
            return
        await self._context.ports.cluster.delete_topic(*live.name, live.uid)
        memory.deleted.add(live.uid)
        changes.deleted += 1

    # Report

    async def _report(
        self,
        entry: SetEntry,
        listing: Listing,
        plan: SetPlan | None,
        problem: InvalidSpecError | None,
        changes: Changes | None = None,
    ) -> None:
        """Write the status if it changed, and announce the changes."""
        report = SetReport(entry, listing, plan, problem, self._context.ports.clock.now())
        await self._write(entry, set_status(report), changes)

    async def _write(self, entry: SetEntry, status: Manifest, changes: Changes | None = None) -> None:
        cluster, sets = self._context.ports.cluster, self._context.sets
        done = _announced(changes) if changes is not None and changes.succeeded else []
        if status != entry.status:
            live = await cluster.patch_status(*entry.name, status, entry.resource_version, "TopicSet")
            if live is not None:
                sets.put(set_entry(live))
            else:
                sets.remove(entry.name, entry.uid)
            done += announcements.transitions(entry.status, status)
        for item in done:
            await cluster.event(*entry.name, entry.uid, "TopicSet", item.type, str(item.reason), item.message)


def _refused_template(plan: SetPlan, changes: Changes, rendered: Collection[Rendered]) -> InvalidSpecError | None:
    """Return the problem of a template that gives no valid IcebergTopic, although topics match."""
    refusals = [each.refusal for each in rendered if each.refusal is not None and each.refusal.why == "InvalidSpec"]
    if refusals and len(refusals) == len(rendered):
        return _no_valid(refusals[0])
    unknown = plan.create and not changes.refusals
    if plan.made or unknown or any(refusal.why != "InvalidSpec" for refusal in plan.refused):
        return None
    if not plan.refused:
        return None
    return _no_valid(plan.refused[0])


def _no_valid(first: Refusal) -> InvalidSpecError:
    return InvalidSpecError(
        f"spec.template gives no valid IcebergTopic: Kafka topic {first.topic}: {first.message}; correct the template"
    )


def _announced(changes: Changes) -> list[Announcement]:
    parts = [
        f"{count} {action}"
        for count, action in ((changes.created, "created"), (changes.updated, "updated"), (changes.deleted, "deleted"))
        if count
    ]
    return [Announcement("Normal", EventReason.TOPICS_CHANGED, f"IcebergTopics of the set: {', '.join(parts)}")]
