"""Checks whether each catalog answers, once for all topics that use it."""

from dataclasses import replace

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.conditions.stable_text import steady
from firn_controllers.iceberg_topic import status
from firn_controllers.queue import Outcome
from firn_controllers.reconcilers.context import Context

INTERVAL = 10.0
INTERVAL_DOWN = 5.0
INTERVAL_SHORT_OUTAGE = 1.0
"""Seconds between two checks in the first `SHORT_OUTAGE_SECONDS` of an outage. New topics and edits wait meanwhile."""
SHORT_OUTAGE_SECONDS = 20.0
"""Seconds for which topics whose table is ready do not show that their catalog does not answer. A failover of a database
takes less time, and must not change the status of every topic twice."""


class CatalogReconciler:
    """Keeps the health of each catalog on the board, and wakes its topics when it changes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._failing: dict[str, float] = {}  # catalog -> start of its outage, in monotonic seconds

    async def reconcile(self, name: str) -> Outcome:
        """Check one catalog."""
        health = self._mark_short_outage(name, await self._check(name))
        board = self._context.board
        before = board.catalog(name)
        if health != before:
            board.catalogs[name] = health
            hidden = all(state.recent or state.problem is None for state in (before, health))
            self._context.wake_topics(
                lambda entry: (
                    entry.table_claim is not None
                    and entry.table_claim[1] == name
                    and not (hidden and status.ready_table(entry) is not None)
                )
            )
        if health.problem is None:
            return Outcome(after=INTERVAL)
        return Outcome(after=INTERVAL_SHORT_OUTAGE if health.recent else INTERVAL_DOWN)

    def _mark_short_outage(self, name: str, health: DependencyHealth) -> DependencyHealth:
        if health.problem is None:
            self._failing.pop(name, None)
            return health
        now = self._context.ports.clock.monotonic()
        return replace(health, recent=now - self._failing.setdefault(name, now) < SHORT_OUTAGE_SECONDS)

    async def _check(self, name: str) -> DependencyHealth:
        try:
            await self._context.ports.tables.check(name)
        except AccessDeniedError as error:
            return DependencyHealth(Reason.ACCESS_DENIED, steady(f"catalog {name}: {error}"))
        except FirnError as error:
            return DependencyHealth(
                Reason.CATALOG_UNREACHABLE,
                steady(
                    f"catalog {name} does not answer: {error}; check its uri and properties in the chart's values, and the network"
                ),
            )
        return DependencyHealth()
