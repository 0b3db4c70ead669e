"""The five bytes of a schema registry before a value are passed over, and are in the dead letter."""

import json

import pytest

from firn.decoders.bad_records import Code
from firn.model.jobs import RecordSchema
from firn.schemas import avro
from firn_spark.worker.decoding import Decoder
from firn_spark.worker.formats.avro.decoding import AvroFormat
from tests.unit.spark.records import fetched, job

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "int"]}]})


def avro_format(framing: str) -> AvroFormat:
    return AvroFormat(RecordSchema(format="Avro", text=AVRO, framing=framing, fields=avro.columns(avro.parse(AVRO))))


@pytest.mark.parametrize("frame", [b"\0\0\0\0\x07", b"\0\0\x01\xf4\xc8"])
def test_json_with_and_without_framing_is_read(frame: bytes) -> None:
    values = [frame + b'{"x": 1}', b'{"x": 2}', frame + b'{"x": "no"}', frame, b"\0", b"", None]
    decoded = Decoder(job(("x", "int")), ingested_at=0).decode(fetched(values))
    assert decoded.rows["x"].to_pylist() == [1, 2, None]
    assert decoded.dead is not None
    assert decoded.dead["value"].to_pylist() == values[2:6]
    hints = ["if it is Avro, use format: Avro" in detail for detail in decoded.dead["error_detail"].to_pylist()]
    assert hints == [False, True, False, False]
    assert decoded.dead["error_code"].to_pylist() == [
        Code.WRONG_KIND, Code.EMPTY_PAYLOAD, Code.INVALID_JSON, Code.EMPTY_PAYLOAD,
    ]  # fmt: skip


def test_an_error_in_framed_json_keeps_its_path() -> None:
    decoded = Decoder(job(("x", "string")), ingested_at=0).decode(fetched([b"\0\0\0\0\x07" + b'{"x": "\\ud800"}']))
    assert decoded.dead is not None
    (code,), (path,) = decoded.dead["error_code"].to_pylist(), decoded.dead["error_path"].to_pylist()
    assert (code, path) == (Code.INVALID_UTF8, "$.x")


def test_avro_needs_the_framing_that_the_schema_names() -> None:
    plain, framed = b"\x02\x0e", b"\0\0\0\0\x07\x02\x0e"
    columns = avro_format("Registry").decode(fetched([framed, plain, b"\x01" + framed[1:], None, framed]))
    assert columns.arrays[0].to_pylist() == [7, None, None, None, 7]
    assert {index: error.code for index, error in columns.errors.items()} == {
        1: Code.INVALID_AVRO,
        2: Code.INVALID_AVRO,
    }
    assert "five bytes of a schema registry" in columns.errors[1].detail
    columns = avro_format("None").decode(fetched([framed, plain]))
    assert columns.arrays[0].to_pylist() == [None, 7]
    assert list(columns.errors) == [0]
    (error,) = avro_format("Registry").decode(fetched([framed + b"!"])).errors.values()
    assert error.detail.startswith("byte 7: 1 bytes follow the last field")
