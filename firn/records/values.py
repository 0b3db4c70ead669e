"""The first bytes of record values, in which serializers of a schema registry write the id of the schema."""

from firn.records import record_batch
from firn.records.codecs import CodecError
from firn.records.contents import MAX_BYTES, MAX_RECORDS, UndecodableError, record_bytes, zigzag

FRAMING = 5
"""Bytes of the framing: a byte 0 and the id of the schema (big-endian)."""


def first_bytes(batch: memoryview, most: int = MAX_BYTES, kept: int = FRAMING) -> list[bytes | None]:
    """Return the first bytes of the value of each record, or fewer if the value is shorter; None for a null value.

    ``most``: bytes to which the batch may decompress. ``kept``: most bytes of each value. Headers are not read. Most numbers in
    a record take one byte. That case is written out, because calls would take most of the time. Raises UndecodableError.
    """
    _, attributes, count = record_batch.header(batch)
    if not 0 <= count <= MAX_RECORDS:
        raise UndecodableError(f"a batch has {count} records, more than {MAX_RECORDS}")
    found: list[bytes | None] = []
    place = 0
    try:
        data = record_bytes(batch, attributes, most)
        for _ in range(count):
            size = data[place]
            if size < 0x80:
                place += 1
                size = size >> 1 ^ -(size & 1)
            else:
                size, place = zigzag(data, place)
            end = place + size
            place += 1  # attributes
            place = place + 1 if data[place] < 0x80 else zigzag(data, place)[1]  # difference of the timestamp
            place = place + 1 if data[place] < 0x80 else zigzag(data, place)[1]  # difference of the offset
            length = data[place]
            if length < 0x80:
                place += 1
                length = length >> 1 ^ -(length & 1)
            else:
                length, place = zigzag(data, place)
            if length > 0:
                place += length  # the key
            length, place = zigzag(data, place)
            value = place + length if length > 0 else place
            if not value <= end <= len(data):
                raise UndecodableError(f"record {len(found)} does not end at byte {end} of {len(data)}")
            found.append(None if length < 0 else data[place : min(value, place + kept)])
            place = end
    except (IndexError, CodecError) as error:
        raise UndecodableError(f"records cannot be decoded: {error!r}") from error
    if place != len(data):
        raise UndecodableError(f"{count} records end at byte {place} of {len(data)}")
    return found
