"""Port `Schemas`: the fake of unit tests, and the adapter with a real Apicurio Registry."""

import base64
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from google.protobuf import descriptor_pb2

from firn.model.clock import SystemClock
from firn.model.conditions import Reason
from firn.model.errors import FirnError, InvalidSpecError, UnavailableError
from firn.model.jobs import RegistryConnection, WriterSchema
from firn.schema_registry import MissingReferenceError, Registered, SchemaRegistry
from firn.schemas import descriptors
from firn_controllers.ports import Schemas
from firn_operator.adapters.schemas import RegistrySchemas
from tests.fakes.clock import FakeClock
from tests.fakes.schemas import FakeSchemas
from tests.servers.apicurio import Apicurio, apicurio
from tests.servers.process import free_port

MONEY = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "price", "type": "shop.Money"}]}
_numbers = itertools.count()


def in_base64(file: descriptor_pb2.FileDescriptorProto) -> str:
    """Return the text that Confluent's serializer for Python registers."""
    return base64.standard_b64encode(file.SerializeToString()).decode()


def name_of(kind: str) -> str:
    """Return the name of a reference to the type of money."""
    return "shop/money.proto" if kind == "PROTOBUF" else "shop.Money"


class Producer(Protocol):
    """Registers schemas as producers do."""

    def __call__(self, subject: str, schema: Any, kind: str = "AVRO", *, uses: str | None = None) -> int:
        """Register the next schema of a subject, and return its id.

        ``uses``: the subject with the type ``shop.Money``, or with the file ``shop/money.proto`` for a Protobuf schema.
        """
        ...


@pytest.fixture
def subject() -> str:
    return f"orders-{next(_numbers)} value"


class SchemasContract:
    """Fixtures: ``schemas``, ``register``, and ``subject`` without a schema."""

    async def test_a_subject_without_a_schema_is_none(self, schemas: Schemas, subject: str) -> None:
        assert await schemas.latest("main", subject) is None

    async def test_the_latest_schema_is_found(self, schemas: Schemas, register: Producer, subject: str) -> None:
        register(subject, '"string"')
        number = register(subject, MONEY)
        found = await schemas.latest("main", subject)
        assert found is not None
        assert (found.id, found.kind, json.loads(found.schema.text)) == (number, "AVRO", MONEY)
        assert found.schema.references == ()

    async def test_references_are_found_too(self, schemas: Schemas, register: Producer, subject: str) -> None:
        register(f"{subject} money", MONEY)
        register(subject, ORDER, uses=f"{subject} money")
        found = await schemas.latest("main", subject)
        assert found is not None
        assert [json.loads(text) for text in found.schema.references] == [MONEY]
        assert found.schema.names == ("shop.Money",)

    async def test_the_type_of_a_schema_is_returned(self, schemas: Schemas, register: Producer, subject: str) -> None:
        register(subject, 'syntax = "proto3"; message M { int32 a = 1; }', "PROTOBUF")
        found = await schemas.latest("main", subject)
        assert found is not None
        assert found.kind == "PROTOBUF"

    async def test_a_text_in_base64_becomes_descriptors(
        self, schemas: Schemas, register: Producer, subject: str
    ) -> None:
        money = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
        text = (
            'syntax = "proto3"; package shop; import "shop/money.proto"; import "google/protobuf/timestamp.proto";'
            "message Order { Money price = 1; google.protobuf.Timestamp at = 2; }"
        )
        wanted = await schemas.descriptors(text, {"shop/money.proto": money})
        files = {each.name: each for each in descriptor_pb2.FileDescriptorSet.FromString(wanted).file}
        register(f"{subject} money", in_base64(files["shop/money.proto"]), "PROTOBUF")
        register(subject, in_base64(files["schema.proto"]), "PROTOBUF", uses=f"{subject} money")
        found = await schemas.latest("main", subject)
        assert found is not None
        imports = dict(zip(found.schema.names, found.schema.references, strict=True))
        assert await schemas.descriptors(found.schema.text, imports) == wanted

    async def test_a_text_becomes_descriptors_with_those_of_its_imports(self, schemas: Schemas) -> None:
        money = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
        text = 'syntax = "proto3"; package shop; import "money.proto"; message Order { Money price = 1; }'
        found = descriptors.read(await schemas.descriptors(text, {"money.proto": money}))
        assert found.first == "shop.Order"
        assert set(found.messages) == {"shop.Order", "shop.Money"}

    async def test_a_text_with_a_mistake_is_refused_each_time(self, schemas: Schemas) -> None:
        for _ in range(2):
            with pytest.raises(InvalidSpecError, match="protoc rejects the text: schema.proto:1:") as refused:
                await schemas.descriptors("message", {})
            assert refused.value.reason == Reason.BAD_SCHEMA


