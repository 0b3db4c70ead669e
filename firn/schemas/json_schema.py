"""JSON schemas as columns of a table.

Source: JSON Schema, drafts 4 to 2020-12: "$ref", "type", "properties", "additionalProperties", "items", "allOf", "anyOf",
"oneOf", "then", "else", "dependentSchemas", "format". Other keywords limit values, and make no column. A value that may be of several
types, or of any type, and a value whose schema contains itself is a variant, if the table can have variants. Otherwise `columns`
refuses the schema.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Never
from urllib.parse import unquote, urljoin

from firn import member_paths
from firn.member_paths import Path
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column
from firn.tables import types
from firn.tables.types import ListOf, MapOf, Primitive, Struct, Type
from firn.texts import without_surrogates

MOST_TEXT = 1 << 20
"""Largest schema, in characters."""
MOST_TYPES = 10_000
"""Most types of a schema with all its parts. A type counts each time that it is used."""
MOST_NAME, MOST_DOC = 128, 1024
"""Longest name of a member and longest comment of a column, in characters."""
MOST_LEVELS = 64
"""Most levels of schemas inside each other."""
_COLUMNS: Mapping[str, str] = {"boolean": "boolean", "integer": "long", "number": "double", "string": "string"}
_FORMATS: Mapping[str, str] = {"date-time": "timestamptz", "date": "date"}
"""Formats of strings with a column of another type."""
_DEFINITIONS = ("$defs", "definitions")
_ALONE = re.compile(r"https?://json-schema\.org/draft-0[0-7]/schema#?", re.ASCII)
"""Values of ``$schema`` by which a schema with a reference is only the reference: drafts up to 7."""
_VALUES = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose values are no schemas."""
_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", *_DEFINITIONS})
"""Keywords whose values are schemas by name."""
_SAYS_TYPE = ("type", "properties", "items", "allOf", "anyOf", "oneOf")
_NUMBERS = {Primitive("long"), Primitive("double")}
_ANY = (
    "the schema does not say what the value is; declare a type, the properties of an object, and the items of an array"
)
_OF_VALUE = "set spec.table.formatVersion: 3, which makes such a part of a value a variant, or use schema.raw: Binary"
_OF_KEY = "set spec.schema.key.columns: Binary, which lands the bytes of the key"
_Place = tuple[str, str]
"""A document and a place in it."""
_Cause = Literal["Any", "Ignored", "Types", "Places", "Recursive"]


_OPEN: Mapping[_Cause, str] = {
    "Any": "any value",
    "Ignored": "any value",
    "Types": "values of several types",
    "Places": "an array",
    "Recursive": "a value that contains itself",
}
"""The words of messages for values that only a variant can hold, by cause."""


@dataclass(frozen=True, slots=True)
class _Open(Primitive):
    """The type of values that only a variant can hold, and why: the place, the cause, and names for its message."""

    path: str
    cause: _Cause
    names: tuple[str, ...]
    choices: tuple[Type, ...] = ()
    """The types that the values have, if the cause is Types."""

    @property
    def is_weak(self) -> bool:
        """Return whether the schema says nothing about the values, so that another schema may say it."""
        return self.cause in ("Any", "Ignored")


_Way = Literal["All", "Any", "Detail"]
"""How two schemas combine. All: a value fits both. Any: a value fits one of them. Detail: a value fits the first one, and may fit the
second one."""


@dataclass(frozen=True, slots=True)
class _Found:
    """The type of a column, and its size: levels, and types with those inside it. No type: the value is null or empty."""

    type: Type | None
    levels: int = 1
    types: int = 1


