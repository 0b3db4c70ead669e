"""Differences of two documents by field."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KEYS = ("name", "partition")
"""Members that identify the items of a list, as in the CRD's list maps."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A field with another value. None: not set."""

    path: str
    before: Any
    after: Any

    @property
    def texts(self) -> tuple[str, str]:
        """Both values as text; empty if not set."""
        return shown(self.before), shown(self.after)


def differences(before: Any, after: Any, path: str) -> Iterator[Difference]:
    """Yield the fields below ``path`` that differ. Lists of objects are compared by their keys, other lists as a whole."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key), after.get(key), f"{path}.{key}")
        return
    key = _key(before) if _key(before) == _key(after) else None
    if key is None:
        yield Difference(path, before, after)
        return
    old, new = ({item[key]: item for item in items} for items in (before, after))
    for name in [*old, *(name for name in new if name not in old)]:
        yield from differences(old.get(name), new.get(name), f"{path}[{name}]")


def shown(value: Any) -> str:
    """Return a value as text: words as they are, other values as JSON, and nothing for an unset value."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _key(items: Any) -> str | None:
    """Return the member that identifies each item of a list, or None."""
    if not isinstance(items, Sequence) or isinstance(items, str) or not items:
        return None
    if not all(isinstance(item, Mapping) for item in items):
        return None
    for key in KEYS:
        values = [item.get(key) for item in items]
        if None not in values and len(set(map(str, values))) == len(values):
            return key
    return None
