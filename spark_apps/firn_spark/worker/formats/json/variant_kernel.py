"""The compiled part of `firn_spark.worker.formats.json.variants`: JSON values as variants, as `firn.decoders.json_variants` makes them.

A value is parsed into nodes, which are in the order of the text: a container stands before what it holds. Going back from the last node
gives the bytes of each container. Going forward again gives each node its place in the output. No function calls itself.

The values have to be JSON already. The functions are otherwise as in `firn_spark.worker.formats.json.tokens`.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,assignment,var-annotated"
# ruff: noqa: SIM109

import numpy as np

from firn_spark.worker.compiled import inlined, njit
from firn_spark.worker.formats import words
from firn_spark.worker.formats.json import limits
from firn_spark.worker.formats.json.tokens import (
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COLON,
    DOUBT,
    MAX_DIGITS,
    MAX_LONG,
    MINUS,
    NINE,
    OPEN_ARRAY,
    OPEN_OBJECT,
    POINT,
    QUOTE,
    SIGN_BIT,
    SMALL_N,
    SMALL_T,
    ZERO,
    after_literal,
    after_space,
    after_string,
    nearest_double,
    read_number,
    same_bytes,
    unescaped,
)

KIND, FIRST, LENGTH, PARENT, BEHIND, SLOT, SIZE, PLACE = range(8)
"""Columns of a node. ``FIRST`` and ``LENGTH`` tell a text's place, a container's number of members and their bytes, or a primitive's bits
and header. ``BEHIND`` is the next node that is not inside, ``SLOT`` the number of the name."""
NODE = 8
_TEXT, _UNESCAPED, _OBJECT, _ARRAY, _PRIMITIVE = range(5)
"""Kinds of nodes. An unescaped text stands in ``texts``, each other text in the data."""
_NULL, _TRUE, _FALSE, _INT8, _INT16, _INT32, _INT64, _DOUBLE, _DECIMAL4, _DECIMAL8, _DECIMAL16 = range(11)
"""Types of primitives."""
_LONG_TEXT = 16
_MOST_SHORT = 63
"""Most bytes of a text whose length is in its header."""
_MOST_SCALE = 38
_FOUR_BYTES, _EIGHT_BYTES = np.uint64(10**9), np.uint64(10**18)
"""The first numbers that do not fit decimals of these bytes."""
_VERSION_AND_SORTED = 0x11
_BEHIND_NAME = 2
"""A quote and a colon follow each name in ``names``, and are compared with it."""
MOST_NAMES = 1024
"""Most different names of a value. They are inserted into an ordered list."""
_TWO_BYTES = 256
"""Names from which on their numbers take two bytes."""
KNOWN, SLOTS, READ, USED, CHANGED, ESCAPED, METADATA, METADATA_LENGTH = range(8)
"""State: the names of the value before, in the order of the text (number of ``sequence`` and of different ones), those read of this value,
how many different ones these are, whether they differ from those before, whether one has escapes, and the last metadata in the output."""
STATE = 8


@inlined
def _bytes_of(number):
    if number < 1 << 8:
        return 1
    if number < 1 << 16:
        return 2
    return 3 if number < 1 << 24 else 4


@inlined
def _put(out, to, number, size):
    """Write the lowest bytes of a number. Bytes behind them stay: they may be of a member that was written before."""
    for place in range(size):
        out[np.uintp(to + place)] = (number >> (8 * place)) & 0xFF
    return to + size


@inlined
def _copied(data, first, length, out, to):
    """Copy a text, and nothing behind it."""
    if length < words.BYTES:
        for place in range(length):
            out[np.uintp(to + place)] = data[np.uintp(first + place)]
        return
    last = length - words.BYTES
    for place in range(0, last, words.BYTES):
        words.store(out, np.uintp(to + place), words.load(data, np.uintp(first + place)))
    words.store(out, np.uintp(to + last), words.load(data, np.uintp(first + last)))


@njit
def _difference(names, first, first_length, second, second_length):
    """Compare two names by their bytes. Eight bytes behind each name have to be inside ``names``."""
    length = min(first_length, second_length)
    for place in range(0, length, words.BYTES):
        different = words.load(names, np.uintp(first + place)) ^ words.load(names, np.uintp(second + place))
        if different != np.uint64(0):
            place += np.int64(words.zeros_below(different) >> np.uint64(3))
            if place < length:
                return np.int64(names[np.uintp(first + place)]) - np.int64(names[np.uintp(second + place)])
            break
    return first_length - second_length


@inlined
def _forget(state, name_firsts):
    """Forget the names of the value before."""
    for place in range(STATE):
        state[place] = 0
    state[METADATA_LENGTH] = DOUBT
    name_firsts[0] = 0


@njit
def _keep_used(order, state):
    """Keep only the names of this value: numbers are given in the order of the text."""
    kept = 0
    for place in range(state[SLOTS]):
        if order[place] < state[USED]:
            order[kept] = order[place]
            kept += 1
    state[SLOTS] = kept
    state[CHANGED] = 1


@njit
def _other_name(data, at, end, names, name_firsts, order, sequence, state):
    """Read a name that is not the same as in the value before, as `_name` does."""
    after, escaped = after_string(data, at, end)
    if after < 0:
        return DOUBT, 0
    if not state[CHANGED]:
        _keep_used(order, state)
    slots = state[SLOTS]
    first, length = name_firsts[slots], after - 1 - at
    if first + length + _BEHIND_NAME + words.BYTES > len(names):
        return DOUBT, 0
    if escaped:
        state[ESCAPED] = 1
        to = unescaped(data, at, after - 1, names, first)
    else:
        to = words.copied(data, at, length, names, first)
    names[to], names[to + 1] = QUOTE, COLON
    slot, low, high = -1, 0, slots
    while low < high:
        middle = (low + high) >> 1
        other = order[middle]
        start = name_firsts[other]
        difference = _difference(names, start, name_firsts[other + 1] - _BEHIND_NAME - start, first, to - first)
        if difference == 0:
            slot = other
            break
        if difference < 0:
            low = middle + 1
        else:
            high = middle
    if slot < 0:
        if slots == MOST_NAMES:
            return DOUBT, 0
        for place in range(slots, low, -1):
            order[place] = order[place - 1]
        slot, order[low] = slots, slots
        name_firsts[slots + 1] = to + _BEHIND_NAME
        state[SLOTS] = slots + 1
    sequence[state[READ]] = slot
    state[READ] += 1
    at = after_space(data, after, end)
    if at >= end or data[np.uintp(at)] != COLON:
        return DOUBT, 0
    return at + 1, slot


@inlined
def _name(data, at, end, names, name_firsts, order, sequence, state):
    """Read the name behind the quote at ``at``. Return the place behind its colon, and its number."""
    place = state[READ]
    if not state[CHANGED] and place < state[KNOWN]:
        slot = sequence[place]
        first = name_firsts[slot]
        length = name_firsts[slot + 1] - first
        if at + 1 + length <= end and same_bytes(data, at + 1, names, first, length):
            state[READ] = place + 1
            state[USED] = max(state[USED], slot + 1)
            return at + 1 + length, slot
    return _other_name(data, at + 1, end, names, name_firsts, order, sequence, state)


@inlined
def _set(nodes, node, kind, first, length, size):
    nodes[node, KIND] = kind
    nodes[node, FIRST] = first
    nodes[node, LENGTH] = length
    nodes[node, SIZE] = size


@inlined
def _set_primitive(nodes, node, kind, bits, negative, scale, size):
    """Store a primitive: its header, and what follows the header in ``size`` bytes."""
    nodes[node, KIND] = _PRIMITIVE
    nodes[node, FIRST] = bits
    nodes[node, LENGTH] = kind << 2 | scale << 8 | (1 << 16 if negative else 0)
    nodes[node, SIZE] = 1 + size


@inlined
def _has_power(data, first, at):
    """Return whether the number from ``first`` to ``at``, which is no integer, has an exponent."""
    place = at - 1
    while place > first and ZERO <= data[np.uintp(place)] <= NINE:
        place -= 1
    return data[np.uintp(place)] != POINT


@inlined
def _number(data, first, end, powers, nodes, node):
    """Read a number into a node. Return the place behind it."""
    at, negative, mantissa, digits, exponent, integral = read_number(data, first, end)
    if at < 0:
        return DOUBT
    if not integral and _has_power(data, first, at):
        bits, sure = nearest_double(mantissa, digits, exponent, powers)
        _set_primitive(nodes, node, _DOUBLE, bits | SIGN_BIT if negative else bits, False, 0, 8)
        return at if sure else DOUBT
    if digits > MAX_DIGITS or exponent < -_MOST_SCALE:
        return DOUBT
    number = np.int64(mantissa)
    if negative:
        number = -number
    if integral and mantissa <= MAX_LONG:
        if -(1 << 7) <= number < 1 << 7:
            _set_primitive(nodes, node, _INT8, number, False, 0, 1)
        elif -(1 << 15) <= number < 1 << 15:
            _set_primitive(nodes, node, _INT16, number, False, 0, 2)
        elif -(1 << 31) <= number < 1 << 31:
            _set_primitive(nodes, node, _INT32, number, False, 0, 4)
        else:
            _set_primitive(nodes, node, _INT64, number, False, 0, 8)
        return at
    if number == SIGN_BIT:  # fits eight bytes if it is negative
        return DOUBT
    if mantissa < _FOUR_BYTES and exponent >= -9:
        _set_primitive(nodes, node, _DECIMAL4, number, False, -exponent, 1 + 4)
    elif mantissa < _EIGHT_BYTES and exponent >= -18:
        _set_primitive(nodes, node, _DECIMAL8, number, False, -exponent, 1 + 8)
    else:
        _set_primitive(nodes, node, _DECIMAL16, number, negative and number != 0, -exponent, 1 + 16)
    return at


@inlined
def _text(data, first, end, nodes, node, texts, to):
    """Read a text into a node. Return the place behind it, and that behind the texts in ``texts``."""
    at, escaped = after_string(data, first, end)
    if at < 0:
        return DOUBT, to
    length, kind = at - 1 - first, _TEXT
    if escaped:
        behind = unescaped(data, first, at - 1, texts, to)
        first, length, kind = to, behind - to, _UNESCAPED
        to = behind
    _set(nodes, node, kind, first, length, length + (1 if length <= _MOST_SHORT else 5))
    return at, to


@inlined
def _parsed(  # noqa: C901, PLR0913
    data, firsts, ends, span, last, members, powers, nodes, names, name_firsts, order, sequence, texts, state
):  # fmt: skip
    """Parse the value at the place ``span``, or the object of the members from ``span`` to ``last``. Return the number of nodes."""
    at, end = firsts[span], ends[span]
    count, parent, unescaped_to = 0, -1, 0
    if members:
        _set(nodes, 0, _OBJECT, 0, 0, 0)
        nodes[0, PARENT], nodes[0, SLOT] = -1, -1
        count, parent = 1, 0
    while True:
        slot = -1
        if parent >= 0 and nodes[parent, KIND] == _OBJECT:
            at, slot = _name(data, at, end, names, name_firsts, order, sequence, state)
            if at < 0:
                return DOUBT
            at = after_space(data, at, end)
        if at >= end or count == len(nodes):
            return DOUBT
        node = count
        count += 1
        nodes[node, PARENT], nodes[node, SLOT], nodes[node, BEHIND] = parent, slot, count
        if parent >= 0:
            nodes[parent, FIRST] += 1
        byte = data[np.uintp(at)]
        opened = False
        if byte == QUOTE:
            at, unescaped_to = _text(data, at + 1, end, nodes, node, texts, unescaped_to)
        elif byte == OPEN_OBJECT or byte == OPEN_ARRAY:
            _set(nodes, node, _OBJECT if byte == OPEN_OBJECT else _ARRAY, 0, 0, 0)
            at = after_space(data, at + 1, end)
            parent, opened = node, True
        elif byte == MINUS or ZERO <= byte <= NINE:
            at = _number(data, at, end, powers, nodes, node)
        else:
            kind = _NULL if byte == SMALL_N else _TRUE if byte == SMALL_T else _FALSE
            _set_primitive(nodes, node, kind, 0, False, 0, 0)
            at = after_literal(data, at, end)
        if at < 0:
            return DOUBT
        # Close what ends here, then find the next value.
        while True:
            if parent < 0:
                return count
            if members and parent == 0:
                span += 1
                if span == last:
                    nodes[0, BEHIND] = count
                    return count
                at, end = firsts[span], ends[span]
                break
            if not opened:
                at = after_space(data, at, end)
            if at >= end:
                return DOUBT
            if data[np.uintp(at)] != (CLOSE_OBJECT if nodes[parent, KIND] == _OBJECT else CLOSE_ARRAY):
                if not opened:
                    at = after_space(data, at + 1, end)
                break
            nodes[parent, BEHIND] = count
            parent = nodes[parent, PARENT]
            at += 1
            opened = False


@inlined
def _measure(nodes, count, number_size):
    """Store the bytes of each container. Return those of the whole value."""
    for node in range(count - 1, -1, -1):
        kind = nodes[node, KIND]
        if kind == _OBJECT or kind == _ARRAY:
            inside, content = nodes[node, FIRST], nodes[node, LENGTH]
            size = 1 + (4 if inside > 255 else 1) + (inside + 1) * _bytes_of(content) + content
            nodes[node, SIZE] = size + inside * number_size if kind == _OBJECT else size
        if node > 0:
            nodes[nodes[node, PARENT], LENGTH] += nodes[node, SIZE]
    return nodes[0, SIZE]


@inlined
def _container_written(nodes, node, ranks, number_size, keys, out):
    """Write the header of a container, and give its members their places. Return False for a name that occurs twice."""
    is_object = nodes[node, KIND] == _OBJECT
    inside, size = nodes[node, FIRST], _bytes_of(nodes[node, LENGTH])
    many = inside > 255
    if is_object:
        header = 2 | (size - 1) << 2 | (number_size - 1) << 4 | (1 << 6 if many else 0)
    else:
        header = 3 | (size - 1) << 2 | (1 << 4 if many else 0)
    to = _put(out, nodes[node, PLACE], header, 1)
    to = _put(out, to, inside, 4 if many else 1)
    offset = 0
    if not is_object:
        place = to + (inside + 1) * size
        member = node + 1
        for _ in range(inside):
            to = _put(out, to, offset, size)
            nodes[member, PLACE] = place + offset
            offset += nodes[member, SIZE]
            member = nodes[member, BEHIND]
        _put(out, to, offset, size)
        return True
    if inside > len(keys):
        return False
    member = node + 1
    for number in range(inside):
        key = ranks[nodes[member, SLOT]] << 32 | member
        place = number
        while place > 0 and keys[np.uintp(place - 1)] > key:
            keys[np.uintp(place)] = keys[np.uintp(place - 1)]
            place -= 1
        keys[np.uintp(place)] = key
        member = nodes[member, BEHIND]
    place = to + inside * number_size + (inside + 1) * size
    last = -1
    for number in range(inside):
        rank, member = keys[np.uintp(number)] >> 32, keys[np.uintp(number)] & 0xFFFFFFFF
        if rank == last:
            return False
        last = rank
        _put(out, to + number * number_size, rank, number_size)
        _put(out, to + inside * number_size + number * size, offset, size)
        nodes[member, PLACE] = place + offset
        offset += nodes[member, SIZE]
    _put(out, to + inside * (number_size + size), offset, size)
    return True


@inlined
def _written(data, texts, nodes, count, ranks, number_size, keys, out, to):  # noqa: PLR0913
    """Write the nodes of a value at ``to``. Return False if an object has a name twice."""
    nodes[0, PLACE] = to
    for node in range(count):
        kind, place = nodes[node, KIND], nodes[node, PLACE]
        first, length = nodes[node, FIRST], nodes[node, LENGTH]
        if kind == _PRIMITIVE:
            left = nodes[node, SIZE] - 1
            place = _put(out, place, length, 1)
            if length & 0xFF >= _DECIMAL4 << 2:
                place = _put(out, place, length >> 8, 1)
                left -= 1
            place = _put(out, place, first, min(left, 8))
            if left > 8:
                # The sign is not that of ``first`` if the number takes all 64 bits.
                _put(out, place, -1 if length >> 16 else 0, left - 8)
        elif kind == _TEXT or kind == _UNESCAPED:
            if length <= _MOST_SHORT:
                place = _put(out, place, 1 | length << 2, 1)
            else:
                place = _put(out, _put(out, place, _LONG_TEXT << 2, 1), length, 4)
            if kind == _TEXT:
                _copied(data, first, length, out, place)
            else:
                _copied(texts, first, length, out, place)
        elif not _container_written(nodes, node, ranks, number_size, keys, out):
            return False
    return True


@inlined
def _metadata_length(names_bytes, slots):
    return 1 + (slots + 2) * _bytes_of(max(names_bytes, slots)) + names_bytes


@inlined
def _metadata_written(names, name_firsts, order, state, metadata, to):
    """Write the names of a value in order, or copy the metadata of the value before if its names are the same."""
    if not state[CHANGED] and state[METADATA_LENGTH] > 0:
        words.copied(metadata, state[METADATA], state[METADATA_LENGTH], metadata, to)
        return
    slots = state[SLOTS]
    total = name_firsts[slots] - _BEHIND_NAME * slots
    size = _bytes_of(max(total, slots))
    place = _put(metadata, to, _VERSION_AND_SORTED | (size - 1) << 6, 1)
    place = _put(metadata, place, slots, size)
    offset = 0
    content = place + (slots + 1) * size
    for number in range(slots):
        place = _put(metadata, place, offset, size)
        first = name_firsts[order[number]]
        length = name_firsts[order[number] + 1] - _BEHIND_NAME - first
        _copied(names, first, length, metadata, content + offset)
        offset += length
    _put(metadata, place, offset, size)


@njit
def encode(  # noqa: PLR0913
    data, firsts, ends, behind, members, powers, nodes, names, name_firsts, order, ranks, sequence, texts, keys, state,
    metadata, metadata_ends, out, ends_out, vouched,
):  # fmt: skip
    """Encode the values of rows: row ``i`` has the places in ``firsts`` and ``ends`` from ``behind[i]`` to ``behind[i + 1]``.

    These are one value, or with ``members`` the members of an object, each with its name. A row without places has no variant.
    ``metadata_ends`` and ``ends_out`` receive the end of each row in ``metadata`` and ``out``. A row that is not ``vouched`` for
    is empty there, for example because there is no room. ``state`` and the arrays before it only have to have room.
    """
    metadata_to, to = 0, 0
    _forget(state, name_firsts)
    for row in range(len(vouched)):
        sure, length, size = True, 0, 0
        if behind[row] < behind[row + 1]:
            state[READ], state[USED], state[CHANGED] = 0, 0, 0
            count = _parsed(
                data, firsts, ends, behind[row], behind[row + 1], members, powers, nodes, names, name_firsts, order, sequence, texts, state
            )  # fmt: skip
            sure = count > 0
            if sure:
                if state[READ] != state[KNOWN] and not state[CHANGED]:
                    _keep_used(order, state)
                slots = state[SLOTS]
                if state[CHANGED]:
                    for rank in range(slots):
                        ranks[order[rank]] = rank
                number_size = 1 if slots <= _TWO_BYTES else 2
                size = _measure(nodes, count, number_size)
                length = _metadata_length(name_firsts[slots] - _BEHIND_NAME * slots, slots)
                sure = size + length <= limits.MAX_VARIANT_BYTES
                sure = sure and metadata_to + length <= len(metadata) and to + size <= len(out)
                if sure:
                    _metadata_written(names, name_firsts, order, state, metadata, metadata_to)
                    sure = _written(data, texts, nodes, count, ranks, number_size, keys, out, to)
            if sure and not state[ESCAPED]:
                state[KNOWN], state[METADATA], state[METADATA_LENGTH] = state[READ], metadata_to, length
            else:
                # Names with escapes are not compared with the text.
                _forget(state, name_firsts)
            if sure:
                metadata_to += length
                to += size
        vouched[row] = sure
        metadata_ends[row] = metadata_to
        ends_out[row] = to


def warm() -> None:
    """Compile `encode` for the argument types that `firn_spark.worker.formats.json.variants` uses."""
    data = np.frombuffer(b'{"a":1}', np.uint8)
    places, room = np.array([0, 7]), np.zeros(64, np.int64)
    powers, nodes = np.zeros((1, 2), np.uint64), np.zeros((4, NODE), np.int64)
    names, texts, metadata, out = (np.zeros(64, np.uint8) for _ in range(4))
    scratch = [np.zeros(MOST_NAMES + 1, np.int64) for _ in range(5)]
    name_firsts, order, ranks, sequence, keys = scratch
    ends, vouched = np.zeros((2, 1), np.int64), np.zeros(1, bool)
    encode(
        data, places[:1], places[1:], np.array([0, 1]), False, powers, nodes, names, name_firsts, order, ranks, sequence, texts, keys, room,
        metadata, ends[0], out, ends[1], vouched,
    )  # fmt: skip
    assert vouched[0]
    assert out[: ends[1, 0]].tobytes() == bytes([2, 1, 0, 0, 2, 0x0C, 1])
