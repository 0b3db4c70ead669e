"""Answers are written as kio writes them, for every advertised message and version, and long ones in pieces."""

import dataclasses
import struct
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from firn.records.message_writer import encode
from firn_broker import api_table
from tests.fakes.virtual_time import run
from tests.unit.broker.test_decoding import sample, written
from tests.unit.broker.whole import broker, counting_turns, create

VERSIONS = [
    (api.key, version)
    for api in api_table.APIS
    if api.request is not None or api.name == "ApiVersions"
    for version in range(api.versions[0], api.versions[1] + 1)
]
METADATA = 3


def fields(message: Any, chance: Random) -> Any:
    """The message as handlers give one: nested dicts, with functions for some lists of them, and more than a version has."""
    if isinstance(message, tuple):
        parts = [fields(it, chance) for it in message]
        lazy = parts and isinstance(parts[0], Mapping) and chance.random() < 0.5
        return partial(list, parts) if lazy else parts or ()
    if not dataclasses.is_dataclass(message):
        return message
    found = {it.name: fields(getattr(message, it.name), chance) for it in dataclasses.fields(message)}
    return {**found, "of_another_version": 1}


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_answers_are_as_kio_writes_them(api: int, version: int) -> None:
    schema = load_response_schema(api, version)
    for seed in range(20):
        message = sample(schema, Random(seed))
        assert encode(api, version, fields(message, Random(seed))) == written(message)


@pytest.mark.parametrize(
    ("broken", "error"),
    [({"host": None}, TypeError), ({"port": None}, struct.error), ({"node_id": 1 << 31}, struct.error)],
)
def test_what_cannot_be_is_refused(broken: Mapping[str, Any], error: type[Exception]) -> None:
    node = {"node_id": 1, "host": "h", "port": 2, "rack": None}
    whole: dict[str, Any] = {"brokers": [node], "cluster_id": "c", "controller_id": 1, "topics": ()}
    assert encode(METADATA, 9, {**whole, "cluster_authorized_operations": 0})
    with pytest.raises(error):
        encode(METADATA, 9, {**whole, "brokers": [{**node, **broken}]})
    for missing in ("brokers", "topics"):
        with pytest.raises(KeyError):
            encode(METADATA, 9, {name: it for name, it in whole.items() if name != missing})
    with pytest.raises(KeyError):
        encode(METADATA, 9, {**whole, "brokers": [{"node_id": 1, "port": 2}]})


def test_a_long_answer_lets_others_in() -> None:
    async def story() -> None:
        async with broker() as asked:
            for number in range(12):
                await create(asked, f"t{number}", 2_000)
            found, turns = await counting_turns(asked.ask(METADATA, 12, topics=None))
            assert sum(len(it.partitions) for it in found.topics) == 24_000
            assert {it.error_code for it in found.topics} == {ErrorCode.none}
            assert turns >= 5

    run(story())
