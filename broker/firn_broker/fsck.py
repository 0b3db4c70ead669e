"""Does the bucket have what the coordinator believes, and nothing else? Reports, and changes nothing.

What brokers write meanwhile is no finding: the coordinator is asked before and after the bucket is listed.
"""

from dataclasses import asdict, dataclass, field

from firn.model.errors import CorruptDataError
from firn_broker.ports import Coordinator, ObjectStore
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
    unknown: list[str] = field(default_factory=list)
    """Nobody announced them: left by hand, or by a coordinator that was restored to an earlier time."""

    @property
    def lost(self) -> bool:
        """Whether records cannot be read."""
        return bool(self.missing or self.wrong_size or self.damaged)

    def report(self) -> dict[str, object]:
        """As it is printed."""
        return asdict(self)


async def check(coordinator: Coordinator, objects: ObjectStore, *, read: bool) -> Findings:
    """Compare; with ``read`` also read each object and compare it with its own checksums."""
    before = await coordinator.objects()
    there = dict(await objects.list(wal.PREFIX))
    after = await coordinator.objects()
    found = Findings(len(there), sum(there.values()))
    found.unknown = sorted(key for key in there if key not in before and key not in after)
    for key, (size, runs) in sorted(before.items()):
        # An object that lost its last run meanwhile may be deleted meanwhile.
        if not runs or not after.get(key, (0, 0))[1]:
            continue
        if key not in there:
            found.missing.append(key)
        elif there[key] != size:
            found.wrong_size.append(key)
        elif read:
            try:
                (data,) = await objects.get_ranges(key, [(0, size)])
                start, end = wal.index_range(data[-wal.TAIL :], size)
                wal.read_index(data[start:end], data[-wal.TAIL :])
                wal.check_segments(data)
            except CorruptDataError:
                found.damaged.append(key)
            except KeyError:
                found.missing.append(key)
    return found
