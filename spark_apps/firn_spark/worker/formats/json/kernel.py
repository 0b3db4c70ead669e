"""The compiled part of `firn_spark.worker.formats.json.blocks`: functions over bytes and places in them.

They return the place behind what they read, or `DOUBT`. Loops index by ``np.uintp``: numba checks a signed index for
being negative (from the end), once for each byte. The functions allocate no arrays and count no references
(``_nrt``), because counting would take longer than the work.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,assignment,var-annotated"
# ruff: noqa: SIM109, SIM110

import numpy as np

from firn_spark.worker.compiled import inlined, njit
from firn_spark.worker.formats import words
from firn_spark.worker.formats.json import limits
from firn_spark.worker.formats.json.tokens import (
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COLON,
    COMMA,
    DOUBT,
    MAX_DIGITS,
    MAX_LONG,
    MINUS,
    OPEN_ARRAY,
    OPEN_OBJECT,
    PLUS,
    POINT,
    QUOTE,
    SIGN_BIT,
    SMALL_F,
    SMALL_N,
    SMALL_T,
    SPACE,
    ZERO,
    after_digits,
    after_literal,
    after_space,
    after_string,
    after_value,
    copied_text,
    nearest_double,
    read_number,
    same_bytes,
    unescaped,
)

(
    BOOLEAN,
    INT,
    LONG,
    FLOAT,
    DOUBLE,
    STRING,
    DATE,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMESTAMP_NS,
    TIMESTAMPTZ_NS,
    DECIMAL,
    OPAQUE,
    TRUNCATED_TIME,
    TRUNCATED_TIMESTAMP,
    TRUNCATED_TIMESTAMPTZ,
) = range(17)
"""Kinds of values. Opaque values are only found and checked for being JSON. Truncated times lose their digits below the microsecond;
in other times, these digits have to be zeros."""

LARGE_T, LARGE_Z, SMALL_Z = (ord(sign) for sign in "TZz")
MOST_FRACTION = 15
"""Most digits below the second. More are doubted."""
BEHIND_NAME = 2
"""Bytes that follow each name in ``names``: a quote and a colon. Most producers write them without a space."""
MEMBER_BYTES = 5
"""Fewest bytes of a member of an object: an empty name and a digit, with the brackets or commas around them."""
DAY_MICROS = 86_400_000_000
MAX_MICROSECONDS = limits.MAX_MICROSECONDS
FIRST_MICROSECOND, LAST_MICROSECOND = limits.FIRST_MICROSECOND, limits.LAST_MICROSECOND
MOST_DAYS_OF_NANOSECONDS = 106_749
"""Days from 1970 whose nanoseconds fit 64 bits in each zone."""
MAX_ZONE_MINUTES = limits.MAX_ZONE_MINUTES
MAX_KEYS = 64
"""Largest number of a map's keys that are compared with each other. Maps with more keys are doubted."""


@inlined
def _two_digits(data, at):
    high, low = int(data[np.uintp(at)]) - ZERO, int(data[np.uintp(at + 1)]) - ZERO
    return high * 10 + low if 0 <= high <= 9 and 0 <= low <= 9 else -1_000_000


@inlined
def _day(data, at, end):
    """Return the days since 1970 of the ten characters YYYY-MM-DD, and whether that day exists."""
    if at + 10 > end:
        return 0, False
    matches, pairs = words.digits_between(words.load(data, np.uintp(at)), words.DATE, words.DATE_SIGNS)
    year = words.byte(pairs, 0) * 100 + words.byte(pairs, 2)
    month = words.byte(pairs, 5)
    day = _two_digits(data, at + 8)
    if not matches or year < 1 or month < 1 or month > 12 or day < 1:
        return 0, False
    length = 31
    if month == 4 or month == 6 or month == 9 or month == 11:
        length = 30
    elif month == 2:
        length = 29 if (year % 4 == 0 and year % 100 != 0) or year % 400 == 0 else 28
    if day > length:
        return 0, False
    # days from civil: years that begin in March, so that the leap day comes last
    if month <= 2:
        year -= 1
        month += 12
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month - 3) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468, True


