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


def target_table(context: Context, entry: TopicEntry, *, of_topic: bool = False) -> TargetTable | None:
    """Return the topic's table, if it exists and runs may work on it.

    The policies of the oldest resource govern a table. ``of_topic``: return it for other resources that share it, too, because the
    run works on the records of one topic.
    """
    resource, config = entry.resource, context.config
    if resource is None or resource.metadata.deletion_timestamp is not None:
        return None
    if resource.metadata.annotations.get(names.PAUSE) == "true":
        return None
    if entry.in_conflict:
        return None
    holder = context.topics.holder(entry.table_claim) if entry.table_claim else None
    uuid = (entry.status.get("table") or {}).get("uuid")
    shared = of_topic and holder is not None and entry.shares_with(holder)
    if holder is None or not (shared or holder.uid == entry.uid) or not uuid:
        return None
    try:
        target = resource.table_target(config.default_catalog)
    except InvalidSpecError:
        return None
    if target.catalog not in config.catalogs:
        return None
    sharers = () if of_topic else tuple(each.name[1] for each in context.topics.sharers(entry))
    return TargetTable(target, uuid, sharers)


async def in_turns(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Yield the items, and let other tasks run now and then."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % AT_A_TIME == 0:
            await asyncio.sleep(0)
