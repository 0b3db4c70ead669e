"""Exports the lag of the groups that this broker coordinates, as a metric. One query reads the lags of all of them."""

import asyncio

import structlog

from firn.model.errors import UnavailableError
from firn_broker import metrics
from firn_broker.groups.coordinator import GroupCoordinator
from firn_broker.groups.group import GroupError
from firn_broker.ports import GroupStore
from firn_broker.topics.topic_metadata import TopicMetadata

log = structlog.get_logger()

SECONDS = 15.0
SERIES = 1000
"""Number of pairs of group and topic in the metric: those with the greatest lag."""


class GroupLag:
    """Updates the metric. When the lags cannot be read, the metric has no values, because old ones would mislead."""

    def __init__(self, group_store: GroupStore, groups: GroupCoordinator, topic_metadata: TopicMetadata) -> None:
        self._group_store = group_store
        self._groups = groups
        self._topic_metadata = topic_metadata

    async def run(self) -> None:
        """Update the metric until cancelled."""
        while True:
            await asyncio.sleep(SECONDS)
            try:
                await self.round()
            except (GroupError, UnavailableError) as error:
                metrics.GROUP_LAG.clear()
                log.warning("cannot read the lag of groups", error=str(error))
            except Exception:
                metrics.GROUP_LAG.clear()
                log.exception("cannot read the lag of groups")

    async def round(self) -> None:
        """Read the lags and set the metric. Raises GroupError and UnavailableError."""
        names = [group.name for group in await self._groups.list()]
        lags = await self._group_store.lags(names, SERIES) if names else ()
        metrics.GROUP_LAG.clear()
        for lag in lags:
            if (topic := self._topic_metadata.by_id.get(lag.topic)) is not None:
                metrics.GROUP_LAG.labels(lag.group, topic.name).set(lag.records)
