"""The composition of the operator process."""

import pytest
from confluent_kafka.admin import NewTopic

from firn_operator.process import wiring
from tests import gen


@pytest.mark.parametrize("profile", ["classic", "outside"])
async def test_the_wiring_sets_the_replication_factor_of_new_topics(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fleet keeps its brokers when fewer are configured, so the configuration does not show how many exist."""
    asked: list[NewTopic] = []

    class Admin:
        def create_topics(self, topics: list[NewTopic], **_: object) -> dict[str, object]:
            asked.extend(topics)
            raise InterruptedError

    config = gen.config(profiles={"classic": {"replicas": 1}, "outside": {"bootstrapServers": "kafka.example:9092"}})
    topics = wiring.topics(config)
    monkeypatch.setattr(topics._profiles[profile], "admin", Admin)
    with pytest.raises(InterruptedError):
        await topics.create(profile, "flights", 3, {})
    assert [topic.replication_factor for topic in asked] == [-1]
