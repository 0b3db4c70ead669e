"""The port `Schemas`: schema registries, each asked about a subject at most once in a while, and protoc."""

import asyncio
from collections.abc import Mapping

from firn.model.clock import Clock
from firn.model.errors import FirnError
from firn.model.jobs import RegistryConnection
from firn.schema_registry import Registered, SchemaRegistry
from firn_operator.adapters import protoc, secret_files

KEPT_SECONDS, RETRY_SECONDS = 60.0, 5.0
"""Time for which an answer counts, and time for which a failure or a missing subject counts."""
MOST_ANSWERS = 1000
"""Number of kept answers from which those that no longer count are removed."""
REQUESTS = 4
"""Requests to a registry at the same time."""
COMPILERS = 2
"""Processes of protoc at the same time."""


class RegistrySchemas:
    """Schema registries by name. Implements `firn_controllers.ports.Schemas`."""

    def __init__(self, connections: Mapping[str, RegistryConnection], clock: Clock) -> None:
        self._registries = {
            name: SchemaRegistry(name, connection, lambda path: secret_files.read(path, "schema registry"))
            for name, connection in connections.items()
        }
        self._turns = {name: asyncio.Semaphore(REQUESTS) for name in connections}
        self._compiling = asyncio.Semaphore(COMPILERS)
        self._clock = clock
        self._answers: dict[tuple[str, str], tuple[float, Registered | None]] = {}
        self._failures: dict[str, tuple[float, FirnError]] = {}

    async def latest(self, registry: str, subject: str) -> Registered | None:
        """Implement `Schemas.latest`. After a failure, all subjects of the registry fail for a while without a request."""
        key = registry, subject
        async with self._turns[registry]:
            now = self._clock.monotonic()
            until, answer = self._answers.get(key, (0.0, None))
            if now < until:
                return answer
            failed_until, failure = self._failures.get(registry, (0.0, None))
            if failure is not None and now < failed_until:
                raise failure.with_traceback(None)
            try:
                answer = await asyncio.to_thread(self._registries[registry].latest, subject)
            except FirnError as error:
                self._failures[registry] = self._clock.monotonic() + RETRY_SECONDS, error
                raise
            now = self._clock.monotonic()
            if len(self._answers) >= MOST_ANSWERS:
                self._answers = {known: kept for known, kept in self._answers.items() if now < kept[0]}
            self._answers[key] = now + (RETRY_SECONDS if answer is None else KEPT_SECONDS), answer
        return answer

    async def descriptors(self, text: str, references: Mapping[str, str]) -> bytes:
        """Implement `Schemas.descriptors`."""
        async with self._compiling:
            return await asyncio.to_thread(protoc.descriptors, text, tuple(sorted(references.items())))
