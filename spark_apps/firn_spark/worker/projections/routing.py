"""Finds the records of a topic that go to the table of one contract."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.model.jobs import RecordSchema, Route
from firn.schemas.routes import MESSAGE
from firn_spark.worker.fetched import Fetched, Numbers
from firn_spark.worker.formats.format import Columns, Format
from firn_spark.worker.formats.registry import open_format
from firn_spark.worker.formats.writer_schemas import Reference, WriterSchemas
from firn_spark.worker.projections.fields import Fields
from firn_spark.worker.projections.messages import Messages
from firn_spark.worker.projections.projector import Projector

_NO_ROUTE = (
    "no route of the topic takes this value of {by}; add a route in another IcebergTopic, or correct the producer"
)


class Texts:
    """The texts of a block of records that decide, and the records whose value cannot be read (``bad``)."""

    def __init__(self, texts: pa.Array, bad: Mapping[int, BadRecordError]) -> None:
        encoded = texts.dictionary_encode()
        self.bad = bad
        self._words = encoded.dictionary
        self._known = encoded.indices.is_valid().to_numpy(zero_copy_only=False)
        self._places = encoded.indices.drop_null().to_numpy(zero_copy_only=False)
        self._matches: dict[str, Numbers] = {}

    def matching(self, route: Route) -> Numbers:
        """Return which records a route takes. Records without a text go where the records without a route go."""
        chosen = self._full_match(route.match) if route.match else np.ones(len(self._words), bool)
        for expression in route.before:
            chosen = chosen & ~self._full_match(expression)
        mine = np.full(len(self._known), not route.match)
        mine[self._known] = chosen[self._places]
        mine[np.fromiter(self.bad, np.int64, count=len(self.bad))] = not route.match
        return mine

    def _full_match(self, expression: str) -> Numbers:
        r"""Return which texts match as a whole. ``\A`` and ``\z`` match at the ends of the text only, unlike ``^`` and ``$``.

        The routes after this one need the same answer, so it is kept.
        """
        if expression not in self._matches:
            options = pc.MatchSubstringOptions(rf"\A(?:{expression})\z")
            found = pc.call_function("match_substring_regex", [self._words], options)
            self._matches[expression] = np.asarray(found, bool)
        return self._matches[expression]


class RouteValues:
    """The values that decide about records. All contracts of a topic decode the same ones, so the last ones are kept."""

    def __init__(self) -> None:
        self._decoders: dict[RecordSchema, tuple[Format | None, Projector]] = {}
        self._last: tuple[Fetched, RecordSchema, Texts] | None = None

    def of(self, records: Fetched, schema: RecordSchema, by_writers: Messages | Fields | None) -> Texts:
        """Return the texts, and the records whose value cannot be read. ``by_writers`` finds the texts, if they need schemas of writers.

        Raises SchemasNeededError.
        """
        last = self._last
        if last is not None and last[0] is records and last[1] == schema:
            return last[2]
        texts = Texts(*by_writers.of(records)) if by_writers is not None else self._decoded(records, schema)
        self._last = (records, schema, texts)
        return texts

    def _decoded(self, records: Fetched, schema: RecordSchema) -> Texts:
        if schema not in self._decoders:
            # The projection reads one column, as `firn.schemas.routes.value_schema` makes it.
            reads_value = bool(schema.projection and schema.projection.columns[0].field)
            self._decoders[schema] = open_format(schema, {}) if reads_value else None, Projector(schema)
        decoder, projector = self._decoders[schema]
        decoded = decoder.decode(records) if decoder is not None else Columns([], {})
        columns = projector.project(records, decoded)
        return Texts(columns.arrays[0], columns.errors)


class Router:
    """Compares one value of each record with the expressions of the topic's routes."""

    def __init__(self, route: Route, values: RouteValues, schemas: WriterSchemas) -> None:
        """``schemas`` are those of the registry that the task knows, if the value needs them."""
        self._route = route
        self._values = values
        self._by_writers: Messages | Fields | None = None
        if route.by_writers:
            self._by_writers = (Messages if route.by == MESSAGE else Fields)(route.values, schemas)

    def missing(self, records: Fetched) -> list[Reference]:
        """Return the schemas that `sort` would need."""
        return self._by_writers.missing(records) if self._by_writers is not None else []

    def sort(self, records: Fetched) -> tuple[Numbers, dict[int, BadRecordError]]:
        """Return which records go to the table, and which of these are bad records because of their value.

        A value that cannot be read goes where the records without a route go. So exactly one contract of the topic has it.
        Raises SchemasNeededError.
        """
        route = self._route
        texts = self._values.of(records, route.values, self._by_writers)
        mine = texts.matching(route)
        if route.match:
            return mine, {}
        errors = dict(texts.bad)
        if route.otherwise == "DeadLetter":
            detail = _NO_ROUTE.format(by=route.by)
            for index in np.flatnonzero(mine).tolist():
                if index not in errors:
                    errors[index] = BadRecordError(Code.NO_ROUTE, Stage.ROUTE, detail)
        return mine, errors
