"""The same path through every kind of catalog."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from firn.model.jobs import CatalogConnection
from tests.integration.ingestion.world import World, exactly, places, value
from tests.servers.nessie import Nessie, nessie
from tests.servers.s3 import S3


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory, storage: S3) -> Iterator[Nessie]:
    with nessie(tmp_path_factory.mktemp("nessie"), storage) as server:
        yield server


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
            lambda job=job, ends=ends: world.landed(job).get(0) == ends[0], f"{ends} in version {version}", job
        )  # type: ignore[misc]
        assert places([*world.rows(job), *world.dead(job)]) == exactly(ends)
        # A second driver finds the offsets again.
        world.stop()
        world.start()
        state = world.await_state(job, "CaughtUp")
        assert state.rows == 0
        world.stop()
        world.remove(job)


def test_rest_catalog(world: World, rest: Nessie) -> None:
    world.add_catalog(f"rest_{world.suffix}", rest.connection)
    # This server's version cannot keep tables of format 3.
    lands_exactly_once(world, f"rest_{world.suffix}", 2)


def test_sqlite_catalog_and_local_files(world: World, tmp_path: Path) -> None:
    name = f"sqlite_{world.suffix}"
    connection = CatalogConnection(
        type="sql",
        uri=f"sqlite:///{tmp_path}/catalog.db",
        warehouse=f"{tmp_path}/warehouse",
        properties={"clients": "1"},
    )
    world.add_catalog(name, connection)
    lands_exactly_once(world, name, 2, 3)
