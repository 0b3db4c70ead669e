"""Finds the name of each record's message by the id of its schema, without decoding the value.

Source: "Wire format" of Confluent Schema Registry. Each id of a block is looked up once, and in Protobuf each list of message
indexes. Of a value of an Avro union, only the number of its branch is read.
"""

import functools
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.decoders.protobuf import Bytes, read_indexes
from firn.model.jobs import RecordSchema, SchemaFormat, WriterSchema
from firn.schemas.routes import message_names
from firn_spark.worker.fetched import Fetched, Numbers, Places
from firn_spark.worker.formats import arrays, header_ids
from firn_spark.worker.formats.avro import kernel
from firn_spark.worker.formats.framing import BYTES, unframed
from firn_spark.worker.formats.registry import index_ends
from firn_spark.worker.formats.writer_schemas import Reference, Refusal, SchemasNeededError, WriterSchemas

_names = functools.lru_cache(256)(message_names)
"""The tasks of a process meet the same schemas again."""


class Messages:
    """The full names of messages, from the schemas of a registry."""

    def __init__(self, schema: RecordSchema, known: WriterSchemas) -> None:
        """Read records as ``schema`` says, which is that of `firn.schemas.routes.registry_schema`."""
        assert schema.subject is not None
        self._format, self._known = schema.format, known
        self._in_header = schema.subject.id_in == "Header"

    def of(self, records: Fetched) -> tuple[pa.Array, dict[int, BadRecordError]]:
        """Return the names, null without one, and the records of which the message cannot be known. Raises SchemasNeededError."""
        framed, ids, bad, missing = self._identified(records)
        distinct, places = np.unique(ids, return_inverse=True)
        numbers: list[int] = distinct.tolist()
        missing += self._unknown(numbers)
        if missing:
            raise SchemasNeededError(missing, "routes")
        values = framed.values
        for index in np.flatnonzero((ids < 0) & values.present).tolist():
            size = int(values.ends[index] - values.firsts[index])
            bad.setdefault(index, header_ids.unidentified(header_ids.VALUE, size, in_header=self._in_header))
        for place, number in enumerate(numbers):
            refusal = self._known.get(number)
            if isinstance(refusal, Refusal):
                for index in np.flatnonzero(places == place).tolist():
                    bad[index] = BadRecordError(refusal.code, Stage.DECODE, refusal.detail)
        if self._format is SchemaFormat.PROTOBUF:
            return self._of_indexes(values, numbers, places, bad), bad
        names = [self._names_of(number) for number in numbers]
        found = pa.array([each.get(()) or None for each in names], pa.string()).take(pa.array(places))
        for place, each in enumerate(names):
            if each and () not in each:
                chosen = np.flatnonzero(places == place)
                (found,) = arrays.replaced(
                    [found], chosen, [_of_branches(values, each, places == place, bad).take(chosen)]
                )
        return found, bad

    def missing(self, records: Fetched) -> list[Reference]:
        """Return the schemas that `of` would need."""
        _, ids, _, missing = self._identified(records)
        return missing + self._unknown(np.unique(ids).tolist())

    def _identified(self, records: Fetched) -> tuple[Fetched, Numbers, dict[int, BadRecordError], list[Reference]]:
        in_header, header = self._in_header, header_ids.VALUE
        return header_ids.identified(records, header, self._format, self._known, in_header=in_header)

    def _unknown(self, ids: list[int]) -> list[Reference]:
        return [number for number in ids if number >= 0 and number not in self._known]

    def _names_of(self, number: int) -> Mapping[tuple[int, ...], str]:
        writer = self._known.get(number)
        return _names(self._format, writer) if isinstance(writer, WriterSchema) else {}

    def _of_indexes(
        self, values: Places, numbers: list[int], places: Numbers, bad: dict[int, BadRecordError]
    ) -> pa.Array:
        """Return the names of Protobuf messages, and add the values with wrong message indexes to ``bad``."""
        codes, known, wrong = message_indexes(values)
        for index, error in wrong.items():
            bad.setdefault(index, error)
        pairs, at = np.unique(places * (len(known) + 1) + codes, return_inverse=True)
        names: list[str | None] = []
        for which, pair in enumerate(pairs.tolist()):
            place, code = divmod(pair, len(known) + 1)
            name = self._names_of(numbers[place]).get(known[code]) if code < len(known) else None
            names.append(name)
            if name is None and code < len(known):
                for index in np.flatnonzero(at == which).tolist():
                    bad.setdefault(index, without_message(known[code], numbers[place]))
        return pa.array(names, pa.string()).take(pa.array(at))


def _of_branches(
    values: Places, names: Mapping[tuple[int, ...], str], chosen: Numbers, bad: dict[int, BadRecordError]
) -> pa.Array:
    """Return the names of the branches of an Avro union, and add ``chosen`` values without a branch to ``bad``."""
    behind, framed = unframed(values)
    count = len(values)
    branches, firsts, sure = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, bool)
    readable = chosen & framed & values.present
    kernel.find_branches(behind.data, behind.firsts, behind.ends, readable, len(names), branches, firsts, sure)
    for index in np.flatnonzero(~sure).tolist():
        problem = f"the value does not begin with the number of one of the {len(names)} branches of its union"
        bad.setdefault(index, BadRecordError(Code.INVALID_AVRO, Stage.DECODE, problem))
    return pa.array([*(names[number,] or None for number in range(len(names))), None], pa.string()).take(
        pa.array(branches % (len(names) + 1))
    )


def message_indexes(values: Places) -> tuple[Numbers, list[tuple[int, ...]], dict[int, BadRecordError]]:
    """Return the place of each value's message indexes in a list of them, that list, and the values with wrong ones.

    The place of a value without message indexes is the length of the list.
    """
    behind, framed = unframed(values)
    ends, sure = index_ends(behind)
    readable = sure & framed & values.present
    wrong = np.flatnonzero(framed & values.present & ~sure).tolist()
    lists = Places(behind.data, behind.firsts, ends, readable).to_arrow().dictionary_encode()
    known = [tuple(read_indexes(Bytes(content, BYTES))) for content in lists.dictionary.to_pylist()]
    codes = lists.indices.fill_null(len(known)).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes, known, {index: _wrong(behind.value(index) or b"") for index in wrong}


def without_message(indexes: tuple[int, ...], number: int) -> BadRecordError:
    """Return why a value is bad whose message indexes the schema ``number`` does not have."""
    problem = f"the message indexes are {[*indexes[:8]]}, and schema {number} has no such message"
    return BadRecordError(Code.INVALID_PROTOBUF, Stage.DECODE, problem)


def _wrong(value: bytes) -> BadRecordError:
    """Return why the bytes behind a schema id do not begin with message indexes."""
    try:
        read_indexes(Bytes(value, BYTES))
    except BadRecordError as error:
        return error
    return BadRecordError(Code.INVALID_PROTOBUF, Stage.DECODE, "the value does not begin with message indexes")
