"""The report of ``firn status`` for many statuses, and its lines on the screen."""

import json
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import pytest

from firn.model.conditions import ConditionType
from firn_operator.cli.resources import report as reports
from firn_operator.cli.resources import screen, terminal
from firn_operator.cli.resources.terminal import Line
from tests import gen

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
Manifest = dict[str, Any]
STATUS: Manifest = {
    "observedGeneration": 1,
    "profile": "classic",
    "topicName": "orders",
    "topicId": "kafka-id",
    "partitions": 6,
    "bootstrapServers": "kafka:9092",
    "table": {
        "identifier": "lake.demo.orders",
        "uuid": "table-1",
        "location": "s3://firn/orders",
        "deadLetters": "lake.demo.orders__dlq",
    },
    "ingestion": {
        "group": "big",
        "deadLetters": 1200,
        "lastCommitTime": "2026-03-01T11:59:18Z",
        "lag": {"records": 41200, "seconds": 150, "time": "2026-03-01T11:59:20Z"},
        "haltedAt": {"partition": 2, "offset": 71},
    },
    "tables": [
        {
            "name": "refunds",
            "topic": "orders-refunds",
            "identifier": "lake.demo.refunds",
            "ready": "True",
            "reason": "AllReady",
            "fresh": "True",
            "lastCommitTime": "2026-03-01T11:59:18Z",
            "deadLetters": 3,
        }
    ],
    "losses": [{"name": "1-abc", "offsets": 5000, "ranges": "partition 0, offsets 1 to 5000: the log deleted them"}],
    "maintenance": {
        "dataFiles": 4000,
        "dataBytes": 5 * 2**30,
        "smallFiles": 30,
        "dueFiles": 12,
        "deleteFiles": 2,
        "manifests": 7,
        "snapshots": 90,
        "metadataBytes": 2048,
        "oldestUncompactedTime": "2026-03-01T02:00:00Z",
        "compaction": {
            "policy": "nightly",
            "because": "Selected",
            "nextRunTime": "2026-03-02T03:00:00Z",
            "failures": 2,
            "lastRun": {
                "name": "firn-run-nightly-1",
                "result": "Failed",
                "finishTime": "2026-03-01T03:10:00Z",
                "message": "out of memory",
            },
        },
        "retention": {"policy": "month", "because": "NamedByTopic"},
    },
    "audit": {
        "time": "2026-03-01T01:00:00Z",
        "result": "Failed",
        "offsets": 9000,
        "missing": 3,
        "doubled": 0,
        "failed": {"run": "firn-run-audit-1", "time": "2026-03-01T01:00:00Z", "missing": 3, "topicId": "kafka-id"},
        "nextRunTime": "2026-03-02T01:00:00Z",
    },
}


