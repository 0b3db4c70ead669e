"""The promises of `Topics`, `Tables` and `Debts`. The operator's adapters and the fakes of unit tests pass the same
suites."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import pytest

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema, TableTarget
from firn.model.maintenance import CompactionWork
from firn_controllers.ports import Debts, Tables, Topics, TopicState

PROFILE, CATALOG = "classic", "lake"


async def until(
    look: Callable[[], Awaitable[TopicState | None]], fits: Callable[[TopicState | None], bool]
) -> TopicState | None:
    """Return the first result of ``look`` that fits. Brokers learn of a change a moment after it."""
    while not fits(found := await look()):
        pass
    return found


class TopicsContract:
    """Fixtures: ``topics``, and ``name`` of a topic that does not exist."""

    async def known(self, topics: Topics, name: str) -> TopicState:
        found = await until(lambda: topics.describe(PROFILE, name), lambda it: it is not None)
        assert found is not None
        return found

    async def test_a_missing_topic_is_none(self, topics: Topics, name: str) -> None:
        assert await topics.describe(PROFILE, name) is None

    async def test_a_topic_is_created_with_partitions_and_configs(self, topics: Topics, name: str) -> None:
        await topics.create(PROFILE, name, 3, {"retention.ms": "60000"})
        found = await self.known(topics, name)
        assert (found.name, found.partitions, dict(found.configs)) == (name, 3, {"retention.ms": "60000"})
        assert found.topic_id

    async def test_creating_again_changes_nothing(self, topics: Topics, name: str) -> None:
        await topics.create(PROFILE, name, 3, {})
        before = await self.known(topics, name)
        await topics.create(PROFILE, name, 5, {"retention.ms": "1"})
        assert await self.known(topics, name) == before

    async def test_partitions_grow(self, topics: Topics, name: str) -> None:
        await topics.create(PROFILE, name, 1, {})
        await self.known(topics, name)
        await topics.grow(PROFILE, name, 4)
        await topics.grow(PROFILE, name, 4)
        found = await until(lambda: topics.describe(PROFILE, name), lambda it: it is not None and it.partitions == 4)
        assert found is not None

    async def test_partitions_do_not_shrink(self, topics: Topics, name: str) -> None:
        await topics.create(PROFILE, name, 3, {})
        await self.known(topics, name)
        with pytest.raises(InvalidSpecError):
            await topics.grow(PROFILE, name, 2)

    async def test_configs_are_set_and_unset_one_by_one(self, topics: Topics, name: str) -> None:
        await topics.create(PROFILE, name, 1, {"retention.ms": "60000", "max.message.bytes": "2000000"})
        await self.known(topics, name)
        await topics.alter_configs(PROFILE, name, {"segment.ms": "700000"}, ["retention.ms"])
        wanted = {"max.message.bytes": "2000000", "segment.ms": "700000"}
        found = await until(
            lambda: topics.describe(PROFILE, name), lambda it: it is not None and dict(it.configs) == wanted
        )
        assert found is not None

    @pytest.mark.parametrize(("key", "value"), [("no.such.config", "1"), ("retention.ms", "a while")])
    async def test_a_refused_config_is_named(self, topics: Topics, name: str, key: str, value: str) -> None:
        with pytest.raises(InvalidSpecError, match=key) as creating:
            await topics.create(PROFILE, name, 1, {key: value})
        assert creating.value.reason == Reason.BAD_TOPIC_CONFIG
        assert await topics.describe(PROFILE, name) is None
        await topics.create(PROFILE, name, 1, {})
        await self.known(topics, name)
        with pytest.raises(InvalidSpecError, match=key) as altering:
            await topics.alter_configs(PROFILE, name, {key: value}, [])
        assert altering.value.reason == Reason.BAD_TOPIC_CONFIG

    async def test_a_recreated_topic_has_another_id_and_deleting_a_missing_one_is_no_error(
        self, topics: Topics, name: str
    ) -> None:
        await topics.delete(PROFILE, name)
        await topics.create(PROFILE, name, 1, {})
        first = await self.known(topics, name)
        await topics.delete(PROFILE, name)
        await until(lambda: topics.describe(PROFILE, name), lambda it: it is None)
        await topics.create(PROFILE, name, 1, {})
        assert (await self.known(topics, name)).topic_id != first.topic_id

    async def test_a_fleet_counts_its_brokers(self, topics: Topics) -> None:
        found = await topics.fleet(PROFILE)
        assert found.brokers >= 1
        assert found.under_replicated == 0


INT, LONG, TEXT = (Column(name="n", type=kind) for kind in ("int", "long", "string"))


def schema(*columns: Column) -> RecordSchema:
    return RecordSchema(format="Json", fields=columns)


class TablesContract:
    """Fixtures: ``tables``, and ``target`` of a table that does not exist."""

    async def test_a_catalog_answers(self, tables: Tables) -> None:
        await tables.check(CATALOG)

    async def test_a_table_is_created_once(self, tables: Tables, target: TableTarget) -> None:
        first = await tables.ensure(target, schema(INT), "uid-1")
        second = await tables.ensure(target, schema(INT), "uid-1")
        assert first is not None
        assert second is not None
        assert (first.created, first.owner, first.format_version) == (True, None, 2)
        assert (second.created, second.owner, second.changed) == (False, "uid-1", ())
        assert (first.uuid, first.location) == (second.uuid, second.location)

    async def test_another_owner_adopts_a_table_and_sees_who_had_it(self, tables: Tables, target: TableTarget) -> None:
        await tables.ensure(target, schema(INT), "uid-1")
        adopted = await tables.ensure(target, schema(INT), "uid-2")
        again = await tables.ensure(target, schema(INT), "uid-2")
        assert adopted is not None
        assert again is not None
        assert (adopted.created, adopted.owner, again.owner) == (False, "uid-1", "uid-2")

    async def test_columns_are_added_and_widened(self, tables: Tables, target: TableTarget) -> None:
        await tables.ensure(target, schema(INT), "uid-1")
        wider = schema(LONG, Column(name="more", type="string"))
        changed = await tables.ensure(target, wider, "uid-1")
        again = await tables.ensure(target, wider, "uid-1")
        assert changed is not None
        assert again is not None
        assert changed.changed
        assert again.changed == ()

    async def test_a_change_that_cannot_be_is_our_own_fault_or_that_of_what_was_found(
        self, tables: Tables, target: TableTarget
    ) -> None:
        await tables.ensure(target, schema(INT), "uid-1")
        for owner, reason in (("uid-1", Reason.INCOMPATIBLE_SCHEMA), ("uid-2", Reason.SCHEMA_INCOMPATIBLE)):
            with pytest.raises(InvalidSpecError, match="n") as refusal:
                await tables.ensure(target, schema(TEXT), owner)
            assert refusal.value.reason == reason

    async def test_a_table_of_version_3_is_left_to_the_driver(self, tables: Tables, target: TableTarget) -> None:
        newer = target.model_copy(update={"format_version": 3})
        assert await tables.ensure(newer, schema(INT), "uid-1") is None
        assert await tables.ensure(newer, schema(INT), "uid-1") is None

    async def test_only_the_owner_drops_a_table_and_a_missing_one_is_no_error(
        self, tables: Tables, target: TableTarget
    ) -> None:
        assert not await tables.drop(target, "uid-1")
        await tables.ensure(target, schema(INT), "uid-1")
        assert not await tables.drop(target, "uid-2")
        kept = await tables.ensure(target, schema(INT), "uid-1")
        assert kept is not None
        assert not kept.created
        assert await tables.drop(target, "uid-1")
        anew = await tables.ensure(target, schema(INT), "uid-1")
        assert anew is not None
        assert anew.created


MIB = 1024 * 1024
AT_ONCE = CompactionWork(open_grace_ms=0)


class Writers(Protocol):
    """Other processes that write a table, as far as its metadata shows."""

    def create(self, target: TableTarget) -> str:
        """Make a table partitioned by ``n``; its UUID."""
        ...

    def append(self, target: TableTarget, sizes: Sequence[int], partition: int = 0) -> None:
        """Append files of these sizes in one commit."""
        ...

    def replace(self, target: TableTarget, sizes: Sequence[int]) -> None:
        """Replace all files by files of these sizes in one commit, as a compaction does."""
        ...

    def delete_rows(self, target: TableTarget, rows: int) -> None:
        """Commit one delete file for all older files of partition 0, which have 100 rows each."""
        ...

    def drop(self, target: TableTarget) -> None:
        """Drop the table."""
        ...

    def snapshots(self, target: TableTarget) -> int:
        """How many the catalog shows: Nessie shows the newest only."""
        ...


class DebtsContract:
    """Fixtures: ``debts``, ``writers`` and ``target`` of a table that does not exist."""

    async def test_a_missing_table_has_none(self, debts: Debts, target: TableTarget) -> None:
        assert await debts.measure(target, AT_ONCE) is None

    async def test_an_empty_table_owes_nothing(self, debts: Debts, writers: Writers, target: TableTarget) -> None:
        uuid = writers.create(target)
        found = await debts.measure(target, AT_ONCE)
        assert found is not None
        assert (found.table_uuid, found.data_files, found.snapshots, found.manifests) == (uuid, 0, 0, 0)
        assert (found.due_files, found.oldest_due) == (0, None)
        assert found.metadata_bytes > 0

    async def test_files_are_counted_and_those_due_named_by_their_age(
        self, debts: Debts, writers: Writers, target: TableTarget
    ) -> None:
        writers.create(target)
        before = datetime.now(UTC)
        for _ in range(5):
            writers.append(target, [MIB, 2 * MIB])
        writers.append(target, [600 * MIB], partition=1)
        found = await debts.measure(target, AT_ONCE)
        assert found is not None
        assert (found.data_files, found.data_bytes, found.small_files) == (11, 615 * MIB, 10)
        assert (found.snapshots, found.manifests, found.delete_files) == (writers.snapshots(target), 6, 0)
        assert (found.due_files, found.due_bytes, found.due_for_deletes) == (10, 15 * MIB, 0)
        assert found.oldest_due is not None
        assert before - timedelta(seconds=1) <= found.oldest_due <= datetime.now(UTC)

    async def test_files_within_the_grace_are_small_and_not_due(
        self, debts: Debts, writers: Writers, target: TableTarget
    ) -> None:
        writers.create(target)
        writers.append(target, [MIB] * 10)
        found = await debts.measure(target, CompactionWork(open_grace_ms=3_600_000))
        assert found is not None
        assert (found.small_files, found.due_files, found.oldest_due) == (10, 0, None)

    async def test_other_settings_give_another_answer_about_the_same_table(
        self, debts: Debts, writers: Writers, target: TableTarget
    ) -> None:
        writers.create(target)
        writers.append(target, [10 * MIB] * 10)
        seen = []
        for size in (512 * MIB, 10 * MIB, 512 * MIB):
            found = await debts.measure(target, CompactionWork(open_grace_ms=0, target_file_bytes=size))
            assert found is not None
            seen.append((found.small_files, found.due_files))
        assert seen == [(10, 10), (0, 0), (10, 10)]

    async def test_a_commit_is_seen_at_the_next_measure(
        self, debts: Debts, writers: Writers, target: TableTarget
    ) -> None:
        writers.create(target)
        for number in range(1, 6):
            writers.append(target, [MIB])
            found = await debts.measure(target, AT_ONCE)
            assert found is not None
            assert found.data_files == number
            assert found.due_files == (number if number >= 4 else 0)
        writers.replace(target, [5 * MIB])
        found = await debts.measure(target, AT_ONCE)
        assert found is not None
        assert (found.data_files, found.data_bytes, found.due_files) == (1, 5 * MIB, 0)

    async def test_deletes_make_large_files_due(self, debts: Debts, writers: Writers, target: TableTarget) -> None:
        writers.create(target)
        writers.append(target, [600 * MIB, 600 * MIB])
        writers.append(target, [600 * MIB], partition=1)
        writers.delete_rows(target, 20)
        found = await debts.measure(target, AT_ONCE)
        assert found is not None
        assert (found.data_files, found.delete_files, found.due_files) == (3, 1, 0)
        writers.delete_rows(target, 80)
        found = await debts.measure(target, AT_ONCE)
        assert found is not None
        assert (found.delete_files, found.due_files, found.due_for_deletes, found.due_bytes) == (2, 2, 2, 1200 * MIB)
        writers.append(target, [600 * MIB])
        found = await debts.measure(target, AT_ONCE)
        assert found is not None
        assert (found.data_files, found.due_files) == (4, 2), "a later file has none of the deletes"

    async def test_dead_letters_count_with_their_table(
        self, debts: Debts, writers: Writers, target: TableTarget
    ) -> None:
        uuid = writers.create(target)
        writers.append(target, [MIB] * 4)
        alone = await debts.measure(target, AT_ONCE)
        letters = target.model_copy(update={"name": names.dead_letters(target.name)})
        writers.create(letters)
        writers.append(letters, [MIB] * 5)
        debts.forget(target)
        both = await debts.measure(target, AT_ONCE)
        assert alone is not None
        assert both is not None
        assert (alone.data_files, both.data_files, both.due_files) == (4, 9, 9)
        assert (both.table_uuid, both.snapshots, both.manifests) == (uuid, 2, 2)

    async def test_a_table_that_came_back_is_another_one(
        self, debts: Debts, writers: Writers, target: TableTarget
    ) -> None:
        first = writers.create(target)
        writers.append(target, [MIB] * 4)
        assert await debts.measure(target, AT_ONCE) is not None
        writers.drop(target)
        assert await debts.measure(target, AT_ONCE) is None
        assert writers.create(target) != first
        found = await debts.measure(target, AT_ONCE)
        assert found is not None
        assert (found.table_uuid != first, found.data_files) == (True, 0)
