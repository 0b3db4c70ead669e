"""JSON of random tables comes back from the columns of its rows, whatever types they have."""

import base64
import json
import os
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from firn.tables import types
from firn.tables.types import ListOf, MapOf, Struct, Type
from tests.unit.broker.typed_rows import Typed

SEEDS = 2_000 if os.environ.get("FIRN_LONG") else 60
VALUES: Mapping[str, Callable[[random.Random], Any]] = {
    "boolean": lambda chance: chance.random() < 0.5,
    "int": lambda chance: chance.randrange(-99, 99),
    "long": lambda chance: chance.randrange(2**60),
    "double": lambda chance: chance.choice((1.0, chance.random(), 1e20, -0.0)),
    "decimal(10, 2)": lambda chance: f"{chance.randrange(10**6) / 100:.2f}",
    "string": lambda chance: chance.choice(("a", 'q"\\', "é\n", "")),
    "binary": lambda chance: base64.b64encode(chance.randbytes(chance.randrange(5))).decode(),
    "date": lambda chance: f"2026-11-{chance.randrange(1, 29):02}",
    "time": lambda chance: f"10:20:{chance.randrange(60):02}.123",
    "timestamp": lambda chance: f"2026-11-{chance.randrange(1, 29):02} 10:20:30",
    "timestamptz": lambda chance: f"2026-11-28T10:20:30.{chance.randrange(10**6):06}Z",
}


def random_type(chance: random.Random, depth: int) -> str:
    kind = chance.random()
    if depth == 0 or kind < 0.6:
        return chance.choice([*VALUES])
    if kind < 0.75:
        return f"list<{random_type(chance, depth - 1)}>"
    if kind < 0.85:
        return f"map<string, {random_type(chance, depth - 1)}>"
    members = [f"m{number}: {random_type(chance, depth - 1)}" for number in range(chance.randrange(1, 4))]
    return f"struct<{', '.join(members)}>"


def random_value(chance: random.Random, kind: Type) -> Any:
    if chance.random() < 0.15:
        return None
    match kind:
        case ListOf(element):
            return [random_value(chance, element) for _ in range(chance.randrange(3))]
        case MapOf(_, value):
            names = (f"{chance.choice('abé')}{number}" for number in range(chance.randrange(3)))
            return {name: random_value(chance, value) for name in names}
        case Struct(fields):
            return {name: random_value(chance, member) for name, member in fields}
    return VALUES[str(kind)](chance)


def without_null(value: Any) -> Any:
    """Return a value whose objects have no null."""
    if isinstance(value, dict):
        return {name: without_null(each) for name, each in value.items() if each is not None}
    return [without_null(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_records_of_one_writer_come_back(seed: int) -> None:
    chance = random.Random(seed)
    columns = {f"c{number}": random_type(chance, 2) for number in range(chance.randrange(1, 6))}
    kinds = {name: types.parse(kind) for name, kind in columns.items()}
    records: list[Any] = [
        {name: random_value(chance, kind) for name, kind in kinds.items()} for _ in range(chance.choice((1, 3, 60)))
    ]
    if "map" not in str(columns) and chance.random() < 0.5:
        # Entries of a map stay in the table if they are null.
        records = [without_null(record) for record in records]
    separators, ascii = chance.choice(((", ", ": "), (",", ":"))), chance.random() < 0.5
    texts: list[bytes | None] = [
        json.dumps(record, separators=separators, ensure_ascii=ascii).encode() for record in records
    ]
    texts.insert(chance.randrange(len(texts)), None)
    assert Typed(columns).unshaped(texts) == []
