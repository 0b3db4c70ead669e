"""Renders rows as JSON texts by a shape."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from firn_broker.history.sections import Numbers
from firn_broker.history.shapes.joining import Join, Mask, both, of_edges, placed, valid
from firn_broker.history.shapes.shape import COMMA, NULL, Array, Entries, Member, Node, Object, Unknown
from firn_broker.history.shapes.tokens import text_as_bytes

ID = b"PARQUET:field_id"
"""The key of a column's id in the metadata of Arrow."""
NO_SHAPE = 255
"""The number of a record without a shape. Its value is null."""
_CHUNK_ROWS, _CHUNK_BYTES = 8_192, 16 << 20
"""Rows that are rendered at a time, so that their bytes stay in the cache of a core, and bytes of their columns."""


class UnrenderableError(ValueError):
    """Columns that do not have the values of a shape."""


def render(shapes: Sequence[Object], numbers: Numbers, rows: pa.StructArray) -> pa.Array:
    """Return the text of each row by the shape with its number; null for `NO_SHAPE`. Raises UnrenderableError.

    The members of ``rows`` have the ids of their columns as metadata."""
    present = np.unique(numbers).tolist()
    try:
        if len(present) == 1:
            return _of_one(shapes, present[0], rows)
        found = pa.nulls(len(rows), pa.binary())
        for number in present:
            chosen = numbers == number
            found = placed(found, chosen, _of_one(shapes, number, rows.filter(pa.array(chosen))))
        return found
    except (pa.ArrowException, ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        raise UnrenderableError(f"the rows do not fit the shapes of their values: {error!r}") from error


def members_of(kind: Any) -> Mapping[int, int]:
    """Return the places of the members of a struct type by their ids."""
    return {
        int(member.metadata[ID]): place
        for place, member in enumerate(kind)
        if member.metadata is not None and ID in member.metadata
    }


def struct_of(columns: Mapping[int, pa.Array], rows: int) -> pa.StructArray:
    """Return columns as the members of one array, with their ids as metadata."""
    fields = [pa.field(str(id), column.type, metadata={ID: str(id)}) for id, column in columns.items()]
    if not fields:
        return pa.array([{}] * rows, pa.struct([]))
    return pa.StructArray.from_arrays(list(columns.values()), fields=fields)


def _of_one(shapes: Sequence[Object], number: int, rows: pa.StructArray) -> pa.Array:
    if number == NO_SHAPE:
        return pa.nulls(len(rows), pa.binary())
    step = max(min(_CHUNK_ROWS, _CHUNK_BYTES * len(rows) // max(rows.nbytes, 1)), 1)
    chunks = [_rendered(shapes[number], rows.slice(first, step)) for first in range(0, len(rows), step)]
    return pa.concat_arrays(chunks) if chunks else pa.array([], pa.binary())


def _rendered(node: Node, values: pa.Array) -> pa.Array:
    """Return the text of each value, ``null`` for null."""
    join = Join(len(values))
    _add(join, node, values, None)
    return join.texts()


def _add(join: Join, node: Node, values: pa.Array, where: Mask) -> None:
    """Add the text of each value, ``null`` for null, to the rows ``where``."""
    if values.null_count:
        there = valid(values)
        missing = ~there if where is None else where & ~there
        if missing.any():
            join.add(NULL.encode(), missing)
        where = both(where, there)
    _add_present(join, node, values, where)


def _add_present(join: Join, node: Node, values: pa.Array, where: Mask) -> None:
    """Add the text of each value to the rows ``where``, whose values are not null."""
    match node:
        case Object():
            _add_object(join, node, values, where)
        case Array() | Entries():
            join.add(node.open.encode(), where)
            join.column(_lists(node, values), where)
            join.add(node.close.encode(), where)
        case Unknown():
            # Rows with a value have another shape.
            return
        case _:
            quote = b'"' if node.quoted else b""
            join.add(quote, where)
            join.column(node.texts(values), where)
            join.add(quote, where)


def _add_object(join: Join, node: Object, values: pa.StructArray, where: Mask) -> None:
    join.add(text_as_bytes(node.open), where)
    places = members_of(values.type)
    started: Numbers | bool = False
    for member in node.members:
        place = places.get(member.field)
        # A file from before the column was added does not have it.
        child = pa.nulls(len(values)) if place is None else values.field(place)
        there = both(where, valid(child)) if member.omitted and child.null_count else where
        started = _add_name(join, node, member, there, started, there is where)
        add = _add_present if member.omitted else _add
        add(join, member.value, child, there)
    join.add(node.close.encode(), where)


def _add_name(
    join: Join, node: Object, member: Member, there: Mask, started: Numbers | bool, always: bool
) -> Numbers | bool:
    """Add the name of a member to the rows ``there``, and return which objects have a member now, or whether all or none of them have.

    ``always``: whether all objects have this member."""
    first, later = member.name.encode(), ((node.separator or COMMA) + member.name).encode()
    if isinstance(started, bool):
        join.add(later if started else first, there)
        return True if started or always or there is None else there
    numbers = started.astype(np.int8) + 1
    join.choose((b"", first, later), numbers if there is None else numbers * there)
    return True if always or there is None else started | there


def _lists(node: Array | Entries, lists: pa.Array) -> pa.Array:
    """Return the text between the brackets of each list or map."""
    if not (pa.types.is_list(lists.type) or pa.types.is_map(lists.type)):
        raise UnrenderableError(f"a column of {lists.type} has no lists")
    edges = np.frombuffer(lists.buffers()[1], np.int32)[lists.offset : lists.offset + len(lists) + 1]
    first, count = int(edges[0]), int(edges[-1] - edges[0])
    if not count:
        return pa.array([b""] * len(lists), pa.binary())
    edges = edges - first
    join = Join(count)
    later = np.ones(count, np.bool_)
    later[edges[:-1][np.diff(edges) > 0]] = False
    join.add((node.separator or COMMA).encode(), later)
    if isinstance(node, Entries):
        keys, items = lists.keys.slice(first, count), lists.items.slice(first, count)
        join.add(b'"')
        join.column(node.key.texts(keys))
        join.add(b'"' + node.colon.encode())
        _add(join, node.value, items, None)
    else:
        _add(join, node.element, lists.values.slice(first, count), None)
    texts = join.texts()
    return of_edges(texts, np.frombuffer(texts.buffers()[1], np.int32)[: count + 1][edges])
