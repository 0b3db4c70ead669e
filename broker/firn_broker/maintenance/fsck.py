"""Does the bucket have what the coordinator believes, and nothing else? Reports, and changes nothing.

What brokers write meanwhile is no finding: the coordinator is asked before and after the bucket is listed.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from firn.model.errors import CorruptDataError, ExitCode
from firn_broker.ports import ObjectStore, RetentionStore
from firn_broker.storage import wal


@dataclass(slots=True)
class Findings:
    """Keys of objects by what is wrong with them."""

    objects: int = 0
    bytes: int = 0
    missing: list[str] = field(default_factory=list)
    """Batches are in them, and they are not there: these records are lost."""
    wrong_size: list[str] = field(default_factory=list)
    """Batches are in them, and they are not as long as they were."""
    damaged: list[str] = field(default_factory=list)
    """Their bytes are not those that were written (only with ``read``)."""
    newer: list[str] = field(default_factory=list)
    """Whole WAL objects that the coordinator has never heard of, though none is written before it has: it was restored to an earlier time.
    Offsets of their batches are about to be given to others. (One alone may be of a broker that stood still for an hour while it wrote.)"""
    newer_records: dict[str, int] = field(default_factory=dict)
    """Records in them by "TOPIC ID/PARTITION"."""
    uncommitted: list[str] = field(default_factory=list)
    """Announced, written, and not committed: what a broker died over, or does just now; or the first objects after a backup."""
    unknown: list[str] = field(default_factory=list)
    """No WAL objects, left by hand."""

    @property
    def lost(self) -> bool:
        """Whether records cannot be read."""
        return bool(self.missing or self.wrong_size or self.damaged)

    @property
    def verdict(self) -> ExitCode:
        """How the process ends."""
        return ExitCode.CORRUPT if self.lost or self.newer else ExitCode.DONE

    def report(self) -> dict[str, object]:
        """As it is printed."""
        return asdict(self)


async def check(retention: RetentionStore, objects: ObjectStore, *, read: bool) -> Findings:
    """Compare; with ``read`` also read each object and compare it with its own checksums."""
    before = await retention.list_objects()
    there = dict(await objects.list(wal.PREFIX))
    after = await retention.list_objects()
    findings = Findings(len(there), sum(there.values()))
    findings.uncommitted = sorted(
        key for key in there if before.get(key, (0, 0))[0] < 0 and after.get(key, (0, 0))[0] < 0
    )
    unknown = {key: size for key, size in sorted(there.items()) if key not in before and key not in after}
    await _examine_unknown(objects, unknown, findings)
    for key, (size, runs) in sorted(before.items()):
        # An object that lost its last run since the first look may be deleted by now.
        if not runs or not after.get(key, (0, 0))[1]:
            continue
        if key not in there:
            findings.missing.append(key)
        elif there[key] != size:
            findings.wrong_size.append(key)
        elif read:
            await _examine_bytes(objects, key, size, findings)
    return findings


async def _examine_unknown(objects: ObjectStore, sizes: Mapping[str, int], findings: Findings) -> None:
    """Sort objects that the coordinator does not know into WAL objects, with their records, and others."""
    records: Counter[str] = Counter()
    for key, size in sizes.items():
        try:
            batches = await _index(objects, key, size)
        except CorruptDataError:
            findings.unknown.append(key)
        except KeyError:
            # Deleted after the bucket was listed.
            continue
        else:
            findings.newer.append(key)
            for batch in batches:
                records[f"{batch.partition.topic}/{batch.partition.index}"] += batch.records
    findings.newer_records = dict(sorted(records.items()))


async def _examine_bytes(objects: ObjectStore, key: str, size: int, findings: Findings) -> None:
    """Read a whole object and compare it with its own checksums."""
    try:
        (data,) = await objects.get_ranges(key, [(0, size)])
        start, end = wal.index_range(data[-wal.TAIL :], size)
        wal.read_index(data[start:end], data[-wal.TAIL :])
        wal.check_segments(data)
    except CorruptDataError:
        findings.damaged.append(key)
    except KeyError:
        findings.missing.append(key)


async def _index(objects: ObjectStore, key: str, size: int) -> list[wal.IndexedBatch]:
    """The batches of an object by its own index. Raises CorruptDataError, KeyError."""
    if size < wal.HEAD + wal.TAIL:
        raise CorruptDataError(f"{key} is too short for a WAL object")
    (tail,) = await objects.get_ranges(key, [(size - wal.TAIL, size)])
    (index,) = await objects.get_ranges(key, [wal.index_range(tail, size)])
    return wal.read_index(index, tail)
