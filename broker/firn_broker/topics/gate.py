"""The gate of a topic: the broker accepts a batch only if each value begins with the id of a schema of the topic's subject.

The broker keeps an id of the subject until it ends, because a registry never changes what an id means. So batches with known ids
need no registry. For other ids it asks the registry, and only the request with the id waits. With ``Decode``, the broker also
decodes each value, by the schema of its id or by that of the topic.
"""

import asyncio
import hashlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import structlog
from kio.schema.errors import ErrorCode

from firn.decoders import checks
from firn.model.errors import AccessDeniedError, InvalidSpecError, UnavailableError
from firn.model.jobs import RecordSchema, SchemaFormat
from firn.records.contents import UndecodableError
from firn.records.record_batch import Batch, InvalidBatchError
from firn.records.values import FRAMING, first_bytes
from firn.schema_registry import ANSWER_SECONDS, TYPES, MissingReferenceError, RegistryAwayError
from firn_broker import metrics
from firn_broker.log.decoder import Decoder
from firn_broker.log.turns import Turns
from firn_broker.ports import SubjectLookup
from firn_broker.topics.configs import Gate
from firn_broker.topics.quick_values import ALL, INLINE_BYTES, INLINE_RECORDS
from firn_broker.topics.value_checks import MOST_NAMED, ValueChecks, ValueSchema, require_size

log = structlog.get_logger()
K = TypeVar("K")
V = TypeVar("V")
_Id = tuple[Gate, bytes]
"""A gate and the first bytes of a value; `ALL` for the schema that a topic has itself."""

LOOKUPS = 4
"""Requests to a registry at the same time, each for another address of clients."""
HOLD_SECONDS = 2.0
"""Most seconds for which a produce request waits for the registry. Later requests of its connection wait, too."""
LATE_SECONDS = 0.5
"""Seconds between two answers that a subject lacks an id, or that a schema lacks a reference. The broker believes only the second
one, because a registry may learn of them with a delay."""
AGAIN_SECONDS, RETRY_SECONDS = 10.0, 1.0
"""Seconds for which the broker remembers that an id or a reference is missing, and that a registry does not answer."""
MOST_LOOKUPS = 16
"""Most ids that a batch asks the registry for. The client sends a batch with more of them again."""
MOST_PENDING, MOST_ABSENT = 1_000, 10_000
"""Most lookups that wait or run, and most ids that subjects do not have in memory."""
PENDING_OF_ADDRESS = MOST_PENDING // 8
"""Most lookups that wait or run for clients of one address, so that the clients of other addresses find room."""
MOST_SCHEMA, MOST_SCHEMAS = 1 << 20, 16 << 20
"""Most characters of a schema by which values are decoded, and of all schemas in memory."""
SERIES = 1_000
"""Most topics with metrics of their own. The others share the label of an empty name."""

_NO_FRAMING = "the value does not begin with a byte 0 and a schema id; use a serializer of the schema registry"


class RefusedRecordsError(InvalidBatchError):
    """A batch with records that the gate refuses."""

    def __init__(self, message: str, records: Sequence[tuple[int, str]]) -> None:
        super().__init__(ErrorCode.invalid_record, message)
        self.records = records
        """Index in the batch, and the reason, of the first refused records."""


