"""UTF-8 in compiled code."""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg"

import numpy as np

from firn_spark.worker.compiled import inlined, njit
from firn_spark.worker.formats import words

INVALID = -1
_MARKS = np.uint64(0x8080808080808080)


@njit
def after_character(data, at, end):
    """Return the place behind the multi-byte character at ``at``, or `INVALID`."""
    byte = data[np.uintp(at)]
    if byte < 0xC2 or byte > 0xF4:
        return INVALID
    if byte < 0xE0:
        if at + 1 >= end or data[np.uintp(at + 1)] & 0xC0 != 0x80:
            return INVALID
        return at + 2
    if byte < 0xF0:
        if at + 2 >= end or data[np.uintp(at + 1)] & 0xC0 != 0x80 or data[np.uintp(at + 2)] & 0xC0 != 0x80:
            return INVALID
        if (byte == 0xE0 and data[np.uintp(at + 1)] < 0xA0) or (byte == 0xED and data[np.uintp(at + 1)] > 0x9F):
            return INVALID
        return at + 3
    if (
        at + 3 >= end
        or data[np.uintp(at + 1)] & 0xC0 != 0x80
        or data[np.uintp(at + 2)] & 0xC0 != 0x80
        or data[np.uintp(at + 3)] & 0xC0 != 0x80
    ):
        return INVALID
    if (byte == 0xF0 and data[np.uintp(at + 1)] < 0x90) or (byte == 0xF4 and data[np.uintp(at + 1)] > 0x8F):
        return INVALID
    return at + 4


@inlined
def is_text(data, at, end):
    """Return whether the bytes from ``at`` to ``end`` are UTF-8."""
    whole = len(data) - words.BYTES
    while at < end:
        if at <= whole:
            marks = words.load(data, np.uintp(at)) & _MARKS
            if marks == np.uint64(0):
                at += words.BYTES
                continue
            at += np.int64(words.zeros_below(marks) >> np.uint64(3))
            if at >= end:
                break
        if data[np.uintp(at)] < 128:
            at += 1
        else:
            at = after_character(data, at, end)
            if at < 0:
                return False
    return True
