"""The port `SubjectLookup`: schema registries over HTTP, in threads of their own."""

import asyncio
import base64
import dataclasses
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from firn import protoc
from firn.model.errors import AccessDeniedError, UnavailableError
from firn.model.jobs import RegistryConnection, SchemaFormat
from firn.schema_registry import TYPES, Registered, SchemaRegistry
from firn_broker.settings import RegistrySettings

REQUESTS = 4
"""Requests to a registry at the same time."""


class HttpRegistries:
    """Schema registries by name. Implements `firn_broker.ports.SubjectLookup`."""

    def __init__(self, settings: Mapping[str, RegistrySettings]) -> None:
        self._clients = {
            name: SchemaRegistry(name, _connection(configured), _secret) for name, configured in settings.items()
        }
        # A pod has memory for one process of protoc.
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="protoc")
        # A registry that does not answer must not take the threads of another one.
        self._threads = {name: ThreadPoolExecutor(REQUESTS, thread_name_prefix=f"registry-{name}") for name in settings}

    async def subjects(self, registry: str, number: int) -> frozenset[str]:
        """Implement `SubjectLookup.subjects`."""
        client = self._client(registry)
        return await asyncio.get_running_loop().run_in_executor(self._threads[registry], client.subjects, number)

    async def schema(self, registry: str, number: int) -> Registered | None:
        """Implement `SubjectLookup.schema`."""
        client = self._client(registry)
        found = await asyncio.get_running_loop().run_in_executor(self._threads[registry], client.by_id, number)
        if found is None or found.kind != TYPES[SchemaFormat.PROTOBUF]:
            return found
        writer = found.schema
        content = await self.descriptors(writer.text, tuple(zip(writer.names, writer.references, strict=True)))
        return dataclasses.replace(found, schema=writer.model_copy(update={"descriptors": content}))

    async def descriptors(self, text: str, references: tuple[tuple[str, str], ...] = ()) -> str:
        """Implement `SubjectLookup.descriptors`."""
        content = await asyncio.get_running_loop().run_in_executor(self._compiler, protoc.descriptors, text, references)
        return base64.b64encode(content).decode()

    def _client(self, registry: str) -> SchemaRegistry:
        client = self._clients.get(registry)
        if client is None:
            raise UnavailableError(
                f"schema registry {registry} is not in the broker's configuration; add it to registries of the profile, or change"
                " spec.schema.registry of the IcebergTopic. Without the operator, add it to registries of the broker's settings, or change the"
                " topic config firn.schema.registry"
            )
        return client

    def close(self) -> None:
        """Start no more requests."""
        for threads in (self._compiler, *self._threads.values()):
            threads.shutdown(wait=False, cancel_futures=True)


def _connection(configured: RegistrySettings) -> RegistryConnection:
    return RegistryConnection(
        url=configured.url,
        ca_path=configured.ca_file,
        username=configured.username,
        password_path=configured.password_file,
        token_path=configured.token_file,
    )


def _secret(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError) as error:
        raise AccessDeniedError(
            f"configuration of the broker: cannot read {path}: {error}; check that the Secret is mounted and has that key"
        ) from error
