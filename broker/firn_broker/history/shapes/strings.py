"""Texts of strings: which characters a writer of JSON escapes, and how (RFC 8259, section 7)."""

import re
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from firn_broker.history.shapes.scalars import data_of

_SHORT = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r"}
_CONTROLS = "".join(map(chr, range(32)))
_LAST_ASCII = 126
"""The last character that writers of ASCII leave as it is. They escape DEL."""


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings with the escapes of a writer.

    ``short``: the letters of the escapes with one letter, of ``btnfr``. ``also``: further characters with an escape of ``\\u``.
    ``slashed``: further characters behind a backslash. ``ascii``: whether all characters beyond ASCII are escaped. ``upper``: whether
    hexadecimal digits are large letters.
    """

    short: str = "btnfr"
    also: str = ""
    slashed: str = ""
    ascii: bool = False
    upper: bool = False
    quoted: ClassVar[bool] = True

    def texts(self, values: pa.Array) -> pa.Array:
        """Return the text of each value."""
        strings = values.cast(pa.string())
        data = data_of(strings)
        if not len(data):
            return strings.cast(pa.binary())
        if self.ascii and int(data.max()) > _LAST_ASCII:
            write = encode_basestring_ascii if self == ASCII else self._quoted
            found = [None if value is None else write(value)[1:-1].encode() for value in strings.to_pylist()]
            return pa.array(found, pa.binary())
        content = data.tobytes()
        # The backslash is the first one: escapes have one.
        special = '\\"' + (_CONTROLS if int(data.min()) < len(_CONTROLS) else "") + self.also + self.slashed
        for character in special:
            if character.encode() in content:
                options = pc.ReplaceSubstringOptions(character, self._escape(character))
                strings = pc.call_function("replace_substring", [strings], options)
        return strings.cast(pa.binary())

    def _quoted(self, value: str) -> str:
        special = "[" + re.escape('\\"' + _CONTROLS + self.also + self.slashed) + "]|[^\x00-~]"
        return '"' + re.sub(special, lambda found: self._escape(found[0]), value) + '"'

    def _escape(self, character: str) -> str:
        if character in self.slashed or (character in '\\"' and character not in self.also):
            return f"\\{character}"
        letter = _SHORT.get(character, "")
        if letter and letter in self.short:
            return f"\\{letter}"
        units = character.encode("utf-16-be")
        codes = [units[place : place + 2].hex() for place in range(0, len(units), 2)]
        return "".join(f"\\u{code.upper() if self.upper else code}" for code in codes)


ASCII = Strings(ascii=True)
LINES = "\u2028\u2029"
"""The ends of lines that are no ends of lines in JSON, but in JavaScript."""
STYLES = (
    Strings(),
    ASCII,
    Strings(upper=True),
    Strings(also="<>&='" + LINES),
    Strings(also=LINES),
    Strings(also="<>&" + LINES),
    Strings(also="<>&" + LINES, short="tnr"),
    Strings(slashed="/", ascii=True),
    Strings(also="<>&'\"+`\x7f" + LINES, ascii=True, upper=True),
)
"""Those of orjson, JavaScript and Rust, Python, Jackson, Gson with and without escapes for HTML, Go since 1.22 and before, PHP, and .NET."""
