"""A topic with routes has an IcebergTopic, and so a table, a contract and a status, for each of its tables."""

import json
import re
from typing import Any

import pytest

from firn.model import names
from firn.model.conditions import Reason
from firn.model.jobs import IngestJob, SchemaFormat, Subject
from firn.schemas.routes import registry_schema
from firn_controllers.iceberg_topic import checks
from firn_controllers.ports import TopicState
from firn_controllers.preview.topics import preview
from tests import gen
from tests.fakes.world import World

TABLES: list[dict[str, Any]] = [
    {"match": "AA", "name": "american"},
    {"match": "U.*", "name": "united_air", "partitionBy": ["carrier"]},
]
OTHER_FIELDS = {"format": "Json", "fields": [{"name": "reason", "type": "string"}]}


def routes(*tables: dict[str, Any], by: str = "$.carrier", **more: Any) -> dict[str, Any]:
    return {"by": by, "tables": list(tables or TABLES), **more}


async def applied(world: World, **spec: Any) -> World:
    """Create the topic, and let operator and driver finish their work."""
    given: dict[str, Any] = {"routes": routes(), "partitions": 2, "config": {"retention.ms": "1000"}, **spec}
    world.cluster.create(gen.topic("flights", labelled, **given))
    await world.settle()
    return world


def labelled(manifest: dict[str, Any]) -> None:
    manifest["metadata"]["labels"] = {"team": "travel", f"{names.GROUP}/of-firn": "x"}


def job(world: World, name: str = "flights") -> IngestJob:
    return world.job(f"uid-demo-{name}")


@pytest.fixture
def world() -> World:
    return World()


async def test_each_table_has_an_iceberg_topic_of_its_own(world: World) -> None:
    await applied(world, table={"sortBy": ["id"]}, ingestion={"freshness": "10s"})
    assert [live["metadata"]["name"] for live in world.cluster.topics()] == [
        "flights",
        "flights-american",
        "flights-united-air",
    ]
    made = world.cluster.topic("flights-united-air")
    assert made["metadata"]["labels"] == {"team": "travel", names.LABEL_ROUTES_OF: "flights"}
    assert [owner["uid"] for owner in made["metadata"]["ownerReferences"]] == ["uid-demo-flights"]
    assert made["spec"] == {
        "profile": "classic",
        "topicName": "flights",
        "schema": {"format": "Json", "fields": gen.FIELDS},
        "table": {
            "catalog": "lake",
            "namespace": "demo",
            "name": "united_air",
            "partitionBy": ["carrier"],
            "sortBy": ["id"],
        },
        "ingestion": {"freshness": "10s"},
        "route": {"of": "flights"},
    }


async def test_the_contracts_divide_the_records_of_one_kafka_topic(world: World) -> None:
    await applied(world, routes=routes(otherwise="Table"))
    first, second, rest = job(world, "flights-american"), job(world, "flights-united-air"), job(world)
    assert first.route is not None
    assert second.route is not None
    assert rest.route is not None
    assert (first.route.match, first.route.before) == ("AA", ())
    assert (second.route.match, second.route.before) == ("U.*", ("AA",))
    assert (rest.route.match, rest.route.before, rest.route.otherwise) == ("", ("AA", "U.*"), "Table")
    assert first.route.values == second.route.values == rest.route.values
    assert {each.topic_id for each in (first, second, rest)} == {rest.topic_id}
    assert {each.topic for each in (first, second, rest)} == {"flights"}
    assert [each.table.name for each in (first, second, rest)] == ["american", "united_air", "flights"]
    assert all(each.topic_created for each in (first, second, rest))


async def test_only_the_topic_itself_changes_the_kafka_topic(world: World) -> None:
    await applied(world)
    assert list(world.topics.topics) == [("classic", "flights")]
    world.topics.topics["classic", "flights"] = TopicState("flights", "id-new", 2, {})
    del world.topics.topics["classic", "flights"]
    world.clock.advance(4000)
    await world.settle()
    created = [line for line in world.faults.log if line.startswith("create topic")]
    assert len(created) <= 2
    assert world.conditions("flights-american")["TopicReady"] == ("True", "Created")


