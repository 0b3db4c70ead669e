"""Manifests in files, and the changes that ``kubectl apply`` makes with them. Pure, except for `read`."""

import copy
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from firn.model import names
from firn.model.errors import InvalidSpecError

Manifest = dict[str, Any]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_ENDINGS = (".yaml", ".yml", ".json")


class _Loader(yaml.SafeLoader):
    """Reads times as text, as kubectl does."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest, and its place for messages."""

    manifest: Manifest
    place: str


def read(paths: Sequence[str]) -> list[Document]:
    """Return the documents of files, of the files in folders, and of standard input (``-``).

    Raises InvalidSpecError that names the file.
    """
    found: list[Document] = []
    for path in paths:
        if path == "-":
            found += parse(sys.stdin.read(), "standard input")
            continue
        try:
            files = (
                sorted(each for each in Path(path).iterdir() if each.suffix in _ENDINGS)
                if Path(path).is_dir()
                else [Path(path)]
            )
            for file in files:
                found += parse(file.read_text(), str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSpecError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not found:
        raise InvalidSpecError(f"{', '.join(paths)}: there is no manifest; write at least one document")
    return found


def parse(text: str, place: str) -> Iterator[Document]:
    """Yield the documents of a YAML or JSON text. Lists of Kubernetes yield their items. Raises InvalidSpecError."""
    try:
        documents = [each for each in yaml.load_all(text, _Loader) if each is not None]
    except yaml.YAMLError as error:
        raise InvalidSpecError(f"{place}: this is no YAML: {' '.join(str(error).split())}") from error
    for number, document in enumerate(documents, 1):
        where = f"{place}, document {number}" if len(documents) > 1 else place
        if not isinstance(document, dict) or not document.get("kind") or not document.get("apiVersion"):
            raise InvalidSpecError(f"{where}: a manifest needs apiVersion, kind and metadata")
        items = document.get("items") if str(document["kind"]).endswith("List") else [document]
        yield from (Document(item, where) for item in items or [])


def three_way(original: Mapping[str, Any], wanted: Mapping[str, Any], live: Mapping[str, Any]) -> Manifest:
    """Return the merge patch of ``kubectl apply``: it sets what differs, and removes what only ``original`` has.

    ``original`` is the manifest that was applied last. Lists are replaced as a whole.
    """
    patch: Manifest = {}
    for key, value in wanted.items():
        now = live.get(key)
        if isinstance(value, Mapping) and isinstance(now, Mapping):
            before = original.get(key)
            part = three_way(before if isinstance(before, Mapping) else {}, value, now)
            if part:
                patch[key] = part
        elif value != now:
            patch[key] = value
    return patch | {key: None for key in original if key not in wanted and key in live}


def merged(live: Mapping[str, Any], patch: Mapping[str, Any]) -> Manifest:
    """Return an object after a merge patch (RFC 7396)."""
    result = copy.deepcopy(dict(live))
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            part = result.get(key)
            result[key] = merged(part if isinstance(part, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def last_applied(live: Mapping[str, Any]) -> Manifest:
    """Return the manifest that ``kubectl apply`` applied last; empty if it is not known."""
    text = ((live.get("metadata") or {}).get("annotations") or {}).get(LAST_APPLIED)
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def appliers(live: Mapping[str, Any]) -> list[str]:
    """Return the field managers that apply the object on the server's side."""
    fields: Iterable[Mapping[str, Any]] = (live.get("metadata") or {}).get("managedFields") or []
    found = {
        str(each.get("manager"))
        for each in fields
        if each.get("operation") == "Apply"
        and not each.get("subresource")
        and each.get("manager") != names.FIELD_MANAGER
    }
    return sorted(found)
