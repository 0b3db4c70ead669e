"""`firn sql` on a real catalog: names, pruned columns, types, and errors with a next step."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firn.model.config import Config
from firn.model.errors import InvalidSpecError, UnavailableError
from firn_operator.cli import database, main, query
from firn_operator.cli.lake import Lake


def lake_of(catalog: dict[str, str]) -> Lake:
    image = {"image": "x"}
    return Lake(
        Config.model_validate(
            {
                "namespace": "firn-system",
                "images": {"spark": image, "kafka": image},
                "defaultProfile": "classic",
                "profiles": {"classic": {}},
                "defaultCatalog": "lake",
                "catalogs": {"lake": catalog},
                "groups": {"default": {}},
            }
        )
    )


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    opened_lake = lake_of(
        {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    )
    rows = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int64()),
            "carrier": ["UA", "UA", None],
            "moment": pa.array(
                [datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")
            ),
            "_kafka": pa.array(
                [{"partition": 0, "offset": n} for n in range(3)],
                pa.struct([("partition", pa.int32()), ("offset", pa.int64())]),
            ),
        }
    )
    opened = opened_lake.catalog("lake")
    opened.create_namespace("demo")
    opened.create_table(("demo", "flights"), rows.schema).append(rows)
    return opened_lake


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("select count(*) as n from lake.demo.flights", [{"n": 3}]),
        ('select max("id") as top from "lake"."demo"."flights"', [{"top": 3}]),
        ("select id from lake.demo.flights where carrier = 'UA' and moment > '2013-01-15' order by id", [{"id": 2}]),
        ("select month(moment) as month, count(carrier) as n from lake.demo.flights where moment is not null group by all order by all",
         [{"month": 1, "n": 1}, {"month": 2, "n": 1}]),
        ("select _kafka.partition as p, max(_kafka.offset) as o from lake.demo.flights group by all", [{"p": 0, "o": 2}]),
        ("with a as (select id from lake.demo.flights) select count(*) as n from a join lake.demo.flights b on a.id = b.id", [{"n": 3}]),
        ("select typeof(carrier) as t, typeof(moment) as m from lake.demo.flights limit 1", [{"t": "VARCHAR", "m": "TIMESTAMP WITH TIME ZONE"}]),
        ("select moment from lake.demo.flights where id = 1", [{"moment": datetime(2013, 1, 1, tzinfo=UTC)}]),
        ("select hour(moment at time zone 'Asia/Tokyo') as h from lake.demo.flights where id = 1", [{"h": 9}]),
        ("select count(*) as n from lake.demo.flights a join lake.demo.flights b using (id)", [{"n": 3}]),
        ("select columns('carr.*') from lake.demo.flights where id = 1", [{"carrier": "UA"}]),
        ("select count(*) as n from (unpivot lake.demo.flights on id)", [{"n": 3}]),
        ("select id from lake.demo.flights where moment between '2013-01-15' and '2013-03-01'::timestamptz", [{"id": 2}]),
        (" Show tables; ", [{"table": "lake.demo.flights"}]),
    ],
)  # fmt: skip
def test_a_query_is_answered(lake: Lake, statement: str, expected: list[dict[str, Any]]) -> None:
    assert query.run(lake, statement).to_pylist() == expected


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("select * from lake.demo.nothing", r"lake\.demo\.nothing does not exist"),
        ("drop table lake.demo.flights", "one SELECT"),
        ("select 1; select 2", "one SELECT"),
        ("select nope from lake.demo.flights", "nope"),
        ("selec", "DuckDB"),
        ("select * from flights", "there is no table flights: tables are named CATALOG.NAMESPACE.NAME"),
        ("select * from demo.flights", "there is no table demo.flights: .*show tables"),
        ("select * from lake.demo.flights.files", "no metadata tables"),
        ('select * from lake.demo."flights$files"', "no metadata tables"),
        (f"select {'+'.join(['id'] * 900)} from lake.demo.flights", "nests too many expressions"),
    ],
)
def test_an_error_explains_why_a_query_failed(lake: Lake, statement: str, message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        query.run(lake, statement)


def test_columns_of_unknown_types_are_left_out_with_a_note(lake: Lake) -> None:
    catalog = lake.catalog("lake")
    table = catalog.load_table(("demo", "flights"))
    document = json.loads(table.metadata.model_dump_json())
    document.update({"format-version": 3, "next-row-id": 3})
    for schema in document["schemas"]:
        schema["fields"].append({"id": 90, "name": "notes", "required": False, "type": "variant"})
    (task,) = table.scan().plan_files()
    parts = pa.struct(
        [pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)]
    )
    path = task.file.file_path.removeprefix("file://")
    rows = pq.read_table(path)
    notes = pa.array([{"metadata": b"\1\0\0", "value": b"\x0c\5"}] * rows.num_rows, parts)
    field = pa.field("notes", parts, metadata={"PARQUET:field_id": "90"})
    pq.write_table(rows.append_column(field, notes), path)
    place = table.metadata_location.replace(".metadata.json", "-v3.metadata.json")
    with table.io.new_output(place).create() as stream:
        stream.write(json.dumps(document).encode())
    catalog.register_table(("demo", "noted"), place)
    said: list[str] = []
    result = query.run(lake, "select * from lake.demo.noted order by id", note=said.append)
    assert result.column_names == ["id", "carrier", "moment", "_kafka"]
    assert result["id"].to_pylist() == [1, 2, 3]
    assert said == [
        "table lake.demo.noted: firn sql leaves out column notes, because it does not read the type variant"
    ]


def test_a_long_query_prints_no_progress() -> None:
    with database.connect() as connection:
        assert connection.execute("SELECT current_setting('enable_progress_bar_print')").fetchone() == (False,)


def test_an_error_names_a_catalog_that_does_not_answer() -> None:
    lake = lake_of({"type": "sql", "uri": "postgresql://127.0.0.1:9/firn", "warehouse": "s3://firn/warehouse"})
    with pytest.raises(UnavailableError, match=r"table lake\.demo\.flights: .*refused"):
        query.run(lake, "select * from lake.demo.flights")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"id": 1}', '{"id": 1}'),
        (b"\x00\xff", "0x00ff"),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC), "key": b"k\xff", "text": "größe"},
         '{"at": "2026-01-02 00:00:00+00:00", "key": "0x6bff", "text": "größe"}'),
        ([{"a": None}], '[{"a": null}]'),
        (1.5, "1.5"),
    ],
)  # fmt: skip
def test_a_table_shows_structs_and_bytes_as_text(value: Any, shown: str) -> None:
    assert main.readable(value) == shown
