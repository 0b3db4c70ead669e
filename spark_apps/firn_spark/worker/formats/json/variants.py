"""JSON values to variants: compiled where the kernel vouches for its bytes, else by `firn.decoders.json_variants`, value by value."""

from typing import Any

import numpy as np
import pyarrow as pa

from firn.decoders.bad_records import BadRecordError
from firn.decoders.json import Times, ValueReader
from firn.tables import types
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Numbers
from firn_spark.worker.formats import arrays, words
from firn_spark.worker.formats.json import tokens, variant_kernel

_STRICT = ValueReader.for_type(types.Primitive(types.VARIANT), refuse_unknown=False, times=Times("ms"))
_MOST_NODES = 2**17
"""Most values inside a variant that the kernel encodes."""
_NAME_BYTES = 2**16
"""Most bytes of the different names of a variant that the kernel encodes."""
_GROWTH = 4
"""Bytes of variants for each byte of JSON that the kernel has room for. Numbers and short arrays grow most, by a factor of up to 3."""
_SMALLEST = 4096


class Encoder:
    """Encodes the variants of a column, portion by portion: values, or the members of objects."""

    def __init__(self, rows: int, *, largest: int, members: bool) -> None:
        """Get room for ``rows``. ``largest`` is the most bytes of JSON of a row."""
        self.left = 0
        """Number of rows that the kernel did not vouch for."""
        self._members = members
        self._offsets = np.zeros((2, rows + 1), np.int32)
        self._present, self._sure = np.zeros(rows, bool), np.ones(rows, bool)
        self._parts: list[list[bytes]] = [[], []]
        self._strict: dict[int, Any] = {}
        most = min(_MOST_NODES, largest // 2 + 2)
        self._nodes = np.empty((most, variant_kernel.NODE), np.int64)
        names = variant_kernel.MOST_NAMES
        self._scratch = (
            np.empty(_NAME_BYTES, np.uint8), np.empty(names + 1, np.int64), np.empty(names, np.int64), np.empty(names, np.int64),
            np.empty(most + 1, np.int64), np.empty(largest + words.BYTES, np.uint8), np.empty(names, np.int64),
            np.empty(variant_kernel.STATE, np.int64),
        )  # fmt: skip

    def encode(self, data: Numbers, firsts: Numbers, ends: Numbers, behind: Numbers, begin: int) -> None:
        """Encode rows from ``begin`` on: row ``i`` of them has the places from ``behind[i]`` to ``behind[i + 1]``, none if it is null.

        The places are those of JSON values, or of members with their names.
        """
        count = len(behind) - 1
        size = int((ends - firsts).sum())
        written = [np.empty(_GROWTH * size + _SMALLEST, np.uint8) for _ in self._parts]
        edges = np.empty((2, count), np.int64)
        sure = np.empty(count, bool)
        variant_kernel.encode(
            data, firsts, ends, behind, self._members, tokens.POWER_HALVES, self._nodes, *self._scratch,
            written[0], edges[0], written[1], edges[1], sure,
        )  # fmt: skip
        self._present[begin : begin + count] = behind[1:] > behind[:-1]
        for part, out, own, offsets in zip(self._parts, written, edges, self._offsets, strict=True):
            offsets[begin + 1 : begin + count + 1] = own + offsets[begin]
            part.append(out[: own[-1] if count else 0].tobytes())
        self.left += int((~sure).sum())
        for row in np.flatnonzero(~sure).tolist():
            places = range(int(behind[row]), int(behind[row + 1]))
            texts = [data[firsts[place] : ends[place]].tobytes() for place in places]
            self._encode_strictly(begin + row, b"{%b}" % b",".join(texts) if self._members else texts[0])

    def _encode_strictly(self, row: int, text: bytes) -> None:
        try:
            self._strict[row] = _STRICT.read(text)
        except BadRecordError:
            self._sure[row] = False

    def finish(self) -> tuple[pa.Array, Numbers]:
        """Return the variants, and which of them are certain. Raises ValueError if they are too large for Arrow."""
        everywhere = np.ones(len(self._sure), np.uint8)
        children = [
            arrays.texts(pa.binary(), everywhere, offsets, content)
            for offsets, content in zip(self._offsets, arrays.joined(self._parts), strict=True)
        ]
        variants = arrays.nested(arrow_types.VARIANT, self._present, [], children)
        if self._strict:
            places = np.array(sorted(self._strict))
            others = pa.array([self._strict[place] for place in places.tolist()], arrow_types.VARIANT)
            [variants] = arrays.replaced([variants], places, [others])
        return variants, self._sure


def read(data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
    """Return the JSON values from ``firsts`` to ``ends`` that are ``present`` as variants, null elsewhere, and which of them are certain."""
    sizes = (ends - firsts) * present
    encoder = Encoder(len(firsts), largest=int(sizes.max(initial=0)), members=False)
    behind = np.concatenate([np.zeros(1, np.int64), np.cumsum(present)])
    firsts, ends = firsts[present], ends[present]
    for begin, end in arrays.portions(sizes, arrays.CALL_BYTES):
        places = slice(int(behind[begin]), int(behind[end]))
        encoder.encode(data, firsts[places], ends[places], behind[begin : end + 1] - behind[begin], begin)
    return encoder.finish()
