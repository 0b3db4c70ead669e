"""The fast Protobuf decoder: from encoded messages to Arrow columns, compiled.

A row is a message. One kernel serves every schema: it takes the fields as data. It *vouches* for a row only if its answer
equals that of `firn.decoders.protobuf`, which decodes bad and doubtful rows. So this module reports
doubt, never errors.

The kernel has no code for messages in fields, repeated fields and maps. It passes the places of their values to a `_Reader`,
which reads messages as rows of their own.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.decoders import protobuf_limits as limits
from firn.schemas import protobuf
from firn.schemas.protobuf import Enum, Field, Map, Message, Node, Repeated, Scalar
from firn_spark.worker.fetched import Numbers, Places
from firn_spark.worker.formats import arrays, words
from firn_spark.worker.formats.protobuf import kernel

_SCALARS = {
    "int32": (kernel.VARINT, kernel.OF_VARINT),
    "int64": (kernel.VARINT, kernel.OF_VARINT),
    "uint32": (kernel.VARINT, kernel.OF_VARINT),
    "uint64": (kernel.VARINT, kernel.OF_VARINT),
    "sint32": (kernel.ZIGZAG, kernel.OF_VARINT),
    "sint64": (kernel.ZIGZAG, kernel.OF_VARINT),
    "bool": (kernel.BOOLEAN, kernel.OF_VARINT),
    "fixed32": (kernel.UNSIGNED32, kernel.OF_32),
    "sfixed32": (kernel.SIGNED32, kernel.OF_32),
    "float": (kernel.SIGNED32, kernel.OF_32),
    "fixed64": (kernel.WORD64, kernel.OF_64),
    "sfixed64": (kernel.WORD64, kernel.OF_64),
    "double": (kernel.WORD64, kernel.OF_64),
    "string": (kernel.STRING, kernel.OF_LENGTH),
    "bytes": (kernel.BYTES, kernel.OF_LENGTH),
}
_NARROW = frozenset({"int32", "sint32", "sfixed32", "float", "bool"})
_TEXTS = {kernel.STRING: pa.string(), kernel.BYTES: pa.binary()}
_UNSIGNED = pa.decimal128(20, 0)


@dataclass(frozen=True, slots=True)
class _Way:
    """The way to read the values of a field: the kernel's operation, the tag of one value, and the tag of packed values."""

    op: int
    tag: int
    packed: int = kernel.NO_TAG
    narrow: bool = False
    least: int = 0
    most: int = 0


def _way(number: int, node: Node, group: bool = False) -> _Way:
    match node:
        case Scalar(kind) if kind in ("string", "bytes"):
            return _Way(_SCALARS[kind][0], number << 3 | kernel.OF_LENGTH)
        case Scalar() | Enum():
            kind = node.kind if isinstance(node, Scalar) else "int32"
            op, wire = _SCALARS[kind]
            least, most = limits.number_range(node)
            if most >= 2**63:
                least, most = -(2**63), 2**63 - 1  # the kernel has the bits of a signed number
            return _Way(op, number << 3 | wire, narrow=kind in _NARROW, least=least, most=most)
        case Repeated(item):
            one = _way(number, item, group)
            packable = one.op < kernel.STRING
            return _Way(kernel.REPEATED, one.tag, number << 3 | kernel.OF_LENGTH if packable else kernel.NO_TAG)
        case Map():
            return _Way(kernel.REPEATED, number << 3 | kernel.OF_LENGTH)
        case Message():
            return _Way(kernel.MESSAGE, number << 3 | (kernel.OF_START if group else kernel.OF_LENGTH))


class _Reader(Protocol):
    """Reads values of one type with parts at given places."""

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        """Return the values from ``firsts`` to ``ends`` that are ``present``, null elsewhere, and which of them are
        certain."""
        ...


