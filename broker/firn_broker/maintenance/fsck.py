"""Compare the bucket with the coordinator, and report differences. Nothing is changed.

Objects that brokers write during the check are not reported: the coordinator is read before and after the bucket is
listed. The check takes one part of the keys after the other, so that its memory does not grow with their number."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from firn.model.errors import CorruptDataError, ExitCode
from firn_broker.ports import ObjectStore, RetentionStore
from firn_broker.storage import wal


@dataclass(slots=True)
class Findings:
    """Keys of objects by finding."""

    objects: int = 0
    bytes: int = 0
    missing: list[str] = field(default_factory=list)
    """Objects with batches that the bucket lacks: their records are lost."""
    wrong_size: list[str] = field(default_factory=list)
    """Objects with batches whose size differs from their size at the commit."""
    damaged: list[str] = field(default_factory=list)
    """Objects whose bytes do not match their checksums (only with ``read``)."""
    newer: list[str] = field(default_factory=list)
    """Complete WAL objects that the coordinator does not know, although it reserves every key before the upload. So the
    coordinator was restored to an earlier time, and would assign the offsets of these batches again. (A single one may
    come from a broker that was suspended for an hour during an upload.)"""
    newer_records: dict[str, int] = field(default_factory=dict)
    """Records in the newer objects by "TOPIC ID/PARTITION", without those that lie in tables."""
    uncommitted: list[str] = field(default_factory=list)
    """Objects that are reserved and written, but not committed: left by a broker that crashed, in progress now, or the
    first objects after a backup."""
    unknown: list[str] = field(default_factory=list)
    """Objects that are no WAL objects, so no broker wrote them."""

    @property
    def lost(self) -> bool:
        """Return whether records cannot be read."""
        return bool(self.missing or self.wrong_size or self.damaged)

    @property
    def verdict(self) -> ExitCode:
        """Return the exit code."""
        return ExitCode.CORRUPT if self.lost or self.newer else ExitCode.DONE

    def report(self) -> dict[str, object]:
        """Return the findings for printing as JSON."""
        return asdict(self)


async def check(retention: RetentionStore, objects: ObjectStore, *, read: bool) -> Findings:
    """Compare bucket and coordinator; with ``read`` also verify the checksums of each object."""
    findings = Findings()
    records: Counter[str] = Counter()
    for part in wal.PARTS:
        await _check_part(part, retention, objects, findings, records, read=read)
    findings.newer_records = dict(sorted(records.items()))
    return findings


async def still_missing(retention: RetentionStore, missing: Sequence[str]) -> list[str]:
    """Return those of the missing objects that still have batch ranges, after a repair."""
    kept = []
    for key in missing:
        # The keys of other objects do not begin with this one and a digit.
        _, ranges = (await retention.list_objects(key, f"{key}0")).get(key, (0, 0))
        if ranges:
            kept.append(key)
    return kept


async def _check_part(
    part: wal.Part,
    retention: RetentionStore,
    objects: ObjectStore,
    findings: Findings,
    records: Counter[str],
    *,
    read: bool,
) -> None:
    """Add the findings of one part, and the records of its newer objects."""
    before = await retention.list_objects(*part)
    stored = dict(await objects.list(part.prefix))
    after = await retention.list_objects(*part)
    findings.objects += len(stored)
    findings.bytes += sum(stored.values())
    findings.uncommitted += sorted(
        key for key in stored if before.get(key, (0, 0))[0] < 0 and after.get(key, (0, 0))[0] < 0
    )
    unknown = {key: size for key, size in sorted(stored.items()) if key not in before and key not in after}
    await _examine_unknown(objects, unknown, findings, records)
    for key, (size, runs) in sorted(before.items()):
        # An object that lost its last run since the first look may be deleted by now.
        if not runs or not after.get(key, (0, 0))[1]:
            continue
        if key not in stored:
            findings.missing.append(key)
        elif stored[key] != size:
            findings.wrong_size.append(key)
        elif read:
            await _examine_bytes(objects, key, size, findings)


async def _examine_unknown(
    objects: ObjectStore, sizes: Mapping[str, int], findings: Findings, records: Counter[str]
) -> None:
    """Sort objects that the coordinator does not know into WAL objects, with their records, and others."""
    for key, size in sizes.items():
        try:
            batches = await wal.read_batches(objects, key, size)
        except CorruptDataError:
            findings.unknown.append(key)
        except KeyError:
            # Deleted after the bucket was listed.
            continue
        else:
            findings.newer.append(key)
            for batch in batches:
                records[f"{batch.partition.topic}/{batch.partition.index}"] += batch.records


async def _examine_bytes(objects: ObjectStore, key: str, size: int, findings: Findings) -> None:
    """Read a whole object and compare it with its own checksums."""
    try:
        (data,) = await objects.get_ranges(key, [(0, size)])
        start, end = wal.index_range(data[-wal.TAIL :], size)
        wal.read_index(data[start:end], data[-wal.TAIL :])
        wal.check_segments(data)
        if key.endswith(wal.HISTORY):
            wal.entries(data)
    except CorruptDataError:
        findings.damaged.append(key)
    except KeyError:
        findings.missing.append(key)
