"""Regular expressions (RE2, on bytes) for JSON values of a type. They match fewer texts than `firn.decoders.json` accepts.

They leave out rare forms, such as the 29th of February, so that no expression needs arithmetic. The caller makes sure that the bytes are UTF-8.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from firn.decoders.json import Times, epochs
from firn.decoders.json_limits import MAX_MICROSECONDS
from firn.tables import types
from firn.tables.types import ListOf, MapOf, Struct, Type

SPACE = r"[ \t\n\r]*"
_STRING = r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})))*"'
"""Without halves of surrogate pairs."""
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_INT = r"-?(?:0|[1-9][0-9]{0,8}|1[0-9]{9}|20[0-9]{8})"
_LONG = r"-?(?:0|[1-9][0-9]{0,17}|[1-8][0-9]{18})"
_FLOATING = r"-?(?:0|[1-9][0-9]{0,19})(?:\.[0-9]+)?(?:[eE][+-]?[0-9]%s)?"
_DAY = "(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
_DATE, _NARROW_DATE = f"[1-9][0-9]{{3}}-{_DAY}", f"(?:1[7-9][0-9]{{2}}|2[01][0-9]{{2}})-{_DAY}"
"""The second one has only years that times in nanoseconds have."""
_EARLY_DATE = f"[1-8][0-9]{{3}}-{_DAY}"
"""A date that has no year above 9999 in any zone."""
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:\.%s)?)?"
_FRACTION, _ANY_FRACTION = "[0-9]{1,%d}0*", "[0-9]+"
_ZONE = "(?:[Zz]|[+-](?:0[0-9]|1[0-7])(?::?[0-5][0-9])?)"
_GROUP = "[A-Za-z0-9+/]"
_LAST_GROUPS = {1: f"{_GROUP}[AQgw]==", 2: f"{_GROUP}{{2}}[AEIMQUYcgkosw048]="}
"""The end of canonical base64, by the bytes in it."""
_MOST_REPEATS = 1000
"""Most repetitions of an expression in RE2."""
_MOST_ALTERNATIVES = 12
"""Most members of a struct of which any may be absent. In larger ones, all have to be present."""
_PLAIN: Mapping[str, str] = {
    "boolean": "(?:true|false)",
    "int": _INT,
    "long": _LONG,
    "float": _FLOATING % "",
    "double": _FLOATING % "{1,2}",
    "string": _STRING,
    "date": f'"{_DATE}"',
    "uuid": '"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"',
    "binary": f'"(?:{_GROUP}{{4}})*(?:{_LAST_GROUPS[1]}|{_LAST_GROUPS[2]})?"',
    "variant": f"(?:true|false|{_LONG}|{_STRING})",
}
ANY_SCALAR = f"(?:true|false|null|{_NUMBER}|{_STRING})"
"""A member that the schema does not have, and whose value does not count."""

Shape = dict[str, Any]
"""The names of the members of an object, in order. Each has the `Shape` of its value; an empty one if the value has no names."""


class NoPatternError(Exception):
    """No expression is known for a type or a name."""


def shape_of(value: Any) -> Shape:
    """Return the shape of a parsed value. In an array, the first object counts."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {name: shape_of(member) for name, member in value}
    if isinstance(value, list):
        return next((shape for shape in map(shape_of, value) if shape), {})
    return {}


def completed(names: Iterable[str], all_names: Sequence[str]) -> list[str]:
    """Return ``names``, and each other one of ``all_names`` behind all that precede it there."""
    found, end = list(names), 0
    present = set(found)
    for name in all_names:
        if name in present:
            end = max(end, found.index(name) + 1)
        else:
            found.insert(end, name)
            end += 1
    return found


def name_of(text: str) -> str:
    """Return the expression for a name and the colon behind it. Raises NoPatternError for a name that JSON has to escape."""
    if re.search(r'["\\\x00-\x1f\ud800-\udfff]', text):
        raise NoPatternError(text)
    return f'"{"".join(_literal(byte) for byte in text.encode())}"{SPACE}:{SPACE}'


