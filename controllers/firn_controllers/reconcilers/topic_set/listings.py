"""Lists the topics of each profile that has TopicSets, once for all of them."""

from dataclasses import replace

from firn.model.errors import FirnError
from firn_controllers.queue import Lane, Outcome
from firn_controllers.reconcilers.context import Context
from firn_controllers.topic_sets.listing import Listing

INTERVAL_DOWN = 10.0
"""Seconds until the next attempt after a failed one."""


class ListingReconciler:
    """Keeps the topics of profiles on the board, and wakes the TopicSets when they change."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def reconcile(self, profile: str) -> Outcome:
        """List the topics of one profile. Without TopicSets, nothing is listed any more."""
        context, listings = self._context, self._context.board.listings
        sets = context.sets.of_profile(profile)
        if not sets:
            listings.pop(profile, None)
            return Outcome()
        before = listings.get(profile, Listing())
        try:
            listed = await context.ports.topics.list_names(profile)
            now = Listing(listed.names, listed.cluster_id)
        except FirnError as error:
            now = replace(before, problem=error)
        same_brokers = (now.cluster_id, str(now.problem)) == (before.cluster_id, str(before.problem))
        if now.topics != before.topics or not same_brokers:
            listings[profile] = now
            for each in sets:
                context.wake_set(each.name, Lane.DEPENDENCY)
        return Outcome(after=INTERVAL_DOWN if now.problem is not None else now.interval)
