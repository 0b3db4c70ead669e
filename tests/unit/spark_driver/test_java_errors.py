"""Java exceptions become errors that show which component has to act, in both forms in which Python gets them."""

from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import (
    CapturedException,
    IllegalArgumentException,
    ParseException,
    PythonException,
    UnsupportedOperationException,
)
from structlog.testing import capture_logs

from firn.model import names
from firn.model.errors import AccessDeniedError, CommitUnknownError, InvalidSpecError, NotReadyError, UnavailableError
from firn.model.jobs import TableTarget
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds.failures import classify, fail
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.tables import dead_letters
from firn_spark.tables.commits import INGEST, Committer, Landed
from firn_spark.tables.java_errors import translate, translate_change
from firn_spark.tables.java_tables import Tables
from tests.unit.spark_driver.topic import topic

TARGET = TableTarget(catalog="lake", namespace="shop", name="orders", format_version=3)


class Thrown:
    """A Java exception."""

    def __init__(self, name: str, message: str, cause: "Thrown | None" = None) -> None:
        self._name, self._message, self._cause = name, message, cause

    def getClass(self) -> Any:
        return SimpleNamespace(getName=lambda: self._name)

    def getMessage(self) -> str:
        return self._message

    def getCause(self) -> "Thrown | None":
        return self._cause

    def getSQLState(self) -> str:
        raise Py4JError("Method getSQLState([]) does not exist")


def captured(kind: type[CapturedException], thrown: Thrown | None = None, text: str = "") -> CapturedException:
    """Return the exception as PySpark raises it, without the JVM that it asks for details."""
    made = type(kind.__name__, (kind,), {"__init__": lambda self: None, "__str__": lambda self: text})()
    made._origin, made._desc, made._stackTrace, made._cause = thrown, text, "", None
    return made


def illegal(message: str = "no such file io") -> CapturedException:
    return captured(IllegalArgumentException, Thrown("java.lang.IllegalArgumentException", message))


def py4j(thrown: Thrown) -> Py4JJavaError:
    made = Py4JJavaError.__new__(Py4JJavaError)
    made.java_exception = thrown
    return made


def fails(error: Exception) -> Any:
    def raise_it(*_: object, **__: object) -> None:
        raise error

    return raise_it


@pytest.mark.parametrize("face", [py4j, lambda thrown: captured(IllegalArgumentException, thrown)])
def test_both_forms_of_a_java_error_are_translated_alike(face: Any) -> None:
    error = translate(face(Thrown("java.lang.IllegalArgumentException", "no such file io")), "table a.b.c")
    assert isinstance(error, InvalidSpecError)
    assert str(error) == "table a.b.c: IllegalArgumentException: no such file io"
    denied = Thrown("S3Exception", "Status Code: 403")
    assert isinstance(translate(face(Thrown("Wrapped", "x", denied)), "t"), AccessDeniedError)


def test_an_unsupported_operation_is_reported_with_its_class() -> None:
    error = translate(
        captured(UnsupportedOperationException, Thrown("java.lang.UnsupportedOperationException", "v3")), "t"
    )
    assert isinstance(error, UnavailableError)
    assert str(error) == "t: UnsupportedOperationException: v3"


def test_a_dead_jvm_is_reported() -> None:
    assert str(translate(Py4JError("broken pipe"), "t")) == "t: the JVM does not respond"


def test_a_catalog_that_rejects_its_properties_is_an_error_of_the_spec() -> None:
    catalogs: Any = SimpleNamespace(
        jvm=SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(iceberg=None))), get=fails(illegal())
    )
    with pytest.raises(InvalidSpecError, match=r"table lake\.shop\.orders: .*no such file io"):
        Tables(catalogs).load("lake", "shop", "orders")


def test_a_table_that_is_ahead_of_the_clock_is_not_ready() -> None:
    error = translate(
        illegal("Invalid update timestamp 5: before last snapshot log entry at 9"), "table lake.shop.orders"
    )
    assert isinstance(error, NotReadyError)
    assert str(error).startswith("table lake.shop.orders: its newest change is ahead of the clock")
    # The condition of the table has the reason and the message.
    unready = topic()
    preparation: Any = Preparation(*(None,) * 5)  # type: ignore[arg-type]
    preparation._tables = SimpleNamespace(ensure=fails(error))
    preparation.prepare(unready)
    report = progress_of(unready, 0.0, 0.0)
    assert (report.table_reason, report.table_message, report.state) == ("Pending", str(error), "BackingOff")


def catalog_of(listed: list[str], error: Exception, metadata: object = "HISTORY") -> Any:
    """Return catalogs whose only one lists these tables and fails to load any with ``error``."""
    opened = SimpleNamespace(
        loadTable=fails(error),
        namespaceExists=lambda _: True,
        listTables=lambda _: [SimpleNamespace(name=lambda name=name: name) for name in listed],
    )
    kinds = SimpleNamespace(**{"from": lambda name: metadata if name == "history" else None})
    places = SimpleNamespace(
        Namespace=SimpleNamespace(of=str), TableIdentifier=SimpleNamespace(of=lambda *parts: parts)
    )
    iceberg = SimpleNamespace(MetadataTableType=kinds, catalog=places)
    array = SimpleNamespace(newInstance=lambda _, size: [""] * size)
    lang = SimpleNamespace(reflect=SimpleNamespace(Array=array), Class=SimpleNamespace(forName=str))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(iceberg=iceberg)), java=SimpleNamespace(lang=lang))
    return SimpleNamespace(jvm=jvm, get=lambda _: opened)


