"""A quick check of JSON values: one regular expression for all values of a batch.

An expression has the members of an object in one order, so that no member occurs twice. The first order is that of the schema. The
check learns others from values that the strict decoder has accepted.
"""

from collections.abc import Sequence
from typing import Any

import re2

from firn.decoders import json as strict
from firn.decoders.quick_checks.json_patterns import (
    ANY_SCALAR,
    SPACE,
    NoPatternError,
    Shape,
    completed,
    name_of,
    or_null,
    shape_of,
    value_of,
)
from firn.model.jobs import Column
from firn.tables import types

_MOST_ORDERS = 4
"""Most orders of members at the same time. The newest ones count."""
_MOST_EXPRESSION, _MEMORY = 200_000, 4 << 20
"""Most characters of an expression, and the memory that RE2 may take for it. It takes 0.1 to 0.3 MB, but plans for more."""
_MOST_STEPS = 5_000
"""The largest program of RE2: about 50 fields. Its automaton fits `_MEMORY`, and checks `JsonCheck.slice_bytes` in 1 ms at most.
Without the automaton, RE2 takes 14 ms for a record with 80 fields, and 480 ms for one with 500."""
_PAUSE = 100
"""Batches from which the check learns nothing after a new order. Compiling an expression takes as long as decoding a batch."""
_FRAMING = 5
_END = b"\0"
"""Separates values. No JSON has this byte."""


class JsonCheck:
    """Accepts values whose members have a known order."""

    slice_bytes = 128 << 10

    def __init__(
        self,
        fields: Sequence[Column],
        *,
        has_former: bool,
        keep_unknown: bool,
        ignore_unknown: bool,
        truncate_times: bool,
    ) -> None:
        """``has_former``: fields have earlier names, too. ``keep_unknown`` and ``ignore_unknown``: what becomes of other members.
        ``truncate_times``: times may have digits below the microsecond."""
        self._truncate_times = truncate_times
        self._fields = {field.name: field for field in fields}
        # A member with an earlier name is a field. It would need the expression of its type.
        self._unknown = ignore_unknown and not keep_unknown and not has_former
        self._nulls = not any(field.required for field in fields)
        self._orders: list[str] = []
        self._expression: Any = None
        self._pause = 0
        self._add({})

    def accepts(self, values: Sequence[bytes | None]) -> bool:
        """Return True only if the strict decoder accepts each value."""
        if self._expression is None:
            return False
        found = [value if value[:1] != _END else value[_FRAMING:] for value in values if value is not None]
        if len(found) < len(values) and not self._nulls:
            return False
        joined = _END + _END.join(found)
        # A value with the separator inside is none or several, and the count shows it.
        if not found or joined.count(_END) != len(found) or joined.count(b"\0{") != len(found):
            return not found
        if not joined.isascii():
            try:
                joined.decode()
            except UnicodeDecodeError:
                return False
        # With a comma in place of the bracket, the expression is the same for each member, whether others precede it or not.
        return self._expression.fullmatch(joined.replace(b"\0{", b"\0,")) is not None

    def learn(self, values: Sequence[bytes | None]) -> None:
        """Learn the order of the members from values that the strict decoder has accepted."""
        if self._pause:
            self._pause -= 1
            return
        for value in values:
            if value is not None and not self.accepts([value]):
                self._pause = _PAUSE
                self._add(shape_of(strict.parse(value[_FRAMING:] if value[:1] == _END else value)))
                return

    def _add(self, shape: Shape) -> None:
        try:
            order = self._order(shape)
        except NoPatternError:
            return
        if order in self._orders:
            return
        orders = [*self._orders, order][-_MOST_ORDERS:]
        expression = _compiled(orders)
        while expression is None and len(orders) > 1:
            orders = orders[1:]
            expression = _compiled(orders)
        if expression is not None:
            self._orders, self._expression = orders, expression

    def _order(self, shape: Shape) -> str:
        """Return the expression for an object whose members have the order of ``shape``, with a comma in place of the first bracket."""
        members = []
        for name in completed(shape, list(self._fields)):
            field = self._fields.get(name)
            if field is None:
                if not self._unknown:
                    raise NoPatternError(name)
                members.append(f"(?:,{SPACE}{name_of(name)}{ANY_SCALAR}{SPACE})?")
                continue
            value = value_of(
                types.parse(field.type), strict.Times(field.epoch, self._truncate_times), shape.get(name, {})
            )
            member = f",{SPACE}{name_of(name)}{value if field.required else or_null(value)}{SPACE}"
            members.append(member if field.required and field.default is None else f"(?:{member})?")
        return "".join(members) + rf"\}}{SPACE}"


def _compiled(orders: Sequence[str]) -> Any:
    """Return the expression for any number of values; None if it takes too much memory or time."""
    text = f"(?:\\x00(?:{'|'.join(orders)}))*"
    if len(text) > _MOST_EXPRESSION:
        return None
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture, options.log_errors, options.max_mem = True, False, _MEMORY
    try:
        expression = re2.compile(text.encode(), options)
    except re2.error:
        return None
    return expression if expression.programsize <= _MOST_STEPS else None
