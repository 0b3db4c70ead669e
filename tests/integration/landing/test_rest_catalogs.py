"""Iceberg's own REST catalog: credentials that only the catalog knows and that expire, expired tokens, and history."""

import json
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pyiceberg.catalog import Catalog

from firn.model.errors import AccessDeniedError, ConflictError
from firn.model.jobs import Column, GroupSettings, IngestJob, RecordSchema, TableTarget
from firn.tables.ownership import Ownership
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.cli import audit
from firn_spark.failpoints import Failpoints
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.commits import Committer, read_landed
from firn_spark.tables.java_errors import JAVA_ERRORS
from firn_spark.tables.java_tables import Tables
from firn_spark.tables.vended import RENEW_MS, expires_ms, needs_renewal
from firn_spark.worker.landing import LandingPlan, TopicLanding, land
from tests.contract.driver_tables import commit_ahead
from tests.servers.iceberg_rest import ACCOUNTS, IcebergRest, iceberg_rest
from tests.servers.s3 import s3
from tests.unit.spark import records
from tests.unit.spark.tables import results

NAMESPACE, NAME = "shop", "orders"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergRest]:
    with (
        s3(tmp_path_factory.mktemp("s3"), ACCOUNTS) as store,
        iceberg_rest(tmp_path_factory.mktemp("rest"), store) as running,
    ):
        yield running


@pytest.fixture
def rest(spark: Any, catalog: IcebergRest) -> Iterator[Tables]:
    catalogs = Catalogs(spark, GroupSettings(group="g", catalogs={"rest": catalog.connection}))
    yield Tables(catalogs)
    catalogs.close()


def job(name: str, version: Literal[2, 3] = 2) -> IngestJob:
    return IngestJob(
        uid=f"uid-{name}", namespace="tests", name=name, generation=1, group="g", profile="classic", topic="t",
        record_schema=RecordSchema(format="Json", fields=(Column(name="a", type="int"),)), freshness_ms=1000,
        table=TableTarget(catalog="rest", namespace=NAMESPACE, name=name, format_version=version),
    )  # fmt: skip


def ingest(rest: Tables, name: str, commits: int = 1) -> Any:
    """Land rows with the credentials that the catalog hands out now, as a round does, and return the Java table."""
    work = job(name)
    table = rest.ensure(work)
    committer = Committer(rest, "writer", Failpoints())
    landed = read_landed(table)
    for _ in range(commits):
        plan = LandingPlan({"t": TopicLanding(work, rest.spec(table))}, ingested_at=0)
        output = results(land(iter([records.batch([b'{"a": 1}', b'{"a": 2}'])]), plan))["t"]
        assert "error" not in output, output
        end = landed.offsets[0] + 2 if landed else 2
        landed = committer.commit(table, [json.dumps(each) for each in output["data"]], landed, "id", 1, {0: end})
    return table


def test_rows_land_with_credentials_that_only_the_catalog_knows(catalog: IcebergRest, rest: Tables) -> None:
    table = ingest(rest, "vended")
    spec = rest.spec(table)
    assert spec.io["s3.access-key-id"] == catalog.rules.keys[0]
    assert needs_renewal(spec.io, int(time.time() * 1000))
    expires = expires_ms(spec.io)
    assert expires is not None
    assert not needs_renewal(spec.io, expires - RENEW_MS)


def test_a_loaded_table_has_new_credentials(catalog: IcebergRest, rest: Tables) -> None:
    old = rest.spec(ingest(rest, "renewed"))
    catalog.rules.expire()
    plan = LandingPlan({"t": TopicLanding(job("renewed"), old)}, ingested_at=0)
    output = results(land(iter([records.batch([b'{"a": 1}'])]), plan))["t"]
    assert any(sign in output["error"][0]["message"] for sign in ("ACCESS_DENIED", "expired")), output
    table = ingest(rest, "renewed")
    landed = read_landed(table)
    assert landed is not None
    assert landed.offsets == {0: 4}


