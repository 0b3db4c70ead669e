"""The work of a task without Spark: batches of many topics become files and counts."""

import hmac
import json
import math
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema

from firn.model.jobs import Column, ProjectedColumn, Projection, RecordSchema, Route
from firn.schemas import avro
from firn.schemas.routes import value_schema
from firn.tables import rows, table_properties
from firn_spark.worker import data_files
from firn_spark.worker import landing as landing_module
from firn_spark.worker.landing import RESULT_SCHEMA, LandingPlan, TopicLanding, land
from firn_spark.worker.projections.routing import RouteValues
from tests.unit.spark import tables
from tests.unit.spark.records import batch, job

GOOD, BAD = b'{"a": 1}', b'{"a": "x"}'


def plan(**topics: Any) -> Any:
    return LandingPlan(topics, ingested_at=1_700_000_000_000_000)


def topic(tmp_path: Path, given: Any, name: str = "t", dead: bool = True, **options: Any) -> Any:
    dlq = tables.dead_letters(tmp_path / f"{name}__dlq") if dead else None
    return TopicLanding(given, tables.table_of(given, tmp_path / name), dlq, **options)


def test_a_plan_can_be_pickled(tmp_path: Path) -> None:
    given = plan(t=topic(tmp_path, job(("a", "int")), exclude={0: {1: (b"identity",)}}))
    assert pickle.loads(pickle.dumps(given)) == given


def test_rows_and_dead_letters_are_written_and_counted(tmp_path: Path) -> None:
    landing = plan(t=topic(tmp_path, job(("a", "int"))))
    batches = [batch([GOOD, BAD]), batch([GOOD, None], offset=[2, 5], partition=[0, 3], key=[b"kk", None])]
    output = list(land(iter(batches), landing))
    assert [result.schema for result in output] == [RESULT_SCHEMA]
    results = tables.results(output)["t"]
    assert [(row["a"], row["_kafka"]["offset"]) for row in tables.read(results["data"])] == [(1, 0), (1, 2), (None, 5)]
    assert [(row["error_code"], row["_kafka"]["offset"]) for row in tables.read(results["dead"])] == [("WrongKind", 1)]
    size = len(GOOD) * 2 + len(BAD) + 2
    partitions = {"0": [3, 0, 2], "3": [1, 5, 5]}
    assert results["stats"] == [
        {
            "rows": 3,
            "dead": 1,
            "skipped": 0,
            "excluded": 0,
            "unrouted": 0,
            "bytes": size,
            "partitions": partitions,
            "code": "WrongKind",
            "path": "$.a",
            "codes": {"WrongKind": 1},
            "times": {},
            "rules": {},
            "filtered": {},
        }
    ]


def test_times_of_a_wrong_unit_are_counted_over_batches(tmp_path: Path) -> None:
    landing = plan(t=topic(tmp_path, job(("a", "timestamptz"))))
    batches = [batch([b'{"a": 1700000000}']), batch([b'{"a": 1700000000000}', b'{"a": "x"}'], offset=[1, 2])]
    (stats,) = tables.results(land(iter(batches), landing))["t"]["stats"]
    assert stats["times"] == {"a": [2, 1, "s", 1700000000000]}


def test_the_place_of_a_rejected_record_has_no_name_from_the_record(tmp_path: Path) -> None:
    fields = (("a", "map<string, int>"),)
    for on_bad_record in ("DeadLetter", "Skip"):
        given = job(*fields, unknown_fields="DeadLetter", on_bad_record=on_bad_record)
        for value, path in ((b'{"a": {"mail@x.org": "y"}}', "$.a.*"), (b'{"secret": 1}', "$.*")):
            (stats,) = tables.results(land(iter([batch([value])]), plan(t=topic(tmp_path, given))))["t"]["stats"]
            assert stats["path"] == path


