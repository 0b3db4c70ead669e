"""The main story: apply a manifest, produce with an ordinary client, query with an engine that is not Spark."""

import json

from hack import quickstart
from hack.quickstart import SYSTEM, apply, get, kubectl
from tests.e2e.commands import firn
from tests.e2e.topics import Produce, await_condition, await_ready, await_rows, numbered, rows, topic_manifest


def test_flights_become_typed_rows_and_pass_the_audit(release: None) -> None:
    quickstart.apply_sample("flights")
    topic = await_ready("flights", "demo", timeout=420)
    before = rows("select count(*) as n from lake.demo.flights")[0]["n"]
    produced = quickstart.produce_flights("flights", topic["status"]["bootstrapServers"], limit=5_000)
    await_rows("lake.demo.flights", before + produced.count, timeout=180)
    columns = "typeof(time_hour) as at, typeof(flight) as flight, typeof(dep_delay) as delay"
    query = f"select {columns} from lake.demo.flights limit 1"
    # A process of `firn` of its own runs the query and the audit, as for a person.
    sample = json.loads(quickstart.firn("sql", "--output", "json", query))[0]
    assert sample["at"].startswith("TIMESTAMP")
    assert sample["flight"] in ("INTEGER", "BIGINT")
    quickstart.firn("audit", "demo/flights")


def test_a_topic_has_a_table_before_the_first_record(namespace: str) -> None:
    apply(topic_manifest("empty", namespace))
    topic = await_ready("empty", namespace)
    assert rows(f"select count(*) as n from {topic['status']['table']['identifier']}") == [{"n": 0}]
    await_condition("empty", namespace, "Fresh", "Unknown", "NoRecords")


def test_the_driver_maps_the_class_archive_of_its_image(namespace: str) -> None:
    apply(topic_manifest("mapped", namespace))
    await_ready("mapped", namespace)
    search = "grep -l /opt/firn/classes.jsa /proc/[0-9]*/maps"
    execute = ("-n", SYSTEM, "exec", "firn-ingest-default-0", "--", "sh", "-c")
    assert kubectl(*execute, search, check=False).strip(), (
        "no process maps /opt/firn/classes.jsa: the driver's class path may differ from that of the image build"
    )


def test_bad_records_become_dead_letters_with_bytes_and_reason(namespace: str, produce: Produce) -> None:
    apply(topic_manifest("mixed", namespace))
    topic = await_ready("mixed", namespace)
    bad = [
        {"key": "bad", "value": value}
        for value in (
            '{"id": 1',
            '{"id": "one"}',
            '{"id": 9223372036854775808}',
            "garbage",
            '{"note": "no id"}',
            "[" * 5_000,
        )
    ]
    produce(topic, numbered(0, 500) + bad + numbered(500, 500))
    table = topic["status"]["table"]["identifier"]
    await_rows(table, 1_000)
    await_rows(f"{table}__dlq", len(bad))
    letters = rows(f"select error_code, error_stage, error_path, decode(value) as value from {table}__dlq")
    assert {letter["value"] for letter in letters} == {record["value"] for record in bad}
    await_condition("mixed", namespace, "RecordsAccepted", "True", "SomeRejected")
    assert all(letter["error_code"] and letter["error_stage"] in ("Decode", "Schema") for letter in letters)
    firn("audit", f"{namespace}/mixed")


def test_a_halted_topic_names_the_record_and_resumes_on_request(namespace: str, produce: Produce) -> None:
    apply(topic_manifest("strict", namespace, partitions=1, ingestion={"freshness": "5s", "onBadRecord": "Halt"}))
    topic = await_ready("strict", namespace)
    produce(topic, [*numbered(0, 10), {"value": "garbage"}, *numbered(10, 10)])
    halted = await_condition("strict", namespace, "IngestionReady", "False", "BadRecordHalt")
    assert halted["status"]["ingestion"]["haltedAt"] == {"partition": 0, "offset": 10}
    table = topic["status"]["table"]["identifier"]
    await_rows(table, 10)
    quickstart.kubectl("-n", namespace, "annotate", "icebergtopic", "strict", "firn.dev/resume=skip")
    await_rows(table, 20)
    await_rows(f"{table}__dlq", 1)
    await_ready("strict", namespace)


def test_new_fields_become_columns_without_a_restart(namespace: str, produce: Produce) -> None:
    apply(topic_manifest("growing", namespace))
    topic = await_ready("growing", namespace)
    driver = get("pod", "firn-ingest-default-0")
    assert driver is not None
    produce(topic, numbered(0, 10))
    manifest = topic_manifest("growing", namespace)
    manifest["spec"]["schema"]["fields"].append({"name": "price", "type": "decimal(9,2)"})
    manifest["spec"]["partitions"] = 4
    apply(manifest)
    topic = await_ready("growing", namespace)
    assert topic["status"]["partitions"] == 4
    produce(topic, [{"value": json.dumps({"id": 100 + i, "price": "12.30"})} for i in range(10)])
    table = topic["status"]["table"]["identifier"]
    await_rows(table, 20)
    assert rows(f"select count(price) as priced, cast(max(price) as varchar) as price from {table}") == [
        {"priced": 10, "price": "12.30"}
    ]
    after = get("pod", "firn-ingest-default-0")
    assert after is not None
    assert after["metadata"]["uid"] == driver["metadata"]["uid"]
