"""Topics whose log keeps no copy of what their table has."""

from typing import Any

import pytest

from firn.model.names import HISTORY, SINGLE
from firn.model.progress import HistoryProgress
from firn_controllers.cache.contracts import rules_of
from firn_controllers.fleet.diskless import config_map
from firn_controllers.ports import AclRule
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.test_diskless_fleet import fleet

STORE = {
    "url": "s3://lake/tables",
    "properties": {"aws_region": "eu-west-1"},
    "secretProperties": {"aws_access_key_id": {"secret": "lake", "key": "id"}},
    "tls": {"ca": {"secret": "lake-ca", "key": "ca.crt"}},
}
PROFILES: dict[str, dict[str, Any]] = {
    "classic": {},
    "waves": gen.diskless(directReads={}, history={"stores": [STORE], "workers": 2}),
    "closed": gen.diskless(directReads={}),
}
COPY_SPEC: dict[str, Any] = {"profile": "waves", "schema": {"raw": "Binary"}}
JSON_SCHEMA: dict[str, Any] = {"format": "Json", "fields": [{"name": "id", "type": "long"}]}
SINGLE_SPEC: dict[str, Any] = {**COPY_SPEC, "storage": {"history": "Single"}}


async def created(**given: Any) -> World:
    """Return a world with the topic."""
    live = World(gen.config(profiles=PROFILES))
    live.cluster.create(gen.topic("flights", **given))
    await live.settle()
    return live


async def change(live: World, **given: Any) -> None:
    live.cluster.edit("flights", lambda manifest: manifest.update(spec=given))
    await live.settle()


async def report(live: World, problem: str = "", untagged: dict[int, int] | None = None) -> None:
    live.driver.report_fields["uid-demo-flights"] = {"history": HistoryProgress(problem=problem, untagged=untagged)}
    await live.settle()


@pytest.mark.parametrize("schema", [{"raw": "Binary"}, JSON_SCHEMA])
async def test_topic_table_contract_and_rights_follow_the_spec(schema: dict[str, Any]) -> None:
    live = await created(**{**SINGLE_SPEC, "schema": schema})
    topic = live.topics.topics["waves", "flights"]
    assert live.conditions()["SpecValid"] == ("True", "Valid")
    assert (dict(topic.configs), live.job().table.history) == ({HISTORY: SINGLE}, SINGLE)
    alter = AclRule("Topic", "flights", "Literal", "Alter")
    assert alter in rules_of(live.job())
    await change(live, **{**COPY_SPEC, "schema": schema})
    assert (dict(live.topics.topics["waves", "flights"].configs), live.job().table.history) == ({}, "Copy")
    assert alter not in rules_of(live.job())
    assert "history" not in live.job().model_dump_json()


async def test_the_condition_follows_the_report_of_the_driver() -> None:
    live = await created(**SINGLE_SPEC)
    assert live.conditions()["SingleCopy"] == ("Unknown", "Pending")
    await report(live)
    assert live.conditions()["SingleCopy"] == ("True", "HistoryInTable")
    await report(live, "the brokers know no store of data files")
    assert live.conditions()["SingleCopy"] == ("False", "HistoryInLog")
    assert "the brokers know no store of data files" in live.message("SingleCopy")
    assert live.conditions()["Ready"] == ("True", "AllReady")
    await change(live, **COPY_SPEC)
    assert "SingleCopy" not in live.conditions()


async def test_a_dropped_tag_is_a_condition_until_no_record_depends_on_it() -> None:
    live = await created(**SINGLE_SPEC)
    await report(live, "no broker answers")
    assert live.conditions()["HistoryReadable"] == ("Unknown", "Pending"), "the driver has not asked the brokers yet"
    await report(live, untagged={})
    assert live.conditions()["HistoryReadable"] == ("True", "TagsHold")
    await report(live, untagged={3: 7, 1: 40})
    assert live.conditions()["HistoryReadable"] == ("False", "TagMissing")
    assert live.message("HistoryReadable").startswith("table lake.demo.flights: another client dropped tags firn-log-*")
    assert "for partitions 1, 3;" in live.message("HistoryReadable")
    assert live.conditions()["Ready"] == ("True", "AllReady")
    await report(live, "no broker answers")
    assert live.conditions()["HistoryReadable"] == ("False", "TagMissing"), "another driver has not asked them yet"
    await report(live, untagged=dict.fromkeys(range(12), 0))
    assert "partitions 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...;" in live.message("HistoryReadable")
    await report(live, untagged={})
    assert live.conditions()["HistoryReadable"] == ("True", "TagsHold")
    await change(live, **COPY_SPEC)
    assert "HistoryReadable" not in live.conditions()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"profile": "classic"}, "the brokers of profile classic do not read tables; set Copy, or create this"),
        ({"profile": "closed"}, "set Copy, or set profiles.closed.history in the operator's configuration"),
        (
            {
                "schema": {
                    "format": "Avro",
                    "text": '{"type":"record","name":"A","fields":[{"name":"id","type":"long"}]}',
                }
            },
            "brokers rebuild raw and JSON values only, and spec.schema has format Avro; set Copy",
        ),
        (
            {"schema": {**JSON_SCHEMA, "columns": [{"name": "id", "type": "long", "from": "$.id"}]}},
            "cannot rebuild the records of a JSON topic whose schema has columns; set Copy",
        ),
        ({"table": {"shared": True}}, "cannot rebuild the records of a table of several topics; set Copy"),
        ({"table": {"sortBy": ["_kafka.offset"]}}, "cannot rebuild the records of a sorted table; set Copy"),
        ({"config": {"cleanup.policy": "compact,delete"}}, "cannot rebuild the records of a compacted topic; set Copy"),
    ],
)
async def test_a_topic_that_brokers_cannot_rebuild_is_refused(given: dict[str, Any], message: str) -> None:
    live = await created(**{**SINGLE_SPEC, **given})
    assert live.conditions()["SpecValid"] == ("False", "InvalidSpec")
    assert live.message("SpecValid").startswith("spec.storage.history: ")
    assert message in live.message("SpecValid")


def test_brokers_get_the_stores_of_the_tables() -> None:
    managed = fleet(**PROFILES["waves"])
    assert config_map.settings(managed)["history"] == {
        "stores": [
            {
                "type": "bucket",
                "url": "s3://lake/tables",
                "config": {"aws_region": "eu-west-1"},
                "secretConfig": {"aws_access_key_id": "/etc/firn/secrets/lake/id"},
                "caFile": managed.profile.history.stores[0].tls.ca.path,  # type: ignore[union-attr]
            }
        ],
        "workers": 2,
    }
    assert "lake" in managed.secret_names
    assert [authority.path for authority in managed.authorities] == [managed.profile.history.stores[0].tls.ca.path]  # type: ignore[union-attr]
    assert "history" not in config_map.settings(fleet(directReads={}))


def test_history_without_direct_reads_is_refused() -> None:
    with pytest.raises(ValueError, match="history needs directReads"):
        gen.config(profiles={"classic": {}, "waves": gen.diskless(history={"stores": [STORE]})})


def test_the_first_replicas_are_history_brokers() -> None:
    assert config_map.settings(fleet(replicas=3, historyBrokers=1))["historyBrokers"] == 1
    assert "historyBrokers" not in config_map.settings(fleet())
