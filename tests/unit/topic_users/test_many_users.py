"""500 users and 5,000 topics: the number of calls follows the number of changes, not the product."""

import gc
import json
import resource
import time

import pytest

from firn_controllers.ports import Manifest, PrincipalState
from firn_controllers.queue import Lane
from tests import gen
from tests.fakes.world import World
from tests.listed_messages import check_listed

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


class Figures(dict[str, float]):
    """CPU seconds of the steps. With the ports in memory, a reconcile holds the event loop from its begin to its end."""

    def timed(self, name: str, seconds: float, longest: float) -> None:
        self[name] = round(seconds, 2)
        self[f"{name}, the longest"] = round(longest, 3)


async def reconciled(world: World, figures: Figures, name: str) -> int:
    """Reconcile the waiting users until none waits. Return the number of reconciles."""
    # The pauses of the garbage collector depend on the objects of all tests before this one.
    gc.collect()
    gc.disable()
    try:
        schedule, count, longest, started = world.operator.queue.schedule, 0, 0.0, time.thread_time()
        for _ in range(4):
            schedule.release()
            while (key := schedule.start_next()) is not None:
                begun = time.thread_time()
                outcome = await world.operator.reconcile(key) if key[0] == "user" else None
                longest = max(longest, time.thread_time() - begun)
                count += outcome is not None
                if outcome is not None:
                    schedule.done(key, outcome)
            world.clock.advance(3.0)
        figures.timed(name, time.thread_time() - started, longest)
    finally:
        gc.enable()
    return count


@pytest.mark.slow
async def test_500_users_of_5000_topics_cost_calls_for_each_change_only(world: World) -> None:
    figures = Figures()
    # The fakes compile the patterns of all messages at the first one.
    check_listed("the spec is valid")
    await reconciled(world, figures, "first reconciles")
    access, secrets = world.access.calls, world.secrets.calls
    assert (access["put_credential"], secrets["write"]) == (USERS, USERS)
    assert access["change_acls"] == USERS, "one call has all ACLs of a principal"
    assert access["describe"] <= 4 * USERS
    assert secrets["look"] == USERS
    state: PrincipalState = world.access.states["outside", "demo.user-7.a"]
    assert len(state.acls) == 2 * TOPICS // TEAMS + 1

    access.clear()
    world.operator.topic_seen(
        {**topic(7, team=8), "metadata": {**topic(7, team=8)["metadata"], "resourceVersion": "2"}}
    )
    changed = await reconciled(world, figures, "a label of a topic")
    assert changed == 2 * USERS // TEAMS, "the users of the team before and of the team after"
    assert access["change_acls"] <= 2 * USERS // TEAMS

    access.clear()
    for number in range(USERS):
        world.operator.user_events.wake(("demo", f"user-{number}"), Lane.ROUTINE)
    assert await reconciled(world, figures, "nothing changed") == USERS
    assert access == {"describe": USERS}, "nothing changed"

    world.cluster.create(gen.user("reader", grants=[{"topics": [{"selector": {}}], "roles": ["Produce", "Consume"]}]))
    await reconciled(world, figures, "a user of all topics")
    assert len(world.access.states["outside", "demo.reader.a"].acls) == 3 * TOPICS + 1
    figures["peak memory in MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(figures))  # docs/performance.md has them
    assert figures["first reconciles"] < 60
    # Other reconciles and probes wait for so long.
    for step in ("first reconciles", "a label of a topic", "nothing changed"):
        assert figures[f"{step}, the longest"] < 0.2, "a user of 100 topics does not stall the operator"
    assert figures["a user of all topics, the longest"] < 0.5
