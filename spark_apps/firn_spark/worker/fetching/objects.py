"""Records of slices from WAL objects, inside a task: the task reads the bucket of diskless brokers, and asks no broker.

The driver has asked the brokers where the batches are (`firn.driver_requests.batch_ranges`). The task reads each object once, for all topics
and partitions whose turn has come. Brokers delete an object only some time after its last batch range is gone. If an object cannot
be read all the same, `Objects.rest` has the offsets that brokers have to be asked for.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import obstore
from obstore.exceptions import NotFoundError
from obstore.store import from_url

from firn_spark.worker.fetched import Fetched, Numbers
from firn_spark.worker.fetching.access import Bucket
from firn_spark.worker.fetching.batches import Batches, Blocks, DamagedError, Position, stored
from firn_spark.worker.fetching.slices import ObjectRange, Slice

WINDOW_BYTES = 8 << 20
WINDOW_OBJECTS = 256
"""Bytes and objects that a task reads at once. It decodes one such window while it reads the next."""
READS = 8
"""Concurrent requests of a task."""
GAP_BYTES = 1 << 20
"""Bytes between two ranges of an object up to which one request reads both."""
READ_TIME, RETRY_TIME, RETRIES = timedelta(seconds=20), timedelta(seconds=20), 2
"""Longest time of a request, time after which no request is repeated, and number of repetitions."""


class Part(NamedTuple):
    """A range to read, and the number of its slice."""

    slice: int
    range: ObjectRange


Window = list[tuple[list[Part], "Future[list[memoryview]]"]]
"""Parts by object, and the bytes of each part."""


class Objects:
    """Reads the slices of a task whose ranges are known."""

    def __init__(self, bucket: Bucket, slices: Sequence[Slice]) -> None:
        self._bucket = bucket
        self._slices = slices
        self._positions = [Position(part.topic, part.partition, part.start, part.end) for part in slices]
        if len({(part.topic, part.partition) for part in slices}) < len(slices):
            raise ValueError("a task reads two ranges of one partition")
        self._left: set[int] = set()
        """Slices whose other offsets brokers have to be asked for."""
        self.unusable = False
        """True if a request failed for a reason that concerns all objects of the bucket."""
        self.problem = ""
        """Why the first of the slices cannot be read from the bucket."""

    @property
    def rest(self) -> list[Slice]:
        """Return the offsets that were not read from the bucket."""
        return [Slice(at.topic, at.partition, at.next, at.end) for at in self._positions if at.next < at.end]

    def blocks(self) -> Iterator[Fetched]:
        """Yield the records. Raises CorruptDataError for records that are malformed as their producer sent them."""
        blocks = Blocks()
        windows = in_windows(in_order([part.ranges for part in self._slices]))
        threads = ThreadPoolExecutor(READS, thread_name_prefix="objects")
        try:
            try:
                store = open_bucket(self._bucket)
            except Exception as error:
                self.problem = f"bucket {self._bucket.url}: {self._cause(error)}"
                return
            ahead = self._load(threads, store, next(windows, []))
            while ahead and not self.unusable:
                window, ahead = ahead, self._load(threads, store, next(windows, []))
                yield from self._decode(blocks, window)
            yield from blocks.flush()
        finally:
            # Each running request may last as long as the one that failed. Its bytes are not needed.
            threads.shutdown(wait=not self.unusable, cancel_futures=True)

    def _load(self, threads: ThreadPoolExecutor, store: Any, parts: Sequence[Part]) -> Window:
        """Begin to read the ranges of a window, with one request for each object unless the gaps in it are large."""
        by_object: defaultdict[str, list[Part]] = defaultdict(list)
        for part in parts:
            by_object[part.range.key].append(part)
        return [(group, threads.submit(_get, store, key, group)) for key, group in by_object.items()]

    def _decode(self, blocks: Blocks, window: Window) -> Iterator[Fetched]:
        """Yield the records of a window by topic, so that small objects do not make small blocks."""
        contents: list[tuple[Part, memoryview]] = []
        missing: dict[str, str] = {}
        cause = ""
        for parts, reading in window:
            if self.unusable and not reading.done():
                missing[parts[0].range.key] = cause
                contents += ((part, memoryview(b"")) for part in parts)
                continue
            try:
                contents += zip(parts, reading.result(), strict=True)
            except Exception as error:
                missing[parts[0].range.key] = cause = self._cause(error)
                contents += ((part, memoryview(b"")) for part in parts)
        contents.sort(key=lambda content: self._place(content[0]))
        data, at = np.empty(sum(len(content) for _, content in contents), np.uint8), 0
        for _, content in contents:
            data[at : at + len(content)] = np.frombuffer(content, np.uint8)
            at += len(content)
        data.setflags(write=False)  # the kernel is compiled for read-only arrays
        at = 0
        for part, content in contents:
            try:
                batches = self._batches(part, content, data, at, missing.get(part.range.key))
            except DamagedError as error:
                self._left.add(part.slice)
                self.problem = self.problem or f"object {part.range.key}: {error}"
            else:
                yield from blocks.add(batches) if batches is not None else ()
            at += len(content)

    def _place(self, part: Part) -> tuple[str, int, int, int]:
        return self._slices[part.slice].topic, part.slice, part.range.base, part.range.last

    def _batches(self, part: Part, content: memoryview, data: Numbers, at: int, cause: str | None) -> Batches | None:
        """Return the wanted batches of a range, whose bytes are at ``data[at]``. Raises DamagedError."""
        position = self._positions[part.slice]
        if part.slice in self._left or part.range.last < position.next:
            return None
        if cause is not None:
            raise DamagedError(cause)
        if len(content) != part.range.length:
            raise DamagedError(f"it ends {part.range.length - len(content)} bytes too early")
        if part.range.base > position.next:
            raise DamagedError(f"no object has the offsets from {position.next} to {part.range.base - 1}")
        return stored(position, data, at, part.range)

    def _cause(self, error: Exception) -> str:
        """Return why an object cannot be read. Any other error than a missing object concerns all objects."""
        if isinstance(error, (FileNotFoundError, NotFoundError)):
            return "it does not exist any more"
        self.unusable = True
        return f"{type(error).__name__}: {str(error)[:300]}"


def open_bucket(bucket: Bucket) -> Any:
    """Return obstore's client."""
    make: Any = from_url  # its options depend on the store that the URL names
    if bucket.url.startswith("file:"):
        return make(bucket.url)  # a directory has no requests
    trust = {} if bucket.authority is None else {"root_certificate": bucket.authority}
    plain = any(text.startswith("http://") for text in bucket.options.values())
    return make(
        bucket.url,
        config=dict(bucket.options),
        client_options={"timeout": READ_TIME, "allow_http": plain, **trust},
        retry_config={"max_retries": RETRIES, "retry_timeout": RETRY_TIME},
    )


