"""A driver claims a table with an epoch of its own before it works on the table."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model import names
from firn.model.errors import CommitConflictError, FencedError
from firn_spark.failpoints import Failpoints
from firn_spark.tables import claims
from firn_spark.tables.commits import CLAIM, Committer, Landed, read_claim
from tests.fakes.lake.java import JavaMap


class Properties(JavaMap):
    """Metadata without a snapshot."""

    def currentSnapshot(self) -> None:
        return None

    def lastUpdatedMillis(self) -> int:
        return 0


class Builder:
    """Iceberg's ``TableMetadata.Builder`` for properties."""

    def __init__(self, base: Mapping[str, str]) -> None:
        self.values = Properties(base)

    def setProperties(self, values: Mapping[str, str]) -> "Builder":
        self.values = Properties({**self.values, **values})
        return self

    def build(self) -> Properties:
        return self.values


class Table:
    """A table without snapshots whose properties any writer can swap. ``first`` acts before the next swap."""

    def __init__(self, claim: str | None = None) -> None:
        self.stored = Properties({} if claim is None else {CLAIM: claim})
        self.read = self.stored
        self.first: list[Callable[[], None]] = []
        self.swaps = 0

    def name(self) -> str:
        return "lake.shop.orders"

    def refresh(self) -> None:
        self.read = self.stored

    def properties(self) -> Properties:
        return self.read

    def currentSnapshot(self) -> None:
        return None

    def snapshots(self) -> list[Any]:
        return []

    def operations(self) -> "Table":
        return self

    def current(self) -> Properties:
        return self.read

    def commit(self, base: Properties, updated: Properties) -> None:
        self.swaps += 1
        if self.first:
            self.first.pop(0)()
        if base is not self.stored:
            raise CommitConflictError("moved")
        self.stored = updated


def committer(writer: str) -> Committer:
    jvm = SimpleNamespace(
        org=SimpleNamespace(
            apache=SimpleNamespace(iceberg=SimpleNamespace(TableMetadata=SimpleNamespace(buildFrom=Builder)))
        )
    )
    return Committer(cast(Any, SimpleNamespace(jvm=jvm)), writer, Failpoints())


def take(table: Table, writer: str, epoch: int | None = None, least: int = 0) -> int:
    return claims.take(committer(writer), table, epoch, least, claims.Work("topic-1", None, lambda: "kafka-1"))


def test_a_claim_takes_the_next_epoch() -> None:
    table = Table()
    assert [take(table, "a"), take(table, "b"), take(table, "c", least=7)] == [1, 2, 8]
    assert str(read_claim(table)) == "8 c"


def test_two_drivers_that_start_together_take_different_epochs() -> None:
    table = Table()
    other: list[int] = []
    table.first = [lambda: other.append(take(table, "b"))]
    assert (take(table, "a"), other) == (2, [1])


def test_a_claim_that_the_driver_has_is_not_made_again() -> None:
    table = Table()
    epoch = take(table, "a")
    assert (take(table, "a", epoch), table.swaps) == (1, 1)


def test_a_driver_claims_a_table_again_that_was_created_again() -> None:
    table = Table()
    assert take(table, "a", epoch=4) == 4
    assert str(read_claim(table)) == "4 a"


@pytest.mark.parametrize("claim", ["5 b", "4 b", "5 a"])
def test_a_later_claim_fences_the_driver(claim: str) -> None:
    with pytest.raises(FencedError, match="lake.shop.orders: writer . claimed epoch ., and this driver has epoch 4"):
        take(Table(claim), "a", epoch=4)


def test_a_claim_records_the_kafka_cluster_if_the_brokers_tell_it() -> None:
    table = Table()
    take(table, "a")
    assert table.stored[names.TABLE_KAFKA_CLUSTER] == "kafka-1"
    claims.take(committer("b"), table, None, 0, claims.Work("topic-1", None, lambda: ""))
    assert table.stored[names.TABLE_KAFKA_CLUSTER] == "kafka-1"


def landed(topic_id: str) -> dict[str, str]:
    """Return the properties of a table whose newest commit is of this topic."""
    offsets = {names.SUMMARY_TOPIC_ID: topic_id, names.SUMMARY_EPOCH: "7", names.SUMMARY_OFFSETS: '{"0":5}'}
    return {**offsets, names.TABLE_KAFKA_CLUSTER: "kafka-2"}


def test_a_claim_does_not_move_a_table_of_another_topic_to_this_cluster() -> None:
    table = Table()
    table.stored = table.read = Properties(landed("topic-2"))
    base = Landed("topic-2", 7, {0: 5})
    assert claims.take(committer("a"), table, None, 0, claims.Work("topic-1", base, lambda: "kafka-1")) == 8
    assert table.stored[names.TABLE_KAFKA_CLUSTER] == "kafka-2"


@pytest.mark.parametrize("base", [None, Landed("topic-1", 3, {0: 2})])
def test_a_commit_of_another_topic_refuses_the_claim(base: Landed | None) -> None:
    """Another control plane adopted the table while this driver was idle."""
    table = Table()
    table.stored = table.read = Properties(landed("topic-2"))
    with pytest.raises(CommitConflictError, match="a commit of topic topic-2 came first"):
        claims.take(committer("a"), table, None, 0, claims.Work("topic-1", base, lambda: "kafka-1"))
    assert table.swaps == 0


@pytest.mark.parametrize("claim", ["", "no epoch", "-3 b"])
def test_an_invalid_claim_does_not_count(claim: str) -> None:
    assert take(Table(claim), "a") == 1
