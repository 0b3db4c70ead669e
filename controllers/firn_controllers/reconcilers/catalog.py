"""Checks whether each catalog answers, once for all topics that use it."""

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.conditions.stable_text import steady
from firn_controllers.queue import Outcome
from firn_controllers.reconcilers.context import Context

INTERVAL = 10.0
INTERVAL_DOWN = 5.0


class CatalogReconciler:
    """Keeps the health of each catalog on the board, and wakes its topics when it changes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def reconcile(self, name: str) -> Outcome:
        """Check one catalog."""
        health = await self._check(name)
        board = self._context.board
        if health != board.catalog(name):
            board.catalogs[name] = health
            self._context.wake_topics(lambda entry: entry.table_claim is not None and entry.table_claim[1] == name)
        return Outcome(after=INTERVAL if health.problem is None else INTERVAL_DOWN)

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
