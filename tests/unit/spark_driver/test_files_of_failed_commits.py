"""The files of a commit that certainly did not happen are deleted. Those of any other commit stay."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from firn.model.errors import CommitConflictError, FencedError, FirnError
from firn.model.jobs import CatalogConnection, GroupSettings
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds.committing import TopicCommits
from firn_spark.tables import claims
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.commits import Committer, Extras, Landed
from firn_spark.tables.java_tables import Tables
from tests.fakes.lake import java
from tests.fakes.lake.memory import Lake, Row
from tests.unit.spark_driver.results import descriptor
from tests.unit.spark_driver.topic import job, topic

T = TypeVar("T")
PATH = "s3://firn/lake/shop/orders/data/1"


@dataclass
class Gateway(java.DirectGateway):
    """Requests of which ``catalog.commit`` fails with ``refusal`` if set, before it takes effect."""

    refusal: str = ""

    def request(self, name: str, effect: Callable[[], T]) -> T:
        if name == "catalog.commit" and self.refusal:
            raise java.error(self.refusal, "refused")
        return super().request(name, effect)


@dataclass
class Setting:
    lake: Lake
    gateway: Gateway
    tables: Tables
    table: Any

    def committer(self, writer: str) -> Committer:
        return Committer(self.tables, writer, Failpoints())

    def commit(self, base: Landed | None, writer: str = "one", epoch: int = 1, schema: str = "") -> Landed:
        """Commit a file with a row. ``schema`` is that of the file."""
        self.lake.put(PATH, [Row(0, 4, 1, 0)])
        file = json.dumps({"path": PATH, "file-path": PATH, "record-count": 1})
        return self.committer(writer).commit(
            self.table, [file], base, "topic-1", epoch, {0: 5}, Extras(records=True, schema=schema)
        )

    @property
    def kept(self) -> bool:
        return PATH in self.lake.objects


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.setattr("firn_spark.tables.swaps.time.sleep", lambda _: None)
    lake, gateway = Lake(), Gateway()
    connection = CatalogConnection(type="sql", uri="postgresql://db/lake", warehouse="s3://firn/lake")
    settings = GroupSettings(group="test", catalogs={"lake": connection})
    tables = Tables(Catalogs(java.spark(lake, gateway), settings))
    return Setting(lake, gateway, tables, tables.ensure(job()))


def other(setting: Setting, base: Landed | None) -> None:
    table = setting.tables.load("lake", "shop", "orders")
    setting.committer("two").commit(table, (), base, "topic-1", 2, {0: 7})


def test_the_files_of_a_commit_stay(setting: Setting) -> None:
    setting.commit(None)
    assert setting.kept


def test_a_driver_that_another_commit_fenced_deletes_its_files(setting: Setting) -> None:
    other(setting, None)
    with pytest.raises(FencedError):
        setting.commit(None)
    assert not setting.kept


def test_a_driver_that_a_claim_fenced_before_its_request_deletes_its_files(setting: Setting) -> None:
    claims.take(setting.committer("two"), setting.table, None, 7, claims.Work("topic-1", None, lambda: ""))
    with pytest.raises(FencedError):
        setting.commit(None)
    assert not setting.kept


def test_the_files_of_a_commit_that_was_refused_each_time_are_deleted(setting: Setting) -> None:
    setting.gateway.refusal = "CommitFailedException"
    with pytest.raises(CommitConflictError, match="attempts to commit failed"):
        setting.commit(None)
    assert not setting.kept


@pytest.mark.parametrize("refusal", ["CommitStateUnknownException", "ServiceFailureException", "ValidationException"])
def test_the_files_of_a_commit_that_may_still_happen_stay(setting: Setting, refusal: str) -> None:
    setting.gateway.refusal = refusal
    with pytest.raises(FirnError):
        setting.commit(None)
    assert setting.kept


def test_a_claim_after_a_request_leaves_the_files(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A REST catalog can complete the request after a claim, which changes only a property."""
    request, claimed = setting.gateway.request, setting.tables.load("lake", "shop", "orders")

    def late(name: str, effect: Callable[[], T]) -> T:
        if name != "catalog.commit":
            return request(name, effect)
        monkeypatch.setattr(setting.gateway, "request", request)
        claims.take(setting.committer("two"), claimed, None, 7, claims.Work("topic-1", None, lambda: ""))
        raise java.error("ServiceFailureException", "no answer")

    monkeypatch.setattr(setting.gateway, "request", late)
    with pytest.raises(FencedError):
        setting.commit(None)
    assert setting.kept


@pytest.mark.parametrize("requested", [True, False])
def test_a_replaced_column_leaves_the_files_only_after_a_request(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, *, requested: bool
) -> None:
    """A REST catalog can complete the request after a change of the schema, which leaves the branch where it is."""
    compared: list[str] = []

    def replaced(written: str, current: str) -> str | None:
        compared.append(current)
        return "name" if len(compared) > requested else None

    monkeypatch.setattr("firn_spark.tables.commits.replaced_column", replaced)
    setting.gateway.refusal = "ServiceFailureException"
    with pytest.raises(CommitConflictError, match="column name was dropped and added again"):
        setting.commit(None, schema="{}")
    assert setting.kept == requested


def test_the_data_files_of_a_round_whose_dead_letters_fail_are_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[Any] = []
    committer = SimpleNamespace(discard=lambda _, files: deleted.extend(files))
    nothing: Any = None
    commits = TopicCommits(nothing, cast(Any, committer), nothing, Failpoints(), cast(Any, SimpleNamespace()))
    failing = topic(epoch=1)
    failing.table.java = failing.letters.java = object()

    def fail(*_: object) -> None:
        raise CommitConflictError("no answer")

    monkeypatch.setattr(commits, "_commit_dead", fail)
    monkeypatch.setattr(commits, "_audit", lambda *_: 0)
    result: Any = SimpleNamespace(
        data=[descriptor(1)], dead=[descriptor(2)], rows=1, records=0, skipped=0, halts=[], landed=True
    )
    with pytest.raises(CommitConflictError):
        commits.commit(failing, {0: (0, 2)}, result, 0.0)
    assert deleted == result.data, "the dead letters may still be committed"
