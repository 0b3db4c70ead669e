"""Quick checks of batches in the event loop (`firn.decoders.quick_checks`). They answer for most small batches, so that these do not
wait for the process that decodes values.

The event loop works on a few kilobytes at a time. Other requests run in between.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from firn.decoders.quick_checks.opening import QuickCheck, quick_check_of
from firn.model.errors import InvalidSpecError
from firn.model.jobs import RecordSchema
from firn.records.contents import UndecodableError
from firn.records.record_batch import Batch
from firn.records.values import FRAMING, first_bytes
from firn_broker.log.decoder import Decoder

INLINE_RECORDS, INLINE_BYTES = 500, 256 << 10
"""Records and decompressed bytes of a batch that the event loop reads itself, in about half a millisecond."""
MOST_KEPT, MOST_TEXT = 64, 64 << 10
"""Schemas whose checks are kept, and most characters of such a schema. A check takes a few hundred kilobytes."""
IDLE_SECONDS = 60.0
"""Seconds without a batch after which another schema may replace a check. To make one takes as long as to decode a batch."""
ALL = b""
"""The key of the schema of all values. Other keys are the first `FRAMING` bytes of values."""


_PATIENCE = 16
"""Batches that a check may leave to the process in a row. After them, it sees each sixteenth batch only."""

Schemas = Mapping[bytes, tuple[str, str]]
"""Name and text of schemas by the first bytes of values. Values without a schema pass."""
Values = list[bytes | None]


@dataclass(slots=True)
class _Kept:
    """The quick check of a schema, None if it has none, and the batches in a row that it has left to the process."""

    check: QuickCheck | None
    used: float
    """The time of its last batch."""
    missed: int = 0


class QuickValues:
    """Keeps the quick checks of schemas."""

    def __init__(self, decoder: Decoder) -> None:
        """``decoder`` makes the checks of new schemas, and lets them learn."""
        self._decoder = decoder
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        """By the name of a schema."""
        self._inline = 0

    async def accept(self, batch: Batch, schemas: Schemas, address: str) -> bool:
        """Return True only if the strict decoders accept each value of a batch of the client at ``address``."""
        if batch.records > INLINE_RECORDS:
            return False
        kept = [await self._open(name, text, address) for name, text in schemas.values()]
        tried = all(
            each.check is not None and (each.missed < _PATIENCE or each.missed % _PATIENCE == 0) for each in kept
        )
        accepted = tried and await self._accepted(batch, dict(zip(schemas, kept, strict=True)))
        for each in kept:
            each.missed = 0 if accepted else each.missed + 1
        return accepted

    async def learn(self, batch: Batch, schemas: Schemas, address: str) -> None:
        """Learn from a batch that `accept` did not accept, and the strict decoders did."""
        if batch.records > INLINE_RECORDS:
            return
        kept = {first: self._kept[name] for first, (name, _) in schemas.items() if name in self._kept}
        if not any(each.missed % _PATIENCE == 1 for each in kept.values()):
            return
        for first, values in (_by_schema(batch, kept) or {}).items():
            check = kept[first].check
            if check is not None:
                await self._decoder.run(partial(check.learn, values), address)

    async def _open(self, name: str, text: str, address: str) -> _Kept:
        """Return the check of a schema. A schema has none while those of too many others are in use."""
        now = asyncio.get_running_loop().time()
        if name not in self._kept:
            oldest = next(iter(self._kept.values()), None)
            if len(self._kept) >= MOST_KEPT and oldest is not None and now - oldest.used < IDLE_SECONDS:
                return _Kept(None, now)
            check = None
            if len(text) <= MOST_TEXT:
                check = await self._decoder.run(partial(_opened, text), address)
            self._kept[name] = _Kept(check, now)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        found = self._kept[name]
        found.used = now
        self._kept.move_to_end(name)
        return found

    async def _accepted(self, batch: Batch, kept: Mapping[bytes, _Kept]) -> bool:
        found = _by_schema(batch, kept)
        if found is None:
            return False
        for first, values in found.items():
            check = kept[first].check
            assert check is not None
            start = 0
            for end in _ends(values, check.slice_bytes):
                part = values[start:end]
                # A request may have many batches, and others must not wait for all of them.
                self._inline += len(part)
                if self._inline >= INLINE_RECORDS or start:
                    self._inline = 0
                    await asyncio.sleep(0)
                if not check.accepts(part):
                    return False
                start = end
            if start < len(values):
                return False
        return True


def _by_schema(batch: Batch, kept: Mapping[bytes, object]) -> dict[bytes, Values] | None:
    """Return the values of a batch by the key of their schema, or None if the event loop must not or cannot read the batch."""
    try:
        values = first_bytes(batch.data, INLINE_BYTES, INLINE_BYTES)
    except UndecodableError:
        return None
    if ALL in kept:
        return {ALL: values}
    found: dict[bytes, Values] = {}
    for value in values:
        if value is not None and value[:FRAMING] in kept:
            found.setdefault(value[:FRAMING], []).append(value)
    return found


def _ends(values: Values, most: int) -> Iterator[int]:
    """Yield the ends of parts of at most so many bytes, up to a value that is larger."""
    size = 0
    for place, value in enumerate(values):
        length = 0 if value is None else len(value)
        if length > most:
            break
        if size + length > most:
            yield place
            size = 0
        size += length
    else:
        yield len(values)


def _opened(text: str) -> QuickCheck | None:
    try:
        return quick_check_of(RecordSchema.model_validate_json(text))
    except InvalidSpecError:
        return None
