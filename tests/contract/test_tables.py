"""Port `Tables` against real catalogs: SQL on PostgreSQL with local files and with S3, and REST (Nessie, and Iceberg's
own catalog) with S3."""

import asyncio
import contextlib
import itertools
import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pydantic
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, YearTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, ConflictError, InvalidSpecError, UnavailableError
from firn.model.jobs import CatalogConnection, Column, Evolution, RecordSchema, Rename, TableTarget
from firn.schemas.other_clients import SCHEMA_ID
from firn.tables import table_properties
from firn.tables.ownership import Claimant, Ownership
from firn_controllers.ports import Dropped, FoundTable
from firn_operator.adapters.iceberg.agreement import OWNER
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.adapters.iceberg.tables import CatalogTables
from tests.servers.iceberg_rest import IcebergRest
from tests.servers.nessie import Nessie
from tests.servers.postgres import Postgres
from tests.servers.process import free_port
from tests.servers.s3 import S3

_numbers = itertools.count()
JSON = RecordSchema(
    format="Json",
    fields=(
        Column(name="carrier", type="string", required=True, doc="Airline"),
        Column(name="delay", type="int"),
        Column(name="price", type="decimal(9, 2)"),
        Column(name="at", type="timestamptz"),
        Column(name="legs", type="list<struct<from: string, miles: int>>"),
        Column(name="tags", type="map<string, string>"),
    ),
)


def sql_connection(database: Postgres, warehouse: str, directory: Path, **properties: str) -> CatalogConnection:
    password = directory / "database-password"
    password.write_text(database.password)
    return CatalogConnection(
        type="sql",
        uri=database.uri,
        warehouse=warehouse,
        properties={"user": database.user, **properties},
        secret_properties={"password": str(password)},
    )