async def test_the_status_of_the_topic_sums_up_its_tables(world: World) -> None:
    world.driver.report_fields["uid-demo-flights-american"] = {"state": "Halted"}
    await applied(world)
    status = world.cluster.topic("flights")["status"]
    assert [(each["name"], each["topic"], each["ready"], each["reason"]) for each in status["tables"]] == [
        ("american", "flights-american", "False", "BadRecordHalt"),
        ("united_air", "flights-united-air", "True", "AllReady"),
    ]
    assert status["tables"][0]["identifier"] == "lake.demo.american"
    assert world.conditions()["RoutesReady"] == ("False", "BadRecordHalt")
    assert world.conditions()["Ready"] == ("False", "BadRecordHalt")
    assert "IcebergTopic flights-american" in world.message("Ready")
    del world.driver.report_fields["uid-demo-flights-american"]
    await world.settle()
    assert world.conditions()["RoutesReady"] == ("True", "AllReady")
    assert world.conditions()["Ready"] == ("True", "AllReady")


async def test_a_change_of_the_topic_reaches_its_tables_and_keeps_what_users_add(world: World) -> None:
    await applied(world)
    world.cluster.edit("flights-american", lambda live: live["metadata"].update(annotations={"note": "mine"}))

    more = {"format": "Json", "fields": [*gen.FIELDS, {"name": "reason", "type": "string"}]}

    def edit(live: dict[str, Any]) -> None:
        live["spec"]["suspend"] = True
        live["spec"]["routes"]["tables"][1]["schema"] = more
        del live["spec"]["routes"]["tables"][1]["partitionBy"]

    world.cluster.edit("flights", edit)
    await world.settle()
    assert job(world, "flights-american").suspended
    assert world.cluster.topic("flights-american")["metadata"]["annotations"]["note"] == "mine"
    assert world.cluster.topic("flights-united-air")["spec"]["schema"] == more


async def test_a_table_with_a_schema_of_its_own_has_no_layout_and_rules_of_the_topic(world: World) -> None:
    quality = {"rules": [{"name": "r", "check": "id > 0"}]}
    tables = ({**TABLES[0], "schema": OTHER_FIELDS}, TABLES[1])
    await applied(world, routes=routes(*tables), table={"partitionBy": ["carrier"]}, quality=quality)
    assert [column.name for column in job(world, "flights-american").record_schema.fields] == ["reason"]
    assert job(world, "flights-american").table.partition_by is None
    assert not job(world, "flights-american").quality_rules
    assert job(world, "flights-united-air").quality_rules


async def test_a_later_table_reads_the_protobuf_message_of_the_topic(world: World) -> None:
    text = 'syntax = "proto3"; message Order { int64 id = 1; }'
    await applied(world, schema={"format": "Protobuf", "text": text}, routes=routes(TABLES[0], by="header:kind"))
    later = text.replace("message Order", "message Item { int64 sku = 1; } message Order")
    more = {"schema": {"format": "Protobuf", "text": later}, "routes": routes(by="header:kind")}
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(more, table={}))
    world.cluster.edit(
        "flights", lambda manifest: manifest["spec"]["routes"]["tables"][1].update(partitionBy=["bucket(2, id)"])
    )
    await world.settle()
    for name in ("flights", "flights-american", "flights-united-air"):
        assert [field.name for field in job(world, name).record_schema.fields] == ["id"]


