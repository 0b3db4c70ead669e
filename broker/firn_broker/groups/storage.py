"""Writes of groups and their offsets, each under the lease of the group's shard. A rejected write drops the shard."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import TypeVar

import structlog
from kio.schema.errors import ErrorCode

from firn.model.clock import Clock
from firn.model.errors import FencedError, UnavailableError
from firn_broker.groups.group import Group, GroupError
from firn_broker.groups.shards import Shard, Shards
from firn_broker.log.decoder import Decoder
from firn_broker.log_types import CommittedOffset, Partition, StoredGroup
from firn_broker.ports import GroupStore, NodeStore
from firn_broker.settings import GroupSettings

log = structlog.get_logger()
T = TypeVar("T")

LARGE = 1 << 18
"""Bytes of a group from which its JSON is written outside the event loop, because that takes milliseconds."""


class GroupStorage:
    """Saves and deletes groups, and commits their offsets."""

    def __init__(
        self,
        store: GroupStore,
        nodes: NodeStore,
        shards: Shards,
        clock: Clock,
        decoder: Decoder,
        settings: GroupSettings,
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._shards = shards
        self._clock = clock
        self._decoder = decoder
        self._settings = settings

    async def save(self, shard: Shard, group: Group) -> bool:
        """Save the group as a new version; return whether that succeeded."""
        group.version += 1
        return not await self._save(shard, group)

    async def save_changes(self, shard: Shard, group: Group) -> ErrorCode:
        """Save the group's present version, unless it is saved already.

        Changes during another write share the next one.

        A reply that is sent after this call survives the end of this broker.
        """
        version = group.version
        if shard.saved.get(group.name, 0) >= version:
            return ErrorCode.none
        async with shard.storing:
            if not self._shards.owns(shard) or shard.groups.get(group.name) is not group:
                return ErrorCode.coordinator_not_available
            if shard.saved.get(group.name, 0) >= version:
                return ErrorCode.none
            return await self._save(shard, group)

    async def _save(self, shard: Shard, group: Group) -> ErrorCode:
        group.empty_ms = self._wall_ms() if group.empty else None
        version, write = group.version, group.snapshot()
        shard.saved.setdefault(group.name, 0)
        large = self._shards.memory.of(group.name) >= LARGE
        try:
            state = await self._decoder.run(write) if large else write()
            await self._store.save_group(shard.lease, shard.number, StoredGroup(group.name, version, state))
        except FencedError:
            self._shards.drop(shard)
            return ErrorCode.not_coordinator
        except UnavailableError as error:
            log.warning("cannot save a group", group=group.name, error=str(error))
            group.empty_ms = None
            return ErrorCode.coordinator_not_available
        if shard.groups.get(group.name) is group:
            shard.saved[group.name] = max(shard.saved.get(group.name, 0), version)
        return ErrorCode.none

    async def delete(self, shard: Shard, name: str) -> None:
        """Delete a group's state and its offsets. Raises GroupError."""
        await self._guarded(shard, self._store.delete_group(shard.lease, name))

    async def delete_unused(self, shard: Shard, name: str) -> bool:
        """Delete a group if its retention time is over by the coordinator's clock; return whether it was deleted.

        Raises GroupError. The clock of this broker may be wrong by days.
        """
        unused_ms = int(self._settings.offsets_seconds * 1000)
        return await self._guarded(shard, self._store.delete_group(shard.lease, name, unused_ms))

    async def commit_offsets(self, shard: Shard, name: str, offsets: Mapping[Partition, CommittedOffset]) -> None:
        """Save offsets of a group. Raises GroupError."""
        await self._guarded(shard, self._store.commit_offsets(shard.lease, name, offsets, shard.number))

    async def delete_offsets(self, shard: Shard, name: str, partitions: Sequence[Partition]) -> None:
        """Delete offsets of a group. Raises GroupError."""
        await self._guarded(shard, self._store.delete_offsets(shard.lease, name, partitions))

    async def load_offsets(self, name: str) -> Mapping[Partition, CommittedOffset]:
        """Return all committed offsets of a group. Needs no lease. Raises UnavailableError."""
        return await self._store.load_offsets(name)

    async def _guarded(self, shard: Shard, write: Awaitable[T]) -> T:
        try:
            return await write
        except FencedError as error:
            self._shards.drop(shard)
            raise GroupError(ErrorCode.not_coordinator) from error
        except UnavailableError as error:
            raise GroupError(ErrorCode.coordinator_not_available) from error

    async def confirm(self, shard: Shard, error: ErrorCode) -> None:
        """Confirm the lease before an error that ends a client permanently. Raises GroupError when the lease is over.

        When the coordinator's clock leaps, the lease ends there before this broker knows. Another broker may then have
        the group, with the member in it.
        """
        if error is not ErrorCode.fenced_instance_id:
            return
        try:
            held = await self._nodes.acquire(f"groups/{shard.number}", shard.node)
        except FencedError:
            held = None
        except UnavailableError as unknown:
            raise GroupError(ErrorCode.coordinator_not_available) from unknown
        if held is None or held.epoch != shard.lease.epoch:
            self._shards.drop(shard)
            raise GroupError(ErrorCode.not_coordinator)

    def empty_share(self, group: Group) -> float | None:
        """Return the share of its retention time for which a group has been empty; None when that is not saved."""
        if group.empty_ms is None:
            return None
        return (self._wall_ms() - group.empty_ms) / 1000 / self._settings.offsets_seconds

    def _wall_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)
