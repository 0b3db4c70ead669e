"""Deadlines of groups: sessions and rebalances time out, and groups without members expire.

A saved group without members is deleted, with its offsets, `GroupSettings.offsets_seconds` after its last member or
commit. A broker proposes groups by its own clock, and the coordinator decides by its clock. The time of the last commit
is saved no more often than every `FRESH` of that, so a group may live that much longer.
"""

import asyncio

import structlog
from kio.schema.errors import ErrorCode

from firn_broker.cluster.membership import Membership
from firn_broker.groups import consumer
from firn_broker.groups.group import Group, GroupError
from firn_broker.groups.shards import CHECK_SECONDS, Shard, Shards
from firn_broker.groups.storage import GroupStorage
from firn_broker.settings import GroupSettings

log = structlog.get_logger()

TICK_SECONDS = 0.1
WRITES = 4
"""Number of groups that may be saved at the same time because a deadline passed."""
EXPIRE_SECONDS = 600.0
"""Seconds between two searches for expired groups."""
EXPIRE_LIMIT = 1_000
"""Largest number of groups of one shard that one search saves or deletes."""
FRESH = 1 / 7
"""Share of a group's retention time after which a commit saves the group again."""


class GroupExpiry:
    """Applies deadlines to the groups of this broker's shards."""

    def __init__(self, shards: Shards, storage: GroupStorage, membership: Membership, settings: GroupSettings) -> None:
        self._shards = shards
        self._storage = storage
        self._membership = membership
        self._settings = settings

    async def run(self) -> None:
        """Apply deadlines and drop lost shards, until cancelled.

        No write delays this loop, because members of all groups depend on it.
        """
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as writes:
            writes.create_task(self._shards.keep_releasing())
            writing = asyncio.Semaphore(WRITES)
            checked = clock()
            while True:
                await asyncio.sleep(TICK_SECONDS)
                try:
                    if clock() >= self._membership.until:
                        self._shards.drop_all()
                    if clock() - checked >= CHECK_SECONDS:
                        checked = clock()
                        self._shards.drop_moved()
                except Exception:
                    log.exception("cannot check the shards of groups")
                for shard, name in self._shards.take_due():
                    # Look the group up by name: another group, perhaps of the other protocol, may have replaced the one
                    # of the timer.
                    if self._shards.owns(shard) and (group := shard.groups.get(name)) is not None:
                        try:
                            if self.tick(shard, group):
                                writes.create_task(self._save(shard, group, writing))
                        except Exception:
                            log.exception("cannot apply a group's deadline", group=name)
                        self._shards.schedule(shard, group)

    def tick(self, shard: Shard, group: Group) -> bool:
        """Apply the deadlines of a group that have passed; return whether the group has to be saved."""
        now = asyncio.get_running_loop().time()
        if now < group.next_deadline():
            return False
        was_empty = group.empty
        group.tick(now)
        return not shard.forget_unused(group) and (isinstance(group, consumer.Group) or (group.empty and not was_empty))

    async def _save(self, shard: Shard, group: Group, writing: asyncio.Semaphore) -> None:
        async with writing:
            try:
                if isinstance(group, consumer.Group):
                    await self._storage.save_changes(shard, group)
                elif group.empty and shard.groups.get(group.name) is group:
                    # A group that a member has joined since is saved with its next assignment.
                    await self._storage.save(shard, group)
            except Exception:
                log.exception("cannot save a group", group=group.name)

    async def run_retention(self) -> None:
        """Delete expired groups, until cancelled."""
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            for number in range(self._settings.shards):
                try:
                    await self._expire_shard(await self._shards.acquire(number))
                except GroupError as error:
                    if error.code is not ErrorCode.not_coordinator:
                        log.warning("cannot expire groups", shard=number, error=str(error))
                except Exception:
                    log.exception("cannot expire groups", shard=number)

    async def _expire_shard(self, shard: Shard) -> None:
        """Delete the expired groups of a shard. Raises GroupError."""
        written = 0
        for group in list(shard.groups.values()):
            share = self._storage.empty_share(group)
            if not group.idle or (share is not None and share < 1 + FRESH):
                continue
            if written == EXPIRE_LIMIT or not self._shards.owns(shard):
                return
            written += 1
            if share is None:
                # The group was saved by a version without this time, or only its offsets are saved: its retention time
                # begins now.
                if not await self._storage.save(shard, group):
                    raise GroupError(ErrorCode.coordinator_not_available)
            else:
                await self._expire_group(shard, group)

    async def _expire_group(self, shard: Shard, group: Group) -> None:
        async with shard.storing:
            share = self._storage.empty_share(group)
            if shard.groups.get(group.name) is not group or not group.idle or share is None or share < 1 + FRESH:
                return
            done = shard.deleting[group.name] = asyncio.Event()
            try:
                if await self._storage.delete_unused(shard, group.name):
                    shard.forget(group)
                    log.info("group expired", group=group.name)
            finally:
                del shard.deleting[group.name]
                done.set()