@pytest.mark.parametrize("part", ["value", "key"])
async def test_a_new_table_waits_for_the_protobuf_message_of_the_topic(part: str) -> None:
    """The operator restarts after it created the resource of the table, and reconciles it before that of the topic."""
    world = World(gen.config(registries=REGISTRIES))
    text = 'syntax = "proto3"; message Order { int64 id = 1; }'
    subject = f"flights-{part}"
    world.schemas.register(subject, text, kind="PROTOBUF")
    schema: dict[str, Any] = {"format": "Protobuf", "registry": {"name": "main"}}
    if part == "key":
        schema = {"format": "Json", "fields": gen.FIELDS[:1], "key": {"columns": "Flat", **schema}}
    await applied(world, schema=schema, routes=routes(TABLES[0], by="header:kind"))
    place = next(each for each in world.cluster.objects if each[3] == names.job("uid-demo-flights-american"))
    del world.cluster.objects[place]
    later = text.replace("message Order", "message Item { int64 sku = 1; } message Order")
    world.schemas.register(subject, later, kind="PROTOBUF")
    world.start()
    schedule = world.operator.queue.schedule
    schedule.release()
    last = []
    while (key := schedule.start_next()) is not None:
        if key == ("topic", "demo", "flights"):
            last.append(key)
        else:
            schedule.done(key, await world.operator.reconcile(key))
    assert last
    assert "uid-demo-flights-american" not in world.cluster.contracts()
    for key in last:
        schedule.done(key, await world.operator.reconcile(key))
    await world.settle()
    for name in ("flights", "flights-american"):
        found = job(world, name).record_schema
        assert [field.name for field in (found.key if part == "key" and found.key else found).fields] == ["id"]


async def test_a_quiet_pass_changes_no_resource(world: World) -> None:
    await applied(world)
    before = len(world.faults.log)
    world.clock.advance(4000)
    await world.settle()
    assert [line for line in world.faults.log[before:] if not line.startswith("status")] == []


async def test_an_iceberg_topic_of_a_user_is_left_alone(world: World) -> None:
    world.cluster.create(gen.topic("flights-american"))
    await world.settle()
    await applied(world)
    assert world.cluster.topic("flights-american")["spec"].get("route") is None
    assert world.conditions()["RoutesReady"] == ("False", "BadRoute")
    assert "exists already" in world.message("RoutesReady")
    assert world.conditions("flights-united-air")["Ready"] == ("True", "AllReady")


async def test_two_resources_never_have_one_table(world: World) -> None:
    world.cluster.create(gen.topic("older", table={"name": "american"}))
    await world.settle()
    await applied(world)
    assert world.conditions("flights-american")["SpecValid"] == ("False", "ResourceConflict")
    assert world.conditions()["Ready"] == ("False", "ResourceConflict")


@pytest.mark.parametrize("spec", [{"topicName": "flights"}, {"topicName": "secrets"}, {"table": {"name": "mine"}}])
async def test_a_route_that_no_topic_has_reads_nothing(world: World, spec: dict[str, Any]) -> None:
    await applied(world)
    given = {"topicName": "flights", "profile": "classic", "table": {"name": "x"}, "route": {"of": "flights"}, **spec}
    world.cluster.create(gen.topic("mine", **given))
    await world.settle()
    assert world.conditions("mine")["SpecValid"] == ("False", "BadRoute")
    assert "uid-demo-mine" not in world.cluster.contracts()


async def test_a_table_keeps_landing_after_the_topic_lost_its_routes_by_deletion(world: World) -> None:
    """Kubernetes deletes the IcebergTopic of a table with its owner. Until then it only reports the reason."""
    await applied(world)
    await world.cluster.delete_topic("demo", "flights", "uid-demo-flights")
    await world.settle()
    assert world.conditions("flights-american")["SpecValid"] == ("False", "BadRoute")
    assert "IcebergTopic flights does not exist" in world.message("SpecValid", "flights-american")


async def test_deleted_tables_leave_the_kafka_topic_to_their_parent(world: World) -> None:
    await applied(world, deletionPolicy={"topic": "Delete", "table": "Delete"})
    await world.cluster.delete_topic("demo", "flights-american", "uid-demo-flights-american")
    await world.settle()
    assert ("classic", "flights") in world.topics.topics
    assert "lake.demo.united_air" in world.tables.tables
    # The operator makes the IcebergTopic again, with a new table.
    assert "flights-american" in {live["metadata"]["name"] for live in world.cluster.topics()}


async def test_policies_govern_each_table(world: World) -> None:
    world.cluster.create(gen.policy("all", selector={"matchLabels": {"team": "travel"}}))
    await applied(world)
    for name in ("flights", "flights-american", "flights-united-air"):
        assert world.conditions(name)["PoliciesResolved"] == ("True", "Resolved")


