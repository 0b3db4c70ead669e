"""fsck says what is lost and what nobody knows, and nothing of what is well."""

from firn_broker import fsck
from firn_broker.writer import Append
from tests.unit.broker.batches import batch
from tests.unit.broker.rig import FIRST, rig


async def test_each_finding_by_its_name() -> None:
    async with rig() as parts:
        keys = []
        for _ in range(4):
            await parts.writer.append([Append(FIRST, batch(), False)])
            keys.append(next(key for key in parts.objects.objects if key not in keys))
        clean = await fsck.check(parts.coordinator, parts.objects, read=True)
        assert (clean.objects, clean.lost, clean.unknown) == (4, False, [])
        missing, short, damaged, _ = keys
        del parts.objects.objects[missing]
        parts.objects.objects[short] = parts.objects.objects[short][:-1]
        bad = bytearray(parts.objects.objects[damaged])
        bad[60] ^= 1
        parts.objects.objects[damaged] = bytes(bad)
        parts.objects.objects["wal/00/stranger"] = b"x"
        found = await fsck.check(parts.coordinator, parts.objects, read=True)
        assert (found.missing, found.wrong_size, found.damaged) == ([missing], [short], [damaged])
        assert (found.unknown, found.lost) == (["wal/00/stranger"], True)
