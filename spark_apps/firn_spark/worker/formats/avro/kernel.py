"""The compiled part of `firn_spark.worker.formats.avro.rows`: functions over bytes and places in them.

They return the place behind the bytes that they read, or `DOUBT`. As in `firn_spark.worker.formats.json.kernel`, loops index by
``np.uintp``, and the functions allocate nothing.

Source: Avro specification 1.12, "Binary Encoding".
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,assignment,var-annotated"
# ruff: noqa: SIM109, SIM110

import numpy as np

from firn_spark.worker.compiled import inlined, njit
from firn_spark.worker.formats import utf8, words

NULL, BOOLEAN, INT, LONG, FLOAT, DOUBLE, STRING, BYTES, FIXED, ENUM, DECIMAL, ARRAY, MAP, UNION, RECORD = range(15)
"""Kinds of types."""
SKIP = -1
"""The slot of values that no column needs."""
PASS = -2
"""The slot of values that no column needs, and whose bytes need not be valid in all details."""
DOUBT = -1
MAX_LEVELS = 64
"""Rows of the stack of `_after_value`. Schemas nest less."""
MAX_KEYS = 64
"""Largest number of a map's keys that are compared with each other. Maps with more keys are doubted."""


@inlined
def _number(data, at, end):
    """Return the place behind a zigzag variable-length number, and the number."""
    if at >= end:
        return DOUBT, 0
    byte = data[np.uintp(at)]
    at += 1
    bits = np.uint64(byte & 0x7F)
    shift = np.uint64(7)
    while byte > 127:
        if at >= end or shift > np.uint64(63):
            return DOUBT, 0
        byte = data[np.uintp(at)]
        at += 1
        if shift == np.uint64(63) and byte > 1:
            return DOUBT, 0
        bits |= np.uint64(byte & 0x7F) << shift
        shift += np.uint64(7)
    return at, np.int64(bits >> np.uint64(1)) ^ -np.int64(bits & np.uint64(1))


@inlined
def _after_bytes(data, at, end):
    """Return the place of bytes behind their length, and the place behind them."""
    at, length = _number(data, at, end)
    if at < 0 or length < 0 or length > end - at:
        return at, DOUBT
    return at, at + length


@njit
def _after_value(data, at, end, node, kinds, sizes, starts, counts, parts, stack):  # noqa: C901, PLR0913
    """Return the place behind a value of type ``node``. Its bytes need not be valid in all details.

    ``kinds``, ``sizes``, ``starts`` and ``counts`` have an element for each type, and ``parts`` the types inside them.
    ``stack`` has two columns.
    """
    depth = 0
    while True:
        kind = kinds[node]
        if kind == INT or kind == LONG or kind == ENUM:
            at, _ = _number(data, at, end)
        elif kind == STRING or kind == BYTES:
            _, at = _after_bytes(data, at, end)
        elif kind == BOOLEAN or kind == FLOAT or kind == DOUBLE or kind == FIXED:
            at += sizes[node]
            if at > end:
                return DOUBT
        elif kind == UNION:
            at, branch = _number(data, at, end)
            if at < 0 or branch < 0 or branch >= counts[node]:
                return DOUBT
            node = parts[starts[node] + branch]
            continue
        elif kind != NULL:
            if depth == MAX_LEVELS:
                return DOUBT
            stack[depth, 0] = node
            stack[depth, 1] = 0
            depth += 1
        if at < 0:
            return DOUBT
        # find the next value
        while True:
            if depth == 0:
                return at
            node, done = stack[depth - 1, 0], stack[depth - 1, 1]
            if kinds[node] == RECORD:
                if done == counts[node]:
                    depth -= 1
                    continue
                stack[depth - 1, 1] = done + 1
                node = parts[starts[node] + done]
                break
            if done == 0:
                at, done = _number(data, at, end)
                if at < 0:
                    return DOUBT
                if done < 0:
                    at, size = _number(data, at, end)
                    if at < 0 or size < 0 or size > end - at:
                        return DOUBT
                    at += size
                    continue
                if done == 0:
                    depth -= 1
                    continue
                if done > end - at:
                    return DOUBT
            stack[depth - 1, 1] = done - 1
            if kinds[node] == MAP:
                _, at = _after_bytes(data, at, end)
                if at < 0:
                    return DOUBT
            node = parts[starts[node]]
            break