def test_interleaved_topics_fail_separately(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    broken = job(("a", "int"))
    landing = plan(
        good=topic(tmp_path, job(("a", "int")), "good"),
        raw=topic(tmp_path, job(), "raw"),
        broken=TopicLanding(broken, tables.table_of(broken, tmp_path / "file" / "table")),
        narrow=TopicLanding(broken, tables.table_spec(tmp_path / "narrow", (Column(name="b", type="int"),))),
    )
    names = ["good", "raw", "good", "broken", "narrow", "good", "raw"]
    results = tables.results(land(iter([batch([GOOD] * 7, topic=names)]), landing))
    assert [row["_kafka"]["offset"] for row in tables.read(results["good"]["data"])] == [0, 2, 5]
    assert [row["value"] for row in tables.read(results["raw"]["data"])] == [GOOD, GOOD]
    assert list(results["broken"]) == list(results["narrow"]) == ["error"]
    assert "Error" in results["broken"]["error"][0]["type"]
    assert results["narrow"]["error"][0] == {"type": "ValueError", "message": "the table has no column _kafka, a"}


def hashing(salt: str) -> Any:
    """Return a job whose table has the digests of the field ``a``."""
    column = ProjectedColumn(name="h", type="string", source="$.a", function="Sha256", salt=salt)
    given = job(("a", "string"))
    schema = given.record_schema.model_copy(update={"projection": Projection(columns=(column,))})
    return given.model_copy(update={"record_schema": schema})


def test_a_topic_without_its_salt_lands_nothing_and_fails_alone(tmp_path: Path) -> None:
    salts = {"people": b"secret-of-16-bytes"}
    landing = plan(
        t=topic(tmp_path, hashing("people"), "t", salts=salts), other=topic(tmp_path, hashing("none"), "other")
    )
    records = batch([b'{"a": "x"}'] * 2, topic=["t", "other"])
    results = tables.results(land(iter([records]), landing))
    (row,) = tables.read(results["t"]["data"])
    assert row["h"] == hmac.new(salts["people"], b"x", "sha256").hexdigest()
    (error,) = results["other"]["error"]
    assert error["type"] == "NotReadyError"
    assert error["message"].startswith("column h: the task did not get salt none")


def test_no_text_of_a_plan_has_a_salt(tmp_path: Path) -> None:
    salts = {"people": b"secret-of-16-bytes"}
    given = plan(t=topic(tmp_path, hashing("people"), salts=salts))
    assert "secret" not in f"{given} {given!r}"
    assert pickle.loads(pickle.dumps(given)).topics["t"].salts == salts
    output = list(land(iter([batch([b'{"a": "x"}'])]), given))
    assert "secret" not in str(output)


def test_the_first_dead_letter_requests_its_table_and_writes_no_file(tmp_path: Path) -> None:
    landing = LandingPlan({"t": topic(tmp_path, job(("a", "int")), dead=False)}, ingested_at=0, buffer_bytes=1)
    results = tables.results(land(iter([batch([GOOD]), batch([BAD]), batch([GOOD])]), landing))
    assert results == {"t": {"dead-letters-missing": [{}]}}
    assert tables.files_in(tmp_path) == []


def test_a_halt_is_reported_with_its_offset(tmp_path: Path) -> None:
    landing = plan(t=topic(tmp_path, job(("a", "int"), on_bad_record="Halt"), dead=False))
    results = tables.results(land(iter([batch([GOOD, BAD, GOOD])]), landing))["t"]
    place = {"partition": 0, "offset": 1, "code": "WrongKind", "stage": "Schema", "path": "$.a", "rule": ""}
    assert results["halt"] == [place | {"detail": 'expected int, found string "x"'}]
    assert len(tables.read(results["data"])) == 1


def test_no_file_is_left_when_reading_fails(tmp_path: Path) -> None:
    def failing() -> Any:
        yield batch([GOOD])
        raise ConnectionError("broker gone")

    landing = LandingPlan({"t": topic(tmp_path, job(("a", "int")))}, ingested_at=0, buffer_bytes=1)
    with pytest.raises(ConnectionError):
        list(land(failing(), landing))
    assert tables.files_in(tmp_path) == []


def test_a_topic_outside_the_plan_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'t'"):
        list(land(iter([batch([GOOD])]), plan()))


def test_no_file_is_written_without_records() -> None:
    assert tables.results(land(iter([]), plan())) == {}


def test_rows_become_row_groups_of_one_file_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing_module, "ROW_GROUP_BYTES", 3 << 20)
    record = json.dumps({"a": "x" * (1 << 20)}).encode()
    given = plan(t=topic(tmp_path, job(("a", "string"))))
    results = tables.results(land(iter([batch([record], offset=[place]) for place in range(10)]), given))["t"]
    (file,) = results["data"]
    assert (len(file["split-offsets"]), file["record-count"]) == (4, 10)
    assert [row["_kafka"]["offset"] for row in tables.read(results["data"])] == list(range(10))


