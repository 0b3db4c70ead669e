"""Land records through every kind of catalog."""

from pathlib import Path

import pytest

from firn.model.errors import AccessDeniedError, InvalidSpecError, UnavailableError
from firn.model.jobs import CatalogConnection
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.java_tables import Tables
from tests.integration.ingestion.world import World, exactly, places, value
from tests.servers.iceberg_rest import IcebergRest
from tests.servers.nessie import Nessie


def lands_exactly_once(world: World, catalog: str, *versions: int) -> None:
    topic = world.topic(partitions=2)
    for version in versions:
        job = world.job(
            topic, uid=f"v{version}", table={"catalog": catalog, "name": f"v{version}", "format_version": version}
        )
        world.produce(topic, [b"bad" if number == 3 else value(number) for number in range(10)])
        world.apply(job)
        world.start()
        ends = {0: 10 * (version - 1)}
        world.await_offsets(
            lambda job=job, ends=ends: world.landed(job).get(0) == ends[0],  # type: ignore[misc]
            f"{ends} in version {version}",
            job,
        )
        assert places([*world.rows(job), *world.dead(job)]) == exactly(ends)
        # A second driver reads the offsets back.
        world.stop()
        world.start()
        state = world.await_state(job, "CaughtUp")
        assert state.rows == 0
        world.stop()
        world.remove(job)


def test_records_land_through_nessie(world: World, rest_catalog: Nessie) -> None:
    world.add_catalog(f"rest_{world.suffix}", rest_catalog.connection)
    # This version of the server does not support tables of format 3.
    lands_exactly_once(world, f"rest_{world.suffix}", 2)


def test_records_land_with_credentials_of_the_catalog(world: World, iceberg_catalog: IcebergRest) -> None:
    world.add_catalog(f"iceberg_{world.suffix}", iceberg_catalog.connection)
    lands_exactly_once(world, f"iceberg_{world.suffix}", 2, 3)


def test_a_denied_database_differs_from_an_unreachable_one(
    world: World, lake: CatalogConnection, tmp_path: Path
) -> None:
    (tmp_path / "wrong").write_text("wrong")
    wrong = {**lake.secret_properties, "password": str(tmp_path / "wrong")}
    catalogs = {
        "refused": lake.model_copy(update={"secret_properties": wrong}),
        "missing": lake.model_copy(update={"uri": lake.uri.replace("/postgres", "/ghost")}),
    }
    tables = Tables(Catalogs(world.spark, world.settings.model_copy(update={"catalogs": catalogs})))
    with pytest.raises(AccessDeniedError, match="password authentication failed"):
        tables.load("refused", "ns", "orders")
    with pytest.raises(UnavailableError, match='"ghost" does not exist'):
        tables.load("missing", "ns", "orders")


def test_catalog_properties_that_java_rejects_are_a_wrong_setting(world: World, lake: CatalogConnection) -> None:
    # PySpark raises its own exception for any IllegalArgumentException of Java.
    odd = lake.model_copy(update={"properties": {**lake.properties, "io-impl": "no.such.FileIO"}})
    tables = Tables(Catalogs(world.spark, world.settings.model_copy(update={"catalogs": {"odd": odd}})))
    with pytest.raises(InvalidSpecError, match=r"table odd\.ns\.orders: IllegalArgumentException: .*no\.such\.FileIO"):
        tables.load("odd", "ns", "orders")


def test_records_land_through_sqlite_and_local_files(world: World, tmp_path: Path) -> None:
    name = f"sqlite_{world.suffix}"
    connection = CatalogConnection(
        type="sql",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        warehouse=f"{tmp_path}/warehouse",
        properties={"clients": "1"},
    )
    world.add_catalog(name, connection)
    lands_exactly_once(world, name, 2, 3)
