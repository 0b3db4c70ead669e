"""Finds the records of a topic that go to the table of one contract."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.model.jobs import RecordSchema, Route
from firn_spark.worker.fetched import Fetched, Numbers
from firn_spark.worker.formats.format import Columns, Format
from firn_spark.worker.formats.registry import open_format
from firn_spark.worker.projections.projector import Projector

_NO_ROUTE = (
    "no route of the topic takes this value of {by}; add a route in another IcebergTopic, or correct the producer"
)


class RouteValues:
    """The values that decide about records. All contracts of a topic decode the same ones, so the last ones are kept."""

    def __init__(self) -> None:
        self._decoders: dict[RecordSchema, tuple[Format | None, Projector]] = {}
        self._last: tuple[Fetched, RecordSchema, Columns] | None = None

    def of(self, records: Fetched, schema: RecordSchema) -> Columns:
        """Return the texts, and the records whose value cannot be read."""
        last = self._last
        if last is not None and last[0] is records and last[1] == schema:
            return last[2]
        if schema not in self._decoders:
            # The projection reads one column, as `firn.schemas.routes.value_schema` makes it.
            reads_value = bool(schema.projection and schema.projection.columns[0].field)
            self._decoders[schema] = open_format(schema, {}) if reads_value else None, Projector(schema)
        decoder, projector = self._decoders[schema]
        decoded = decoder.decode(records) if decoder is not None else Columns([], {})
        columns = projector.project(records, decoded)
        self._last = (records, schema, columns)
        return columns


class Router:
    """Compares one value of each record with the expressions of the topic's routes."""

    def __init__(self, route: Route, values: RouteValues) -> None:
        self._route = route
        self._values = values

    def sort(self, records: Fetched) -> tuple[Numbers, dict[int, BadRecordError]]:
        """Return which records go to the table, and which of these are bad records because of their value.

        A value that cannot be read goes where the records without a route go. So exactly one contract of the topic has it.
        """
        columns = self._values.of(records, self._route.values)
        route, bad = self._route, columns.errors
        texts = columns.arrays[0].dictionary_encode()
        words = texts.dictionary
        taken = _any_of(words, route.before)
        chosen = _full_match(words, route.match) & ~taken if route.match else ~taken
        places = texts.indices
        known = places.is_valid().to_numpy(zero_copy_only=False)
        mine = np.full(len(records), not route.match)
        mine[known] = chosen[places.drop_null().to_numpy(zero_copy_only=False)]
        unread = np.fromiter(bad, np.int64, count=len(bad))
        mine[unread] = not route.match
        if route.match:
            return mine, {}
        errors = dict(bad)
        if route.otherwise == "DeadLetter":
            for index in np.flatnonzero(mine).tolist():
                if index not in errors:
                    detail = _NO_ROUTE.format(by=route.by)
                    errors[index] = BadRecordError(Code.NO_ROUTE, Stage.ROUTE, detail)
        return mine, errors


def _any_of(words: pa.Array, expressions: tuple[str, ...]) -> Numbers:
    found = np.zeros(len(words), bool)
    for expression in expressions:
        found |= _full_match(words, expression)
    return found


def _full_match(words: pa.Array, expression: str) -> Numbers:
    r"""Return which texts match as a whole. ``\A`` and ``\z`` match at the ends of the text only, unlike ``^`` and ``$``."""
    options = pc.MatchSubstringOptions(rf"\A(?:{expression})\z")
    return np.asarray(pc.call_function("match_substring_regex", [words], options), bool)