def condition(kind: str, status: str, message: str = "", reason: str = "Reason", age: int = 90) -> Manifest:
    moment = (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": status, "reason": reason, "message": message or kind, "lastTransitionTime": moment}


def topic(*conditions: Manifest, **changes: Any) -> Manifest:
    return gen.topic("orders", gen.with_status({**STATUS, "conditions": list(conditions)}), **changes)


def report(*conditions: Manifest, events: list[Manifest] | None = None, **changes: Any) -> Manifest:
    return reports.report(topic(*conditions, **changes), events or [], NOW)


def text(document: Manifest) -> str:
    return "\n".join(line.text for line in screen.lines(document))


READY = condition("Ready", "True", "Kafka topic, table and ingestion are ready")


def test_the_screen_has_every_part() -> None:
    shown = text(report(READY, condition("Fresh", "False", "records wait longer than 60s", "Behind")))
    for part in (
        "IcebergTopic demo/orders: Ready (Reason) for 90s",
        "! Fresh               False   Behind",
        "orders (profile classic)",
        "kafka-id",
        "kafka:9092",
        "Json with 7 fields",
        "lake.demo.orders",
        "s3://firn/orders",
        "60s: Behind, records wait longer than 60s",
        "42s ago (2026-03-01T11:59:18Z)",
        "41,200 records, 2m30s behind (measured 40s ago)",
        "partition 2, offset 71",
        "1,200 in table lake.demo.orders__dlq",
        "! 1-abc: 5,000 offsets, partition 0",
        "4,000 with 5.0 GiB, 30 small, 12 due",
        "2 delete files, 7 Iceberg manifests, 90 snapshots, 2.0 KiB of metadata",
        "CompactionPolicy nightly, selected by label, next run 2026-03-02T03:00:00Z",
        "last run firn-run-nightly-1 Failed 2026-03-01T03:10:00Z: out of memory; 2 failed runs in a row",
        "RetentionPolicy month, named by the topic",
        "no run yet",
        "Failed at 2026-03-01T01:00:00Z, 9,000 offsets compared, 3 missing",
        "run firn-run-audit-1 at 2026-03-01T01:00:00Z: 3 missing, 0 doubled, 0 stray",
        "Next step: records wait longer than 60s",
    ):
        assert part in shown, part


def test_json_has_the_sections_and_the_next_step() -> None:
    document = json.loads(json.dumps(report(READY)))
    assert set(document) == {
        "namespace", "name", "ready", "generation", "observedGeneration", "deleting", "nextStep", "conditions", "topic", "table",
        "schema", "ingestion", "deadLetters", "quality", "publish", "tables", "losses", "maintenance", "audit", "events",
    }  # fmt: skip
    assert document["nextStep"] == ""
    assert document["deadLetters"] == {
        "records": 1200,
        "table": "lake.demo.orders__dlq",
        "onBadRecord": "DeadLetter",
    }


BAD = {
    kind: condition(kind, "True" if kind in reports.BAD_WHEN_TRUE else "False", f"{kind} says what to do")
    for kind in ConditionType
}
GOOD = {
    kind: condition(kind, "True") for kind in ConditionType if kind not in (*reports.BAD_WHEN_TRUE, ConditionType.READY)
}


def test_every_condition_has_a_place_among_the_bad_ones() -> None:
    assert set(reports.BY_GRAVITY) == set(ConditionType)


@pytest.mark.parametrize("kind", list(ConditionType))
def test_the_one_bad_condition_comes_first_and_is_the_next_step(kind: ConditionType) -> None:
    others = [each for other, each in GOOD.items() if other is not kind]
    document = report(*others, BAD[kind])
    assert document["conditions"][0]["type"] == kind
    assert document["nextStep"] == f"{kind} says what to do"
    assert text(document).count("  ! ") == 2  # the condition and the loss


@pytest.mark.parametrize(("first", "second"), list(permutations(reports.BY_GRAVITY, 2)))
def test_the_graver_of_two_bad_conditions_is_the_next_step(first: ConditionType, second: ConditionType) -> None:
    graver = min(first, second, key=reports.BY_GRAVITY.index)
    document = report(BAD[first], BAD[second])
    assert document["conditions"][0]["type"] == graver
    assert document["nextStep"] == f"{graver} says what to do"


def test_unknown_conditions_stand_between_bad_and_good_ones() -> None:
    document = report(READY, condition("Fresh", "Unknown"), BAD[ConditionType.COMPLETE])
    assert [each["type"] for each in document["conditions"]] == ["Complete", "Fresh", "Ready"]
    assert report(READY, condition("Fresh", "Unknown"))["nextStep"] == ""


def test_an_unknown_ready_is_the_next_step() -> None:
    document = report(condition("Ready", "Unknown", "waiting for the driver"))
    assert document["ready"] == "Unknown"
    assert document["nextStep"] == "waiting for the driver"
    assert "not known to be Ready" in text(document)


def test_a_resource_that_no_operator_has_read_names_the_operator() -> None:
    document = reports.report(gen.topic("orders"), [], NOW)
    assert document["nextStep"].startswith("the operator has not read the resource yet; check that it runs: kubectl")
    assert "none yet" in text(document)


def test_a_resource_without_a_status_is_shown() -> None:
    manifest = gen.topic("orders")
    del manifest["status"]
    document = reports.report(manifest, [], NOW)
    assert document["ready"] == "Unknown"
    assert "IcebergTopic demo/orders: no status yet" in text(document)


def test_a_status_of_an_older_generation_is_no_answer() -> None:
    manifest = topic(READY)
    manifest["metadata"]["generation"] = 2
    document = reports.report(manifest, [], NOW)
    assert "has not followed generation 2 of the spec yet; this status is about generation 1" in document["nextStep"]
    assert document["ready"] == "Unknown"
    assert "not known to be Ready (Reason, True for an earlier spec) for 90s" in text(document)
    assert screen.rows([manifest], NOW)[0][2] == "Unknown"


def test_a_pause_explains_a_status_of_an_older_generation() -> None:
    manifest = topic(READY, BAD[ConditionType.PAUSED])
    manifest["metadata"]["generation"] = 2
    assert reports.report(manifest, [], NOW)["nextStep"] == "Paused says what to do"


def test_a_deletion_is_shown() -> None:
    manifest = topic(BAD[ConditionType.DELETION_BLOCKED], BAD[ConditionType.READY])
    manifest["metadata"]["deletionTimestamp"] = "2026-03-01T11:00:00Z"
    document = reports.report(manifest, [], NOW)
    assert "being deleted" in text(document)
    assert document["nextStep"] == "DeletionBlocked says what to do"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "Raw: key and value as Binary"),
        ({"raw": "String"}, "Raw: key and value as String"),
        ({"format": "Avro", "text": "{}"}, "Avro"),
        ({"format": "Avro", "registry": {"name": "main"}}, "Avro, subject orders-value of schema registry main"),
        ({"format": "Avro", "registry": {"name": "main", "subject": "s"}}, "Avro, subject s of schema registry main"),
    ],
)
def test_the_schema_is_named(spec: Manifest, words: str) -> None:
    assert f"  schema          {words}\n" in text(report(READY, schema=spec))


