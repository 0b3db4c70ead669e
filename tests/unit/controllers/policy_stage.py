"""Policies and topics in a world of fakes, and the questions of tests to it."""

from typing import Any

from firn.model import names
from firn_controllers.ports import Manifest
from firn_operator.adapters.kube.workloads import job_state
from tests import gen
from tests.fakes.world import World

COMPACTION, RETENTION = "CompactionPolicy", "RetentionPolicy"
ALL: dict[str, Any] = {"selector": {}}
UID = "uid-demo-flights"
HOURLY = {"cron": "0 * * * *"}
MANY: dict[str, Any] = {"small_files": 200, "due_files": 200, "due_bytes": 10 * 2**20, "data_files": 210}


async def world_with(*policies: Manifest, topics: tuple[Manifest, ...] = ()) -> World:
    """Return a world with ready topics and reconciled policies."""
    world = World()
    for topic in topics or (gen.topic(),):
        world.cluster.create(topic)
    await world.settle()
    for policy in policies:
        world.cluster.create(policy)
    await world.settle()
    return world


async def pass_time(world: World, seconds: int) -> None:
    """Advance the time while operator, pods, drivers and runs work."""
    for _ in range(seconds // 10):
        await world.step()
        world.clock.advance(10.0)


def jobs(world: World) -> list[Manifest]:
    return world.cluster.all("Job")


def active(world: World) -> list[Manifest]:
    return [job for job in jobs(world) if job_state(job).finished is None]


def maintenance(world: World, name: str = "flights") -> Manifest:
    section: Manifest = world.cluster.topic(name)["status"]["maintenance"]
    return section


def policy_status(world: World, name: str = "policy", kind: str = COMPACTION) -> Manifest:
    status: Manifest = world.cluster.resource(kind, name)["status"]
    return status


def annotate(world: World, value: str, name: str = "flights", kind: str = "IcebergTopic") -> None:
    def change(live: Manifest) -> None:
        live["metadata"].setdefault("annotations", {})[names.RUN_NOW] = value

    world.cluster.edit(name, change, spec=False, kind=kind)


def labelled(**labels: str) -> gen.Modifier:
    return lambda manifest: manifest["metadata"].update(labels=labels)


def governing(world: World, section: str = "compaction") -> tuple[str, str] | None:
    governed = (world.cluster.topic("flights")["status"].get("maintenance") or {}).get(section)
    return (governed["policy"], governed["because"]) if governed else None


WOULD = {
    "rows": {"files": 3, "bytes": 300, "items": 30, "sample": ["s3://firn/warehouse/demo/flights/data/a.parquet"]},
    "snapshots": {"files": 2, "bytes": 20, "items": 2, "sample": ["1", "2"]},
    "orphans": {"files": 0, "bytes": 0},
}


LEGAL: dict[str, Any] = {"rows": {"column": "at", "maxAge": "1d"}, "snapshots": {"maxAge": "7d"}, "mode": "Enforce"}


LEFT = {"outcome": "Unfinished", "message": "stopped: deadline"}