def _literal(byte: int) -> str:
    return chr(byte) if chr(byte).isalnum() and byte < 0x80 else f"\\x{byte:02x}"


def value_of(kind: Type, times: Times, shape: Shape) -> str:
    """Return the expression for values of a type, not null. Raises NoPatternError."""
    match kind:
        case types.Decimal():
            return _decimal(kind)
        case types.Fixed():
            return _fixed(kind)
        case ListOf():
            element = or_null(value_of(kind.element, times, shape))
            return rf"\[{SPACE}(?:{element}{SPACE}(?:,{SPACE}{element}{SPACE})*)?\]"
        case MapOf():
            return _map(kind, times, shape)
        case Struct():
            return _struct(kind, times, shape)
    if kind.name == "time":
        return f'"{_time_of_day(kind, times)}"'
    return _PLAIN.get(kind.name) or _timestamp(kind, times)


def or_null(expression: str) -> str:
    """Return the expression for a value or null."""
    return f"(?:{expression}|null)"


def _time_of_day(kind: types.Primitive, times: Times) -> str:
    if kind.name.endswith("_ns"):
        return _TIME % (_FRACTION % 9)
    return _TIME % (_ANY_FRACTION if times.truncate else _FRACTION % 6)


def _timestamp(kind: types.Primitive, times: Times) -> str:
    nanoseconds, zoned = kind.name.endswith("_ns"), kind.name.startswith("timestamptz")
    date, time = _NARROW_DATE if nanoseconds else _EARLY_DATE if zoned else _DATE, _time_of_day(kind, times)
    text = f'"{date}[Tt ]{time}{_ZONE if zoned else ""}"'
    if zoned and not nanoseconds:
        text = f'(?:{text}|"9[0-9]{{3}}-{_DAY}[Tt ]{time}[Zz]")'
    factor, divisor = epochs(kind)[times.epoch]
    if divisor > 1:
        return text
    digits = len(str(MAX_MICROSECONDS // factor)) - 1
    return f"(?:{text}|-?(?:0|[1-9][0-9]{{0,{digits - 1}}}))"


def _decimal(kind: types.Decimal) -> str:
    whole = kind.precision - kind.scale
    integer = f"(?:0|[1-9][0-9]{{0,{whole - 1}}})" if whole else "0"
    number = f"-?{integer}" + (rf"(?:\.[0-9]{{1,{kind.scale}}})?" if kind.scale else "")
    return f'(?:{number}|"{number}")'


def _fixed(kind: types.Fixed) -> str:
    groups, rest = divmod(kind.length, 3)
    if 4 * groups > _MOST_REPEATS:
        raise NoPatternError(str(kind))
    return f'"{_GROUP}{{{4 * groups}}}{_LAST_GROUPS.get(rest, "")}"'


def _map(kind: MapOf, times: Times, shape: Shape) -> str:
    """Return the expression for maps that are empty or have the keys of ``shape``. So no key occurs twice."""
    if kind.key != types.Primitive("string"):
        raise NoPatternError(str(kind))
    entries = [name_of(name) + or_null(value_of(kind.value, times, inner)) for name, inner in shape.items()]
    inside = f"{SPACE},{SPACE}".join(entries)
    return rf"\{{{SPACE}(?:{inside}{SPACE})?\}}" if entries else rf"\{{{SPACE}\}}"


def _struct(kind: Struct, times: Times, shape: Shape) -> str:
    members = dict(kind.fields)
    if not shape.keys() <= members.keys():
        raise NoPatternError(str(kind))
    names = completed(shape, list(members))
    entries = [name_of(name) + or_null(value_of(members[name], times, shape.get(name, {}))) for name in names]
    comma = f"{SPACE},{SPACE}"
    firsts = range(len(entries)) if len(entries) <= _MOST_ALTERNATIVES else ()
    inside = [entries[first] + "".join(f"(?:{comma}{entry})?" for entry in entries[first + 1 :]) for first in firsts]
    return rf"\{{{SPACE}(?:(?:{'|'.join(inside or [comma.join(entries)])}){SPACE})?\}}"
