"""Data files in S3, with the properties of Java's FileIO."""

from typing import Any

import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from firn_spark.worker.landing import LandingPlan, TopicLanding, land
from tests.servers.s3 import s3
from tests.unit.spark import records, tables


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


def test_denied_storage_is_an_error_of_the_topic(server: Any) -> None:
    error = landed(server, **{"s3.secret-access-key": "wrong"})["error"][0]
    assert "OSError" in error["type"] or "Permission" in error["type"]
    assert "wrong" not in error["message"]
