"""The topics of a lost coordinator, from IcebergTopics and tables: names, ids, configs and landed offsets."""

import json
from typing import Any, cast

import pytest
from pyiceberg.table import Table

from firn.model.errors import InvalidSpecError
from firn_broker.maintenance.known_topics import KnownTopics
from firn_operator.cli.recovery_topics import known_topics
from tests import gen
from tests.unit.operator.test_audit import History

CONFIG = gen.config(profiles={"waves": gen.diskless(), "classic": {}})
ID, OTHER = "AAAAAAAAAAAAAAAAAAAABQ", "AAAAAAAAAAAAAAAAAAAABw"
TABLE = {"identifier": "lake.shop.orders"}


STATE = {"topic": "sales", "ready": "True", "reason": "AllReady", "fresh": "True"}


def topic(name: str = "orders", spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    found = {"profile": "waves", "topicName": f"shop.{name}", "topicId": ID, "partitions": 3, "table": TABLE, **status}
    return {**gen.topic(name, namespace="shop", **(spec or {})), "status": found}


def listed(
    *topics: dict[str, Any], tables: dict[str, History] | None = None, policy: dict[str, Any] | None = None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the topics and what the command reports. The broker's own model reads the topics."""
    reported: list[str] = []

    def look_up(name: str) -> Table | None:
        return cast("Table | None", (tables or {}).get(name))

    found = known_topics(
        CONFIG, "waves", list(topics), lambda _: policy, reported.append, None if tables is None else look_up
    )
    assert KnownTopics.model_validate_json(json.dumps(found)).topics is not None
    return found["topics"], reported


def test_topics_have_their_ids_and_landed_offsets() -> None:
    other = topic("other", profile="classic")
    (found,), reported = listed(topic(), other, tables={"lake.shop.orders": History((7, None, ID))})
    assert found == {"name": "shop.orders", "id": ID, "partitions": 3, "configs": {}, "next": {"0": 7}}
    assert reported == []


def test_the_greatest_offset_of_all_tables_counts() -> None:
    spec = {"routes": {"by": "$.kind", "tables": [{"name": "sales", "match": "sale"}]}}
    routed = topic(spec=spec, tables=[{"name": "sales", "identifier": "lake.shop.sales", **STATE}])
    part = topic("sales", spec={"route": {"of": "orders"}})
    tables = {"lake.shop.orders": History((3, None, ID)), "lake.shop.sales": History((9, None, ID))}
    (found,), reported = listed(routed, part, tables=tables)
    assert (found["next"], reported) == ({"0": 9}, [])


def test_what_is_left_out_is_reported() -> None:
    young, lost, again = topic("young", topicId=None), topic("lost"), topic("again", topicId=OTHER)
    wrong = topic("wrong", spec={"partitions": 0})
    again["status"]["table"] = {"identifier": "lake.shop.again"}
    found, reported = listed(young, lost, again, wrong, tables={"lake.shop.again": History((4, None, ID))})
    assert [each["next"] for each in found] == [{}, {}, {}]
    assert [text.partition(",")[0].partition(": Input")[0] for text in reported] == [
        "IcebergTopic shop/young is left out: its status names no Kafka topic; repeat the command when it is Ready",
        "IcebergTopic shop/lost: table lake.shop.orders does not exist",
        "IcebergTopic shop/again: the list has no landed offsets of table lake.shop.again: table demo.orders: the topic was created again",
        "IcebergTopic shop/wrong: table lake.shop.orders does not exist",
        "IcebergTopic shop/wrong: spec.partitions",
    ]


def test_without_tables_no_offset_is_known() -> None:
    (found,), reported = listed(topic())
    assert (found["next"], reported) == ({}, [])


GOVERNED = {"retention": {"policy": "short", "kind": "RetentionPolicy"}}
DAY = {"log": {"maxAge": "1d"}}


@pytest.mark.parametrize(
    ("config", "spec", "expected"),
    [
        ({}, DAY, {"retention.ms": "86400000"}),
        ({"retention.ms": "5"}, DAY, {"retention.ms": "5"}),
        ({"max.message.bytes": "7"}, {"rows": {"column": "at", "maxAge": "1d"}}, {"max.message.bytes": "7"}),
    ],
)
def test_topics_have_the_configs_that_the_operator_sets(
    config: dict[str, str], spec: dict[str, Any], expected: dict[str, str]
) -> None:
    policy = gen.policy(kind="RetentionPolicy", mode="Enforce", selector={}, **spec)
    (found,), reported = listed(topic(spec={"config": config}, maintenance=GOVERNED), policy=policy)
    assert (found["configs"], reported) == (expected, [])


@pytest.mark.parametrize("spec", [{**DAY, "mode": "DryRun"}, {**DAY, "mode": "Enforce", "suspend": True}, None])
def test_brokers_delete_nothing_while_the_retention_is_not_known(spec: dict[str, Any] | None) -> None:
    policy = spec and gen.policy(kind="RetentionPolicy", selector={}, **spec)
    (found,), (reported,) = listed(topic(spec={"config": {"retention.ms": "5"}}, maintenance=GOVERNED), policy=policy)
    assert found["configs"] == {"retention.ms": "5", "retention.bytes": "-1"}
    assert reported.startswith("IcebergTopic shop/orders: RetentionPolicy short sets no retention of the log now")


def test_a_topic_whose_history_is_in_its_table_stays_so() -> None:
    (found,), _ = listed(topic(spec={"storage": {"history": "Single"}}))
    assert found["configs"] == {"firn.history": "Single"}


def test_a_profile_that_does_not_exist_is_refused() -> None:
    with pytest.raises(
        InvalidSpecError, match=r"profile wave is not in the configuration, which has \['classic', 'waves'\]"
    ):
        known_topics(CONFIG, "wave", [], lambda _: None, print, None)
