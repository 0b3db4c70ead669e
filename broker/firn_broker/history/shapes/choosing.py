"""Chooses the shapes of the records of a topic: which one gives back the value of each record."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.driver_requests.landed_offsets import RECORD
from firn_broker.history.sections import Numbers
from firn_broker.history.shapes.finding import Names, find
from firn_broker.history.shapes.joining import valid
from firn_broker.history.shapes.rendering import NO_SHAPE, UnrenderableError, render
from firn_broker.history.shapes.shape import Object

MOST_SHAPES = 32
"""Shapes of an entry."""
MOST_FAILURES = 16
"""Records without a shape after which the other records of some rows are not looked at. Their text may be free."""
_KEPT = MOST_SHAPES // 2
"""Shapes that stay for the next records, so that there is room for new ones."""
_SAMPLE = 512
"""Records by which one of several shapes is chosen."""
_CANDIDATES = 64
"""Shapes of a record that are tried."""
_HINTS = 4
"""Known shapes that a new one may extend."""


@dataclass(slots=True)
class Chooser:
    """The shapes of a topic that were found until now. The first one gives back the most records."""

    names: Names
    shapes: list[Object] = field(default_factory=list)

    @property
    def columns(self) -> list[int]:
        """Return the ids of the columns that values are made of."""
        return sorted({field for (parent, _), field in self.names.items() if parent == RECORD})

    def order(self, numbers: Numbers) -> None:
        """Keep the shapes with these numbers that most records have, and leave room for others."""
        counts = np.bincount(numbers, minlength=len(self.shapes))[: len(self.shapes)]
        used = [place for place in np.argsort(-counts, kind="stable").tolist() if counts[place]]
        self.shapes = [self.shapes[place] for place in used[:_KEPT]]

    def numbers(self, rows: pa.StructArray, texts: pa.Array) -> Numbers:
        """Return the number of the shape that gives the text of each row: `NO_SHAPE` for null, and if there is none.

        Shapes that are missing are found from the texts."""
        matches = [_equal(shape, rows, texts) for shape in self.shapes]
        left = valid(texts)
        for match in matches:
            left &= ~match
        failures = 0
        while failures < MOST_FAILURES and len(self.shapes) < MOST_SHAPES and left.any():
            shape = self._best(left, rows, texts)
            if shape is None:
                failures += 1
                left[np.argmax(left)] = False
                continue
            self.shapes.append(shape)
            matches.append(_equal(shape, rows, texts))
            left &= ~matches[-1]
        return _chosen(matches, valid(texts))

    def _best(self, left: Numbers, rows: pa.StructArray, texts: pa.Array) -> Object | None:
        """Return the shape of the first text that is ``left`` which gives most of the texts that are left."""
        sample = pa.array(np.flatnonzero(left)[:_SAMPLE])
        some, wanted = rows.take(sample), texts.take(sample)
        best, most = None, 0
        found = find(wanted[0].as_py(), some.slice(0, 1), self.names, self.shapes[: -_HINTS - 1 : -1])
        for shape in islice(found, _CANDIDATES):
            match = _equal(shape, some, wanted)
            count = int(match.sum())
            if match[0] and count > most:
                best, most = shape, count
            if most == len(sample):
                break
        return best


def _equal(shape: Object, rows: pa.StructArray, texts: pa.Array) -> Numbers:
    """Return for which rows a shape gives the text."""
    try:
        rendered = render([shape], np.zeros(len(rows), np.uint8), rows)
    except UnrenderableError:
        return np.zeros(len(rows), np.bool_)
    equal: Numbers = pc.call_function("equal", [rendered, texts]).fill_null(False).to_numpy(zero_copy_only=False)
    return equal


def _chosen(matches: Sequence[Numbers], present: Numbers) -> Numbers:
    """Return the number of a shape for each text, so that few shapes are used."""
    numbers = np.full(len(present), NO_SHAPE, np.uint8)
    left = present.copy()
    while matches:
        counts = [int((match & left).sum()) for match in matches]
        best = int(np.argmax(counts))
        if not counts[best]:
            break
        numbers[matches[best] & left] = best
        left &= ~matches[best]
    return numbers