@pytest.fixture(scope="module", params=["sql-files", "sql-s3", "nessie", "iceberg-rest"])
def connection(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CatalogConnection:
    directory = tmp_path_factory.mktemp("catalog")
    if request.param == "nessie":
        nessie: Nessie = request.getfixturevalue("rest_catalog")
        return nessie.connection
    if request.param == "iceberg-rest":
        iceberg: IcebergRest = request.getfixturevalue("iceberg_catalog")
        return iceberg.connection
    database: Postgres = request.getfixturevalue("database")
    if request.param == "sql-files":
        return sql_connection(database, f"file://{directory}/warehouse", directory)
    storage: S3 = request.getfixturevalue("storage")
    connection = sql_connection(database, f"s3://{storage.bucket}/warehouse", directory, **storage.properties)
    secrets = {**connection.secret_properties, **storage.secret_properties}
    return connection.model_copy(update={"secret_properties": secrets})


def is_nessie(connection: CatalogConnection) -> bool:
    return connection.type == "rest" and "://" not in connection.warehouse


@pytest.fixture
def tables(connection: CatalogConnection) -> Iterator[CatalogTables]:
    port = CatalogTables({"lake": connection})
    yield port
    port.close()


@pytest.fixture
def catalog(connection: CatalogConnection) -> Catalog:
    return open_catalog("lake", connection)


@pytest.fixture
def target() -> TableTarget:
    number = next(_numbers)
    return TableTarget(catalog="lake", namespace=f"space{number}", name=f"orders{number}")


def changed(schema: RecordSchema, *columns: Column, without: str = "") -> RecordSchema:
    """Return the schema with these columns added, or in place of columns with the same name."""
    kept = [next((new for new in columns if new.name == old.name), old) for old in schema.fields if old.name != without]
    old_names = {old.name for old in schema.fields}
    return schema.model_copy(update={"fields": (*kept, *(new for new in columns if new.name not in old_names))})


async def test_the_check_of_the_catalog_passes(tables: CatalogTables) -> None:
    await tables.check("lake")


async def test_a_table_is_created_from_the_target(tables: CatalogTables, catalog: Catalog, target: TableTarget) -> None:
    wanted = target.model_copy(
        update={
            "partition_by": ("month(at)", "bucket(8, carrier)"),
            "sort_by": ("at desc nulls last", "carrier"),
            "properties": {"write.parquet.compression-codec": "zstd"},
        }
    )
    state = await tables.ensure(wanted, JSON, Claimant("uid-1"))
    assert state is not None
    assert (state.created, state.owner, state.format_version) == (True, None, 2)
    table = catalog.load_table((target.namespace, target.name))
    assert (str(table.metadata.table_uuid), table.metadata.location) == (state.uuid, state.location)
    assert [str(field.field_type) for field in table.schema().fields[:4]] == [
        "string", "int", "decimal(9, 2)", "timestamptz",
    ]  # fmt: skip
    assert [field.name for field in table.schema().fields] == [
        "carrier", "delay", "price", "at", "legs", "tags", "_kafka",
    ]  # fmt: skip
    assert [field.required for field in table.schema().fields] == [True] + [False] * 6
    assert table.schema().find_field("carrier").doc == "Airline"
    assert [(field.name, str(field.transform)) for field in table.spec().fields] == [
        ("at_month", "month"), ("carrier_bucket", "bucket[8]"),
    ]  # fmt: skip
    assert [(field.direction.value, field.null_order.value) for field in table.sort_order().fields] == [
        ("desc", "nulls-last"), ("asc", "nulls-first"),
    ]  # fmt: skip
    assert table.properties["write.parquet.compression-codec"] == "zstd"
    assert table.properties[OWNER] == "uid-1"


@pytest.mark.parametrize(("properties", "codec"), [({}, "zstd"), ({table_properties.CODEC: "gzip"}, "gzip")])
async def test_a_new_table_has_zstd_unless_the_spec_sets_another_codec(
    tables: CatalogTables, catalog: Catalog, target: TableTarget, properties: dict[str, str], codec: str
) -> None:
    wanted = target.model_copy(update={"properties": properties})
    assert await tables.ensure(wanted, JSON, Claimant("uid-1")) is not None
    assert catalog.load_table((target.namespace, target.name)).properties[table_properties.CODEC] == codec


async def test_a_table_may_be_partitioned_by_a_nested_column(
    tables: CatalogTables, connection: CatalogConnection, catalog: Catalog, target: TableTarget
) -> None:
    if is_nessie(connection):
        pytest.skip("Nessie 0.99 knows no partition fields of nested columns")
    await tables.ensure(target.model_copy(update={"partition_by": ("day(_kafka.timestamp)",)}), JSON, Claimant("uid-1"))
    table = catalog.load_table((target.namespace, target.name))
    assert [(field.name, str(field.transform)) for field in table.spec().fields] == [("_kafka.timestamp_day", "day")]


async def test_a_raw_table_may_have_flat_metadata_columns(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    flat = target.model_copy(update={"metadata_columns": "Flat", "partition_by": ("_kafka_partition",)})
    await tables.ensure(flat, RecordSchema(format="Raw"), Claimant("uid-1"))
    table = catalog.load_table((target.namespace, target.name))
    assert [field.name for field in table.schema().fields][:4] == ["key", "value", "_kafka_partition", "_kafka_offset"]
    assert [field.name for field in table.spec().fields] == ["_kafka_partition"]


async def test_topics_that_share_a_table_own_it_together(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    first, second = (
        (
            target.model_copy(update={"shared_by": name, "partition_by": ("month(at)",)}),
            Claimant(name, "demo", shared=True),
        )
        for name in ("eu", "us")
    )
    more = changed(JSON, Column(name="state", type="string"), without="price")
    created = await tables.ensure(first[0], JSON, first[1])
    joined = await tables.ensure(second[0], more, second[1])
    assert created is not None
    assert joined is not None
    assert (created.created, joined.created, joined.owner) == (True, False, names.SHARED)
    again = [await tables.ensure(first[0], JSON, first[1]), await tables.ensure(second[0], more, second[1])]
    assert [state.changed for state in again if state is not None] == [(), ()]
    table = catalog.load_table((target.namespace, target.name))
    assert {"price", "state"} <= {field.name for field in table.schema().fields}
    assert table.schema().find_type("_kafka.topic_id") == StringType()
    with pytest.raises(ConflictError, match="is shared by topics"):
        await tables.ensure(target, JSON, Claimant("alone", "demo"))
    assert await tables.drop(first[0], "eu") is None
    assert await tables.drop(first[0], names.SHARED) is not None


async def test_a_table_of_one_topic_cannot_be_shared(tables: CatalogTables, target: TableTarget) -> None:
    await tables.ensure(target, JSON, Claimant("alone", "demo"))
    shared = target.model_copy(update={"shared_by": "eu"})
    with pytest.raises(ConflictError, match="was made for one topic"):
        await tables.ensure(shared, JSON, Claimant("eu", "demo", shared=True))


async def test_consent_of_a_table_counts_once(tables: CatalogTables, catalog: Catalog, target: TableTarget) -> None:
    await tables.ensure(target, JSON, Claimant("uid-1", "shop", "orders", "cluster-1"))
    key = (target.namespace, target.name)
    with catalog.load_table(key).transaction() as change:
        change.set_properties({"firn.adopt": "demo/orders"})
    await tables.ensure(target, JSON, Claimant("uid-1", "shop", "orders", "cluster-1"))
    with pytest.raises(ConflictError):
        await tables.ensure(target, JSON, Claimant("uid-2", "demo", "other", "cluster-2"))
    await tables.ensure(target, JSON, Claimant("uid-2", "demo", "orders", "cluster-2"))
    properties = catalog.load_table(key).properties
    assert Ownership.of(properties) == Ownership("uid-2", "demo", "cluster-2")
    with pytest.raises(ConflictError):
        await tables.ensure(target, JSON, Claimant("uid-3", "demo", "orders", "cluster-3"))


async def test_an_equal_table_is_not_written(
    tables: CatalogTables, connection: CatalogConnection, catalog: Catalog, target: TableTarget
) -> None:
    wanted = target.model_copy(update={"partition_by": ("carrier",), "properties": {"a": "1"}})
    await tables.ensure(wanted, JSON, Claimant("uid-1"))
    before = catalog.load_table((target.namespace, target.name)).metadata_location
    fresh = CatalogTables({"lake": connection})
    states = [await port.ensure(wanted, JSON, Claimant("uid-1")) for port in (tables, tables, fresh, fresh)]
    fresh.close()
    assert all(state is not None and not state.created and state.changed == () for state in states)
    assert {state.owner for state in states if state is not None} == {"uid-1"}
    assert catalog.load_table((target.namespace, target.name)).metadata_location == before


async def test_concurrent_creators_create_one_table(
    connection: CatalogConnection, catalog: Catalog, target: TableTarget
) -> None:
    ports = [CatalogTables({"lake": connection}) for _ in range(3)]
    states = await asyncio.gather(*(port.ensure(target, JSON, Claimant("uid-1")) for port in ports for _ in range(2)))
    for port in ports:
        port.close()
    uuid = str(catalog.load_table((target.namespace, target.name)).metadata.table_uuid)
    assert {state.uuid for state in states if state is not None} == {uuid}
    assert sum(state.created for state in states if state is not None) == 1


async def test_columns_are_added_widened_and_made_optional(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    await tables.ensure(target, JSON, Claimant("uid-1"))
    wider = changed(
        JSON,
        Column(name="carrier", type="string", doc="Carrier's code"),
        Column(name="delay", type="long"),
        Column(name="price", type="decimal(12, 2)"),
        Column(name="legs", type="list<struct<from: string, miles: long, to: struct<city: string>>>"),
        Column(name="tail", type="map<string, struct<n: int>>"),
    )
    state = await tables.ensure(target, wider, Claimant("uid-1"))
    assert state is not None
    assert any("tail" in change for change in state.changed)
    schema = catalog.load_table((target.namespace, target.name)).schema()
    assert not schema.find_field("carrier").required
    assert schema.find_field("carrier").doc == "Carrier's code"
    assert [str(schema.find_field(name).field_type) for name in ("delay", "price", "legs.element.miles")] == [
        "long", "decimal(12, 2)", "long",
    ]  # fmt: skip
    assert schema.find_field("legs.element.to.city").field_type == StringType()
    assert schema.find_field("tail.value.n").field_type == IntegerType()
    again = await tables.ensure(target, wider, Claimant("uid-1"))
    assert again is not None
    assert again.changed == ()


async def test_columns_are_renamed_by_field_id(tables: CatalogTables, catalog: Catalog, target: TableTarget) -> None:
    """The driver may still have the earlier contract, so the table keeps the earlier names."""
    laid_out = target.model_copy(update={"partition_by": ("carrier",), "sort_by": ("carrier",)})
    claimant = Claimant("uid-1")
    await tables.ensure(laid_out, JSON, claimant)
    before = catalog.load_table((target.namespace, target.name)).schema()
    new = changed(
        JSON,
        JSON.fields[0].model_copy(update={"name": "airline"}),
        Column(name="note", type="string"),
        without="carrier",
    )
    new = new.model_copy(
        update={
            "renames": (
                Rename(old="carrier", new="airline"),
                Rename(old="legs.element.from", new="legs.element.origin"),
            )
        }
    )
    legs = next(column for column in JSON.fields if column.name == "legs")
    new = changed(new, legs.model_copy(update={"type": legs.type.replace("from:", "origin:")}))
    later = target.model_copy(update={"partition_by": ("airline",), "sort_by": ("airline",)})
    state = await tables.ensure(later, new, claimant)
    assert state is not None
    assert state.changed[:2] == ("column carrier renamed to airline", "column legs.element.from renamed to origin")
    table = catalog.load_table((target.namespace, target.name))
    for old, name in (("carrier", "airline"), ("legs.element.from", "legs.element.origin")):
        assert table.schema().find_field(name).field_id == before.find_field(old).field_id
    assert [(field.name, str(field.transform)) for field in table.spec().fields] == [("carrier", "identity")]
    assert len(table.metadata.snapshots) == 0
    for target_again, schema in ((later, new), (laid_out, JSON), (later, new.model_copy(update={"renames": ()}))):
        again = await tables.ensure(target_again, schema, claimant)
        assert again is not None
        assert again.changed == ()
    both = changed(new, Column(name="carrier", type="string"))
    with pytest.raises(InvalidSpecError, match="column 'airline' had this name before it was renamed") as refused:
        await tables.ensure(later, both.model_copy(update={"renames": ()}), claimant)
    assert refused.value.reason == Reason.INCOMPATIBLE_SCHEMA


async def test_proposed_changes_wait_for_their_approval(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    claimant = Claimant("uid-1")
    await tables.ensure(target, JSON, claimant)
    new = changed(JSON, Column(name="delay", type="long"), Column(name="note", type="string"))
    approve = ""
    for _ in range(2):
        policy = Evolution(add="Propose", approved="0123456789ab")
        state = await tables.ensure(target, new.model_copy(update={"evolution": policy}), claimant)
        assert state is not None
        assert state.proposed is not None
        assert (state.changed, state.proposed.changes) == ((), ("add column note: string",))
        approve = state.proposed.approve
    assert str(catalog.load_table((target.namespace, target.name)).schema().find_field("delay").field_type) == "int"
    policy = Evolution(add="Propose", approved=approve)
    state = await tables.ensure(target, new.model_copy(update={"evolution": policy}), claimant)
    assert state is not None
    assert (state.proposed, state.changed) == (None, ("column delay: int to long", "column note added: string"))
    wider = changed(new, Column(name="price", type="decimal(12, 2)")).model_copy(
        update={"evolution": Evolution(widen="Refuse")}
    )
    with pytest.raises(InvalidSpecError, match="widen column price: .*evolution.widen is Refuse") as refused:
        await tables.ensure(target, wider, claimant)
    assert refused.value.reason == Reason.INCOMPATIBLE_SCHEMA


async def test_partitioning_and_sort_order_wait_for_their_approval(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    claimant = Claimant("uid-1")
    laid_out = target.model_copy(update={"partition_by": ("months(at)",), "sort_by": ("at",)})
    schema = JSON.model_copy(update={"evolution": Evolution(partition="Propose", sort="Refuse")})
    await tables.ensure(laid_out, schema, claimant)
    same = await tables.ensure(laid_out, schema, claimant)
    assert same is not None
    assert (same.changed, same.proposed) == ((), None)
    with pytest.raises(InvalidSpecError, match="sort by carrier asc nulls first: .*evolution.sort is Refuse"):
        await tables.ensure(laid_out.model_copy(update={"sort_by": ("carrier",)}), schema, claimant)
    later = laid_out.model_copy(update={"partition_by": ("day(at)",)})
    state = await tables.ensure(later, schema, claimant)
    assert state is not None
    assert state.proposed is not None
    assert state.proposed.changes == ("partition by day(at)",)
    assert [field.name for field in catalog.load_table((target.namespace, target.name)).spec().fields] == ["at_month"]
    approved = Evolution(partition="Propose", sort="Refuse", approved=state.proposed.approve)
    state = await tables.ensure(later, schema.model_copy(update={"evolution": approved}), claimant)
    assert state is not None
    assert state.proposed is None
    table = catalog.load_table((target.namespace, target.name))
    assert [field.name for field in table.spec().fields] == ["at_day"]
    # Another engine partitions the table again. The approval was for another change.
    with table.update_spec() as update:
        update.remove_field("at_day")
        update.add_field("at", YearTransform())
    state = await tables.ensure(later, schema.model_copy(update={"evolution": approved}), claimant)
    assert state is not None
    assert state.proposed is not None
    assert state.proposed.changes == ("partition by day(at)",)
    assert state.proposed.approve != approved.approved


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("delay", "price", "column delay cannot be renamed to price, because another column has or had this name"),
        ("gone", "other", "there is no column gone to rename to other"),
        ("delay", "at_month", "column delay cannot be renamed to at_month, because a partition field has this name"),
    ],
)
async def test_a_rename_that_the_table_cannot_follow_is_refused(
    tables: CatalogTables, target: TableTarget, old: str, new: str, problem: str
) -> None:
    laid_out = target.model_copy(update={"partition_by": ("month(at)",)})
    await tables.ensure(laid_out, JSON, Claimant("uid-1"))
    renamed = JSON.model_copy(update={"renames": (Rename(old=old, new=new),)})
    with pytest.raises(InvalidSpecError, match=problem) as refused:
        await tables.ensure(laid_out, renamed, Claimant("uid-1"))
    assert refused.value.reason == Reason.INCOMPATIBLE_SCHEMA


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (Column(name="delay", type="string"), "delay.*int.*string"),
        (Column(name="price", type="decimal(9, 3)"), "price"),
        (Column(name="delay", type="int", required=True), "delay.*required"),
        (Column(name="fresh", type="int", required=True), "fresh.*required"),
        (Column(name="legs", type="list<struct<from: string, miles: string>>"), "legs.element.miles"),
        (Column(name="Carrier", type="string"), "Carrier.*case"),
    ],
)
async def test_incompatible_changes_of_an_owned_table_are_rejected(
    tables: CatalogTables, target: TableTarget, column: Column, problem: str
) -> None:
    await tables.ensure(target, JSON, Claimant("uid-1"))
    with pytest.raises(InvalidSpecError, match=f"{target.identifier}.*{problem}") as refusal:
        await tables.ensure(target, changed(JSON, column), Claimant("uid-1"))
    assert refusal.value.reason == Reason.INCOMPATIBLE_SCHEMA


async def test_partitioning_and_sort_order_evolve(tables: CatalogTables, catalog: Catalog, target: TableTarget) -> None:
    steps: list[tuple[tuple[str, ...], tuple[str, ...], list[str]]] = [
        (("month(at)", "bucket(8, carrier)"), (), ["month", "bucket[8]"]),
        (("day(at)", "bucket(16, carrier)"), ("at",), ["day", "bucket[16]"]),
        (("bucket(8, carrier)",), ("delay desc", "at"), ["bucket[8]"]),
        ((), (), []),
        (("month(at)", "truncate(2, carrier)"), (), ["month", "truncate[2]"]),
    ]
    for partition_by, sort_by, transforms in steps:
        wanted = target.model_copy(update={"partition_by": partition_by, "sort_by": sort_by})
        await tables.ensure(wanted, JSON, Claimant("uid-1"))
        table = catalog.load_table((target.namespace, target.name))
        assert [str(field.transform) for field in table.spec().fields] == transforms
        assert len(table.sort_order().fields) == len(sort_by)
        state = await tables.ensure(wanted, JSON, Claimant("uid-1"))
        assert state is not None
        assert state.changed == ()


async def test_the_sort_order_of_a_new_table_can_be_removed(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    for sort_by in (("at",), (), ("delay",), ()):
        await tables.ensure(target.model_copy(update={"sort_by": sort_by}), JSON, Claimant("uid-1"))
        order = catalog.load_table((target.namespace, target.name)).sort_order()
        assert len(order.fields) == len(sort_by)


async def test_an_adopted_table_keeps_a_layout_that_the_spec_leaves_out(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    def layout() -> tuple[list[str], int]:
        table = catalog.load_table((target.namespace, target.name))
        return [field.name for field in table.spec().fields], len(table.sort_order().fields)

    await tables.ensure(target, JSON, Claimant("uid-0"))
    table = catalog.load_table((target.namespace, target.name))
    with table.update_spec() as spec:
        spec.add_identity("carrier")
    with table.update_sort_order() as order:
        order.asc("at", IdentityTransform())
    await tables.ensure(target, JSON, Claimant("uid-1"))
    assert layout() == (["carrier"], 1)
    # An empty list removes the layout.
    await tables.ensure(target.model_copy(update={"sort_by": ()}), JSON, Claimant("uid-1"))
    assert layout() == (["carrier"], 0)
    # A layout that the spec set is removed with its field.
    await tables.ensure(target.model_copy(update={"partition_by": ("carrier",)}), JSON, Claimant("uid-1"))
    await tables.ensure(target, JSON, Claimant("uid-1"))
    assert layout() == ([], 0)


async def test_an_adopted_table_keeps_what_the_spec_of_an_earlier_owner_set(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    def kept() -> tuple[list[str], int, str | None]:
        table = catalog.load_table((target.namespace, target.name))
        fields = [field.name for field in table.spec().fields]
        return fields, len(table.sort_order().fields), table.properties.get("a")

    old = target.model_copy(update={"partition_by": ("carrier",), "sort_by": ("at",), "properties": {"a": "1"}})
    await tables.ensure(old, JSON, Claimant("uid-old"))
    for _ in range(2):
        state = await tables.ensure(target, JSON, Claimant("uid-new"))
        assert state is not None
        assert state.changed == ()
        assert kept() == (["carrier"], 1, "1")
    # What the spec of the new owner sets is removed with its fields, as ever.
    await tables.ensure(old.model_copy(update={"properties": {"a": "2"}}), JSON, Claimant("uid-new"))
    await tables.ensure(target, JSON, Claimant("uid-new"))
    assert kept() == ([], 0, None)


async def test_one_commit_adds_a_column_and_partitions_by_it(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    await tables.ensure(target, JSON, Claimant("uid-1"))
    wanted = target.model_copy(update={"partition_by": ("origin",)})
    await tables.ensure(wanted, changed(JSON, Column(name="origin", type="string")), Claimant("uid-1"))
    assert [field.name for field in catalog.load_table((target.namespace, target.name)).spec().fields] == ["origin"]


@pytest.mark.parametrize(
    ("partition_by", "reason", "problem"),
    [
        (("month(carrier)",), Reason.BAD_TRANSFORM, "month does not apply"),
        (("bucket(8, price", "x"), Reason.BAD_TRANSFORM, "bucket"),
        (("nobody",), Reason.UNKNOWN_COLUMN, "nobody"),
        (("legs",), Reason.BAD_TRANSFORM, "legs"),
        (("legs.element.miles",), Reason.BAD_TRANSFORM, "legs"),
        (("month(at)", "day(at)"), Reason.BAD_TRANSFORM, "repeats"),
        (("carrier", "carrier"), Reason.BAD_TRANSFORM, "repeats"),
    ],
)
async def test_impossible_partitioning_is_rejected_and_creates_no_table(
    tables: CatalogTables,
    catalog: Catalog,
    target: TableTarget,
    partition_by: tuple[str, ...],
    reason: Reason,
    problem: str,
) -> None:
    with pytest.raises(InvalidSpecError, match=problem) as refusal:
        await tables.ensure(target.model_copy(update={"partition_by": partition_by}), JSON, Claimant("uid-1"))
    assert refusal.value.reason == reason
    assert not catalog.table_exists((target.namespace, target.name))


async def test_properties_are_set_repaired_and_removed(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    wanted = target.model_copy(update={"properties": {"a": "1", "b": "2"}})
    await tables.ensure(wanted, JSON, Claimant("uid-1"))
    table = catalog.load_table((target.namespace, target.name))
    with table.transaction() as transaction:
        transaction.set_properties({"a": "changed", "theirs": "kept"})
    await tables.ensure(wanted.model_copy(update={"properties": {"a": "1"}}), JSON, Claimant("uid-1"))
    properties = catalog.load_table((target.namespace, target.name)).properties
    assert (properties["a"], properties["theirs"], properties.get("b")) == ("1", "kept", None)


async def test_offsets_in_the_properties_are_ignored(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    await tables.ensure(target, JSON, Claimant("uid-1"))
    await tables.ensure(target, JSON, Claimant("uid-1"))
    table = catalog.load_table((target.namespace, target.name))
    with table.transaction() as transaction:
        transaction.set_properties({"firn.offsets": '{"0":5}', "firn.epoch": "3", "firn.topic-id": "x"})
    state = await tables.ensure(target, JSON, Claimant("uid-1"))
    assert state is not None
    assert state.changed == ()
    assert catalog.load_table((target.namespace, target.name)).properties["firn.offsets"] == '{"0":5}'
    assert await tables.found(target) == FoundTable(Ownership("uid-1"), "x")


async def test_columns_that_another_client_renames_or_drops_are_followed(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    def table() -> Table:
        return catalog.load_table((target.namespace, target.name))

    claimant = Claimant("uid-1")
    for _ in range(2):
        await tables.ensure(target, JSON, claimant)
    ids = {name: table().schema().find_field(name).field_id for name in ("carrier", "legs.element.miles")}
    with table().update_schema() as update:
        update.delete_column("delay")
        update.rename_column("carrier", "airline")
    with table().update_schema() as update:
        update.rename_column("legs.element.miles", "distance")
    state = await tables.ensure(target, JSON, claimant)
    assert state is not None
    assert state.dropped == ("delay",)
    assert {text.split(" ")[1] for text in state.changed} == {"delay", "carrier", "legs.element.miles"}
    more = changed(JSON, Column(name="note", type="string"))
    for schema, made in ((JSON, ()), (more, ("column note added: string",)), (more, ())):
        again = await tables.ensure(target, schema, claimant)
        assert again is not None
        assert (again.changed, again.dropped) == (made, ("delay",))
    found = table().schema()
    assert found.find_field("airline").field_id == ids["carrier"]
    assert found.find_field("legs.element.distance").field_id == ids["legs.element.miles"]
    assert not {"carrier", "delay", "legs.element.miles"} & set(found.column_names)
    with table().update_schema() as update:
        update.add_column("delay", IntegerType())
    back = await tables.ensure(target, more, claimant)
    assert back is not None
    assert back.dropped == ()


async def test_a_column_that_the_layout_needs_is_not_proposed_for_a_drop(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    claimant = Claimant("uid-1")
    laid_out = target.model_copy(update={"partition_by": ("month(at)",), "sort_by": ("delay",)})
    await tables.ensure(laid_out, JSON, claimant)
    kept = tuple(field for field in JSON.fields if field.name in ("carrier", "legs"))
    policy = Evolution(drop="DropColumn")
    gone = JSON.model_copy(update={"fields": kept, "evolution": policy, "gone": ("at", "delay", "price", "tags", "x")})
    # The earlier terms stay in the history of the table.
    state = await tables.ensure(target.model_copy(update={"partition_by": ()}), gone, claimant)
    assert state is not None
    assert state.gone == ("price", "tags")
    assert state.droppable is not None
    assert state.droppable.changes == ("drop column price", "drop column tags")
    approved = policy.model_copy(update={"approved": state.droppable.approve})
    state = await tables.ensure(target, gone.model_copy(update={"evolution": approved}), claimant)
    assert state is not None
    assert (state.gone, state.droppable) == (("price", "tags"), None)
    names = {field.name for field in catalog.load_table((target.namespace, target.name)).schema().fields}
    assert names >= {"price", "tags"}, "the driver drops them"
    shared, several = (
        target.model_copy(update={"name": f"{target.name}_s", "shared_by": "orders"}),
        Claimant("", shared=True),
    )
    await tables.ensure(shared, JSON, several)
    state = await tables.ensure(shared, gone, several)
    assert state is not None
    assert (state.gone, state.droppable) == ((), None), "other topics may write the columns"


async def test_columns_whose_names_another_client_exchanges_are_refused(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    for _ in range(2):
        await tables.ensure(target, JSON, Claimant("uid-1"))
    with catalog.load_table((target.namespace, target.name)).update_schema() as update:
        update.delete_column("delay")
        update.rename_column("price", "delay")
    with pytest.raises(InvalidSpecError, match="renamed column price to delay, which was the name of another column"):
        await tables.ensure(target, JSON, Claimant("uid-1"))
    table = catalog.load_table((target.namespace, target.name))
    with table.transaction() as transaction:
        transaction.remove_properties(SCHEMA_ID)
    with pytest.raises(InvalidSpecError, match="column 'delay' is decimal"):
        await tables.ensure(target, JSON, Claimant("uid-1"))


async def test_a_table_dropped_by_another_client_is_recreated(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    first = await tables.ensure(target, JSON, Claimant("uid-1"))
    await tables.ensure(target, JSON, Claimant("uid-1"))
    catalog.drop_table((target.namespace, target.name))
    second = await tables.ensure(target, JSON, Claimant("uid-1"))
    assert first is not None
    assert second is not None
    assert second.created
    assert second.uuid != first.uuid


async def test_an_existing_table_is_adopted_and_gets_missing_columns(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    catalog.create_namespace(target.namespace)
    catalog.create_table(
        (target.namespace, target.name),
        Schema(
            NestedField(1, "carrier", StringType(), required=True), NestedField(2, "theirs", LongType(), required=False)
        ),
    )
    state = await tables.ensure(target, JSON, Claimant("uid-1"))
    assert state is not None
    assert (state.created, state.owner) == (False, None)
    table = catalog.load_table((target.namespace, target.name))
    assert {field.name for field in table.schema().fields} >= {"carrier", "theirs", "delay", "_kafka"}
    assert table.properties[OWNER] == "uid-1"
    other = await tables.ensure(target, JSON, Claimant("uid-2"))
    assert other is not None
    assert other.owner == "uid-1"


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (NestedField(1, "delay", StringType(), required=False), "delay"),
        (NestedField(1, "theirs", LongType(), required=True), "theirs.*required"),
    ],
)
async def test_an_incompatible_existing_table_is_not_changed(
    tables: CatalogTables, catalog: Catalog, target: TableTarget, field: NestedField, problem: str
) -> None:
    catalog.create_namespace(target.namespace)
    carrier = NestedField(2, "carrier", StringType(), required=True)
    before = catalog.create_table((target.namespace, target.name), Schema(field, carrier)).metadata_location
    with pytest.raises(InvalidSpecError, match=problem) as refusal:
        await tables.ensure(target, JSON, Claimant("uid-1"))
    assert refusal.value.reason == Reason.SCHEMA_INCOMPATIBLE
    assert catalog.load_table((target.namespace, target.name)).metadata_location == before


async def test_ensure_leaves_tables_of_version_3_to_the_driver(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    newer = target.model_copy(update={"format_version": 3})
    assert await tables.ensure(newer, JSON, Claimant("uid-1")) is None
    with pytest.raises(InvalidSpecError):
        await tables.ensure(newer.model_copy(update={"partition_by": ("nobody",)}), JSON, Claimant("uid-1"))
    await tables.ensure(target, JSON, Claimant("uid-1"))
    before = catalog.load_table((target.namespace, target.name)).metadata_location
    state = await tables.ensure(newer, changed(JSON, Column(name="more", type="int")), Claimant("uid-1"))
    assert state is not None
    assert state.format_version == 2
    assert catalog.load_table((target.namespace, target.name)).metadata_location == before


async def test_an_existing_table_of_version_3_is_read_and_not_written(
    tables: CatalogTables, catalog: Catalog, connection: CatalogConnection, target: TableTarget
) -> None:
    if is_nessie(connection):
        pytest.skip("made by hand, which Nessie does not take")
    await tables.ensure(target.model_copy(update={"name": "model"}), JSON, Claimant("uid-1"))
    model = catalog.load_table((target.namespace, "model"))
    document = json.loads(model.metadata.model_dump_json())
    document.update({"format-version": 3, "next-row-id": 0, "table-uuid": str(uuid.uuid4())})
    # PyIceberg does not know these types.
    foreign = {"type": "list", "element-id": 92, "element-required": False, "element": "variant"}
    for schema in document["schemas"]:
        schema["fields"] += [
            {"id": 90, "name": "shape", "required": False, "type": "geometry(srid:4326)"},
            {"id": 91, "name": "notes", "required": False, "type": foreign},
        ]
    place = model.metadata_location.replace(".metadata.json", "-v3.metadata.json")
    with model.io.new_output(place).create() as stream:
        stream.write(json.dumps(document).encode())
    with contextlib.suppress(
        pydantic.ValidationError, ValidationError
    ):  # PyIceberg cannot read the answer of a REST catalog.
        catalog.register_table((target.namespace, target.name), place)
    newer = target.model_copy(update={"format_version": 3})
    for wanted in (newer, target):
        state = await tables.ensure(wanted, changed(JSON, Column(name="more", type="int")), Claimant("uid-1"))
        assert state is not None
        assert (state.format_version, state.uuid, state.changed) == (3, document["table-uuid"], ())
    with pytest.raises(InvalidSpecError, match="delay"):
        await tables.ensure(newer, changed(JSON, Column(name="delay", type="string")), Claimant("uid-1"))
    with pytest.raises(
        InvalidSpecError, match=r"'shape' is geometry\(srid:4326\) in the table and string in the schema"
    ):
        await tables.ensure(newer, changed(JSON, Column(name="shape", type="string")), Claimant("uid-1"))
    assert await tables.ensure(newer, changed(JSON, Column(name="notes", type="list<variant>")), Claimant("uid-1"))
    assert catalog.load_table((target.namespace, target.name)).metadata_location == place


async def test_drop_deletes_table_dead_letters_and_files(
    tables: CatalogTables, catalog: Catalog, connection: CatalogConnection, target: TableTarget
) -> None:
    state = await tables.ensure(target, JSON, Claimant("uid-1"))
    assert state is not None
    dead = target.model_copy(update={"name": f"{target.name}__dlq"})
    table = catalog.load_table((target.namespace, target.name))
    place = table.metadata_location
    unnamed = [f"{table.location()}/data/at=1%3A2/left.parquet", f"{table.location()}/metadata/left-m0.avro"]
    for path in unnamed:
        with table.io.new_output(path).create() as stream:
            stream.write(b"left")
    await tables.ensure(dead, RecordSchema(format="Raw"), Claimant("uid-1"))
    await tables.drop(target, "somebody-else")
    assert catalog.table_exists((target.namespace, target.name))
    dropped = await tables.drop(target, "uid-1")
    assert not catalog.table_exists((target.namespace, target.name))
    assert not catalog.table_exists((dead.namespace, dead.name))
    # Other branches of the catalog may read the files.
    assert dropped == Dropped(files_kept=connection.has_own_references)
    assert [table.io.new_input(path).exists() for path in (place, *unnamed)] == [dropped.files_kept] * 3
    assert await tables.drop(target, "uid-1") is None


async def test_drop_deletes_dead_letters_of_any_owner_but_no_other_table(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    dead = target.model_copy(update={"name": f"{target.name}__dlq"})
    await tables.ensure(target, JSON, Claimant("uid-1"))
    await tables.ensure(dead, RecordSchema(format="Raw"), Claimant("uid-0"))
    assert await tables.drop(target, "uid-1")
    assert not catalog.table_exists((dead.namespace, dead.name))
    await tables.ensure(target, JSON, Claimant("uid-1"))
    place = catalog.create_table((dead.namespace, dead.name), Schema(NestedField(1, "other", StringType())))
    assert await tables.drop(target, "uid-1")
    assert not catalog.table_exists((target.namespace, target.name))
    assert catalog.load_table((dead.namespace, dead.name)).metadata_location == place.metadata_location


async def test_drop_keeps_the_files_of_a_table_whose_files_belong_to_another(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    """Iceberg's `snapshot` procedure makes such a table: its data files are those of the source table."""
    await tables.ensure(target, JSON, Claimant("uid-1"))
    table = catalog.load_table((target.namespace, target.name))
    with table.transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    place = catalog.load_table((target.namespace, target.name)).metadata_location
    assert await tables.drop(target, "uid-1") == Dropped(files_kept=True)
    assert not catalog.table_exists((target.namespace, target.name))
    assert table.io.new_input(place).exists()


async def test_a_table_that_was_never_adopted_is_not_dropped(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    catalog.create_namespace_if_not_exists(target.namespace)
    catalog.create_table((target.namespace, target.name), Schema(NestedField(1, "other", StringType())))
    await tables.drop(target, "uid-1")
    assert catalog.table_exists((target.namespace, target.name))


async def test_a_new_table_keeps_bounds_for_the_columns_of_kafka(
    tables: CatalogTables, catalog: Catalog, target: TableTarget
) -> None:
    await tables.ensure(target, JSON, Claimant("uid-1"))
    properties = catalog.load_table((target.namespace, target.name)).properties
    assert properties["write.metadata.metrics.column._kafka.offset"] == "full"


async def test_a_reserved_property_is_rejected(tables: CatalogTables, target: TableTarget) -> None:
    with pytest.raises(InvalidSpecError, match=r"firn\.offsets"):
        await tables.ensure(target.model_copy(update={"properties": {"firn.offsets": "{}"}}), JSON, Claimant("uid-1"))


async def test_a_stopped_database_is_unavailable(tmp_path: Path, target: TableTarget) -> None:
    port = CatalogTables({"lake": sql_connection(Postgres(free_port()), f"file://{tmp_path}", tmp_path)})
    with pytest.raises(UnavailableError, match="refused") as down:
        await port.check("lake")
    port.close()
    assert down.value.reason == Reason.CATALOG_UNREACHABLE


async def test_a_stopped_rest_server_is_unavailable(tmp_path: Path) -> None:
    connection = CatalogConnection(type="rest", uri=f"http://127.0.0.1:{free_port()}/", warehouse="w")
    port = CatalogTables({"lake": connection})
    with pytest.raises(UnavailableError):
        await port.check("lake")
    port.close()


async def test_a_wrong_password_is_denied_until_its_file_changes(database: Postgres, tmp_path: Path) -> None:
    connection = sql_connection(database, f"file://{tmp_path}", tmp_path)
    password = tmp_path / "database-password"
    password.write_text("wrong")
    port = CatalogTables({"lake": connection})
    with pytest.raises(AccessDeniedError, match="password"):
        await port.check("lake")
    password.unlink()
    password.write_text(database.password)
    await port.check("lake")
    port.close()


async def test_wrong_storage_credentials_are_access_denied(
    database: Postgres, storage: S3, tmp_path: Path, target: TableTarget
) -> None:
    properties = {**storage.properties, "s3.secret-access-key": "wrong"}
    connection = sql_connection(database, f"s3://{storage.bucket}/denied", tmp_path, **properties)
    port = CatalogTables({"lake": connection})
    with pytest.raises(AccessDeniedError, match=target.identifier):
        await port.ensure(target, JSON, Claimant("uid-1"))
    port.close()


async def test_an_error_of_stopped_storage_has_a_stable_text(
    database: Postgres, tmp_path: Path, target: TableTarget
) -> None:
    properties = {
        "s3.endpoint": f"http://127.0.0.1:{free_port()}",
        "s3.path-style-access": "true",
        "s3.access-key-id": "key",
        "s3.secret-access-key": "secret",
    }
    port = CatalogTables({"lake": sql_connection(database, "s3://firn/warehouse", tmp_path, **properties)})
    words = set()
    for _ in range(2):
        with pytest.raises(UnavailableError, match=target.identifier) as down:
            await port.ensure(target, JSON, Claimant("uid-1"))
        words.add(str(down.value))
    port.close()
    assert len(words) == 1, words
    assert properties["s3.endpoint"] in words.pop()