class Rows:
    """Reads rows of fields."""

    def __init__(
        self, fields: Sequence[Field], types: Sequence[pa.DataType], others: Sequence[tuple[int, str]] = ()
    ) -> None:
        """Set up the kernel's data. ``types`` are those of the fields' columns. ``others`` as in `Message`."""
        of_columns = {each.number: type_ for each, type_ in zip(fields, types, strict=True)}
        members = (Field(number, "", Message("", ()), oneof=oneof) for number, oneof in others)
        self._fields = sorted((*fields, *members), key=lambda each: each.number)
        order = [each.number for each in self._fields]
        self._places = [order.index(each.number) for each in fields]
        self._types = {place: of_columns[number] for place, number in enumerate(order) if number in of_columns}
        ways = [
            _way(each.number, each.type, each.group) if place in self._types else _Way(kernel.OTHER, each.number << 3)
            for place, each in enumerate(self._fields)
        ]
        self._ops = [way.op for way in ways]
        self._widths = {"small": 0, "numbers": 0, "texts": 0}
        self._slots = []
        for way in ways:
            where, width = _room(way)
            self._slots.append(self._widths[where])
            self._widths[where] += width
        oneofs = list(dict.fromkeys(each.oneof for each in self._fields if each.oneof))
        self._narrow = [way.narrow for way in ways]
        columns = (
            [way.tag for way in ways],
            [way.packed for way in ways],
            self._ops,
            self._narrow,
            self._slots,
            [way.least for way in ways],
            [way.most for way in ways],
            [_absent(each) for each in self._fields],
            [_default(each) for each in self._fields],
            [oneofs.index(each.oneof) if each.oneof else -1 for each in self._fields],
        )
        self._columns = (*(np.array(column, np.int64) for column in columns), np.zeros(len(oneofs), np.int64))
        """Arguments of the kernel, in their order."""
        self._readers = {
            place: _reader(self._fields[place], type_)
            for place, type_ in self._types.items()
            if isinstance(self._fields[place].type, Message | Map | Repeated)
        }

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[list[pa.Array], Numbers]:
        """Return the columns of the fields, and for each row whether they hold for it. Other rows have null."""
        block = self._read(data, firsts, ends, present)
        valid, vouched = block.valid, block.vouched
        parts = {}
        for place, reader in self._readers.items():
            begins, lengths = block.numbers[self._slots[place]], block.numbers[self._slots[place] + 1]
            # Without an item, a list is empty and not null.
            there = present if self._ops[place] == kernel.REPEATED else valid[place].view(bool)
            parts[place], sure = reader.read(data, begins, begins + lengths, there)
            vouched &= sure
        doubted = None if vouched.all() else ~vouched
        indices = None if doubted is None else pa.array(np.arange(len(firsts)), mask=doubted)
        columns = {}
        for place, type_ in self._types.items():
            made = parts.get(place)
            if made is None:
                if doubted is not None:
                    valid[place][doubted] = 0
                made = self._column(place, block, present & vouched)
            elif indices is not None:
                made = made.take(indices)
            columns[place] = made if made.type == type_ else pc.cast(made, type_, safe=False)
        return [columns[place] for place in self._places], vouched

    def _column(self, place: int, block: "_Block", certain: Numbers) -> pa.Array:
        """Return the values of a field without parts, in their own type."""
        field, slot, valid = self._fields[place], self._slots[place], block.valid[place]
        if self._ops[place] not in _TEXTS:
            return _numbers(field.type, block.small[slot] if self._narrow[place] else block.numbers[slot], valid)
        kind = _TEXTS[self._ops[place]]
        made = arrays.texts(kind, valid, block.offsets[slot], block.texts[slot])
        if not field.default:
            return made
        order = np.where(certain & (valid == 0), len(made), np.arange(len(made)))
        return pa.concat_arrays([made, pa.array([field.default], kind)]).take(pa.array(order))

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
        values, lengths, known = np.empty(step, np.int64), np.empty(step, np.int64), np.empty(step, np.uint8)
        sizes = (ends - firsts) * present
        room = max(min(arrays.CALL_BYTES, int(sizes.sum())), int(sizes.max(initial=0))) + words.BYTES if texts else 0
        gathered = np.empty(room, np.uint8)
        parts: list[list[bytes]] = [[] for _ in range(texts)]
        for begin, end in arrays.portions(sizes, arrays.CALL_BYTES):
            pieces = np.empty((-(-(end - begin) // step[1]), texts), np.int64)
            arguments: list[Any] = [
                data, firsts, ends, present, begin, end, *self._columns, values, lengths, known, block.numbers, block.small,
                gathered, pieces, block.offsets, block.valid, block.vouched,
            ]  # fmt: skip
            kernel.read_rows(*arguments)
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


def _room(way: _Way) -> tuple[str, int]:
    """Return the kernel's array for a kind of value, and the number of its rows."""
    if way.op in _TEXTS:
        return "texts", 1
    if way.narrow:
        return "small", 1
    if way.op == kernel.OTHER:
        return "numbers", 0
    return "numbers", 2 if way.op >= kernel.MESSAGE else 1


def _absent(field: Field) -> int:
    if field.required:
        return kernel.REQUIRED
    if field.default is None or isinstance(field.type, Repeated | Map):
        return kernel.NULL
    # The kernel has no texts for defaults.
    return kernel.NULL if isinstance(field.default, str | bytes) and field.default else kernel.DEFAULT


def _default(field: Field) -> int:
    """Return the kernel's bits of a default."""
    match field.type, field.default:
        case Scalar("float"), float(value):
            bits: int = struct.unpack("<i", struct.pack("<f", value))[0]
            return bits
        case Scalar("double"), float(value):
            wide: int = struct.unpack("<q", struct.pack("<d", value))[0]
            return wide
        case _, int(value):
            return value - 2**64 if value >= 2**63 else value
    return 0


def _numbers(node: Node, values: Numbers, valid: Numbers) -> pa.Array:
    """Return an array of numbers, of which the kernel stored bits."""
    match node:
        case Enum():
            return _symbols(node, values, valid)
        case Scalar("bool"):
            return arrays.numbers(pa.bool_(), np.packbits(values != 0, bitorder="little"), valid)
        case Scalar("float"):
            return arrays.numbers(pa.float32(), values.astype(np.int32, copy=False), valid)
        case Scalar("double"):
            return arrays.numbers(pa.float64(), values, valid)
        case Scalar("uint64" | "fixed64"):
            halves = np.zeros((len(values), 2), np.int64)
            halves[:, 0] = values
            return arrays.numbers(_UNSIGNED, halves, valid)
        case Scalar(kind) if kind in _NARROW:
            return arrays.numbers(pa.int32(), values.astype(np.int32, copy=False), valid)
    return arrays.numbers(pa.int64(), values, valid)


def _symbols(node: Enum, values: Numbers, valid: Numbers) -> pa.Array:
    """Return the names of an enum's numbers. A number without a name is a text of digits."""
    known = np.array([number for number, _ in node.symbols], np.int64)
    names = [name for _, name in node.symbols]
    places = np.searchsorted(known, values)
    places[places == len(known)] = 0
    strange = (known[places] != values) & (valid != 0)
    if strange.any():
        others, inverse = np.unique(values[strange], return_inverse=True)
        places[strange] = len(names) + inverse
        names = [*names, *map(str, others.tolist())]
    return pa.array(names, pa.string()).take(arrays.numbers(pa.int64(), places, valid))


def _reader(field: Field, type_: pa.DataType) -> _Reader:
    match field.type:
        case Message():
            return _message(field.type, type_)
        case Map():
            return _Maps(type_, field.number, field.type)
        case Repeated(Message()):
            return _Messages(type_, field)
        case Repeated(Scalar("string" | "bytes")):
            return _Texts(type_, field.number, field.type)
        case Repeated():
            return _Numbers(type_, field.number, field.type)
    raise AssertionError(f"{field} has no parts")


def _message(node: Message, type_: pa.DataType) -> _Reader:
    if protobuf.is_timestamp(node):
        return _Timestamps(type_, node)
    if (wrapped := protobuf.wrapped_field(node)) is not None:
        return _Wrapped(type_, wrapped)
    return _Structs(type_, node)


class _Structs:
    """Reads messages into structs, whose members have the names of fields."""

    def __init__(self, type_: pa.StructType, message: Message) -> None:
        self._type = type_
        types = {member.name: member.type for member in type_}
        fields = [each for each in message.fields if each.name in types]
        self._names = [each.name for each in fields]
        self._rows = Rows(fields, [types[name] for name in self._names], message.only(fields).others)

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        columns, sure = self._rows.read(data, firsts, ends, present)
        made = dict(zip(self._names, columns, strict=True))
        members = [
            made[member.name] if member.name in made else pa.nulls(len(firsts), member.type) for member in self._type
        ]
        return arrays.nested(self._type, present, [], members), sure


class _Wrapped:
    """Reads wrappers into their only field."""

    def __init__(self, type_: pa.DataType, field: Field) -> None:
        self._rows = Rows([field], [type_])

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        (values,), sure = self._rows.read(data, firsts, ends, present)
        return values, sure


class _Timestamps:
    """Reads the well-known type Timestamp."""

    def __init__(self, type_: pa.DataType, node: Message) -> None:
        self._type = type_
        self._nanoseconds = node.nanoseconds
        self._seconds = limits.SECONDS_OF_NANOSECONDS if node.nanoseconds else limits.SECONDS
        self._rows = Rows(node.fields, [pa.int64(), pa.int32()])

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        columns, sure = self._rows.read(data, firsts, ends, present)
        seconds, nanos = (pc.fill_null(column, 0).to_numpy() for column in columns)
        for values, (least, most) in ((seconds, self._seconds), (nanos, limits.NANOS)):
            sure &= (values >= least) & (values <= most)
        seconds = np.where(sure, seconds, 0)
        moments = seconds * 1_000_000_000 + nanos if self._nanoseconds else seconds * 1_000_000 + nanos // 1000
        return arrays.numbers(self._type, moments, present & sure), sure


class _Items:
    """Finds the items of a repeated field: their numbers, or their places."""

    def __init__(self, number: int, item: Node, group: bool = False) -> None:
        self._way = _way(number, item, group)
        self._packed = number << 3 | kernel.OF_LENGTH
        self._item = item

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """Return the offsets of the items of each value, their numbers or places, the ends of texts and messages, and which
        values are certain."""
        offsets, sure = np.zeros(len(firsts) + 1, np.int32), np.zeros(len(firsts), bool)
        room = 4 * len(firsts) + 16
        while True:
            found, stops = np.empty(room, np.int64), np.empty(room, np.int64)
            count = self._fill(data, firsts, ends, offsets, found, stops, sure)
            if count <= room:
                break
            room = count
        large = np.diff(offsets) > limits.most_items(self._item, ends - firsts)
        if large.any():
            # They would take too much memory, so they must not be read.
            count = self._fill(data, firsts, np.where(large, firsts, ends), offsets, found, stops, sure)
            sure &= ~large
        return offsets, found[:count], stops[:count], sure

    def _fill(
        self,
        data: Numbers,
        firsts: Numbers,
        ends: Numbers,
        offsets: Numbers,
        found: Numbers,
        stops: Numbers,
        sure: Numbers,
    ) -> int:
        way = self._way
        if way.op < kernel.STRING:
            return int(
                kernel.read_items(
                    data, firsts, ends, way.tag, self._packed, way.op, way.least, way.most, offsets, found, sure
                )
            )
        return int(kernel.find_items(data, firsts, ends, way.tag, way.op, offsets, found, stops, sure))


class _Numbers:
    """Reads repeated numbers."""

    def __init__(self, type_: pa.ListType, number: int, node: Repeated) -> None:
        self._type = type_
        self._item = node.item
        self._items = _Items(number, node.item)

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        offsets, numbers, _, sure = self._items.read(data, firsts, ends)
        made = _numbers(self._item, numbers, np.ones(len(numbers), np.uint8))
        return _listed(self._type, present, offsets, made), sure


class _Texts:
    """Reads repeated texts or bytes."""

    def __init__(self, type_: pa.ListType, number: int, node: Repeated) -> None:
        self._type = type_
        self._kind = _TEXTS[_way(number, node.item).op]
        self._items = _Items(number, node.item)

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        offsets, begins, stops, sure = self._items.read(data, firsts, ends)
        places = np.empty(len(begins) + 1, np.int32)
        size = int((stops - begins).sum())
        if size > arrays.MOST_TEXT:
            raise ValueError(arrays.TOO_LARGE)
        out = np.empty(size + words.BYTES, np.uint8)
        kernel.copy_texts(data, begins, stops, places, out)
        made = arrays.texts(self._kind, np.ones(len(begins), np.uint8), places, out[:size])
        return _listed(self._type, present, offsets, made), sure


class _Messages:
    """Reads repeated messages."""

    def __init__(self, type_: pa.ListType, field: Field) -> None:
        assert isinstance(field.type, Repeated)
        assert isinstance(field.type.item, Message)
        self._type = type_
        self._items = _Items(field.number, field.type.item, field.group)
        self._reader = _message(field.type.item, type_.value_type)

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        offsets, begins, stops, sure = self._items.read(data, firsts, ends)
        made, certain = self._reader.read(data, begins, stops, np.ones(len(begins), bool))
        _doubt_owners(sure, offsets, certain)
        return _listed(self._type, present, offsets, made), sure


class _Maps:
    """Reads maps."""

    def __init__(self, type_: pa.MapType, number: int, node: Map) -> None:
        self._type = type_
        self._items = _Items(number, node.entry)
        self._rows = Rows(node.entry.fields, [type_.key_type, type_.item_type])

    def read(self, data: Numbers, firsts: Numbers, ends: Numbers, present: Numbers) -> tuple[pa.Array, Numbers]:
        offsets, begins, stops, sure = self._items.read(data, firsts, ends)
        (keys, values), certain = self._rows.read(data, begins, stops, np.ones(len(begins), bool))
        _doubt_owners(sure, offsets, certain)
        # The keys of doubted maps are null, but Arrow stops the process at a map with a null key.
        keys = pa.Array.from_buffers(keys.type, len(keys), [None, *keys.buffers()[1:]], 0, keys.offset)
        places = _key_places(keys)
        kernel.doubt_repeated_keys(offsets, places.data, places.firsts, places.ends, sure)
        entries = pa.StructArray.from_arrays([keys, values], fields=[self._type.key_field, self._type.item_field])
        return arrays.nested(self._type, present, [offsets], [entries]), sure


def _listed(type_: pa.ListType, present: Numbers, offsets: Numbers, items: pa.Array) -> pa.Array:
    if items.type != type_.value_type:
        items = pc.cast(items, type_.value_type, safe=False)
    return arrays.nested(type_, present, [offsets], [items])


def _doubt_owners(sure: Numbers, offsets: Numbers, certain: Numbers) -> None:
    """Mark the values whose items are not all certain."""
    if not certain.all():
        owners = np.repeat(np.arange(len(sure)), np.diff(offsets))
        sure[owners[~certain]] = False


def _key_places(keys: pa.Array) -> Places:
    """Return the bytes of keys, which are equal if the keys are."""
    if keys.type == pa.string():
        return Places.from_arrow(keys)
    if keys.type == pa.bool_():
        keys = keys.cast(pa.int8())
    width = keys.type.bit_width // 8
    data = np.frombuffer(keys.buffers()[1] or b"", np.uint8)
    data.setflags(write=False)
    firsts = (np.arange(len(keys)) + keys.offset) * width
    return Places(data, firsts, firsts + width, np.ones(len(keys), bool))
