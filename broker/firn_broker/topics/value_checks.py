"""Check the values of batches by their schemas. Quick checks in the event loop accept most small batches.

The others go to a process of its own: strict decoders are Python, and would hold the lock of the interpreter.

A frame for the process (`firn_broker.topics.value_process`) is the length of its head, the head, and batches. The answer has a
`Verdict` for each of them, as JSON. The process keeps the decoders of schemas. It asks for the texts that it lacks.
"""

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import structlog
from kio.schema.errors import ErrorCode

from firn.decoders import checks
from firn.decoders.bad_records import BadRecordError
from firn.decoders.checks import Check
from firn.decoders.quick_checks.opening import QuickCheck, quick_check_of
from firn.model.errors import InvalidSpecError
from firn.model.jobs import RecordSchema
from firn.records.codecs import CodecError
from firn.records.contents import UndecodableError
from firn.records.record_batch import Batch, InvalidBatchError
from firn.records.values import FRAMING, first_bytes
from firn_broker.log.checks import AnsweringProcess
from firn_broker.log.decoder import Decoder
from firn_broker.topics.quick_values import ALL, QuickValues

log = structlog.get_logger()

MOST_RECORDS, MOST_BYTES = 10_000, 2 << 20
"""Records of a batch that is decoded, and bytes to which it may decompress. A value takes up to 70 times its bytes of memory."""
MOST_KEPT = 64
"""Schemas whose decoders are kept."""
MOST_NAMED, MOST_DETAILED = 1_000, 100
"""Refused records of a batch that a verdict names, and those with a place and a detail."""
TOGETHER_RECORDS, TOGETHER_BYTES = 500, 256 << 10
"""Most records and bytes of the batches that are decoded together. A batch with more is decoded alone."""
_PART = 100
"""Values that a quick check sees at a time. If it is in doubt, the strict decoder decodes all of them."""


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """A schema: a `RecordSchema` as JSON, and the name of this text."""

    text: str
    digest: str


@dataclass(slots=True)
class Verdict:
    """The refused records of a batch, and how many there are."""

    refused: list[tuple[int, str]] = field(default_factory=list)
    """Index in the batch and reason of the first ones."""
    count: int = 0
    needed: list[str] = field(default_factory=list)
    """Names of schemas whose text is not known. The batch was then not decoded."""
    too_large: str = ""
    """Why the batch cannot be decoded; empty if it was."""

    def note(self, index: int, why: str) -> None:
        """Count a refused record, and name it if it is one of the first."""
        self.count += 1
        if self.count <= MOST_NAMED:
            self.refused.append((index, why if self.count <= MOST_DETAILED else why.partition(":")[0]))


@dataclass(slots=True)
class _Opened:
    """The checks of values by a schema."""

    strict: Check
    quick: QuickCheck | None


