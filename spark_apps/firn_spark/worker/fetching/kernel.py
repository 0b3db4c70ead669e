"""The compiled part of `firn_spark.worker.fetching.batches`: functions over the bytes of record batches.

Source: ``DefaultRecordBatch.java`` and ``DefaultRecord.java``; `firn.records.record_batch` shows the header. The bytes come from the
network, so each length is compared with the end of its surroundings before it is used.
"""
# mypy: disable-error-code="no-untyped-def,no-untyped-call,assignment"

import numpy as np

from firn_spark.worker.compiled import inlined, njit

HEADER = 61
MAGIC_PLACE = 16
MAX_OFFSET = 2**62
SMALLEST_RECORD = 7
"""Bytes of a record without key, value and headers."""

PLACE, SIZE, BASE, ATTRIBUTES, DELTA, BASE_TIME, MAX_TIME, PRODUCER, COUNT, PARTITION, FROM, TO = range(12)
"""Columns of a table of batches. ``PLACE`` is the first byte of the batch, and of the decompressed records once they are; ``SIZE``
is in bytes. Records are wanted from offset ``FROM`` on, and before offset ``TO``."""
BATCH_COLUMNS = 12

OFFSET, TIME, TIME_TYPE, OWNER, KEY_FIRST, KEY_END, VALUE_FIRST, VALUE_END, HEADERS, HEADERS_FIRST, HEADERS_END = range(
    11
)
"""Rows of the array of records. ``OWNER`` is the partition, ``HEADERS`` the number of headers, and their bytes end
at ``HEADERS_END``."""
RECORD_ROWS = 11

NAME_FIRST, NAME_END, CONTENT_FIRST, CONTENT_END = range(4)
"""Rows of the array of headers."""
HEADER_ROWS = 4

MALFORMED, OLD_FORMAT = -1, -2
_MAGIC = 2
_MAX_SHIFT = 63


@inlined
def _number(data, at, size):
    value = np.int64(0)
    for place in range(at, at + size):
        value = (value << 8) | np.int64(data[np.uintp(place)])
    return value


@inlined
def _signed(value, bits):
    return value - (np.int64(1) << bits) if value >> (bits - 1) else value


@njit
def walk(data, at, end, batches):
    """Fill ``batches`` with the headers of whole batches in ``data[at:end]``.

    Return their number, or `MALFORMED` or `OLD_FORMAT`, and the place behind the last one. A batch that ends behind ``end`` is left out.
    """
    count = 0
    while count < len(batches) and end - at > MAGIC_PLACE:
        # Messages of older formats may be shorter than the header of a batch.
        if data[np.uintp(at + MAGIC_PLACE)] != _MAGIC:
            return OLD_FORMAT if data[np.uintp(at + MAGIC_PLACE)] < _MAGIC else MALFORMED, at
        if end - at < HEADER:
            break
        size = _signed(_number(data, at + 8, 4), 32) + 12
        if size < HEADER:
            return MALFORMED, at
        if at + size > end:
            break
        row = batches[np.uintp(count)]
        row[PLACE], row[SIZE] = at, size
        row[BASE] = _number(data, at, 8)
        row[ATTRIBUTES] = _number(data, at + 21, 2)
        row[DELTA] = _signed(_number(data, at + 23, 4), 32)
        row[BASE_TIME] = _number(data, at + 27, 8)
        row[MAX_TIME] = _number(data, at + 35, 8)
        row[PRODUCER] = _number(data, at + 43, 8)
        row[COUNT] = _signed(_number(data, at + 57, 4), 32)
        if row[DELTA] < 0 or row[COUNT] < 0 or not 0 <= row[BASE] <= MAX_OFFSET:
            return MALFORMED, at
        at += size
        count += 1
    return count, at


@inlined
def _varint(data, at, end):
    """Read a signed varint of at most 64 bits. Return it and the place behind it, which is `MALFORMED` if it is not whole."""
    if at < end and data[np.uintp(at)] < 0x80:
        byte = np.int64(data[np.uintp(at)])
        return (byte >> 1) ^ -(byte & 1), at + 1
    value = np.uint64(0)
    shift = 0
    while at < end and shift <= _MAX_SHIFT:
        byte = np.uint64(data[np.uintp(at)])
        at += 1
        value |= (byte & np.uint64(0x7F)) << np.uint64(shift)
        if byte < np.uint64(0x80):
            half = np.int64(value >> np.uint64(1))
            return half ^ -np.int64(value & np.uint64(1)), at
        shift += 7
    return np.int64(0), MALFORMED


