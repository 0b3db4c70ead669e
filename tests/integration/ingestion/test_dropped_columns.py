"""The driver drops approved columns by id. Records of earlier schemas do not add them again, and a later contract can."""

import fastavro

from firn.model.jobs import Column, Evolution, IngestJob, RecordSchema
from firn.schemas import changes
from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.evolution.avro import framed
from tests.integration.ingestion.test_exactly_once import good, topic_with
from tests.integration.ingestion.world import World, exactly, places, value
from tests.servers.apicurio import Apicurio

POLICY = Evolution(drop="DropColumn")


def approved(world: World, job: IngestJob, gone: tuple[str, ...]) -> Evolution:
    """Return the policy with the approval that the operator would propose."""
    table = world.table(job)
    approve = changes.proposed_drops(gone, POLICY, str(table.uuid()), int(table.schema().schemaId())).approve
    return POLICY.model_copy(update={"approved": approve})


def apply(world: World, job: IngestJob, schema: RecordSchema) -> IngestJob:
    later = job.model_copy(update={"record_schema": schema, "generation": job.generation + 1})
    world.apply(later)
    world.await_state(later, "CaughtUp", generation=later.generation)
    return later


def test_a_column_comes_again_with_another_id(world: World) -> None:
    topic, job = topic_with(world, good(0, 5), freshness_ms=500)
    first = int(world.table(job).schema().findField("score").fieldId())
    fields = tuple(field for field in job.record_schema.fields if field.name != "score")
    gone = job.record_schema.model_copy(update={"fields": fields, "evolution": POLICY, "gone": ("score",)})
    job = apply(world, job, gone)
    assert world.table(job).schema().findField("score") is not None, "nobody has approved it"
    job = apply(world, job, gone.model_copy(update={"evolution": approved(world, job, ("score",))}))
    assert world.table(job).schema().findField("score") is None
    world.produce(topic, [value(number) for number in range(5, 10)])
    world.await_rows(job, 10)
    again = (*fields, Column(name="score", type="string"))
    job = apply(world, job, gone.model_copy(update={"fields": again, "gone": ()}))
    assert int(world.table(job).schema().findField("score").fieldId()) > first
    world.produce(topic, [value(number, score="high") for number in range(10, 15)])
    rows = world.await_rows(job, 15)
    assert places(rows) == exactly({0: 15})
    assert [row["score"] for row in sorted(rows, key=lambda row: row["id"])] == [None] * 10 + ["high"] * 5


def test_an_earlier_schema_does_not_add_a_dropped_column(world: World, registry: Apicurio) -> None:
    topic = world.topic()
    subject = f"{topic}-value"
    world.settings = world.settings.model_copy(update={"registries": {"main": registry.connection}})
    names = (("id", "note"), ("id",))
    schemas = [
        {"type": "record", "name": "R", "fields": [{"name": name, "type": "string"} for name in each]} for each in names
    ]
    numbers = [registry.register(subject, schemas[0])]
    job = world.job(topic, record_schema=schema_of(registry, subject))

    def produce(writer: int, *ids: int) -> None:
        parsed = fastavro.parse_schema(schemas[writer])
        world.produce(topic, [framed(numbers[writer], parsed, {"id": f"{number:02}", "note": "x"}) for number in ids])

    world.apply(job)
    world.start()
    produce(0, *range(5))
    world.await_rows(job, 5)
    numbers.append(registry.register(subject, schemas[1]))
    policy = approved(world, job, ("note",))
    latest = schema_of(registry, subject).model_copy(update={"evolution": policy, "gone": ("note",)})
    job = apply(world, job, latest)
    for _ in range(2):
        end = world.end(topic)
        produce(0, end, end + 1)
        produce(1, end + 2)
        rows = world.await_rows(job, end + 3)
        assert places(rows) == exactly({0: end + 3})
        assert set(rows[0]) == {"id", "_kafka"}
        world.stop()
        world.start()
    assert world.dead(job) == []
