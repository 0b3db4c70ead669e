"""The driver requests the schemas by which routes decide, after it has read or made the topic's own table."""

from types import SimpleNamespace
from typing import Any

import pytest

from firn.decoders.bad_records import Code
from firn.model.errors import NotReadyError
from firn.model.jobs import Route, SchemaFormat, WriterSchema
from firn.schemas.routes import MESSAGE, registry_schema
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.ingestion.topics import refused_schemas
from firn_spark.ingestion.topics.routing import Routing
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.worker.formats.writer_schemas import Refusal
from tests.unit.spark_driver.topic import topic

SCHEMA, MISSING = WriterSchema(text="{}"), Refusal(Code.UNKNOWN_SCHEMA, "schema 1 is missing")
NOTHING: Any = None


class Catalog:
    """Tables that do not exist yet."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def load(self, *_: str) -> None:
        return None

    def ensure(self, job: Any, _: Any = None) -> Any:
        self.made.append(job.table.name)
        raise NotReadyError("made")


def own(by: str = MESSAGE) -> Topic:
    values = registry_schema(SchemaFormat.AVRO, "main", "Payload", by)
    made = topic("events", 10)
    made.job = made.job.model_copy(update={"route": Route(values=values, before=("a",))})
    return made


def routing(answer: Any, catalog: Any = NOTHING) -> Routing:
    return Routing(catalog, NOTHING, SimpleNamespace(find=lambda *_: answer))  # type: ignore[arg-type]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> set[object]:
    """Keep refused schemas in memory in place of a table property."""
    kept: set[object] = set()

    def record(_: object, schemas: Any) -> None:
        kept.clear()
        kept.update(schemas)

    monkeypatch.setattr(refused_schemas.RefusedSchemas, "take", lambda _: frozenset(kept))
    monkeypatch.setattr(refused_schemas.RefusedSchemas, "record", record)
    return kept


def test_the_own_table_is_made_although_tables_need_schemas() -> None:
    catalog, made = Catalog(), own()
    preparation = Preparation(NOTHING, catalog, NOTHING, NOTHING, NOTHING)  # type: ignore[arg-type]
    preparation.prepare(made)
    made.route_schemas.need([1])
    preparation.prepare(made)
    assert catalog.made == ["events", "events"]


@pytest.mark.parametrize("by", [MESSAGE, "$.type"])
@pytest.mark.parametrize(
    ("uuid", "message"),
    [
        (None, r"Kafka topic events: routes by \S+ need .* has not read yet; if the IcebergTopic with spec.routes"),
        (
            "a",
            r"table lake\.\S+events: the routes by \S+ of Kafka topic events need it, and it no longer exists; wait",
        ),
    ],
)
def test_schemas_wait_for_the_own_table(uuid: str | None, message: str, by: str) -> None:
    made, schemas = own(by), routing(SCHEMA, Catalog())
    schemas.share(made)
    made.table.uuid = uuid
    made.route_schemas.need([1])
    with pytest.raises(NotReadyError, match=message):
        schemas.learn(made)


@pytest.mark.parametrize("by", [MESSAGE, "$.type"])
@pytest.mark.parametrize("final", [False, True])
def test_all_tables_wait_for_a_missing_schema_if_the_topic_halts_at_bad_records(
    recorded: set[object], final: bool, by: str
) -> None:
    made = own(by)
    made.job = made.job.model_copy(update={"on_bad_record": "Halt"})
    refusal = Refusal(MISSING.code, MISSING.detail, final=final)
    schemas = routing(refusal)
    schemas.share(made)
    made.route_schemas.need([1])
    if final:
        schemas.learn(made)
        assert made.route_schemas.known() == {1: refusal}
        return
    with pytest.raises(NotReadyError, match="schema 1 is missing; all tables of the topic wait"):
        schemas.learn(made)
    assert made.route_schemas.known() == {}
    made.job = made.job.model_copy(update={"on_bad_record": "DeadLetter"})
    schemas.learn(made)
    assert (made.route_schemas.known(), recorded) == ({1: MISSING}, {1})
