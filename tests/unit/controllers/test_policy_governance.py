"""The policy that governs a topic, and topics that a policy does not fit."""

from typing import Any

import pytest

from tests import gen
from tests.unit.controllers.policy_stage import (
    ALL,
    COMPACTION,
    LEGAL,
    MANY,
    RETENTION,
    annotate,
    governing,
    jobs,
    labelled,
    policy_status,
    world_with,
)

NOWHERE = {"column": "nowhere", "maxAge": "1d"}


def created(text: str) -> gen.Modifier:
    return lambda manifest: manifest["metadata"].update(creationTimestamp=text)


async def test_an_annotation_without_effect_on_a_policy_is_answered() -> None:
    world = await world_with(gen.policy("paused", gen.annotated("firn.dev/pause-reconciliation", "yes"), **ALL))
    assert "pause-reconciliation has an invalid value" in world.message("SpecValid", "paused", COMPACTION)


async def test_the_governing_policy_follows_changes_of_policies_and_labels() -> None:
    travel: dict[str, Any] = {"selector": {"matchLabels": {"team": "travel"}}}
    world = await world_with(
        gen.policy("b-old", created("2026-01-01T00:00:00Z"), **travel),
        gen.policy("c-old", created("2026-01-01T00:00:00Z"), **travel),
        gen.policy("a-young", created("2026-02-01T00:00:00Z"), **travel),
        gen.policy("high", created("2026-03-01T00:00:00Z"), priority=1, **travel),
        gen.policy("named", created("2026-03-01T00:00:00Z"), priority=-5),
        gen.policy("finance", priority=99, selector={"matchLabels": {"team": "finance"}}),
        gen.policy(
            "elsewhere",
            priority=99,
            selector={},
        )
        | {
            "metadata": {
                "name": "elsewhere",
                "namespace": "other",
                "uid": "uid-elsewhere",
                "generation": 1,
                "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
        },
        topics=(gen.topic("flights", labelled(team="travel")),),
    )
    assert governing(world) == ("high", "Selected")
    assert policy_status(world, "high")["topics"] == 1
    assert policy_status(world, "high")["governs"] == [{"topic": "flights", "because": "Selected"}]
    assert policy_status(world, "b-old")["topics"] == 0
    assert "governs" not in policy_status(world, "b-old")

    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(compactionPolicyRef={"name": "named"}))
    await world.settle()
    assert governing(world) == ("named", "NamedByTopic")
    assert policy_status(world, "high")["topics"] == 0
    assert policy_status(world, "named")["topics"] == 1
    assert policy_status(world, "named")["governs"] == [{"topic": "flights", "because": "NamedByTopic"}]

    world.cluster.edit("flights", lambda manifest: manifest["spec"].pop("compactionPolicyRef"))
    world.cluster.remove("high", kind=COMPACTION)
    await world.settle()
    assert governing(world) == ("b-old", "Selected"), "the older policy, and of two equally old ones the first by name"
    world.cluster.remove("b-old", kind=COMPACTION)
    world.cluster.remove("c-old", kind=COMPACTION)
    await world.settle()
    assert governing(world) == ("a-young", "Selected")

    world.cluster.edit("flights", labelled(team="finance"), spec=False)
    await world.settle()
    assert governing(world) == ("finance", "Selected")
    world.cluster.edit("flights", labelled(team="nobody"), spec=False)
    await world.settle()
    assert governing(world) is None
    assert world.conditions()["PoliciesResolved"] == ("True", "NoPolicy")
    assert "MaintenanceHealthy" not in world.conditions()
    assert [policy_status(world, name)["topics"] for name in ("a-young", "named", "finance")] == [0, 0, 0]


