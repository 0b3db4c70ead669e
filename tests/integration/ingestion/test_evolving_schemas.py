"""Producers change their schemas at random while the driver is killed at random: no row is lost or under a wrong column."""

import io
import os
import random
from pathlib import Path
from typing import Any

import fastavro

from firn.model.jobs import IngestJob
from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.world import Process, World, exactly, places
from tests.servers.apicurio import Apicurio
from tests.servers.process import await_true

LONG = "FIRN_LONG" in os.environ
VERSIONS, RECORDS = (200, 10_000) if LONG else (90, 40)
"""Versions of the schema, and records of each. There are more versions than a driver keeps for a topic."""
KILLS = 8 if LONG else 2
WIDER = {"int": "long", "float": "double"}


class Evolution:
    """A schema that changes step by step. Each version has the fields of a record and of a record in it."""

    def __init__(self, pick: random.Random) -> None:
        self._pick = pick
        self._made = 0
        self.columns: dict[str, int] = {}
        """The column of each name, also of earlier names."""
        self.fields: dict[str, str] = {}
        self.inner: dict[str, str] = {}
        for fields in (self.fields, self.inner):
            self._add(fields)

    def step(self) -> None:
        """Add, drop, widen or rename a field, or change the order of the fields."""
        fields = self._pick.choice((self.fields, self.inner))
        change = self._pick.choice(("add", "add", "drop", "widen", "order", "rename"))
        if change == "add" or len(fields) < 2:
            self._add(fields)
        elif change == "drop":
            del fields[self._pick.choice(sorted(fields))]
        elif change == "widen":
            for name in [name for name, kind in fields.items() if kind in WIDER][:1]:
                fields[name] = WIDER[fields[name]]
        elif change == "rename":
            name, later = self._pick.choice(sorted(fields)), self._name()
            self.columns[later] = self.columns[name]
            self._order(fields, {later if each == name else each: kind for each, kind in fields.items()})
        else:
            names = list(fields)
            self._pick.shuffle(names)
            self._order(fields, {name: fields[name] for name in names})

    @staticmethod
    def _order(fields: dict[str, str], ordered: dict[str, str]) -> None:
        fields.clear()
        fields.update(ordered)

    def _name(self) -> str:
        self._made += 1
        return f"f{self._made}"

    def _add(self, fields: dict[str, str]) -> None:
        name = self._name()
        self.columns[name] = self._made
        fields[name] = self._pick.choice(("int", "long", "float", "double", "string", "boolean"))

    def schema(self) -> dict[str, Any]:
        """Return the present version."""

        def declared(fields: dict[str, str]) -> list[Any]:
            return [{"name": name, "type": ["null", kind], "aliases": earlier(name)} for name, kind in fields.items()]

        def earlier(name: str) -> list[str]:
            return [each for each, column in self.columns.items() if column == self.columns[name] and each != name]

        inner = {"type": "record", "name": "Inner", "fields": declared(self.inner)}
        fields = [{"name": "id", "type": "long"}, *declared(self.fields), {"name": "inner", "type": inner}]
        return {"type": "record", "name": "Outer", "fields": fields}

    def values(self) -> dict[str, Any]:
        """Return random values for all fields of the present version."""
        return {**self._values(self.fields), "inner": self._values(self.inner)}

    def _values(self, fields: dict[str, str]) -> dict[str, Any]:
        pick = self._pick
        kinds: dict[str, Any] = {
            "int": lambda: pick.randint(-(2**31), 2**31 - 1),
            "long": lambda: pick.randint(-(2**62), 2**62),
            "float": lambda: float(pick.randint(-1000, 1000)) / 4,
            "double": pick.random,
            "string": lambda: "größe" * pick.randint(0, 3),
            "boolean": lambda: pick.random() < 0.5,
        }
        return {name: None if pick.random() < 0.2 else kinds[kind]() for name, kind in fields.items()}


