"""From a policy to a run to the status of both sides, with fakes behind the ports."""

from typing import Any

from firn.model import names
from firn_controllers.ports import Manifest
from tests import gen
from tests.fakes.world import World

COMPACTION, RETENTION = "CompactionPolicy", "RetentionPolicy"
ALL: dict[str, Any] = {"selector": {}}
UID = "uid-demo-flights"
MANY = {"small_files": 200, "due_files": 200, "due_bytes": 10 * 2**20, "data_files": 210}


async def world_with(*policies: Manifest, topics: tuple[Manifest, ...] = ()) -> World:
    """Topics that are ready, and policies that were looked at."""
    world = World()
    for topic in topics or (gen.topic(),):
        world.cluster.create(topic)
    await world.settle()
    for policy in policies:
        world.cluster.create(policy)
    await world.settle()
    return world


def jobs(world: World) -> list[Manifest]:
    return world.cluster.all("Job")


def maintenance(world: World, name: str = "flights") -> Manifest:
    found: Manifest = world.cluster.topic(name)["status"]["maintenance"]
    return found


def policy_status(world: World, name: str = "policy", kind: str = COMPACTION) -> Manifest:
    found: Manifest = world.cluster.resource(kind, name)["status"]
    return found


def annotate(world: World, value: str, name: str = "flights", kind: str = "IcebergTopic") -> None:
    def change(live: Manifest) -> None:
        live["metadata"].setdefault("annotations", {})[names.RUN_NOW] = value

    world.cluster.edit(name, change, spec=False, kind=kind)


async def test_small_files_lead_to_a_run_and_both_sides_say_what_came_of_it() -> None:
    world = await world_with(gen.policy(**ALL))
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")
    assert world.conditions()["MaintenanceHealthy"] == ("True", "NotDue")
    assert not jobs(world)
    world.maintainer.says[UID] = {"commits": 1, "files_before": 200, "files_after": 1, "bytes_rewritten": 10 * 2**20}
    world.owes(**MANY)
    await world.settle()
    (job,) = jobs(world)
    (run,) = world.maintainer.done
    (table,) = run.tables
    assert (table.uid, table.table_uuid) == (UID, world.tables.tables["lake.demo.flights"].uuid)
    assert table.compaction is not None
    assert table.retention is None
    assert set(run.catalogs) == {"lake"}
    bound = maintenance(world)["compaction"]
    assert (bound["policy"], bound["because"]) == ("policy", "Selected")
    assert bound["lastRun"] == {
        "name": job["metadata"]["name"],
        "startTime": bound["lastRun"]["startTime"],
        "finishTime": bound["lastRun"]["finishTime"],
        "result": "Succeeded",
        "commits": 1,
        "filesBefore": 200,
        "filesAfter": 1,
        "bytesRewritten": 10 * 2**20,
        "deleteFilesRemoved": 0,
    }
    assert world.conditions()["MaintenanceHealthy"] == ("True", "Succeeded")
    status = policy_status(world)
    assert (status["topics"], status["lastRun"]["tables"], status["lastRun"]["filesAfter"]) == (1, 1, 1)
    assert "activeRuns" not in status
    assert world.conditions("policy", kind=COMPACTION)["Ready"] == ("True", "AllReady")
    reasons = [(name, reason) for name, reason, _ in world.cluster.events]
    assert ("policy", "RunStarted") in reasons
    assert ("policy", "Compacted") in reasons
    assert ("flights", "Compacted") in reasons
    assert world.conditions()["Ready"] == ("True", "AllReady")
