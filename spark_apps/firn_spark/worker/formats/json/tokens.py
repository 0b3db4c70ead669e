"""The tokens of JSON in compiled code: strings, numbers, and whole values that are only checked for being JSON.

The functions return the place behind what they read, or `DOUBT`. Loops index by ``np.uintp``: numba checks a signed index
for being negative (from the end), once for each byte.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,assignment,var-annotated"
# ruff: noqa: SIM109, SIM110

import numpy as np

from firn_spark.worker.compiled import inlined, njit
from firn_spark.worker.formats import utf8, words
from firn_spark.worker.formats.json import limits

QUOTE, BACKSLASH, COMMA, COLON, MINUS, PLUS, POINT, ZERO, NINE = (ord(sign) for sign in '"\\,:-+.09')
OPEN_OBJECT, CLOSE_OBJECT, OPEN_ARRAY, CLOSE_ARRAY = (ord(sign) for sign in "{}[]")
SMALL_E, LARGE_E, SMALL_U, SMALL_N, SMALL_T, SMALL_F, SPACE = (ord(sign) for sign in "eEuntf ")
MAX_DIGITS = 19
"""Numbers with more digits may not fit 64 bits."""
MIN_POWER, MAX_POWER = -348, 347
EXACT_INTEGER, EXACT_POWER = np.uint64(2**53), 22
POWERS = np.array([10.0**power for power in range(EXACT_POWER + 1)])
"""The powers of ten that a double holds exactly."""
SIGN_BIT = -(2**63)
MAX_LONG = np.uint64(2**63 - 1)
DOUBT = -1
MAX_INNER_DEPTH = limits.MAX_DEPTH - 1


def _power_halves():
    """Return the first 128 bits of each power of ten in two halves.

    They are rounded down, but up from 10**-27 to 10**-1, where the product with a number may be exact (Lemire,
    "Number Parsing at a Gigabyte per Second", 2021).
    """
    powers = []
    for power in range(MIN_POWER, MAX_POWER + 1):
        number = 10**power if power >= 0 else (1 << 1400) // 10**-power
        surplus = number.bit_length() - 128
        number = number >> surplus if surplus >= 0 else number << -surplus
        number += -27 <= power < 0
        powers.append((number >> 64, number & (2**64 - 1)))
    return np.array(powers, np.uint64)


POWER_HALVES = _power_halves()


@inlined
def after_space(data, at, end):
    """Return the place of the next byte that is not white space."""
    if at < end and data[np.uintp(at)] > SPACE:
        return at
    while at < end:
        byte = data[np.uintp(at)]
        if byte != 32 and byte != 10 and byte != 13 and byte != 9:
            break
        at += 1
    return at


@njit
def _hexadecimal(byte):
    if 48 <= byte <= 57:
        return int(byte) - 48
    if 97 <= byte <= 102:
        return int(byte) - 87
    if 65 <= byte <= 70:
        return int(byte) - 55
    return -1


@njit
def _code_unit(data, at, end):
    """Return the number of the four hexadecimal digits at ``at``."""
    if at + 4 > end:
        return DOUBT
    code = 0
    for place in range(at, at + 4):
        digit = _hexadecimal(data[place])
        if digit < 0:
            return DOUBT
        code = code * 16 + digit
    return code


@njit
def _after_escape(data, at, end):
    """Return the place behind the escape whose backslash is at ``at``. Both halves of a surrogate pair are one
    escape."""
    if at + 1 >= end:
        return DOUBT
    byte = data[np.uintp(at + 1)]
    if byte != SMALL_U:
        # " \ / b f n r t
        if (
            byte == 34
            or byte == 92
            or byte == 47
            or byte == 98
            or byte == 102
            or byte == 110
            or byte == 114
            or byte == 116
        ):
            return at + 2
        return DOUBT
    code = _code_unit(data, at + 2, end)
    if code < 0:
        return DOUBT
    if code < 0xD800 or code > 0xDFFF:
        return at + 6
    if code > 0xDBFF or at + 7 >= end or data[np.uintp(at + 6)] != BACKSLASH or data[np.uintp(at + 7)] != SMALL_U:
        return DOUBT
    low = _code_unit(data, at + 8, end)
    if low < 0xDC00 or low > 0xDFFF:
        return DOUBT
    return at + 12


@inlined
def after_string(data, at, end):
    """Return the place behind the closing quote of the string that begins at ``at``, and whether it has escapes."""
    escaped = False
    whole = len(data) - words.BYTES
    while at < end:
        if at <= whole:
            marks = words.special(words.load(data, np.uintp(at)))
            if marks == np.uint64(0):
                at += words.BYTES
                continue
            at += np.int64(words.zeros_below(marks) >> np.uint64(3))
            if at >= end:
                break
        byte = data[np.uintp(at)]
        if byte == QUOTE:
            return at + 1, escaped
        if byte < 32:
            return DOUBT, False
        if byte == BACKSLASH:
            escaped = True
            at = _after_escape(data, at, end)
            if at < 0:
                return DOUBT, False
        elif byte < 128:
            at += 1
        else:
            at = utf8.after_character(data, at, end)
            if at < 0:
                return DOUBT, False
    return DOUBT, False


@inlined
def after_digits(data, at, end, number):
    """Return the place behind the digits at ``at``, and ``number`` followed by these digits, modulo 2**64."""
    whole = len(data) - words.BYTES
    while at < end:
        if at <= whole:
            count, value = words.leading_digits(words.load(data, np.uintp(at)))
            if at + count <= end:
                number = number * words.POWERS[count] + value
                at += count
                if count < words.BYTES:
                    break
                continue
        byte = data[np.uintp(at)]
        if byte < ZERO or byte > NINE:
            break
        number = number * np.uint64(10) + np.uint64(byte - ZERO)
        at += 1
    return at, number


@inlined
def _short_number(word):
    """Read a JSON number without sign and exponent that ends inside ``word``.

    Return its length with the point, its digits as an integer, and the power of ten. The length is 0 for every other number.
    """
    other = (0, np.uint64(0), 0)
    digits, marks = words.digits(word)
    if marks == np.uint64(0):
        return other
    count = np.int64(words.zeros_below(marks) >> np.uint64(3))
    if count == 0 or (count > 1 and words.byte(word, 0) == ZERO):
        return other
    sign = words.byte(word, count)
    if sign != POINT:
        return other if sign == SMALL_E or sign == LARGE_E else (count, words.number(digits, count), 0)
    marks &= marks - np.uint64(1)
    if marks == np.uint64(0):
        return other
    end = np.int64(words.zeros_below(marks) >> np.uint64(3))
    sign = words.byte(word, end)
    fraction = end - count - 1
    if fraction == 0 or sign == SMALL_E or sign == LARGE_E:
        return other
    # Drop the point.
    digits = words.first_bytes(digits, count) | ((digits >> np.uint64(8 * (count + 1))) << np.uint64(8 * count))
    return end, words.number(digits, end - 1), -fraction


@inlined
def read_number(data, at, end):  # noqa: C901
    """Read a JSON number. Return the place behind it, whether it is negative, its significant digits as an integer,
    an upper bound of the count of digits, the power of ten, and whether it has neither fraction nor exponent. Beyond `MAX_DIGITS` digits
    the value is not kept."""
    negative = False
    integral = True
    mantissa = np.uint64(0)
    digits = 0
    exponent = 0
    failed = (DOUBT, False, np.uint64(0), 0, 0, False)
    if at < end and data[np.uintp(at)] == MINUS:
        negative = True
        at += 1
    if at >= end:
        return failed
    if at + words.BYTES <= len(data):
        after, mantissa, exponent = _short_number(words.load(data, np.uintp(at)))
        if 0 < after <= end - at:
            return at + after, negative, mantissa, after, exponent, exponent == 0
        mantissa, exponent = np.uint64(0), 0
    byte = data[np.uintp(at)]
    if byte == ZERO:
        at += 1
    elif ZERO < byte <= NINE:
        first = at
        at, mantissa = after_digits(data, at, end, mantissa)
        digits = at - first
    else:
        return failed
    if at < end and data[np.uintp(at)] == POINT:
        integral = False
        at += 1
        first = at
        if digits == 0:
            while at < end and data[np.uintp(at)] == ZERO:
                at += 1
        significant = at
        at, mantissa = after_digits(data, at, end, mantissa)
        digits += at - significant
        if at == first:
            return failed
        exponent = first - at
    if at < end and (data[np.uintp(at)] == SMALL_E or data[np.uintp(at)] == LARGE_E):
        integral = False
        at += 1
        sign = 1
        if at < end and (data[np.uintp(at)] == PLUS or data[np.uintp(at)] == MINUS):
            if data[np.uintp(at)] == MINUS:
                sign = -1
            at += 1
        first = at
        power = 0
        while at < end and ZERO <= data[np.uintp(at)] <= NINE:
            if power < 100_000:
                power = power * 10 + int(data[np.uintp(at)] - ZERO)
            at += 1
        if at == first:
            return failed
        exponent += sign * power
    return at, negative, mantissa, digits, exponent, integral


@inlined
def after_literal(data, at, end):
    """Return the place behind ``null``, ``true`` or ``false``."""
    if at + 4 > end:
        return DOUBT
    byte = data[np.uintp(at)]
    if byte == SMALL_N:
        return (
            at + 4
            if data[np.uintp(at + 1)] == 117 and data[np.uintp(at + 2)] == 108 and data[np.uintp(at + 3)] == 108
            else DOUBT
        )
    if byte == SMALL_T:
        return (
            at + 4
            if data[np.uintp(at + 1)] == 114 and data[np.uintp(at + 2)] == 117 and data[np.uintp(at + 3)] == 101
            else DOUBT
        )
    if byte == SMALL_F and at + 5 <= end:
        same = (
            data[np.uintp(at + 1)] == 97
            and data[np.uintp(at + 2)] == 108
            and data[np.uintp(at + 3)] == 115
            and data[np.uintp(at + 4)] == 101
        )
        return at + 5 if same else DOUBT
    return DOUBT


@njit
def after_value(data, at, end):  # noqa: C901
    """Return the place behind any JSON value. ``objects`` has a bit for each open bracket, 1 for an object."""
    objects = np.uint64(0)
    depth = 0
    while True:
        # a value begins here
        if at >= end:
            return DOUBT
        byte = data[np.uintp(at)]
        opened = False
        if byte == QUOTE:
            at, _ = after_string(data, at + 1, end)
        elif byte == OPEN_OBJECT or byte == OPEN_ARRAY:
            depth += 1
            if depth > MAX_INNER_DEPTH:
                return DOUBT
            objects = (objects << np.uint64(1)) | np.uint64(1 if byte == OPEN_OBJECT else 0)
            at = after_space(data, at + 1, end)
            opened = True
        elif byte == MINUS or ZERO <= byte <= NINE:
            at, _, _, _, _, _ = read_number(data, at, end)
        else:
            at = after_literal(data, at, end)
        if at < 0:
            return DOUBT
        # close what ends here, then find the next value
        while True:
            if depth == 0:
                return at
            if not opened:
                at = after_space(data, at, end)
            if at >= end:
                return DOUBT
            byte = data[np.uintp(at)]
            inside = objects & np.uint64(1) == np.uint64(1)
            if byte == (CLOSE_OBJECT if inside else CLOSE_ARRAY):
                depth -= 1
                objects >>= np.uint64(1)
                at += 1
                opened = False
                continue
            if not opened:
                if byte != COMMA:
                    return DOUBT
                at = after_space(data, at + 1, end)
            if inside:
                if at >= end or data[np.uintp(at)] != QUOTE:
                    return DOUBT
                at, _ = after_string(data, at + 1, end)
                if at < 0:
                    return DOUBT
                at = after_space(data, at, end)
                if at >= end or data[np.uintp(at)] != COLON:
                    return DOUBT
                at = after_space(data, at + 1, end)
            break


@inlined
def _product(left, right):
    """Return the high and the low half of a product of two 64-bit numbers."""
    half, low_half = np.uint64(32), np.uint64(0xFFFFFFFF)
    left_high, left_low = left >> half, left & low_half
    right_high, right_low = right >> half, right & low_half
    lowest = left_low * right_low
    middle = left_high * right_low + (lowest >> half)
    other = left_low * right_high + (middle & low_half)
    return left_high * right_high + (middle >> half) + (other >> half), (other << half) | (lowest & low_half)


@inlined
def nearest_double(mantissa, digits, exponent, powers):
    """Return the bits of the nearest double, and whether they are certain (Eisel-Lemire, as in Go's strconv).

    If the integer and the power of ten are exact doubles, their quotient is the nearest double (Clinger, "How to read
    floating point numbers accurately", 1990).

    ``powers`` is `POWER_HALVES`.
    """
    if digits > MAX_DIGITS or exponent < MIN_POWER or exponent > MAX_POWER:
        return 0, False
    if mantissa == np.uint64(0):
        return 0, True
    if mantissa <= EXACT_INTEGER and -EXACT_POWER <= exponent <= 0:
        return words.bits(np.float64(mantissa) / POWERS[np.uintp(-exponent)]), True
    zeros = np.int64(words.zeros_above(mantissa))
    mantissa <<= np.uint64(zeros)
    binary = ((217_706 * exponent) >> 16) + 64 + 1023 - zeros
    last, low_bits = np.uint64(0xFFFFFFFFFFFFFFFF), np.uint64(0x1FF)
    high, low = _product(mantissa, powers[exponent - MIN_POWER, 0])
    if high & low_bits == low_bits and low + mantissa < mantissa:
        next_high, next_low = _product(mantissa, powers[exponent - MIN_POWER, 1])
        merged = low + next_high
        if merged < low:
            high += np.uint64(1)
        if high & low_bits == low_bits and merged == last and next_low + mantissa < mantissa:
            return 0, False
        low = merged
    top = high >> np.uint64(63)
    bits = high >> (top + np.uint64(9))
    if top == np.uint64(0):
        binary -= 1
    if low == np.uint64(0) and high & low_bits == np.uint64(0) and bits & np.uint64(3) == np.uint64(1):
        return 0, False
    bits = (bits + (bits & np.uint64(1))) >> np.uint64(1)
    if bits >> np.uint64(53) != np.uint64(0):
        bits >>= np.uint64(1)
        binary += 1
    if binary < 1 or binary > 0x7FE:
        return 0, False
    return (binary << 52) | np.int64(bits & np.uint64(0xFFFFFFFFFFFFF)), True


@njit
def _append_utf8(code, out, to):
    if code < 0x80:
        out[to] = code
        return to + 1
    if code < 0x800:
        out[to] = 0xC0 | (code >> 6)
        out[to + 1] = 0x80 | (code & 0x3F)
        return to + 2
    if code < 0x10000:
        out[to] = 0xE0 | (code >> 12)
        out[to + 1] = 0x80 | ((code >> 6) & 0x3F)
        out[to + 2] = 0x80 | (code & 0x3F)
        return to + 3
    out[to] = 0xF0 | (code >> 18)
    out[to + 1] = 0x80 | ((code >> 12) & 0x3F)
    out[to + 2] = 0x80 | ((code >> 6) & 0x3F)
    out[to + 3] = 0x80 | (code & 0x3F)
    return to + 4


@njit
def unescaped(data, at, end, out, to):
    """Copy a text whose escapes were checked before. Return the place behind it in ``out``. The copy never grows."""
    while at < end:
        byte = data[np.uintp(at)]
        if byte != BACKSLASH:
            out[to] = byte
            to += 1
            at += 1
            continue
        sign = data[np.uintp(at + 1)]
        at += 2
        if sign == SMALL_U:
            code = _code_unit(data, at, end)
            at += 4
            if 0xD800 <= code <= 0xDBFF:
                code = 0x10000 + ((code - 0xD800) << 10) + (_code_unit(data, at + 2, end) - 0xDC00)
                at += 6
            to = _append_utf8(code, out, to)
            continue
        plain = sign
        if sign == 98:
            plain = 8
        elif sign == 102:
            plain = 12
        elif sign == 110:
            plain = 10
        elif sign == 114:
            plain = 13
        elif sign == 116:
            plain = 9
        out[to] = plain
        to += 1
    return to


@inlined
def copied_text(data, first, length, out, to):
    """Copy a text, which has escapes if ``length`` is negative. Return the place behind it in ``out``, as `words.copied`."""
    if length < 0:
        return unescaped(data, first, first - length - 1, out, to)
    return words.copied(data, first, length, out, to)


@inlined
def same_bytes(data, at, names, start, length):
    """Return whether the ``length`` bytes at ``at`` equal those of ``names`` at ``start``."""
    if at + length + words.BYTES <= len(data) and start + length + words.BYTES <= len(names):
        place = 0
        while place + words.BYTES <= length:
            if words.load(data, np.uintp(at + place)) != words.load(names, np.uintp(start + place)):
                return False
            place += words.BYTES
        different = words.load(data, np.uintp(at + place)) ^ words.load(names, np.uintp(start + place))
        return words.first_bytes(different, length - place) == np.uint64(0)
    for place in range(length):
        if data[np.uintp(at + place)] != names[np.uintp(start + place)]:
            return False
    return True