@inlined
def _bytes(data, at, end):
    """Read a length and the bytes that follow. Return their first place and their end, which is `MALFORMED` if they are not whole;
    the first place is -1 for null."""
    size, at = _varint(data, at, end)
    if at < 0 or size > end - at:
        return at, MALFORMED
    if size < 0:
        return -1, at
    return at, at + size


@inlined
def _record(data, at, end, records, present, row):
    """Read what follows the offset of a record that ends at ``end``. Return False if it is malformed."""
    first, at = _bytes(data, at, end)
    if at < 0:
        return False
    present[0, row] = first >= 0
    records[KEY_FIRST, row], records[KEY_END, row] = first if first >= 0 else at, at
    first, at = _bytes(data, at, end)
    if at < 0:
        return False
    present[1, row] = first >= 0
    records[VALUE_FIRST, row], records[VALUE_END, row] = first if first >= 0 else at, at
    count, at = _varint(data, at, end)
    # A header has two bytes at least.
    if at < 0 or count < 0 or count > (end - at) // 2 or (count == 0 and at != end):
        return False
    records[HEADERS, row], records[HEADERS_FIRST, row], records[HEADERS_END, row] = count, at, end
    return True


@inlined
def _read_batch(data, batch, records, present, row):
    """Read the wanted records of a batch. Return the next free row, or `MALFORMED`."""
    at = batch[PLACE]
    end = at + batch[SIZE]
    appended = batch[ATTRIBUTES] & 0x08
    before = np.int64(-1)
    for _ in range(batch[COUNT]):
        size, at = _varint(data, at, end)
        if at < 0 or size < 0 or size > end - at:
            return MALFORMED
        stop = at + size
        time, at = _varint(data, at + 1, stop)
        if at < 0:
            return MALFORMED
        delta, at = _varint(data, at, stop)
        if at < 0 or delta <= before or delta > batch[DELTA]:
            return MALFORMED
        before = delta
        offset = batch[BASE] + delta
        if offset >= batch[TO]:
            return row
        if offset >= batch[FROM]:
            if not _record(data, at, stop, records, present, row):
                return MALFORMED
            records[OFFSET, row] = offset
            records[TIME, row] = batch[MAX_TIME] if appended else batch[BASE_TIME] + time
            records[TIME_TYPE, row] = 1 if appended else 0
            records[OWNER, row] = batch[PARTITION]
            row += 1
        at = stop
    return row if at == end else MALFORMED


@njit
def read(data, batches, records, present):
    """Read the records of ``batches``, whose decompressed bytes are in ``data``.

    Fill ``records`` and ``present``: whether there are a key and a value. Return the number of records, and the number of batches that
    were read, which is less than all of them if the next one is malformed.
    """
    row = 0
    for number in range(len(batches)):
        following = _read_batch(data, batches[np.uintp(number)], records, present, row)
        if following < 0:
            return row, number
        row = following
    return row, len(batches)


@njit
def read_headers(data, records, count, headers, present):
    """Read the headers of the first ``count`` records.

    Fill ``headers``, and ``present`` with whether a header has a value. Return the number of headers, or `MALFORMED`.
    """
    row = 0
    for number in range(count):
        at, end = records[HEADERS_FIRST, number], records[HEADERS_END, number]
        for _ in range(records[HEADERS, number]):
            first, at = _bytes(data, at, end)
            if at < 0 or first < 0:
                return MALFORMED
            headers[NAME_FIRST, row], headers[NAME_END, row] = first, at
            first, at = _bytes(data, at, end)
            if at < 0:
                return MALFORMED
            present[row] = first >= 0
            headers[CONTENT_FIRST, row], headers[CONTENT_END, row] = first if first >= 0 else at, at
            row += 1
        if records[HEADERS, number] and at != end:
            return MALFORMED
    return row


def warm() -> None:
    """Compile the public functions for the argument types that `firn_spark.worker.fetching.batches` uses."""
    data = np.zeros(HEADER + SMALLEST_RECORD, np.uint8)
    data[11], data[16], data[60], data[61] = len(data) - 12, _MAGIC, 1, 2 * (SMALLEST_RECORD - 1)
    data[65] = data[66] = 1  # no key and no value
    data.setflags(write=False)
    batches = np.zeros((1, BATCH_COLUMNS), np.int64)
    assert walk(data, 0, len(data), batches) == (1, len(data))
    batches[0, PLACE], batches[0, SIZE], batches[0, TO] = HEADER, SMALLEST_RECORD, 1
    records, present = np.zeros((RECORD_ROWS, 1), np.int64), np.zeros((2, 1), bool)
    assert read(data, batches, records, present) == (1, 1)
    assert read_headers(data, records, 1, np.zeros((HEADER_ROWS, 1), np.int64), np.zeros(1, bool)) == 0
