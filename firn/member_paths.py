r"""Paths to members of records, such as ``$.customer.mail`` and ``$['order-id']``.

The notation is a part of JSONPath (RFC 9535, section 2.3.1): a name after a dot, or in brackets and single quotes. In quotes, ``\'``
stands for ``'`` and ``\\`` for ``\``. A path is the tuple of its names, so a name may have dots.
"""

import functools
import re
from collections.abc import Iterable

Path = tuple[str, ...]

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""Names of columns. Only these names can follow a dot."""
QUOTED = r"'(?:[^'\\\x00-\x1f\ud800-\udfff]|\\['\\])+'"
"""A name in single quotes, as a regular expression. It has no control characters."""
_STEP = re.compile(rf"\.({NAME.pattern})|\[({QUOTED})\]", re.ASCII)


class BadPathError(ValueError):
    """A text is no path. The message has the place, the cause and the next step."""


@functools.lru_cache(4096)
def parse(text: str) -> Path:
    """Return the names of a path. Raises BadPathError."""
    names: list[str] = []
    end = 1
    while end < len(text):
        found = _STEP.match(text, end)
        if found is None:
            raise BadPathError(f"character {end + 1} of the path {text[:100]}: {_problem(text[end:])}")
        names.append(found[1] or unquoted(found[2]))
        end = found.end()
    if not text.startswith("$") or not names:
        raise BadPathError(f"the path {text[:100]} names no member of the record; write $.FIELD or $['NAME']")
    return tuple(names)


def shown(path: Iterable[str]) -> str:
    """Return the text of a path. Names that can follow a dot do."""
    return "$" + "".join(map(step, path))


def step(name: str) -> str:
    """Return a name as a part of a path."""
    return f".{name}" if NAME.fullmatch(name) else f"[{quoted(name)}]"


def step_name(text: str) -> str:
    """Return the name of a part of a path. Names after a dot may be any."""
    return unquoted(text[1:-1]) if text.startswith("['") else text.removeprefix(".")


def written(name: str) -> str:
    """Return a name as types have it: in quotes, unless it can be the name of a column."""
    return name if NAME.fullmatch(name) else quoted(name)


def can_name(name: str) -> bool:
    """Return whether a path can have the name: one that is not empty, without control characters and lone surrogates."""
    return re.fullmatch(QUOTED, quoted(name)) is not None


def quoted(name: str) -> str:
    """Return a name in single quotes."""
    return "'" + name.replace("\\", r"\\").replace("'", r"\'") + "'"


def unquoted(text: str) -> str:
    """Return the name in a text of `QUOTED`."""
    return re.sub(r"\\(.)", r"\1", text[1:-1])


def _problem(rest: str) -> str:
    if rest.startswith("['"):
        return r"a name in brackets ends with '], is not empty, and has \' for ' and \\ for \; correct it"
    if rest.startswith('["'):
        return "a name in brackets has single quotes; write it as in $['order-id']"
    if rest.startswith("["):
        return (
            "brackets hold a name in single quotes, as in $['order-id'], and items of arrays have no path; correct it"
        )
    return "a name after a dot has letters, digits and _, and does not begin with a digit; write other names in brackets, as in $['order-id']"
