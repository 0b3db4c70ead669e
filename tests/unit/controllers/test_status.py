"""Each row of the table of conditions: the state that leads to it, and the condition in the status."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn.model.errors import AccessDeniedError, InvalidSpecError, NotReadyError, UnavailableError
from firn.model.jobs import RecordSchema
from firn.model.progress import HaltedAt, RecentRecords, SuspiciousTimes
from firn_controllers.conditions import announcements
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.conditions.render import Verdict
from firn_controllers.fleet.health import FleetHealth
from firn_controllers.iceberg_topic import status
from firn_controllers.iceberg_topic.failure import Failure
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.iceberg_topic.status import TopicFindings
from firn_controllers.ingestion_group.health import GroupHealth
from tests import gen
from tests.fakes.world import World

HEALTHY = TopicFindings(
    topic=gen.topic_state(),
    topic_origin=Reason.CREATED,
    table=gen.table_state(),
    table_origin=Reason.CREATED,
)
KEEPS_A_DAY = replace(HEALTHY, topic=gen.topic_state(configs={"retention.ms": "86400000"}))


def landing(**changes: Any) -> ObservedTopic:
    """Return the observed state of a topic that lands records."""
    return gen.observed(**{"job": True, "progress": gen.progress(), **changes})


def conditions_of(observed: ObservedTopic, findings: TopicFindings = HEALTHY) -> dict[str, tuple[str, str]]:
    """Return status and reason of every condition."""
    with_job = replace(findings, job=findings.job or observed.job)
    conditions = status.conditions(observed, with_job)
    return {str(kind): (condition.status, str(condition.reason)) for kind, condition in conditions.items()}


def message(observed: ObservedTopic, kind: ConditionType, findings: TopicFindings = HEALTHY) -> str:
    return status.conditions(observed, replace(findings, job=observed.job))[kind].message


def documented(observed: ObservedTopic, findings: TopicFindings = HEALTHY) -> dict[str, Any]:
    """Return the status document with the contract in force."""
    return status.document(observed, replace(findings, job=findings.job or observed.job))


def condition_in(document: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(item for item in document["conditions"] if item["type"] == kind)


def spec(**changes: Any) -> ObservedTopic:
    return landing(manifest=gen.topic(**changes))


def group(reason: Reason, *, stalled: bool = False) -> ObservedTopic:
    return landing(group=GroupHealth(reason, "the driver", stalled=stalled))


def driver(**changes: Any) -> ObservedTopic:
    return landing(progress=gen.progress(**changes))


def rejecting(rejected: int, **changes: Any) -> ObservedTopic:
    recent = RecentRecords(records=1000, rejected=rejected, code="InvalidJson", path="$")
    return driver(recent=recent, dead_letter_table="lake.demo.flights__dlq", **changes)


def suspicious(rejected: int) -> ObservedTopic:
    times = SuspiciousTimes(column="at", epoch="s", sample="1970-01-21")
    return driver(recent=RecentRecords(records=1000, rejected=rejected, code="WrongKind", path="$.b", times=times))


def failed(reason: Reason) -> TopicFindings:
    return TopicFindings(failure=Failure(reason, "is wrong"))


V3 = {"formatVersion": 3}
FORMAT_3 = replace(HEALTHY, table=replace(gen.table_state(), format_version=3))

ROWS = [
    # Ready
    pytest.param(landing(), HEALTHY, "Ready", "True", "AllReady", id="healthy"),
    pytest.param(spec(suspend=True), HEALTHY, "Ready", "False", "Suspended", id="suspended"),
    pytest.param(landing(), failed(Reason.BAD_SCHEMA), "Ready", "False", "BadSchema", id="a rejected spec"),
    pytest.param(
        landing(), failed(Reason.RESOURCE_CONFLICT), "Ready", "False", "ResourceConflict", id="a topic of another resource"
    ),
    pytest.param(group(Reason.STARTING), HEALTHY, "Ready", "False", "Starting", id="a starting driver"),
    pytest.param(
        group(Reason.BACKING_OFF, stalled=True), HEALTHY, "Ready", "False", "BackingOff", id="a driver that always fails"
    ),
    pytest.param(landing(manifest=gen.topic("flights", gen.deleting())), TopicFindings(), "Ready", "False", "Deleting", id="deleting"),
    pytest.param(gen.observed(), TopicFindings(), "Ready", "False", "Starting", id="no attempt yet"),
    # SpecValid
    pytest.param(landing(), HEALTHY, "SpecValid", "True", "Valid", id="a valid spec"),
    *(
        pytest.param(landing(), failed(reason), "SpecValid", "False", str(reason), id=f"SpecValid {reason}")
        for reason in (
            Reason.PROFILE_NOT_FOUND, Reason.GROUP_NOT_FOUND, Reason.CATALOG_NOT_FOUND, Reason.NOT_ALLOWED, Reason.BAD_SCHEMA,
            Reason.INCOMPATIBLE_SCHEMA, Reason.BAD_TRANSFORM, Reason.UNKNOWN_COLUMN, Reason.BAD_TOPIC_CONFIG, Reason.RESOURCE_CONFLICT,
        )
    ),
    # TopicReady
    pytest.param(landing(), HEALTHY, "TopicReady", "True", "Created", id="a topic that the operator created"),
    pytest.param(
        landing(), replace(HEALTHY, topic_origin=Reason.ADOPTED), "TopicReady", "True", "Adopted", id="an existing topic"
    ),
    pytest.param(
        landing(fleet=FleetHealth(Reason.BROKER_STARTING, "starting")), TopicFindings(), "TopicReady", "False", "BrokerStarting", id="brokers start"
    ),
    pytest.param(
        landing(fleet=FleetHealth(Reason.BROKER_UNREACHABLE, "gone")), TopicFindings(), "TopicReady", "False", "BrokerUnreachable", id="brokers down"
    ),
    pytest.param(
        landing(fleet=FleetHealth(Reason.ACCESS_DENIED, "no")), TopicFindings(), "TopicReady", "False", "AccessDenied", id="brokers deny access"
    ),
    pytest.param(
        landing(), replace(HEALTHY, topic=AccessDeniedError("no")), "TopicReady", "False", "AccessDenied", id="access to a topic is denied"
    ),
    pytest.param(
        landing(), replace(HEALTHY, topic=UnavailableError("slow")), "TopicReady", "False", "BrokerUnreachable", id="no answer about a topic"
    ),
    pytest.param(
        landing(), replace(HEALTHY, topic=NotReadyError("few brokers")), "TopicReady", "False", "BrokerStarting", id="too few brokers"
    ),
    pytest.param(
        spec(partitions=2), HEALTHY, "TopicReady", "False", "PartitionDecreaseRefused", id="more partitions than in the spec"
    ),
    # TableReady
    pytest.param(landing(), HEALTHY, "TableReady", "True", "Created", id="a table that the operator created"),
    pytest.param(
        landing(), replace(HEALTHY, table_origin=Reason.ADOPTED), "TableReady", "True", "Adopted", id="an existing table"
    ),
    pytest.param(
        landing(catalog=DependencyHealth(Reason.CATALOG_UNREACHABLE, "gone")), TopicFindings(), "TableReady", "False", "CatalogUnreachable",
        id="catalog down",
    ),
    pytest.param(
        landing(catalog=DependencyHealth(Reason.ACCESS_DENIED, "no")), TopicFindings(), "TableReady", "False", "AccessDenied",
        id="catalog denies access",
    ),
    pytest.param(
        landing(), replace(HEALTHY, table=UnavailableError("slow")), "TableReady", "False", "CatalogUnreachable", id="no answer about a table"
    ),
    pytest.param(
        landing(), replace(HEALTHY, table=NotReadyError("ahead")), "TableReady", "False", "Pending", id="a table is ahead of the clock"
    ),
    pytest.param(
        landing(manifest=gen.topic(table=V3), progress=gen.progress(state="Starting", table_reason="Pending", table_message="ahead")),
        FORMAT_3, "TableReady", "False", "Pending", id="a table of the driver is ahead of the clock",
    ),
    pytest.param(
        landing(), replace(HEALTHY, table=AccessDeniedError("bucket")), "TableReady", "False", "AccessDenied", id="access to a table is denied"
    ),
    pytest.param(
        landing(),
        replace(HEALTHY, table=InvalidSpecError("column a", reason=Reason.SCHEMA_INCOMPATIBLE)),
        "TableReady", "False", "SchemaIncompatible",
        id="an incompatible table",
    ),
    pytest.param(
        landing(manifest=gen.topic(table=V3)), replace(HEALTHY, table=None, table_missing=True), "TableReady", "False", "WaitingForDriver",
        id="a version 3 table that the driver will create",
    ),
    pytest.param(
        landing(manifest=gen.topic(table=V3), progress=gen.progress(table_ready=True)),
        replace(HEALTHY, table=None, table_missing=True), "TableReady", "True", "Created",
        id="a version 3 table that the driver created",
    ),
    pytest.param(
        landing(manifest=gen.topic(table=V3), progress=gen.progress(state="Starting", table_reason="AccessDenied", table_message="no")),
        replace(HEALTHY, table=None, table_missing=True), "TableReady", "False", "AccessDenied",
        id="a version 3 table that the driver may not create",
    ),
    pytest.param(
        landing(manifest=gen.topic(table=V3), progress=gen.progress(state="Starting", table_reason="FormatUnsupported", table_message="no v3")),
        replace(HEALTHY, table=None, table_missing=True), "TableReady", "False", "FormatUnsupported", id="a catalog without the format version",
    ),
    pytest.param(
        landing(manifest=gen.topic(table=V3), progress=gen.progress(table_ready=True)), FORMAT_3, "TableReady", "True", "Created",
        id="a version 3 table that the driver read",
    ),
    pytest.param(
        landing(manifest=gen.topic(table=V3), progress=gen.progress(table_ready=True, generation=0)), FORMAT_3,
        "TableReady", "False", "WaitingForDriver",
        id="a version 3 table that the driver has not changed yet",
    ),
    pytest.param(
        landing(manifest=gen.topic(table=V3), progress=gen.progress(table_ready=True, state="Starting")), FORMAT_3,
        "TableReady", "False", "WaitingForDriver",
        id="a version 3 table of a driver that has just read the spec",
    ),
    pytest.param(
        landing(
            manifest=gen.topic(table=V3),
            progress=gen.progress(state="BackingOff", table_reason="SchemaIncompatible", table_message="no"),
        ),
        FORMAT_3, "TableReady", "False", "SchemaIncompatible",
        id="a version 3 table that the driver cannot change",
    ),
    pytest.param(
        landing(progress=gen.progress(table_ready=True, generation=0)), FORMAT_3, "TableReady", "False", "WaitingForDriver",
        id="an existing table of version 3",
    ),
    # IngestionReady
    pytest.param(driver(state="Running"), HEALTHY, "IngestionReady", "True", "Running", id="running"),
    pytest.param(driver(state="CaughtUp"), HEALTHY, "IngestionReady", "True", "CaughtUp", id="caught up"),
    pytest.param(driver(state="Starting"), HEALTHY, "IngestionReady", "False", "Starting", id="the driver follows the contract"),
    pytest.param(landing(progress=None), HEALTHY, "IngestionReady", "False", "Starting", id="the driver does not follow the contract yet"),
    pytest.param(gen.observed(), TopicFindings(), "IngestionReady", "False", "Starting", id="no contract yet"),
    pytest.param(driver(state="BackingOff"), HEALTHY, "IngestionReady", "False", "BackingOff", id="landing fails"),
    pytest.param(
        driver(state="BackingOff", reason="OutOfMemory"), HEALTHY, "IngestionReady", "False", "OutOfMemory", id="landing lacks memory"
    ),
    pytest.param(
        driver(state="BackingOff", reason="WaitingForConnector"), HEALTHY, "IngestionReady", "False", "WaitingForConnector",
        id="the connector of the table runs",
    ),
    pytest.param(driver(state="Fenced"), HEALTHY, "IngestionReady", "False", "Fenced", id="fenced"),
    pytest.param(driver(state="Halted"), HEALTHY, "IngestionReady", "False", "BadRecordHalt", id="halted on a record"),
    pytest.param(spec(suspend=True), HEALTHY, "IngestionReady", "False", "Suspended", id="ingestion suspended"),
    *(
        pytest.param(group(reason), HEALTHY, "IngestionReady", "False", str(reason), id=f"a driver with {reason}")
        for reason in (
            Reason.STARTING, Reason.BACKING_OFF, Reason.OUT_OF_MEMORY, Reason.IMAGE_PULL_FAILED, Reason.UNSCHEDULABLE, Reason.FENCED,
        )
    ),
    # Fresh
    pytest.param(driver(lag_seconds=59.0), HEALTHY, "Fresh", "True", "WithinTarget", id="within freshness"),
    pytest.param(driver(lag_seconds=61.0), HEALTHY, "Fresh", "False", "Behind", id="behind"),
    pytest.param(driver(lag_seconds=4e5), KEEPS_A_DAY, "Fresh", "False", "RetentionNear", id="the log deletes records soon"),
    pytest.param(
        landing(manifest=gen.topic(ingestion={"freshness": "1d"}), progress=gen.progress(lag_seconds=5e4)), KEEPS_A_DAY,
        "Fresh", "False", "RetentionNear", id="the log deletes records before their freshness ends",
    ),
    pytest.param(
        landing(manifest=gen.topic(suspend=True), progress=gen.progress(state="Suspended", lag_seconds=5e4)), KEEPS_A_DAY,
        "Fresh", "False", "RetentionNear", id="the log of a suspended topic deletes records soon",
    ),
    pytest.param(
        landing(manifest=gen.topic(suspend=True), progress=gen.progress(state="Suspended", lag_seconds=4e4)), KEEPS_A_DAY,
        "Fresh", "Unknown", "Unknown", id="the log of a suspended topic keeps records for long enough",
    ),
    pytest.param(driver(lag_seconds=61.0, backfilling=True), HEALTHY, "Fresh", "False", "Backfilling", id="backfilling"),
    pytest.param(driver(last_commit=None, lag_records=0), HEALTHY, "Fresh", "Unknown", "NoRecords", id="no records"),
    pytest.param(driver(last_commit=None, lag_records=5, lag_seconds=1.0), HEALTHY, "Fresh", "True", "WithinTarget", id="first records"),
    pytest.param(
        driver(last_commit=None, lag_records=0, has_landed=True), HEALTHY, "Fresh", "True", "WithinTarget",
        id="records of an unknown time",
    ),
    pytest.param(group(Reason.BACKING_OFF), HEALTHY, "Fresh", "Unknown", "Unknown", id="no report"),
    pytest.param(
        driver(state="BackingOff", last_commit=None, lag_records=None, lag_seconds=None), HEALTHY, "Fresh", "Unknown", "Unknown",
        id="a driver that has not read the table yet",
    ),
    pytest.param(spec(suspend=True), HEALTHY, "Fresh", "Unknown", "Unknown", id="freshness while suspended"),
    # RecordsAccepted
    pytest.param(driver(), HEALTHY, "RecordsAccepted", "Unknown", "NoRecords", id="nothing landed since the driver started"),
    pytest.param(landing(progress=None), HEALTHY, "RecordsAccepted", "Unknown", "Unknown", id="acceptance without a report"),
    pytest.param(driver(recent=RecentRecords(records=9)), HEALTHY, "RecordsAccepted", "True", "AllAccepted", id="all records fit"),
    pytest.param(rejecting(1), HEALTHY, "RecordsAccepted", "True", "SomeRejected", id="a dead letter"),
    pytest.param(rejecting(500), HEALTHY, "RecordsAccepted", "True", "SomeRejected", id="half of the records are dead letters"),
    pytest.param(rejecting(501), HEALTHY, "RecordsAccepted", "False", "MostRejected", id="most records are dead letters"),
    pytest.param(suspicious(0), HEALTHY, "RecordsAccepted", "True", "SuspiciousTimes", id="times of another unit"),
    pytest.param(suspicious(501), HEALTHY, "RecordsAccepted", "False", "MostRejected", id="most records rejected and times of another unit"),
    pytest.param(rejecting(1000), HEALTHY, "Ready", "True", "AllReady", id="ready while all records are dead letters"),
    # Only while True
    pytest.param(landing(), failed(Reason.BAD_SCHEMA), "Stalled", "True", "InvalidSpec", id="stalled by the spec"),
    pytest.param(spec(partitions=2), HEALTHY, "Stalled", "True", "InvalidSpec", id="stalled by partitions"),
    pytest.param(
        group(Reason.BACKING_OFF, stalled=True), HEALTHY, "Stalled", "True", "FastFailures", id="stalled by the driver"
    ),
    pytest.param(driver(state="BackingOff", failures=5), HEALTHY, "Stalled", "True", "FastFailures", id="stalled by landing"),
    pytest.param(
        landing(fleet=FleetHealth(Reason.BROKER_UNREACHABLE, "broken", stalled=True)), TopicFindings(), "Stalled", "True", "FastFailures",
        id="stalled by the brokers",
    ),
    pytest.param(group(Reason.STARTING), HEALTHY, "Reconciling", "True", "WaitingForDependency", id="waiting for the driver"),
    pytest.param(
        landing(group=GroupHealth(Reason.STARTING, "rolls", rolling=True)), HEALTHY, "Reconciling", "True", "RollingOut", id="the driver restarts"
    ),
    pytest.param(
        driver(generation=0), HEALTHY, "Reconciling", "True", "RollingOut", id="the driver applies a new spec"
    ),
    pytest.param(
        landing(), replace(HEALTHY, blocked=Verdict("True", Reason.BROKER_UNREACHABLE, "gone")), "DeletionBlocked", "True", "BrokerUnreachable",
        id="a deletion that waits for brokers",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("observed", "findings", "kind", "value", "reason"), ROWS)
def test_each_situation_has_its_condition(
    observed: ObservedTopic, findings: TopicFindings, kind: str, value: str, reason: str
) -> None:
    assert conditions_of(observed, findings)[kind] == (value, reason)


def test_every_row_of_the_public_table_is_produced() -> None:
    produced = {row.values[2:5] for row in ROWS}
    by_type = {kind: {reason for k, _, reason in produced if k == kind} for kind in {row[0] for row in produced}}
    assert by_type["IngestionReady"] == {
        "Running", "CaughtUp", "Starting", "BackingOff", "OutOfMemory", "ImagePullFailed", "Unschedulable", "Fenced", "BadRecordHalt",
        "Suspended", "WaitingForConnector",
    }  # fmt: skip
    assert by_type["TopicReady"] == {
        "Created", "Adopted", "BrokerStarting", "BrokerUnreachable", "AccessDenied", "PartitionDecreaseRefused",
    }  # fmt: skip
    assert by_type["TableReady"] == {
        "Created", "Adopted", "CatalogUnreachable", "AccessDenied", "SchemaIncompatible", "WaitingForDriver", "Pending",
        "FormatUnsupported",
    }  # fmt: skip
    assert by_type["Fresh"] == {"WithinTarget", "Behind", "RetentionNear", "Backfilling", "NoRecords", "Unknown"}


ONLY_WHILE_TRUE = ("Reconciling", "Stalled", "Paused", "DeletionBlocked")


@pytest.mark.parametrize(("observed", "findings", "kind", "value", "reason"), ROWS)
def test_abnormal_conditions_exist_only_while_true(
    observed: ObservedTopic, findings: TopicFindings, kind: str, value: str, reason: str
) -> None:
    conditions = conditions_of(observed, findings)
    assert all(conditions[abnormal][0] == "True" for abnormal in ONLY_WHILE_TRUE if abnormal in conditions)
    assert not {"Reconciling", "Stalled"} <= conditions.keys()
    if conditions["Ready"][0] == "True":
        assert "Stalled" not in conditions


def test_freshness_never_lowers_ready() -> None:
    assert conditions_of(driver(lag_seconds=10_000.0))["Ready"] == ("True", "AllReady")


def test_a_deletion_is_no_warning() -> None:
    deleted = landing(manifest=gen.topic("flights", gen.deleting(names.FINALIZER)))
    assert conditions_of(deleted)["Ready"] == ("False", "Deleting")
    assert announcements.transitions(documented(landing()), documented(deleted)) == []


def test_a_suspension_is_no_warning() -> None:
    (event,) = announcements.transitions(documented(landing()), documented(spec(suspend=True)))
    assert (event.type, event.reason) == ("Normal", "NotReady")
    assert event.message.startswith("spec.suspend is true")


def test_ready_names_every_cause_that_needs_another_spec() -> None:
    observed = spec(partitions=2)
    table = InvalidSpecError("table lake.demo.flights: column id is int", reason=Reason.SCHEMA_INCOMPATIBLE)
    text = message(observed, ConditionType.READY, replace(HEALTHY, table=table))
    assert text.startswith("Kafka topic flights has 3 partitions")
    assert text.endswith("; also, TableReady is False: table lake.demo.flights: column id is int")


def test_ready_leaves_out_further_causes_that_pass_by_themselves() -> None:
    observed = landing(manifest=gen.topic(partitions=2), progress=gen.progress(state="Starting"))
    assert "IngestionReady" not in message(observed, ConditionType.READY)


def test_a_halt_names_the_record_and_the_way_out() -> None:
    halted = driver(state="Halted", halted_at=HaltedAt(partition=2, offset=900, code="WrongKind", column="id"))
    text = message(halted, ConditionType.INGESTION_READY)
    assert "partition 2, offset 900 (WrongKind in column id)" in text
    assert "kubectl -n demo annotate --overwrite itopic flights firn.dev/resume=skip:2:900" in text
    conditions = conditions_of(halted)
    assert conditions["Ready"] == ("False", "BadRecordHalt")
    assert "Reconciling" not in conditions, "nothing is under way: the user has to act"
    document = documented(halted, HEALTHY)
    assert document["ingestion"]["haltedAt"] == {"partition": 2, "offset": 900}


@pytest.mark.parametrize("state", ["Running", "CaughtUp"])
def test_ingestion_that_works_has_one_message(state: str) -> None:
    working = driver(state=state, message="the message of an earlier version")
    assert conditions_of(working)["IngestionReady"] == ("True", state)
    assert message(working, ConditionType.INGESTION_READY) == "records are landing in the table"


def test_a_topic_is_fresh_again_only_well_below_its_limit() -> None:
    behind = documented(driver(lag_seconds=61.0), HEALTHY)
    manifest = gen.topic("flights", gen.with_status(behind))
    assert conditions_of(landing(manifest=manifest, progress=gen.progress(lag_seconds=55.0)))["Fresh"] == (
        "False",
        "Behind",
    )
    assert conditions_of(landing(manifest=manifest, progress=gen.progress(lag_seconds=40.0)))["Fresh"] == (
        "True",
        "WithinTarget",
    )


def test_conditions_describe_what_runs_under_a_rejected_spec() -> None:
    before = documented(landing(), HEALTHY)
    observed = landing(manifest=gen.topic("flights", gen.with_status(before), gen.generation(2)))
    conditions = conditions_of(observed, failed(Reason.INCOMPATIBLE_SCHEMA))
    assert conditions["TopicReady"] == ("True", "Created")
    assert conditions["TableReady"] == ("True", "Created")
    assert conditions["IngestionReady"] == ("True", "Running")
    assert conditions["Ready"] == ("False", "IncompatibleSchema")


# The document


def test_conditions_have_a_fixed_order_and_a_generation() -> None:
    observed = landing(manifest=gen.topic("flights", gen.generation(7)), group=GroupHealth(Reason.STARTING, "starts"))
    document = documented(observed, replace(HEALTHY, job=observed.job))
    kinds = [item["type"] for item in document["conditions"]]
    assert kinds == [
        "Ready",
        "SpecValid",
        "TopicReady",
        "TableReady",
        "IngestionReady",
        "Fresh",
        "RecordsAccepted",
        "Complete",
        "Reconciling",
    ]
    assert document["observedGeneration"] == 7
    assert {item["observedGeneration"] for item in document["conditions"]} == {7}


def test_a_transition_time_moves_only_when_status_flips() -> None:
    first = documented(landing(), HEALTHY)
    later = gen.NOW + timedelta(hours=1)
    same = gen.topic("flights", gen.with_status(first))
    second = documented(landing(manifest=same, progress=gen.progress(state="CaughtUp"), now=later), HEALTHY)
    assert [condition["lastTransitionTime"] for condition in second["conditions"]] == [
        condition["lastTransitionTime"] for condition in first["conditions"]
    ]
    third = documented(landing(manifest=same, group=GroupHealth(Reason.STARTING, "s"), now=later), HEALTHY)
    times = {condition["type"]: condition["lastTransitionTime"] for condition in third["conditions"]}
    assert times["TopicReady"] == "2026-03-01T12:00:00Z"


def test_the_status_has_every_documented_field() -> None:
    observed = landing(progress=gen.progress(dead_letters=12, dead_letter_table="lake.demo.flights__dlq"))
    document = documented(observed, replace(HEALTHY, job=observed.job))
    del document["conditions"]
    assert document == {
        "observedGeneration": 1,
        "profile": "classic",
        "topicName": "flights",
        "topicId": "topic-id-1",
        "partitions": 3,
        "bootstrapServers": "firn-broker-classic-bootstrap.firn-system.svc:9092",
        "table": {
            "identifier": "lake.demo.flights",
            "uuid": "table-1",
            "location": "s3://firn/warehouse/demo/flights",
            "deadLetters": "lake.demo.flights__dlq",
        },
        "ingestion": {
            "group": "default",
            "lastCommitTime": "2026-03-01T11:59:50Z",
            "deadLetters": 12,
            "lag": {"records": 0, "seconds": 1, "time": "2026-03-01T12:00:00Z"},
        },
    }


def test_unknown_fields_of_the_status_keep_their_last_value() -> None:
    before = documented(landing(), HEALTHY)
    observed = gen.observed(
        gen.topic("flights", gen.with_status(before)), fleet=FleetHealth(Reason.BROKER_UNREACHABLE, "gone"), job=True
    )
    after = documented(observed, TopicFindings(job=observed.job))
    for key in ("topicId", "partitions", "table", "profile"):
        assert after[key] == before[key]


def test_times_and_counts_alone_are_not_significant() -> None:
    first = documented(landing(), HEALTHY)
    same = gen.topic("flights", gen.with_status(first))
    later = landing(
        manifest=same, progress=gen.progress(state="CaughtUp", dead_letters=9, last_commit=gen.NOW.timestamp())
    )
    second = documented(later, HEALTHY)
    assert second != first
    assert status.significant(second) == status.significant(first)
    halted = documented(landing(manifest=same, progress=gen.progress(state="Halted")), HEALTHY)
    assert status.significant(halted) != status.significant(first)


def test_messages_stay_the_same_when_errors_hold_ids_and_times() -> None:
    texts = [
        "request 5f0c1d0e-6f2b-4d5e-9c64-0123456789ab failed at 2026-03-01T12:00:00Z, attempt 3",
        "request 9e0c1d0e-6f2b-4d5e-9c64-ba9876543210 failed at 2026-03-01T12:00:07Z, attempt 4",
    ]
    first, second = (
        message(landing(), ConditionType.TABLE_READY, replace(HEALTHY, table=UnavailableError(text))) for text in texts
    )
    assert first == second


def test_a_message_is_cut_at_its_limit() -> None:
    text = message(landing(), ConditionType.TABLE_READY, replace(HEALTHY, table=UnavailableError("x" * 100_000)))
    assert len(text) <= 1024


def test_a_paused_topic_keeps_its_other_conditions() -> None:
    before = documented(landing(), HEALTHY)
    manifest = gen.topic("flights", gen.with_status(before), gen.generation(5))
    document = status.paused(gen.observed(manifest))
    # Generation 5 was not reconciled, and a client that waits for it (kstatus) must not believe that it was.
    assert document["observedGeneration"] == before["observedGeneration"] == 1
    conditions = {condition["type"]: condition for condition in document["conditions"]}
    assert (conditions["Paused"]["status"], conditions["Paused"]["reason"]) == ("True", "PausedByAnnotation")
    assert conditions["Paused"]["observedGeneration"] == 5
    assert [condition for condition in document["conditions"] if condition["type"] != "Paused"] == before["conditions"]


def test_a_topic_may_be_paused_before_its_first_reconcile() -> None:
    document = status.paused(gen.observed(gen.topic("flights", gen.generation(1))))
    assert document["observedGeneration"] == -1
    statuses = {condition["type"]: condition["status"] for condition in document["conditions"]}
    assert statuses == {"Ready": "Unknown", "Paused": "True"}


def test_a_version_3_table_stays_ready_while_its_driver_restarts() -> None:
    manifest = gen.topic("flights", table=V3)
    ready = documented(landing(manifest=manifest, progress=gen.progress(table_ready=True)), FORMAT_3)
    for progress in (None, gen.progress(state="Starting"), gen.progress(state="BackingOff", table_ready=True)):
        for generation, expected in ((1, "True"), (2, "False")):
            again = gen.topic("flights", gen.with_status(ready), gen.generation(generation), table=V3)
            conditions = documented(landing(manifest=again, progress=progress), FORMAT_3)["conditions"]
            assert [condition["status"] for condition in conditions if condition["type"] == "TableReady"] == [expected]


def test_dead_letters_stay_in_the_status_while_a_driver_starts() -> None:
    before = documented(landing(progress=gen.progress(dead_letters=12)), HEALTHY)
    manifest = gen.topic("flights", gen.with_status(before))
    for state, count, expected in (
        ("Starting", 0, 12),
        ("Suspended", 0, 12),
        ("BackingOff", 13, 13),
        ("CaughtUp", 0, 0),
    ):
        after = documented(landing(manifest=manifest, progress=gen.progress(state=state, dead_letters=count)), HEALTHY)
        assert after["ingestion"]["deadLetters"] == expected, state


@pytest.mark.parametrize(
    ("first", "second", "updated"),
    [
        ({"lag_records": 0, "lag_seconds": 0.0}, {"lag_records": 0, "lag_seconds": 0.0}, False),
        ({"lag_records": 600, "lag_seconds": 70.0}, {"lag_records": 900, "lag_seconds": 120.0}, False),
        ({"lag_records": 600, "lag_seconds": 70.0}, {"lag_records": 1100, "lag_seconds": 120.0}, True),
        ({"lag_records": 600, "lag_seconds": 70.0}, {"lag_records": 600, "lag_seconds": 130.0}, True),
        ({"lag_records": 600}, {"lag_records": 601, "last_commit": gen.NOW.timestamp()}, True),
        ({"lag_records": 600}, {"lag_records": None, "lag_seconds": None}, False),
    ],
    ids=["idle", "the same magnitude", "more records", "longer", "a commit", "not compared"],
)
def test_the_lag_is_written_after_a_commit_or_when_its_magnitude_changes(
    first: dict[str, Any], second: dict[str, Any], updated: bool
) -> None:
    before = documented(landing(progress=gen.progress(**first)))
    manifest = gen.topic("flights", gen.with_status(before))
    later = gen.NOW + timedelta(seconds=60)
    after = documented(landing(manifest=manifest, progress=gen.progress(**second), now=later))
    lag = {"records": second["lag_records"], "time": "2026-03-01T12:01:00Z"}
    assert (lag.items() <= after["ingestion"]["lag"].items()) is updated
    assert updated or after["ingestion"] == before["ingestion"]
    assert status.significant(after)["ingestion"] == status.significant(before)["ingestion"]


async def test_idle_topics_cause_no_writes_and_a_growing_lag_causes_few() -> None:
    live = World()
    live.cluster.create(gen.topic("flights"))
    live.driver.report_fields["uid-demo-flights"] = {"lag_records": 0, "lag_seconds": 0.0}
    await live.settle(300)
    version = live.cluster.topic("flights")["metadata"]["resourceVersion"]
    await live.settle(300)
    assert live.cluster.topic("flights")["metadata"]["resourceVersion"] == version
    live.driver.report_fields["uid-demo-flights"] = {"lag_records": 500, "lag_seconds": 30.0}
    await live.settle(300)
    assert live.cluster.topic("flights")["status"]["ingestion"]["lag"]["records"] == 500


def test_the_message_about_rejected_records_has_code_count_and_place() -> None:
    assert message(rejecting(501), ConditionType.RECORDS_ACCEPTED) == (
        "501 of the last 1000 records did not fit the schema, the last one with InvalidJson at $;"
        " table lake.demo.flights__dlq has them with the cause; correct the producer or the schema"
    )
    skipping = replace(rejecting(1), resource=spec(ingestion={"onBadRecord": "Skip"}).resource)
    assert message(skipping, ConditionType.RECORDS_ACCEPTED).endswith("; they are dropped, because onBadRecord is Skip")


@pytest.mark.parametrize(
    ("before", "records", "rejected", "changes", "expected"),
    [
        (rejecting(501), 1, 0, {}, "MostRejected"),
        (rejecting(501), 99, 0, {}, "MostRejected"),
        (rejecting(501), 99, 40, {}, "SomeRejected"),
        (rejecting(501), 100, 0, {}, "AllAccepted"),
        (rejecting(501), 1, 0, {"new_schema": True}, "AllAccepted"),
        (suspicious(0), 1, 0, {}, "SuspiciousTimes"),
        (rejecting(3), 1, 0, {}, "SomeRejected"),
        (rejecting(3), 1, 1, {}, "MostRejected"),
        (rejecting(0), 1, 0, {}, "AllAccepted"),
    ],
)
def test_a_restarted_driver_needs_some_records_for_a_better_verdict(
    before: ObservedTopic, records: int, rejected: int, changes: dict[str, Any], expected: str
) -> None:
    recent = RecentRecords(records=records, rejected=rejected, code="WrongKind", path="$.b", **changes)
    manifest = gen.topic("flights", gen.with_status(documented(before)))
    restarted = landing(manifest=manifest, progress=gen.progress(recent=recent))
    assert conditions_of(restarted)["RecordsAccepted"][1] == expected


def test_enough_records_for_a_better_verdict_wake_the_topic() -> None:
    few, enough = (gen.progress(recent=RecentRecords(records=records)) for records in (99, 100))
    assert status.driver_digest(few, 60_000) != status.driver_digest(enough, 60_000)


def test_rejected_records_with_times_of_another_unit_name_column_sample_and_option() -> None:
    text = message(suspicious(501), ConditionType.RECORDS_ACCEPTED)
    assert text.startswith("501 of the last 1000 records did not fit the schema")
    assert "column at has times such as 1970-01-21, because its integers count in another unit" in text
    assert text.endswith(
        "if they count in s, set epoch: s of the field in spec.schema.fields, which applies to later records"
    )


def test_the_message_about_suspicious_times_has_column_sample_and_option() -> None:
    text = message(suspicious(3), ConditionType.RECORDS_ACCEPTED)
    assert text.startswith("column at has times such as 1970-01-21, because its integers count in another unit")
    assert "set epoch: s of the field in spec.schema.fields" in text
    events = announcements.transitions(documented(rejecting(3)), documented(suspicious(3)))
    assert [item.reason for item in events] == [announcements.EventReason.SUSPICIOUS_TIMES]


def test_counts_of_rejected_records_wait_for_the_next_refresh_and_a_new_reason_does_not() -> None:
    observed = [rejecting(count) for count in (0, 3, 4, 501)]
    documents = [documented(each) for each in observed]
    parts = [status.significant(document) for document in documents]
    assert [earlier == later for earlier, later in pairwise(parts)] == [False, True, False]
    digests = [status.driver_digest(each.progress, 60_000) for each in observed if each.progress is not None]
    assert [earlier == later for earlier, later in pairwise(digests)] == [False, True, False]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((0, 1), True), ((1, 2), False), ((1, 501), True), ((501, 1), False), ((1, 0), False), ((501, 600), False)],
)
def test_an_event_reports_the_first_rejected_record_and_when_most_are_rejected(
    counts: tuple[int, int], expected: bool
) -> None:
    before, after = (documented(rejecting(count)) for count in counts)
    reasons = [item.reason for item in announcements.transitions(before, after)]
    assert (announcements.EventReason.RECORDS_REJECTED in reasons) is expected


def test_a_driver_that_starts_changes_nothing_about_rejected_records() -> None:
    before = documented(rejecting(501))
    after = documented(landing(manifest=gen.topic("flights", gen.with_status(before))))
    assert condition_in(after, "RecordsAccepted") == condition_in(before, "RecordsAccepted")


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("UnknownField", "; add the field to the schema, or send the record to the dead letters: kubectl"),
        ("MissingRequired", "; set required: false of the field, which you cannot undo, or send"),
        ("InvalidJson", "; send the record to the dead letters: kubectl"),
        ("WrongKind", "; send the record to the dead letters: kubectl"),
    ],
)
def test_a_halt_advises_only_changes_that_are_allowed_and_help(code: str, advice: str) -> None:
    halted = HaltedAt(partition=2, offset=900, code=code)
    assert advice in message(driver(state="Halted", halted_at=halted), ConditionType.INGESTION_READY)


def test_a_halt_names_the_quality_rule_and_the_status_counts_failures() -> None:
    rules = [{"name": "plausible", "check": "id > 0", "onFail": "Halt"}, {"name": "new", "check": "id < 9"}]
    halted = HaltedAt(partition=2, offset=900, code="QualityRule", column="id", rule="plausible")
    progress = gen.progress(state="Halted", halted_at=halted, failed_rules={"plausible": 1, "old": 3})
    manifest = gen.topic("flights", quality={"rules": rules})
    text = message(landing(manifest=manifest, progress=progress), ConditionType.INGESTION_READY)
    assert "offset 900 (QualityRule in rule plausible); correct the rule in spec.quality.rules, or send" in text
    document = documented(landing(manifest=manifest, progress=progress))
    assert document["quality"] == [{"rule": "plausible", "failed": 1}, {"rule": "new", "failed": 0}]
    restarted = gen.topic("flights", gen.with_status(document), quality={"rules": rules})
    later = documented(landing(manifest=restarted, progress=None))
    assert later["quality"] == document["quality"]
    assert "quality" not in status.significant(document)
    assert "quality" not in documented(landing())


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("skipp", "firn.dev/resume has an invalid value: write skip or skip:PARTITION:OFFSET"),
        ("skip:2", "has an invalid value"),
        ("skip:2:9999", "names another record than the one at which ingestion stopped"),
        ("skip:2:899", None),
        ("skip:1:9999", None),
        ("skip", None),
    ],
)
def test_an_annotation_that_cannot_end_a_halt_is_answered(value: str, answer: str | None) -> None:
    progress = gen.progress(state="Halted", halted_at=HaltedAt(partition=2, offset=900))
    text = message(
        landing(manifest=gen.topic("flights", gen.annotated("firn.dev/resume", value)), progress=progress),
        ConditionType.INGESTION_READY,
    )
    assert (answer in text) if answer else ("; annotation" not in text)


@pytest.mark.parametrize(
    ("key", "value", "answer"),
    [
        (
            "pause-reconciliation",
            "yes",
            'firn.dev/pause-reconciliation has an invalid value: write "true", or remove it',
        ),
        ("allow-forced-deletion", "True", 'firn.dev/allow-forced-deletion has an invalid value: write "true"'),
        ("acknowledge-loss", "all", "firn.dev/acknowledge-loss has an invalid value: write the name of a loss"),
        ("resume", "skipp", "firn.dev/resume has an invalid value: write skip or skip:PARTITION:OFFSET"),
        ("acknowledge-los", "1-3fa9c1d2", "firn.dev/acknowledge-los has no effect; did you mean firn.dev/acknowledge"),
        (
            "colour",
            "red",
            "firn.dev/colour has no effect; known are firn.dev/acknowledge-audit, firn.dev/acknowledge-loss",
        ),
        ("pause-reconciliation", "false", None),
        ("resume", "skip", None),
        ("restart", "2026-03-01", None),
        ("acknowledge-loss", "1-3fa9c1d2", None),
    ],
)
def test_an_annotation_without_effect_is_answered(key: str, value: str, answer: str | None) -> None:
    observed = landing(manifest=gen.topic("flights", gen.annotated(f"firn.dev/{key}", value)))
    text = message(observed, ConditionType.SPEC_VALID)
    assert (f"; annotation {answer}" in text) if answer else text == "the spec is valid"
    assert conditions_of(observed)["Ready"] == ("True", "AllReady")


def test_annotations_of_others_are_not_answered() -> None:
    observed = landing(manifest=gen.topic("flights", gen.annotated("argocd.argoproj.io/sync-wave", "1")))
    assert message(observed, ConditionType.SPEC_VALID) == "the spec is valid"


def test_a_new_annotation_of_firn_wakes_the_topic() -> None:
    plain, wrong, foreign = (
        gen.observed(gen.topic("flights", gen.annotated(key, "x"))).entry.trigger
        for key in ("example.com/a", "firn.dev/paus", "example.com/b")
    )
    assert plain == foreign != wrong


def test_a_condition_reports_an_unreadable_object() -> None:
    document = status.unreadable({}, 3, InvalidSpecError("spec.partitions: wrong"), gen.NOW)
    conditions = {condition["type"]: (condition["status"], condition["reason"]) for condition in document["conditions"]}
    assert conditions == {
        "Ready": ("False", "BadSchema"), "SpecValid": ("False", "BadSchema"), "Stalled": ("True", "InvalidSpec"),
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"lag_seconds": 2.0},
        {"rows": 5},
        {"lag_records": 7},
        {"last_commit": 5.0},
        {"dead_letters": 3},
        {"state": "CaughtUp"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_ordinary_progress_wakes_no_topic(change: dict[str, Any]) -> None:
    assert status.driver_digest(gen.progress(**change), 60_000) == status.driver_digest(gen.progress(), 60_000)


@pytest.mark.parametrize(
    "change",
    [
        {"lag_seconds": 61.0}, {"lag_seconds": 50.0}, {"state": "Halted"}, {"generation": 2}, {"failures": 5}, {"table_uuid": "x"},
        {"message": "other"}, {"last_commit": None}, {"backfilling": True}, {"dead_letter_table": "x"}, {"topic_id": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_progress_that_can_change_a_condition_wakes_the_topic(change: dict[str, Any]) -> None:
    assert status.driver_digest(gen.progress(**change), 60_000) != status.driver_digest(gen.progress(), 60_000)


def test_a_raw_topic_has_a_status() -> None:
    observed = landing(manifest=gen.topic(schema=None))
    assert isinstance(observed.schema, RecordSchema)
    assert conditions_of(observed)["Ready"] == ("True", "AllReady")


def test_the_status_counts_filtered_records_of_a_topic_with_a_filter() -> None:
    manifest = gen.topic("flights", schema={"raw": "String", "filter": "value is not null"})
    document = documented(landing(manifest=manifest, progress=gen.progress(filtered=7)))
    assert document["ingestion"]["filtered"] == 7
    restarted = gen.topic("flights", gen.with_status(document), schema=manifest["spec"]["schema"])
    assert documented(landing(manifest=restarted, progress=None))["ingestion"]["filtered"] == 7
    assert "filtered" not in status.significant(document)["ingestion"]
    assert "filtered" not in documented(landing())["ingestion"]
