"""Asks diskless brokers where the records of a round are in their bucket, so that the tasks of the round read it."""

import base64
import dataclasses
import http.client
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from uuid import UUID

import structlog
from pydantic import ValidationError

from firn.driver_requests.batch_ranges import (
    IN_TABLE,
    MAX_ANSWER_BYTES,
    MAX_PARTITIONS,
    PATH,
    Answer,
    Question,
    WantedRange,
)
from firn.model.errors import FirnError
from firn.model.jobs import DirectReads
from firn_spark.credentials import without_secrets
from firn_spark.kafka.diskless.listener import InternalListener
from firn_spark.worker.fetching.access import Bucket, bucket
from firn_spark.worker.fetching.slices import ObjectRange, Slice

log = structlog.get_logger()

PAUSE_SECONDS = 30.0
"""Seconds between a request without an answer and the next request, and between two warnings."""
MAX_PAUSE_SECONDS = 600.0
"""Longest time without a read of a bucket that cannot be read. The first pause is `PAUSE_SECONDS`, and each other is twice as long."""
ROUND_RANGES = 200_000
"""Ranges of a round. The driver and its tasks hold them, at about 200 bytes each."""
Place = tuple[str, int]
"""Topic and partition."""


class DirectReader:
    """Finds the places of batches for one profile, and follows whether its bucket can be read. Rounds share it."""

    def __init__(self, profile: str, reads: DirectReads) -> None:
        self._profile = profile
        self._reads = reads
        self._listener = InternalListener(reads)
        self._resting_until = 0.0
        self._pause = 0.0
        self._warned_at = -PAUSE_SECONDS

    def locate(self, groups: Sequence[Sequence[Slice]], topic_ids: Mapping[str, str]) -> list[list[Slice]]:
        """Return the slices with their ranges. A slice whose ranges are not known gets none. Never raises.

        ``topic_ids`` are Kafka's: a topic that was created again under its name has other batches.
        """
        if time.monotonic() < self._resting_until:
            return [list(group) for group in groups]
        try:
            found, rebuilt = self._ranges(groups, topic_ids)
        except (FirnError, OSError, http.client.HTTPException, ValidationError, ValueError, LookupError) as error:
            self._resting_until = time.monotonic() + PAUSE_SECONDS
            self.warn(f"{self._reads.address}: {type(error).__name__}: {str(error)[:300]}")
            return [list(group) for group in groups]
        return [[_located(part, found, rebuilt) for part in group] for group in groups]

    def bucket(self) -> Bucket | None:
        """Return the bucket with the present credentials; None if they cannot be read."""
        try:
            return bucket(self._reads)
        except FirnError as error:
            self.warn(str(error))
            return None

    def note(self, *, usable: bool) -> None:
        """Take the result of a round. After a round that could not use the bucket, `locate` finds no ranges for some time, because
        such a round takes as long as the time limits of its requests."""
        self._pause = 0.0 if usable else min(max(2 * self._pause, PAUSE_SECONDS), MAX_PAUSE_SECONDS)
        if not usable:
            self._resting_until = time.monotonic() + self._pause

    def warn(self, problem: str) -> None:
        """Log why tasks fetch records, at most once in `PAUSE_SECONDS`."""
        if time.monotonic() - self._warned_at >= PAUSE_SECONDS:
            self._warned_at = time.monotonic()
            log.warning(
                "tasks fetch records from brokers instead of the bucket",
                profile=self._profile,
                problem=without_secrets(problem),
            )

    def _ranges(
        self, groups: Sequence[Sequence[Slice]], topic_ids: Mapping[str, str]
    ) -> tuple[dict[Place, list[ObjectRange]], set[Place]]:
        """Ask until all ranges are known, or `ROUND_RANGES` of them. Return them, and the places where they end because brokers
        rebuild the next batches."""
        bounds: dict[Place, tuple[int, int]] = {}
        for part in (part for group in groups for part in group):
            start, end = bounds.get((part.topic, part.partition), (part.start, part.end))
            bounds[part.topic, part.partition] = min(start, part.start), max(end, part.end)
        found: dict[Place, list[ObjectRange]] = {place: [] for place in bounds}
        ids = {topic: uuid_of(id) for topic, id in topic_ids.items()}
        rebuilt = set[Place]()
        pending, left = list(bounds), ROUND_RANGES
        while pending and left > 0:
            some, pending = pending[:MAX_PARTITIONS], pending[MAX_PARTITIONS:]
            wanted = [
                WantedRange(ids[place[0]], place[1], _next(found[place], *bounds[place]), bounds[place][1])
                for place in some
            ]
            answer = self._listener.ask(PATH, Question(partitions=tuple(wanted)), Answer, MAX_ANSWER_BYTES)
            for number, (place, want) in enumerate(zip(some, wanted, strict=True)):
                ranges = list(_from(answer, number))
                found[place] += ranges
                left -= len(ranges)
                if answer.partitions[number].error == IN_TABLE:
                    rebuilt.add(place)
                # Without progress, the end of the log is known, or the broker has an error: brokers answer the fetch.
                if want.start < _next(found[place], *bounds[place]) < want.end:
                    pending.append(place)
        return found, rebuilt


def uuid_of(topic_id: str) -> UUID:
    """Return the id that Kafka writes in URL-safe base64."""
    return UUID(bytes=base64.urlsafe_b64decode(topic_id + "=="))


def _from(answer: Answer, number: int) -> Iterator[ObjectRange]:
    for key, stored in answer.keys_and_ranges(number):
        yield ObjectRange(key, stored.position, stored.length, stored.base_offset, stored.last_offset, stored.append_ms)


def _next(ranges: Sequence[ObjectRange], start: int, end: int) -> int:
    """Return the first offset from ``start`` on that the ranges do not cover; at most ``end``."""
    return min(ranges[-1].last + 1, end) if ranges else start


def _located(part: Slice, found: Mapping[Place, Sequence[ObjectRange]], rebuilt: Container[Place]) -> Slice:
    """Return the slice with the ranges that have its offsets, or without ranges if they do not cover all of them."""
    place = part.topic, part.partition
    own = tuple(one for one in found.get(place, ()) if one.last >= part.start and one.base < part.end)
    if _cover(own, part.start, part.end):
        return dataclasses.replace(part, ranges=own)
    return dataclasses.replace(part, rebuilt=place in rebuilt)


def _cover(ranges: Sequence[ObjectRange], start: int, end: int) -> bool:
    """Return whether ranges have all offsets from ``start`` to before ``end``, one after the other."""
    following = start
    for one in ranges:
        if not one.base <= following <= one.last:
            return False
        following = one.last + 1
    return following >= end
