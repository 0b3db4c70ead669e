"""Plans the IcebergTopics of one TopicSet: which to create, update and delete, and which topics it refuses.

Pure: `firn_controllers.reconcilers.topic_set` makes the changes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from firn.model import names
from firn_controllers.cache.topic_sets import SetEntry
from firn_controllers.cache.topics import Claim, Name, TopicCache, TopicEntry
from firn_controllers.topic_sets.template import Refusal, Rendered

_Holder = tuple[Name, Claim | None]
"""The IcebergTopic that has a table, and what those have in common that may share the table with it."""


@dataclass(frozen=True, slots=True)
class ObservedSet:
    """The facts that a plan is made of."""

    entry: SetEntry
    rendered: Mapping[str, Rendered]
    """Matched topic -> its IcebergTopic, sorted by topic."""
    listed: frozenset[str]
    """All topics of the profile."""
    topics: TopicCache
    claim: Callable[[str], Claim]
    """Returns the claim of a topic."""
    older: Callable[[str], Name | None]
    """Returns the older set that matches a topic."""
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    """Digest of a rendered IcebergTopic that the API server refused -> the refusal."""
    agreed: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Uid of an IcebergTopic whose spec agreed -> digest of the template, and its generation."""
    deleted: frozenset[str] = frozenset()
    """Uids of IcebergTopics that this process deleted, and that the watch may still show."""
    cluster_id: str = ""
    """Kafka's id of the cluster that the list is of; empty if it is not known."""


@dataclass(frozen=True, slots=True)
class SetPlan:
    """The changes of one set."""

    matched: int
    create: tuple[Rendered, ...]
    update: tuple[tuple[Rendered, TopicEntry], ...]
    delete: tuple[TopicEntry, ...]
    made: int
    """Number of matched topics that have an IcebergTopic of the set."""
    kept: int
    """Number of IcebergTopics of the set whose topic does not match, and that the plan does not delete."""
    refused: tuple[Refusal, ...]
    excess: int
    """Number of matched topics beyond the limit. Refused topics are not among them."""
    lost: int = 0
    """Number of IcebergTopics that the plan does not delete although their topics do not exist, because no topic of the set exists."""

    other_cluster: str = ""
    """The id of the Kafka cluster, if it is not that of the set, and the set might delete IcebergTopics because of it."""

    @property
    def settled(self) -> bool:
        """True if the plan changes nothing."""
        return not (self.create or self.update or self.delete)


def owned(entry: SetEntry, topics: TopicCache) -> list[TopicEntry]:
    """Return the IcebergTopics that the set made, by its label."""
    namespace, name = entry.name
    return [each for each in topics.in_namespace(namespace) if each.metadata.labels.get(names.LABEL_TOPIC_SET) == name]


def plan_set(observed: ObservedSet) -> SetPlan:
    """Return the changes that bring the IcebergTopics of a set into agreement with its spec."""
    entry = observed.entry
    assert entry.resource is not None
    by_topic: dict[str, TopicEntry] = {}
    strangers: list[TopicEntry] = []
    for live in sorted(owned(entry, observed.topics), key=lambda live: live.age):
        if live.uid in observed.deleted:
            continue
        topic = live.resource.topic_name if live.resource is not None else ""
        serves = live.resource is not None and live.profile == entry.profile
        if serves and topic in observed.rendered and topic not in by_topic:
            by_topic[topic] = live
        else:
            strangers.append(live)
    if entry.deletes and is_other(entry, observed.cluster_id):
        return SetPlan(
            len(observed.rendered), (), (), (), len(by_topic), len(strangers), (), 0, other_cluster=observed.cluster_id
        )
    room = max(0, entry.resource.spec.limit - len(by_topic))
    others = [rendered for topic, rendered in observed.rendered.items() if topic not in by_topic]
    update, refused = _updates(observed, by_topic)
    create, not_created = _creations(observed, others, room)
    # Another cluster behind the same address, or one without its data, must not delete what the set made.
    lost = (
        entry.deletes and not by_topic and len(strangers) > 1 and not any(_exists(observed, each) for each in strangers)
    )
    delete = () if lost else tuple(_superfluous(entry, strangers))
    return SetPlan(
        matched=len(observed.rendered),
        create=tuple(create),
        update=tuple(update),
        delete=delete,
        made=len(by_topic),
        kept=len(strangers) - len(delete),
        refused=tuple(sorted([*refused, *not_created], key=lambda refusal: refusal.topic)),
        excess=len(others) - len(create) - len(not_created),
        lost=len(strangers) if lost else 0,
    )


def is_other(entry: SetEntry, cluster_id: str) -> bool:
    """Return whether ``cluster_id`` is that of another Kafka cluster than the one whose topics the set has followed so far."""
    return entry.cluster_id not in ("", cluster_id) and cluster_id != ""


def _exists(observed: ObservedSet, live: TopicEntry) -> bool:
    return live.resource is not None and live.resource.topic_name in observed.listed


def _superfluous(entry: SetEntry, strangers: Sequence[TopicEntry]) -> Iterator[TopicEntry]:
    """Yield the IcebergTopics to delete: their topics do not match, or do not exist. Unreadable ones stay."""
    for live in strangers:
        if entry.deletes and live.resource is not None and live.metadata.deletion_timestamp is None:
            yield live