@pytest.mark.parametrize("kill_at", range(1, 40, 3))
async def test_an_operator_killed_at_any_call_makes_the_same_tables(kill_at: int) -> None:
    world = World()
    world.faults.kill_at = kill_at
    await applied(world)
    await world.settle()
    assert len(world.cluster.topics()) == 3
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert len(world.cluster.contracts()) == 3


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        ({"routes": routes({"match": "(", "name": "a"})}, Reason.BAD_ROUTE, r"tables\[0\].match: \( is no RE2"),
        ({"routes": routes({"match": r"\Qa", "name": "a"})}, Reason.BAD_ROUTE, "no RE2 expression"),
        ({"routes": routes({"match": "a(?=b)", "name": "a"})}, Reason.BAD_ROUTE, "no RE2 expression"),
        ({"routes": routes(TABLES[0], {"match": "b", "name": "American"})}, Reason.BAD_ROUTE, "only in case"),
        ({"routes": routes(TABLES[0], TABLES[0])}, Reason.BAD_ROUTE, r"name of spec.routes.tables\[0\]"),
        ({"routes": routes({"match": "a", "name": "Flights"})}, Reason.BAD_ROUTE, "the topic's own table"),
        ({"routes": routes({"match": "a", "name": "flights__dlq"})}, Reason.BAD_ROUTE, "reserved for dead-letter"),
        ({"routes": routes({"match": "a", "name": "a" * 60})}, Reason.BAD_ROUTE, "1 to 52 lower-case letters"),
        ({"routes": routes({"match": "a", "name": "_"})}, Reason.BAD_ROUTE, "ends with a letter or digit"),
        ({"routes": routes({"match": "a", "name": "a_b"}, {"match": "b", "name": "A_B"})}, Reason.BAD_ROUTE, "case"),
        ({"routes": routes(by="$.at")}, Reason.BAD_ROUTE, "has the type timestamptz"),
        (
            {"routes": routes({**TABLES[0], "schema": {**OTHER_FIELDS, "gate": "Decode"}})},
            Reason.BAD_ROUTE,
            r"spec.routes.tables\[0\].schema.gate: brokers check all records",
        ),
        ({"ingestion": {"startFrom": "Latest"}}, Reason.BAD_ROUTE, "startFrom"),
        ({"ingestion": {"adopt": {"topicId": "x", "offsets": []}}}, Reason.BAD_ROUTE, "adopt"),
        (
            {"routes": routes({**TABLES[0], "schema": {"format": "Json", "fields": [{"name": "a", "type": "no"}]}})},
            Reason.BAD_SCHEMA,
            r"spec.routes.tables\[0\]: .*no",
        ),
    ],
)
def test_wrong_routes_are_refused_with_the_field(spec: dict[str, Any], reason: Reason, text: str) -> None:
    failure = checks.first_failure(gen.observed(gen.topic("flights", **{"routes": routes(), **spec})))
    assert failure is not None
    assert failure.reason is reason
    assert re.search(text, failure.message)


def test_a_field_that_is_no_column_decides_in_json_and_not_in_avro() -> None:
    assert checks.first_failure(gen.observed(gen.topic("flights", routes=routes(by="$.type")))) is None
    text = '{"type": "record", "name": "E", "fields": [{"name": "kind", "type": "string"}]}'
    avro: dict[str, Any] = {"schema": {"format": "Avro", "text": text}}
    failure = checks.first_failure(gen.observed(gen.topic("flights", routes=routes(by="$.type"), **avro)))
    assert failure is not None
    assert "no field $.type" in failure.message
    found = gen.topic("flights", routes=routes({"match": "a", "name": "a"}, by="$.kind"), **avro)
    assert checks.first_failure(gen.observed(found)) is None


REGISTRIES = {"main": {"url": "http://registry"}, "private": {"url": "http://other", "namespaces": ["vault"]}}


def of_message(message: str, table: str, form: str = "Avro", **registry: Any) -> dict[str, Any]:
    """Return the table of a message."""
    given = {"name": "main", "subjectStrategy": "TopicRecordName", **registry}
    return {"match": message, "name": table, "schema": {"format": form, "message": message, "registry": given}}