_NOTHING = _Found(None)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The members of records that become columns, and how."""

    read: Collection[str] | None = None
    """The names of the members of a record that have columns; None if all have them."""
    paths: Collection[Path] = ()
    """The paths of members that columns read. Names in them can be any."""
    variants: bool = False
    """True if the table can have variants."""
    any_names: bool = False
    """True if the members only have to be decoded, so that all names can be any that a path can have. Other members are left out."""
    keeps_others: bool = False
    """A column has the members of the record that have no column. So a member whose name no column can have is left out."""
    of_key: bool = False
    """True if the schema is that of keys."""

    @property
    def places(self) -> frozenset[str]:
        """The places on the way to members that columns read, with these members."""
        return frozenset(_place(path[:end]) for path in self.paths for end in range(1, len(path) + 1))

    @property
    def opened(self) -> frozenset[str]:
        """The places of objects of which columns read some members, and none reads the whole object."""
        whole = set(self.paths)
        starts = {path[:end] for path in self.paths for end in range(1, len(path))}
        return frozenset(
            _place(each) for each in starts if all(each[:end] not in whole for end in range(1, len(each) + 1))
        )


def _place(path: Path) -> str:
    return "".join(map(member_paths.step, path))


def columns(text: str, references: Mapping[str, str], wanted: Wanted = Wanted()) -> tuple[Column, ...]:
    """Return the columns of a schema's members. ``references`` are further schemas by name.

    Raises InvalidSpecError (BadSchema) with cause and place.
    """
    documents = {name: _document(content) for name, content in references.items()} | {"": _document(text)}
    parser = _Parser(documents, wanted, wanted.places, wanted.opened)
    parser.find_embedded()
    parser.find_recursive()
    found = parser.root()
    if found is None and wanted.read is not None:
        return ()
    if not isinstance(found, Struct):
        raise _bad("", f"a record has to be an object with properties, and the schema declares {_shown(found)}")
    if not wanted.variants and (opened := _first_open(found)):
        _refuse(opened, _OF_KEY if wanted.of_key else _OF_VALUE)
    docs = parser.descriptions()
    return tuple(Column(name=name, type=str(kind), doc=docs.get(name)) for name, kind in found.fields)


def _joined(base: str, reference: str) -> str:
    """Return the URI that a reference names; the reference itself if one of both is no URI."""
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def title(text: str) -> str:
    """Return the title of a schema, by which serializers name its record; empty without one, and for a text that is no schema."""
    try:
        document = _document(text)
    except InvalidSpecError:
        return ""
    found = document.get("title") if isinstance(document, dict) else None
    return found if isinstance(found, str) else ""


def _document(text: str) -> Any:
    if len(text) > MOST_TEXT:
        raise _bad("", f"the schema has {len(text)} characters, more than {MOST_TEXT}; make it smaller")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad("", f"the schema is not JSON: {error}") from None


@dataclass(slots=True)
class _Parser:
    """Finds types. The document with the name "" is the schema, and the others are its references.

    A schema inside a document that has a ``$id`` is a document of its own, under its absolute id.
    """

    documents: dict[str, Any]
    wanted: Wanted
    places: frozenset[str]
    opened: frozenset[str]
    made: dict[tuple[str, str, str | None], _Found | None] = field(default_factory=dict)
    """Types by document and place. A type may be used many times, and so may the types in it. The path of the value counts too if it
    is the record, or if columns read some of its members."""
    open: list[_Place] = field(default_factory=list)
    """The places whose types are being found."""
    recursive: set[_Place] = field(default_factory=set)
    """The places whose schemas contain themselves."""
    parents: dict[str, str] = field(default_factory=dict)
    """The document that contains each embedded document."""
    embedded: dict[int, str] = field(default_factory=dict)
    """The names of embedded documents, by the identity of their content."""
    by_id: dict[str, str] = field(default_factory=dict)
    """The names of documents by their names and ids. Empty before the first reference by an id."""
    known_ids: dict[str, _Place] = field(default_factory=dict)
    """The names of other schemas: anchors, and ids that are no documents. The first place counts."""

    def root(self) -> Type | None:
        """Return the type of the whole schema."""
        found = self._placed("", "", "", 1)
        if found is None:
            raise _bad("", _ANY)
        return found.type

    def descriptions(self) -> dict[str, str]:
        """Return the descriptions of the schema's own members."""
        members = self.documents[""].get("properties") if isinstance(self.documents[""], dict) else None
        found = members.items() if isinstance(members, dict) else ()
        texts = {name: member.get("description") for name, member in found if isinstance(member, dict)}
        return {
            name: without_surrogates(text)[:MOST_DOC] for name, text in texts.items() if isinstance(text, str) and text
        }

    def _placed(self, document: str, place: str, path: str, level: int) -> _Found | None:
        """Return the type at a place of a document, as `_find`."""
        key = document, place
        # The record itself is no column, so it may have a schema that contains itself.
        if key in self.open or (path and key in self.recursive):
            return _opened(path, "Recursive", f"{document}#{place}")
        made = (*key, path if not path or path in self.places else None)
        if made not in self.made:
            self.open.append(key)
            self.made[made] = self._find(_at(self.documents[document], document, place, path), document, path, level)
            self.open.pop()
        return self.made[made]

    def _find(self, schema: Any, document: str, path: str, level: int) -> _Found | None:
        """Return the type of the values of a schema; None if the schema does not say it."""
        if level > MOST_LEVELS:
            raise _bad(path, f"the schema nests more than {MOST_LEVELS} levels deep; make it flatter")
        if schema is False:
            return _NOTHING
        if not isinstance(schema, dict):
            return None
        document = self.embedded.get(id(schema), document)
        if "$ref" in schema and self._ignores_siblings(document):
            return self._alone(schema, document, path, level)
        always = [self._referred(schema["$ref"], document, path, level)] if "$ref" in schema else []
        always.append(self._declared(schema, document, path, level))
        always += [self._find(part, document, path, level + 1) for part in _listed(schema, "allOf", path)]
        known = [each for each in always if each is not None]
        found = _merged(known, "All", path) if known else None
        for choice in _choices(schema, path):
            branches = [self._branch(part, schema, document, path, level + 1) for part in choice]
            known = [each for each in branches if each is not None]
            chosen = _merged(known, "Any", path) if known else None
            if found is not None and chosen is not None:
                found = _merged([found, chosen], "Detail", path)
            elif chosen is not None and (len(known) == len(branches) or _has_members(chosen, schema, path)):
                found = chosen
        return found

    def _ignores_siblings(self, document: str) -> bool:
        """Return whether a schema of a document with a reference is only the reference."""
        for name in (*self._around(document), ""):
            each = self.documents[name]
            if isinstance(each, dict) and isinstance(draft := each.get("$schema"), str):
                return _ALONE.fullmatch(draft) is not None
        return False

    def _alone(self, schema: Mapping[str, Any], document: str, path: str, level: int) -> _Found | None:
        """Return the type of a reference whose siblings do not count."""
        found = self._referred(schema["$ref"], document, path, level)
        ignored = next((key for key in _SAYS_TYPE if key in schema), None)
        if found is not None or ignored is None:
            return found
        return _opened(path, "Ignored", ignored)

    def _referred(self, reference: Any, document: str, path: str, level: int) -> _Found | None:
        if not isinstance(reference, str):
            raise _bad(path, '"$ref" is not a text')
        target = self._target(reference, document)
        if target is not None:
            return self._placed(*target, path, level + 1)
        raise _bad(
            path,
            f"the schema {reference} is not known; declare it in $defs, or as a reference in the schema registry",
        )

    def _branch(self, part: Any, schema: Mapping[str, Any], document: str, path: str, level: int) -> _Found | None:
        """Return the type of a choice of a schema. The error of a part that a condition decides about names the part."""
        try:
            return self._find(part, document, path, level)
        except InvalidSpecError as error:
            key = next((each for each in ("then", "else") if part is schema.get(each)), None)
            if key is None:
                raise
            raise InvalidSpecError(f'in "{key}": {error}', reason=error.reason) from error

    def _target(self, reference: str, document: str) -> _Place | None:
        """Return the place that a reference of a document names; None if it is not known."""
        name, _, fragment = reference.partition("#")
        if not name and fragment.startswith("/"):
            return self._pointed(unquote(fragment), document)
        target = document if not name else self._document(name, document)
        if target is not None and (not fragment or fragment.startswith("/")):
            return self._inmost(target, unquote(fragment))
        own = f"{self._base(document)}#{fragment}" if not name else _joined(self._base(document), reference)
        return next((self.known_ids[each] for each in (own, reference) if each in self.known_ids), None)

    def _pointed(self, place: str, document: str) -> _Place:
        """Return the place that a pointer without a document names.

        By the specification, the inmost document has it. Some generators write an ``$id`` at each property, and mean the outmost one.
        """
        for each in self._around(document):
            try:
                _at(self.documents[each], each, place, "")
            except InvalidSpecError:
                continue
            return self._inmost(each, place)
        return document, place  # `_placed` reports it.

    def find_recursive(self) -> None:
        """Find the places whose schemas contain themselves. This comes before the types, which must not depend on the order of members."""
        found: dict[_Place, set[_Place]] = {}
        waiting: list[_Place] = [("", "")]
        while waiting:
            place = waiting.pop()
            if place not in found:
                found[place] = self._targets(place)
                waiting += found[place]
        self.recursive = _on_cycles(found)

    def _targets(self, place: _Place) -> set[_Place]:
        """Return the places that the schema at a place refers to. `_find` reports references that are not valid."""
        document, found = place[0], set()
        try:
            parts = [(document, _at(self.documents[document], *place, ""))]
        except InvalidSpecError:
            return set()
        while parts:
            document, part = parts.pop()
            if not isinstance(part, dict):
                continue
            document = self.embedded.get(id(part), document)
            if isinstance(reference := part.get("$ref"), str):
                found |= {each for each in [self._target(reference, document)] if each is not None}
            if "$ref" not in part or not self._ignores_siblings(document):
                parts += [(document, each) for each in _parts(part)]
        return found

    def _document(self, name: str, document: str) -> str | None:
        """Return the document that a reference names, also relative to the ``$id`` of its document."""
        if name in self.documents:
            return name
        if not self.by_id:
            own = _id(self.documents[""])
            for each, content in self.documents.items():
                for whole in (each, _joined(own, each) if each else own, _id(content)):
                    self.by_id.setdefault(whole, each)
        return self.by_id.get(_joined(self._base(document), name))

    def find_embedded(self) -> None:
        """Find the schemas inside the documents that references name by an id or an anchor. Embedded documents join ``documents``."""
        waiting: list[tuple[str, str, Any]] = [
            (name, "", content) for name, content in reversed(self.documents.items())
        ]
        while waiting:
            document, place, schema = waiting.pop()
            if isinstance(schema, list):
                waiting += [(document, f"{place}/{index}", each) for index, each in reversed([*enumerate(schema)])]
            if not isinstance(schema, dict):
                continue
            if place:
                document, place = self._named(schema, document, place)
            self._know(schema.get("$anchor"), "#", document, place)
            inside = []
            for key, value in schema.items():
                below = f"{place}/{_escaped(key)}"
                if key in _BY_NAME and isinstance(value, dict):
                    inside += [(document, f"{below}/{_escaped(name)}", each) for name, each in value.items()]
                elif key not in _VALUES:
                    inside.append((document, below, value))
            waiting += reversed(inside)

    def _named(self, schema: Mapping[str, Any], document: str, place: str) -> _Place:
        """Learn the id of a schema inside a document. Return the document and the place of the schema."""
        own = schema.get("$id")
        whole = _joined(self._base(document), own.removesuffix("#")) if isinstance(own, str) else ""
        taken = whole in self.documents or whole == self._base(document)
        ignored = "$ref" in schema and self._ignores_siblings(document)
        if not isinstance(own, str) or own.startswith("#") or taken or ignored:
            self._know(_id(schema), "", document, place)
            return document, place
        self._know(own, "", document, place)
        self.documents[whole], self.parents[whole], self.embedded[id(schema)] = schema, document, whole
        return whole, ""

    def _know(self, name: Any, sign: str, document: str, place: str) -> None:
        if not isinstance(name, str) or not name:
            return
        target = document, place
        base = self._base(document)
        whole = f"{base}{sign}{name}" if (sign + name).startswith("#") else _joined(base, name)
        self.known_ids.setdefault(whole, target)
        self.known_ids.setdefault(sign + name, target)

    def _base(self, document: str) -> str:
        """Return the id of a document, to which its references are relative."""
        return document if document in self.parents else _id(self.documents[document])

    def _around(self, document: str) -> Iterator[str]:
        """Yield a document and those around it."""
        yield document
        while document in self.parents:
            document = self.parents[document]
            yield document

    def _inmost(self, document: str, place: str) -> _Place:
        """Return a place relative to the inmost document that contains it."""
        content, steps = self.documents[document], place.split("/")[1:]
        for index, step in enumerate(steps):
            try:
                content = _at(content, document, f"/{step}", "")
            except InvalidSpecError:  # `_placed` reports it.
                break
            if (name := self.embedded.get(id(content))) is not None:
                document, place = name, "".join(f"/{each}" for each in steps[index + 1 :])
        return document, place

    def _declared(self, schema: Mapping[str, Any], document: str, path: str, level: int) -> _Found | None:
        """Return the type that a schema declares itself, without `allOf`, `anyOf` and `oneOf`."""
        names = _types(schema)
        if names is None:
            return None
        found: list[_Found] = []
        for name in names:
            if name == "null":
                continue
            one = self._of_type(name, schema, document, path, level)
            if one is None:
                return None
            found.append(one)
        return _merged(found, "Any", path) if found else _NOTHING

    def _of_type(self, name: str, schema: Mapping[str, Any], document: str, path: str, level: int) -> _Found | None:
        if name == "object":
            return self._object(schema, document, path, level)
        if name == "array":
            items = schema.get("items")
            if "prefixItems" in schema or isinstance(items, list):
                return _opened(path, "Places")
            item = self._find(items, document, f"{path}[]", level + 1) if items is not None else None
            if item is None and isinstance(items, dict) and items:
                item = _opened(f"{path}[]", "Any")
            if item is None or item.type is None:
                return item
            return _inside(ListOf(item.type), (item,), path)
        if name not in _COLUMNS:
            raise _bad(path, f"type {_excerpt(name)} is not a type of JSON Schema")
        kind = _COLUMNS[name]
        form = schema.get("format")
        if name == "string" and isinstance(form, str):
            kind = _FORMATS.get(form, kind)
        return _Found(Primitive(kind))

    def _object(self, schema: Mapping[str, Any], document: str, path: str, level: int) -> _Found | None:
        declared = schema.get("properties") or {}
        if not isinstance(declared, dict):
            raise _bad(path, '"properties" is not an object')
        if not declared:
            return self._map(schema, document, path, level)
        members: list[tuple[str, Type]] = []
        inside: list[_Found] = []
        seen: dict[str, str] = {}
        for name, part in declared.items():
            if not path and self.wanted.read is not None and name not in self.wanted.read:
                continue
            place = path + member_paths.step(name)
            if not self._is_usable(name, place):
                # No column can read a member whose name no path can have, so checks need not decode it.
                if self.wanted.any_names or path in self.opened or (not path and self.wanted.keeps_others):
                    continue
                self._refuse_name(name, path, place)
            found = self._find(part, document, place, level + 1) or _opened(place, "Any")
            if found.type is None:
                continue
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise _differ_in_case(path, other, name)
            members.append((name, found.type))
            inside.append(found)
        return _inside(Struct(tuple(members)), inside, path) if members else _NOTHING

    def _is_usable(self, name: str, place: str) -> bool:
        """Return whether the member at a place can have its name."""
        if self.wanted.any_names:
            return member_paths.can_name(name)
        if place in self.places:
            return True
        return len(name) <= MOST_NAME and member_paths.NAME.fullmatch(name) is not None

    def _refuse_name(self, name: str, path: str, place: str) -> Never:
        if self.wanted.of_key:
            raise _bad(
                path,
                f"{_excerpt(name)} cannot be the name of a column: it has at most {MOST_NAME} letters, digits and _,"
                f" and does not begin with a digit; {_OF_KEY}",
            )
        raise _bad(
            path,
            f"{_excerpt(name)} cannot be the name of a column: it has at most {MOST_NAME} letters, digits and _,"
            f" and does not begin with a digit; read it with a column of spec.schema.columns that has from: ${place}, or use"
            " schema.raw: Binary",
        )

    def _map(self, schema: Mapping[str, Any], document: str, path: str, level: int) -> _Found | None:
        """Return the type of an object without properties: a map, if all its members are of one type."""
        others, patterns = schema.get("additionalProperties"), schema.get("patternProperties") or {}
        parts = [*patterns.values()] if isinstance(patterns, dict) else []
        if others is not False and (others is not None or not parts):
            parts.append(others)
        found = [self._find(part, document, f"{path}{{}}", level + 1) for part in parts]
        if any(each is None and not (isinstance(part, dict) and part) for part, each in zip(parts, found, strict=True)):
            return None
        known = [_opened(f"{path}{{}}", "Any") if each is None else each for each in found]
        value = _merged(known, "Any", f"{path}{{}}") if known else _NOTHING
        return _inside(MapOf(Primitive("string"), value.type), (value,), path) if value.type is not None else _NOTHING


