"""Heads: the headers of record batches and the checksums of their record sections, as columns.

With the records of a batch, its head gives the batch as its producer sent it, without its codec. A section that does not match its
checksum is never used: its producer encoded it in another way, or rows are missing."""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from crc32c import crc32c

from firn.records import contents, record_batch
from firn.records.codecs import CodecError
from firn_broker.history.sections import Numbers, Records, encode

NO_SHAPES: Numbers = np.zeros(0, np.uint8)
"""Numbers of shapes for a table that has values as they came."""
_START = struct.Struct(">qiibI")
_COVERED = struct.Struct(">hiqqqhii")
"""The two parts of a batch's header. Its checksum covers the second one and the section."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of consecutive batches from ``base_offset`` on: arrays of int64 with a value for each batch.

    ``spans`` are the offsets that a batch covers, ``counts`` its records, ``attributes`` those of its header, with the codec.
    ``sizes`` are the bytes of its section without compression, and ``checksums`` the CRC-32C of these. ``stored`` are the bytes of the
    batch as its producer sent it. ``time_deltas`` has a value for each record of the batches with an append time, because a
    table has only that time. ``shapes`` has the number of the shape of each offset's value (uint8), or nothing if a table has values
    as they came.
    """

    base_offset: int
    spans: Numbers
    counts: Numbers
    attributes: Numbers
    base_times: Numbers
    max_times: Numbers
    producers: Numbers
    epochs: Numbers
    sequences: Numbers
    sizes: Numbers
    checksums: Numbers
    stored: Numbers
    time_deltas: Numbers
    shapes: Numbers = field(default_factory=lambda: NO_SHAPES)

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def bases(self) -> Numbers:
        """Return the first offset of each batch."""
        bases: Numbers = self.base_offset + np.cumsum(self.spans) - self.spans
        return bases

    @property
    def last_offset(self) -> int:
        """Return the last offset of the last batch."""
        return self.base_offset + int(self.spans.sum()) - 1

    @property
    def places(self) -> Numbers:
        """Return the position of each rebuilt batch among all of them, and the end of the last one."""
        return _edges(self.sizes + record_batch.HEADER)

    @property
    def timed(self) -> Numbers:
        """Return the number of each batch's records in ``time_deltas``: all or none."""
        appended = (self.attributes & record_batch.APPEND_TIME_BIT) != 0
        counts: Numbers = self.counts * appended
        return counts

    def portions(self, most: int) -> Iterator[tuple[int, int]]:
        """Yield the first number and the end of consecutive batches with ``most`` bytes, unless one batch has more."""
        places, first = self.places, 0
        while first < len(self):
            end = max(int(np.searchsorted(places, places[first] + most, side="right")) - 1, first + 1)
            yield first, end
            first = end

    def select(self, first: int, end: int) -> "Heads":
        """Return the heads of the batches with the numbers ``first`` to ``end - 1``."""
        columns = {name: getattr(self, name)[first:end] for name in COLUMNS}
        edges = _edges(self.timed)
        skipped = int(self.spans[:first].sum())
        return Heads(
            self.base_offset + skipped,
            **columns,
            time_deltas=self.time_deltas[edges[first] : edges[end]],
            shapes=self.shapes[skipped : skipped + int(self.spans[first:end].sum())],
        )


COLUMNS = (
    "spans", "counts", "attributes", "base_times", "max_times", "producers", "epochs", "sequences", "sizes", "checksums",
    "stored",
)  # fmt: skip
"""The fields of `Heads` with a value for each batch."""


def read(batches: Sequence[memoryview]) -> Heads:
    """Read the heads of consecutive batches with their offsets and append times, as clients get them.

    The heads are fewer than the batches if the records of the next batch cannot be decoded."""
    rows, deltas = [], [np.zeros(0, np.int64)]
    for batch in batches:
        ((_, _, span),) = record_batch.walk(batch)
        found = record_batch.rewritten(batch)
        try:
            section = _section(batch, found.attributes)
            if found.attributes & record_batch.APPEND_TIME_BIT:
                deltas.append(_time_deltas(section, found.records))
        except (CodecError, contents.UndecodableError, IndexError):
            break
        rows.append(
            (
                span, found.records, found.attributes, found.base_timestamp, found.max_timestamp, found.producer_id,
                found.producer_epoch, found.base_sequence, len(section), crc32c(section), len(batch),
            )
        )  # fmt: skip
    table = np.array(rows, np.int64).reshape(len(rows), len(COLUMNS))
    columns: Mapping[str, Numbers] = {name: table[:, place].copy() for place, name in enumerate(COLUMNS)}
    base = int.from_bytes(batches[0][:8], "big") if batches else 0
    return Heads(base, **columns, time_deltas=np.concatenate(deltas))