async def test_a_missing_policy_is_reported_and_used_when_it_appears() -> None:
    world = await world_with(gen.policy("other", **ALL), topics=(gen.topic(compactionPolicyRef={"name": "later"}),))
    assert world.conditions()["PoliciesResolved"] == ("False", "PolicyNotFound")
    assert "CompactionPolicy later" in world.message("PoliciesResolved")
    assert governing(world) is None, "a topic that names a policy wants no other"
    assert world.conditions()["Ready"] == ("True", "AllReady")
    world.cluster.create(gen.policy("later"))
    await world.settle()
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")
    assert governing(world) == ("later", "NamedByTopic")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "spec", "reason", "field"),
    [
        (COMPACTION, {"schedule": {"cron": "0 25 * * *"}}, "InvalidSpec", "spec.schedule.cron"),
        (COMPACTION, {"windows": [{"cron": "0 2 * * *", "duration": "1h", "timeZone": "A/B"}]}, "InvalidSpec", "windows[0].timeZone"),
        (COMPACTION, {"run": {"size": "huge"}}, "NotAllowed", "spec.run.size"),
        (COMPACTION, {"strategy": "Sort", "columns": ["id sideways"]}, "BadTransform", "spec.columns"),
        (COMPACTION, {"triggers": {"smallFiles": "many"}}, "InvalidSpec", "spec.triggers.smallFiles"),
        (RETENTION, {"orphanFiles": {"minAge": "1h"}}, "NotAllowed", "spec.orphanFiles.minAge"),
        (RETENTION, {"snapshots": {"maxAge": "1s"}}, "NotAllowed", "spec.snapshots.maxAge"),
    ],
)  # fmt: skip
async def test_an_invalid_policy_names_the_field_and_starts_no_run(
    kind: str, spec: dict[str, Any], reason: str, field: str
) -> None:
    world = await world_with(gen.policy("bad", kind=kind, **{**ALL, **spec}))
    world.owes(**MANY)
    annotate(world, "now", "bad", kind)
    await world.settle()
    conditions = world.conditions("bad", kind=kind)
    assert conditions["SpecValid"] == ("False", reason)
    assert conditions["Ready"] == ("False", reason)
    assert conditions["Stalled"] == ("True", "InvalidSpec")
    assert field in world.message("SpecValid", "bad", kind)
    assert not jobs(world)
    assert ("bad", "SpecRefused") in [(name, reason) for name, reason, _ in world.cluster.events]
    if "triggers" not in spec:  # a policy with a valid selector
        assert world.conditions()["PoliciesResolved"] == ("False", "PolicyInvalid")
        assert field in world.message("PoliciesResolved")
    assert world.conditions()["Ready"] == ("True", "AllReady")
    world.cluster.edit("bad", lambda manifest: manifest.update(spec={**ALL, "snapshots": {"maxAge": "1d"}}), kind=kind)
    await world.settle()
    assert world.conditions("bad", kind=kind)["Ready"] == ("True", "AllReady")
    assert "Stalled" not in world.conditions("bad", kind=kind)
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        (
            COMPACTION,
            {"strategy": "ZOrder", "columns": ["carrier", "nowhere"]},
            "spec.columns: 'nowhere' is not a column",
        ),
        (COMPACTION, {"strategy": "ZOrder", "columns": ["place"]}, "place has no primitive type"),
        (COMPACTION, {"strategy": "Sort", "columns": ["hour(carrier)"]}, "spec.columns: hour(carrier)"),
        (RETENTION, {"rows": {"column": "delay", "maxAge": "1d"}}, "spec.rows.column: delay is double"),
        (RETENTION, {"rows": {"column": "_kafka.timestamps", "maxAge": "1d"}}, "spec.rows.column: '_kafka.timestamps'"),
    ],
)
async def test_a_policy_that_does_not_fit_a_topic_is_rejected_for_it_alone(
    kind: str, spec: dict[str, Any], words: str
) -> None:
    other = gen.topic("other")
    other["spec"]["schema"]["fields"] = [
        {"name": "carrier", "type": "timestamptz"}, {"name": "nowhere", "type": "int"}, {"name": "place", "type": "string"},
        {"name": "delay", "type": "date"}, {"name": "_x", "type": "int"},
    ]  # fmt: skip
    world = await world_with(gen.policy("picky", kind=kind, **{**ALL, **spec}), topics=(gen.topic(), other))
    assert world.conditions()["PoliciesResolved"] == ("False", "PolicyInvalid")
    assert words in world.message("PoliciesResolved")
    assert world.conditions("picky", kind=kind)["SpecValid"] == ("True", "Valid")
    fits = "_kafka" not in words
    assert policy_status(world, "picky", kind)["topicsRefused"] == (1 if fits else 2)
    assert [governed["topic"] for governed in policy_status(world, "picky", kind)["governs"]] == ["flights", "other"]
    assert world.conditions("picky", kind=kind)["Ready"] == ("False", "RefusedForSome")
    assert world.conditions("picky", kind=kind)["Stalled"] == ("True", "RefusedForSome")
    message = world.message("Ready", "picky", kind)
    assert message.startswith(f"the operator follows the policy for {int(fits)} of 2 topics; refused: flights (spec.")
    assert words in message
    assert not message.count("Policy picky"), "the resource itself needs no name"
    section = "compaction" if kind == COMPACTION else "retention"
    assert governing(world, section) is None, "the topic names no policy that refuses it"
    annotate(world, "now", "picky", kind)
    await world.settle()
    assert {table.name for run in world.maintainer.done for table in run.tables} == ({"other"} if fits else set())