def _types(schema: Mapping[str, Any]) -> list[str] | None:
    """Return the names of the types that a schema allows; None if it allows any."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return [declared]
    if isinstance(declared, list):
        # A name that is repeated would double the work at each level.
        return list(dict.fromkeys(each if isinstance(each, str) else str(each) for each in declared))
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return list(dict.fromkeys(_type_of(value) for value in values)) or None
    if any(key in schema for key in ("properties", "additionalProperties", "patternProperties")):
        return ["object"]
    return ["array"] if "items" in schema or "prefixItems" in schema else None


def _type_of(value: Any) -> str:
    """Return the name of the type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
    return "array" if isinstance(value, list) else "object"


def _choices(schema: Mapping[str, Any], path: str) -> list[list[Any]]:
    """Return groups of schemas. A value fits one schema of each group. True stands for a value that fits no other schema of the group."""
    choices = [_listed(schema, key, path) for key in ("oneOf", "anyOf")]
    if "if" in schema:
        choices.append([schema.get("then", True), schema.get("else", True)])
    # Up to draft 7, a dependency may also be a list of names.
    for key in ("dependentSchemas", "dependencies"):
        parts = schema.get(key)
        choices += [
            [part, True] for part in (parts.values() if isinstance(parts, dict) else ()) if isinstance(part, dict)
        ]
    return [choice for choice in choices if choice]


