"""The steps to the desired Kafka topic, and the holder of a claim."""

from dataclasses import replace
from typing import Any

import pytest

from firn.model.conditions import Reason
from firn.model.jobs import Adoption
from firn_controllers.cache.topics import TopicCache, topic_entry
from firn_controllers.iceberg_topic import plan
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.iceberg_topic.plan import AlterConfigs, CreateTopic, GrowTopic
from firn_controllers.ports import Manifest, TopicState
from tests import gen


@pytest.mark.parametrize(
    ("live", "partitions", "configs", "owned", "steps"),
    [
        pytest.param(None, None, {}, (), (CreateTopic(4, {}),), id="created with the partitions of the profile"),
        pytest.param(None, 9, {"a": "1"}, (), (CreateTopic(9, {"a": "1"}),), id="created as in the spec"),
        pytest.param(gen.topic_state(partitions=7), None, {}, (), (), id="partitions unset: not changed"),
        pytest.param(gen.topic_state(partitions=3), 3, {}, (), (), id="equal to the spec"),
        pytest.param(gen.topic_state(partitions=3), 5, {}, (), (GrowTopic(5),), id="grown"),
        pytest.param(gen.topic_state(partitions=9), 5, {}, (), (), id="never shrunk"),
        pytest.param(
            gen.topic_state(configs={"a": "1"}), None, {"a": "2", "b": "3"}, ("a",), (AlterConfigs({"a": "2", "b": "3"}, ()),), id="set"
        ),
        pytest.param(gen.topic_state(configs={"a": "1"}), None, {}, ("a",), (AlterConfigs({}, ("a",)),), id="unset"),
        pytest.param(gen.topic_state(configs={"a": "1"}), None, {}, (), (), id="another tool's config is not changed"),
        pytest.param(gen.topic_state(configs={}), None, {}, ("a",), (), id="unset already"),
        pytest.param(
            gen.topic_state(configs={"a": "compact,delete", "b": "0.5", "c": "true", "d": "9223372036854775807"}),
            None,
            {"a": "compact, delete", "b": "0.50", "c": "TRUE", "d": "9223372036854775807"},
            (),
            (),
            id="the same value as Kafka writes it",
        ),
        pytest.param(
            gen.topic_state(configs={"d": "9223372036854775807"}), None, {"d": "9223372036854775806"}, (),
            (AlterConfigs({"d": "9223372036854775806"}, ()),), id="large numbers differ in their last digit",
        ),
    ],
)  # fmt: skip
def test_the_plan_has_the_steps_to_the_desired_topic(
    live: TopicState | None,
    partitions: int | None,
    configs: dict[str, str],
    owned: tuple[str, ...],
    steps: tuple[plan.TopicStep, ...],
) -> None:
    planned = plan.topic(live, partitions, 4, configs, frozenset(owned))
    assert planned == steps
    if live is not None:
        assert plan.topic(plan.after(planned, live), partitions, 4, configs, frozenset(owned)) == (), (
            "a second plan has no steps"
        )


def resource(name: str, created: str = "2026-03-01T10:00:00Z", **spec: Any) -> Manifest:
    manifest = gen.topic(name, **spec)
    manifest["metadata"]["creationTimestamp"] = created
    return manifest


def put(index: TopicCache, manifest: Manifest) -> set[str]:
    return {name for _, name in index.put(topic_entry(manifest, gen.config()))}


def test_the_oldest_holds_a_claim_and_uid_settles_ties() -> None:
    index = TopicCache()
    put(index, resource("b", topicName="t"))
    put(index, resource("a", topicName="t"))
    put(index, resource("c", "2026-03-01T09:00:00Z", topicName="t"))
    claim = topic_entry(resource("a", topicName="t"), gen.config()).topic_claim
    assert claim is not None
    holder = index.holder(claim)
    assert holder is not None
    assert holder.name == ("demo", "c")
    index.remove(("demo", "c"), "uid-demo-c")
    holder = index.holder(claim)
    assert holder is not None
    assert holder.name == ("demo", "a")