@pytest.mark.parametrize("status", [401, 419])
def test_a_token_that_the_catalog_no_longer_accepts_is_replaced(
    catalog: IcebergRest, rest: Tables, status: int
) -> None:
    ingest(rest, "tokens")
    catalog.rules.expired_status = status
    catalog.rules.expire()
    issued = catalog.rules.issued
    assert rest.load("rest", NAMESPACE, "tokens") is not None
    assert catalog.rules.issued == issued + 1


def test_a_token_that_is_never_accepted_is_not_replaced_all_the_time(catalog: IcebergRest, rest: Tables) -> None:
    ingest(rest, "tokens")
    issued = catalog.rules.issued
    catalog.rules.refuse = True
    try:
        for _ in range(4):
            with pytest.raises(AccessDeniedError, match="token has expired"):
                rest.load("rest", NAMESPACE, "tokens")
    finally:
        catalog.rules.refuse = False
    assert catalog.rules.issued == issued + 1


@pytest.fixture
def operators(catalog: IcebergRest) -> Catalog:
    return open_catalog("rest", catalog.connection)


@pytest.mark.parametrize("status", [401, 419])
def test_the_operator_replaces_a_token_too(catalog: IcebergRest, rest: Tables, operators: Catalog, status: int) -> None:
    ingest(rest, "operator")
    catalog.rules.expired_status = status
    assert operators.load_table((NAMESPACE, "operator")).current_snapshot() is not None
    catalog.rules.expire()
    table = operators.load_table((NAMESPACE, "operator"))
    assert table.io.properties["s3.access-key-id"] == catalog.rules.keys[0]


def test_the_audit_sees_the_whole_history(catalog: IcebergRest, rest: Tables, operators: Catalog) -> None:
    ingest(rest, "long_history", commits=3)
    referenced = operators.load_table((NAMESPACE, "long_history"))
    assert len(referenced.metadata.snapshots) == 1, "the operator asks for snapshots of tags and branches only"
    assert audit.before(referenced, "id") == (None, False)
    everything = open_catalog("rest", catalog.connection, snapshots="all").load_table((NAMESPACE, "long_history"))
    assert len(everything.metadata.snapshots) == 3
    assert audit.before(everything, "id") == (None, True)


def test_the_catalog_rejects_a_snapshot_that_is_ahead_of_its_clock(rest: Tables) -> None:
    table = ingest(rest, "ahead")
    with pytest.raises(JAVA_ERRORS, match="Invalid update timestamp"):
        commit_ahead(rest.jvm, table, int(time.time() * 1000) + 3_600_000)
    landed = read_landed(ingest(rest, "ahead"))
    assert landed is not None
    assert landed.offsets == {0: 4}


def test_a_table_may_have_the_name_of_a_metadata_table(rest: Tables) -> None:
    assert rest.load("rest", NAMESPACE, "history") is None
    created = rest.ensure(job("history", 3))
    assert rest.ensure(job("history", 3)).uuid() == created.uuid()


def test_a_driver_leaves_a_table_to_the_cluster_that_owns_it(spark: Any, catalog: IcebergRest) -> None:
    catalogs = Catalogs(spark, GroupSettings(group="g", catalogs={"rest": catalog.connection}))
    here, there = Tables(catalogs, "cluster-1"), Tables(catalogs, "cluster-2")
    work, other = job("owned", 3), job("owned", 3).model_copy(update={"uid": "uid-2"})
    table = here.ensure(work)
    assert Ownership.of(dict(table.properties())) == Ownership("uid-owned", "tests", "cluster-1")
    with pytest.raises(ConflictError, match="belongs to Kubernetes cluster cluster-1"):
        there.ensure(other)
    table.updateProperties().set("firn.adopt", "tests/owned").commit()
    assert Ownership.of(dict(there.ensure(other).properties())) == Ownership("uid-2", "tests", "cluster-2")
    with pytest.raises(ConflictError, match="belongs to Kubernetes cluster cluster-2"):
        here.ensure(work)
    catalogs.close()