async def test_messages_decide_with_the_registry_of_the_routes() -> None:
    world = World(gen.config(registries=REGISTRIES))
    for name in ("Order", "Refund"):
        record = {"type": "record", "name": f"shop.{name}", "fields": [{"name": "id", "type": "long"}]}
        world.schemas.register(f"flights-shop.{name}", json.dumps(record))
    tables = [of_message("shop.Order", "orders"), of_message("shop.Refund", "refunds")]
    await applied(world, routes=routes(*tables, by="message"), schema=None)
    assert world.conditions()["Ready"] == ("True", "AllReady")
    own, orders, refunds = job(world), job(world, "flights-orders"), job(world, "flights-refunds")
    assert own.route is not None
    assert own.route.by == "message"
    assert own.route.values.subject == Subject(registry="main", name="")
    assert own.record_schema.format == "Raw"
    assert {each.route.values for each in (own, orders, refunds) if each.route is not None} == {own.route.values}
    assert orders.record_schema.subject == Subject(registry="main", name="flights-shop.Order")
    assert {each.version for each in (own, orders, refunds)} == {2}

    def edit(live: dict[str, Any]) -> None:
        for each in live["spec"]["routes"]["tables"]:
            each["schema"]["registry"]["idIn"] = "Header"

    world.cluster.edit("flights", edit)
    await world.settle()
    assert world.conditions()["SpecValid"] == ("False", "BadRoute")
    assert "registry, format and idIn of the contract in force, and these cannot change" in world.message("SpecValid")
    assert job(world).route == own.route


@pytest.mark.parametrize(
    ("tables", "reason", "text"),
    [
        ([TABLES[0]], Reason.BAD_ROUTE, "names a registry; set registry there"),
        (
            [of_message("a", "a"), of_message("b", "b", idIn="Header")],
            Reason.BAD_ROUTE,
            r"spec.routes.tables\[1\].schema differs from spec.routes.tables\[0\].schema",
        ),
        ([of_message("a", "a"), of_message("b", "b", "Protobuf")], Reason.BAD_ROUTE, "need the same format"),
        ([of_message("a", "a", idIn="None")], Reason.BAD_ROUTE, "the schema has registry.idIn: None"),
        (
            [of_message("a", "a", name="x")],
            Reason.REGISTRY_NOT_FOUND,
            r"spec.routes.tables\[0\].schema.registry.name: x",
        ),
        ([of_message("a", "a", name="private")], Reason.NOT_ALLOWED, "may not use schema registry private"),
    ],
)
def test_messages_need_one_registry(tables: list[dict[str, Any]], reason: Reason, text: str) -> None:
    given = gen.topic("flights", routes=routes(*tables, by="message"))
    failure = checks.first_failure(gen.observed(given, gen.config(registries=REGISTRIES)))
    assert failure is not None
    assert (failure.reason, bool(re.search(text, failure.message))) == (reason, True), failure.message


@pytest.mark.parametrize("form", ["Avro", "Protobuf"])
@pytest.mark.parametrize("own", [True, False])
async def test_a_field_decides_with_the_registry_of_the_schemas(form: str, own: bool) -> None:
    """The value is the same for all tables, whatever their schemas are. The topic itself may have the bytes of the other records."""
    world = World(gen.config(registries=REGISTRIES))
    text = json.dumps({"type": "record", "name": "E", "fields": [{"name": "id", "type": "long"}]})
    if form == "Protobuf":
        text = 'syntax = "proto3"; message E { int64 id = 1; }'
    for subject in ("flights-value", "flights-a", "flights-b"):
        world.schemas.register(subject, text, kind=form.upper())
    tables = [
        {
            "match": name,
            "name": name,
            "schema": {"format": form, "registry": {"name": "main", "subject": f"flights-{name}"}},
        }
        for name in ("a", "b")
    ]
    schema = {"format": form, "registry": {"name": "main"}} if own else None
    await applied(world, routes=routes(*tables, by="$.type"), schema=schema)
    assert world.conditions()["Ready"] == ("True", "AllReady"), world.message("Ready")
    jobs = [job(world), job(world, "flights-a"), job(world, "flights-b")]
    expected = registry_schema(SchemaFormat(form), "main", "Payload", "$.type")
    assert [each.route.values for each in jobs if each.route is not None] == [expected] * 3
    assert {each.version for each in jobs} == {2}
    assert all("main" in each.registries for each in jobs)

    def edit(live: dict[str, Any]) -> None:
        for each in (live["spec"].get("schema"), *(table["schema"] for table in live["spec"]["routes"]["tables"])):
            if each and each.get("registry"):
                each["registry"]["idIn"] = "Header"

    world.cluster.edit("flights", edit)
    await world.settle()
    assert world.conditions()["SpecValid"] == ("False", "BadRoute")
    assert "routes read $.type with the registry, format and idIn of the contract in force" in world.message(
        "SpecValid"
    )
    assert job(world).route == jobs[0].route