@inlined
def _time_of_day(data, at, end, most, truncate):
    """Return the place behind hh:mm, hh:mm:ss or hh:mm:ss.f, and the time with ``most`` digits below the second.

    More digits have to be zeros, unless ``truncate`` is set.
    """
    if at + 5 > end or data[np.uintp(at + 2)] != COLON:
        return DOUBT, 0
    second, fraction = 0, 0
    matches, pairs = False, np.uint64(0)
    if at + words.BYTES <= end:
        matches, pairs = words.digits_between(words.load(data, np.uintp(at)), words.TIME, words.TIME_SIGNS)
    if matches:
        hour, minute = words.byte(pairs, 0), words.byte(pairs, 3)
    else:
        hour, minute = _two_digits(data, at), _two_digits(data, at + 3)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59:
        return DOUBT, 0
    at += 5
    if at + 3 <= end and data[np.uintp(at)] == COLON:
        second = words.byte(pairs, 6) if matches else _two_digits(data, at + 1)
        if second < 0 or second > 59:
            return DOUBT, 0
        at += 3
        if at < end and data[np.uintp(at)] == POINT:
            at += 1
            first = at
            at, digits = after_digits(data, at, end, np.uint64(0))
            surplus = at - first - most
            if at == first or at - first > MOST_FRACTION:
                return DOUBT, 0
            if surplus > 0:
                power = words.POWERS[surplus]
                fraction = np.int64(digits // power)
                if not truncate and np.uint64(fraction) * power != digits:
                    return DOUBT, 0
            else:
                fraction = np.int64(digits * words.POWERS[-surplus])
    return at, ((hour * 60 + minute) * 60 + second) * np.int64(words.POWERS[most]) + fraction


@inlined
def _zone(data, at, end):
    """Return the place behind a zone, and its minutes east."""
    if at >= end:
        return DOUBT, 0
    sign = data[np.uintp(at)]
    if sign == LARGE_Z or sign == SMALL_Z:
        return at + 1, 0
    if (sign != PLUS and sign != MINUS) or at + 3 > end:
        return DOUBT, 0
    hours, minutes = _two_digits(data, at + 1), 0
    at += 3
    if at < end and data[np.uintp(at)] != QUOTE:
        if data[np.uintp(at)] == COLON:
            at += 1
        if at + 2 > end:
            return DOUBT, 0
        minutes = _two_digits(data, at)
        at += 2
    total = hours * 60 + minutes
    if hours < 0 or minutes < 0 or minutes > 59 or total > MAX_ZONE_MINUTES:
        return DOUBT, 0
    return at, -total if sign == MINUS else total


@inlined
def _moment(data, at, end, zoned, most, truncate):
    """Return the place behind a date, a time of day and, if ``zoned``, a zone; and the time since 1970 with ``most`` digits."""
    days, valid = _day(data, at, end)
    at += 10
    if not valid or at >= end:
        return DOUBT, 0
    sign = data[np.uintp(at)]
    if sign != LARGE_T and sign != SPACE and sign != SMALL_T:
        return DOUBT, 0
    if most == 9 and (days > MOST_DAYS_OF_NANOSECONDS or days < -MOST_DAYS_OF_NANOSECONDS):
        return DOUBT, 0
    at, moment = _time_of_day(data, at + 1, end, most, truncate)
    if at < 0:
        return DOUBT, 0
    east = 0
    if zoned:
        at, east = _zone(data, at, end)
        if at < 0:
            return DOUBT, 0
    moment += days * DAY_MICROS * (1000 if most == 9 else 1) - east * 60 * np.int64(words.POWERS[most])
    if most == 6 and (moment < FIRST_MICROSECOND or moment > LAST_MICROSECOND):
        return DOUBT, 0
    return at, moment


@njit
def _unscaled(mantissa, digits, exponent, precision, scale):
    """Return a decimal's integer number of units, and whether it is certain."""
    if digits > MAX_DIGITS or mantissa > MAX_LONG:
        return 0, False
    number = np.int64(mantissa)
    if number == 0:
        return 0, True
    shift = exponent + scale
    while shift < 0:
        if number % 10:
            return 0, False
        number //= 10
        shift += 1
    while shift > 0:
        if number > 922_337_203_685_477_580:
            return 0, False
        number *= 10
        shift -= 1
    if precision > 18:
        return number, True
    limit = 1
    for _ in range(precision):
        limit *= 10
    return number, number < limit


@inlined
def _field(data, at, end, kind, precision, scale, powers, values, lengths, column, row):  # noqa: C901, PLR0913
    """Read the value at ``at``, which is not null, into its place. Return the place behind it.

    An integer time is divided by ``scale`` and multiplied by ``precision``.
    """
    byte = data[np.uintp(at)]
    if kind == STRING:
        if byte != QUOTE:
            return DOUBT
        first = at + 1
        at, escaped = after_string(data, first, end)
        values[column, row] = first
        lengths[column, row] = first - at if escaped else at - 1 - first  # negative: the length with the quote
        return at
    if kind == INT or kind == LONG:
        at, negative, mantissa, digits, _, integral = read_number(data, at, end)
        if at < 0 or not integral or digits > MAX_DIGITS or mantissa > MAX_LONG:
            return DOUBT
        number = -np.int64(mantissa) if negative else np.int64(mantissa)
        if kind == INT and (number > 2_147_483_647 or number < -2_147_483_648):
            return DOUBT
        values[column, row] = number
        return at
    if kind == DOUBLE or kind == FLOAT:
        at, negative, mantissa, digits, exponent, _ = read_number(data, at, end)
        if at < 0:
            return DOUBT
        bits, sure = nearest_double(mantissa, digits, exponent, powers)
        values[column, row] = bits | SIGN_BIT if negative else bits
        return at if sure else DOUBT
    if kind == BOOLEAN:
        values[column, row] = 1 if byte == SMALL_T else 0
        return after_literal(data, at, end) if byte == SMALL_T or byte == SMALL_F else DOUBT
    truncate = kind >= TRUNCATED_TIME
    zoned = kind == TIMESTAMPTZ or kind == TRUNCATED_TIMESTAMPTZ
    of_micros = zoned or kind == TIMESTAMP or kind == TRUNCATED_TIMESTAMP
    if (of_micros or kind == TIMESTAMPTZ_NS or kind == TIMESTAMP_NS) and byte != QUOTE:
        at, negative, mantissa, digits, _, integral = read_number(data, at, end)
        if at < 0 or not integral or digits > MAX_DIGITS or mantissa > MAX_LONG:
            return DOUBT
        number = np.int64(mantissa)
        if number > MAX_MICROSECONDS // precision or (number % scale != 0 and not truncate):
            return DOUBT
        values[column, row] = (-number if negative else number) // scale * precision
        return at
    if of_micros:
        at, moment = _moment(data, at + 1, end, zoned, 6, truncate)
        values[column, row] = moment
    elif kind == TIMESTAMPTZ_NS or kind == TIMESTAMP_NS:
        at, moment = _moment(data, at + 1, end, kind == TIMESTAMPTZ_NS, 9, False)
        values[column, row] = moment
    elif kind == DATE:
        if byte != QUOTE:
            return DOUBT
        days, valid = _day(data, at + 1, end)
        values[column, row] = days
        at = at + 11 if valid else DOUBT
    elif kind == TIME or kind == TRUNCATED_TIME:
        if byte != QUOTE:
            return DOUBT
        at, moment = _time_of_day(data, at + 1, end, 6, truncate)
        values[column, row] = moment
    elif kind == DECIMAL:
        quoted = byte == QUOTE
        at, negative, mantissa, digits, exponent, _ = read_number(data, at + 1 if quoted else at, end)
        if at < 0:
            return DOUBT
        number, sure = _unscaled(mantissa, digits, exponent, precision, scale)
        values[column, row] = -number if negative else number
        if not sure:
            return DOUBT
        if not quoted:
            return at
    else:
        first = at
        at = after_value(data, at, end)
        values[column, row] = first
        lengths[column, row] = at - first
        return at
    # what is left stands in quotes
    if at < 0 or at >= end or data[np.uintp(at)] != QUOTE:
        return DOUBT
    return at + 1


@njit
def _named(data, at, length, names, starts, owners):
    """Return the column that has the name at ``at``, or -1."""
    for column in range(len(starts) - 1):
        start = starts[column]
        if starts[column + 1] - start == length + BEHIND_NAME and same_bytes(data, at, names, start, length):
            return owners[column]
    return -1


@inlined
def _record(  # noqa: C901, PLR0913
    data, at, end, row, names, starts, owners, kinds, precisions, scales, required, defaulted, refuse_unknown, powers,
    following, seen, scratch, values, lengths, valid, other_firsts, other_ends, others,
):  # fmt: skip
    """Read one record. Return the number of other members in ``other_firsts``, of which there are ``others`` before, or `DOUBT`.

    ``following`` has, for each column and for the start, the column that came next in the record before: most
    producers keep an order.
    """
    columns = len(kinds)
    at = after_space(data, at, end)
    if at >= end or data[np.uintp(at)] != OPEN_OBJECT:
        return DOUBT
    at = after_space(data, at + 1, end)
    last = 0
    count = 0
    if at < end and data[np.uintp(at)] == CLOSE_OBJECT:
        at += 1
    else:
        while True:
            if at >= end or data[np.uintp(at)] != QUOTE:
                return DOUBT
            name = at
            at += 1
            column = following[last]
            length = starts[column + 1] - starts[column]
            if at + length <= end and same_bytes(data, at, names, starts[column], length):
                at += length
            else:
                after, escaped = after_string(data, at, end)
                if after < 0:
                    return DOUBT
                length = after - 1 - at
                if not escaped:
                    column = _named(data, at, length, names, starts, owners)
                elif length <= len(scratch):
                    column = _named(scratch, 0, unescaped(data, at, after - 1, scratch, 0), names, starts, owners)
                else:
                    return DOUBT
                at = after_space(data, after, end)
                if at >= end or data[np.uintp(at)] != COLON:
                    return DOUBT
                at += 1
            at = after_space(data, at, end)
            if at >= end:
                return DOUBT
            if column < 0:
                if refuse_unknown:
                    return DOUBT
                at = after_value(data, at, end)
                if at >= 0 and len(other_firsts) > 0:
                    other_firsts[others], other_ends[others] = name, at
                    others += 1
            else:
                if seen[column] == row:
                    return DOUBT
                seen[column] = row
                count += 1
                following[last] = column
                last = column + 1
                if data[np.uintp(at)] == SMALL_N:
                    if required[column]:
                        return DOUBT
                    at = after_literal(data, at, end)
                else:
                    valid[column, row] = 1
                    at = _field(
                        data, at, end, kinds[column], precisions[column], scales[column], powers,
                        values, lengths, column, row,
                    )  # fmt: skip
            if at < 0:
                return DOUBT
            at = after_space(data, at, end)
            if at >= end:
                return DOUBT
            byte = data[np.uintp(at)]
            at += 1
            if byte == CLOSE_OBJECT:
                break
            if byte != COMMA:
                return DOUBT
            at = after_space(data, at, end)
    if after_space(data, at, end) != end:
        return DOUBT
    if count < columns:
        for column in range(columns):
            if required[column] and not defaulted[column] and seen[column] != row:
                return DOUBT
    return others


@inlined
def _store(  # noqa: PLR0913
    data, kind, column, slot, base, count, values, lengths, valid, numbers, small, texts, to, offsets, known
):  # fmt: skip
    """Store a member of the ``count`` objects from ``base`` on, as `read_records` describes it.

    Return the place behind the texts in ``texts``, of which ``to`` bytes are used."""
    for row in range(count):
        known[column, base + row] = valid[column, row]
    if kind == STRING:
        shift = offsets[slot, base] - to
        for row in range(count):
            if valid[column, row]:
                to = copied_text(data, values[column, row], lengths[column, row], texts, to)
            offsets[slot, base + row + 1] = to + shift
    elif kind == INT or kind == DATE or kind == BOOLEAN:
        for row in range(count):
            small[slot, base + row] = values[column, row] if valid[column, row] else 0
    else:
        for row in range(count):
            numbers[slot, base + row] = values[column, row] if valid[column, row] else 0
        if kind == OPAQUE:
            for row in range(count):
                numbers[slot + 1, base + row] = lengths[column, row] if valid[column, row] else 0
    return to


@inlined
def _mark_absent(absent, known, defaulted, seen, row, place):
    """Mark the members with a default that the object at ``place`` does not have. ``row`` is its number in ``seen``."""
    for column in range(len(absent)):
        absent[column, place] = known and defaulted[column] and seen[column] != row


@inlined
def _note_others(others_behind, place, others):
    if len(others_behind) > 0:
        others_behind[place] = others


@inlined
def _has_any(flags):
    for place in range(len(flags)):
        if flags[place]:
            return True
    return False


@njit
def read_records(  # noqa: PLR0913
    data, firsts, ends, present, begin, end, names, starts, owners, kinds, precisions, scales, required, defaulted,
    refuse_unknown, powers, following, seen, scratch, values, lengths, valid, slots, numbers, small, texts, pieces, offsets,
    known, absent, vouched, other_firsts, other_ends, others_behind,
):  # fmt: skip
    """Read the objects ``begin`` to ``end`` that are present, each from its place in ``firsts`` to that in ``ends``.

    The function reads the objects of one step, and stores their members before it reads the next step. So the bytes of
    these objects are still in the processor's cache. ``values``, ``lengths`` and ``valid`` have a row for each member
    and a column for each object of a step. They hold a number, the bits of a double, or the start and length of a text.
    A negative length means that the text has escapes.

    Each name in ``names`` has a quote and a colon behind it. The first ones are those of the members, in order. ``owners`` has
    the member of each name.

    ``slots`` has the row of each member in the array for its kind: ``numbers`` for 64 bits, ``small`` for 32 bits, or
    ``offsets`` for texts. An opaque member has two rows in ``numbers``, for start and length. In each step,
    ``texts`` receives the texts of the first text member, then those of the second, and so on. ``pieces`` has a row for
    each step, with the end of each member's texts in ``texts``. ``known`` marks the values that are not null.
    ``absent`` marks the members with a default (``defaulted``) that an object does not have. It is empty without such members.
    ``vouched`` marks the objects whose members are certain.

    ``other_firsts`` and ``other_ends`` receive the places of the members that ``names`` does not have, each from its name on, and
    ``others_behind`` their number up to each object. They have no elements if these members are not kept.

    The function checks no bounds. ``texts`` needs room for the bytes of these objects, and ``offsets[:, begin]`` must be
    set. `MEMBER_BYTES` tells the room for other members.
    """
    columns = len(kinds)
    step = values.shape[1]
    to, others = 0, 0
    for base in range(begin, end, step):
        count = min(step, end - base)
        for column in range(columns):
            seen[column] = -1
        for row in range(count):
            for column in range(columns):
                valid[column, row] = 0
            if present[base + row]:
                found = _record(
                    data, firsts[base + row], ends[base + row], row, names, starts, owners, kinds, precisions, scales, required,
                    defaulted, refuse_unknown, powers, following, seen, scratch, values, lengths, valid, other_firsts, other_ends, others,
                )  # fmt: skip
                sure = found >= 0
                if sure:
                    others = found
            else:
                sure = not _has_any(required)
            vouched[base + row] = sure
            _note_others(others_behind, base + row - begin + 1, others)
            _mark_absent(absent, sure and present[base + row], defaulted, seen, row, base + row)
            if not sure:
                for column in range(columns):
                    valid[column, row] = 0
        for column in range(columns):
            to = _store(
                data, kinds[column], column, slots[column], base, count, values, lengths, valid,
                numbers, small, texts, to, offsets, known,
            )  # fmt: skip
            if kinds[column] == STRING:
                pieces[(base - begin) // step, slots[column]] = to


@njit
def read_values(data, firsts, ends, present, kind, precision, scale, powers, values, lengths, valid, vouched):  # noqa: PLR0913
    """Read single values of one kind into row 0 of ``values`` and ``lengths``, and into ``valid``, as `read_records`
    does for the objects of a step."""
    for place in range(len(vouched)):
        vouched[place] = True
        if present[place]:
            first, end = firsts[place], ends[place]
            at = _field(data, first, end, kind, precision, scale, powers, values, lengths, 0, place)
            vouched[place] = at == end
            valid[place] = 1 if at == end else 0


@njit
def find_elements(data, firsts, ends, present, offsets, element_firsts, element_ends, element_present, owners, vouched):  # noqa: PLR0913
    """Find the elements of arrays: those of array ``row`` start at ``offsets[row]``. Also store which of them are not
    null.

    Return the number of elements. It includes those that found no room: call again with more room.
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
        sure = data[np.uintp(at)] == OPEN_ARRAY
        at = after_space(data, at + 1, end)
        if sure and at < end and data[np.uintp(at)] == CLOSE_ARRAY:
            at += 1
        else:
            while sure:
                first = at
                at = after_value(data, first, end)
                if at < 0:
                    sure = False
                    break
                if count < room:
                    element_firsts[count] = first
                    element_ends[count] = at
                    element_present[count] = data[np.uintp(first)] != SMALL_N
                    owners[count] = row
                count += 1
                at = after_space(data, at, end)
                if at >= end or (data[np.uintp(at)] != COMMA and data[np.uintp(at)] != CLOSE_ARRAY):
                    sure = False
                    break
                at += 1
                if data[np.uintp(at - 1)] == CLOSE_ARRAY:
                    break
                at = after_space(data, at, end)
        if not sure or at != end:
            vouched[row] = False
            count = begun
    offsets[len(vouched)] = count
    return count


@njit
def find_entries(  # noqa: C901, PLR0913
    data, firsts, ends, present, offsets, key_firsts, key_lengths, value_firsts, value_ends, value_present, owners, vouched
):  # fmt: skip
    """Find the keys and values of objects that are maps with text keys; otherwise as `find_elements`.

    Maps with repeated keys are doubted, and maps whose keys cannot be compared at once.
    """
    room = len(owners)
    count = 0
    for row in range(len(vouched)):
        offsets[row] = count
        vouched[row] = True
        if not present[row]:
            continue
        begun = count
        escapes = False
        at, end = firsts[row], ends[row]
        sure = data[np.uintp(at)] == OPEN_OBJECT
        at = after_space(data, at + 1, end)
        if sure and at < end and data[np.uintp(at)] == CLOSE_OBJECT:
            at += 1
        else:
            while sure:
                if count - begun == MAX_KEYS or at >= end or data[np.uintp(at)] != QUOTE:
                    sure = False
                    break
                key = at + 1
                at, escaped = after_string(data, key, end)
                if at < 0:
                    sure = False
                    break
                length = at - 1 - key
                escapes = escapes or escaped
                if count < room:
                    for earlier in range(begun, count):
                        if key_lengths[earlier] == length and same_bytes(data, key, data, key_firsts[earlier], length):
                            sure = False
                    key_firsts[count] = key
                    key_lengths[count] = -1 - length if escaped else length
                at = after_space(data, at, end)
                if at >= end or data[np.uintp(at)] != COLON:
                    sure = False
                    break
                first = after_space(data, at + 1, end)
                at = after_value(data, first, end)
                if at < 0:
                    sure = False
                    break
                if count < room:
                    value_firsts[count] = first
                    value_ends[count] = at
                    value_present[count] = data[np.uintp(first)] != SMALL_N
                    owners[count] = row
                count += 1
                at = after_space(data, at, end)
                if at >= end or (data[np.uintp(at)] != COMMA and data[np.uintp(at)] != CLOSE_OBJECT):
                    sure = False
                    break
                at += 1
                if data[np.uintp(at - 1)] == CLOSE_OBJECT:
                    break
                at = after_space(data, at, end)
        if not sure or at != end or (escapes and count - begun > 1):
            vouched[row] = False
            count = begun
    offsets[len(vouched)] = count
    return count


@njit
def copy_texts(data, firsts, lengths, valid, offsets, out):
    """Copy texts one behind the other. Return their number of bytes."""
    to = 0
    for row in range(len(valid)):
        offsets[row] = to
        if valid[row]:
            to = copied_text(data, firsts[row], lengths[row], out, to)
    offsets[len(valid)] = to
    return to


def warm() -> None:
    """Compile the public functions for the argument types that `firn_spark.worker.formats.json.blocks` uses."""
    data = np.frombuffer(b'{"a": "b"}["b"]', np.uint8)
    first, end, present = np.array([0]), np.array([10]), np.ones(1, bool)
    names, starts = np.frombuffer(b'a":', np.uint8), np.array([0, 3])
    kind, nothing, flag = np.array([STRING]), np.zeros(1, np.int64), np.zeros(1, bool)
    values, lengths, valid = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64), np.zeros((1, 1), np.uint8)
    small, known, texts = np.zeros((1, 1), np.int32), np.zeros((1, 1), np.uint8), np.zeros(9, np.uint8)
    powers, scratch, vouched = np.zeros((1, 2), np.uint64), np.zeros(1, np.uint8), np.zeros(1, bool)
    slots, pieces, offsets = np.zeros(1, np.int64), np.zeros((1, 1), np.int64), np.zeros((1, 2), np.int32)
    read_records(
        data, first, end, present, 0, 1, names, starts, nothing, kind, nothing, nothing, flag, flag, False, powers, np.zeros(2, np.int64),
        np.full(1, -1), scratch, values, lengths, valid, slots, values, small, texts, pieces, offsets, known, np.zeros((0, 0), bool), vouched,
        nothing[:0], nothing[:0], nothing[:0],
    )  # fmt: skip
    assert vouched[0]
    assert texts[: offsets[0, 1]].tobytes() == b"b"
    places, out = np.empty(2, np.int32), np.empty(1, np.uint8)
    copy_texts(data, values[0], lengths[0], valid[0], places, out)
    assert out.tobytes() == b"b"
    begins, ends, owners, inner = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, bool)
    keys = np.zeros(1, np.int64), np.zeros(1, np.int64)
    assert find_entries(data, first, end, present, places, *keys, begins, ends, inner, owners, vouched) == 1
    assert find_elements(data, end, end + 5, present, places, begins, ends, inner, owners, vouched) == 1
    read_values(data, begins, ends, inner, STRING, 0, 0, powers, values, lengths, valid[0], vouched)
    assert vouched[0]
    assert lengths[0, 0] == 1
