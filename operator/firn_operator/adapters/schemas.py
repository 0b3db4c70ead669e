"""The port `Schemas`: schema registries, with a cache of the latest schema of each subject, and protoc."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from firn import protoc
from firn.model.clock import Clock
from firn.model.conditions import Reason
from firn.model.errors import FirnError, NotReadyError, UnavailableError
from firn.model.jobs import RegistryConnection
from firn.schema_registry import MissingReferenceError, Registered, RegistryAwayError, SchemaRegistry
from firn_operator.adapters import secret_files

KEPT_SECONDS, RETRY_SECONDS = 60.0, 5.0
"""Seconds for which the adapter keeps a schema, and seconds for which it keeps a failure or a missing subject."""
MOST_ANSWERS = 1000
"""If the cache has this many answers, the adapter removes those that are too old."""
REQUESTS = 4
"""Requests to a registry at the same time."""
TURN_SECONDS = 2.0
"""Seconds for which a lookup waits for its turn."""
_ABSENT = object()
COMPILERS = 2
"""Processes of protoc at the same time."""
COMPILE_TURN_SECONDS = 10.0
"""Seconds for which a text waits for its turn."""


class RegistrySchemas:
    """Schema registries by name. Implements `firn_controllers.ports.Schemas`."""

    def __init__(self, connections: Mapping[str, RegistryConnection], clock: Clock) -> None:
        self._registries = {
            name: SchemaRegistry(name, connection, lambda path: secret_files.read(path, "schema registry"))
            for name, connection in connections.items()
        }
        self._turns = {name: asyncio.Semaphore(REQUESTS) for name in connections}
        # Kafka and the catalogs use the threads of the event loop.
        self._threads = ThreadPoolExecutor(REQUESTS * max(1, len(connections)), thread_name_prefix="registry")
        self._compiling = asyncio.Semaphore(COMPILERS)
        self._clock = clock
        self._answers: dict[tuple[str, str], tuple[float, Registered | FirnError | None]] = {}
        self._failures: dict[str, tuple[float, FirnError]] = {}
        self._incomplete: set[tuple[str, str]] = set()
        """Subjects whose latest schema lacked a reference at the last request."""

    def close(self) -> None:
        """Start no more requests."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def latest(self, registry: str, subject: str) -> Registered | None:
        """Implement `Schemas.latest`. While a registry does not answer, all its subjects fail without a request."""
        answer = self._kept(registry, subject)
        if answer is _ABSENT:
            answer = await self._ask_in_turn(registry, subject)
        if isinstance(answer, FirnError):
            raise answer.with_traceback(None)
        assert answer is None or isinstance(answer, Registered)
        return answer

    def _kept(self, registry: str, subject: str) -> object:
        now = self._clock.monotonic()
        until, answer = self._answers.get((registry, subject), (0.0, None))
        if now < until:
            return answer
        until, failure = self._failures.get(registry, (0.0, None))
        return failure if now < until and failure is not None else _ABSENT

    async def _ask_in_turn(self, registry: str, subject: str) -> object:
        turns = self._turns[registry]
        try:
            # A slow registry must not hold all workers of the operator.
            await asyncio.wait_for(turns.acquire(), TURN_SECONDS)
        except TimeoutError:
            return UnavailableError(
                f"schema registry {registry}: {REQUESTS} requests wait for its answers, and others wait for them; check why the"
                " registry is slow",
                reason=Reason.REGISTRY_UNREACHABLE,
            )
        try:
            answer = self._kept(registry, subject)
            return await self._ask(registry, subject) if answer is _ABSENT else answer
        finally:
            turns.release()

    async def _ask(self, registry: str, subject: str) -> Registered | FirnError | None:
        loop = asyncio.get_running_loop()
        answer: Registered | FirnError | None
        try:
            answer = await loop.run_in_executor(self._threads, self._registries[registry].latest, subject)
        except RegistryAwayError as error:
            self._failures[registry] = self._clock.monotonic() + RETRY_SECONDS, error
            return error
        except FirnError as error:
            answer = error
        now = self._clock.monotonic()
        answer = self._settled((registry, subject), answer)
        if len(self._answers) >= MOST_ANSWERS:
            self._answers = {known: kept for known, kept in self._answers.items() if now < kept[0]}
        kept = KEPT_SECONDS if isinstance(answer, Registered) else RETRY_SECONDS
        self._answers[registry, subject] = now + kept, answer
        return answer

    def _settled(self, place: tuple[str, str], answer: Registered | FirnError | None) -> Registered | FirnError | None:
        """Return an answer, or UnavailableError if the reference of a schema is missing for the first time.

        A replica of a registry may get the reference late.
        """
        if not isinstance(answer, MissingReferenceError):
            self._incomplete.discard(place)
        elif place not in self._incomplete:
            self._incomplete.add(place)
            return UnavailableError(
                f"{answer}; the operator asks again, because the registry may get this version late",
                reason=Reason.REGISTRY_UNREACHABLE,
            )
        return answer

    async def descriptors(self, text: str, references: Mapping[str, str]) -> bytes:
        """Implement `Schemas.descriptors`."""
        try:
            await asyncio.wait_for(self._compiling.acquire(), COMPILE_TURN_SECONDS)
        except TimeoutError:
            raise NotReadyError(
                f"protoc compiles other texts since {COMPILE_TURN_SECONDS:.0f} s; the operator tries again"
            ) from None
        try:
            return await asyncio.to_thread(protoc.descriptors, text, tuple(sorted(references.items())))
        finally:
            self._compiling.release()