class KilledDrivers:
    """Drivers of which each is killed after it has landed rows."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._landed = 0
        self.running: Process | None = None

    def restart(self, job: IngestJob) -> None:
        """Kill the driver while it works, and start another one."""
        if self.running is not None:
            await_true("rows land", lambda: self._world.size(job) > self._landed, 240)
            self.running.__exit__()
        self._landed = self._world.size(job)
        self.running = self._world.spawn()


def without_nulls(values: Any) -> dict[str, Any]:
    """Return the values that are not null, in structs too."""
    plain = values if isinstance(values, dict) else values.asDict(recursive=True)
    kept = {key: without_nulls(item) if key == "inner" and item else item for key, item in plain.items()}
    return {key: item for key, item in kept.items() if item is not None and key != "_kafka"}


def test_random_versions_of_a_schema_land_each_value_in_its_column(
    world: World, registry: Apicurio, tmp_path: Path
) -> None:
    seed = random.randrange(2**32) if LONG else 11
    pick = random.Random(seed)
    world.settings = world.settings.model_copy(
        update={"registries": {"main": registry.connection}, "schema_directory": str(tmp_path / "schemas")}
    )
    topic = world.topic(partitions=2)
    subject = f"{topic}-value"
    evolution = Evolution(pick)
    versions: list[tuple[int, Any]] = []
    job, written, number = None, [], 0
    kills = sorted(pick.sample(range(VERSIONS), KILLS))
    killed = KilledDrivers(world)
    for version in range(VERSIONS):
        evolution.step()
        parsed = fastavro.parse_schema(evolution.schema())
        versions.append((registry.register(subject, evolution.schema()), parsed))
        if job is None:
            job = world.job(topic, record_schema=schema_of(registry, subject))
            world.apply(job)
        batch = []
        for _ in range(RECORDS):
            # A second producer still writes with one of the earlier versions.
            schema_id, schema = versions[-1] if pick.random() < 0.7 else pick.choice(versions)
            values = {"id": number, **conforming(schema, evolution.values(), evolution.columns)}
            written.append((schema_id, values))
            batch.append(framed(schema_id, schema, values))
            number += 1
        world.produce(topic, batch)
        if version in kills:
            killed.restart(job)
    assert job is not None
    with killed.running or world.spawn():
        rows = world.await_rows(job, number, seconds=600)
    assert places(rows) == exactly({part: world.end(topic, part) for part in (0, 1)}), f"seed {seed}"
    found = {row["id"]: row for row in rows}
    for schema_id, values in written:
        row = found[values["id"]]
        assert by_column(row, evolution.columns) == by_column(values, evolution.columns), (
            f"seed {seed}, schema {schema_id}"
        )
        assert row["_kafka"]["schema_id"] == schema_id
    assert world.dead(job) == []


def by_column(values: Any, columns: dict[str, int]) -> dict[Any, Any]:
    """Return the values that are not null by their columns, which keep their identity under any name."""
    found = without_nulls(values)
    names = [columns.get(name, name) for name in [*found, *found.get("inner", {})]]
    assert len(set(names)) == len(names), "two columns of one field"
    inner = {columns[name]: item for name, item in found.pop("inner", {}).items()}
    return {**{columns.get(name, name): item for name, item in found.items()}, "inner": inner}


def conforming(schema: Any, values: dict[str, Any], columns: dict[str, int]) -> dict[str, Any]:
    """Return the values that fit the fields of an earlier version, and null for its other fields."""

    def fit(fields: Any, given: dict[str, Any]) -> dict[str, Any]:
        fitted: dict[str, Any] = {}
        known = {columns[name]: value for name, value in given.items() if name in columns}
        for field in fields:
            if isinstance(field["type"], list):
                value = known.get(columns[field["name"]])
                narrow = field["type"][1] in WIDER
                fitted[field["name"]] = None if narrow and isinstance(value, int | float) else value
        return fitted

    (inner,) = (field["type"]["fields"] for field in schema["fields"] if field["name"] == "inner")
    return {**fit(schema["fields"], values), "inner": fit(inner, values["inner"])}


def framed(schema_id: int, schema: Any, values: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, values)
    return b"\0" + schema_id.to_bytes(4) + buffer.getvalue()