def test_a_file_that_was_open_is_deleted_with_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing_module, "ROW_GROUP_BYTES", 1)
    given = plan(t=topic(tmp_path, job(("a", "int")), dead=False))
    results = tables.results(land(iter([batch([GOOD]), batch([BAD], offset=[1])]), given))
    assert results == {"t": {"dead-letters-missing": [{}]}}
    assert tables.files_in(tmp_path) == []


def test_early_writes_bound_the_memory(tmp_path: Path) -> None:
    landing = LandingPlan({"t": topic(tmp_path, job(("a", "string")))}, ingested_at=0, buffer_bytes=3 << 20)
    record = json.dumps({"a": "x" * (1 << 20)}).encode()
    results = tables.results(land(iter([batch([record], offset=[place]) for place in range(10)]), landing))["t"]
    (file,) = results["data"]
    assert len(file["split-offsets"]) > 2
    assert sorted(row["_kafka"]["offset"] for row in tables.read(results["data"])) == list(range(10))


def test_thousands_of_partitions_need_one_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer with an open file for each partition runs out of memory while it reads a backlog of years."""
    count, now, most = 3000, 0, 0

    class Counted:
        def __init__(self, *args: Any, **options: Any) -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            self._opened = opened(*args, **options)

        def close(self) -> None:
            nonlocal now
            now -= 1
            self._opened.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._opened, name)

    opened: Any = pq.ParquetWriter
    monkeypatch.setattr(pq, "ParquetWriter", Counted)
    given = job(("a", "long"))
    spec = '{"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "a", "transform": "identity"}]}'
    table = tables.table_of(given, tmp_path, partition_spec=spec)
    values = [json.dumps({"a": number}).encode() for number in range(count)]
    files = tables.results(land(iter([batch(values)]), plan(t=TopicLanding(given, table))))["t"]["data"]
    assert sorted(file["partition"][0] for file in files) == list(range(count))
    assert (most, now) == (1, 0)


def test_table_properties_shape_the_file(tmp_path: Path) -> None:
    given = job(("a", "int"))
    properties = {
        "write.parquet.compression-codec": "gzip",
        "write.parquet.row-group-size-bytes": "1000",
        "write.data.path": (tmp_path / "elsewhere").as_uri(),
        "write.metadata.metrics.default": "counts",
        "write.metadata.metrics.column.a": "full",
    }
    table = tables.table_of(given, tmp_path / "t", properties=properties)
    values = [json.dumps({"a": place}).encode() for place in range(2500)]
    results = tables.results(land(iter([batch(values)]), plan(t=TopicLanding(given, table))))["t"]
    (file,) = results["data"]
    path = file["file-path"].removeprefix("file://")
    assert path.startswith(str(tmp_path / "elsewhere"))
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == len(file["split-offsets"]) == 3
    assert metadata.row_group(0).column(0).compression == "GZIP"
    assert file["lower-bounds"] == {"keys": [1], "values": ["00000000"]}
    assert file["upper-bounds"] == {"keys": [1], "values": ["C3090000"]}


def test_the_object_storage_layout_spreads_paths(tmp_path: Path) -> None:
    given = job(("a", "int"))
    table = tables.table_of(given, tmp_path, properties={"write.object-storage.enabled": "true"})
    results = tables.results(land(iter([batch([GOOD])]), plan(t=TopicLanding(given, table))))["t"]
    assert len(tables.read(results["data"])) == 1
    assert len(results["data"][0]["file-path"].removeprefix(tmp_path.as_uri()).split("/")) > 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("write.parquet.compression-codec", "lzo"),
        ("write.target-file-size-bytes", "big"),
    ],
)
def test_an_invalid_property_is_an_error_of_its_topic(tmp_path: Path, key: str, value: Any) -> None:
    given = job(("a", "int"))
    table = tables.table_of(given, tmp_path, properties={key: value})
    results = tables.results(land(iter([batch([GOOD])]), plan(t=TopicLanding(given, table))))["t"]
    assert value in results["error"][0]["message"]


@pytest.mark.parametrize("key", ["write.metadata.metrics.default", "write.metadata.metrics.column.a"])
def test_an_invalid_metrics_mode_counts_as_missing(tmp_path: Path, key: str) -> None:
    """Iceberg's own writer warns and uses the default (org.apache.iceberg.MetricsConfig)."""
    given = job(("a", "int"))
    table = tables.table_of(given, tmp_path, properties={key: "some"})
    results = tables.results(land(iter([batch([b'{"a": 7}'])]), plan(t=TopicLanding(given, table))))["t"]
    bounds = results["data"][0]["lower-bounds"]
    assert dict(zip(bounds["keys"], bounds["values"], strict=True))[1] == "07000000"


