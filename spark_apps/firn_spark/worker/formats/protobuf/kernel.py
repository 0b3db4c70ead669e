"""The compiled part of `firn_spark.worker.formats.protobuf.rows`: functions over bytes and places in them.

They return the place behind the bytes that they read, or `DOUBT`. As in `firn_spark.worker.formats.json.kernel`, loops index by
``np.uintp``, and the functions allocate nothing.

Source: Protobuf documentation, "Encoding".
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,assignment,var-annotated"
# ruff: noqa: SIM109, SIM110

import numpy as np

from firn_spark.worker.compiled import inlined, njit
from firn_spark.worker.formats import utf8, words

VARINT, ZIGZAG, BOOLEAN, SIGNED32, UNSIGNED32, WORD64, STRING, BYTES, MESSAGE, REPEATED, OTHER = range(11)
"""Ways to read a value. `REPEATED` is any number of values of one field. `OTHER` is a member of a oneof that has no
column."""
OF_VARINT, OF_64, OF_LENGTH, OF_START, OF_END, OF_32 = range(6)
"""Wire types."""
NULL, DEFAULT, REQUIRED = range(3)
"""Meanings of an absent field."""
NO_TAG = -1
DOUBT = -1
MAX_KEYS = 64
"""Largest number of a map's keys that are compared with each other. Maps with more keys are doubted."""
MOST_TAG_BYTES = 5
_MOST_TAG = np.uint64(0xFFFFFFFF)
_NUMBER_BITS, _NUMBER_MASK = np.uint64(29), np.uint64(2**29 - 1)
"""Bits of a field number."""


@inlined
def _varint(data, at, end):
    """Return the place behind a variable-length number, and the number."""
    if at >= end:
        return DOUBT, np.uint64(0)
    byte = data[np.uintp(at)]
    at += 1
    bits = np.uint64(byte & 0x7F)
    shift = np.uint64(7)
    while byte > 127:
        if at >= end or shift > np.uint64(63):
            return DOUBT, np.uint64(0)
        byte = data[np.uintp(at)]
        at += 1
        if shift == np.uint64(63) and byte > 1:
            return DOUBT, np.uint64(0)
        bits |= np.uint64(byte & 0x7F) << shift
        shift += np.uint64(7)
    return at, bits


@inlined
def _tag(data, at, end):
    """Return the place behind a tag, and the tag, which has a field number."""
    behind, bits = _varint(data, at, end)
    if behind < 0 or behind - at > MOST_TAG_BYTES or bits > _MOST_TAG or bits < np.uint64(8):
        return DOUBT, 0
    return behind, np.int64(bits)


@inlined
def _after_length(data, at, end):
    """Return the place of bytes behind their length, and the place behind them."""
    at, length = _varint(data, at, end)
    if at < 0 or length > np.uint64(end - at):
        return at, DOUBT
    return at, at + np.int64(length)


@inlined
def _after_plain(data, at, end, wire):
    """Return the place behind a value of a wire type that is no group."""
    if wire == OF_VARINT:
        at, _ = _varint(data, at, end)
        return at
    if wire == OF_LENGTH:
        _, at = _after_length(data, at, end)
        return at
    if wire == OF_64:
        return at + 8 if end - at >= 8 else DOUBT
    if wire == OF_32:
        return at + 4 if end - at >= 4 else DOUBT
    return DOUBT


@inlined
def _after_group(data, at, end, number):
    """Return the place of the tag that ends the group of a field, and the place behind it.

    A group with more than four groups inside each other is doubted.
    """
    # Each has the field numbers of up to two open groups. The last group is in the lowest bits of the first one.
    inner, outer = np.uint64(0), np.uint64(0)
    while at < end:
        stop = at
        at, tag = _tag(data, at, end)
        if at < 0:
            break
        wire, found = tag & 7, np.uint64(tag >> 3)
        if wire == OF_START:
            if outer >> _NUMBER_BITS != np.uint64(0):
                break
            outer = outer << _NUMBER_BITS | inner >> _NUMBER_BITS
            inner = (inner & _NUMBER_MASK) << _NUMBER_BITS | found
        elif wire == OF_END:
            if inner == np.uint64(0):
                if found != np.uint64(number):
                    break
                return stop, at
            if inner & _NUMBER_MASK != found:
                break
            inner = (outer & _NUMBER_MASK) << _NUMBER_BITS | inner >> _NUMBER_BITS
            outer >>= _NUMBER_BITS
        else:
            at = _after_plain(data, at, end, wire)
            if at < 0:
                break
    return DOUBT, DOUBT


