"""The contract of table ranges: batches that brokers rebuild from a table. For every implementation."""

from collections.abc import Sequence
from itertools import groupby
from random import Random

import pytest

from firn_broker.log_types import (
    MAX_TIMESTAMP,
    RANGE_BYTES,
    UNMERGED,
    BatchRange,
    LogState,
    Lookup,
    Rewrite,
    Swap,
    TableRange,
    Unindexed,
    WalRange,
)
from firn_broker.storage import wal
from tests.contract.metadata_store.builders import (
    ALL_KEYS,
    FIRST,
    SECOND,
    SERVED,
    TOPIC,
    Advance,
    Log,
    StoreContract,
    batch,
    in_entry,
)
from tests.contract.metadata_store.logs.merges import merged, rows, stored


async def history_key(log: Log, generation: int = 7) -> str:
    """Reserve a history object."""
    log.number += 1
    key = f"wal/{log.lease.epoch}-{log.number}.{generation}{wal.HISTORY}"
    await log.store.log.reserve(log.lease, [key])
    return key


async def move(log: Log, key: str, old: Sequence[BatchRange], new: Sequence[BatchRange]) -> Rewrite:
    """Replace ranges of the first partition."""
    rewrite = Rewrite(log.lease, key, 5000, [Swap(FIRST, old, new)], made_ms=1)
    assert await log.store.log.rewrite(rewrite) == [True]
    return rewrite


async def moved(log: Log, count: int = 6) -> tuple[str, list[BatchRange]]:
    """Commit ranges of one record, at the times 0, 10, ..., and move them to a table. The fourth one stays as it came."""
    for number in range(count):
        await log.commit(batch(time=10 * number))
    key, old = await history_key(log), await stored(log)
    residue = [each._replace(place=WalRange(key, 32, 100)) for each in old[3:4]]
    new = [*in_entry(key, old[:3]), *residue, *in_entry(key, old[4:], 1040)]
    await move(log, key, old, new)
    return key, new