@inlined
def _decimal(data, at, length, high_limit, low_limit):
    """Return the halves of a big-endian number of at most 16 bytes, and whether it is smaller than the limit."""
    byte = data[np.uintp(at)]
    negative = byte > 127
    low = np.uint64(0xFFFFFFFFFFFFFFFF) if negative else np.uint64(0)
    high = low
    for place in range(length):
        high = (high << np.uint64(8)) | (low >> np.uint64(56))
        low = (low << np.uint64(8)) | np.uint64(data[np.uintp(at + place)])
    size_high, size_low = high, low
    if negative:
        size_low = ~low + np.uint64(1)
        size_high = ~high + (np.uint64(1) if size_low == np.uint64(0) else np.uint64(0))
    fits = size_high < high_limit or (size_high == high_limit and size_low < low_limit)
    return np.int64(high), np.int64(low), fits


@inlined
def _value(data, at, end, kind, size, scale, mins, maxs, highs, lows, column, values, lengths, row):  # noqa: C901, PLR0913
    """Store a value without parts. Return the place behind it."""
    if kind == NULL:
        return at
    if kind == INT or kind == LONG:
        at, number = _number(data, at, end)
        if number < mins[column] or number > maxs[column]:
            return DOUBT
        values[column, row] = number * scale
        return at
    if kind == STRING or kind == BYTES:
        first, at = _after_bytes(data, at, end)
        if at < 0 or (kind == STRING and not utf8.is_text(data, first, at)):
            return DOUBT
        values[column, row] = first
        lengths[column, row] = at - first
        return at
    if kind == DOUBLE or kind == FLOAT:
        if size > end - at:
            return DOUBT
        bits = np.uint64(0)
        for place in range(size):
            bits |= np.uint64(data[np.uintp(at + place)]) << np.uint64(8 * place)
        values[column, row] = np.int64(bits) if kind == DOUBLE else np.int64(np.int32(np.uint32(bits)))
        return at + size
    if kind == BOOLEAN:
        if at >= end or data[np.uintp(at)] > 1:
            return DOUBT
        values[column, row] = data[np.uintp(at)]
        return at + 1
    if kind == ENUM:
        at, number = _number(data, at, end)
        if at < 0 or number < 0 or number >= size:
            return DOUBT
        values[column, row] = number
        return at
    if kind == FIXED:
        if size > end - at:
            return DOUBT
        values[column, row] = at
        return at + size
    first, behind = at, at + size
    if size == 0:
        first, behind = _after_bytes(data, at, end)
    if behind < 0 or behind > end or behind == first:
        return DOUBT
    sign = 0xFF if data[np.uintp(first)] > 127 else 0
    while behind - first > 16 and data[np.uintp(first)] == sign and data[np.uintp(first + 1)] >> 7 == sign >> 7:
        first += 1
    if behind - first > 16:
        return DOUBT
    high, low, fits = _decimal(data, first, behind - first, highs[column], lows[column])
    if not fits:
        return DOUBT
    values[column, row] = low
    lengths[column, row] = high
    return behind


@inlined
def _row(  # noqa: PLR0913
    data, at, end, row, fields, nulls, ops, slots, field_sizes, scales, mins, maxs, highs, lows, kinds, sizes, starts,
    counts, parts, stack, values, lengths, valid,
):  # fmt: skip
    """Read one row. Return True if it is vouched for."""
    for column in range(len(fields)):
        null = nulls[column]
        if null >= 0:
            at, branch = _number(data, at, end)
            if at < 0 or branch < 0 or branch > 1:
                return False
            if branch == null:
                continue
        op = ops[column]
        if slots[column] == PASS:
            at = _after_value(data, at, end, fields[column], kinds, sizes, starts, counts, parts, stack)
            if at < 0:
                return False
            continue
        if op >= ARRAY:
            if slots[column] == SKIP:
                return False  # no reader would check its parts
            first = at
            at = _after_value(data, at, end, fields[column], kinds, sizes, starts, counts, parts, stack)
            values[column, row] = first
            lengths[column, row] = at - first
        else:
            at = _value(
                data, at, end, op, field_sizes[column], scales[column], mins, maxs, highs, lows, column, values, lengths, row
            )  # fmt: skip
        if at < 0:
            return False
        valid[column, row] = 1
    return at == end