@pytest.mark.parametrize(
    ("schema", "tables", "reason", "text"),
    [
        (
            {"format": "Avro", "registry": {"name": "main"}},
            [of_message("b", "b", idIn="Header")],
            Reason.BAD_ROUTE,
            r"by: with \$.type, all schemas need .* spec.routes.tables\[0\].schema differs from spec.schema",
        ),
        (None, [of_message("a", "a", idIn="None")], Reason.BAD_ROUTE, r"by: \$.type needs the id of a schema"),
        (None, [of_message("a", "a", name="x")], Reason.REGISTRY_NOT_FOUND, r"tables\[0\].schema.registry.name: x"),
    ],
)
def test_fields_need_one_registry(schema: Any, tables: list[dict[str, Any]], reason: Reason, text: str) -> None:
    given = gen.topic("flights", routes=routes(*tables, by="$.type"), schema=schema)
    failure = checks.first_failure(gen.observed(given, gen.config(registries=REGISTRIES)))
    assert failure is not None
    assert (failure.reason, bool(re.search(text, failure.message))) == (reason, True), failure.message


async def test_all_tables_read_the_value_as_before_if_a_change_of_its_type_is_refused(world: World) -> None:
    """The contracts change one after the other, so a record could go to two tables, or to none."""
    await applied(world, routes=routes(by="$.kind"))
    before = [job(world, name).route for name in ("flights", "flights-american", "flights-united-air")]
    fields = [*gen.FIELDS, {"name": "kind", "type": "int"}]
    world.cluster.edit("flights", lambda live: live["spec"]["schema"].update(fields=fields))
    await world.settle()
    conditions = {each["type"]: each for each in world.cluster.topic("flights")["status"]["conditions"]}
    assert conditions["SpecValid"]["reason"] == Reason.BAD_ROUTE
    assert "read $.kind as string, so that field cannot become int" in conditions["SpecValid"]["message"]
    assert [job(world, name).route for name in ("flights", "flights-american", "flights-united-air")] == before

    fields[-1] = {"name": "kind", "type": "string"}
    world.cluster.edit("flights", lambda live: live["spec"]["schema"].update(fields=fields))
    await world.settle()
    assert world.conditions("flights")["SpecValid"][0] == world.conditions("flights-american")["SpecValid"][0] == "True"
    assert "kind" in [column.name for column in job(world, "flights-american").record_schema.fields]


def test_a_plan_names_the_iceberg_topics_of_new_and_changed_tables() -> None:
    first = preview(None, gen.observed(gen.topic("flights", routes=routes())))
    made = [(effect.field, effect.text) for effect in first if effect.field.startswith("spec.routes")]
    assert made == [
        (
            "spec.routes.tables[american]",
            "IcebergTopic flights-american with table lake.demo.american, for records whose $.carrier matches AA",
        ),
        (
            "spec.routes.tables[united_air]",
            "IcebergTopic flights-united-air with table lake.demo.united_air, for records whose $.carrier matches U.*",
        ),
    ]
    before = gen.observed(gen.topic("flights", routes=routes()), job=True)
    after = gen.topic("flights", gen.generation(2), routes=routes({**TABLES[0], "sortBy": ["id"]}, TABLES[1]))
    effects = preview(before, gen.observed(after, job=before.job))
    assert [(effect.field, effect.text) for effect in effects if effect.field.startswith("spec.routes")] == [
        ("spec.routes.tables[american]", "IcebergTopic flights-american follows: spec.table.sortBy")
    ]
