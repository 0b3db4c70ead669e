"""The fast JSON decoder: from blocks of records to Arrow columns, compiled.

One kernel serves every schema: it takes names and kinds of fields as data. It reads the bytes of a record once and
checks that they are JSON. For each field it stores a number, or the place of a text. It *vouches* for a record only
if its answer equals that of `firn.decoders.json`. It does not vouch for bad and doubtful records,
which the caller decodes there. So this module reports doubt, never errors.

The kernel has no code for some kinds. It finds their values, checks that they are JSON, and passes their places to a
`_Reader`. A struct is read as a record is. A list's elements and a map's values are read together, as values of one
kind. `firn_spark.worker.formats.json.variants` reads variants. The rest (binaries, uuids, maps whose keys are not texts)
goes to `firn.decoders.json`, value by value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.decoders import defaults
from firn.decoders.bad_records import BadRecordError
from firn.decoders.json import Times, ValueReader, epochs
from firn.model.jobs import Column
from firn.tables import renames, types
from firn.tables.renames import Former
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Places
from firn_spark.worker.formats import arrays, words
from firn_spark.worker.formats.json import kernel, tokens, variants

_KINDS = {
    "boolean": kernel.BOOLEAN,
    "int": kernel.INT,
    "long": kernel.LONG,
    "float": kernel.FLOAT,
    "double": kernel.DOUBLE,
    "string": kernel.STRING,
    "date": kernel.DATE,
    "time": kernel.TIME,
    "timestamp": kernel.TIMESTAMP,
    "timestamptz": kernel.TIMESTAMPTZ,
    "timestamp_ns": kernel.TIMESTAMP_NS,
    "timestamptz_ns": kernel.TIMESTAMPTZ_NS,
}
_TRUNCATING = {
    kernel.TIME: kernel.TRUNCATED_TIME,
    kernel.TIMESTAMP: kernel.TRUNCATED_TIMESTAMP,
    kernel.TIMESTAMPTZ: kernel.TRUNCATED_TIMESTAMPTZ,
}
_SMALL = frozenset({kernel.INT, kernel.DATE, kernel.BOOLEAN})
"""Kinds whose values fit 32 bits."""
_Array = np.ndarray[Any, np.dtype[Any]]


_NAME_BYTES = 1024


class BlockDecoder:
    """Decodes blocks of JSON records by one schema."""

    def __init__(
        self,
        fields: Sequence[Column],
        *,
        refuse_unknown: bool,
        keep_unknown: bool = False,
        truncate_times: bool = False,
        former: Former = renames.NONE,
    ) -> None:
        """Set up readers for the fields, which may also have their earlier names. ``keep_unknown``: a last column has the other members.
        ``truncate_times``: cut off digits below the microsecond.

        Raises InvalidSpecError for an invalid type.
        """
        self._types = [arrow_types.arrow_type(types.parse(field.type)) for field in fields]
        usable = bool(fields) and all(_has_no_escapes(field.name) for field in fields)
        self._members = (
            _Members(fields, refuse_unknown, former, truncate=truncate_times, keep_unknown=keep_unknown)
            if usable
            else None
        )
        if keep_unknown:
            self._types.append(arrow_types.VARIANT)

    def decode(self, records: Places) -> tuple[list[pa.Array], _Array]:
        """Return the columns, and for each record whether they hold for it. Other records have null."""
        if self._members is None:
            return [pa.nulls(len(records), kind) for kind in self._types], np.zeros(len(records), bool)
        return self._members.read(records.data, records.firsts, records.ends, records.present)


def _has_no_escapes(name: str) -> bool:
    """Return whether JSON has a name as it is. The kernel compares bytes, so it cannot find other names."""
    return '"' not in name and "\\" not in name and min(name, default=" ") >= " "


class _Reader(Protocol):
    """Reads values of one type at given places."""

    def read(self, data: _Array, firsts: _Array, ends: _Array, present: _Array) -> tuple[pa.Array, _Array]:
        """Return the JSON values from ``firsts`` to ``ends`` that are ``present``, null elsewhere, and which of them
        are certain."""
        ...


def _reader(kind: types.Type, refuse_unknown: bool, times: Times, former: Former) -> _Reader:
    type_ = arrow_types.arrow_type(kind)
    match kind:
        case types.Struct(fields) if all(_has_no_escapes(name) for name, _ in fields):
            columns = [Column(name=name, type=str(member), epoch=times.epoch) for name, member in fields]
            return _Structs(type_, _Members(columns, refuse_unknown, former, truncate=times.truncate))
        case types.ListOf(element):
            return _Lists(type_, _reader(element, refuse_unknown, times, former.at("element")))
        case types.MapOf(types.Primitive("string"), value):
            return _Maps(type_, _reader(value, refuse_unknown, times, former.at("value")))
    if kind == types.Primitive(types.VARIANT):
        return _Variants()
    if _kind(kind, times.truncate) == kernel.OPAQUE:
        return _Others(type_, ValueReader.for_type(kind, refuse_unknown=refuse_unknown, times=times, former=former))
    return _Scalars(type_, kind, times)


class _Members:
    """The members of objects by name: fields of records, or of structs."""

    def __init__(
        self,
        fields: Sequence[Column],
        refuse_unknown: bool,
        former: Former,
        *,
        truncate: bool,
        keep_unknown: bool = False,
    ) -> None:
        kinds = [types.parse(field.type) for field in fields]
        self._types = [arrow_types.arrow_type(kind) for kind in kinds]
        self._kinds = np.array([_kind(kind, truncate) for kind in kinds], np.int64)
        digits = [_digits(kind, field.epoch) for kind, field in zip(kinds, fields, strict=True)]
        self._precisions = np.array([precision for precision, _ in digits], np.int64)
        self._scales = np.array([scale for _, scale in digits], np.int64)
        self._required = np.array([field.required for field in fields], bool)
        self._defaulted = np.array([field.default is not None for field in fields], bool)
        self._defaults = {
            place: pa.scalar(_default(kinds[place], field), self._types[place])
            for place, field in enumerate(fields)
            if field.default is not None
        }
        earlier = [(place, name) for place, field in enumerate(fields) for name in former.of(field.name)]
        names = [name.encode() + b'":' for name in (*(field.name for field in fields), *(name for _, name in earlier))]
        self._names = np.frombuffer(b"".join(names) + bytes(words.BYTES), np.uint8)
        self._starts = np.cumsum([0, *(len(name) for name in names)]).astype(np.int64)
        self._owners = np.array([*range(len(fields)), *(place for place, _ in earlier)], np.int64)
        self._refuse_unknown = refuse_unknown
        self._keep_unknown = keep_unknown
        self._slots, self._widths = _slots(self._kinds)
        self._readers = {
            place: _reader(kind, refuse_unknown, Times(fields[place].epoch, truncate), former.at(fields[place].name))
            for place, kind in enumerate(kinds)
            if self._kinds[place] == kernel.OPAQUE
        }

    def read(self, data: _Array, firsts: _Array, ends: _Array, present: _Array) -> tuple[list[pa.Array], _Array]:
        """Return the members' columns, and for each object whether they hold for it. Other objects have null."""
        block = self._read(data, firsts, ends, present)
        valid, vouched = block.valid, block.vouched
        nested = {}
        for place, reader in self._readers.items():
            begins, lengths = block.numbers[self._slots[place]], block.numbers[self._slots[place] + 1]
            nested[place], sure = reader.read(data, begins, begins + lengths, valid[place].view(bool))
            vouched &= sure
        for place in np.flatnonzero(self._kinds == kernel.FLOAT):
            vouched &= _fits_float(block.numbers[self._slots[place]]) | (valid[place] == 0)
        others = None
        if block.others is not None:
            others, sure = block.others.finish()
            vouched &= sure
        doubted = None if vouched.all() else ~vouched
        columns = []
        for place, (kind, slot) in enumerate(zip(self._kinds.tolist(), self._slots.tolist(), strict=True)):
            if place in nested:
                columns.append(_without(nested[place], doubted))
                continue
            if doubted is not None:
                valid[place][doubted] = 0
            type_ = self._types[place]
            if kind == kernel.STRING:
                columns.append(arrays.texts(type_, valid[place], block.offsets[slot], block.texts[slot]))
            else:
                values = block.small[slot] if kind in _SMALL else block.numbers[slot]
                columns.append(_numbers(kind, type_, values, valid[place]))
        for place, default in self._defaults.items():
            if block.absent[place].any():
                absent = pa.array(block.absent[place] & vouched)
                columns[place] = pc.call_function("if_else", [absent, default, columns[place]])
        if others is not None:
            columns.append(_without(others, doubted))
        return columns, vouched

    def _read(self, data: _Array, firsts: _Array, ends: _Array, present: _Array) -> "_Block":
        width, count = len(self._types), len(firsts)
        numbers, small, texts = self._widths
        sizes = (ends - firsts) * present
        largest = int(sizes.max(initial=0))
        most = max(min(arrays.CALL_BYTES, int(sizes.sum())), largest)
        keep = self._keep_unknown
        block = _Block(
            numbers=np.empty((numbers, count), np.int64),
            small=np.empty((small, count), np.int32),
            offsets=np.zeros((texts, count + 1), np.int32),
            texts=[],
            valid=np.empty((width, count), np.uint8),
            absent=np.zeros((width, count) if self._defaults else (0, 0), bool),
            vouched=np.empty(count, bool),
            others=variants.Encoder(count, largest=largest, members=True) if keep else None,
        )
        step = (width, min(arrays.STEP, count))
        scratch = np.empty(step, np.int64), np.empty(step, np.int64), np.empty(step, np.uint8)
        following, seen, name = (
            np.append(np.arange(width), 0),
            np.empty(width, np.int64),
            np.empty(_NAME_BYTES, np.uint8),
        )
        gathered = np.empty(most + words.BYTES if texts else 0, np.uint8)
        other_firsts, other_ends = np.empty((2, most // kernel.MEMBER_BYTES + 1 if keep else 0), np.int64)
        parts: list[list[bytes]] = [[] for _ in range(texts)]
        for begin, end in arrays.portions(sizes, arrays.CALL_BYTES):
            pieces = np.empty((-(-(end - begin) // step[1]), texts), np.int64)
            behind = np.zeros(end - begin + 1 if keep else 0, np.int64)
            kernel.read_records(
                data, firsts, ends, present, begin, end, self._names, self._starts, self._owners, self._kinds,
                self._precisions, self._scales, self._required, self._defaulted, self._refuse_unknown, tokens.POWER_HALVES, following, seen, name,
                *scratch, self._slots, block.numbers, block.small, gathered, pieces, block.offsets, block.valid, block.absent,
                block.vouched, other_firsts, other_ends, behind,
            )  # fmt: skip
            arrays.gather(gathered, pieces, parts)
            if block.others is not None:
                block.others.encode(data, other_firsts[: behind[-1]], other_ends[: behind[-1]], behind, begin)
        block.texts.extend(arrays.joined(parts))
        return block


def _without(values: pa.Array, doubted: _Array | None) -> pa.Array:
    """Return the values with null for those that are doubted."""
    return values if doubted is None else values.take(pa.array(np.arange(len(values)), mask=doubted))


def _default(kind: types.Type, field: Column) -> Any:
    """Return the default of a field as Arrow stores it."""
    reader = ValueReader.for_type(kind, refuse_unknown=False, times=Times(field.epoch))
    return reader.read(defaults.token(kind, field.default or "").encode())


def _slots(kinds: _Array) -> tuple[_Array, tuple[int, int, int]]:
    """Return the row of each member in the kernel's arrays for 64-bit numbers, 32-bit numbers and texts, and the number
    of rows in each."""
    slots, widths = np.zeros(len(kinds), np.int64), [0, 0, 0]
    for place, kind in enumerate(kinds.tolist()):
        where = 2 if kind == kernel.STRING else 1 if kind in _SMALL else 0
        slots[place] = widths[where]
        widths[where] += 2 if kind == kernel.OPAQUE else 1
    return slots, (widths[0], widths[1], widths[2])


@dataclass(frozen=True, slots=True)
class _Block:
    """Members of objects, as the kernel stored them. `_slots` has the row of a member in ``numbers``, ``small`` or
    ``offsets``.

    ``texts`` has the texts of a member, one after the other. ``offsets`` has the start of each text, and the end of the
    last one."""

    numbers: _Array
    small: _Array
    offsets: _Array
    texts: list[bytes]
    valid: _Array
    absent: _Array
    """Marks members with a default that an object does not have."""
    vouched: _Array
    others: variants.Encoder | None
    """The other members, if they are kept."""


@dataclass(frozen=True, slots=True)
class _Structs:
    type: pa.DataType
    members: _Members

    def read(self, data: _Array, firsts: _Array, ends: _Array, present: _Array) -> tuple[pa.Array, _Array]:
        columns, sure = self.members.read(data, firsts, ends, present)
        return arrays.nested(self.type, present, [], columns), sure


@dataclass(frozen=True, slots=True)
class _Lists:
    type: pa.DataType
    element: _Reader

    def read(self, data: _Array, firsts: _Array, ends: _Array, present: _Array) -> tuple[pa.Array, _Array]:
        offsets, sure = np.zeros(len(firsts) + 1, np.int32), np.zeros(len(firsts), bool)
        (begins, stops, owners), inner = _find_all(
            3,
            int(present.sum()),
            lambda places, inner: kernel.find_elements(
                data, firsts, ends, present, offsets, places[0], places[1], inner, places[2], sure
            ),
        )
        elements, certain = self.element.read(data, begins, stops, inner)
        sure[owners[~certain]] = False
        return arrays.nested(self.type, present, [offsets], [elements]), sure


@dataclass(frozen=True, slots=True)
class _Maps:
    """Reads maps whose keys are texts."""

    type: pa.MapType
    value: _Reader

    def read(self, data: _Array, firsts: _Array, ends: _Array, present: _Array) -> tuple[pa.Array, _Array]:
        offsets, sure = np.zeros(len(firsts) + 1, np.int32), np.zeros(len(firsts), bool)
        (key_firsts, key_lengths, begins, stops, owners), inner = _find_all(
            5,
            int(present.sum()),
            lambda places, inner: kernel.find_entries(
                data, firsts, ends, present, offsets, places[0], places[1], places[2], places[3], inner, places[4], sure
            ),
        )
        valid = np.ones(len(owners), np.uint8)
        keys = _array(kernel.STRING, self.type.key_type, data, key_firsts, key_lengths, valid)
        values, certain = self.value.read(data, begins, stops, inner)
        sure[owners[~certain]] = False
        entries = pa.StructArray.from_arrays([keys, values], fields=[self.type.key_field, self.type.item_field])
        return arrays.nested(self.type, present, [offsets], [entries]), sure


class _Variants:
    """Reads any values as variants."""

    def read(self, data: _Array, firsts: _Array, ends: _Array, present: _Array) -> tuple[pa.Array, _Array]:
        return variants.read(data, firsts, ends, present)


class _Scalars:
    """Reads values of a kind that the kernel has code for."""

    def __init__(self, type_: pa.DataType, kind: types.Type, times: Times) -> None:
        self._type = type_
        self._kind = _kind(kind, times.truncate)
        self._precision, self._scale = _digits(kind, times.epoch)

    def read(self, data: _Array, firsts: _Array, ends: _Array, present: _Array) -> tuple[pa.Array, _Array]:
        count = len(firsts)
        values, lengths = np.zeros((1, count), np.int64), np.zeros((1, count), np.int64)
        valid, sure = np.zeros(count, np.uint8), np.zeros(count, bool)
        kernel.read_values(
            data,
            firsts,
            ends,
            present,
            self._kind,
            self._precision,
            self._scale,
            tokens.POWER_HALVES,
            values,
            lengths,
            valid,
            sure,
        )
        if self._kind == kernel.FLOAT:
            sure &= _fits_float(values[0]) | (valid == 0)
            valid[~sure] = 0
        return _array(self._kind, self._type, data, values[0], lengths[0], valid), sure


@dataclass(frozen=True, slots=True)
class _Others:
    """Reads values of kinds that only the strict decoder supports."""

    type: pa.DataType
    reader: ValueReader

    def read(self, data: _Array, firsts: _Array, ends: _Array, present: _Array) -> tuple[pa.Array, _Array]:
        values_read: list[object] = [None] * len(firsts)
        sure = np.ones(len(firsts), bool)
        view = memoryview(data)  # type: ignore[arg-type]
        places = np.flatnonzero(present)
        for place, first, end in zip(places.tolist(), firsts[places].tolist(), ends[places].tolist(), strict=True):
            try:
                values_read[place] = self.reader.read(bytes(view[first:end]))
            except BadRecordError:
                sure[place] = False
        return pa.array(values_read, self.type, size=len(values_read)), sure


def _find_all(columns: int, least: int, find: Callable[[list[_Array], _Array], int]) -> tuple[list[_Array], _Array]:
    """Return the columns of places and the flags that ``find`` writes. It is called again if it finds more than there
    is room for."""
    room = 4 * least + 16
    while True:
        places, flags = [np.empty(room, np.int64) for _ in range(columns)], np.zeros(room, bool)
        count = find(places, flags)
        if count <= room:
            return [column[:count] for column in places], flags[:count]
        room = count


def _fits_float(bits: _Array) -> _Array:
    """Return which of these doubles are finite floats after rounding."""
    with np.errstate(over="ignore"):
        fits: _Array = np.isfinite(bits.view(np.float64).astype(np.float32))
    return fits


def _digits(kind: types.Type, epoch: str) -> tuple[int, int]:
    """Return precision and scale of a decimal, or factor and divisor of integers for other types."""
    return (kind.precision, kind.scale) if isinstance(kind, types.Decimal) else epochs(kind)[epoch]


def _kind(kind: types.Type, truncate: bool) -> int:
    match kind:
        case types.Primitive(name) if name in _KINDS:
            return _TRUNCATING.get(_KINDS[name], _KINDS[name]) if truncate else _KINDS[name]
        case types.Decimal():
            return kernel.DECIMAL
        case _:
            return kernel.OPAQUE


def _array(kind: int, type_: pa.DataType, data: _Array, values: _Array, lengths: _Array, valid: _Array) -> pa.Array:
    if kind != kernel.STRING:
        return _numbers(kind, type_, values.astype(np.int32) if kind in _SMALL else values, valid)
    places = np.empty(len(valid) + 1, np.int32)
    total = int(np.abs(lengths[valid == 1]).sum())
    if total > arrays.MOST_TEXT:
        raise ValueError(arrays.TOO_LARGE)
    out = np.empty(total + words.BYTES, np.uint8)
    size = kernel.copy_texts(data, values, lengths, valid, places, out)
    return arrays.texts(type_, valid, places, out[:size])


def _numbers(kind: int, type_: pa.DataType, values: _Array, valid: _Array) -> pa.Array:
    """Return an array of ``values``, which are int32 for the kinds in `_SMALL`, and int64 for others."""
    content = values
    if kind == kernel.BOOLEAN:
        content = np.packbits(values != 0, bitorder="little")
    elif kind == kernel.FLOAT:
        with np.errstate(over="ignore"):  # only values that are not vouched for overflow
            content = values.view(np.float64).astype(np.float32)
    elif kind == kernel.DECIMAL:
        content = np.empty((len(valid), 2), np.int64)
        content[:, 0] = values
        content[:, 1] = values >> 63
    return arrays.numbers(type_, content, valid)