def joined(parts: Sequence[Heads]) -> Heads:
    """Return consecutive parts as one. Each part begins at the offset after the end of the part before it."""
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    return Heads(
        parts[0].base_offset,
        **columns,
        time_deltas=np.concatenate([part.time_deltas for part in parts]),
        shapes=np.concatenate([part.shapes for part in parts]),
    )


def sections(heads: Heads, records: Records) -> list[memoryview | None]:
    """Return the section of each batch from its records, or None where it does not match the checksum.

    ``records`` may have other offsets, too."""
    found: list[memoryview | None] = [None] * len(heads)
    bases = heads.bases
    owners = np.searchsorted(bases, records.offsets, side="right") - 1
    inside = (records.offsets >= heads.base_offset) & (records.offsets <= heads.last_offset)
    whole = np.bincount(owners[inside], minlength=len(heads)) == heads.counts
    wanted = np.flatnonzero(inside & whole[owners])
    if not len(wanted):
        return found
    if len(wanted) < len(records):
        records, owners = records.select(wanted), owners[wanted]
    data, places = encode(records, _deltas(heads, records, owners, whole), records.offsets - bases[owners])
    edges = np.searchsorted(owners, np.arange(len(heads) + 1))
    for number in np.flatnonzero(whole).tolist():
        section = data[places[edges[number]] : places[edges[number + 1]]]
        if len(section) == heads.sizes[number] and crc32c(section) == heads.checksums[number]:
            found[number] = section
    return found


def assemble(heads: Heads, found: Sequence[memoryview]) -> memoryview:
    """Return all batches, one after the other, each with its section. They are not compressed."""
    places = heads.places
    data = memoryview(bytearray(int(places[-1])))
    columns = (getattr(heads, name).tolist() for name in COLUMNS)
    values = zip(heads.bases.tolist(), places[:-1].tolist(), *columns, found, strict=True)
    for base, place, span, count, attributes, first, newest, producer, epoch, sequence, size, *_, section in values:
        covered = _COVERED.pack(
            attributes & ~record_batch.CODEC_BITS, span - 1, first, newest, producer, epoch, sequence, count
        )
        checksum = crc32c(section, crc32c(covered))
        body = place + record_batch.HEADER
        _START.pack_into(data, place, base, size + record_batch.HEADER - 12, 0, 2, checksum)
        data[body - len(covered) : body] = covered
        data[body : body + size] = section
    return data


def is_section(section: memoryview, batch: memoryview) -> bool:
    """Return whether this is the record section of a batch, without its codec. Equal checksums can be made on purpose, equal bytes cannot."""
    wanted = _section(batch, record_batch.rewritten(batch).attributes)
    return np.array_equal(np.frombuffer(wanted, np.uint8), np.frombuffer(section, np.uint8))


def _section(batch: memoryview, attributes: int) -> memoryview | bytes:
    """Return the section of a batch without compression. Raises CodecError."""
    if attributes & record_batch.CODEC_BITS:
        return contents.record_bytes(batch, attributes)
    return batch[record_batch.HEADER :]


def _time_deltas(section: memoryview | bytes, count: int) -> Numbers:
    """Return the time of each record of a section, from the base time of its batch on. Raises UndecodableError and IndexError."""
    data, deltas, place = bytes(section), np.empty(count, np.int64), 0
    for number in range(count):
        size, start = contents.zigzag(data, place)
        deltas[number], _ = contents.zigzag(data, start + 1)
        place = start + size
    return deltas


def _deltas(heads: Heads, records: Records, owners: Numbers, whole: Numbers) -> Numbers:
    """Return the time of each record from the base time of its batch on. The records are all those of the ``whole`` batches."""
    deltas: Numbers = records.times - heads.base_times[owners]
    timed = heads.timed
    if timed.any():
        appended = timed[owners] > 0
        deltas[appended] = heads.time_deltas[np.repeat(whole, timed)]
    return deltas


def _edges(sizes: Numbers) -> Numbers:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
