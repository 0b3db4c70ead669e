"""Differences of two documents by field."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KEYS = ("name", "partition")
"""Members that identify the items of a list, as in the CRD's list maps."""


_UNSET: tuple[Any, ...] = (None, [])


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
    if before == after or (before in _UNSET and after in _UNSET):
        return
    old, new = ({} if each is None else each for each in (before, after))
    if isinstance(old, Mapping) and isinstance(new, Mapping) and (old or new):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key), new.get(key), f"{path}.{key}")
        return
    key = _key(before) if _key(before) == _key(after) else None
    if key is None:
        yield Difference(path, before, after)
        return
    earlier, later = ({item[key]: item for item in items} for items in (before, after))
    for name in [*earlier, *(name for name in later if name not in earlier)]:
        if name in earlier and name in later:
            yield from differences(earlier[name], later[name], f"{path}[{name}]")
        else:
            yield Difference(f"{path}[{name}]", earlier.get(name), later.get(name))


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