def _get(store: Any, key: str, parts: Sequence[Part]) -> list[memoryview]:
    """Return the bytes of each part, fewer if the object ends before. Parts that lie near each other share a request.

    The client's own request for several ranges panics if the object is too short.
    """
    contents: dict[int, memoryview] = {}
    for numbers in _near(parts):
        ranges = [parts[number].range for number in numbers]
        start, end = ranges[0].position, max(one.position + one.length for one in ranges)
        data = memoryview(obstore.get_range(store, key, start=start, end=end))
        for number, one in zip(numbers, ranges, strict=True):
            content = data[one.position - start : one.position - start + one.length]
            # A view would keep the bytes between the parts too.
            contents[number] = content if len(numbers) == 1 else memoryview(bytes(content))
    return [contents[number] for number in range(len(parts))]


def _near(parts: Sequence[Part]) -> Iterator[list[int]]:
    """Yield the numbers of parts with gaps of `GAP_BYTES` at most between them, by position."""
    group: list[int] = []
    end = 0
    for number in sorted(range(len(parts)), key=lambda number: parts[number].range.position):
        position, length = parts[number].range.position, parts[number].range.length
        if group and position - end > GAP_BYTES:
            yield group
            group = []
        group.append(number)
        end = max(end, position + length)
    if group:
        yield group


def in_order(queues: Sequence[Sequence[ObjectRange]]) -> Iterator[list[Part]]:
    """Yield the ranges of one object after the other, so that those of each queue keep their order.

    An object comes when it is next in every queue that needs it. Compaction can make that impossible. Then the object comes in parts.
    """
    runs = [[(key, list(group)) for key, group in groupby(queue, lambda one: one.key)] for queue in queues]
    needed = Counter(key for queue in runs for key, _ in queue)
    heads = [iter(queue) for queue in runs]
    waiting: defaultdict[str, list[list[Part]]] = defaultdict(list)
    complete: deque[str] = deque()

    def advance(number: int) -> None:
        following = next(heads[number], None)
        if following is not None:
            key, ranges = following
            waiting[key].append([Part(number, one) for one in ranges])
            if len(waiting[key]) == needed[key]:
                complete.append(key)

    for number in range(len(queues)):
        advance(number)
    while waiting:
        key = complete.popleft() if complete else next(iter(waiting))
        groups = waiting.pop(key)
        needed[key] -= len(groups)
        yield [part for group in groups for part in group]
        for group in groups:
            advance(group[0].slice)


def in_windows(objects: Iterator[list[Part]]) -> Iterator[list[Part]]:
    """Yield parts of about `WINDOW_BYTES`. An object is divided only if it has more than that."""
    window: list[Part] = []
    size = count = 0
    for parts in objects:
        if window and (size + _bytes(parts) > WINDOW_BYTES or count == WINDOW_OBJECTS):
            yield window
            window, size, count = [], 0, 0
        count += 1
        for part in parts:
            if window and size + part.range.length > WINDOW_BYTES:
                yield window
                window, size, count = [], 0, 1
            window.append(part)
            size += part.range.length
    if window:
        yield window


def _bytes(parts: Sequence[Part]) -> int:
    return sum(part.range.length for part in parts)