def _updates(
    observed: ObservedSet, by_topic: Mapping[str, TopicEntry]
) -> tuple[list[tuple[Rendered, TopicEntry]], list[Refusal]]:
    """Return the IcebergTopics that differ from the template, and those that cannot follow it."""
    update: list[tuple[Rendered, TopicEntry]] = []
    refused: list[Refusal] = []
    for topic, live in by_topic.items():
        rendered = observed.rendered[topic]
        if live.metadata.deletion_timestamp is not None:
            continue  # it is created again after its deletion
        # The name of an IcebergTopic never changes, so a name that is not valid is no reason to refuse it.
        if rendered.refusal is not None and rendered.refusal.why == "InvalidSpec":
            refused.append(rendered.refusal)
        elif rendered.resource is not None and not rendered.agrees(live, observed.agreed):
            refusal = observed.refused.get(rendered.digest)
            if refusal is not None:
                refused.append(refusal)
            else:
                update.append((rendered, live))
    return update, refused


def _creations(
    observed: ObservedSet, candidates: Sequence[Rendered], room: int
) -> tuple[list[Rendered], list[Refusal]]:
    """Return at most ``room`` IcebergTopics to create, and the refused topics, which need no room."""
    create: list[Rendered] = []
    refused: list[Refusal] = []
    if not candidates:
        return create, refused
    names_taken: dict[str, str] = {}
    tables = _tables(observed.topics)
    for rendered in candidates:
        refusal = (
            rendered.refusal
            or _taken(observed, rendered)
            or _name_taken(observed, rendered, names_taken)
            or _table_taken(observed, rendered, tables)
            or observed.refused.get(rendered.digest)
        )
        if refusal is not None:
            refused.append(refusal)
            continue
        if len(create) >= room:
            continue  # the status reports a refused topic as refused, and not as beyond the limit
        create.append(rendered)
        names_taken[rendered.name] = rendered.topic
        name = (observed.entry.name[0], rendered.name)
        tables[_table(rendered)] = (name, _sharing(name, _exact(rendered), shares=_shares(rendered)))
    return create, refused


def _taken(observed: ObservedSet, rendered: Rendered) -> Refusal | None:
    """Return the refusal of a topic that another IcebergTopic serves, or that an older set matches."""
    topic = rendered.topic
    holder = observed.topics.holder(observed.claim(topic))
    if holder is not None:
        mine = holder.name[0] == observed.entry.name[0]
        server = f"IcebergTopic {holder.name[1]}" if mine else "an IcebergTopic of another namespace"
        return Refusal(
            topic,
            "TopicTaken",
            f"{server} already serves Kafka topic {topic}; delete that IcebergTopic, or exclude the topic",
        )
    older = observed.older(topic)
    if older is None:
        return None
    other = f"TopicSet {older[1]}" if older[0] == observed.entry.name[0] else "a TopicSet of another namespace"
    return Refusal(
        topic,
        "MatchedByOlderSet",
        f"{other}, which is older, matches Kafka topic {topic}, too; narrow match of one of the two sets, or exclude the topic",
    )


def _name_taken(observed: ObservedSet, rendered: Rendered, taken: Mapping[str, str]) -> Refusal | None:
    other = taken.get(rendered.name)
    step = "change template.metadata.name so that names differ, or exclude the topic"
    if other is not None:
        return Refusal(
            rendered.topic,
            "NameConflict",
            f"the template gives Kafka topics {other} and {rendered.topic} the name {rendered.name}; {step}",
        )
    if observed.topics.get((observed.entry.name[0], rendered.name)) is None:
        return None
    return Refusal(
        rendered.topic,
        "NameConflict",
        f"IcebergTopic {rendered.name} exists already, and does not serve Kafka topic {rendered.topic}; {step}",
    )


def _table_taken(observed: ObservedSet, rendered: Rendered, tables: Mapping[Claim, _Holder]) -> Refusal | None:
    other, sharing = tables.get(_table(rendered), (None, None))
    if other is None:
        return None
    own = (observed.entry.name[0], rendered.name)
    if sharing is not None and sharing == _sharing(own, _exact(rendered), shares=_shares(rendered)):
        return None
    mine = other[0] == observed.entry.name[0]
    holder = f"IcebergTopic {other[1]}" if mine else "an IcebergTopic of another namespace"
    return Refusal(
        rendered.topic,
        "TableConflict",
        f"{holder} has table {'.'.join(rendered.table or ())}, or a table whose name differs only in case, which query engines ignore;"
        " change template.spec.table so that names differ, or exclude the topic",
    )


def _tables(topics: TopicCache) -> dict[Claim, _Holder]:
    """Return the tables of all IcebergTopics, in small letters, with the IcebergTopic."""
    return {
        _folded(entry.table_claim): (entry.name, _sharing(entry.name, entry.table_claim, shares=entry.shares))
        for entry in topics.all()
        if entry.table_claim is not None
    }


def _sharing(name: Name, table: Claim, *, shares: bool) -> Claim | None:
    """Return what two IcebergTopics have in common that share a table: its namespace in Kubernetes, and its name. None if it is not shared."""
    return (name[0], *table) if shares else None


def _shares(rendered: Rendered) -> bool:
    return rendered.resource is not None and rendered.resource.spec.table.shared


def _exact(rendered: Rendered) -> Claim:
    assert rendered.table is not None
    return ("table", *rendered.table)


def _table(rendered: Rendered) -> Claim:
    return _folded(_exact(rendered))


def _folded(claim: Claim) -> Claim:
    return tuple(part.lower() for part in claim)
