"""Drafts: objects as the API server would store them after a manifest is applied, without storing them."""

import re
from collections.abc import Collection as Names
from dataclasses import dataclass, field

from pydantic import ValidationError

from firn.api.model import ApiModel
from firn.api.v1alpha1 import (
    CompactionPolicy,
    DeadLetterReplay,
    IcebergTopic,
    RetentionPolicy,
    TopicGrant,
    TopicSet,
    TopicUser,
)
from firn.model import names
from firn.model.errors import AccessDeniedError
from firn_controllers.preview.effects import Effect, refused
from firn_operator.cli.resources import manifests
from firn_operator.cli.resources.connection import Collection, Connection, RefusedError, right
from firn_operator.cli.resources.manifests import Document, Manifest

PLURALS = {
    "IcebergTopic": "icebergtopics",
    "CompactionPolicy": "compactionpolicies",
    "RetentionPolicy": "retentionpolicies",
    "TopicSet": "topicsets",
    "TopicUser": "topicusers",
    "TopicGrant": "topicgrants",
    "DeadLetterReplay": "deadletterreplays",
}
"""Kinds of Firn, and their names in URLs."""
_MODELS: dict[str, type[ApiModel]] = {
    "IcebergTopic": IcebergTopic,
    "CompactionPolicy": CompactionPolicy,
    "RetentionPolicy": RetentionPolicy,
    "TopicSet": TopicSet,
    "TopicUser": TopicUser,
    "TopicGrant": TopicGrant,
    "DeadLetterReplay": DeadLetterReplay,
}
_NO_NAMES = (".", "..")
"""Names that would change the path of a URL."""
_UNKNOWN = re.compile(r'unknown field "([^"]+)"')
_VALUE = re.compile(r'^Invalid value: "[^"]*": ')
"""The kind of the value, which the API server puts before the message of a rule."""


@dataclass(slots=True)
class Draft:
    """A manifest, the live object, and the object after it is applied. ``wanted`` None: refused, or not of Firn."""

    kind: str
    namespace: str
    name: str
    place: str
    live: Manifest | None = None
    wanted: Manifest | None = None
    effects: list[Effect] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    foreign: bool = False


class Drafts:
    """Makes drafts with the rights of the person."""

    def __init__(self, connection: Connection, field_manager: str) -> None:
        self._connection = connection
        self._field_manager = field_manager

    def make(self, documents: list[Document]) -> list[Draft]:
        """Return a draft of each document. Raises AccessDeniedError if the live objects cannot be read."""
        made = {
            str((each.manifest.get("metadata") or {}).get("name"))
            for each in documents
            if each.manifest["kind"] == "Namespace"
        }
        return [self._draft(document, number, made) for number, document in enumerate(documents)]

    def _draft(self, document: Document, number: int, namespaces: Names[str]) -> Draft:
        manifest = {key: value for key, value in document.manifest.items() if key != "status"}
        metadata = manifest.get("metadata")
        metadata = dict(metadata) if isinstance(metadata, dict) else {}
        draft = Draft(
            str(manifest["kind"]),
            str(metadata.get("namespace") or self._connection.namespace),
            str(metadata.get("name") or ""),
            document.place,
        )
        group, _, version = str(manifest["apiVersion"]).rpartition("/")
        if group != names.GROUP:
            draft.foreign = True
            return draft
        if version != names.VERSION or draft.kind not in PLURALS:
            text = f"{names.GROUP} has no kind {draft.kind} of version {version}; write one of {', '.join(PLURALS)} of {names.API_VERSION}"
            draft.effects.append(refused("kind", text, "NotFound"))
            return draft
        login = self._connection.login
        if login.chosen and draft.namespace != login.namespace:
            text = f"the manifest has namespace {draft.namespace}, and --namespace is {login.namespace}; change one of them"
            draft.effects.append(refused("metadata.namespace", text, "Invalid"))
            return draft
        if not draft.name:
            draft.effects.append(refused("metadata.name", "a plan needs metadata.name; set it", "Invalid"))
            return draft
        for path, name in (("metadata.namespace", draft.namespace), ("metadata.name", draft.name)):
            if name in _NO_NAMES:
                draft.effects.append(
                    refused(path, f"no resource of Kubernetes can have the name {name}; choose another", "Invalid")
                )
                return draft
        manifest["metadata"] = {**metadata, "namespace": draft.namespace}
        collection = Collection(PLURALS[draft.kind], draft.namespace)
        draft.live = self._connection.read(collection, draft.name)
        self._try(draft, collection, manifest, namespaces)
        if draft.live is None and draft.wanted is not None:
            # The order of the documents decides which of two new resources is the older one.
            draft.wanted["metadata"]["uid"] = f"new-{number:06}"
        return draft

    def _try(self, draft: Draft, collection: Collection, manifest: Manifest, namespaces: Names[str]) -> None:
        """Fill ``wanted`` by a dry run, or refuse the draft with the causes of the API server."""
        try:
            draft.wanted = self._dry_run(draft, collection, manifest)
        except AccessDeniedError as error:
            draft.unchecked.append(f"the rules of the CRD, because {right(error)}")
            _fill(draft, manifest)
        except RefusedError as error:
            if error.kind == "namespaces" and draft.namespace in namespaces:
                draft.unchecked.append(f"the rules of the CRD, because namespace {draft.namespace} does not exist yet")
                _fill(draft, manifest)
                return
            draft.effects += causes(error)

    def _dry_run(self, draft: Draft, collection: Collection, manifest: Manifest) -> Manifest:
        if draft.live is None:
            return self._connection.dry_run("create", collection, draft.name, manifest)
        managers = manifests.appliers(draft.live)
        if managers and manifests.LAST_APPLIED not in (draft.live["metadata"].get("annotations") or {}):
            manager = self._field_manager if self._field_manager in managers else managers[0]
            return self._connection.dry_run(
                "apply", collection, draft.name, manifest, fieldManager=manager, force="true"
            )
        patch = manifests.three_way(manifests.last_applied(draft.live), manifest, draft.live)
        return self._connection.dry_run("patch", collection, draft.name, patch, fieldManager=self._field_manager)


def causes(error: RefusedError) -> list[Effect]:
    """Return the refusals in an answer of the API server, each with its field."""
    if error.kind == "namespaces":
        return [refused("metadata.namespace", f"{error}; create the namespace first", error.reason)]
    unknown = _UNKNOWN.findall(str(error))
    if unknown:
        text = "the CRD has no field of this name; correct or remove it: kubectl explain has all fields"
        return [refused(path, text, error.reason) for path in dict.fromkeys(unknown)]
    return [refused(path or "manifest", _VALUE.sub("", message), error.reason) for path, message in error.causes]


def _fill(draft: Draft, manifest: Manifest) -> None:
    """Set ``wanted`` to the merged manifest, without defaults and rules of the API server. Refuse values that a field cannot have."""
    live = draft.live or {}
    wanted = manifests.merged(live, manifests.three_way(manifests.last_applied(live), manifest, live))
    try:
        _MODELS[draft.kind].model_validate(wanted)
    except ValidationError as error:
        for each in error.errors():
            text = f"{each['msg']}; correct the value"
            draft.effects.append(refused(".".join(map(str, each["loc"])), text, "Invalid"))
        return
    draft.wanted = wanted