def test_iceberg_codec_lz4_raw_is_written(tmp_path: Path) -> None:
    given = job(("a", "int"))
    table = tables.table_of(given, tmp_path, properties={"write.parquet.compression-codec": "lz4_raw"})
    (file,) = tables.results(land(iter([batch([b'{"a": 7}'])]), plan(t=TopicLanding(given, table))))["t"]["data"]
    assert [row["a"] for row in tables.read([file])] == [7]


@pytest.mark.parametrize("shape", ["Struct", "Flat"])
def test_a_wide_table_has_bounds_for_the_columns_of_kafka(tmp_path: Path, shape: str) -> None:
    """By default, Iceberg keeps bounds for the first 100 columns, and Kafka's columns are the last."""
    fields = tuple(Column(name=f"c{number}", type="int") for number in range(150))
    columns = fields + rows.metadata_columns(shape)
    table = tables.table_spec(
        tmp_path, columns, properties=table_properties.created_with(columns, own_references=False)
    )
    given = job(*((field.name, "int") for field in fields))
    given = given.model_copy(update={"table": given.table.model_copy(update={"metadata_columns": shape})})
    landing = plan(t=TopicLanding(given, table))
    (file,) = tables.results(land(iter([batch([b'{"c1": 7}'])]), landing))["t"]["data"]
    schema = Schema.model_validate_json(table.schema)
    separator = "." if shape == "Struct" else "_"
    bounded = {schema.find_field(f"_kafka{separator}{name}").field_id for name in ("partition", "offset", "timestamp")}
    assert bounded <= set(file["lower-bounds"]["keys"])
    assert bounded <= set(file["upper-bounds"]["keys"])


def test_a_table_may_have_more_columns_and_wider_types(tmp_path: Path) -> None:
    given = job(("a", "int"), ("s", "float"), ("d", "decimal(5, 2)"), ("u", "struct<id: uuid>"))
    columns = tuple(Column(name=name, type=kind) for name, kind in [
        ("more", "string"), ("d", "decimal(9, 2)"), ("s", "double"), ("a", "long"), ("u", "struct<id: uuid>")
    ])  # fmt: skip
    kafka = rows.metadata_columns("Struct")
    table = tables.table_spec(tmp_path, columns + kafka)
    identifier = "00112233-4455-6677-8899-aabbccddeeff"
    value = json.dumps({"a": 1, "s": 1.5, "d": 1.25, "u": {"id": identifier}}).encode()
    results = tables.results(land(iter([batch([value])]), plan(t=TopicLanding(given, table))))["t"]
    (row,) = tables.read(results["data"])
    assert (row["more"], row["a"], row["s"], str(row["d"])) == (None, 1, 1.5, "1.25")
    schema = pq.read_schema(results["data"][0]["file-path"].removeprefix("file://"))
    assert schema.field("a").type == pa.int64()
    assert schema.field("a").metadata[b"PARQUET:field_id"] == b"4"


def test_a_column_required_only_by_the_table_is_an_error_of_the_topic(tmp_path: Path) -> None:
    given = job(("a", "int"))
    columns = (Column(name="a", type="int", required=True), *rows.metadata_columns("Struct"))
    landing = plan(t=TopicLanding(given, tables.table_spec(tmp_path, columns)))
    results = tables.results(land(iter([batch([GOOD, b"{}"])]), landing))["t"]
    assert "a is required" in results["error"][0]["message"]
    assert tables.files_in(tmp_path) == []


