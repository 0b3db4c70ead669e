"""Cache of all DeadLetterReplays, as the watch last showed them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from firn.api.model import Duration
from firn.api.v1alpha1 import DeadLetterReplay
from firn.decoders.bad_records import Code
from firn.model import durations, names
from firn.model.conditions import ConditionType, Reason
from firn.model.config import Config
from firn.model.errors import InvalidSpecError
from firn_controllers.cache.policies import PolicyEntry
from firn_controllers.cache.topics import EPOCH, Name
from firn_controllers.conditions.annotations import remarks
from firn_controllers.ports import Manifest
from firn_controllers.specs.calendar import Windows
from firn_controllers.specs.terms import PolicyTerms

KIND: Literal["DeadLetterReplay"] = "DeadLetterReplay"
_DURATION: TypeAdapter[str] = TypeAdapter(Duration)


@dataclass(frozen=True, slots=True)
class ReplayEntry:
    """A DeadLetterReplay. ``resource`` is None if it cannot be read, and ``problem`` says why it cannot be followed."""

    kind: Literal["DeadLetterReplay"]
    name: Name
    uid: str
    generation: int
    resource_version: str
    status: Mapping[str, Any]
    paused: bool
    """True if an annotation pauses reconciliation."""
    remarks: str
    resource: DeadLetterReplay | None
    terms: PolicyTerms | None
    problem: InvalidSpecError | None
    ttl: timedelta | None
    """Time after the end until the deletion, also of a replay that cannot be read. None: the replay stays."""

    @property
    def finished(self) -> bool:
        """True if the status says that the replay has ended."""
        conditions = self.status.get("conditions") or []
        return any(item["type"] == ConditionType.FINISHED and item["status"] == "True" for item in conditions)

    @property
    def topic(self) -> Name | None:
        """Namespace and name of the topic; None if the replay cannot be read."""
        return (self.name[0], self.resource.spec.topic_ref.name) if self.resource is not None else None

    @property
    def finish_time(self) -> datetime | None:
        """The end of the replay."""
        text = self.status.get("finishTime")
        return datetime.fromisoformat(text) if text else None

    @property
    def policy(self) -> PolicyEntry:
        """The replay as a policy: runs are planned and created in the same way for both."""
        return PolicyEntry(
            kind=KIND,
            name=self.name,
            uid=self.uid,
            created=EPOCH,
            generation=self.generation,
            resource_version=self.resource_version,
            status=self.status,
            request=None,
            paused=self.paused,
            remarks="",
            resource=None,
            terms=self.terms,
            problem=self.problem,
            trigger=(),
        )


def replay_entry(manifest: Manifest, config: Config) -> ReplayEntry:
    """Return the entry of a live object."""
    metadata = manifest["metadata"]
    annotations = metadata.get("annotations") or {}
    resource: DeadLetterReplay | None = None
    terms, problem = None, None
    try:
        resource = DeadLetterReplay.model_validate(manifest)
        terms = _terms(resource, config)
    except ValidationError as error:
        problem = InvalidSpecError(
            "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        )
    except InvalidSpecError as error:
        problem = error
    return ReplayEntry(
        kind=KIND,
        name=(metadata["namespace"], metadata["name"]),
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 0),
        resource_version=metadata.get("resourceVersion", ""),
        status=manifest.get("status") or {},
        paused=annotations.get(names.PAUSE) == "true",
        remarks=remarks(annotations, (names.PAUSE,)),
        resource=resource,
        terms=terms,
        problem=problem,
        ttl=_ttl(manifest.get("spec")),
    )


def _ttl(spec: object) -> timedelta | None:
    """Return ``ttlAfterFinished`` of a spec, of which other fields may be invalid; None if it is unset or itself invalid."""
    text = spec.get("ttlAfterFinished") if isinstance(spec, Mapping) else None
    try:
        return durations.parse(_DURATION.validate_python(text)) if text is not None else None
    except ValueError:
        return None


def _terms(resource: DeadLetterReplay, config: Config) -> PolicyTerms:
    for code in resource.spec.where.codes:
        if code not in set(Code):
            causes = ", ".join(sorted(Code))
            raise InvalidSpecError(
                f"spec.where.codes: {code} is no cause of dead letters; create the replay again with some of {causes}"
            )
    run = resource.spec.run
    if run.size not in config.maintenance.sizes:
        sizes = ", ".join(sorted(config.maintenance.sizes))
        raise InvalidSpecError(
            f"spec.run.size: {run.size} is not in the operator's configuration; create the replay again with one of {sizes}",
            reason=Reason.NOT_ALLOWED,
        )
    return PolicyTerms(
        slots=None,
        windows=Windows(),
        triggers=None,
        max_concurrent=1,
        deadline=durations.parse(run.deadline),
        retries=run.retries,
        size=run.size,
        suspended=False,
        idle=False,
    )


class ReplayCache:
    """DeadLetterReplays by namespace and name. Use it from one event loop."""

    def __init__(self) -> None:
        self._replays: dict[Name, ReplayEntry] = {}
        self._unfinished: dict[Name, set[Name]] = {}
        """Topic -> its replays that have not ended."""

    def put(self, new: ReplayEntry) -> None:
        """Store a replay as the watch or the answer to a write shows it."""
        self._forget(new.name)
        self._replays[new.name] = new
        if new.topic is not None and not new.finished:
            self._unfinished.setdefault(new.topic, set()).add(new.name)

    def remove(self, name: Name, uid: str) -> None:
        """Remove a deleted replay."""
        old = self._replays.get(name)
        if old is not None and old.uid == uid:
            self._forget(name)

    def longest_ms(self, topic: Name) -> int:
        """Return the longest deadline of a replay of ``topic`` that has not ended, in milliseconds; 0 without one."""
        replays = (self._replays[name] for name in self._unfinished.get(topic, ()))
        deadlines = (each.terms.deadline for each in replays if each.terms is not None)
        return max((round(deadline.total_seconds() * 1000) for deadline in deadlines), default=0)

    def _forget(self, name: Name) -> None:
        old = self._replays.pop(name, None)
        if old is None or old.topic is None:
            return
        others = self._unfinished.get(old.topic, set())
        others.discard(name)
        if not others:
            self._unfinished.pop(old.topic, None)

    def get(self, name: Name) -> ReplayEntry | None:
        """Return the replay of this name."""
        return self._replays.get(name)

    def all(self) -> Iterable[ReplayEntry]:
        """Return all replays."""
        return list(self._replays.values())