@pytest.mark.parametrize("kind", ["time", "struct<at: list<time>>", "map<string, time>"])
@pytest.mark.parametrize(
    ("policy", "fits"),
    [
        (gen.policy("p", **ALL), False),
        (gen.policy("p", kind=RETENTION, rows={"column": "_kafka.timestamp", "maxAge": "1d"}, **ALL), False),
        (gen.policy("p", kind=RETENTION, snapshots={"maxAge": "1d"}, **ALL), True),
    ],
)
async def test_a_policy_that_rewrites_files_rejects_times_of_day_which_spark_cannot_read(
    kind: str, policy: dict[str, Any], fits: bool
) -> None:
    topic = gen.topic(
        schema={"format": "Json", "fields": [{"name": "time", "type": "long"}, {"name": "at", "type": kind}]}
    )
    world = await world_with(policy, topics=(topic,))
    assert world.conditions()["PoliciesResolved"] == (("True", "Resolved") if fits else ("False", "PolicyInvalid"))
    assert fits or "column at has type time, which Spark cannot read" in world.message("PoliciesResolved")


async def test_a_policy_names_few_of_many_topics_that_it_does_not_fit_and_counts_the_others() -> None:
    topics = tuple(gen.topic(name) for name in ("a", "b", "c", "d", "flights"))
    world = await world_with(gen.policy("legal", kind=RETENTION, rows=NOWHERE, **ALL), topics=topics)
    message = world.message("Ready", "legal", RETENTION)
    assert message.startswith("the operator follows the policy for 0 of 5 topics; refused: a (")
    assert "; c (" in message
    assert "; d (" not in message
    assert message.endswith("; and 2 more")


async def test_a_policy_that_fits_all_topics_again_is_ready_and_says_when_it_was_not() -> None:
    other = gen.topic("other")
    world = await world_with(
        gen.policy("legal", kind=RETENTION, rows=LEGAL["rows"], **ALL), topics=(gen.topic(), other)
    )
    assert world.conditions("legal", kind=RETENTION)["Ready"] == ("True", "AllReady")
    world.cluster.edit("legal", lambda manifest: manifest["spec"].update(rows=NOWHERE), kind=RETENTION)
    await world.settle()
    assert world.conditions("legal", kind=RETENTION)["Ready"] == ("False", "RefusedForSome")
    assert ("legal", "NotReady") in [(name, reason) for name, reason, _ in world.cluster.events]
    world.cluster.edit("legal", lambda manifest: manifest["spec"].update(rows=LEGAL["rows"]), kind=RETENTION)
    await world.settle()
    assert world.conditions("legal", kind=RETENTION)["Ready"] == ("True", "AllReady")
    assert "Stalled" not in world.conditions("legal", kind=RETENTION)
    assert governing(world, "retention") == ("legal", "Selected")


async def test_sorting_by_the_tables_own_order_needs_one() -> None:
    sort = gen.policy("s", strategy="Sort", **ALL)
    world = await world_with(sort, topics=(gen.topic(),))
    assert world.conditions()["PoliciesResolved"] == ("False", "PolicyInvalid")
    assert "spec.columns: strategy Sort needs columns" in world.message("PoliciesResolved")
    world = await world_with(sort, topics=(gen.topic(table={"sortBy": ["id"]}),))
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")


async def test_kafka_metadata_columns_may_be_named() -> None:
    retention = gen.policy("r", kind=RETENTION, rows={"column": "_kafka.timestamp", "maxAge": "30d"}, **ALL)
    flat = gen.policy("s", strategy="Sort", columns=["_kafka_offset desc"], **ALL)
    topic = gen.topic(table={"metadataColumns": "Flat"})
    world = await world_with(flat, topics=(topic,))
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")
    world = await world_with(retention)
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")
