"""Finds the records of a topic that go to the table of one contract."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.model.jobs import Route
from firn_spark.worker.fetched import Fetched, Numbers
from firn_spark.worker.formats.format import Columns
from firn_spark.worker.formats.registry import open_format
from firn_spark.worker.projections.projector import Projector

_NO_ROUTE = (
    "no route of the topic takes this value of {by}; add a route in another IcebergTopic, or correct the producer"
)


class Router:
    """Compares one value of each record with the expressions of the topic's routes."""

    def __init__(self, route: Route) -> None:
        """Raises InvalidSpecError for a schema that cannot be read."""
        self._route = route
        self._format = open_format(route.values, {}) if route.by.startswith("$.") else None
        self._projector = Projector(route.values)

    def sort(self, records: Fetched) -> tuple[Numbers, dict[int, BadRecordError]]:
        """Return which records go to the table, and which of these are bad records because of their value.

        A value that cannot be read goes where the records without a route go. So exactly one contract of the topic has it.
        """
        decoded = self._format.decode(records) if self._format is not None else Columns([], {})
        columns = self._projector.project(records, decoded)
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
