"""The contracts of `Topics`, `Tables` and `Debts`.

The adapters of the operator and the fakes of unit tests pass the same suites."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

import pytest

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import ConflictError, InvalidSpecError
from firn.model.jobs import Column, RecordSchema, Subject, TableTarget
from firn.model.maintenance import CompactionWork
from firn.tables.ownership import Claimant, Ownership
from firn_controllers.ports import Debts, FoundTable, Tables, Topics, TopicState

PROFILE, CATALOG = "classic", "lake"


async def until(
    describe: Callable[[], Awaitable[TopicState | None]], fits: Callable[[TopicState | None], bool]
) -> TopicState | None:
    """Return the first result of ``describe`` that fits. Brokers learn of a change a moment after it."""
    while not fits(state := await describe()):
        pass
    return state


class TopicsContract:
    """Fixtures: ``topics``, and ``name`` of a topic that does not exist."""

    async def await_visible(self, topics: Topics, name: str) -> TopicState:
        state = await until(lambda: topics.describe(PROFILE, name), lambda state: state is not None)
        assert state is not None
        return state

    async def test_a_missing_topic_is_none(self, topics: Topics, name: str) -> None:
        assert await topics.describe(PROFILE, name) is None

    async def test_a_topic_is_created_with_partitions_and_configs(self, topics: Topics, name: str) -> None:
        await topics.create(PROFILE, name, 3, {"retention.ms": "60000"})
        state = await self.await_visible(topics, name)
        assert (state.name, state.partitions, dict(state.configs)) == (name, 3, {"retention.ms": "60000"})
        assert state.topic_id

    async def test_a_topic_has_the_brokers_defaults_of_what_it_does_not_set(self, topics: Topics, name: str) -> None:
        await topics.create(PROFILE, name, 1, {"retention.ms": "60000"})
        assert dict((await self.await_visible(topics, name)).defaults) == {
            "cleanup.policy": "delete",
            "retention.bytes": "-1",
        }

    async def test_a_repeated_create_changes_nothing(self, topics: Topics, name: str) -> None:
        await topics.create(PROFILE, name, 3, {})
        before = await self.await_visible(topics, name)
        await topics.create(PROFILE, name, 5, {"retention.ms": "1"})
        assert await self.await_visible(topics, name) == before

    async def test_partitions_grow(self, topics: Topics, name: str) -> None:
        await topics.create(PROFILE, name, 1, {})
        await self.await_visible(topics, name)
        await topics.grow(PROFILE, name, 4)
        await topics.grow(PROFILE, name, 4)
        state = await until(
            lambda: topics.describe(PROFILE, name), lambda state: state is not None and state.partitions == 4
        )
        assert state is not None

    async def test_partitions_do_not_shrink(self, topics: Topics, name: str) -> None:
        await topics.create(PROFILE, name, 3, {})
        await self.await_visible(topics, name)
        with pytest.raises(InvalidSpecError):
            await topics.grow(PROFILE, name, 2)

    async def test_each_config_is_set_and_unset_separately(self, topics: Topics, name: str) -> None:
        await topics.create(PROFILE, name, 1, {"retention.ms": "60000", "max.message.bytes": "2000000"})
        await self.await_visible(topics, name)
        await topics.alter_configs(PROFILE, name, {"segment.ms": "700000"}, ["retention.ms"])
        wanted = {"max.message.bytes": "2000000", "segment.ms": "700000"}
        state = await until(
            lambda: topics.describe(PROFILE, name), lambda state: state is not None and dict(state.configs) == wanted
        )
        assert state is not None

    @pytest.mark.parametrize(("key", "value"), [("no.such.config", "1"), ("retention.ms", "a while")])
    async def test_an_error_names_the_rejected_config(self, topics: Topics, name: str, key: str, value: str) -> None:
        with pytest.raises(InvalidSpecError, match=key) as creating:
            await topics.create(PROFILE, name, 1, {key: value})
        assert creating.value.reason == Reason.BAD_TOPIC_CONFIG
        assert await topics.describe(PROFILE, name) is None
        await topics.create(PROFILE, name, 1, {})
        await self.await_visible(topics, name)
        with pytest.raises(InvalidSpecError, match=key) as altering:
            await topics.alter_configs(PROFILE, name, {key: value}, [])
        assert altering.value.reason == Reason.BAD_TOPIC_CONFIG

    async def test_a_recreated_topic_has_another_id_and_deletes_repeat(self, topics: Topics, name: str) -> None:
        await topics.delete(PROFILE, name)
        await topics.create(PROFILE, name, 1, {})
        first = await self.await_visible(topics, name)
        await topics.delete(PROFILE, name)
        await until(lambda: topics.describe(PROFILE, name), lambda state: state is None)
        await topics.create(PROFILE, name, 1, {})
        assert (await self.await_visible(topics, name)).topic_id != first.topic_id

    async def test_the_list_of_names_has_all_topics(self, topics: Topics, name: str) -> None:
        assert name not in (await topics.list_names(PROFILE)).names
        await topics.create(PROFILE, name, 2, {})
        while name not in (await topics.list_names(PROFILE)).names:
            pass
        await topics.delete(PROFILE, name)
        while name in (await topics.list_names(PROFILE)).names:
            pass

    async def test_the_list_of_names_names_its_cluster(self, topics: Topics) -> None:
        first = await topics.list_names(PROFILE)
        assert first.cluster_id
        assert (await topics.list_names(PROFILE)).cluster_id == first.cluster_id

    async def test_the_fleet_state_counts_brokers(self, topics: Topics) -> None:
        for replicas in (False, True):
            fleet = await topics.fleet(PROFILE, replicas=replicas)
            assert fleet.brokers >= 1
            assert fleet.under_replicated == 0


INT, LONG, TEXT = (Column(name="n", type=kind) for kind in ("int", "long", "string"))


def schema(*columns: Column) -> RecordSchema:
    return RecordSchema(format="Json", fields=columns)


class TablesContract:
    """Fixtures: ``tables``, and ``target`` of a table that does not exist."""

    async def test_the_check_of_a_catalog_passes(self, tables: Tables) -> None:
        await tables.check(CATALOG)

    async def test_a_table_is_created_once(self, tables: Tables, target: TableTarget) -> None:
        first = await tables.ensure(target, schema(INT), Claimant("uid-1"))
        second = await tables.ensure(target, schema(INT), Claimant("uid-1"))
        assert first is not None
        assert second is not None
        assert (first.created, first.owner, first.format_version) == (True, None, 2)
        assert (second.created, second.owner, second.changed) == (False, "uid-1", ())
        assert (first.uuid, first.location) == (second.uuid, second.location)

    async def test_another_owner_adopts_a_table_and_learns_the_old_owner(
        self, tables: Tables, target: TableTarget
    ) -> None:
        await tables.ensure(target, schema(INT), Claimant("uid-1"))
        adopted = await tables.ensure(target, schema(INT), Claimant("uid-2"))
        again = await tables.ensure(target, schema(INT), Claimant("uid-2"))
        assert adopted is not None
        assert again is not None
        assert (adopted.created, adopted.owner, again.owner) == (False, "uid-1", "uid-2")

    async def test_a_table_names_the_namespace_and_the_cluster_of_its_owner(
        self, tables: Tables, target: TableTarget
    ) -> None:
        await tables.ensure(target, schema(INT), Claimant("uid-1"))
        await tables.ensure(target, schema(INT), Claimant("uid-1", "demo", "orders", "cluster-1", holds=True))
        assert await tables.found(target) == FoundTable(Ownership("uid-1", "demo", "cluster-1"))

    async def test_a_table_of_another_cluster_is_not_taken_without_approval(
        self, tables: Tables, target: TableTarget
    ) -> None:
        await tables.ensure(target, schema(INT), Claimant("uid-1", "demo", "orders", "cluster-1"))
        other = Claimant("uid-2", "demo", "orders", "cluster-2")
        with pytest.raises(ConflictError, match="belongs to Kubernetes cluster cluster-1"):
            await tables.ensure(target, schema(INT), other)
        assert await tables.found(target) == FoundTable(Ownership("uid-1", "demo", "cluster-1"))
        await tables.ensure(target, schema(INT), replace(other, former_clusters=("cluster-1",)))
        assert await tables.found(target) == FoundTable(Ownership("uid-2", "demo", "cluster-2"))
        with pytest.raises(ConflictError):
            await tables.ensure(target, schema(INT), Claimant("uid-1", "demo", "orders", "cluster-1", holds=True))

    async def test_columns_are_added_and_widened(self, tables: Tables, target: TableTarget) -> None:
        await tables.ensure(target, schema(INT), Claimant("uid-1"))
        wider = schema(LONG, Column(name="more", type="string"))
        changed = await tables.ensure(target, wider, Claimant("uid-1"))
        again = await tables.ensure(target, wider, Claimant("uid-1"))
        assert changed is not None
        assert again is not None
        assert changed.changed
        assert again.changed == ()

    async def test_a_table_may_be_wider_than_the_schema_of_a_registry(
        self, tables: Tables, target: TableTarget
    ) -> None:
        wide, narrow = (
            schema(Column(name="id", type=kind), Column(name="s", type=f"struct<a: {kind}, {member}: string>"))
            for kind, member in (("long", "b"), ("int", "c"))
        )
        await tables.ensure(target, wide, Claimant("uid-1"))
        with pytest.raises(InvalidSpecError):
            await tables.ensure(target, narrow, Claimant("uid-1"))
        of_registry = narrow.model_copy(update={"subject": Subject(registry="main", name="orders-value")})
        changed = await tables.ensure(target, of_registry, Claimant("uid-1"))
        assert changed is not None
        assert changed.changed, "the member c is new"
        again = await tables.ensure(target, of_registry, Claimant("uid-1"))
        assert again is not None
        assert again.changed == ()

    async def test_the_reason_of_an_impossible_change_depends_on_the_owner(
        self, tables: Tables, target: TableTarget
    ) -> None:
        await tables.ensure(target, schema(INT), Claimant("uid-1"))
        for owner, reason in (("uid-1", Reason.INCOMPATIBLE_SCHEMA), ("uid-2", Reason.SCHEMA_INCOMPATIBLE)):
            with pytest.raises(InvalidSpecError, match="n") as refusal:
                await tables.ensure(target, schema(TEXT), Claimant(owner))
            assert refusal.value.reason == reason

    async def test_ensure_leaves_tables_of_version_3_to_the_driver(self, tables: Tables, target: TableTarget) -> None:
        newer = target.model_copy(update={"format_version": 3})
        assert await tables.ensure(newer, schema(INT), Claimant("uid-1")) is None
        assert await tables.ensure(newer, schema(INT), Claimant("uid-1")) is None

    async def test_a_table_is_found_with_its_owner(self, tables: Tables, target: TableTarget) -> None:
        assert await tables.found(target) is None
        await tables.ensure(target, schema(INT), Claimant("uid-1"))
        assert await tables.found(target) == FoundTable(Ownership("uid-1"))

    async def test_only_the_owner_drops_a_table_and_drops_repeat(self, tables: Tables, target: TableTarget) -> None:
        assert not await tables.drop(target, "uid-1")
        await tables.ensure(target, schema(INT), Claimant("uid-1"))
        assert not await tables.drop(target, "uid-2")
        kept = await tables.ensure(target, schema(INT), Claimant("uid-1"))
        assert kept is not None
        assert not kept.created
        assert await tables.drop(target, "uid-1")
        again = await tables.ensure(target, schema(INT), Claimant("uid-1"))
        assert again is not None
        assert again.created


MIB = 1024 * 1024
AT_ONCE = CompactionWork(open_grace_ms=0)


class Writers(Protocol):
    """Other processes that write a table, as its metadata shows them."""

    def create(self, target: TableTarget) -> str:
        """Create a table partitioned by ``n`` and return its UUID."""
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
        """Return the number of snapshots that the catalog shows: Nessie shows only the newest."""
        ...


class DebtsContract:
    """Fixtures: ``debts``, ``writers`` and ``target`` of a table that does not exist."""

    async def test_a_missing_table_has_no_debt(self, debts: Debts, target: TableTarget) -> None:
        assert await debts.measure(target, AT_ONCE) is None

    async def test_an_empty_table_has_no_due_files(self, debts: Debts, writers: Writers, target: TableTarget) -> None:
        uuid = writers.create(target)
        debt = await debts.measure(target, AT_ONCE)
        assert debt is not None
        assert (debt.table_uuid, debt.data_files, debt.snapshots, debt.manifests) == (uuid, 0, 0, 0)
        assert (debt.due_files, debt.oldest_due) == (0, None)
        assert debt.metadata_bytes > 0

    async def test_the_debt_counts_files_and_the_age_of_due_files(
        self, debts: Debts, writers: Writers, target: TableTarget
    ) -> None:
        writers.create(target)
        before = datetime.now(UTC)
        for _ in range(5):
            writers.append(target, [MIB, 2 * MIB])
        writers.append(target, [600 * MIB], partition=1)
        debt = await debts.measure(target, AT_ONCE)
        assert debt is not None
        assert (debt.data_files, debt.data_bytes, debt.small_files) == (11, 615 * MIB, 10)
        assert (debt.snapshots, debt.manifests, debt.delete_files) == (writers.snapshots(target), 6, 0)
        assert (debt.due_files, debt.due_bytes, debt.due_for_deletes) == (10, 15 * MIB, 0)
        assert debt.oldest_due is not None
        assert before - timedelta(seconds=1) <= debt.oldest_due <= datetime.now(UTC)

    async def test_small_files_within_the_grace_are_not_due(
        self, debts: Debts, writers: Writers, target: TableTarget
    ) -> None:
        writers.create(target)
        writers.append(target, [MIB] * 10)
        debt = await debts.measure(target, CompactionWork(open_grace_ms=3_600_000))
        assert debt is not None
        assert (debt.small_files, debt.due_files, debt.oldest_due) == (10, 0, None)

    async def test_the_debt_depends_on_the_settings(self, debts: Debts, writers: Writers, target: TableTarget) -> None:
        writers.create(target)
        writers.append(target, [10 * MIB] * 10)
        seen = []
        for size in (512 * MIB, 10 * MIB, 512 * MIB):
            debt = await debts.measure(target, CompactionWork(open_grace_ms=0, target_file_bytes=size))
            assert debt is not None
            seen.append((debt.small_files, debt.due_files))
        assert seen == [(10, 10), (0, 0), (10, 10)]

    async def test_the_next_measurement_sees_a_commit(
        self, debts: Debts, writers: Writers, target: TableTarget
    ) -> None:
        writers.create(target)
        for number in range(1, 6):
            writers.append(target, [MIB])
            debt = await debts.measure(target, AT_ONCE)
            assert debt is not None
            assert debt.data_files == number
            assert debt.due_files == (number if number >= 4 else 0)
        writers.replace(target, [5 * MIB])
        debt = await debts.measure(target, AT_ONCE)
        assert debt is not None
        assert (debt.data_files, debt.data_bytes, debt.due_files) == (1, 5 * MIB, 0)

    async def test_deletes_make_large_files_due(self, debts: Debts, writers: Writers, target: TableTarget) -> None:
        writers.create(target)
        writers.append(target, [600 * MIB, 600 * MIB])
        writers.append(target, [600 * MIB], partition=1)
        writers.delete_rows(target, 20)
        debt = await debts.measure(target, AT_ONCE)
        assert debt is not None
        assert (debt.data_files, debt.delete_files, debt.due_files) == (3, 1, 0)
        writers.delete_rows(target, 80)
        debt = await debts.measure(target, AT_ONCE)
        assert debt is not None
        assert (debt.delete_files, debt.due_files, debt.due_for_deletes, debt.due_bytes) == (2, 2, 2, 1200 * MIB)
        writers.append(target, [600 * MIB])
        debt = await debts.measure(target, AT_ONCE)
        assert debt is not None
        assert (debt.data_files, debt.due_files) == (4, 2), "a later file has none of the deletes"

    async def test_the_debt_includes_the_dead_letter_table(
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

    async def test_a_recreated_table_has_a_debt_of_its_own(
        self, debts: Debts, writers: Writers, target: TableTarget
    ) -> None:
        first = writers.create(target)
        writers.append(target, [MIB] * 4)
        assert await debts.measure(target, AT_ONCE) is not None
        writers.drop(target)
        assert await debts.measure(target, AT_ONCE) is None
        assert writers.create(target) != first
        debt = await debts.measure(target, AT_ONCE)
        assert debt is not None
        assert (debt.table_uuid != first, debt.data_files) == (True, 0)