@inlined
def _store(  # noqa: PLR0913
    data, op, scale, column, slot, base, count, values, lengths, valid, numbers, small, texts, to, offsets, known
):  # fmt: skip
    """Store a field of the ``count`` rows from ``base`` on, as `read_rows` describes it.

    Return the place behind the texts in ``texts``, of which ``to`` bytes are used."""
    for row in range(count):
        known[column, base + row] = valid[column, row]
    if op == STRING or op == BYTES:
        shift = offsets[slot, base] - to
        for row in range(count):
            if valid[column, row]:
                to = words.copied(data, values[column, row], lengths[column, row], texts, to)
            offsets[slot, base + row + 1] = to + shift
    elif op == BOOLEAN or op == ENUM or op == FLOAT or (op == INT and scale == 1):
        for row in range(count):
            small[slot, base + row] = values[column, row] if valid[column, row] else 0
    else:
        for row in range(count):
            numbers[slot, base + row] = values[column, row] if valid[column, row] else 0
        if op >= DECIMAL:
            for row in range(count):
                numbers[slot + 1, base + row] = lengths[column, row] if valid[column, row] else 0
    return to


@njit
def read_rows(  # noqa: PLR0913
    data, firsts, ends, present, begin, end, fields, nulls, ops, slots, field_sizes, scales, mins, maxs, highs, lows, kinds,
    sizes, starts, counts, parts, stack, values, lengths, valid, numbers, small, texts, pieces, offsets, known, vouched,
):  # fmt: skip
    """Read the rows ``begin`` to ``end`` that are present, each from its place in ``firsts`` to that in ``ends``.

    A row has the values of ``fields``, one after the other. A field of ``nulls`` 0 or 1 is a union with null as this branch;
    -1 for no union. ``ops`` are the kinds of the fields that are not null. Integers are between ``mins`` and ``maxs``, and
    ``scales`` multiply them. ``highs`` and ``lows`` are the halves of the limits of decimals.

    ``slots`` has the row of each field in the array for its kind, `SKIP` or `PASS`: ``small`` for 32 bits, ``numbers`` for 64
    bits, or ``offsets`` for texts and bytes. A decimal has two rows in ``numbers``: its low and its high half. A type with
    parts has two, for its place and its length, and a fixed has one, for its place. ``texts``, ``pieces``, ``known`` and
    ``vouched`` are as in `firn_spark.worker.formats.json.kernel.read_records`, and so are the bounds that are not checked.
    """
    columns = len(fields)
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
                    data, firsts[base + row], ends[base + row], row, fields, nulls, ops, slots, field_sizes, scales, mins,
                    maxs, highs, lows, kinds, sizes, starts, counts, parts, stack, values, lengths, valid,
                )  # fmt: skip
            vouched[base + row] = sure
            if not sure:
                for column in range(columns):
                    valid[column, row] = 0
        for column in range(columns):
            if slots[column] < 0:
                continue
            to = _store(
                data, ops[column], scales[column], column, slots[column], base, count, values, lengths, valid, numbers,
                small, texts, to, offsets, known,
            )  # fmt: skip
            if ops[column] == STRING or ops[column] == BYTES:
                pieces[(base - begin) // step, slots[column]] = to


@njit
def find_items(  # noqa: C901, PLR0913
    data, firsts, ends, present, node, kinds, sizes, starts, counts, parts, stack, offsets, key_firsts, key_lengths,
    item_firsts, item_ends, owners, vouched,
):  # fmt: skip
    """Find the elements of arrays, or the keys and values of maps: those of row ``row`` start at ``offsets[row]``.

    Return the number of elements. It includes those that found no room: call again with more room. Maps with repeated
    keys are doubted, and maps whose keys cannot be compared at once.
    """
    room = len(owners)
    count = 0
    for row in range(len(vouched)):
        offsets[row] = count
        vouched[row] = True
        if not present[row]:
            continue
        begun = count
        at, end = firsts[row], ends[row]
        sure = True
        while sure:
            at, left = _number(data, at, end)
            if at >= 0 and left < 0:
                left = -left
                at, _ = _number(data, at, end)
            if at < 0 or left < 0 or left > end - at:
                sure = False
            elif left == 0:
                break
            while sure and left > 0:
                if kinds[node] == MAP:
                    key, at = _after_bytes(data, at, end)
                    sure = at >= 0 and utf8.is_text(data, key, at) and count - begun < MAX_KEYS
                    if sure and count < room:
                        for earlier in range(begun, count):
                            if key_lengths[earlier] == at - key and _same(data, key, key_firsts[earlier], at - key):
                                sure = False
                        key_firsts[count] = key
                        key_lengths[count] = at - key
                if sure:
                    first = at
                    at = _after_value(data, at, end, parts[starts[node]], kinds, sizes, starts, counts, parts, stack)
                    sure = at >= 0
                if sure:
                    if count < room:
                        item_firsts[count] = first
                        item_ends[count] = at
                        owners[count] = row
                    count += 1
                    left -= 1
        if not sure or at != end:
            vouched[row] = False
            count = begun
    offsets[len(vouched)] = count
    return count


@inlined
def _same(data, first, second, length):
    for place in range(length):
        if data[np.uintp(first + place)] != data[np.uintp(second + place)]:
            return False
    return True


@njit
def find_branches(data, firsts, ends, present, count, branches, value_firsts, vouched):
    """Read the branches of unions with ``count`` branches, and find their values. A value that is absent has branch -1."""
    for row in range(len(vouched)):
        vouched[row] = True
        branches[row] = -1
        value_firsts[row] = firsts[row]
        if present[row]:
            at, branch = _number(data, firsts[row], ends[row])
            if at < 0 or branch < 0 or branch >= count:
                vouched[row] = False
            else:
                branches[row] = branch
                value_firsts[row] = at


@njit
def copy_texts(data, firsts, lengths, offsets, out):
    """Copy texts one behind the other. ``out`` has room for a word behind them."""
    to = 0
    for row in range(len(firsts)):
        offsets[row] = to
        to = words.copied(data, firsts[row], lengths[row], out, to)
    offsets[len(firsts)] = to


def warm() -> None:
    """Compile the public functions for the argument types that `firn_spark.worker.formats.avro.rows` uses."""
    data = np.frombuffer(b"\x02\x02b\x00", np.uint8)
    first, end, present = np.array([1]), np.array([3]), np.ones(1, bool)
    nothing, one = np.zeros(1, np.int64), np.zeros((1, 1), np.int64)
    types = np.array([STRING]), nothing, nothing, nothing, nothing
    values, lengths, valid, stack = (
        one.copy(),
        one.copy(),
        np.zeros((1, 1), np.uint8),
        np.zeros((MAX_LEVELS, 2), np.int64),
    )
    small, known, texts = np.zeros((1, 1), np.int32), np.zeros((1, 1), np.uint8), np.zeros(9, np.uint8)
    halves, offsets, vouched = np.zeros(1, np.uint64), np.zeros((1, 2), np.int32), np.zeros(1, bool)
    read_rows(
        data, first, end, present, 0, 1, nothing, np.full(1, -1), np.array([STRING]), nothing, nothing, nothing + 1, nothing,
        nothing, halves, halves, *types, stack, values, lengths, valid, one, small, texts, one.copy(), offsets, known, vouched,
    )  # fmt: skip
    assert vouched[0]
    assert texts[: offsets[0, 1]].tobytes() == b"b"
    places, owners = [np.zeros(1, np.int64) for _ in range(4)], np.zeros(1, np.int64)
    kinds, starts, counts, parts = np.array([ARRAY, STRING]), np.zeros(2, np.int64), np.array([1, 0]), np.array([1])
    count = find_items(
        data, nothing, end + 1, present, 0, kinds, starts, starts, counts, parts, stack, offsets[0], *places, owners, vouched
    )  # fmt: skip
    assert count == 1
    assert vouched[0]
    branches = np.zeros(1, np.int64)
    find_branches(data, nothing, end, present, 2, branches, places[0], vouched)
    assert branches[0] == 1
    copy_texts(data, nothing + 2, nothing + 1, offsets[0], texts)
    assert texts[0] == ord("b")
