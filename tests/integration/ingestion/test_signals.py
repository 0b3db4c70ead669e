"""A driver receives SIGTERM, or is frozen, during a round."""

import signal
import subprocess

import pytest

from firn.model.jobs import CatalogConnection
from firn_controllers.ingestion_group.stateful_set import GRACE_SECONDS
from tests.integration.ingestion.test_exactly_once import audit, await_all, some
from tests.integration.ingestion.world import World
from tests.servers.postgres import Postgres
from tests.servers.proxies.tcp import Proxy


def test_a_commit_completes_after_sigterm(world: World, lake: CatalogConnection, database: Postgres) -> None:
    with Proxy(database.port) as proxy:
        uri = lake.uri.replace(str(database.port), str(proxy.port))
        world.add_catalog(f"held_{world.suffix}", lake.model_copy(update={"uri": uri}))
        topic = world.topic()
        job = world.job(topic, table={"catalog": f"held_{world.suffix}"})
        world.produce(topic, some(0))
        world.apply(job)
        # The driver stops before the first of two commits of its round, and receives the signal when it continues.
        with world.spawn("before-dlq-commit=stop:1") as driver:
            driver.await_stopped()
            assert world.landed(job) == {0: 0}
            proxy.hold()
            driver.process.send_signal(signal.SIGTERM)
            driver.process.send_signal(signal.SIGCONT)
            # While the catalog does not answer, the commit cannot end, and the driver must not exit.
            with pytest.raises(subprocess.TimeoutExpired):
                driver.process.wait(3)
            proxy.release()
            assert driver.process.wait(GRACE_SECONDS) == 0, (world.directory / "driver.log").read_text()[-3000:]
        assert world.landed(job) == {0: 20}
        assert len(world.dead(job)) == 4
        audit(world, job, {0: 20})
        world.produce(topic, some(20))
        world.start()
        await_all(world, job, 40)
        audit(world, job, {0: 40})
        world.stop()
