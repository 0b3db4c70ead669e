"""The topics of a policy: the tables that its runs may work on, and turns for other tasks while there are many."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from firn.model import names
from firn.model.errors import InvalidSpecError
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.policies.observed import TargetTable
from firn_controllers.reconcilers.context import Context

AT_A_TIME = 200
"""Topics after which other tasks have a turn: 20 ms of work."""
Item = TypeVar("Item")


def target_table(context: Context, entry: TopicEntry) -> TargetTable | None:
    """Return the topic's table, if it exists and runs may work on it."""
    resource, config = entry.resource, context.config
    if resource is None or resource.metadata.deletion_timestamp is not None:
        return None
    if resource.metadata.annotations.get(names.PAUSE) == "true":
        return None
    if entry.in_conflict:
        return None
    holder = context.topics.holder(entry.table_claim) if entry.table_claim else None
    uuid = (entry.status.get("table") or {}).get("uuid")
    if holder is None or holder.uid != entry.uid or not uuid:
        return None
    try:
        target = resource.table_target(config.default_catalog)
    except InvalidSpecError:
        return None
    return TargetTable(target, uuid) if target.catalog in config.catalogs else None


async def in_turns(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yield the items, and let other tasks run now and then."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % AT_A_TIME == 0:
            await asyncio.sleep(0)
