"""The IcebergTopic of a matched topic: the template with the values of its placeholders."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.api.v1alpha1.topic_set import SET_BY_OPERATOR, TopicSet, Why
from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.children import digest
from firn_controllers.conditions.stable_text import steady
from firn_controllers.ports import Manifest

TOPIC = "topic"
"""Placeholder for the name of the Kafka topic."""
_PLACEHOLDER = re.compile(r"\$(?:(?P<dollar>\$)|(?P<name>[^\W\d]\w*)|\{(?P<braced>[^\W\d]\w*)\}|)")
_TABLE_NAMES = frozenset({"spec.table.namespace", "spec.table.name"})
_RESOURCE_NAME = "metadata.name"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a matched topic has no IcebergTopic, or one that cannot follow the template."""

    topic: str
    why: Why
    message: str


@dataclass(frozen=True, slots=True)
class Rendered:
    """The IcebergTopic that a set wants for a topic. ``resource`` is None if there can be none, and ``refusal`` says why."""

    topic: str
    manifest: Manifest
    resource: IcebergTopic | None
    table: tuple[str, str, str] | None = None
    """Catalog, namespace and name of the table."""
    refusal: Refusal | None = None

    @property
    def name(self) -> str:
        """The name of a new IcebergTopic."""
        return str(self.manifest["metadata"]["name"])

    @property
    def digest(self) -> str:
        """Hash of the labels, annotations and fields that the set wants."""
        return str(self.manifest["metadata"]["annotations"][names.TEMPLATE_HASH])

    def over(self, live: TopicEntry) -> Manifest:
        """Return the manifest that updates the topic's IcebergTopic. Its name stays."""
        return {**self.manifest, "metadata": {**self.manifest["metadata"], "name": live.name[1], "uid": live.uid}}

    def agrees(self, live: TopicEntry, agreed: dict[str, tuple[str, int]]) -> bool:
        """Return whether an IcebergTopic has every field that the set wants, and the set wants no other field removed.

        ``agreed`` remembers digest and generation by uid, because comparing 10,000 specs would stop the event loop for 0.2 s.
        """
        wanted, metadata = self.manifest["metadata"], live.metadata
        if not wanted["labels"].items() <= metadata.labels.items():
            return False
        if not wanted["annotations"].items() <= metadata.annotations.items():
            return False
        compared = (self.digest, live.generation)
        if agreed.get(live.uid) == compared:
            return True
        if self.resource is None or live.resource is None or not _within(self.resource.spec, live.resource.spec):
            return False
        agreed[live.uid] = compared
        return True


class TopicTemplate:
    """The template of a TopicSet."""

    def __init__(self, topic_set: TopicSet, groups: frozenset[str], default_catalog: str) -> None:
        """Raises InvalidSpecError for a placeholder without a group, for a group with the name topic, and for a field that the operator sets."""
        template = topic_set.spec.template
        if TOPIC in groups:
            raise InvalidSpecError(
                "spec.match: the group topic would hide the placeholder $topic, which is the name of the Kafka topic; rename the group",
                reason=Reason.BAD_PATTERN,
            )
        for name, rule in SET_BY_OPERATOR.items():
            if name in template.spec:
                raise InvalidSpecError(f"spec.template.spec.{name}: {rule.message}")
        self._namespace = topic_set.metadata.namespace
        self._profile = topic_set.spec.profile
        self._owner = topic_set.metadata.name
        self._default_catalog = default_catalog
        self._document: Manifest = {
            "metadata": {
                "name": template.metadata.name,
                "labels": template.metadata.labels,
                "annotations": template.metadata.annotations,
            },
            "spec": template.spec,
        }
        for path, text in _texts(self._document, ""):
            _check(path, text, groups)

    def render(self, topic: str, groups: Mapping[str, str]) -> Rendered:
        """Return the IcebergTopic of a topic."""
        values = {TOPIC: topic, **groups}
        document = _filled(self._document, "", lambda path, text: _replaced(path, text, values))
        metadata = document["metadata"]
        labels = {**metadata["labels"], names.LABEL_TOPIC_SET: self._owner}
        spec = {**document["spec"], "profile": self._profile, "topicName": topic}
        hash_ = digest([labels, metadata["annotations"], spec])
        manifest: Manifest = {
            "apiVersion": names.API_VERSION,
            "kind": "IcebergTopic",
            "metadata": {
                "name": metadata["name"],
                "namespace": self._namespace,
                "labels": labels,
                "annotations": {**metadata["annotations"], names.TEMPLATE_HASH: hash_},
            },
            "spec": spec,
        }
        return self._checked(topic, manifest)

    def _checked(self, topic: str, manifest: Manifest) -> Rendered:
        name = manifest["metadata"]["name"]
        if not names.is_resource(name):
            cause = (
                f"the template gives the name {name or '(empty)'}, but {names.RESOURCE_NAMES}; change template.metadata.name, or exclude the"
                " topic"
            )
            return Rendered(topic, manifest, None, refusal=Refusal(topic, "InvalidName", steady(cause)))
        try:
            resource = IcebergTopic.parse(manifest)
            target = resource.table_target(self._default_catalog)
        except InvalidSpecError as error:
            return Rendered(topic, manifest, None, refusal=Refusal(topic, "InvalidSpec", steady(f"template: {error}")))
        return Rendered(topic, manifest, resource, (target.catalog, target.namespace, target.name))


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every text in a document."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, path)


def _filled(value: Any, path: str, replace: Callable[[str, str], str]) -> Any:
    """Return a document with every text replaced. The keys of maps stay."""
    if isinstance(value, str):
        return replace(path, value) if "$" in value else value
    if isinstance(value, Mapping):
        return {key: _filled(item, f"{path}.{key}" if path else key, replace) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_filled(item, path, replace) for item in value]
    return value


def _check(path: str, text: str, groups: frozenset[str]) -> None:
    for found in _PLACEHOLDER.finditer(text):
        name = found["name"] or found["braced"]
        if found["dollar"] is None and name is None:
            raise InvalidSpecError(
                f"spec.template.{path}: $ begins a placeholder, such as $topic; write $$ for the character $",
                reason=Reason.BAD_PATTERN,
            )
        if name is not None and name != TOPIC and name not in groups:
            known = ", ".join(sorted({TOPIC, *groups}))
            raise InvalidSpecError(
                f"spec.template.{path}: spec.match has no group {name}, which ${name} needs; known are {known}: add the group"
                f" (?P<{name}>...) to match, or write $$ for the character $",
                reason=Reason.BAD_PATTERN,
            )


def _replaced(path: str, text: str, values: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        plain = values[found["name"] or found["braced"]]
        if path in _TABLE_NAMES:
            return re.sub(r"[^A-Za-z0-9_]", "_", plain)
        return re.sub(r"[^a-z0-9.-]", "-", plain.lower()) if path == _RESOURCE_NAME else plain

    return _PLACEHOLDER.sub(value, text)


def _within(wanted: BaseModel, live: BaseModel) -> bool:
    """Return whether ``live`` has the same value in every field that ``wanted`` sets."""
    for name in wanted.model_fields_set:
        mine, other = getattr(wanted, name), getattr(live, name)
        if isinstance(mine, BaseModel) and isinstance(other, BaseModel):
            if not _within(mine, other):
                return False
        elif isinstance(mine, Mapping) and isinstance(other, Mapping):
            if not mine.items() <= other.items():
                return False
        elif mine != other:
            return False
    return True