class SchemaGate:
    """Checks batches, and remembers which ids the subjects have."""

    def __init__(self, registries: SubjectLookup, decoder: Decoder, values: ValueChecks) -> None:
        self._registries = registries
        self._decoder = decoder
        self._value_checks = values
        self._known: defaultdict[Gate, set[bytes | None]] = defaultdict(lambda: {None})
        """For each gate, the first bytes of values that it accepts. A null value is a tombstone."""
        self._schemas: OrderedDict[_Id, ValueSchema | None] = OrderedDict()
        """Schemas of known ids by which values are decoded. None for one that is too large."""
        self._absent: dict[_Id, tuple[float, str]] = {}
        """Ids that subjects lack, or whose schemas lack a reference: the time of the loop until which that counts, and the reason."""
        self._unusable: dict[_Id, str] = {}
        """Ids whose values cannot be decoded, and why."""
        self._failures: dict[_Id | str, tuple[float, str]] = {}
        """Lookups that failed: the time of the next attempt, and the reason. A name is that of a registry that does not answer."""
        self._pending: dict[_Id, asyncio.Task[None]] = {}
        self._pending_of: Counter[str] = Counter()
        """Number of lookups that wait or run, by the address of the client."""
        self._turns: defaultdict[str, Turns] = defaultdict(lambda: Turns(LOOKUPS, 1))
        self._inline = 0
        self._named: set[str] = set()

    async def require(self, topic: str, gate: Gate, batch: Batch, address: str) -> None:
        """Check a batch of the client at ``address``. Raises RefusedRecordsError, and InvalidBatchError with KAFKA_STORAGE_ERROR
        if the registry does not answer. Clients then send the batch again. With MESSAGE_TOO_LARGE, it is too large to decode."""
        if gate.decodes:
            require_size(batch)
        values: Sequence[bytes | None] = (ALL,) if not gate.registry else await self._values(topic, batch, address)
        metrics.GATED_RECORDS.labels(self._label(topic)).inc(batch.records)
        found = {value for value in values if value is not None}
        await self._require_ids(topic, gate, values, found, batch, address)
        if gate.decodes and found:
            await self._require_values(topic, gate, found, batch, address)

    async def _require_ids(
        self, topic: str, gate: Gate, values: Sequence[bytes | None], found: Iterable[bytes], batch: Batch, address: str
    ) -> None:
        others = [value for value in found if value not in self._known[gate]]
        if not others:
            return
        refused, unknown = self._judge(gate, others)
        if unknown and not refused:
            await self._learn(gate, unknown, address)
            refused, unknown = self._judge(gate, others)
        if refused:
            problem = f"have no schema of subject {gate.subject}"
            if not gate.registry:
                values, problem = (ALL,) * batch.records, f"cannot be checked by the schema of topic {topic}"
                refused[ALL] = _without_schema(topic, refused[ALL])
            wrong = [
                (index, refused[value]) for index, value in enumerate(values) if value in refused and value is not None
            ]
            metrics.REFUSED_RECORDS.labels(self._label(topic)).inc(len(wrong))
            index, why = wrong[0]
            raise RefusedRecordsError(
                f"{len(wrong)} of {len(values)} records {problem}; record {index}: {why}",
                wrong[:MOST_NAMED],
            )
        if unknown:
            raise _try_again(f"a batch with more than {MOST_LOOKUPS} new schema ids needs several attempts")

    async def _require_values(self, topic: str, gate: Gate, found: Iterable[bytes], batch: Batch, address: str) -> None:
        """Decode the values whose schemas are in memory."""
        schemas = {}
        for value in found:
            if (gate, value) not in self._schemas:
                self._known[gate].discard(value)
                raise _try_again("other topics have replaced its schemas in memory")
            self._schemas.move_to_end((gate, value))
            schema = self._schemas[gate, value]
            if schema is not None:
                schemas[value] = schema
        if not schemas:
            return
        with metrics.GATE_SECONDS.time():
            verdict = await self._value_checks.judge(batch, schemas, address)
        if verdict.count:
            metrics.REFUSED_RECORDS.labels(self._label(topic)).inc(verdict.count)
            index, why = verdict.refused[0]
            raise RefusedRecordsError(
                f"{verdict.count} of {batch.records} records do not fit the schema of topic {topic}; record {index}: {why}",
                verdict.refused,
            )

    async def _values(self, topic: str, batch: Batch, address: str) -> list[bytes | None]:
        try:
            if batch.records <= INLINE_RECORDS:
                self._inline += batch.records
                if self._inline >= INLINE_RECORDS:
                    # A request may have many batches, and others must not wait for all of them.
                    self._inline = 0
                    await asyncio.sleep(0)
                try:
                    return first_bytes(batch.data, INLINE_BYTES)
                except UndecodableError:
                    pass  # perhaps only too large for the event loop
            return await self._decoder.run(partial(first_bytes, batch.data), address)
        except UndecodableError as error:
            raise InvalidBatchError(
                ErrorCode.invalid_record,
                f"the broker checks the values of topic {topic}, and cannot read the batch: {error}; correct the client or its compression",
            ) from error

    def _judge(self, gate: Gate, values: Iterable[bytes]) -> tuple[dict[bytes | None, str], list[bytes]]:
        """Return the reason for each value that is refused, and the values whose ids the broker does not know yet."""
        now = asyncio.get_running_loop().time()
        refused: dict[bytes | None, str] = {}
        unknown = []
        for value in values:
            # Ids are not negative. The registry need not know that a larger one than 2,147,483,647 cannot be.
            if gate.registry and (len(value) < FRAMING or value[0] or value[1] & 0x80):
                refused[value] = _NO_FRAMING
            elif value in self._known[gate]:
                continue
            elif (gate, value) in self._unusable:
                refused[value] = self._unusable[gate, value]
            elif now < self._absent.get((gate, value), (0, ""))[0]:
                refused[value] = self._absent[gate, value][1]
            else:
                unknown.append(value)
        return refused, unknown

    async def _learn(self, gate: Gate, values: Sequence[bytes], address: str) -> None:
        """Ask the registry for ids. Raises InvalidBatchError with KAFKA_STORAGE_ERROR if it does not answer soon."""
        registry, asked = gate.registry, [(gate, value) for value in values[:MOST_LOOKUPS]]
        self._raise_failure(asked)
        started = []
        for id in asked:
            if (task := self._pending.get(id)) is None:
                if len(self._pending) >= MOST_PENDING:
                    raise _try_again(f"{MOST_PENDING} schema ids wait for the answers of schema registries")
                if self._pending_of[address] >= PENDING_OF_ADDRESS:
                    raise _try_again(f"{PENDING_OF_ADDRESS} new schema ids of clients of this address wait for answers")
                task = self._pending[id] = asyncio.create_task(self._look_up(id, address))
                self._pending_of[address] += 1
                task.add_done_callback(partial(self._end, id, address))
            started.append(task)
        # The lookups go on if the client disconnects, because it will send the batch again.
        _, late = await asyncio.wait(started, timeout=HOLD_SECONDS)
        self._raise_failure(asked)
        if late:
            if not registry:
                raise _try_again(f"protoc has not compiled the schema of the topic within {HOLD_SECONDS:.0f} s")
            raise _try_again(
                f"lookups of its schema ids in schema registry {registry} took more than {HOLD_SECONDS:.0f} s; send fewer new ids, or check why"
                " the registry is slow"
            )

    def _raise_failure(self, ids: Sequence[_Id]) -> None:
        now = asyncio.get_running_loop().time()
        keys: list[_Id | str] = [ids[0][0].registry, *ids]
        for key in keys:
            failure = self._failures.get(key)
            if failure is not None and now < failure[0]:
                raise _try_again(failure[1])

    def _end(self, id: _Id, address: str, _: "asyncio.Task[None]") -> None:
        del self._pending[id]
        self._pending_of[address] -= 1
        if not self._pending_of[address]:
            del self._pending_of[address]

    @asynccontextmanager
    async def _turn(self, registry: str, address: str) -> AsyncIterator[None]:
        """Wait for a turn at the registry. If the block then takes more than `HOLD_SECONDS`, the registry does not answer."""
        async with self._turns[registry].turn(address):
            if not registry:
                yield
                return
            late = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._suspend, registry)
            try:
                yield
            finally:
                late.cancel()

    def _suspend(self, registry: str) -> None:
        """Make requests not wait for a registry again until it answers."""
        until = asyncio.get_running_loop().time() + ANSWER_SECONDS
        _keep(self._failures, registry, (until, f"schema registry {registry} does not answer; check why it is slow"))

    async def _look_up(self, id: _Id, address: str) -> None:
        gate, value = id
        time = asyncio.get_running_loop().time
        try:
            belongs = not gate.registry or await self._belongs(id, address)
            if not belongs:
                await asyncio.sleep(LATE_SECONDS)
                belongs = await self._belongs(id, address)
            if belongs and gate.decodes:
                self._keep_schema(id, await self._complete_schema_of(id, address))
        except MissingReferenceError as error:
            _keep(self._absent, id, (time() + AGAIN_SECONDS, str(error)))
            return
        except InvalidSpecError as error:
            _keep(self._unusable, id, str(error))
            return
        except Exception as error:
            metrics.GATE_LOOKUPS.labels("failed").inc()
            of_registry = isinstance(error, RegistryAwayError | AccessDeniedError)
            key = gate.registry if of_registry else id
            if key not in self._failures:
                log.warning(
                    "the gate cannot check a schema id",
                    registry=gate.registry,
                    subject=gate.subject,
                    id=_number(value),
                    error=str(error),
                )
            _keep(self._failures, key, (time() + RETRY_SECONDS, str(error)))
            return
        self._failures.pop(gate.registry, None)
        self._failures.pop(id, None)
        if belongs:
            self._known[gate].add(value)
            self._absent.pop(id, None)
        else:
            why = (
                f"schema registry {gate.registry} has no schema with id {_number(value)} in subject {gate.subject};"
                " register the schema there, or correct the serializer"
            )
            _keep(self._absent, id, (time() + AGAIN_SECONDS, why))

    async def _belongs(self, id: _Id, address: str) -> bool:
        """Ask the registry whether the subject has an id."""
        gate, value = id
        async with self._turn(gate.registry, address):
            subjects = await self._registries.subjects(gate.registry, _number(value))
        metrics.GATE_LOOKUPS.labels("found" if gate.subject in subjects else "absent").inc()
        return gate.subject in subjects

    async def _complete_schema_of(self, id: _Id, address: str) -> RecordSchema:
        """Return the answer of `_schema_of`. Ask again if a reference is missing, because a registry may get it late."""
        try:
            return await self._schema_of(id, address)
        except MissingReferenceError:
            await asyncio.sleep(LATE_SECONDS)
            return await self._schema_of(id, address)

    async def _schema_of(self, id: _Id, address: str) -> RecordSchema:
        """Return the schema of values. Raises InvalidSpecError if it is not one by which values can be decoded."""
        gate, value = id
        wanted = checks.unpacked(gate.contract) if gate.contract else None
        async with self._turn(gate.registry, address):
            if not gate.registry:
                assert wanted is not None
                if wanted.format is not SchemaFormat.PROTOBUF:
                    return wanted
                return wanted.model_copy(update={"descriptors": await self._registries.descriptors(wanted.text)})
            found = await self._registries.schema(gate.registry, _number(value))
        if found is None:
            raise UnavailableError(
                f"schema registry {gate.registry} does not have schema {_number(value)} any more; register the schema again"
            )
        kinds = {kind: format for format, kind in TYPES.items()}
        if found.kind not in kinds or (wanted is not None and kinds[found.kind] is not wanted.format):
            format = "one of these" if wanted is None else wanted.format
            raise InvalidSpecError(
                f"schema {_number(value)} of schema registry {gate.registry} has the type {found.kind}, and the topic has format: {format};"
                " correct the serializer"
            )
        base = RecordSchema(
            format=kinds[found.kind],
            framing="Registry",
            message=wanted.message if wanted is not None else "",
            found_message=wanted.found_message if wanted is not None else "",
            nanoseconds=wanted is not None and wanted.nanoseconds,
            truncate_times=wanted is not None and wanted.truncate_times,
            # Without a contract, the broker does not know the table, which may have variants.
            variants=wanted is None or wanted.variants,
        )
        return base.of_writer(_number(value), found.schema)

    def _keep_schema(self, id: _Id, schema: RecordSchema) -> None:
        """Keep a schema, and drop those that were not used for the longest time if all take too much memory."""
        text = schema.model_dump_json()
        small = len(text) <= MOST_SCHEMA
        self._schemas[id] = ValueSchema(text, hashlib.sha256(text.encode()).hexdigest()) if small else None
        while sum(len(each.text) for each in self._schemas.values() if each is not None) > MOST_SCHEMAS:
            (gate, value), _ = self._schemas.popitem(last=False)
            self._known[gate].discard(value)

    def _label(self, topic: str) -> str:
        if topic not in self._named and len(self._named) < SERIES:
            self._named.add(topic)
        return topic if topic in self._named else ""


def _without_schema(topic: str, why: str) -> str:
    """Return why the gate rejects all values of a topic without a registry. A client may show this text for a single record."""
    return (
        f"the schema of topic {topic} cannot be used: {why}; ask the owner of its IcebergTopic to check the condition SpecValid and to correct"
        " spec.schema, from which the operator writes the schema"
    )


def _number(value: bytes) -> int:
    return int.from_bytes(value[1:FRAMING], "big")


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    """Put an entry at the end, and drop the oldest of too many."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > MOST_ABSENT:
        del kept[next(iter(kept))]


def _try_again(why: str) -> InvalidBatchError:
    """Return the error after which every client sends the batch again, as after an outage of the coordinator."""
    return InvalidBatchError(ErrorCode.kafka_storage_error, f"the values of the batch cannot be checked now: {why}")
