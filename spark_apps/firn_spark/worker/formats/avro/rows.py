"""The fast Avro decoder: from rows of encoded values to Arrow columns, compiled.

A row has values one after the other, as a record has its fields. One kernel serves every schema: it takes the types as
data. It *vouches* for a row only if its answer equals that of `firn.decoders.avro`, which decodes
bad and doubtful rows. So this module reports doubt, never errors.

The kernel has no code for types with parts: records, arrays, maps and unions of more than one type and null. It passes
the places of their values to a `_Reader`, which reads the parts as rows of their own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.decoders import avro_limits as limits
from firn.schemas import avro
from firn.schemas.avro import Again, Array, DecimalBytes, Enum, FixedBytes, Map, Node, Passed, Record, Scalar, Union
from firn_spark.worker.fetched import Numbers
from firn_spark.worker.formats import arrays, words
from firn_spark.worker.formats.avro import kernel

_SCALARS = {
    "null": (kernel.NULL, 0),
    "boolean": (kernel.BOOLEAN, 1),
    "int": (kernel.INT, 0),
    "long": (kernel.LONG, 0),
    "float": (kernel.FLOAT, 4),
    "double": (kernel.DOUBLE, 8),
    "string": (kernel.STRING, 0),
    "bytes": (kernel.BYTES, 0),
}
_TEXTS = {kernel.STRING: pa.string(), kernel.BYTES: pa.binary()}
_UUID_BYTES = 36
_DASHES = (8, 13, 18, 23)
_Five = tuple[Numbers, Numbers, Numbers, Numbers, Numbers]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A field of a row: the type that was written, and the type of its column, None for no column.

    ``passed``: the reader passes over its bytes, which need not be valid in all details.
    """

    node: Node
    type: pa.DataType | None
    passed: bool = False

    @classmethod
    def of(cls, node: Node, type_: pa.DataType | None, *, passed: bool = False) -> "Wanted":
        """Return the field for a type, which may be one to pass over."""
        return cls(node.node, None, passed=True) if isinstance(node, Passed) else cls(node, type_, passed)


class Types:
    """The types of a schema as the kernel's data, so that it can pass over a value of any type."""

    def __init__(self) -> None:
        self._kinds: list[int] = []
        self._sizes: list[int] = []
        self._parts: list[list[int]] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Node] = []

    def add(self, node: Node) -> int:
        """Return the number of a type."""
        if isinstance(node, Passed):
            node = node.node
        if isinstance(node, Again):
            node = node.record
        if id(node) in self._numbers:
            return self._numbers[id(node)]
        number = len(self._kinds)
        self._numbers[id(node)] = number
        self._kept.append(node)  # so that no other type gets its identity
        kind, size = _kind(node)
        self._kinds.append(kind)
        self._sizes.append(size)
        self._parts.append([])
        self._parts[number] = [self.add(part) for part in avro.parts(node)]
        return number

    def tables(self) -> _Five:
        """Return kinds, sizes, starts, counts and parts of all types."""
        counts = [len(parts) for parts in self._parts]
        starts = np.cumsum([0, *counts])[:-1]
        parts = [part for parts in self._parts for part in parts] or [0]
        columns = (self._kinds, self._sizes, starts, counts, parts)
        first, second, third, fourth, fifth = (np.array(column, np.int64) for column in columns)
        return first, second, third, fourth, fifth


def _kind(node: Node) -> tuple[int, int]:
    """Return the kind of a type, and its number of bytes or symbols."""
    match node:
        case Scalar("bytes", "as-string"):
            return _SCALARS["string"]
        case Scalar(kind):
            return _SCALARS[kind]
        case FixedBytes(size=size):
            return kernel.FIXED, size
        case DecimalBytes(size=size):
            # To pass over one, it is fixed or bytes.
            return (kernel.FIXED, size) if size else (kernel.BYTES, 0)
        case Enum(symbols=symbols):
            return kernel.ENUM, len(symbols)
        case Array():
            return kernel.ARRAY, 0
        case Map():
            return kernel.MAP, 0
        case Union():
            return kernel.UNION, 0
        case Record() | Again():
            return kernel.RECORD, 0
        case Passed(inner):
            return _kind(inner)


