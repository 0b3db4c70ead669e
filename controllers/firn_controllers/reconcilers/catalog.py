"""Is a catalog there? Asked once for all topics that use it."""

from collections.abc import Callable

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError
from firn_controllers.board import Board
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.conditions.stable_text import steady
from firn_controllers.ports import Ports
from firn_controllers.queue import Outcome

INTERVAL = 10.0
INTERVAL_DOWN = 5.0


class CatalogReconciler:
    """Keeps the health of each catalog on the board; ``changed`` is told the name when it changes."""

    def __init__(self, ports: Ports, board: Board, changed: Callable[[str], None]) -> None:
        self._ports = ports
        self._board = board
        self._changed = changed

    async def reconcile(self, name: str) -> Outcome:
        """Ask once."""
        try:
            await self._ports.tables.check(name)
            found = DependencyHealth()
        except AccessDeniedError as error:
            found = DependencyHealth(Reason.ACCESS_DENIED, steady(f"catalog {name}: {error}"))
        except FirnError as error:
            found = DependencyHealth(Reason.CATALOG_UNREACHABLE, steady(f"catalog {name} does not answer: {error}"))
        if found != self._board.catalog(name):
            self._board.catalogs[name] = found
            self._changed(name)
        return Outcome(after=INTERVAL if found.problem is None else INTERVAL_DOWN)