def test_warnings_come_first_and_old_events_are_left_out() -> None:
    events = [
        {"type": "Normal", "reason": f"R{age}", "message": "m", "lastTimestamp": f"2026-03-01T11:{59 - age:02}:00Z"}
        for age in range(9)
    ]
    events[3]["type"] = "Warning"
    document = report(READY, events=events)
    assert [each["reason"] for each in document["events"]] == ["R3", "R0", "R1", "R2", "R4"]
    assert "4m  Warning R3: m" in text(document)


def test_quality_rules_have_their_counts() -> None:
    rules = [{"name": "plausible", "check": "total > 0"}, {"name": "new", "check": "id > 0", "onFail": "Count"}]
    manifest = topic(READY, quality={"rules": rules})
    manifest["status"]["quality"] = [{"rule": "plausible", "failed": 1200}]
    document = reports.report(manifest, [], NOW)
    assert document["quality"][0] == {"rule": "plausible", "check": "total > 0", "onFail": "DeadLetter", "failed": 1200}
    assert "  plausible       1,200 records failed (DeadLetter): total > 0\n" in text(document)
    assert "  new             not known yet (Count): id > 0\n" in text(document)
    assert "Quality rules" not in text(report(READY))


def test_publishing_shows_how_far_main_is_behind() -> None:
    check = {"check": "volume", "passed": False, "values": "count(*) = 3", "failed": 2}
    section = {"branch": "staging", "waitingRows": 1200, "waitingSince": "2026-03-01T11:59:18Z", "checks": [check]}
    manifest = topic(READY)
    manifest["status"]["publish"] = section
    shown = text(reports.report(manifest, [], NOW))
    assert "  main lacks      1,200 rows since 2026-03-01T11:59:18Z\n" in shown
    assert "  check           volume failed: count(*) = 3, 2 times failed\n" in shown
    assert "Publishing" not in text(report(READY))


def test_a_topic_set_is_shown_with_its_refused_topics_and_those_that_are_not_ready() -> None:
    refused = {"topic": "dev.a", "why": "TableConflict", "message": "another IcebergTopic has table lake.demo.a"}
    found = gen.topic_set("events", exclude="tmp")
    found["status"] = {
        "observedGeneration": 1, "conditions": [condition("Ready", "False", "refused topics: 21", "RefusedForSome")],
        "clusterId": "kafka-1", "matched": 1021, "made": 1000, "kept": 3, "topicsRefused": 21, "refused": [refused] * 20,
    }  # fmt: skip
    broken = topic(condition("Ready", "False"))
    document = reports.set_report(found, [topic(READY), broken], [], NOW)
    assert document["notReady"] == ["orders"]
    shown = "\n".join(line.text for line in screen.set_lines(document))
    for part in (
        "TopicSet demo/events: not Ready (RefusedForSome) for 90s",
        f"match           {found['spec']['match']}, without tmp (profile classic)",
        "Kafka cluster   kafka-1",
        "matched         1,021",
        "not Ready       1 IcebergTopics: orders",
        "! dev.a (TableConflict): another IcebergTopic has table lake.demo.a",
        "and 1 more",
        "Next step: refused topics: 21",
    ):
        assert part in shown, part
    del found["status"]
    assert "not known yet" in "\n".join(
        line.text for line in screen.set_lines(reports.set_report(found, [], None, NOW))
    )


def test_missing_rights_to_events_are_said() -> None:
    document = reports.report(topic(READY), None, NOW)
    assert document["events"] is None
    assert "you may not list Events in this namespace" in text(document)


def test_the_list_has_topics_that_are_not_ready_first() -> None:
    ready, broken = topic(READY), topic(condition("Ready", "False", reason="BadSchema"))
    broken["metadata"]["name"] = "z"
    rows = screen.rows([ready, broken], NOW)
    assert [row[1] for row in rows] == ["z", "orders"]
    lines = [line.text for line in screen.table_lines(rows)]
    assert lines[0].split() == list(screen.COLUMNS)
    assert lines[1].split() == [
        "demo", "z", "False", "BadSchema", "classic", "6", "lake.demo.orders", "-", "42s", "1200", "120m",
    ]  # fmt: skip


def test_a_message_cannot_change_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show([Line("a\x1b[2Jb\x07\r\x9bc [red]d")])
    assert capsys.readouterr().out == "a?[2Jb???c [red]d\n"


def test_a_pipe_gets_long_lines_whole(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show([Line("word " * 100, indent=4)])
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"), (0, "0s"), (119, "119s"), (120, "2m"), (150, "2m30s"), (3600, "60m"), (7500, "125m"), (10_800, "3h"), (11_100, "3h5m"),
        (36_100, "10h"),
        (90_000, "25h"), (172_800, "2d"), (190_000, "2d4h"), (8_640_000, "100d"),
    ],
)  # fmt: skip
def test_ages_have_two_units_at_most(seconds: int | None, shown: str) -> None:
    assert screen.duration(seconds) == shown
