"""Answers equal those that kio writes, for every advertised message and version. Long answers are encoded in pieces."""

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
    """Return the message as handlers return it: nested dicts, some lists as functions, and fields that the version
    lacks."""
    if isinstance(message, tuple):
        parts = [fields(part, chance) for part in message]
        lazy = parts and isinstance(parts[0], Mapping) and chance.random() < 0.5
        return partial(list, parts) if lazy else parts or ()
    if not dataclasses.is_dataclass(message):
        return message
    values = {field.name: fields(getattr(message, field.name), chance) for field in dataclasses.fields(message)}
    return {**values, "of_another_version": 1}


@pytest.mark.slow
@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_answers_equal_those_that_kio_writes(api: int, version: int) -> None:
    schema = load_response_schema(api, version)
    for seed in range(20):
        message = sample(schema, Random(seed))
        assert encode(api, version, fields(message, Random(seed))) == written(message)


@pytest.mark.parametrize(
    ("broken", "error"),
    [({"host": None}, TypeError), ({"port": None}, struct.error), ({"node_id": 1 << 31}, struct.error)],
)
def test_an_impossible_answer_raises(broken: Mapping[str, Any], error: type[Exception]) -> None:
    node = {"node_id": 1, "host": "h", "port": 2, "rack": None}
    whole: dict[str, Any] = {"brokers": [node], "cluster_id": "c", "controller_id": 1, "topics": ()}
    assert encode(METADATA, 9, {**whole, "cluster_authorized_operations": 0})
    with pytest.raises(error):
        encode(METADATA, 9, {**whole, "brokers": [{**node, **broken}]})
    for missing in ("brokers", "topics"):
        with pytest.raises(KeyError):
            encode(METADATA, 9, {name: value for name, value in whole.items() if name != missing})
    with pytest.raises(KeyError):
        encode(METADATA, 9, {**whole, "brokers": [{"node_id": 1, "port": 2}]})


@pytest.mark.slow
def test_encoding_a_long_answer_yields_to_other_tasks() -> None:
    async def story() -> None:
        async with broker() as asked:
            for number in range(12):
                await create(asked, f"t{number}", 2_000)
            answer, turns = await counting_turns(asked.ask(METADATA, 12, topics=None))
            assert sum(len(topic.partitions) for topic in answer.topics) == 24_000
            assert {topic.error_code for topic in answer.topics} == {ErrorCode.none}
            assert turns >= 5

    run(story())