@inlined
def _after_any(data, at, end, tag):
    """Return the place behind the value that follows a tag."""
    if tag & 7 == OF_START:
        _, at = _after_group(data, at, end, tag >> 3)
        return at
    return _after_plain(data, at, end, tag & 7)


@inlined
def _bounds(data, at, end, tag):
    """Return the places of the content of a text, bytes, a message or a group, and the place behind it."""
    if tag & 7 == OF_START:
        stop, behind = _after_group(data, at, end, tag >> 3)
        return at, stop, behind
    first, behind = _after_length(data, at, end)
    return first, behind, behind


@inlined
def _number(data, at, end, op, least, most):
    """Return the place behind a number between ``least`` and ``most``, and the number or its bits."""
    if op <= BOOLEAN:
        at, bits = _varint(data, at, end)
        if at < 0:
            return DOUBT, 0
        if op == BOOLEAN:
            return at, np.int64(bits != np.uint64(0))
        number = np.int64(bits)
        if op == ZIGZAG:
            number = np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1))
        if number < least or number > most:
            return DOUBT, 0
        return at, number
    size = 8 if op == WORD64 else 4
    if end - at < size:
        return DOUBT, 0
    bits = np.uint64(0)
    for place in range(size):
        bits |= np.uint64(data[np.uintp(at + place)]) << np.uint64(8 * place)
    if op == SIGNED32:
        return at + 4, np.int64(np.int32(np.uint32(bits)))
    return at + size, np.int64(bits)


@inlined
def _column(tags, tag, guess):
    """Return the column of a tag's field, or `DOUBT` if no column has it. ``tags`` ascend. The last guess is tried first."""
    columns = len(tags)
    for column in range(guess, min(guess + 2, columns)):
        if tags[np.uintp(column)] == tag:
            return column
    low, high = 0, columns
    number = tag >> 3
    while low < high:
        middle = (low + high) // 2
        if tags[np.uintp(middle)] >> 3 < number:
            low = middle + 1
        else:
            high = middle
    return low if low < columns and tags[np.uintp(low)] >> 3 == number else DOUBT


@inlined
def _row(  # noqa: C901, PLR0913
    data, at, end, row, tags, packed, ops, mins, maxs, absent, defaults, oneofs, chosen, values, lengths, valid,
):  # fmt: skip
    """Read one row. Return True if it is vouched for."""
    for oneof in range(len(chosen)):
        chosen[oneof] = DOUBT
    guess = 0
    while at < end:
        begun = at
        at, tag = _tag(data, at, end)
        if at < 0:
            return False
        column = _column(tags, tag, guess)
        if column < 0:
            at = _after_any(data, at, end, tag)
            if at < 0:
                return False
            continue
        op = ops[column]
        if tags[column] != tag and packed[column] != tag and op != OTHER:
            return False
        guess = column
        if op == OTHER:
            at = _after_any(data, at, end, tag)
            if at < 0:
                return False
        elif op == REPEATED:
            at = _after_any(data, at, end, tag)
            if at < 0 or (valid[column, row] and values[column, row] + lengths[column, row] != begun):
                return False
            if not valid[column, row]:
                values[column, row] = begun
            lengths[column, row] = at - values[column, row]
        elif op >= STRING:
            first, stop, at = _bounds(data, at, end, tag)
            if at < 0 or (op == STRING and not utf8.is_text(data, first, at)) or (op == MESSAGE and valid[column, row]):
                return False
            values[column, row] = first
            lengths[column, row] = stop - first
        else:
            at, values[column, row] = _number(data, at, end, op, mins[column], maxs[column])
            if at < 0:
                return False
        oneof = oneofs[column]
        if oneof >= 0:
            if chosen[oneof] >= 0 and chosen[oneof] != column:
                return False
            chosen[oneof] = column
        valid[column, row] = 1
    for column in range(len(tags)):
        if not valid[column, row] and absent[column] != NULL:
            if absent[column] == REQUIRED:
                return False
            values[column, row] = defaults[column]
            lengths[column, row] = 0
            valid[column, row] = 1
    return True


