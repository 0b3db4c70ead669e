"""Manifests in files, and the changes that ``kubectl apply`` makes with them. Pure, except for `read`."""

import copy
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from firn.model import names
from firn.model.errors import InvalidSpecError

Manifest = dict[str, Any]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_MERGE = "tag:yaml.org,2002:merge"
_ENDINGS = (".yaml", ".yml", ".json")


class _Loader(yaml.SafeLoader):
    """Reads times as text, as kubectl does. Refuses mappings in which a key occurs twice."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Return the node of a mapping. Raises YAMLError for a second value of a key."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            text = self._key(key)
            if text in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"a mapping has the key {text} more than once", problem_mark=key.start_mark
                )
            seen.add(text)
        return node

    def _key(self, node: yaml.ScalarNode) -> str:
        """Return a key as JSON has it, so that 1 and 0x1 are one key. Return a key that JSON cannot have as it is written."""
        try:
            (text,) = json.loads(json.dumps({self.construct_object(node): None}))
        except (ValueError, TypeError):
            return str(node.value)
        return str(text)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Return the value of a node. Raises YAMLError with its place if the node has no such value."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            problem = f"the value is not a valid {str(node.tag).rpartition(':')[2]}; a string of this form needs quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest, and its place for messages."""

    manifest: Manifest
    place: str


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a manifest: a file, the number of its document if the file has several, and those of items in lists."""

    file: str
    document: int | None = None
    items: tuple[int, ...] = ()

    def __str__(self) -> str:
        document = () if self.document is None else (f"document {self.document}",)
        return ", ".join((self.file, *document, *(f"item {number}" for number in self.items)))


def read(paths: Sequence[str]) -> list[Document]:
    """Return the documents of files, of the files in folders, and of standard input (``-``).

    Raises InvalidSpecError that names the file.
    """
    found: list[Document] = []
    for path in paths:
        for file in _files(path):
            place = "standard input" if file == "-" else file
            found += parse(_text(file, place), place)
    if not found:
        raise InvalidSpecError(f"{', '.join(paths)}: there is no manifest; write at least one document")
    return found


def _files(path: str) -> list[str]:
    """Return the manifests of a folder, or the path of a file."""
    folder = Path(path)
    if path == "-" or not folder.is_dir():
        return [path]
    try:
        return sorted(str(each) for each in folder.iterdir() if each.suffix in _ENDINGS)
    except OSError as error:
        raise InvalidSpecError(
            f"{path}: cannot be read: {error.strerror}; check the path in -f, and your permissions for the folder"
        ) from error


def _text(file: str, place: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or error
        raise InvalidSpecError(
            f"{place}: cannot be read: {cause}; give -f the path of a readable file in UTF-8, or - and a text in UTF-8"
        ) from error


def parse(text: str, place: str) -> Iterator[Document]:
    """Yield the documents of a YAML or JSON text. Lists of Kubernetes yield their items. Raises InvalidSpecError."""
    documents = _loaded(text, place)
    for number, document in enumerate(documents, 1):
        yield from _documents(document, Place(place, number if len(documents) > 1 else None))


def _loaded(text: str, place: str) -> list[Any]:
    """Return the documents of a text as the API server gets them, which is JSON."""
    try:
        found = [each for each in yaml.load_all(text, _Loader) if each is not None]
        sent: list[Any] = json.loads(json.dumps(found, allow_nan=False, ensure_ascii=False).encode())
    except RecursionError:
        raise InvalidSpecError(f"{place}: values are nested too deep to be read; remove levels") from None
    except yaml.YAMLError as error:
        raise InvalidSpecError(
            f"{place}: the YAML cannot be read: {' '.join(str(error).split())}; correct this place"
        ) from error
    except (ValueError, TypeError) as error:
        raise InvalidSpecError(
            f"{place}: a value has no form in JSON: {str(error).partition(';')[0]}; replace it"
        ) from error
    return sent


def _documents(found: Any, where: Place) -> Iterator[Document]:
    """Yield a manifest, or the items of a list of Kubernetes and of the lists in it. Raises InvalidSpecError for anything else."""
    kind = _checked_kind(found, where)
    if not kind.endswith("List") or (kind != "List" and "items" not in found):
        yield Document(found, str(where))
        return
    items = found.get("items")
    if not isinstance(items, list | None):
        raise InvalidSpecError(f"{where}: items of {kind} is not a list; write a list of manifests")
    for number, item in enumerate(items or (), 1):
        yield from _documents(item, replace(where, items=(*where.items, number)))


def _checked_kind(found: Any, where: Place) -> str:
    """Return the kind of a manifest. Raises InvalidSpecError if kind or apiVersion is missing, or metadata is not a mapping."""
    kind, version = (found.get("kind"), found.get("apiVersion")) if isinstance(found, dict) else (None, None)
    if not (kind and isinstance(kind, str) and version and isinstance(version, str)):
        raise InvalidSpecError(
            f"{where}: apiVersion or kind is missing, or is not a string; write both, such as apiVersion: {names.API_VERSION} and kind: IcebergTopic"
        )
    if not isinstance(found.get("metadata"), dict | None):
        raise InvalidSpecError(f"{where}: metadata of {kind} is not a mapping; write metadata: {{name: NAME}}")
    return kind


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