def test_dictionaries_are_used_for_repeated_values(tmp_path: Path) -> None:
    given = job(
        ("n", "long"), ("same", "long"), ("text", "string"), ("near", "string"), ("word", "string"), ("blob", "binary"),
        ("place", "struct<n: long, word: string>"),
    )  # fmt: skip
    values = [
        json.dumps(
            {"n": n, "same": n % 3, "text": str(n), "near": str(n // 2), "word": "ab"[n % 2], "blob": f"{n:08d}",
             "place": {"n": n, "word": "cd"[n % 2]}}
        ).encode()
        for n in range(8192)
    ]  # fmt: skip
    properties = {"write.parquet.dict-size-bytes": "10000"}
    landing = plan(t=TopicLanding(given, tables.table_of(given, tmp_path, properties=properties)))
    (file,) = tables.results(land(iter([batch(values)]), landing))["t"]["data"]
    path = file["file-path"].removeprefix("file://")
    group = pq.read_metadata(path).row_group(0)
    columns = [group.column(place) for place in range(group.num_columns)]
    plain = {column.path_in_schema for column in columns if not any("DICTIONARY" in name for name in column.encodings)}
    assert plain == {"n", "text", "near", "blob", "place.n", "_kafka.offset"}
    assert pq.read_table(path)["near"].to_pylist() == [str(n // 2) for n in range(8192)]


@pytest.mark.parametrize("texts", [["a", "b", "c"], [None] * 9, ["x" * 2_000 + str(n) for n in range(600)]])
def test_few_or_long_texts_keep_their_dictionary(texts: list[str | None], tmp_path: Path) -> None:
    given = job(("text", "string"))
    values = [json.dumps({"text": text}).encode() for text in texts]
    (file,) = tables.results(land(iter([batch(values)]), plan(t=topic(tmp_path, given))))["t"]["data"]
    column = pq.read_metadata(file["file-path"].removeprefix("file://")).row_group(0).column(0)
    assert "RLE_DICTIONARY" in column.encodings


def test_texts_whose_dictionary_fits_its_limit_keep_it() -> None:
    chance = random.Random(4)
    parquet = data_files.ParquetSettings.from_properties({})
    few = [f"customer-{chance.randrange(60_000):05d}" for _ in range(300_000)]
    many = [f"customer-{chance.randrange(10**9):09d}" for _ in range(300_000)]
    columns = {
        "few": few,
        "sorted": [f"order-{n // 100:05d}" for n in range(300_000)],
        "sparse": [text if n % 10 == 0 else None for n, text in enumerate(many)],
        "many": many,
        "adjacent": [f"order-{n // 2:09d}" for n in range(300_000)],
    }
    rows = pa.table(columns)
    options = data_files.encodings(list(columns), rows, rows.nbytes, parquet)
    assert options["use_dictionary"] == ["few", "sorted", "sparse"]


def test_a_sample_is_small_and_from_all_rows() -> None:
    parts = [pa.table({"n": range(start, start + 5_000), "list": [[1]] * 5_000}) for start in range(0, 200_000, 5_000)]
    ((name, sample),) = data_files.sample(pa.concat_tables(parts))
    values = sample.to_pylist()
    assert (name, values) == ("n", sorted(set(values)))
    assert 1_000 < len(values) < 3_000
    assert values[0] < 5_000
    assert values[-1] > 195_000
    assert list(data_files.sample(parts[0].slice(0, 0).select(["list"]))) == []


def test_floats_that_hardly_repeat_have_no_dictionary(tmp_path: Path) -> None:
    given = job(("place", "double"), ("amount", "double"), ("ratio", "float"), ("none", "double"))
    values = [json.dumps({"place": n / 7, "amount": (n * n) % 2500 / 4, "ratio": n / 8}).encode() for n in range(3000)]
    properties = {data_files.DELTA: "true"}
    landing = plan(t=TopicLanding(given, tables.table_of(given, tmp_path, properties=properties)))
    (file,) = tables.results(land(iter([batch(values)]), landing))["t"]["data"]
    path = file["file-path"].removeprefix("file://")
    group = pq.read_metadata(path).row_group(0)
    columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
    assert {name: "RLE_DICTIONARY" in columns[name].encodings for name in ("place", "amount", "ratio")} == {
        "place": False,
        "amount": True,
        "ratio": False,
    }
    assert pq.read_table(path)["place"].to_pylist() == [n / 7 for n in range(3000)]


def test_differences_are_stored_only_if_the_table_says_so(tmp_path: Path) -> None:
    given = job(("n", "long"), ("at", "timestamptz"), ("same", "int"), ("place", "struct<n: int>"))
    values = [
        json.dumps({"n": n * n, "at": f"2026-01-01T00:00:00.{n:06d}Z", "same": n % 3, "place": {"n": n}}).encode()
        for n in range(3000)
    ]
    written = {}
    for wanted in ("true", "false"):
        properties = {data_files.DELTA: wanted}
        table = tables.table_of(given, tmp_path / wanted, properties=properties)
        (file,) = tables.results(land(iter([batch(values)]), plan(t=TopicLanding(given, table))))["t"]["data"]
        path = file["file-path"].removeprefix("file://")
        group = pq.read_metadata(path).row_group(0)
        columns = [group.column(place) for place in range(group.num_columns)]
        assert all(column.has_column_index and column.has_offset_index for column in columns)
        deltas = {column.path_in_schema for column in columns if "DELTA_BINARY_PACKED" in column.encodings}
        assert deltas == ({"n", "at", "place.n", "_kafka.offset"} if wanted == "true" else set())
        bounds = {key: file[key] for key in ("record-count", "value-counts", "lower-bounds", "upper-bounds")}
        written[wanted] = (pq.read_table(path), bounds)
    assert written["true"] == written["false"]


def test_a_partition_value_of_a_megabyte_has_a_short_path(tmp_path: Path) -> None:
    given = job(("a", "string"))
    spec = '{"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "name": "a", "transform": "identity"}]}'
    table = tables.table_of(given, tmp_path, partition_spec=spec)
    texts = ["é" * (1 << 20), "..", "a/b", ""]
    values = [json.dumps({"a": text}).encode() for text in texts]
    results = tables.results(land(iter([batch(values)]), plan(t=TopicLanding(given, table))))["t"]
    assert sorted(file["partition"][0] for file in results["data"]) == sorted(texts)
    assert all(len(file["file-path"]) < len(tmp_path.as_uri()) + 130 for file in results["data"])
    assert sorted(row["a"] for row in tables.read(results["data"])) == sorted(texts)


def test_the_metrics_of_a_file_count_nan_and_leave_it_out_of_the_bounds(tmp_path: Path) -> None:
    numbers = [1.5, math.nan, -2.0, math.nan, None]
    text = json.dumps({"type": "record", "name": "R", "fields": [
        {"name": "a", "type": ["null", "double"]},
        {"name": "s", "type": {"type": "record", "name": "S", "fields": [{"name": "f", "type": "float"}]}},
    ]})  # fmt: skip
    schema = RecordSchema(format="Avro", text=text, fields=avro.columns(avro.parse(text)))
    given = job(("a", "double")).model_copy(update={"record_schema": schema})
    values = [
        (b"\0" if number is None else b"\x02" + struct.pack("<d", number)) + struct.pack("<f", math.nan)
        for number in numbers
    ]
    (file,) = tables.results(land(iter([batch(values)]), plan(t=topic(tmp_path, given))))["t"]["data"]
    ids = {
        field.name: field for field in Schema.model_validate_json(tables.table_of(given, tmp_path / "t").schema).fields
    }
    struct_type: Any = ids["s"].field_type
    inner = struct_type.fields[0].field_id
    counts = dict(zip(file["nan-value-counts"]["keys"], file["nan-value-counts"]["values"], strict=True))
    assert counts == {ids["a"].field_id: 2, inner: 5}
    lower = dict(zip(file["lower-bounds"]["keys"], file["lower-bounds"]["values"], strict=True))
    assert bytes.fromhex(lower[ids["a"].field_id]) == struct.pack("<d", -2.0)
    assert inner not in lower


def test_tables_of_one_topic_get_the_same_records_and_decode_the_value_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = RecordSchema(format="Json", fields=(Column(name="type", type="string"),))
    values = value_schema(schema, "$.type")
    topics = {}
    for table, route in (("a", Route(values=values, match="a")), ("rest", Route(values=values, before=("a",)))):
        given = job(("type", "string")).model_copy(update={"uid": table, "route": route})
        topics[f"t/{table}"] = topic(tmp_path / table, given)
    decoded = []
    once = RouteValues.of

    def counted(self: Any, *given: Any) -> Any:
        before = self._last
        found = once(self, *given)
        decoded.append(self._last is not before)
        return found

    monkeypatch.setattr(RouteValues, "of", counted)
    results = tables.results(land(iter([batch([b'{"type": "a"}', b'{"type": "b"}', b"{"])]), LandingPlan(topics, 1)))
    assert decoded == [True, False]
    assert [row["_kafka"]["offset"] for row in tables.read(results["t/a"]["data"])] == [0]
    assert [row["error_code"] for row in tables.read(results["t/rest"]["dead"])] == ["NoRoute", "InvalidJson"]
    counts = [(name, result["stats"][0]["unrouted"]) for name, result in sorted(results.items())]
    assert counts == [("t/a", 2), ("t/rest", 1)]