class _Reader(Protocol):
    """Reads values of one type with parts at given places."""

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        """Return the values from ``firsts`` to ``ends`` that are ``present``, null elsewhere, and which of them are
        certain."""
        ...


def _inner(node: Node) -> tuple[int, Node]:
    """Return the branch that is null (-1: none), and the type of other values. A `_Reader` reads a union of one type."""
    match node:
        case Union((Scalar("null"), other)):
            return 0, other
        case Union((other, Scalar("null"))):
            return 1, other
    return -1, node


class Rows:
    """Reads rows of values."""

    def __init__(self, fields: Sequence[Wanted]) -> None:
        types = Types()
        count = len(fields)
        self._wanted = list(fields)
        self._nodes = [_inner(each.node)[1] for each in fields]
        self._fields = np.array([types.add(node) for node in self._nodes], np.int64)
        self._nulls = np.array([_inner(each.node)[0] for each in fields], np.int64)
        kinds = [(kernel.DECIMAL, node.size) if isinstance(node, DecimalBytes) else _kind(node) for node in self._nodes]
        self._ops = np.array([kind for kind, _ in kinds], np.int64)
        self._sizes = np.array([size for _, size in kinds], np.int64)
        self._scales = np.array([1000 if _logical(node) in limits.MILLIS else 1 for node in self._nodes], np.int64)
        integers = [limits.number_range(node) if _is_integer(node) else (0, 0) for node in self._nodes]
        self._mins = np.array([least for least, _ in integers], np.int64)
        self._maxs = np.array([most for _, most in integers], np.int64)
        decimals = [10**node.precision if isinstance(node, DecimalBytes) else 0 for node in self._nodes]
        self._highs = np.array([limit >> 64 for limit in decimals], np.uint64)
        self._lows = np.array([limit & (2**64 - 1) for limit in decimals], np.uint64)
        self._types = types.tables()
        self._slots = np.full(count, kernel.SKIP, np.int64)
        widths = {"small": 0, "numbers": 0, "texts": 0}
        for place, each in enumerate(fields):
            if each.passed:
                self._slots[place] = kernel.PASS
            if each.type is None or self._nodes[place] == Scalar("null"):
                continue
            where, width = _room(int(self._ops[place]), int(self._scales[place]))
            self._slots[place] = widths[where]
            widths[where] += width
        self._widths = widths
        self._readers = {
            place: _reader(self._nodes[place], each.type)
            for place, each in enumerate(fields)
            if each.type is not None and self._ops[place] >= kernel.ARRAY
        }

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[list[pa.Array], Numbers]:
        """Return the columns of the fields that have one, and for each row whether they hold for it. Other rows have null."""
        count = len(firsts)
        block = self._read(data, firsts, ends, present)
        valid, vouched = block.valid, block.vouched
        parts = {}
        for place, reader in self._readers.items():
            begins, lengths = block.numbers[self._slots[place]], block.numbers[self._slots[place] + 1]
            parts[place], sure = reader.read(data, begins, begins + lengths, valid[place].view(bool))
            vouched &= sure
        uuids = {}
        for place, node in enumerate(self._nodes):
            if _logical(node) == "uuid" and self._slots[place] >= 0:
                texts = arrays.texts(
                    pa.binary(), valid[place], block.offsets[self._slots[place]], block.texts[self._slots[place]]
                )
                uuids[place], sure = _uuids(texts)
                vouched &= sure
        doubted = None if vouched.all() else ~vouched
        indices = None if doubted is None else pa.array(np.arange(count), mask=doubted)
        columns = []
        for place, each in enumerate(self._wanted):
            if each.type is None:
                continue
            if self._slots[place] == kernel.SKIP:
                columns.append(pa.nulls(count, each.type))
                continue
            made = parts.get(place, uuids.get(place))
            if made is None:
                if doubted is not None:
                    valid[place][doubted] = 0
                made = self._column(place, data, block)
            elif indices is not None:
                made = made.take(indices)
            columns.append(made if made.type == each.type else _promoted(made, each.type))
        return columns, vouched

    def _column(self, place: int, data: Numbers, block: "_Block") -> pa.Array:
        """Return the values of a field without parts, in their own type."""
        node, op, slot, valid = self._nodes[place], int(self._ops[place]), self._slots[place], block.valid[place]
        if op in _TEXTS:
            return arrays.texts(_TEXTS[op], valid, block.offsets[slot], block.texts[slot])
        if op == kernel.FIXED:
            return _fixed(data, block.numbers[slot], valid, int(self._sizes[place]))
        if op == kernel.DECIMAL:
            assert isinstance(node, DecimalBytes)
            halves = np.ascontiguousarray(block.numbers[slot : slot + 2].T)
            return arrays.numbers(pa.decimal128(node.precision, node.scale), halves, valid)
        if op == kernel.ENUM:
            assert isinstance(node, Enum)
            return pa.array(node.symbols).take(arrays.numbers(pa.int32(), block.small[slot], valid))
        if op == kernel.BOOLEAN:
            return arrays.numbers(pa.bool_(), np.packbits(block.small[slot] != 0, bitorder="little"), valid)
        if op == kernel.FLOAT or (op == kernel.INT and self._scales[place] == 1):
            own = pa.float32() if op == kernel.FLOAT else _time_type(node, pa.int32())
            return arrays.numbers(own, block.small[slot], valid)
        own = pa.float64() if op == kernel.DOUBLE else _time_type(node, pa.int64())
        return arrays.numbers(own, block.numbers[slot], valid)

    def _read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> "_Block":
        width, count = len(self._fields), len(firsts)
        texts = self._widths["texts"]
        block = _Block(
            numbers=np.empty((self._widths["numbers"], count), np.int64),
            small=np.empty((self._widths["small"], count), np.int32),
            offsets=np.zeros((texts, count + 1), np.int32),
            texts=[],
            valid=np.empty((width, count), np.uint8),
            vouched=np.empty(count, bool),
        )
        step = (width, max(1, min(arrays.STEP, count)))
        scratch = np.empty(step, np.int64), np.empty(step, np.int64), np.empty(step, np.uint8)
        stack = np.empty((kernel.MAX_LEVELS, 2), np.int64)
        sizes = (ends - firsts) * present
        room = max(min(arrays.CALL_BYTES, int(sizes.sum())), int(sizes.max(initial=0))) + words.BYTES if texts else 0
        gathered = np.empty(room, np.uint8)
        parts: list[list[bytes]] = [[] for _ in range(texts)]
        for begin, end in arrays.portions(sizes, arrays.CALL_BYTES):
            pieces = np.empty((-(-(end - begin) // step[1]), texts), np.int64)
            kernel.read_rows(
                data, firsts, ends, present, begin, end, self._fields, self._nulls, self._ops, self._slots, self._sizes,
                self._scales, self._mins, self._maxs, self._highs, self._lows, *self._types, stack, *scratch, block.numbers,
                block.small, gathered, pieces, block.offsets, block.valid, block.vouched,
            )  # fmt: skip
            arrays.gather(gathered, pieces, parts)
        block.texts.extend(arrays.joined(parts))
        return block


@dataclass(frozen=True, slots=True)
class _Block:
    """Values as the kernel stored them. ``texts`` has the texts of a field, one after the other."""

    numbers: Numbers
    small: Numbers
    offsets: Numbers
    texts: list[bytes]
    valid: Numbers
    vouched: Numbers


def _room(op: int, scale: int) -> tuple[str, int]:
    """Return the kernel's array for a kind of value, and the number of its rows."""
    if op in _TEXTS:
        return "texts", 1
    if op in (kernel.BOOLEAN, kernel.ENUM, kernel.FLOAT) or (op == kernel.INT and scale == 1):
        return "small", 1
    return "numbers", 2 if op >= kernel.DECIMAL else 1


def _is_integer(node: Node) -> TypeGuard[Scalar]:
    return isinstance(node, Scalar) and node.kind in ("int", "long")


def _logical(node: Node) -> str:
    return node.logical if isinstance(node, Scalar) else ""


def _time_type(node: Node, other: pa.DataType) -> pa.DataType:
    match _logical(node):
        case "date":
            return pa.date32()
        case "time-millis" | "time-micros":
            return pa.time64("us")
        case "timestamp-millis" | "timestamp-micros":
            return pa.timestamp("us", tz="UTC")
        case "local-timestamp-millis" | "local-timestamp-micros":
            return pa.timestamp("us")
        case "timestamp-nanos":
            return pa.timestamp("ns", tz="UTC")
        case "local-timestamp-nanos":
            return pa.timestamp("ns")
    return other


def _reader(node: Node, type_: pa.DataType) -> _Reader:
    match node:
        case Record(fields=fields):
            return _Records(type_, fields)
        case Array():
            return _Lists(type_, node)
        case Map():
            return _Maps(type_, node)
        case Union():
            return _Unions(type_, node)
    raise AssertionError(f"{node} has no parts")


class _Records:
    """Reads records into structs, whose members have the names of fields."""

    def __init__(self, type_: pa.StructType, fields: Sequence[avro.Field]) -> None:
        self._type = type_
        self._rows, self._order = fields_of(fields, {member.name: member.type for member in type_})

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        columns, sure = self._rows.read(data, firsts, ends, present)
        members = [
            pa.nulls(len(firsts), member.type) if place is None else columns[place]
            for member, place in zip(self._type, self._order, strict=True)
        ]
        return arrays.nested(self._type, present, [], members), sure


def fields_of(
    fields: Sequence[avro.Field], types: Mapping[str, pa.DataType], passed: Collection[str] = ()
) -> tuple[Rows, list[int | None]]:
    """Return a reader of a record's fields, and for each column the place of its values in the reader's answer.

    The reader passes over the bytes of the fields ``passed``.
    """
    # A column may come from another schema, in which the field is more than null.
    wanted = [
        Wanted.of(each.type, types.get(each.name) if avro.column_type(each.type) else None, passed=each.name in passed)
        for each in fields
    ]
    names = [each.name for each, want in zip(fields, wanted, strict=True) if want.type is not None]
    places = {name: place for place, name in enumerate(names)}
    return Rows(wanted), [places.get(name) for name in types]


class _Items:
    """Finds elements, or keys and values, in the values of one type."""

    def __init__(self, node: Node, item: Node, type_: pa.DataType) -> None:
        types = Types()
        self._node = types.add(node)
        self._types = types.tables()
        self._item = item
        self._rows = Rows([Wanted(item, type_)])

    def read(
        self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers
    ) -> tuple[Numbers, Numbers, Numbers, pa.Array, Numbers]:
        """Return the offsets of the items of each value, places and lengths of keys, the items, and which values are certain."""
        offsets, sure = np.zeros(len(firsts) + 1, np.int32), np.zeros(len(firsts), bool)
        places = self._find(data, firsts, ends, present, offsets, sure)
        most = limits.most_items(self._item, ends - firsts)
        large = np.diff(offsets) > most
        if large.any():
            # They would take too much memory, so they must not be read.
            places = self._find(data, firsts, ends, present & ~large, offsets, sure)
            sure &= ~large
        keys, lengths, begins, stops, owners = places
        (items,), certain = self._rows.read(data, begins, stops, np.ones(len(begins), bool))
        sure[owners[~certain]] = False
        return offsets, keys, lengths, items, sure

    def _find(
        self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers, offsets: Numbers, sure: Numbers
    ) -> _Five:
        """Set offsets and certain values. Return places and lengths of keys, places and ends of items, and their values."""
        stack = np.empty((kernel.MAX_LEVELS, 2), np.int64)
        room = 4 * int(present.sum()) + 16
        while True:
            keys, lengths, begins, stops, owners = (np.empty(room, np.int64) for _ in range(5))
            count = kernel.find_items(
                data, firsts, ends, present, self._node, *self._types, stack, offsets, keys, lengths, begins, stops,
                owners, sure,
            )  # fmt: skip
            if count <= room:
                return keys[:count], lengths[:count], begins[:count], stops[:count], owners[:count]
            room = count


class _Lists:
    """Reads arrays."""

    def __init__(self, type_: pa.ListType, node: Array) -> None:
        self._type = type_
        self._items = _Items(node, node.items, type_.value_type)

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        offsets, _, _, items, sure = self._items.read(data, firsts, ends, present)
        return arrays.nested(self._type, present, [offsets], [items]), sure


class _Maps:
    """Reads maps."""

    def __init__(self, type_: pa.MapType, node: Map) -> None:
        self._type = type_
        self._items = _Items(node, node.values, type_.item_type)

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        offsets, firsts_of_keys, lengths, values, sure = self._items.read(data, firsts, ends, present)
        places = np.empty(len(lengths) + 1, np.int32)
        size = int(lengths.sum())
        if size > arrays.MOST_TEXT:
            raise ValueError(arrays.TOO_LARGE)
        out = np.empty(size + words.BYTES, np.uint8)
        kernel.copy_texts(data, firsts_of_keys, lengths, places, out)
        keys = pa.Array.from_buffers(
            pa.string(), len(lengths), [None, pa.py_buffer(places), pa.py_buffer(out[:size])], 0
        )
        entries = pa.StructArray.from_arrays([keys, values], fields=[self._type.key_field, self._type.item_field])
        return arrays.nested(self._type, present, [offsets], [entries]), sure


class _Unions:
    """Reads unions into structs with a member for each branch, or into the only branch that is not null."""

    def __init__(self, type_: pa.DataType, union: Union) -> None:
        self._type = type_
        branches, members = union.branches, avro.members(union)
        self._count = len(branches)
        self._single = len(members) == 1
        types = (
            [type_]
            if self._single
            else [_member_type(type_, name) if avro.column_type(branch) else None for name, branch in members]
        )
        values = [number for number, branch in enumerate(branches) if branch != Scalar("null")]
        self._null = next((number for number, branch in enumerate(branches) if branch == Scalar("null")), -1)
        self._readers = {
            number: (name, kind, Rows([Wanted.of(branch, kind)]))
            for number, kind, (name, branch) in zip(values, types, members, strict=True)
        }

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        count = len(firsts)
        branches, begins, sure = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, bool)
        kernel.find_branches(data, firsts, ends, present, self._count, branches, begins, sure)
        columns = {}
        for number, (name, kind, rows) in self._readers.items():
            read, certain = rows.read(data, begins, ends, branches == number)
            sure &= certain
            if kind is not None:
                columns[name] = read[0]
        valued = present & (branches != self._null) & sure
        if self._single:
            return next(iter(columns.values())), sure
        members = [
            columns[member.name] if member.name in columns else pa.nulls(count, member.type) for member in self._type
        ]
        return arrays.nested(self._type, valued, [], members), sure


def _member_type(type_: pa.StructType, name: str) -> pa.DataType | None:
    place = type_.get_field_index(name)
    return None if place < 0 else type_.field(place).type


def _promoted(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return values in the wider type of their column."""
    return pc.cast(values, type_, safe=False)


def _fixed(data: Numbers, firsts: Numbers, valid: Numbers, size: int) -> pa.Array:
    content = np.zeros((len(firsts), size), np.uint8)
    there = valid.view(bool)
    content[there] = data[firsts[there][:, None] + np.arange(size)]
    return arrays.numbers(pa.binary(size), content, valid)


def _hexadecimal() -> Numbers:
    table = np.full(256, 255, np.uint8)
    for digit in range(16):
        table[ord(f"{digit:x}")] = table[ord(f"{digit:X}")] = digit
    return table


_HEXADECIMAL = _hexadecimal()


def _uuids(texts: pa.Array) -> tuple[pa.Array, Numbers]:
    """Return the bytes of UUIDs in their canonical form, null for other texts, and which values are certain."""
    valid = texts.is_valid().to_numpy(zero_copy_only=False)
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[: len(texts) + 1]
    fits = valid & (np.diff(offsets) == _UUID_BYTES)
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)
    signs = data[offsets[:-1][fits].astype(np.int64)[:, None] + np.arange(_UUID_BYTES)]
    dashed = (signs[:, _DASHES] == ord("-")).all(axis=1)
    digits = _HEXADECIMAL[np.delete(signs, _DASHES, axis=1)]
    good = dashed & (digits != 255).all(axis=1)
    content = np.zeros((len(texts), 16), np.uint8)
    content[fits] = digits[:, ::2] << 4 | digits[:, 1::2] & 15
    known = np.zeros(len(texts), bool)
    known[np.flatnonzero(fits)[good]] = True
    return arrays.numbers(pa.binary(16), content, known.view(np.uint8)), known | ~valid
