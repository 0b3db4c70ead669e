"""The id of a schema in a header of the record, in place of the bytes before the value.

Source: ``SchemaId`` and ``HeaderSchemaIdSerializer`` of Confluent's clients. A header has a byte 0 and an id of four bytes, or a
byte 1 and the GUID of the schema. In Protobuf, the indexes of the message follow. A value without this header begins with an
id, as ``DualSchemaIdDeserializer`` reads it.
"""

import dataclasses
import uuid
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.decoders.protobuf import Bytes, skip_indexes
from firn.model.jobs import SchemaFormat
from firn_spark.worker.fetched import Fetched, Numbers, Places
from firn_spark.worker.formats.framing import BYTES, schema_ids
from firn_spark.worker.formats.writer_schemas import Reference, Refusal, WriterSchemas

VALUE, KEY = "__value_schema_id", "__key_schema_id"
"""Names of the headers."""
_ID, _GUID = 0, 1
_LENGTHS = {_ID: 5, _GUID: 17}
_NO_ID = b"\xff"
"""Stands before a value while the id of its GUID is not known, so that its first bytes are not taken for an id."""


def identified(
    records: Fetched, header: str, form: SchemaFormat, known: WriterSchemas, *, in_header: bool
) -> tuple[Fetched, Numbers, dict[int, BadRecordError], list[Reference]]:
    """Return the records with their ids before the values, the ids (-1 without one), the records whose header is wrong, and the
    GUIDs that are not known.

    ``in_header``: ``header`` may have the id.
    """
    bad: dict[int, BadRecordError] = {}
    missing: list[Reference] = []
    if in_header:
        values, bad, missing = with_ids(records, header, form, known)
        records = dataclasses.replace(records, values=values)
    ids = schema_ids(records.values)
    ids[list(bad)] = -1
    return records, ids, bad, missing


def named(records: Fetched, header: str, form: SchemaFormat, known: WriterSchemas, *, in_header: bool) -> set[int]:
    """Return the ids of `identified`, and possibly more, without a copy of the values."""
    ids = schema_ids(records.values)
    if not in_header:
        return set(np.unique(ids).tolist())
    contents = records.headers.last(header)
    ids = ids[contents.is_null().to_numpy(zero_copy_only=False)]
    prefixes = (_prefix(each, header, form, known) for each in contents.unique().to_pylist() if each is not None)
    of_headers = {int.from_bytes(each[1:BYTES]) for each in prefixes if isinstance(each, bytes) and each != _NO_ID}
    return of_headers | set(np.unique(ids).tolist())


def unidentified(header: str, size: int, *, in_header: bool) -> BadRecordError:
    """Return why a value of ``size`` bytes without an id is bad. ``in_header``: ``header`` may have the id."""
    noun = "key" if header == KEY else "value"
    if in_header:
        return BadRecordError(
            Code.UNKNOWN_SCHEMA,
            Stage.DECODE,
            f"the record has no header {header}, and no schema id before its {noun}; let the producer use HeaderSchemaIdSerializer",
        )
    if not size:
        return BadRecordError(Code.EMPTY_PAYLOAD, Stage.DECODE, f"the {noun} is empty")
    return BadRecordError(
        Code.UNKNOWN_SCHEMA,
        Stage.DECODE,
        f"the {noun} has no framing of a schema registry; let the producer use a serializer that writes a byte 0 and the schema id",
    )


def with_ids(
    records: Fetched, header: str, form: SchemaFormat, known: WriterSchemas
) -> tuple[Places, dict[int, BadRecordError], list[Reference]]:
    """Return the values as they would be with their ids in front, the records whose header has no id, and the GUIDs that are
    not in ``known``. Records with these GUIDs have no id either."""
    encoded = records.headers.last(header).dictionary_encode()
    found: list[bytes | BadRecordError] = []
    missing: list[Reference] = []
    for content in encoded.dictionary.to_pylist():
        guid = _guid(content)
        if guid is not None and guid not in known:
            missing.append(guid)
        found.append(_prefix(content, header, form, known))
    places = encoded.indices.fill_null(len(found)).to_numpy(zero_copy_only=False)
    prefixes = pa.array([*(each if isinstance(each, bytes) else b"" for each in found), b""], pa.binary())
    bad = np.array([*(isinstance(each, BadRecordError) for each in found), False])
    errors = {}
    for index in np.flatnonzero(bad[places] & records.values.present).tolist():
        error = found[places[index]]
        assert isinstance(error, BadRecordError)
        errors[index] = BadRecordError(error.code, error.stage, error.detail)
    if all(each == b"" or not isinstance(each, bytes) for each in found):
        return records.values, errors, missing
    parts = [prefixes.take(pa.array(places)), records.values.to_arrow(), pa.scalar(b"", pa.binary())]
    return Places.from_arrow(pc.call_function("binary_join_element_wise", parts)), errors, missing


def _guid(content: bytes | None) -> str | None:
    """Return the GUID in a header, if it has one."""
    if not content or content[0] != _GUID or len(content) < _LENGTHS[_GUID]:
        return None
    return str(uuid.UUID(bytes=content[1 : _LENGTHS[_GUID]]))


def _prefix(
    content: bytes | None, header: str, form: SchemaFormat, known: Mapping[Reference, object]
) -> bytes | BadRecordError:
    """Return the bytes that a header stands for before a value: byte 0, id, and the indexes of the message in Protobuf."""
    if content is None:
        return b""
    length = _LENGTHS.get(content[0]) if content else None
    if length is None or len(content) < length or (len(content) > length and form is not SchemaFormat.PROTOBUF):
        return BadRecordError(
            Code.UNKNOWN_SCHEMA,
            Stage.DECODE,
            f"header {header} has {len(content)} bytes{f' and begins with {content[0]}' if content else ''}; an id has 5 bytes and begins"
            " with 0, a GUID has 17 and begins with 1",
        )
    rest = content[length:]
    if form is SchemaFormat.PROTOBUF:
        data = Bytes(rest)
        try:
            skip_indexes(data, (), "")
        except BadRecordError as error:
            return BadRecordError(Code.INVALID_PROTOBUF, Stage.DECODE, f"header {header}: {error.detail}")
        if data.at < len(rest):
            return BadRecordError(
                Code.INVALID_PROTOBUF, Stage.DECODE, f"header {header} has bytes after the indexes of the message"
            )
    guid = _guid(content)
    number = int.from_bytes(content[1:length]) if guid is None else known.get(guid)
    if isinstance(number, Refusal):
        return BadRecordError(number.code, Stage.DECODE, number.detail)
    if number is None:
        return _NO_ID
    assert isinstance(number, int)
    return bytes(1) + number.to_bytes(_LENGTHS[_ID] - 1) + rest