def _parts(schema: Mapping[str, Any]) -> list[Any]:
    """Return the schemas in a schema that may decide about its type."""
    maps = [
        "properties",
        *(() if schema.get("properties") else ("patternProperties",)),
        "dependentSchemas",
        "dependencies",
    ]
    found = [each for key in maps if isinstance(schema.get(key), dict) for each in schema[key].values()]
    found += [each for key in ("allOf", "anyOf", "oneOf") if isinstance(schema.get(key), list) for each in schema[key]]
    keys = ["items", *(() if schema.get("properties") else ("additionalProperties",))]
    return found + [schema.get(key) for key in (*keys, *(("then", "else") if "if" in schema else ()))]


def _on_cycles(edges: Mapping[_Place, set[_Place]]) -> set[_Place]:
    """Return the places on cycles (R. Tarjan, "Depth-first search and linear graph algorithms", 1972), without recursion."""
    found: set[_Place] = set()
    numbers: dict[_Place, int] = {}
    low: dict[_Place, int] = {}
    stack: list[_Place] = []
    incomplete: set[_Place] = set()
    for start in edges:
        work = [(start, iter(edges[start]))] if start not in numbers else []
        while work:
            place, rest = work[-1]
            if place not in numbers:
                numbers[place] = low[place] = len(numbers)
                stack.append(place)
                incomplete.add(place)
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[place])
                if low[place] == numbers[place]:
                    component = [stack.pop()]
                    while component[-1] != place:
                        component.append(stack.pop())
                    incomplete.difference_update(component)
                    if len(component) > 1 or place in edges[place]:
                        found.update(component)
            elif following not in numbers:
                work.append((following, iter(edges[following])))
            elif following in incomplete:
                low[place] = min(low[place], numbers[following])
    return found


