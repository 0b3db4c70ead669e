"""Metadata files of other tables protect the files at a location, also if they cannot be read."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model.errors import ConflictError
from firn_spark.maintenance.steps import orphans
from firn_spark.maintenance.steps.subject import Subject
from tests.fakes.lake.java import JavaError

MINE, OTHER = "s3://firn/t/metadata/00001-a.metadata.json", "s3://firn/t/metadata/00000-b.metadata.json"


def subject(read: Any) -> Subject:
    """Return the table ``mine``. ``read`` is what reading another metadata file returns or raises."""

    def parse(_io: object, _path: str) -> Any:
        if isinstance(read, Exception):
            raise read
        return SimpleNamespace(uuid=lambda: read)

    metadata = SimpleNamespace(uuid=lambda: "mine", metadataFileLocation=lambda: MINE, previousFiles=list)
    table = SimpleNamespace(
        operations=lambda: SimpleNamespace(current=lambda: metadata), io=lambda: None, name=lambda: "lake.shop.t"
    )
    parser = SimpleNamespace(TableMetadataParser=SimpleNamespace(read=parse))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(iceberg=parser)))
    return cast(Subject, SimpleNamespace(name="lake.shop.t", spark=SimpleNamespace(_jvm=jvm), jvm=jvm, table=table))


def check(read: Any) -> None:
    orphans.refuse_shared(subject(read), {MINE: 2, OTHER: 1})


def test_metadata_of_another_table_protects_the_files() -> None:
    check("mine")
    with pytest.raises(ConflictError, match="is metadata of another table"):
        check("other")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("software.amazon.awssdk.services.s3.model.S3Exception", "the token has expired (Status Code: 403)"),
        ("software.amazon.awssdk.services.s3.model.S3Exception", "slow down (Status Code: 503)"),
        ("software.amazon.awssdk.core.exception.SdkClientException", "Unable to execute HTTP request"),
        ("java.io.UncheckedIOException", "Connection reset"),
    ],
)
def test_metadata_that_cannot_be_read_now_protects_the_files(kind: str, message: str) -> None:
    with pytest.raises(JavaError, match=message.partition(" (")[0]):
        check(JavaError(kind, message))


@pytest.mark.parametrize(
    "kind",
    [
        "org.apache.iceberg.exceptions.NotFoundException",
        "software.amazon.awssdk.services.s3.model.NoSuchKeyException",
        "java.lang.IllegalArgumentException",
        "org.apache.iceberg.shaded.com.fasterxml.jackson.core.JsonParseException",
        "java.util.zip.ZipException",
        "java.io.EOFException",
    ],
)
def test_a_file_that_is_gone_or_is_no_metadata_protects_nothing(kind: str) -> None:
    check(JavaError(kind, "no metadata"))
