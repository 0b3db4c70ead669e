"""``firn plan``: the effects of manifests, with the decisions of the reconcilers, and nothing is changed."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from firn.api.v1alpha1 import TopicSet
from firn.model.errors import InvalidSpecError
from firn.model.jobs import RecordSchema
from firn_controllers.cache.policies import policy_entry
from firn_controllers.cache.replays import replay_entry
from firn_controllers.cache.topic_users import user_entry
from firn_controllers.conditions.annotations import ours
from firn_controllers.preview import policies, replays, topic_sets, topics, users
from firn_controllers.preview.effects import Effect, EffectKind, changed, created, refused
from firn_controllers.preview.fields import differences
from firn_operator.cli.resources import manifests, screen
from firn_operator.cli.resources.connection import Connection
from firn_operator.cli.resources.drafts import Draft, Drafts
from firn_operator.cli.resources.surroundings import Surroundings
from firn_operator.cli.resources.terminal import Line, show

_MARKS = {EffectKind.CREATED: "+", EffectKind.REFUSED: "!"}
_EXISTING = (
    "whether the Kafka topic and the table exist already; existing ones are adopted, if the configuration allows it"
)
_ASKED = "the columns of the schema, because only the operator asks the schema registry and compiles Protobuf"
_MATCHES = "the topics that match, and the IcebergTopics that the set makes, because only the operator lists topics"
_GRANTED = "the topics that the grants give, because the plan reads no TopicGrants and no topics of other namespaces"
_BROKERS = "the values of topic configs, which only the brokers know"


class PlanCode(IntEnum):
    """Exit codes of ``firn plan``."""

    NO_CHANGE = 0
    CHANGES = 2
    REFUSED = 3
    NO_PLAN = 78
    """The plan could not be made: wrong arguments, unreadable files, no connection settings or missing rights."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan of one document."""

    draft: Draft
    effects: tuple[Effect, ...]
    unchecked: tuple[str, ...] = ()

    @property
    def result(self) -> str:
        """Result of the document: refused, created, changed, unchanged, or left out if it is not of Firn."""
        if self.draft.foreign:
            return "left out"
        if any(effect.kind is EffectKind.REFUSED for effect in self.effects):
            return "refused"
        if self.draft.live is None:
            return "created"
        return "changed" if self.effects else "unchanged"


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of all documents. ``unchecked``: the checks that it leaves out for all of them."""

    documents: tuple[Planned, ...]
    unchecked: tuple[str, ...] = field(default=())

    @property
    def code(self) -> PlanCode:
        """Exit code of the command."""
        results = {planned.result for planned in self.documents}
        if "refused" in results:
            return PlanCode.REFUSED
        return PlanCode.CHANGES if results & {"created", "changed"} else PlanCode.NO_CHANGE


def make(connection: Connection, paths: Sequence[str], *, release: str, field_manager: str) -> Plan:
    """Return the plan of the manifests in files. Raises InvalidSpecError, AccessDeniedError and UnavailableError."""
    drafts = Drafts(connection, field_manager).make(manifests.read(paths))
    around = Surroundings(connection, release, drafts, screen.now())
    planned = tuple(_planned(draft, around) for draft in drafts)
    return Plan(planned, tuple(around.unchecked))


def _planned(draft: Draft, around: Surroundings) -> Planned:
    if draft.foreign or draft.wanted is None:
        return Planned(draft, tuple(draft.effects), tuple(draft.unchecked))
    unchecked = list(draft.unchecked)
    try:
        match draft.kind:
            case "IcebergTopic":
                effects = _topic(draft, around, unchecked)
            case "TopicSet":
                effects = _topic_set(draft, around, unchecked)
            case "DeadLetterReplay":
                effects = _replay(draft, around)
            case "TopicUser":
                effects = _user(draft, around, unchecked)
            case "TopicGrant":
                effects = users.preview_grant(draft.live, draft.wanted)
            case _:
                effects = _policy(draft, around)
    except InvalidSpecError as error:
        effects = (refused("spec", str(error), error.reason),)
    if not any(effect.kind is EffectKind.REFUSED for effect in effects):
        effects = (*effects, *_rest(draft, effects))
    return Planned(draft, (*draft.effects, *effects), tuple(unchecked))


def _topic(draft: Draft, around: Surroundings, unchecked: list[str]) -> tuple[Effect, ...]:
    assert draft.wanted is not None
    after = around.observe(draft.wanted, draft.live, wanted=True)
    before = around.observe(draft.live, draft.live, wanted=False) if draft.live is not None else None
    effects = topics.preview(before, after, without=around.without)
    if any(effect.kind is EffectKind.CREATED for effect in effects):
        unchecked.append(_EXISTING)
    if not isinstance(after.schema, RecordSchema):
        unchecked.append(_ASKED)
    if any(effect.field.startswith("spec.config.") or "=" in effect.text for effect in effects):
        unchecked.append(_BROKERS)
    return effects


def _policy(draft: Draft, around: Surroundings) -> tuple[Effect, ...]:
    assert draft.wanted is not None
    after = policy_entry(draft.wanted, around.config)
    before = policy_entry(draft.live, around.config) if draft.live is not None else None
    governed = around.topics.in_namespace(draft.namespace)
    return policies.preview(before, after, governed, around.policies.live, around.policies.wanted)


def _topic_set(draft: Draft, around: Surroundings, unchecked: list[str]) -> tuple[Effect, ...]:
    assert draft.wanted is not None
    unchecked.append(_MATCHES)
    before = TopicSet.parse(draft.live) if draft.live is not None else None
    after = TopicSet.parse(draft.wanted)
    known = {
        entry.resource.topic_name
        for entry in around.topics.in_namespace(draft.namespace)
        if entry.resource is not None and entry.profile == after.spec.profile
    }
    return topic_sets.preview(before, after, around.config, configured=not around.without, topics=known)


def _replay(draft: Draft, around: Surroundings) -> tuple[Effect, ...]:
    assert draft.wanted is not None
    after = replay_entry(draft.wanted, around.config)
    before = replay_entry(draft.live, around.config) if draft.live is not None else None
    topic = around.topics.get(after.topic) if after.topic is not None else None
    return replays.preview(before, after, topic, configured=not around.without)


def _user(draft: Draft, around: Surroundings, unchecked: list[str]) -> tuple[Effect, ...]:
    assert draft.wanted is not None
    unchecked.append(_GRANTED)
    before = user_entry(draft.live) if draft.live is not None else None
    return users.preview(before, user_entry(draft.wanted), around.config, configured=not around.without)


def _rest(draft: Draft, effects: Sequence[Effect]) -> Iterator[Effect]:
    """Yield the other differences of the object, which have no effect on data: labels and annotations of other tools."""
    assert draft.wanted is not None
    if draft.live is None:
        if not effects:
            yield created("spec", f"{draft.kind} {draft.name}")
        return
    for section in ("labels", "annotations"):
        old, new = (_plain(each, section) for each in (draft.live, draft.wanted))
        for difference in differences(old, new, f"metadata.{section}"):
            yield changed(difference.path, "", *difference.texts)
    if not effects:
        for difference in differences(draft.live.get("spec") or {}, draft.wanted.get("spec") or {}, "spec"):
            yield changed(difference.path, "no effect on Kafka topic, table and ingestion", *difference.texts)


def _plain(manifest: dict[str, Any], section: str) -> dict[str, str]:
    """Return labels or annotations without those that only Firn and kubectl read."""
    found: dict[str, str] = manifest["metadata"].get(section) or {}
    mine = ours(found) if section == "annotations" else {}
    return {key: value for key, value in found.items() if key not in mine and key != manifests.LAST_APPLIED}


# Output


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """Print a plan as text or as JSON."""
    if as_json:
        print(json.dumps(document(plan), indent=2, ensure_ascii=False))
    else:
        show(list(lines(plan)))


def document(plan: Plan) -> dict[str, Any]:
    """Return a plan as a JSON document."""
    return {
        "documents": [
            {
                "kind": planned.draft.kind,
                "namespace": planned.draft.namespace,
                "name": planned.draft.name,
                "place": planned.draft.place,
                "result": planned.result,
                "effects": [_effect_document(effect) for effect in planned.effects],
                "notChecked": list(planned.unchecked),
            }
            for planned in plan.documents
        ],
        "notChecked": list(plan.unchecked),
        "exitCode": int(plan.code),
    }


def _effect_document(effect: Effect) -> dict[str, str]:
    whole = {
        "kind": str(effect.kind),
        "field": effect.field,
        "before": effect.before,
        "after": effect.after,
        "effect": effect.text,
        "reason": effect.reason,
    }
    return {key: value for key, value in whole.items() if value or key == "field"}


def lines(plan: Plan) -> Iterator[Line]:
    """Yield the lines of a plan."""
    for planned in plan.documents:
        draft = planned.draft
        title = f"{draft.kind} {draft.namespace}/{draft.name}"
        if draft.foreign:
            yield Line(f"{draft.kind} {draft.name}: left out, because it is no resource of Firn", "dim")
            continue
        yield Line(f"{title}: {planned.result}", "bad" if planned.result == "refused" else "head")
        for effect in planned.effects:
            yield from _effect_lines(effect)
        yield from _notes(planned.unchecked)
    if plan.unchecked:
        yield Line("")
        yield Line("Not checked in this plan:", "head")
        yield from (Line(f"  ? {note}", "dim", indent=4) for note in plan.unchecked)
    yield Line("")
    yield Line(_summary(plan), "bad" if plan.code is PlanCode.REFUSED else "head")


def _effect_lines(effect: Effect) -> Iterator[Line]:
    mark = _MARKS.get(effect.kind, "~")
    style = {"!": "bad", "+": "good"}.get(mark, "")
    values = f": {effect.before or '(unset)'} -> {effect.after or '(unset)'}" if effect.before or effect.after else ""
    reason = f" ({effect.reason})" if effect.reason else ""
    yield Line(f"  {mark} {effect.kind:<9} {effect.field}{values}{reason}", style, indent=14)  # type: ignore[arg-type]
    if effect.text:
        yield Line(f"{'':14}{effect.text}", indent=14)


def _notes(unchecked: Iterable[str]) -> Iterator[Line]:
    yield from (Line(f"  ? not checked: {note}", "dim", indent=14) for note in unchecked)


def _summary(plan: Plan) -> str:
    results = [planned.result for planned in plan.documents if not planned.draft.foreign]
    counts = [
        f"{results.count(word)} {word}" for word in ("created", "changed", "refused", "unchanged") if word in results
    ]
    return f"Plan: {', '.join(counts) or 'nothing of Firn'}. Nothing was applied."
