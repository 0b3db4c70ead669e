"""500 users and 5,000 topics: the number of calls follows the number of changes, not the product."""

import time

import pytest

from firn_controllers.ports import Manifest, PrincipalState
from firn_controllers.queue import Lane
from tests import gen
from tests.fakes.world import World

USERS, TOPICS, TEAMS = 500, 5_000, 50


def topic(number: int, team: int | None = None) -> Manifest:
    """Return an IcebergTopic that is Ready already: only users are reconciled here."""
    manifest = gen.topic(f"t{number}", profile="outside")
    manifest["metadata"]["labels"] = {"team": f"team-{number % TEAMS if team is None else team}"}
    manifest["status"] |= {"topicId": f"id-{number}", "topicName": f"t{number}", "observedGeneration": 1}
    return manifest


@pytest.fixture
def world() -> World:
    """Return a world whose queue has only users."""
    world = World(gen.with_users())
    for number in range(TOPICS):
        world.operator.topic_seen(topic(number))
    for number in range(USERS):
        selector = {"matchLabels": {"team": f"team-{number % TEAMS}"}}
        grants = [{"topics": [{"selector": selector}, {"name": f"t{number}"}], "roles": ["Consume"]}]
        world.cluster.create(gen.user(f"user-{number}", grants=grants))
    return world


async def reconciled(world: World) -> int:
    """Reconcile the waiting users until none waits. Return the number of reconciles."""
    schedule, count = world.operator.queue.schedule, 0
    for _ in range(4):
        schedule.release()
        while (key := schedule.start_next()) is not None:
            outcome = await world.operator.reconcile(key) if key[0] == "user" else None
            count += outcome is not None
            if outcome is not None:
                schedule.done(key, outcome)
        world.clock.advance(3.0)
    return count


@pytest.mark.slow
async def test_500_users_of_5000_topics_cost_calls_for_each_change_only(world: World) -> None:
    started = time.process_time()
    await reconciled(world)
    took = time.process_time() - started
    access, secrets = world.access.calls, world.secrets.calls
    assert (access["put_credential"], secrets["write"]) == (USERS, USERS)
    assert access["change_acls"] == USERS, "one call has all ACLs of a principal"
    assert access["describe"] <= 4 * USERS
    assert secrets["look"] == USERS
    assert took < 60, f"{took:.1f} s for the first reconciles of {USERS} users"
    state: PrincipalState = world.access.states["outside", "demo.user-7.a"]
    assert len(state.acls) == 2 * TOPICS // TEAMS + 1

    access.clear()
    world.operator.topic_seen(
        {**topic(7, team=8), "metadata": {**topic(7, team=8)["metadata"], "resourceVersion": "2"}}
    )
    assert await reconciled(world) == 2 * USERS // TEAMS, "the users of the team before and of the team after"
    assert access["change_acls"] <= 2 * USERS // TEAMS

    access.clear()
    for number in range(USERS):
        world.operator.user_events.wake(("demo", f"user-{number}"), Lane.ROUTINE)
    assert await reconciled(world) == USERS
    assert access == {"describe": USERS}, "nothing changed"