class TableRangeContract(StoreContract):
    """The contract of rewrites from and to table ranges."""

    async def compatible_from(self, log: Log) -> tuple[int, int]:
        """Return the oldest version whose programs may use the store, and the first one that knows table ranges."""
        raise NotImplementedError

    async def test_unindexed_batches_are_those_that_lie_in_no_history_object(self, log: Log) -> None:
        assert await log.store.log.unindexed(TOPIC, 7, [7]) == Unindexed({}, {}, {})
        await moved(log)
        assert await log.store.log.unindexed(TOPIC, 7, [7]) == Unindexed({}, {}, {})
        await log.commit(batch(), batch(SECOND))
        await log.commit(batch(), batch(SECOND))
        assert await log.store.log.unindexed(TOPIC, 7, [7]) == Unindexed({0: 6, 1: 0}, {}, {})
        await log.store.log.advance_start(SECOND, 1)
        assert await log.store.log.unindexed(TOPIC, 7, [7]) == Unindexed({0: 6, 1: 1}, {}, {})
        await log.store.log.advance_start(SECOND, 2)
        assert await log.store.log.unindexed(TOPIC, 7, [7]) == Unindexed({0: 6}, {}, {})
        await log.store.topics.delete_topic(TOPIC)
        assert await log.store.log.unindexed(TOPIC, 7, [7]) == Unindexed({}, {}, {})

    async def test_batches_of_earlier_generations_have_to_move(self, log: Log) -> None:
        await moved(log)
        (kept,) = [each for each in await stored(log) if isinstance(each.place, WalRange)]
        assert await log.store.log.unindexed(TOPIC, 8, [7, 100]) == Unindexed({}, {0: 0}, {})
        (first, *_) = before = await stored(log)
        again = await history_key(log, 100)
        await move(log, again, before[:3], in_entry(again, before[:3]))
        assert await log.store.log.unindexed(TOPIC, 8, [7, 100]) == Unindexed({}, {0: kept.base_offset + 1}, {})
        assert await log.store.log.unindexed(TOPIC, 100, [7, 100]) == Unindexed({}, {0: kept.base_offset + 1}, {})
        assert await log.store.log.unindexed(TOPIC, 101, [7, 100]) == Unindexed({}, {0: first.base_offset}, {})
        await log.store.log.advance_start(FIRST, 4)
        assert await log.store.log.unindexed(TOPIC, 101, [7, 100]) == Unindexed({}, {0: 4}, {})
        await log.store.log.advance_start(FIRST, 6)
        assert await log.store.log.unindexed(TOPIC, 101, [7, 100]) == Unindexed({}, {}, {})

    async def test_batches_of_generations_without_a_tag_are_named(self, log: Log) -> None:
        await moved(log)
        again, before = await history_key(log, 100), await stored(log)
        await move(log, again, before[:3], in_entry(again, before[:3]))
        (kept,) = [each for each in before if isinstance(each.place, WalRange)]
        late = kept.base_offset + 1
        for tagged, untagged in (
            ([], {0: 0}),
            ([100], {0: late}),
            ([7], {0: 0}),
            ([8, 100], {0: late}),
            ([7, 100], {}),
        ):
            assert (await log.store.log.unindexed(TOPIC, 7, tagged)).untagged == untagged
        await log.store.log.advance_start(FIRST, late)
        assert (await log.store.log.unindexed(TOPIC, 7, [100])).untagged == {0: late}
        assert (await log.store.log.unindexed(TOPIC, 7, [7])).untagged == {}

    async def test_ranges_move_to_a_table(self, log: Log) -> None:
        keys = [await log.key() for _ in range(4)]
        for key in keys:
            await log.commit(batch(), key=key)
        history, old = await history_key(log), await stored(log)
        residue = old[2]._replace(place=WalRange(history, 32, 100))
        new = [*in_entry(history, old[:2]), residue, *in_entry(history, old[3:], 1040)]
        rewrite = await move(log, history, old, new)
        assert await log.store.log.rewrite(rewrite) == [True], "a repeated rewrite returns the same"
        assert await stored(log) == new
        assert await log.store.log.states([FIRST]) == [LogState(0, 4, 400)], "the size counts the bytes of producers"
        assert await rows(log, history) == 3
        assert sorted(await log.store.retention.dead_objects(0, 10)) == sorted(keys)
        assert (await log.commit(batch()))[0].base_offset == 4

    async def test_lookups_find_table_ranges_by_the_bytes_of_a_fetch(self, log: Log) -> None:
        _, new = await moved(log)
        for offset, size, limit, count in (
            (0, 1, 9, 1), (0, SERVED + 1, 9, 2), (1, SERVED, 9, 1), (2, SERVED + 100, 9, 2), (2, SERVED + 101, 9, 3),
            (4, 5000, 9, 2), (1, 5000, 3, 3), (0, 1 << 40, 9, 6),
        ):  # fmt: skip
            (result,) = await log.store.log.find([Lookup(FIRST, offset, size)], limit)
            assert list(result.ranges) == new[offset : offset + count], (offset, size, limit)

    async def test_table_ranges_are_found_by_time(self, log: Log) -> None:
        _, new = await moved(log)
        for timestamp, since, expected in (
            (0, 0, 0), (11, 0, 2), (10, 2, 2), (30, 0, 3), (50, 0, 5), (MAX_TIMESTAMP, 0, 5),
        ):  # fmt: skip
            assert await log.store.log.find_by_time(FIRST, timestamp, since) == new[expected], (timestamp, since)
        assert await log.store.log.find_by_time(FIRST, 51) is None

    async def test_a_row_has_all_ranges_next_to_each_other_in_an_entry(self, log: Log) -> None:
        length = RANGE_BYTES
        await log.commit(*(batch(length=length, append_time=True) for _ in range(3)))
        key, old = await history_key(log), await stored(log)
        assert len({each.append_ms for each in old}) == 1
        assert old[0].append_ms >= 0
        large = TableRange(key, 0, 1 << 31, 1000, 40, length)
        new = [each._replace(place=large._replace(position=number << 31)) for number, each in enumerate(old)]
        await move(log, key, old, new)
        assert await stored(log) == new
        assert await rows(log, key) == 1
        again = await history_key(log)
        apart = [*in_entry(again, new[:1]), *in_entry(again, new[1:2], 1000, 9000), *in_entry(again, new[2:], 1040)]
        await move(log, again, new, apart)
        assert await stored(log) == apart
        assert await rows(log, again) == 3

    async def test_table_ranges_expire(self, log: Log, advance: Advance) -> None:
        key, new = await moved(log)
        store, retention = log.store.log, log.store.retention
        sources = set(await retention.dead_objects(0, 10))
        await store.advance_start(FIRST, 2)
        assert await retention.drop_ranges(10) == 0, "a part of the row is still there"
        (result,) = await store.find([Lookup(FIRST, 2, 1)])
        assert list(result.ranges) == new[2:3]
        assert await retention.expire(TOPIC, -1, 301, 10) == 0
        assert await retention.expire(TOPIC, -1, 300, 10) == 1
        assert await retention.drop_ranges(10) == 1
        assert await store.states([FIRST]) == [LogState(3, 6, 300)]
        assert await retention.expire(TOPIC, 0, -1, 1) == 1
        assert await retention.drop_ranges(10) == 1
        assert await store.states([FIRST]) == [LogState(4, 6, 200)]
        assert set(await retention.dead_objects(0, 10)) == sources
        assert await retention.expire(TOPIC, 0, -1, 10) == 1
        assert await retention.drop_ranges(10) == 1
        assert await store.states([FIRST]) == [LogState(6, 6, 0)]
        assert set(await retention.dead_objects(0, 10)) == {*sources, key}

    async def test_table_ranges_of_a_deleted_topic_are_dropped(self, log: Log) -> None:
        key, _ = await moved(log)
        await log.store.topics.delete_topic(TOPIC)
        assert await log.store.retention.drop_ranges(10) == 3
        assert key in await log.store.retention.dead_objects(0, 10)

    async def test_records_of_a_table_without_a_timestamp_keep_their_age(self, log: Log) -> None:
        await log.commit(batch(time=-1))
        key, old = await history_key(log), await stored(log)
        await move(log, key, old, in_entry(key, old))
        assert await log.store.retention.expire(TOPIC, 1000, -1, 10) == 1

    async def test_a_part_of_a_row_moves_to_another_entry(self, log: Log) -> None:
        key, before = await moved(log, 9)
        again = await history_key(log)
        part = in_entry(again, before[5:7], 2000, 500)
        await move(log, again, before[5:7], part)
        left = [*before[:5], *part, *before[7:]]
        assert await stored(log) == left
        assert (await rows(log, key), await rows(log, again)) == (4, 1)
        last = await history_key(log)
        whole = in_entry(last, left)
        await move(log, last, left, whole)
        assert await stored(log) == whole
        assert {key, again} <= set(await log.store.retention.dead_objects(0, 99))
        assert await log.store.log.states([FIRST]) == [LogState(0, 9, 900)]

    async def test_a_swap_compares_each_field_of_a_table_range(self, log: Log) -> None:
        key, before = await moved(log)
        place = before[1].place
        assert isinstance(place, TableRange)
        for wrong in (
            WalRange(*place[:3]), place._replace(key="wal/other"), place._replace(position=7), place._replace(length=7),
            place._replace(entry=7), place._replace(entry_length=7), place._replace(stored=7),
        ):  # fmt: skip
            old = [before[0], before[1]._replace(place=wrong)]
            again = await history_key(log)
            rewrite = Rewrite(log.lease, again, 5000, [Swap(FIRST, old, in_entry(again, old))])
            assert await log.store.log.rewrite(rewrite) == [False], wrong
            assert again in await log.store.retention.dead_objects(0, 99)
        assert await stored(log) == before
        assert await rows(log, key) == 3

    @pytest.mark.parametrize("seed", range(2))
    async def test_ranges_move_to_and_from_tables_in_any_order(self, log: Log, seed: int) -> None:
        random = Random(seed)
        for _ in range(16):
            await log.commit(batch(records=random.randint(1, 3), time=random.randrange(99)))
        expected = await stored(log)
        for _ in range(8):
            first = random.randrange(len(expected))
            old = expected[first : first + random.randint(1, 12)]
            key, new = await history_key(log), list[BatchRange]()
            for in_table, some in groupby(old, key=lambda _: random.random() < 0.6):
                start = 10_000 * len(new)
                if in_table:
                    new += in_entry(key, list(some), start)
                else:
                    places = [WalRange(key, start + 100 * number, 100) for number in range(len(old))]
                    new += [each._replace(place=place) for each, place in zip(some, places, strict=False)]
            await move(log, key, old, new)
            expected[first : first + len(old)] = new
            assert await stored(log) == expected
            (state,) = await log.store.log.states([FIRST])
            assert state is not None
            assert state.size == 1600
        await log.store.topics.delete_topic(TOPIC)
        while await log.store.retention.drop_ranges(100):
            pass
        objects = await log.store.retention.list_objects(*ALL_KEYS)
        assert set(objects) == set(await log.store.retention.dead_objects(0, 1000))

    async def test_merges_get_no_table_ranges_and_no_history_objects(self, log: Log) -> None:
        for _ in range(3):
            await log.commit(batch(), batch(SECOND))
        key, old = await history_key(log), await stored(log)
        new = [*in_entry(key, old[:2]), old[2]._replace(place=WalRange(key, 32, 100))]
        rewrite = Rewrite(log.lease, key, 5000, [Swap(FIRST, old, new)], UNMERGED)
        assert await log.store.log.rewrite(rewrite) == [True]
        sources = [source.key for source in await log.store.merges.sources(UNMERGED, 0, 10)]
        assert sorted(sources) == sorted(each.place.key for each in await stored(log, SECOND))
        found = await log.store.merges.rows([*sources, key], None, 10)
        assert [row.partition for row in found] == [SECOND] * 3

    async def test_the_first_table_range_refuses_programs_that_do_not_know_it(self, log: Log) -> None:
        await log.commit(batch())
        await log.store.log.rewrite(await merged(log, FIRST))
        key, old = await history_key(log), await stored(log)
        wrong = [old[0]._replace(place=WalRange("wal/other", 32, 100))]
        slow = Rewrite(log.lease, key, 5000, [Swap(FIRST, wrong, in_entry(key, wrong))])
        assert await log.store.log.rewrite(slow) == [False]
        before, first = await self.compatible_from(log)
        assert before < first
        key = await history_key(log)
        await move(log, key, old, in_entry(key, old))
        assert await self.compatible_from(log) == (first, first)
