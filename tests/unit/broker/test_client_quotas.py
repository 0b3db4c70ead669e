"""DescribeClientQuotas and AlterClientQuotas answer as Kafka's controller does (KIP-546)."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from firn_broker.access_types import Entity
from tests.fakes.virtual_time import run
from tests.unit.broker.whole import Asked, Shared, broker

DESCRIBE, ALTER = 48, 49
EXACT, DEFAULT, SPECIFIED = 0, 1, 2

ANA: Entity = (("user", "ana"),)
USERS: Entity = (("user", None),)
ANA_APP: Entity = (("client-id", "app"), ("user", "ana"))
ANA_CLIENTS: Entity = (("client-id", None), ("user", "ana"))
APP: Entity = (("client-id", "app"),)
ALL = (ANA, USERS, ANA_APP, ANA_CLIENTS, APP)
Quotas = Mapping[str, float | None]


def change(entity: Entity, quotas: Quotas) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": type, "entity_name": name} for type, name in entity],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in quotas.items()
        ],
    }


async def alter(
    asked: Asked, changes: Mapping[Entity, Quotas], version: int = 1, *, validate_only: bool = False
) -> dict[Entity, ErrorCode]:
    entries = [change(entity, quotas) for entity, quotas in changes.items()]
    return results(await asked.ask(ALTER, version, entries=entries, validate_only=validate_only))


def results(answer: Any) -> dict[Entity, ErrorCode]:
    errors = {_entity(entry): entry.error_code for entry in answer.entries}
    assert len(errors) == len(answer.entries)
    return errors


def _entity(entry: Any) -> Entity:
    return tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity))


async def describe(
    asked: Asked, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> dict[Entity, dict[str, float]]:
    parts = [{"entity_type": type, "match_type": kind, "match": name} for type, kind, name in components]
    answer = await asked.ask(DESCRIBE, version, components=parts, strict=strict)
    assert not answer.error_code, answer.error_message
    return {_entity(entry): {each.key: each.value for each in entry.values} for entry in answer.entries}


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_and_deleted(version: int) -> None:
    async def story() -> None:
        async with broker() as asked:
            changes: dict[Entity, Quotas] = {
                ANA: {"producer_byte_rate": 1048576.0, "request_percentage": 12.5},
                USERS: {"consumer_byte_rate": 1.0, "controller_mutation_rate": 0.5},
            }
            assert await alter(asked, changes, version) == {ANA: ErrorCode.none, USERS: ErrorCode.none}
            assert await describe(asked, version=version) == changes
            change = {"producer_byte_rate": None, "request_percentage": 50.0, "consumer_byte_rate": None}
            assert await alter(asked, {ANA: change}, version) == {ANA: ErrorCode.none}
            assert await describe(asked, ("user", EXACT, "ana"), version=version) == {ANA: {"request_percentage": 50.0}}
            await alter(asked, {ANA: {"request_percentage": None}})
            assert set(await describe(asked)) == {USERS}

    run(story())


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ((), False, ALL),
        ((), True, ()),
        ((("user", EXACT, "ana"),), False, (ANA, ANA_APP, ANA_CLIENTS)),
        ((("user", EXACT, "ana"),), True, (ANA,)),
        ((("user", DEFAULT, None),), False, (USERS,)),
        ((("user", SPECIFIED, None),), True, (ANA, USERS)),
        ((("user", SPECIFIED, None),), False, (ANA, USERS, ANA_APP, ANA_CLIENTS)),
        ((("client-id", EXACT, "app"),), True, (APP,)),
        ((("client-id", SPECIFIED, None), ("user", EXACT, "ana")), True, (ANA_APP, ANA_CLIENTS)),
        ((("user", EXACT, "ana"), ("client-id", DEFAULT, None)), True, (ANA_CLIENTS,)),
        ((("user", EXACT, "nobody"),), False, ()),
        ((("ip", SPECIFIED, None),), False, ()),
    ],
)
def test_filters_match_entities_as_in_kafka(
    components: tuple[tuple[str, int, str | None], ...], strict: bool, found: tuple[Entity, ...]
) -> None:
    async def story() -> None:
        async with broker() as asked:
            await alter(asked, {entity: {"producer_byte_rate": 1.0} for entity in ALL})
            assert set(await describe(asked, *components, strict=strict)) == set(found)

    run(story())


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([("", EXACT, "a")], ErrorCode.invalid_request),
        ([("group", EXACT, "a")], ErrorCode.unsupported_version),
        ([("user", EXACT, "a"), ("user", DEFAULT, None)], ErrorCode.invalid_request),
        ([("user", EXACT, None)], ErrorCode.invalid_request),
        ([("user", DEFAULT, "a")], ErrorCode.invalid_request),
        ([("user", SPECIFIED, "a")], ErrorCode.invalid_request),
        ([("user", 3, None)], ErrorCode.invalid_request),
        ([("ip", SPECIFIED, None), ("user", SPECIFIED, None)], ErrorCode.invalid_request),
    ],
)
def test_an_invalid_filter_is_rejected(components: list[tuple[str, int, str | None]], error: ErrorCode) -> None:
    async def story() -> None:
        async with broker() as asked:
            await alter(asked, {ANA: {"producer_byte_rate": 1.0}})
            parts = [{"entity_type": type, "match_type": kind, "match": name} for type, kind, name in components]
            answer = await asked.ask(DESCRIBE, 1, components=parts, strict=False)
            assert (answer.error_code, bool(answer.error_message), answer.entries) == (error, True, None)

    run(story())


@pytest.mark.parametrize(
    ("entity", "quotas"),
    [
        ((), {"producer_byte_rate": 1.0}),
        ((("ip", "10.0.0.1"),), {"connection_creation_rate": 1.0}),
        ((("group", "g"),), {"producer_byte_rate": 1.0}),
        ((("user", ""),), {"producer_byte_rate": 1.0}),
        ((("user", "a" * 1001),), {"producer_byte_rate": 1.0}),
        ((("user", "a"), ("user", "b")), {"producer_byte_rate": 1.0}),
        (ANA_APP, {"unknown": 1.0}),
        (ANA_APP, {"unknown": None}),
        (ANA_APP, {"producer_byte_rate": 0.0}),
        (ANA_APP, {"producer_byte_rate": -1.0}),
        (ANA_APP, {"producer_byte_rate": 1.5}),
        (ANA_APP, {"consumer_byte_rate": 1e19}),
        (ANA_APP, {"request_percentage": math.nan}),
        (ANA_APP, {"controller_mutation_rate": math.inf}),
        (ANA_APP, {"request_percentage": 1.0, "consumer_byte_rate": -1.0}),
    ],
)
def test_an_invalid_change_leaves_the_entity_as_it_is(entity: Entity, quotas: Quotas) -> None:
    async def story() -> None:
        async with broker() as asked:
            assert await alter(asked, {entity: quotas, ANA: {"request_percentage": 1.0}}) == {
                entity: ErrorCode.invalid_request, ANA: ErrorCode.none,
            }  # fmt: skip
            assert await describe(asked) == {ANA: {"request_percentage": 1.0}}

    run(story())


def test_an_entity_and_a_quota_are_changed_once_by_a_request() -> None:
    async def story() -> None:
        async with broker() as asked:
            twice = change(ANA, {"producer_byte_rate": 1.0})
            key_twice = change(APP, {"producer_byte_rate": 1.0})
            key_twice["ops"] *= 2
            once = change(USERS, {"producer_byte_rate": 1.0})
            answer = await asked.ask(ALTER, 1, entries=[twice, twice, key_twice, once], validate_only=False)
            assert results(answer) == {
                ANA: ErrorCode.invalid_request, APP: ErrorCode.invalid_request, USERS: ErrorCode.none,
            }  # fmt: skip
            assert set(await describe(asked)) == {USERS}

    run(story())


def test_a_validated_change_is_not_made() -> None:
    async def story() -> None:
        async with broker() as asked:
            changes: dict[Entity, Quotas] = {ANA: {"producer_byte_rate": 1.0}, APP: {"producer_byte_rate": -1.0}}
            assert await alter(asked, changes, validate_only=True) == {
                ANA: ErrorCode.none, APP: ErrorCode.invalid_request,
            }  # fmt: skip
            assert await describe(asked) == {}

    run(story())


def test_another_broker_describes_changed_quotas_at_once() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, seed=1) as first, broker(shared, seed=2) as second:
            await alter(first, {ANA_APP: {"producer_byte_rate": 1.0}})
            assert await describe(second) == {ANA_APP: {"producer_byte_rate": 1.0}}
            assert second.broker.access.quotas == {ANA_APP: {"producer_byte_rate": 1.0}}

    run(story())
