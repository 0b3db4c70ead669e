"""Fetch (1), versions 4 to 16: whole batches from the one with the requested offset on.

- Topics by id since 13. Incremental sessions since 7 (`log.fetch_sessions`).
- There are no transactions: the last stable offset is the high watermark, and no transaction is aborted.
- If a consumer states a rack (since 11) that has a broker, a broker of another zone sends no records. It answers with
  the id of the broker in the rack (KIP-392).
- A fleet may have history brokers. The other brokers answer a consumer of old records in the same way with the id of a
  history broker, and a history broker sends the consumer back when it has read these (since 11). A consumer that asks
  for the same offset again does not follow, and gets the records.
- A topic that the client may not read is TOPIC_AUTHORIZATION_FAILED, whether it exists or not. A topic by id is, if it
  exists, as with Kafka: ids are random. The ACLs are checked for each request, also in a session.
- A partition that is requested several times is answered once, from the last requested offset, as by Kafka.
- One batch larger than all bounds may be in an answer. Otherwise no consumer could read it.
- A consumer that exceeds its quota gets an answer without partitions, and the throttle time (KIP-219). An answer has at
  most the bytes that the quota allows at once, and one batch may exceed them.
- OFFSET_OUT_OF_RANGE refers only to bounds that were read after the request arrived. Batches that cannot be read now
  are KAFKA_STORAGE_ERROR, after which clients retry."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn_broker import metrics
from firn_broker.access.quotas import Quota
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.cluster.membership import choose, leaders
from firn_broker.log.fetch_sessions import LAST, Key, Wanted, wanted_by
from firn_broker.log.reader import Position, Records, Serves
from firn_broker.log_types import LogState, Partition, Topic
from firn_broker.network.budget import Counted, Share
from firn_broker.network.router import Call, Client
from firn_broker.wire import fetch
from firn_broker.wire.fetch import FetchRequest, FetchResult

KEY = 1
VERSIONS = (4, 16)
MAX_WAIT_MS = 300_000
WITH_PREFERRED = 11
"""The first version whose answers can name another broker."""
REMEMBERED = 100_000
"""Partitions for which a connection remembers that it was sent to another broker."""

AT_ONCE = 2_000
"""Partitions of one request that are handled before other requests may run."""
LARGE = 10_000
"""Partitions from which the memory of a request counts."""
PARTITION_BYTES = 1_024
"""Bytes that a partition takes in memory until the answer is written, besides its records."""
LARGE_WAIT_MS = 1_000
"""The longest wait for records while the request holds that memory."""

Results = list[tuple[Key, FetchResult]]


async def handle(broker: Broker, call: Call) -> list[bytes | memoryview]:
    """Answer with whole batches. The sender of the answer releases its share of the budget."""
    share = Share(broker.reader.answers, call.client.peer)
    large = Share(broker.large_fetches, call.client.peer)
    try:
        # The partitions are counted before they are parsed. Those of a session need no bytes in the request.
        most = max(len(call.frame) // fetch.partition_size(call.version), broker.fetch_sessions.size(call.client))
        if most > LARGE:
            await large.acquire(most * PARTITION_BYTES)
        return Counted(await _answer(broker, call, share), share)
    except BaseException:
        share.release()
        raise
    finally:
        large.release()


async def _answer(broker: Broker, call: Call, share: Share) -> list[bytes | memoryview]:
    call.client.forget()
    request = fetch.read(call.frame, call.header.body, call.version)
    session, error = broker.fetch_sessions.find(call.client, request)
    if error:
        return fetch.write(call.version, request.isolation, [], error)
    if broker.quotas.active:
        if call.exceeds(broker.quotas, Quota.CONSUMER_BYTES):
            body = fetch.write(call.version, request.isolation, [], session=session.id if session else 0)
            return _counted(broker, call, body)
        burst = broker.quotas.burst(Quota.CONSUMER_BYTES, call.client.principal, call.client_id)
        if burst < request.max_bytes:
            request = replace(request, max_bytes=int(burst))
    results: Results = []
    if session is not None and (first := session.first_wanted()) is not None:
        wanted = first
        results, positions = await _results(broker, call, request, wanted, share, only_full=True)
        session.tried(full=bool(results))
    if not results:
        wanted = wanted_by(request) if session is None else session.wanted
        results, positions = await _results(broker, call, request, wanted, share)
    max_bytes = min(request.max_bytes, broker.reader.response_bytes)
    ends = _ends(results, positions)
    await _pause(len(wanted))
    if session is None:
        repeats = request.session_epoch == LAST
        session = broker.fetch_sessions.open(call.client, request, wanted)
        if session is not None:
            session.changes(results, max_bytes)
    else:
        results = session.changes(results, max_bytes)
        repeats = not results and not request.topics and not request.forgotten
    await _pause(len(results))
    topics: dict[str | UUID, list[FetchResult]] = {}
    for (name, _), result in results:
        topics.setdefault(name, []).append(result)
    body = fetch.write(call.version, request.isolation, list(topics.items()), session=session.id if session else 0)
    if ends and repeats and call.version >= 7 and request.min_bytes > 0:
        broker.repeated_fetches.remember(call, request, session, ends, b"".join(body))
    return _counted(broker, call, body) if broker.quotas.active else body


def _counted(broker: Broker, call: Call, body: list[bytes | memoryview]) -> list[bytes | memoryview]:
    """Count the bytes of an answer, and state the throttle time in it."""
    call.count(broker.quotas, Quota.CONSUMER_BYTES, sum(map(len, body)))
    call.count_time(broker.quotas)
    return fetch.throttled(body, call.throttle_ms) if call.throttle_ms else body


def _ends(results: Results, positions: Sequence[Position]) -> dict[Partition, tuple[int, int]]:
    """Return the ends of all partitions if the fetch found nothing there, else nothing."""
    if len(positions) < len(results):
        return {}
    ends = {}
    for (_, result), position in zip(results, positions, strict=True):
        if result.error or result.records or result.high_watermark != position.offset:
            return {}
        ends[position.partition] = result.log_start, result.high_watermark
    return ends


async def _pause(partitions: int) -> None:
    """Let other requests run between two steps of the work on many partitions."""
    if partitions >= AT_ONCE:
        await asyncio.sleep(0)


async def _results(
    broker: Broker, call: Call, request: FetchRequest, wanted: Wanted, share: Share, *, only_full: bool = False
) -> tuple[Results, list[Position]]:
    """Return the result of each partition, and the positions that the reader looked at. With ``only_full``, return
    nothing if the partitions do not fill an answer, or if one has an error."""
    results: Results = []
    positions: list[Position] = []
    answers: list[FetchResult] = []
    topics: dict[str | UUID, tuple[Topic | None, ErrorCode]] = {}
    decisions = broker.authorizer.version
    nearer = broker.membership.nearer(request.rack, call.client.listener)
    serves, others = _served(broker, call, request)
    for number, (key, requested) in enumerate(wanted.items(), 1):
        if not number % AT_ONCE:
            await asyncio.sleep(0)
        name, index = key
        if name not in topics:
            topics[name] = await _topic(broker, call.client, name)
        topic, missing = topics[name]
        result = FetchResult(index)
        results.append((key, result))
        place = None if topic is None else topic.partition(index)
        if topic is None or place is None:
            result.error = missing
        elif requested.leader_epoch > 0:
            result.error = ErrorCode.unknown_leader_epoch
        else:
            if nearer:
                result.preferred = leaders(nearer, topic.id, topic.partitions)[index]
            # The entry counts once: later, the client may have followed, and come back.
            insists = call.client.redirected.pop(place, None) == requested.offset
            positions.append(Position(place, requested.offset, requested.max_bytes, insists))
            answers.append(result)
    if nearer:
        positions, answers = await _not_redirected(broker, positions, answers)
    # Some partitions have an error, or another broker to fetch from. The consumer must not wait to learn that.
    settled = len(positions) < len(results)
    await _pause(len(positions))
    try:
        read = await _read(
            broker, request, positions, share, serves, partitions=len(wanted), settled=settled, only_full=only_full
        )
    except UnavailableError:
        for result in answers:
            result.error = ErrorCode.kafka_storage_error
    else:
        if read is None:
            return [], []
        _fill(positions, answers, read, serves, others, call.client.redirected)
    _withhold(broker, call.client, results, topics, decisions)
    return results, positions


def _served(broker: Broker, call: Call, request: FetchRequest) -> tuple[Serves, tuple[int, ...]]:
    """Return the positions that this broker serves, and the ids of the brokers that serve the others."""
    membership, listener = broker.membership, call.client.listener
    if call.version < WITH_PREFERRED or not (history := membership.history_brokers(listener)):
        return Serves.ALL, ()
    if not membership.is_history_broker:
        return Serves.NEWEST, history
    others = tuple(node.id for node in membership.near(request.rack or call.client.zone, listener))
    return (Serves.ALL, ()) if membership.lease.node in others else (Serves.HISTORY, others)


def _withhold(
    broker: Broker,
    client: Client,
    results: Results,
    topics: Mapping[str | UUID, tuple[Topic | None, ErrorCode]],
    decisions: int,
) -> None:
    """Remove the records of topics that the client may not read any more, if the ACLs changed during the fetch."""
    if broker.authorizer.version == decisions:
        return
    for (name, _), result in results:
        topic, _missing = topics[name]
        if topic is not None and broker.authorizer.forbids(client, Operation.READ, ResourceType.TOPIC, topic.name):
            result.error, result.records = ErrorCode.topic_authorization_failed, ()
            result.high_watermark = result.log_start = result.preferred = -1


def _fill(
    positions: Sequence[Position],
    answers: Sequence[FetchResult],
    read: Sequence[Records],
    serves: Serves,
    others: tuple[int, ...],
    redirected: dict[Partition, int],
) -> None:
    """Fill the answers. ``others`` are the brokers that serve what this one does not, ``redirected`` is that of the client."""
    for position, result, records in zip(positions, answers, read, strict=True):
        result.error, result.records = records.error, records.batches
        result.high_watermark, result.log_start = records.high_watermark, records.log_start
        if records.elsewhere:
            result.preferred = choose(others, position.partition)
            metrics.REDIRECTED_PARTITIONS.labels("newest" if serves is Serves.HISTORY else "history").inc()
            if len(redirected) < REMEMBERED:
                redirected[position.partition] = position.offset


async def _read(
    broker: Broker,
    request: FetchRequest,
    positions: Sequence[Position],
    share: Share,
    serves: Serves,
    *,
    partitions: int,
    settled: bool,
    only_full: bool,
) -> list[Records] | None:
    """Read the positions of a request, which names so many ``partitions``. With ``only_full``, return None if they do not
    fill an answer, or if one has an error."""
    if only_full:
        return None if settled else await broker.reader.fetch_full(positions, request.max_bytes, share, serves)
    longest = LARGE_WAIT_MS if partitions > LARGE else MAX_WAIT_MS
    return await broker.reader.fetch(
        positions,
        # A history broker waits for no records, unless the consumer insists: it sends the consumer back.
        min_bytes=0
        if settled or (serves is Serves.HISTORY and not all(position.insists for position in positions))
        else request.min_bytes,
        max_bytes=request.max_bytes,
        max_wait_seconds=min(max(request.max_wait_ms, 0), longest) / 1000,
        share=share,
        serves=serves,
    )


async def _not_redirected(
    broker: Broker, positions: Sequence[Position], answers: Sequence[FetchResult]
) -> tuple[list[Position], list[FetchResult]]:
    """Redirect consumers to their preferred replicas. Return the positions that this broker answers itself.

    It answers for offsets outside of the log. Clients reset their offset only if the broker from Metadata says that the
    offset is out of range, and go back to that broker otherwise. Source: ``ReplicaManager.findPreferredReadReplica``.
    """
    stay: tuple[list[Position], list[FetchResult]] = [], []
    for start in range(0, len(positions), AT_ONCE):
        some = positions[start : start + AT_ONCE]
        states: Sequence[LogState | None]
        try:
            states = await broker.metadata_store.log.states([position.partition for position in some])
        except UnavailableError:
            states = [None] * len(some)
        for position, result, state in zip(some, answers[start:], states, strict=False):
            if state is not None and state.log_start <= position.offset <= state.high_watermark:
                result.log_start, result.high_watermark = state.log_start, state.high_watermark
            else:
                result.preferred = -1
                stay[0].append(position)
                stay[1].append(result)
    return stay


async def _topic(broker: Broker, client: Client, name: str | UUID) -> tuple[Topic | None, ErrorCode]:
    """Return the topic if the client may read it, and the error for a partition that does not exist."""
    forbids = broker.authorizer.forbids
    try:
        if isinstance(name, UUID):
            topic = await broker.topic_metadata.find_id(name)
            if topic is not None and forbids(client, Operation.READ, ResourceType.TOPIC, topic.name):
                return None, ErrorCode.topic_authorization_failed
            return topic, ErrorCode.unknown_topic_or_partition if topic else ErrorCode.unknown_topic_id
        if forbids(client, Operation.READ, ResourceType.TOPIC, name):
            return None, ErrorCode.topic_authorization_failed
        return await broker.topic_metadata.find(name), ErrorCode.unknown_topic_or_partition
    except UnavailableError:
        return None, ErrorCode.kafka_storage_error
