"""Events of the Iceberg sink of Kafka Connect, as the driver reads them."""

import pytest

from firn.model.errors import CorruptDataError
from firn_spark.kafka import sink_events
from firn_spark.kafka.sink_events import DataWritten
from tests.unit.spark_driver import sink_events as events


def test_written_files_are_counted_if_they_have_records() -> None:
    written = DataWritten("connect-orders", ("shop",), "orders", events.TABLE_UUID.hex, 2)
    assert sink_events.data_written(events.data_written(records=(5, 0, 7))) == written


def test_events_of_version_1_10_name_no_uuid() -> None:
    found = sink_events.data_written(events.data_written(table_uuid=None))
    assert found is not None
    assert found.table_uuid == ""


def test_other_events_name_no_files() -> None:
    assert sink_events.data_written(events.start_commit()) is None


@pytest.mark.parametrize(
    "value",
    [b"", b'{"id": 1}', b"\xc2\x01", events.data_written()[:500], events.data_written()[:-3], b"\xc2\x01\0\2{}"],
)
def test_other_records_are_corrupt(value: bytes) -> None:
    with pytest.raises(CorruptDataError, match="event of the Iceberg sink"):
        sink_events.data_written(value)