class Judge:
    """Decodes the values of batches. Keeps the decoders of schemas."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, _Opened | str] = OrderedDict()
        """Decoder by the name of a schema, or why values with this schema are wrong."""

    def judge(self, batch: memoryview, schemas: Mapping[bytes, str], texts: Mapping[str, str]) -> Verdict:
        """Decode a batch with the schemas that ``schemas`` names by the first bytes of values. Values without one pass."""
        wanted = {*schemas.values()}
        try:
            self._keep(wanted, texts)
            missing = wanted - self._kept.keys()
            if missing:
                return Verdict(needed=sorted(missing))
            return self._decoded(batch, {first: self._kept[digest] for first, digest in schemas.items()})
        except UndecodableError as error:
            if len(batch) <= MOST_BYTES and not isinstance(error.__cause__, CodecError):
                return Verdict([(0, f"the broker cannot read the records of the batch: {error}")], 1)
            return Verdict(too_large=str(error))
        except MemoryError:
            alone = self._kept.keys() <= wanted
            self._kept.clear()
            # The decoders of other topics may take the memory. Without them, the batch has another chance.
            return Verdict(too_large="its values take too much memory") if alone else Verdict(needed=sorted(wanted))

    def _keep(self, wanted: AbstractSet[str], texts: Mapping[str, str]) -> None:
        """Keep the decoders of new texts, and all that are ``wanted``. Drop those that were not used for the longest time."""
        for digest in wanted & self._kept.keys():
            self._kept.move_to_end(digest)
        for digest, text in texts.items():
            self._kept[digest] = _opened(text)
        while len(self._kept) > max(MOST_KEPT, len(wanted)):
            self._kept.popitem(last=False)

    def _decoded(self, batch: memoryview, opened: Mapping[bytes, _Opened | str]) -> Verdict:
        verdict = Verdict()
        values = first_bytes(batch, MOST_BYTES, MOST_BYTES)
        for start in range(0, len(values), _PART):
            part = values[start : start + _PART]
            quick = _quick_check(opened, part)
            if quick is not None and quick.accepts(part):
                continue
            before = verdict.count
            for index, value in enumerate(part, start):
                found = _of(opened, value)
                why = found if found is None or isinstance(found, str) else _refusal(found.strict, value)
                if why is not None:
                    verdict.note(index, why)
            if quick is not None and verdict.count == before:
                quick.learn(part)
        return verdict


def _of(opened: Mapping[bytes, _Opened | str], value: bytes | None) -> _Opened | str | None:
    """Return what a value is checked by. Null values pass, unless all values have the same schema."""
    if ALL in opened:
        return opened[ALL]
    return None if value is None else opened.get(value[:FRAMING])


def _quick_check(opened: Mapping[bytes, _Opened | str], values: Sequence[bytes | None]) -> QuickCheck | None:
    """Return the quick check of values if all have the same schema, and it has one."""
    found = _of(opened, values[0])
    if not isinstance(found, _Opened) or any(_of(opened, value) is not found for value in values):
        return None
    return found.quick


def _refusal(check: Check, value: bytes | None) -> str | None:
    """Return why a value is refused; None if it is not."""
    try:
        check(value)
    except BadRecordError as error:
        return f"{error.code}: {error.path}: {error.detail}"
    except RecursionError:
        return "the value nests too deep"
    return None


def _opened(text: str) -> _Opened | str:
    schema = RecordSchema.model_validate_json(text)
    try:
        return _Opened(checks.check_of(schema), quick_check_of(schema))
    except InvalidSpecError as error:
        return f"{error}; register a schema that a table can hold, or ask the owner of the IcebergTopic to correct spec.schema"


Asked = tuple[memoryview, Mapping[bytes, str]]
"""A batch, and the names of schemas by the first bytes of values."""


def framed(asked: Sequence[Asked], texts: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return the parts of a frame for the process."""
    batches = [
        {"size": len(batch), "schemas": {first.hex(): digest for first, digest in schemas.items()}}
        for batch, schemas in asked
    ]
    head = json.dumps({"batches": batches, "texts": texts}).encode()
    return len(head).to_bytes(4, "big"), head, *(bytes(batch) for batch, _ in asked)


def answer(judge: Judge, frame: bytes) -> bytes:
    """Return the answer of the process to a frame."""
    at = 4 + int.from_bytes(frame[:4], "big")
    head = json.loads(frame[4:at])
    verdicts = []
    for each in head["batches"]:
        schemas = {bytes.fromhex(first): digest for first, digest in each["schemas"].items()}
        verdicts.append(asdict(judge.judge(memoryview(frame)[at : at + each["size"]], schemas, head["texts"])))
        at += each["size"]
    return json.dumps(verdicts).encode()


