"""Events wake the right keys, and nothing is reconciled before all resources are listed."""

import asyncio

import pytest

from firn.model import names
from firn_controllers.cache.topics import topic_entry
from firn_controllers.conditions.announcements import EventReason, transitions
from firn_controllers.ports import Ports
from firn_controllers.queue import Key, Outcome
from firn_controllers.reconcile import Controllers
from tests import gen
from tests.fakes.world import World


@pytest.fixture
def controllers() -> Controllers:
    world = World()
    ports = Ports(world.topics, world.tables, world.cluster, world.progress, world.schemas, world.clock)
    return Controllers(gen.config(), "uid", ports, jitter=lambda: 0.5)


def woken(controllers: Controllers) -> set[Key]:
    keys = set()
    while (key := controllers.queue.schedule.start_next()) is not None:
        keys.add(key)
    return keys


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        ({names.LABEL_PROFILE: "classic"}, {("fleet", "classic")}),
        ({names.LABEL_GROUP: "default"}, {("group", "default")}),
        ({names.LABEL_GROUP: "default", names.LABEL_JOB: "uid"}, set()),
        ({names.LABEL_PROFILE: "nobody"}, set()),
        ({}, set()),
    ],
    ids=["a broker", "a driver", "a job contract", "a removed profile", "an object of another tool"],
)
def test_children_wake_their_owners(controllers: Controllers, labels: dict[str, str], keys: set[Key]) -> None:
    controllers.child_seen(labels)
    assert woken(controllers) == keys


def test_a_topic_wakes_itself_and_its_group(controllers: Controllers) -> None:
    controllers.topic_seen(gen.topic())
    assert woken(controllers) == {("topic", "demo", "flights"), ("group", "default")}


def test_a_topic_that_changes_its_group_wakes_both(controllers: Controllers) -> None:
    controllers.topic_seen(gen.topic())
    woken(controllers)
    for key in (("topic", "demo", "flights"), ("group", "default")):
        controllers.queue.schedule.done(key, Outcome())
    moved = gen.topic("flights", gen.generation(2), ingestion={"group": "big"})
    moved["metadata"]["resourceVersion"] = "2"
    controllers.topic_seen(moved)
    assert woken(controllers) == {("topic", "demo", "flights"), ("group", "default"), ("group", "big")}


def test_the_known_topics_after_a_start_do_not_delay_a_change(controllers: Controllers) -> None:
    known, changed = gen.topic("known"), gen.topic("changed", gen.generation(2))
    for topic in (known, changed):
        topic["status"]["observedGeneration"] = 1
        controllers.topic_seen(topic)
    begun = [controllers.queue.schedule.start_next() for _ in range(3)]
    assert begun == [("group", "default"), ("topic", "demo", "changed"), ("topic", "demo", "known")]


def test_the_answer_to_a_write_of_ours_wakes_the_policies_of_a_new_table(controllers: Controllers) -> None:
    controllers.policy_seen(gen.policy("all", selector={}))
    controllers.topic_seen(gen.topic())
    woken(controllers)
    controllers.queue.schedule.done(("policy", "CompactionPolicy", "demo", "all"), Outcome())
    created = gen.topic()
    created["status"]["table"] = {"uuid": "new"}
    controllers.topic_written(topic_entry(created, gen.config()))
    assert woken(controllers) == {("policy", "CompactionPolicy", "demo", "all")}


def test_a_late_event_does_not_restore_an_older_state(controllers: Controllers) -> None:
    newer = gen.topic("flights", gen.generation(2))
    newer["metadata"]["resourceVersion"] = "20"
    controllers.topic_seen(newer)
    older = gen.topic("flights", gen.generation(1))
    older["metadata"]["resourceVersion"] = "9"
    controllers.topic_seen(older)
    entry = controllers.topics.get(("demo", "flights"))
    assert entry is not None
    assert entry.generation == 2


async def test_nothing_is_reconciled_before_the_first_full_list(controllers: Controllers) -> None:
    controllers.topic_seen(gen.topic())
    running = asyncio.create_task(controllers.run())
    for _ in range(10):
        await asyncio.sleep(0)
    assert controllers.queue.schedule.working == 0
    controllers.stop()
    await running
    assert controllers.queue.depth > 0


def test_only_transitions_are_announced() -> None:
    def status(ready: str, halted: bool = False) -> dict[str, object]:
        reason = "BadRecordHalt" if halted else "Running"
        return {
            "conditions": [
                {"type": "Ready", "status": ready, "reason": "x", "message": "m"},
                {"type": "IngestionReady", "status": "False" if halted else "True", "reason": reason, "message": "i"},
            ]
        }

    assert [event.reason for event in transitions({}, status("True"))] == [EventReason.READY]
    assert transitions(status("True"), status("True")) == []
    assert [event.reason for event in transitions(status("True"), status("False", halted=True))] == [
        EventReason.NOT_READY,
        EventReason.HALTED,
    ]
    assert transitions(status("False", halted=True), status("False", halted=True)) == []
    assert transitions({}, status("False")) == [], "a topic that is not ready yet is no transition"
