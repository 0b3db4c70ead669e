"""The state of a fleet names some of the topics whose replicas lag, so that a user finds the one that holds a roll-out."""

from types import SimpleNamespace

import pytest

from firn.model.jobs import KafkaConnection
from firn_controllers.ports import FleetState
from firn_operator.adapters.kafka.topics import Brokers, KafkaTopics, ProfileClients


def partition(isrs: list[int], leader: int = 1) -> SimpleNamespace:
    return SimpleNamespace(replicas=[1, 2, 3], isrs=isrs, leader=leader)


def topic(*partitions: SimpleNamespace) -> SimpleNamespace:
    return SimpleNamespace(partitions=dict(enumerate(partitions)))


async def test_the_fleet_names_some_topics_with_lagging_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, short, leaderless = partition([1, 2, 3]), partition([1]), partition([1, 2, 3], leader=-1)
    topics = {
        "well": topic(whole, whole),
        "d": topic(short),
        "c": topic(short, whole, short),
        "b": topic(leaderless),
        "a": topic(whole, short),
    }
    answer = SimpleNamespace(brokers={1: None, 2: None, 3: None}, topics=topics)
    admin = SimpleNamespace(list_topics=lambda timeout: answer)
    monkeypatch.setattr(ProfileClients, "admin", lambda clients: admin)
    kafka = KafkaTopics({"classic": Brokers(KafkaConnection(bootstrap_servers="k:1"))})
    assert await kafka.fleet("classic", replicas=True) == FleetState(3, 5, ("a", "b", "c"))