def test_profiles_of_one_kafka_share_its_topics() -> None:
    config = gen.config(profiles={"classic": {"bootstrapServers": "k:1"}, "again": {"bootstrapServers": "k:1"}})
    first, second = (topic_entry(resource("a", profile=profile), config) for profile in ("classic", "again"))
    assert first.topic_claim == second.topic_claim


def test_only_rivals_wake_when_a_claim_appears_or_disappears() -> None:
    index = TopicCache()
    assert put(index, resource("a", topicName="t")) == {"a"}
    assert put(index, resource("other")) == {"other"}
    assert put(index, resource("b", topicName="t")) == {"a", "b"}
    affected = index.remove(("demo", "a"), "uid-demo-a")
    assert {name for _, name in affected} == {"a", "b"}


def test_a_status_change_alone_wakes_no_topic() -> None:
    index = TopicCache()
    put(index, resource("a"))
    again = resource("a")
    again["status"] = {"observedGeneration": 1}
    again["metadata"]["resourceVersion"] = "2"
    again["metadata"]["annotations"] = {"team": "x"}
    assert put(index, again) == set()
    entry = index.get(("demo", "a"))
    assert entry is not None
    assert entry.resource_version == "2"


def test_new_labels_wake_a_topic() -> None:
    index = TopicCache()
    put(index, resource("a"))
    again = resource("a")
    again["metadata"]["labels"] = {"team": "x"}
    assert put(index, again) == {"a"}


def test_a_recreated_resource_leaves_the_old_uid_to_be_cleared() -> None:
    index = TopicCache()
    put(index, resource("a"))
    again = resource("a")
    again["metadata"]["uid"] = "uid-2"
    assert put(index, again) == {"a"}
    assert index.deleted_uids(("demo", "a")) == {"uid-demo-a"}
    index.clear_deleted(("demo", "a"), "uid-demo-a")
    assert index.deleted_uids(("demo", "a")) == frozenset()


def test_the_contract_names_the_first_table_of_the_resource_after_another_replaced_it() -> None:
    def first(observed: ObservedTopic, table_uuid: str | None) -> str | None:
        wanted = plan.contract(
            observed, "topic-id", table_agreed=True, topic_origin=None, table_origin=None, table_uuid=table_uuid
        )
        assert wanted is not None
        return wanted.job.first_table

    assert first(gen.observed(), None) is None, "the driver creates the table"
    assert first(gen.observed(), "a") == "a"
    assert first(gen.observed(gen.topic("flights", with_table("a"))), "b") == "a", (
        "the contract is lost, or of an earlier version"
    )
    observed = gen.observed(gen.topic("flights", with_table("b")), job=True)
    assert observed.job is not None
    kept = replace(observed.job, job=observed.job.job.model_copy(update={"first_table": "a"}))
    assert first(replace(observed, job=kept), "c") == "a"


def test_the_contract_says_whether_the_resource_created_its_topic() -> None:
    def created(origin: str | None) -> bool:
        wanted = plan.contract(gen.observed(), "topic-id", table_agreed=True, topic_origin=origin, table_origin=None)
        assert wanted is not None
        return wanted.job.topic_created

    assert [created(origin) for origin in (Reason.CREATED, Reason.ADOPTED, None)] == [True, False, False]


def test_the_contract_carries_the_retention_of_the_log() -> None:
    configs = {"retention.ms": "3600000", "retention.bytes": "-1"}
    wanted = plan.contract(
        gen.observed(), "topic-id", table_agreed=True, topic_origin=None, table_origin=None, configs=configs
    )
    assert wanted is not None
    assert (wanted.job.retention_ms, wanted.job.retention_bytes) == (3_600_000, None)


def with_table(uuid: str) -> gen.Modifier:
    return lambda manifest: manifest["status"].update(table={"uuid": uuid})


def test_the_contract_carries_the_adoption_of_the_spec() -> None:
    adopt = {"topicId": "id-old", "offsets": [{"partition": 0, "offset": 7}]}
    observed = gen.observed(gen.topic(ingestion={"adopt": adopt}))
    wanted = plan.contract(observed, "topic-id", table_agreed=True, topic_origin=None, table_origin=None)
    assert wanted is not None
    assert wanted.job.adopt == Adoption(topic_id="id-old", offsets={0: 7})