def _verdicts(answered: bytes) -> list[Verdict]:
    found: list[dict[str, Any]] = json.loads(answered)
    return [Verdict(**each | {"refused": [(index, why) for index, why in each["refused"]]}) for each in found]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A batch that waits for its verdict."""

    batch: Batch
    schemas: Mapping[bytes, ValueSchema]
    address: str
    verdict: "asyncio.Future[Verdict]"

    @property
    def asked(self) -> Asked:
        """The batch as the process gets it."""
        return self.batch.data, {first: schema.digest for first, schema in self.schemas.items()}


class ValueChecks:
    """Lets small batches that wait be decoded together, and large ones alone. Turns go round the addresses of clients."""

    def __init__(self, decoder: Decoder, *, own_process: bool) -> None:
        """Decode in a process, or with ``decoder`` if there is none."""
        self._decoder = decoder
        self._process = AnsweringProcess("firn_broker.topics.value_process") if own_process else None
        self._judge = Judge()
        self._quick = QuickValues(decoder)
        self._lines: OrderedDict[str, deque[_Waiting]] = OrderedDict()
        """The batches that wait, by the address of their clients. The first address is the next one."""
        self._work: asyncio.Task[None] | None = None
        self._stopped = False

    async def judge(self, batch: Batch, schemas: Mapping[bytes, ValueSchema], address: str) -> Verdict:
        """Return the verdict on a batch of the client at ``address``.

        ``schemas`` are those of values by their first bytes, or that of all values. Raises InvalidBatchError with
        MESSAGE_TOO_LARGE for a batch that cannot be decoded, and with KAFKA_STORAGE_ERROR if the process ended.
        """
        require_size(batch)
        quick = {first: (schema.digest, schema.text) for first, schema in schemas.items()}
        if await self._quick.accept(batch, quick, address):
            return Verdict()
        verdict = await self._decoded(batch, schemas, address)
        if verdict.needed:
            raise InvalidBatchError(
                ErrorCode.kafka_storage_error,
                "the batch has more schemas than the process that decodes values keeps; send smaller batches",
            )
        if verdict.too_large:
            raise InvalidBatchError(
                ErrorCode.message_too_large,
                f"a topic with firn.schema.gate=Decode accepts batches of at most {MOST_BYTES} bytes: {verdict.too_large}; send smaller"
                " batches",
            )
        if not verdict.count:
            await self._quick.learn(batch, quick, address)
        return verdict

    async def _decoded(self, batch: Batch, schemas: Mapping[bytes, ValueSchema], address: str) -> Verdict:
        waiting = _Waiting(batch, schemas, address, asyncio.get_running_loop().create_future())
        self._lines.setdefault(address, deque()).append(waiting)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._decode_waiting())
        return await waiting.verdict

    async def _decode_waiting(self) -> None:
        while together := self._next():
            try:
                await self._decide(together)
            except _ProcessEndedError:
                # One of them may be why the process ended. The others must not fail with it again and again.
                for each in together if len(together) > 1 else ():
                    with suppress(_ProcessEndedError):
                        await self._decide([each])
            except Exception as error:
                _fail(together, error)
            finally:
                # Without an answer, a client would wait for ever, also if the broker ends while they are decoded again.
                _fail(together, self._ended())

    def _next(self) -> list[_Waiting]:
        """Return the batches of the next frame: one of the next address, and small ones of others and of the same one."""
        together: list[_Waiting] = []
        records = size = 0
        while self._lines:
            address, line = self._lines.popitem(last=False)
            first = line[0]
            records, size = records + first.batch.records, size + len(first.batch.data)
            if together and (records > TOGETHER_RECORDS or size > TOGETHER_BYTES):
                self._lines[address] = line
                self._lines.move_to_end(address, last=False)
                break
            line.popleft()
            if line:
                # Behind all addresses that wait.
                self._lines[address] = line
            if not first.verdict.done():  # The client may have disconnected.
                together.append(first)
        return together

    async def _decide(self, together: Sequence[_Waiting]) -> None:
        """Set the verdicts on batches. Raises _ProcessEndedError."""
        for each, verdict in zip(together, await self._ask(together, {}), strict=True):
            if verdict.needed:
                texts = {of.digest: of.text for of in each.schemas.values() if of.digest in verdict.needed}
                [verdict] = await self._ask([each], texts)
            if not each.verdict.done():
                each.verdict.set_result(verdict)

    async def _ask(self, together: Sequence[_Waiting], texts: Mapping[str, str]) -> list[Verdict]:
        if self._process is None:
            return [
                await self._decoder.run(partial(self._judge.judge, *each.asked, texts), each.address)
                for each in together
            ]
        try:
            return _verdicts(await self._process.ask(*framed([each.asked for each in together], texts)))
        except (OSError, asyncio.IncompleteReadError) as error:
            if not self._stopped:
                log.warning(
                    "the process that decodes values ended or is stuck; the next batch starts it again",
                    error=repr(error),
                )
            raise self._ended() from error

    def _ended(self) -> "_ProcessEndedError":
        return _ProcessEndedError(
            ErrorCode.kafka_storage_error,
            "the broker stopped before it had checked the values of the batch; send the batch again"
            if self._stopped
            else "the process that decodes values ended: the next batch starts it again",
        )

    def close(self) -> None:
        """End the process, because the broker stops. The clients of batches that wait send them again."""
        self._stopped = True
        if self._work is not None:
            self._work.cancel()
        _fail([each for line in self._lines.values() for each in line], self._ended())
        self._lines.clear()
        if self._process is not None:
            self._process.close()


class _ProcessEndedError(InvalidBatchError):
    """The process ended before it answered."""


def _fail(waiting: Sequence[_Waiting], error: Exception) -> None:
    for each in waiting:
        if not each.verdict.done():
            each.verdict.set_exception(error)


def require_size(batch: Batch) -> None:
    """Raise InvalidBatchError with MESSAGE_TOO_LARGE for a batch with too many records. Java clients then split it."""
    if batch.records > MOST_RECORDS:
        raise InvalidBatchError(
            ErrorCode.message_too_large,
            f"the batch has {batch.records} records, more than the {MOST_RECORDS} that a topic with firn.schema.gate=Decode accepts in one"
            " batch; send smaller batches",
        )