@inlined
def _store(  # noqa: PLR0913
    data, op, narrow, column, slot, base, count, values, lengths, valid, numbers, small, texts, to, offsets, known
):  # fmt: skip
    """Store a field of the ``count`` rows from ``base`` on, as `read_rows` describes it.

    Return the place behind the texts in ``texts``, of which ``to`` bytes are used."""
    for row in range(count):
        known[column, base + row] = valid[column, row]
    if op == OTHER:
        return to
    if op == STRING or op == BYTES:
        shift = offsets[slot, base] - to
        for row in range(count):
            if valid[column, row]:
                to = words.copied(data, values[column, row], lengths[column, row], texts, to)
            offsets[slot, base + row + 1] = to + shift
    elif narrow:
        for row in range(count):
            small[slot, base + row] = values[column, row] if valid[column, row] else 0
    else:
        for row in range(count):
            numbers[slot, base + row] = values[column, row] if valid[column, row] else 0
        if op >= MESSAGE:
            for row in range(count):
                numbers[slot + 1, base + row] = lengths[column, row] if valid[column, row] else 0
    return to


@njit
def read_rows(  # noqa: PLR0913
    data, firsts, ends, present, begin, end, tags, packed, ops, narrow, slots, mins, maxs, absent, defaults, oneofs, chosen,
    values, lengths, valid, numbers, small, texts, pieces, offsets, known, vouched,
):  # fmt: skip
    """Read the rows ``begin`` to ``end`` that are present, each a message from its place in ``firsts`` to that in ``ends``.

    ``tags`` ascend. ``packed`` has the tag of packed values, or `NO_TAG`. ``ops`` are ways to read a value. Integers are
    between ``mins`` and ``maxs``. An absent field has the meaning in ``absent``, and perhaps the value in ``defaults``.
    ``oneofs`` has the number of a field's oneof, or -1. ``chosen`` has an element for each oneof.

    ``slots`` has the row of each field in the array for its kind: ``small`` for 32 bits, which ``narrow`` marks, ``numbers``
    for 64 bits, or ``offsets`` for texts and bytes. A message has two rows in ``numbers``, for its place and its length. So
    has a repeated field, for all its values with their tags, which must stand together. ``texts``, ``pieces``, ``known`` and
    ``vouched`` are as in `firn_spark.worker.formats.json.kernel.read_records`, and so are the bounds that are not checked.
    """
    columns = len(tags)
    step = values.shape[1]
    to = 0
    for base in range(begin, end, step):
        count = min(step, end - base)
        for row in range(count):
            for column in range(columns):
                valid[column, row] = 0
            sure = True
            if present[base + row]:
                sure = _row(
                    data, firsts[base + row], ends[base + row], row, tags, packed, ops, mins, maxs, absent, defaults, oneofs,
                    chosen, values, lengths, valid,
                )  # fmt: skip
            vouched[base + row] = sure
            if not sure:
                for column in range(columns):
                    valid[column, row] = 0
        for column in range(columns):
            to = _store(
                data, ops[column], narrow[column], column, slots[column], base, count, values, lengths, valid, numbers,
                small, texts, to, offsets, known,
            )  # fmt: skip
            if ops[column] == STRING or ops[column] == BYTES:
                pieces[(base - begin) // step, slots[column]] = to


@njit
def find_items(data, firsts, ends, tag, op, offsets, item_firsts, item_ends, vouched):  # noqa: PLR0913
    """Find the texts, bytes or messages of repeated fields: those of row ``row`` start at ``offsets[row]``.

    A row has the values of one field with their tags. Return the number of values. It includes those that found no room:
    call again with more room.
    """
    room = len(item_ends)
    count = 0
    for row in range(len(vouched)):
        offsets[row] = count
        vouched[row] = True
        begun = count
        at, end = firsts[row], ends[row]
        while at < end:
            at, found = _tag(data, at, end)
            if at < 0 or found != tag:
                vouched[row] = False
                break
            first, stop, at = _bounds(data, at, end, tag)
            if at < 0 or (op == STRING and not utf8.is_text(data, first, at)):
                vouched[row] = False
                break
            if count < room:
                item_firsts[count] = first
                item_ends[count] = stop
            count += 1
        if not vouched[row]:
            count = begun
    offsets[len(vouched)] = count
    return count


@njit
def read_items(data, firsts, ends, tag, packed, op, least, most, offsets, numbers, vouched):  # noqa: PLR0913
    """Read the numbers of repeated fields, packed or not: those of row ``row`` start at ``offsets[row]``.

    Rows, room and result are those of `find_items`.
    """
    room = len(numbers)
    count = 0
    for row in range(len(vouched)):
        offsets[row] = count
        begun = count
        at, end = firsts[row], ends[row]
        sure = True
        while sure and at < end:
            at, found = _tag(data, at, end)
            behind = at
            if at < 0:
                sure = False
            elif found == packed:
                at, behind = _after_length(data, at, end)
            elif found == tag:
                behind = _after_plain(data, at, end, tag & 7)
            else:
                sure = False
            sure = sure and behind >= 0
            while sure and at < behind:
                at, number = _number(data, at, behind, op, least, most)
                sure = at >= 0
                if sure:
                    if count < room:
                        numbers[count] = number
                    count += 1
        if not sure:
            count = begun
        vouched[row] = sure
    offsets[len(vouched)] = count
    return count


@njit
def doubt_repeated_keys(offsets, data, firsts, ends, vouched):
    """Mark the maps that have a key twice, or too many keys to compare, as not vouched for."""
    for row in range(len(vouched)):
        first, end = offsets[row], offsets[row + 1]
        if end - first > MAX_KEYS:
            vouched[row] = False
            continue
        for key in range(first, end):
            length = ends[key] - firsts[key]
            for earlier in range(first, key):
                if ends[earlier] - firsts[earlier] == length and _same(data, firsts[key], firsts[earlier], length):
                    vouched[row] = False


@inlined
def _same(data, first, second, length):
    for place in range(length):
        if data[np.uintp(first + place)] != data[np.uintp(second + place)]:
            return False
    return True


@njit
def copy_texts(data, firsts, ends, offsets, out):
    """Copy texts one behind the other. ``out`` has room for a word behind them."""
    to = 0
    for row in range(len(firsts)):
        offsets[row] = to
        to = words.copied(data, firsts[row], ends[row] - firsts[row], out, to)
    offsets[len(firsts)] = to


@njit
def skip_indexes(data, firsts, ends, present, expected, behind, vouched):
    """Find the places behind the message indexes of values. Vouch only for values with ``expected`` indexes, if it has any.

    Source: "Wire format" of Confluent Schema Registry. A count and the indexes are zigzag numbers; one byte 0 is the list [0].
    """
    wanted = len(expected)
    for row in range(len(vouched)):
        behind[row] = firsts[row]
        vouched[row] = True
        if not present[row]:
            continue
        end = ends[row]
        at, count = _varint(data, firsts[row], end)
        sure = at >= 0 and count & np.uint64(1) == np.uint64(0) and (count >> np.uint64(1)) <= np.uint64(end - at)
        if sure:
            indexes = np.int64(count >> np.uint64(1))
            for place in range(indexes):
                at, index = _varint(data, at, end)
                if at < 0 or index & np.uint64(1) == np.uint64(1):
                    sure = False
                    break
                if place < wanted and np.int64(index >> np.uint64(1)) != expected[place]:
                    sure = False
                    break
            if wanted > 0 and indexes != wanted:
                sure = sure and indexes == 0 and wanted == 1 and expected[0] == 0
        behind[row] = at if sure else firsts[row]
        vouched[row] = sure


def warm() -> None:
    """Compile the public functions for the argument types that `firn_spark.worker.formats.protobuf.rows` uses."""
    data = np.frombuffer(b"\x00\x0a\x01b", np.uint8)
    first, end, present = np.array([1]), np.array([4]), np.ones(1, bool)
    nothing, one = np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
    valid, known, small = np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.int32)
    texts, offsets, vouched = np.zeros(9, np.uint8), np.zeros((1, 2), np.int32), np.zeros(1, bool)
    tags, ops = np.array([10]), np.array([STRING])
    read_rows(
        data, first, end, present, 0, 1, tags, nothing, ops, nothing, nothing, nothing, nothing, nothing, nothing, nothing - 1,
        nothing[:0], one.copy(), one.copy(), valid, one.copy(), small, texts, one.copy(), offsets, known, vouched,
    )  # fmt: skip
    assert vouched[0]
    assert texts[: offsets[0, 1]].tobytes() == b"b"
    places = np.zeros(1, np.int64), np.zeros(1, np.int64)
    assert find_items(data, first, end, 10, STRING, offsets[0], *places, vouched) == 1
    assert read_items(data, first, end, 8, 10, VARINT, 0, 255, offsets[0], nothing, vouched) == 1
    assert nothing[0] == ord("b")
    doubt_repeated_keys(offsets[0], data, *places, vouched)
    copy_texts(data, first + 2, end, offsets[0], texts)
    skip_indexes(data, first - 1, end, present, np.zeros(1, np.int64), places[0], vouched)
    assert (places[0][0], vouched[0]) == (1, True)
