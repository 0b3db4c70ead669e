"""Eight bytes at a time: what the kernel reads as one 64-bit number, and copies as one.

A *mark* is the highest bit of a byte. The functions that look for bytes mark them. Except with `digits`, the lowest mark is exact, and a
mark above it may be wrong, because a subtraction borrows from the next byte (Mycroft; Lamport, "Multiple byte processing
with full-word instructions", 1975).
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,assignment,var-annotated"

import numpy as np

from firn_spark.worker.compiled import cgutils, inlined, intrinsic, ir, types

BYTES = 8
"""Length of a word."""
_ONES = np.uint64(0x0101010101010101)
_MARKS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_ZEROS = np.uint64(0x3030303030303030)
_LOW_SEVEN = np.uint64(0x7F7F7F7F7F7F7F7F)
_ABOVE_NINE = np.uint64(0x7676767676767676)
"""Added to a byte from 0 to 127, this sets its mark if it is 10 or more."""
_WORD = ir.IntType(64)
POWERS = np.array([10**power for power in range(BYTES + 2)], np.uint64)
"""The powers of ten that a word of digits can shift a number by, and that of nanoseconds in a second."""


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text, "little"))


DATE, DATE_SIGNS = _word(b"0000-00-"), _word(bytes(0x7F if sign == 45 else 0x76 for sign in b"0000-00-"))
TIME, TIME_SIGNS = _word(b"00:00:00"), _word(bytes(0x7F if sign == 58 else 0x76 for sign in b"00:00:00"))
"""Forms of `digits_between`, with the number that marks any other byte: `_ABOVE_NINE` for a digit, 0x7F for a sign."""


def _place(context, builder, array_type, array, index):
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _WORD.as_pointer())


@intrinsic
def load(_context, array, index):
    """Return the eight bytes at ``index`` of an array of bytes, the first one lowest. They have to be inside it."""

    def generate(context, builder, signature, arguments):
        place = _place(context, builder, signature.args[0], *arguments)
        return builder.load(place, align=1)

    return types.uint64(array, types.uintp), generate


@intrinsic
def store(_context, array, index, word):
    """Write ``word`` to the eight bytes at ``index``. They have to be inside the array."""

    def generate(context, builder, signature, arguments):
        *target, value = arguments
        builder.store(value, _place(context, builder, signature.args[0], *target), align=1)
        return context.get_dummy_value()

    return types.void(array, types.uintp, types.uint64), generate


@intrinsic
def zeros_below(_context, word):
    """Return the number of zero bits below the lowest set bit of ``word``, which is not 0."""

    def generate(_context, builder, _signature, arguments):
        return builder.cttz(arguments[0], cgutils.true_bit)

    return types.uint64(types.uint64), generate


@intrinsic
def zeros_above(_context, word):
    """Return the number of zero bits above the highest set bit of ``word``, which is not 0."""

    def generate(_context, builder, _signature, arguments):
        return builder.ctlz(arguments[0], cgutils.true_bit)

    return types.uint64(types.uint64), generate


@intrinsic
def bits(_context, double):
    """Return the 64 bits of a double."""

    def generate(_context, builder, _signature, arguments):
        return builder.bitcast(arguments[0], _WORD)

    return types.int64(types.float64), generate


@inlined
def special(word):
    """Mark the bytes that end a run of plain text: quotes, backslashes, control characters, and bytes from 128 on."""
    quotes, backslashes = word ^ _QUOTES, word ^ _BACKSLASHES
    found = ((quotes - _ONES) & ~quotes) | ((backslashes - _ONES) & ~backslashes) | ((word - _SPACES) & ~word)
    return (found | word) & _MARKS


@inlined
def digits(word):
    """Return the bytes of ``word`` with 0 to 9 for digits, and marks at all others. Each of these marks is exact."""
    numbers = word ^ _ZEROS
    return numbers, (((numbers & _LOW_SEVEN) + _ABOVE_NINE) | numbers) & _MARKS


@inlined
def leading_digits(word):
    """Return the number of digits that ``word`` begins with, and their value."""
    numbers, others = digits(word)
    if others == np.uint64(0):
        return BYTES, number(numbers, BYTES)
    count = np.int64(zeros_below(others) >> np.uint64(3))
    if count == 0:
        return 0, np.uint64(0)
    return count, number(numbers, count)


@inlined
def number(numbers, count):
    """Return the value of the first ``count`` digits, at least one, of the result of `digits`.

    It takes three multiplications for any number of digits (Lemire, "Quickly parsing eight digits", 2018).
    """
    numbers <<= np.uint64(64 - 8 * count)
    pairs = numbers * np.uint64(10) + (numbers >> np.uint64(8))
    even, odd = np.uint64(0x000F424000000064), np.uint64(0x0000271000000001)
    pair = np.uint64(0x000000FF000000FF)
    return ((pairs & pair) * even + ((pairs >> np.uint64(16)) & pair) * odd) >> np.uint64(32)


@inlined
def digits_between(word, form, signs):
    """Return whether ``word`` has digits where ``form`` has zeros, and equals it elsewhere; and the pairs of digits.

    `byte` of the pairs gives the number of two digits by the place of the first one.
    """
    digits = word ^ form
    others = (((digits & _LOW_SEVEN) + signs) | digits) & _MARKS
    return others == np.uint64(0), digits * np.uint64(10) + (digits >> np.uint64(8))


@inlined
def byte(word, place):
    """Return a byte of ``word``; byte 0 is the lowest."""
    return np.int64((word >> np.uint64(8 * place)) & np.uint64(0xFF))


@inlined
def first_bytes(word, count):
    """Return ``word`` with its first ``count`` bytes, from 0 to 7, and zeros in the others."""
    return word & ((np.uint64(1) << np.uint64(8 * count)) - np.uint64(1))


@inlined
def copied(data, first, length, out, to):
    """Copy ``length`` bytes from ``first`` to ``to`` in ``out``. Return the place behind them.

    Copy words if ``out`` has room for a whole word behind the bytes; the next bytes overwrite the surplus.
    """
    if first + length + BYTES <= len(data) and to + length + BYTES <= len(out):
        for place in range(0, length, BYTES):
            store(out, np.uintp(to + place), load(data, np.uintp(first + place)))
    else:
        for place in range(length):
            out[np.uintp(to + place)] = data[np.uintp(first + place)]
    return to + length