def test_a_missing_table_may_have_the_name_of_a_metadata_table() -> None:
    """Iceberg's REST client also asks for a table without namespace then, which servers reject in their own ways."""
    rejected = py4j(Thrown("org.apache.iceberg.exceptions.BadRequestException", "Malformed request"))
    assert Tables(catalog_of(["orders"], rejected)).load("lake", "shop", "history") is None
    with pytest.raises(UnavailableError, match="Malformed request"):
        Tables(catalog_of(["history"], rejected)).load("lake", "shop", "history")
    with pytest.raises(UnavailableError, match="Malformed request"):
        Tables(catalog_of(["orders"], rejected)).load("lake", "shop", "orders")


def test_an_unreadable_table_is_an_error_of_the_table() -> None:
    nothing: Any = None
    found = SimpleNamespace(refresh=fails(illegal("metadata")), schema=lambda: SimpleNamespace(schemaId=lambda: 0))
    tables: Any = SimpleNamespace(ensure=lambda *_: found)
    unreadable = topic()
    Preparation(nothing, tables, nothing, nothing, nothing).prepare(unreadable)
    assert isinstance(unreadable.table.error, InvalidSpecError)
    assert "table lake.shop.orders: IllegalArgumentException: metadata" in str(unreadable.attempts.error)


def test_files_that_cannot_be_removed_are_ignored() -> None:
    tables: Any = SimpleNamespace(data_file=fails(illegal("Invalid S3 URI")))
    Committer(tables, "w", Failpoints()).discard(
        SimpleNamespace(io=lambda: SimpleNamespace(deleteFile=None), name=lambda: "a.b.c"), ["{}"]
    )


def test_a_commit_that_cannot_be_read_back_is_unknown() -> None:
    tables: Any = SimpleNamespace()
    table = SimpleNamespace(name=lambda: "a.b.c", refresh=fails(illegal("metadata")))
    with pytest.raises(CommitUnknownError, match="IllegalArgumentException: metadata"):
        Committer(tables, "w", Failpoints()).commit(table, (), None, "id-1", 1, {0: 1})


def test_a_missing_dead_letter_table_is_an_error_of_the_table() -> None:
    summary = {names.SUMMARY_KIND: INGEST, names.SUMMARY_TOPIC_ID: "id-1", names.SUMMARY_OFFSETS: "[]"}
    snapshot = SimpleNamespace(snapshotId=lambda: 1, parentId=lambda: None, summary=lambda: summary)
    table = SimpleNamespace(name=lambda: "lake.shop.orders__dlq", currentSnapshot=lambda: snapshot)
    refused = captured(ParseException, Thrown("org.apache.spark.sql.catalyst.parser.ParseException", "near '-'"))
    spark: Any = SimpleNamespace(read=SimpleNamespace(format=fails(refused)))
    with pytest.raises(UnavailableError, match="orders__dlq: ParseException: near '-'"):
        dead_letters.records_between(spark, topic().job, table, Landed("id-2", 1, {0: 20}), {}, {0: 20})


def test_an_error_of_a_python_worker_keeps_its_text() -> None:
    error = classify(captured(PythonException, text="Traceback\nOSError: no space left"), topic())
    assert "no space left" in str(error)
    assert "IllegalArgumentException: assign" in str(classify(illegal("assign"), topic()))


def test_java_errors_take_a_line_and_python_bugs_keep_their_trace() -> None:
    bug, setting = captured(PythonException, text="KeyError: 'offset'"), illegal()
    with capture_logs() as logs:
        fail(topic(), bug)
        fail(topic(), setting)
    assert [log["exc_info"] for log in logs] == [bug, None]


@pytest.mark.parametrize(
    "message",
    [
        "Unsupported format version: v3 (supported: v2)",
        "Cannot upgrade table to unsupported format version: v3 (supported: v2)",
        "Malformed request: format-version 3 is not allowed, invalid format-version",
    ],
)
def test_a_catalog_without_the_format_version_is_named_with_the_next_step(message: str) -> None:
    error = translate_change(py4j(Thrown("org.apache.iceberg.exceptions.BadRequestException", message)), TARGET)
    assert (type(error), error.reason) == (UnavailableError, "FormatUnsupported")
    assert str(error).startswith("table lake.shop.orders: catalog lake does not accept tables of format version 3: ")
    assert str(error).endswith(
        "upgrade the catalog, or create this IcebergTopic again with spec.table.formatVersion: 2"
    )


def test_other_failures_of_a_change_are_translated_as_before() -> None:
    error = translate_change(illegal(), TARGET, "orders__dlq")
    assert (type(error), str(error)) == (
        InvalidSpecError,
        "table lake.shop.orders__dlq: IllegalArgumentException: no such file io",
    )
