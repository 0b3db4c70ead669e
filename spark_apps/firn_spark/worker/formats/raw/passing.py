"""Keys and values as columns, as they are: bytes, or texts if the schema says so."""

import pyarrow as pa

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.model.jobs import RecordSchema
from firn.tables import rows
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Fetched, Places
from firn_spark.worker.formats.format import UNBOUNDED, Columns


class RawFormat:
    """Passes keys and values through."""

    most_bytes = UNBOUNDED
    row_bytes = 0

    def __init__(self, schema: RecordSchema) -> None:
        self._type = arrow_types.arrow_schema(rows.decoded_columns(schema)).field("value").type

    def decode(self, records: Fetched) -> Columns:
        """Return keys and values. A record is bad if one of them has to be a text and is not UTF-8."""
        errors: dict[int, BadRecordError] = {}
        keys = self._column(records.keys, "key", errors)
        return Columns([keys, self._column(records.values, "value", errors)], errors)

    def _column(self, places: Places, name: str, errors: dict[int, BadRecordError]) -> pa.Array:
        array = places.to_arrow()
        if self._type == pa.binary():
            return array
        try:
            return array.cast(self._type)
        except pa.ArrowInvalid:  # some are not UTF-8: find them
            texts: list[str | None] = []
            for index, data in enumerate(places.to_list()):
                try:
                    texts.append(None if data is None else data.decode("utf-8"))
                except UnicodeDecodeError as problem:
                    error = BadRecordError(Code.INVALID_UTF8, Stage.DECODE, f"byte {problem.start}: {problem.reason}")
                    errors.setdefault(index, error.within(f".{name}"))
                    texts.append(None)
            return pa.array(texts, self._type)