def _has_members(found: _Found, schema: Mapping[str, Any], path: str) -> bool:
    """Return whether the members of some branches are the type of a schema, although its other branches declare nothing.

    A branch that declares nothing allows any value. But it adds no members if the values are objects in any case, as the record is.
    """
    names = _types(schema) or []
    return isinstance(found.type, Struct) and (not path or ("object" in names and set(names) <= {"object", "null"}))


def _merged(found: list[_Found], way: _Way, path: str) -> _Found:
    """Return one type for the values that fit all types (All) or one of them. Objects get the members of all of them."""
    kinds = [each for each in found if each.type is not None]
    if not kinds:
        return _NOTHING
    if sum(each.types for each in kinds) > MOST_TYPES:
        raise _bad(path, f"the schema has more than {MOST_TYPES} types, if each use of a type counts")
    # In pairs, because a merge takes as long as its types are large.
    while len(kinds) > 1:
        last = kinds[len(kinds) // 2 * 2 :]
        kinds = [_pair(one, other, way, path) for one, other in zip(kinds[::2], kinds[1::2], strict=False)] + last
    return kinds[0]


def _pair(one: _Found, other: _Found, way: _Way, path: str) -> _Found:
    assert one.type is not None
    assert other.type is not None
    both = _of_both(one.type, other.type, way, path)
    return _Found(both, max(one.levels, other.levels), one.types + other.types)


def _of_both(one: Type, other: Type, way: _Way, path: str) -> Type:
    if isinstance(one, _Open) or isinstance(other, _Open):
        return _of_both_open(one, other, way, path)
    if way == "All" and (narrower := _narrower(one, other)):
        return narrower
    if one in _NUMBERS and other in _NUMBERS:
        return one if one == other else Primitive("double")
    match one, other:
        case Struct(), Struct():
            return _of_both_structs(one, other, way, path)
        case ListOf(first), ListOf(second):
            return ListOf(_of_both(first, second, way, f"{path}[]"))
        case MapOf(key, first), MapOf(_, second):
            return MapOf(key, _of_both(first, second, way, f"{path}{{}}"))
    if one == other or way == "Detail":
        return one
    return _Open(types.VARIANT, path, "Types", (_shown(one), _shown(other)), (one, other))


def _narrower(one: Type, other: Type) -> Type | None:
    """Return the type of values that fit both types, if each value of one of the types also fits the other type."""
    for narrow, wide in ((one, other), (other, one)):
        match narrow, wide:
            case Struct(), MapOf():
                return narrow
            case Primitive("long"), Primitive("double"):
                return narrow
            case Primitive(name), Primitive("string") if name in _FORMATS.values():
                return narrow
    return None


def _of_both_open(one: Type, other: Type, way: _Way, path: str) -> Type:
    opened, rest = (one, other) if isinstance(one, _Open) else (other, one)
    assert isinstance(opened, _Open)
    match way:
        case "All":
            return rest if opened.is_weak else _chosen(opened, rest, path) or opened
        case "Any":
            # With a choice that may be any value, another schema does not say which choice it is.
            more = rest.choices if isinstance(rest, _Open) else (rest,)
            return replace(opened, choices=(*opened.choices, *more) if opened.choices and more else ())
    # No member of an object may be lost, and a single value has the type of the first schema in any case.
    return other if isinstance(other, _Open) and not other.is_weak and not isinstance(one, Primitive) else one


def _chosen(opened: _Open, kind: Type, path: str) -> Type | None:
    """Return the type of values that fit ``kind`` and one of the choices of ``opened``; None if that is not exactly one type."""
    if isinstance(kind, _Open):
        return None
    if kind in opened.choices:
        return kind
    fitting = [each for each in opened.choices if type(each) is type(kind) and not isinstance(each, Primitive)]
    found = [_of_both(kind, each, "All", path) for each in fitting]
    found += [narrow for each in opened.choices if (narrow := _narrower(kind, each))]
    return found[0] if len(found) == 1 else None


def _of_both_structs(one: Struct, other: Struct, way: _Way, path: str) -> Type:
    members = dict(one.fields)
    for name, kind in other.fields:
        members[name] = _of_both(members[name], kind, way, path + member_paths.step(name)) if name in members else kind
    seen: dict[str, str] = {}
    for name in members:
        if (first := seen.setdefault(name.lower(), name)) != name:
            raise _differ_in_case(path, first, name)
    return Struct(tuple(members.items()))


def _open(path: str, cause: _Cause, *names: str) -> _Open:
    return _Open(types.VARIANT, path, cause, names)


def _opened(path: str, cause: _Cause, *names: str) -> _Found:
    return _Found(_open(path, cause, *names))


def _first_open(kind: Type) -> _Open | None:
    """Return the first type inside ``kind`` that has no column."""
    match kind:
        case _Open():
            return kind
        case Struct(fields):
            return next((found for _, member in fields if (found := _first_open(member))), None)
        case ListOf(inner) | MapOf(_, inner):
            return _first_open(inner)
    return None


def _refuse(opened: _Open, way_out: str) -> Never:
    path, names = opened.path, opened.names
    match opened.cause:
        case "Any":
            raise _bad(path, f"{_ANY}, or {way_out}")
        case "Ignored":
            raise _bad(
                path,
                f"$ref names a schema that does not say what the value is, and up to draft 7, {_excerpt(names[0])} beside $ref does"
                f" not count; put both into allOf, declare a later draft in $schema, or {way_out}",
            )
        case "Types":
            raise _bad(
                path,
                f"the value is {names[0]} or {names[1]}, and a column has one type; declare one type, or {way_out}",
            )
        case "Places":
            raise _bad(path, f"the items of the array have a type for each place; use an object instead, or {way_out}")
    raise _bad(
        path,
        f"the schema {names[0]} contains itself, and a table has no recursive columns; {way_out}",
    )


def _differ_in_case(path: str, one: str, other: str) -> InvalidSpecError:
    return _bad(path, f"members {one} and {other} differ only in case, which query engines ignore")


def _inside(kind: Type, parts: Iterable[_Found], path: str) -> _Found:
    """Return a type with the size of its parts."""
    parts = tuple(parts)
    found = _Found(kind, 1 + max(each.levels for each in parts), 1 + sum(each.types for each in parts))
    # The record itself is no column.
    if found.levels > types.MAX_DEPTH + 1:
        raise _bad(path, f"the column has more than {types.MAX_DEPTH} levels of nesting")
    if found.types > MOST_TYPES:
        raise _bad(path, f"the schema has more than {MOST_TYPES} types, if each use of a type counts")
    return found


def _at(content: Any, document: str, place: str, path: str) -> Any:
    """Return the value at a place of a document (RFC 6901)."""
    for step in place.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(content, dict) and name in content:
            content = content[name]
        elif isinstance(content, list) and re.fullmatch("0|[1-9][0-9]{0,4}", name) and int(name) < len(content):
            content = content[int(name)]
        else:
            raise _bad(path, f"the schema {_excerpt(document + '#' + place)} does not exist; correct the reference")
    return content


def _id(schema: Any) -> str:
    """Return the ``$id`` of a schema, without an empty fragment; "" if it has none."""
    found = (schema.get("$id") or schema.get("id")) if isinstance(schema, dict) else None
    return found.removesuffix("#") if isinstance(found, str) else ""


def _escaped(name: str) -> str:
    """Return a name as a step of a place (RFC 6901)."""
    return name.replace("~", "~0").replace("/", "~1")


def _listed(schema: Mapping[str, Any], key: str, path: str) -> list[Any]:
    found = schema.get(key, [])
    if not isinstance(found, list):
        raise _bad(path, f'"{key}" is not a list')
    return found


def _shown(kind: Type | None) -> str:
    match kind:
        case None:
            return "nothing"
        case _Open():
            return _OPEN[kind.cause]
        case Struct():
            return "an object"
        case MapOf():
            return "a map"
        case ListOf():
            return "an array"
        case Primitive("long"):
            return "an integer"
        case Primitive("double"):
            return "a number"
    return f"a {kind}"


def _excerpt(text: str) -> str:
    return json.dumps(text if len(text) <= 60 else f"{text[:59]}…", ensure_ascii=False)


def _bad(path: str, problem: str) -> InvalidSpecError:
    return InvalidSpecError(f"field {path.removeprefix('.')}: {problem}" if path else problem, reason=Reason.BAD_SCHEMA)
