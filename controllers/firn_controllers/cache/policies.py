"""Cache of all policies, as the watch last showed them. It answers which policy governs a topic."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal

from pydantic import ValidationError

from firn.api.v1alpha1 import CompactionPolicy, RetentionPolicy
from firn.model import names
from firn.model.conditions import Reason
from firn.model.config import Config
from firn.model.errors import InvalidSpecError
from firn.model.jobs import RecordSchema
from firn_controllers.cache.topics import EPOCH, Name, TopicEntry
from firn_controllers.conditions.annotations import ON_POLICIES, ours, remarks
from firn_controllers.ports import Manifest
from firn_controllers.specs import terms as policy_terms
from firn_controllers.specs.policy_fit import misfit
from firn_controllers.specs.terms import Policy, PolicyTerms

Kind = Literal["CompactionPolicy", "RetentionPolicy", "Audit", "DeadLetterReplay"]
"""Kinds of runs. An audit has no resource: the configuration makes its terms. A DeadLetterReplay governs no topic: it runs once."""
KINDS: tuple[Kind, ...] = ("CompactionPolicy", "RetentionPolicy")
"""Kinds of policies."""
MODELS: Mapping[Kind, type[CompactionPolicy] | type[RetentionPolicy]] = {
    "CompactionPolicy": CompactionPolicy,
    "RetentionPolicy": RetentionPolicy,
}
LONGEST_REQUEST = 128
MISFITS_KEPT = 40_000
"""Kept answers of `PolicyCache`: twice those of 10,000 topics with a policy of each kind."""


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """A policy.

    ``terms`` is None if the policy cannot be followed, and ``problem`` says why. ``resource`` is None if it cannot be
    read.
    """

    kind: Kind
    name: Name
    uid: str
    created: datetime
    generation: int
    resource_version: str
    status: Mapping[str, Any]
    request: str | None
    """Value of the annotation ``firn.dev/run-now``, cut to the length that status keeps."""
    paused: bool
    """True if an annotation pauses reconciliation."""
    remarks: str
    """Remarks about annotations without effect, for the message of a condition."""
    resource: Policy | None
    terms: PolicyTerms | None
    problem: InvalidSpecError | None
    trigger: tuple[object, ...]
    """The parts of the object, without its status, that a reconcile depends on."""


def policy_entry(manifest: Manifest, config: Config) -> PolicyEntry:
    """Return the entry of a live object."""
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations") or {}
    kind: Kind = manifest["kind"]
    resource: Policy | None = None
    terms, problem = None, None
    try:
        resource = MODELS[kind].model_validate(manifest)
        terms = policy_terms.read_terms(resource, metadata.get("uid", ""), config)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        problem = InvalidSpecError("; ".join(problems))
    except InvalidSpecError as error:
        problem = error
    return PolicyEntry(
        kind=kind,
        name=(metadata["namespace"], metadata["name"]),
        uid=metadata.get("uid", ""),
        created=(resource.metadata.creation_timestamp if resource else None) or EPOCH,
        generation=metadata.get("generation", 0),
        resource_version=metadata.get("resourceVersion", ""),
        status=manifest.get("status") or {},
        request=(annotations.get(names.RUN_NOW) or "")[:LONGEST_REQUEST] or None,
        paused=annotations.get(names.PAUSE) == "true",
        remarks=remarks(annotations, ON_POLICIES),
        resource=resource,
        terms=terms,
        problem=problem,
        trigger=(
            metadata.get("uid"),
            metadata.get("generation"),
            tuple(sorted(ours(annotations).items())),
        ),
    )


@dataclass(frozen=True, slots=True)
class Resolution:
    """The policy of one kind that governs a topic.

    ``reason`` and ``message`` say why it is not followed, or why a named one is missing. ``problem`` says why it does not
    fit, without the policy's name.
    """

    policy: PolicyEntry | None = None
    because: Literal["NamedByTopic", "Selected"] | None = None
    reason: Reason | None = None
    message: str = ""
    problem: str = ""

    @property
    def followed(self) -> bool:
        """True if a policy governs the topic and fits it."""
        return self.policy is not None and self.reason is None


class PolicyCache:
    """Policies by kind and namespace. Use it from one event loop."""

    def __init__(self, schemas: Mapping[str, RecordSchema] = MappingProxyType({})) -> None:
        """``schemas``: uid of a topic whose columns the operator has to find -> its schema."""
        self._schemas = schemas
        self._policies: defaultdict[tuple[Kind, str], dict[str, PolicyEntry]] = defaultdict(dict)
        self._misfits: dict[
            tuple[object, ...], InvalidSpecError | None
        ] = {}  # by uid and generation of both, and the schema id of the topic

    def put(self, new: PolicyEntry) -> bool:
        """Store a policy as the watch shows it. Returns whether it differs in more than its status."""
        policies = self._policies[new.kind, new.name[0]]
        old = policies.get(new.name[1])
        policies[new.name[1]] = new
        return old is None or old.trigger != new.trigger

    def remove(self, kind: Kind, name: Name, uid: str) -> bool:
        """Remove a deleted policy. Returns whether the cache had it."""
        policies = self._policies[kind, name[0]]
        old = policies.get(name[1])
        if old is None or old.uid != uid:
            return False
        del policies[name[1]]
        return True

    def get(self, kind: Kind, name: Name) -> PolicyEntry | None:
        """Return the policy of this name."""
        return self._policies[kind, name[0]].get(name[1])

    def in_namespace(self, kind: Kind, namespace: str) -> Iterable[PolicyEntry]:
        """Return the policies of a namespace."""
        return self._policies[kind, namespace].values()

    def all(self) -> Iterable[PolicyEntry]:
        """Return all policies."""
        return [policy for policies in self._policies.values() for policy in policies.values()]

    def resolve(self, kind: Kind, topic: TopicEntry) -> Resolution:
        """Return the policy that governs ``topic``.

        A policy that the topic names wins. Of the policies whose selector matches, the highest priority wins, then the
        oldest, then the first name.
        """
        if topic.resource is None:
            return Resolution()
        spec = topic.resource.spec
        reference = spec.compaction_policy_ref if kind == "CompactionPolicy" else spec.retention_policy_ref
        if reference is not None:
            named = self.get(kind, (topic.name[0], reference.name))
            if named is None:
                message = f"{kind} {reference.name} does not exist in namespace {topic.name[0]}; create it, or correct the reference in the spec"
                return Resolution(reason=Reason.POLICY_NOT_FOUND, message=message)
            return self._checked(Resolution(named, "NamedByTopic"), topic)
        labels = topic.resource.metadata.labels
        fitting = [
            policy
            for policy in self.in_namespace(kind, topic.name[0])
            if policy.resource is not None
            and policy.resource.spec.selector is not None
            and policy.resource.spec.selector.matches(labels)
        ]
        if not fitting:
            return Resolution()
        return self._checked(Resolution(min(fitting, key=_precedence), "Selected"), topic)

    def _checked(self, resolution: Resolution, topic: TopicEntry) -> Resolution:
        """Return the resolution, or the reason why its policy is not followed for this topic."""
        policy = resolution.policy
        assert policy is not None
        problem = policy.problem or self._misfit(policy, topic)
        if problem is None:
            return resolution
        message = f"{policy.kind} {policy.name[1]}: {problem}"
        return Resolution(policy, resolution.because, Reason.POLICY_INVALID, message, str(problem))

    def _misfit(self, policy: PolicyEntry, topic: TopicEntry) -> InvalidSpecError | None:
        """Return why the policy does not fit this topic.

        The answer is kept: computing it for every topic would be most of a reconcile.
        """
        registered = self._schemas.get(topic.uid)
        number = registered.schema_id or 0 if registered is not None else None
        key = (policy.uid, policy.generation, topic.uid, topic.generation, number)
        if key not in self._misfits:
            if len(self._misfits) >= MISFITS_KEPT:
                del self._misfits[next(iter(self._misfits))]  # the oldest, often of an earlier generation
            self._misfits[key] = (
                misfit(policy.resource, topic.resource, registered) if policy.resource and topic.resource else None
            )
        return self._misfits[key]


def _precedence(policy: PolicyEntry) -> tuple[int, datetime, str]:
    assert policy.resource is not None
    return (-policy.resource.spec.priority, policy.created, policy.name[1])
