"""Port `SubjectLookup`: the fake of unit tests, and the broker's adapter with a real Apicurio Registry."""

import itertools
from collections.abc import Iterator
from typing import Protocol

import pytest

from firn.model.errors import UnavailableError
from firn.schema_registry import RegistryAwayError
from firn_broker.ports import SubjectLookup
from firn_broker.settings import RegistrySettings
from firn_broker.topics.registries import HttpRegistries
from tests.fakes.schemas import FakeSubjects
from tests.servers.apicurio import Apicurio, apicurio
from tests.servers.process import free_port

ABSENT = 999_999
_numbers = itertools.count()


class Producer(Protocol):
    def __call__(self, *subjects: str) -> int:
        """Register a new schema in each of the subjects. Return its id."""
        ...


class SubjectLookupContract:
    """Fixtures: ``lookup`` and ``register``."""

    async def test_an_id_has_all_subjects_of_its_schema(self, lookup: SubjectLookup, register: Producer) -> None:
        number, other = register("orders-value", "shop orders/value"), register("refunds-value")
        assert await lookup.subjects("main", number) == {"orders-value", "shop orders/value"}
        assert await lookup.subjects("main", other) == {"refunds-value"}

    async def test_an_id_without_a_schema_has_no_subjects(self, lookup: SubjectLookup) -> None:
        assert await lookup.subjects("main", ABSENT) == frozenset()

    async def test_a_registry_that_is_not_configured_is_named(self, lookup: SubjectLookup) -> None:
        with pytest.raises(UnavailableError, match="schema registry other is not in the broker's configuration"):
            await lookup.subjects("other", 1)


class TestFakeSubjects(SubjectLookupContract):
    @pytest.fixture
    def lookup(self) -> FakeSubjects:
        return FakeSubjects()

    @pytest.fixture
    def register(self, lookup: FakeSubjects) -> Producer:
        def register(*subjects: str) -> int:
            number = next(_numbers)
            lookup.registered[number] = set(subjects)
            return number

        return register


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    with apicurio(tmp_path_factory.mktemp("registry")) as running:
        yield running


class TestHttpRegistries(SubjectLookupContract):
    @pytest.fixture
    def lookup(self, registry: Apicurio) -> Iterator[HttpRegistries]:
        lookup = HttpRegistries({"main": RegistrySettings(url=registry.connection.url)})
        yield lookup
        lookup.close()

    @pytest.fixture
    def register(self, registry: Apicurio) -> Producer:
        def register(*subjects: str) -> int:
            schema = {"type": "record", "name": f"Order{next(_numbers)}", "fields": [{"name": "a", "type": "int"}]}
            [number] = {registry.register(subject.replace("/", "%2F"), schema) for subject in subjects}
            return number

        return register


async def test_a_registry_that_does_not_answer_is_away() -> None:
    lookup = HttpRegistries({"main": RegistrySettings(url=f"http://127.0.0.1:{free_port()}")})
    with pytest.raises(RegistryAwayError, match="schema registry main: no answer from"):
        await lookup.subjects("main", 1)
    lookup.close()