class TestFakeSchemas(SchemasContract):
    @pytest.fixture
    def schemas(self) -> FakeSchemas:
        return FakeSchemas()

    @pytest.fixture
    def register(self, schemas: FakeSchemas) -> Producer:
        def register(subject: str, schema: Any, kind: str = "AVRO", *, uses: str | None = None) -> int:
            references = {name_of(kind): schemas.subjects[uses].schema.text} if uses is not None else {}
            text = schema if isinstance(schema, str) else json.dumps(schema)
            return schemas.register(subject, text, kind=kind, **references)

        return register


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    with apicurio(tmp_path_factory.mktemp("registry")) as running:
        yield running


class TestRegistrySchemas(SchemasContract):
    @pytest.fixture
    def schemas(self, registry: Apicurio) -> RegistrySchemas:
        return RegistrySchemas({"main": registry.connection}, SystemClock())

    @pytest.fixture
    def register(self, registry: Apicurio) -> Producer:
        def register(subject: str, schema: Any, kind: str = "AVRO", *, uses: str | None = None) -> int:
            return registry.register(subject, schema, kind, [(name_of(kind), uses)] if uses is not None else [])

        return register


async def test_a_schema_is_kept_for_a_minute_and_a_missing_subject_for_five_seconds(
    registry: Apicurio, subject: str
) -> None:
    clock = FakeClock()
    schemas = RegistrySchemas({"main": registry.connection}, clock)
    assert await schemas.latest("main", subject) is None
    first = registry.register(subject, MONEY)
    assert await schemas.latest("main", subject) is None
    clock.advance(6)
    found = await schemas.latest("main", subject)
    assert found is not None
    assert found.id == first
    second = registry.register(subject, '"string"')
    clock.advance(50)
    assert await schemas.latest("main", subject) == found
    clock.advance(11)
    found = await schemas.latest("main", subject)
    assert found is not None
    assert found.id == second


async def test_a_missing_reference_is_an_outage_at_first_and_then_a_bad_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    schemas = RegistrySchemas({"main": RegistryConnection(url="http://registry")}, clock)
    found = Registered(7, "AVRO", WriterSchema(text=json.dumps(MONEY)))
    missing = MissingReferenceError("schema registry main: a schema refers to version 3", reason=Reason.BAD_SCHEMA)
    answers: Iterator[Registered | MissingReferenceError] = iter([missing, missing, found, missing])

    def latest(_: object, subject: str) -> Registered:
        answer = next(answers)
        if isinstance(answer, Registered):
            return answer
        raise answer

    monkeypatch.setattr(SchemaRegistry, "latest", latest)
    for reason in (Reason.REGISTRY_UNREACHABLE, Reason.BAD_SCHEMA, None, Reason.REGISTRY_UNREACHABLE):
        if reason is None:
            assert await schemas.latest("main", "orders-value") == found
        else:
            with pytest.raises(FirnError, match="refers to version 3") as error:
                await schemas.latest("main", "orders-value")
            assert error.value.reason == reason
        clock.advance(61)


async def test_after_a_failure_no_subject_is_asked_for(tmp_path: Path) -> None:
    clock, port = FakeClock(), free_port()
    schemas = RegistrySchemas({"main": Apicurio(port).connection}, clock)
    with pytest.raises(UnavailableError) as away:
        await schemas.latest("main", "a")
    assert away.value.reason == Reason.REGISTRY_UNREACHABLE
    with apicurio(tmp_path / "registry", port) as back:
        back.register("b", MONEY)
        with pytest.raises(UnavailableError):
            await schemas.latest("main", "b")
        clock.advance(6)
        assert await schemas.latest("main", "b") is not None
