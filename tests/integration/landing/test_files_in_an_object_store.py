"""Data files in S3, with the properties of Java's FileIO."""

from pathlib import Path
from typing import Any

import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from firn_spark.worker.data_files import TableFileIO, arrow_io_properties
from firn_spark.worker.landing import LandingPlan, TopicLanding, land
from tests.servers.s3 import s3
from tests.unit.spark import records, tables

LARGE = 16 << 20
"""More bytes than Arrow sends in one request."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with s3(tmp_path_factory.mktemp("s3")) as running:
        yield running


def landed(server: Any, **changes: Any) -> Any:
    job = records.job(("a", "int"))
    io = server.properties | {"s3.secret-access-key": server.secret_key} | changes
    table = tables.table_of(job, server.directory, location=f"s3://{server.bucket}/wh/t", io=io)
    plan = LandingPlan({"t": TopicLanding(job, table)}, ingested_at=0)
    return tables.results(land(iter([records.batch([b'{"a": 1}', b'{"a": 2}'])]), plan))["t"]


def uploads(server: Any) -> list[Path]:
    """Return the multipart uploads that the server holds open."""
    return list((server.directory / "buckets" / server.bucket / ".sgwtmp" / "multipart").glob("*/*"))


def test_a_data_file_is_written_to_the_bucket(server: Any) -> None:
    (file,) = landed(server)["data"]
    store = pyarrow.fs.S3FileSystem(
        access_key=server.access_key,
        secret_key=server.secret_key,
        endpoint_override=server.endpoint,
        region="us-east-1",
    )
    path = file["file-path"].removeprefix("s3://")
    assert pq.read_table(path, filesystem=store)["a"].to_pylist() == [1, 2]
    assert store.get_file_info(path).size == file["file-size-in-bytes"]


def test_a_small_file_takes_no_multipart_upload(server: Any) -> None:
    properties = server.properties | {"s3.secret-access-key": server.secret_key}
    store = TableFileIO(arrow_io_properties(properties)).fs_by_scheme("s3", server.bucket)
    with store.open_output_stream(f"{server.bucket}/small") as stream:
        stream.write(b"few bytes")
        assert uploads(server) == []
    assert store.get_file_info(f"{server.bucket}/small").size == len(b"few bytes")
    with store.open_output_stream(f"{server.bucket}/large") as stream:
        stream.write(b"x" * LARGE)
        assert len(uploads(server)) == 1


def test_denied_storage_is_an_error_of_the_topic(server: Any) -> None:
    error = landed(server, **{"s3.secret-access-key": "wrong"})["error"][0]
    assert "OSError" in error["type"] or "Permission" in error["type"]
    assert "wrong" not in error["message"]
