"""A catalog of the configuration: its threads, its secret files, and a cache of its tables."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

from pyiceberg.catalog import Catalog

from firn.model.errors import FirnError
from firn.model.jobs import CatalogConnection
from firn_controllers.ports import TableState
from firn_operator.adapters import secret_files
from firn_operator.adapters.iceberg.catalog_errors import translated
from firn_operator.adapters.iceberg.catalogs import TableKey, open_catalog

Result = TypeVar("Result")
_THREADS = 6
SEEN_KEPT = 20_000
"""Tables with a cached result."""


@dataclass(slots=True)
class Agreed:
    """The last result of `ensure`. It stays valid while request, place and digest stay the same."""

    request: bytes
    place: str
    digest: bytes
    state: TableState


class Connection:
    """A catalog that is opened on first use, and again when a secret's file changes."""

    def __init__(
        self,
        name: str,
        settings: CatalogConnection,
        threads: int = _THREADS,
        snapshots: Literal["refs", "all"] = "refs",
    ) -> None:
        self.name = name
        self._snapshots = snapshots
        self.settings = settings
        self.namespaces: dict[str, str] = {}
        """Namespaces that exist, and the location of their tables (empty: the catalog decides)."""
        self.seen: OrderedDict[TableKey, Agreed] = OrderedDict()
        # Each catalog has its own threads, so that a catalog that hangs does not delay the others.
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=f"catalog-{name}")
        self._catalog: Catalog | None = None
        self._opened_with: secret_files.Signature = ()
        self._lock = threading.Lock()

    def catalog(self) -> Catalog:
        """Return the catalog, opened with the present content of the secrets' files."""
        with self._lock:
            now = secret_files.signature(self.settings.secret_files)
            if self._catalog is None or now != self._opened_with:
                self._catalog = open_catalog(self.name, self.settings, snapshots=self._snapshots)
                self._opened_with = now
            return self._catalog

    def note(self, key: TableKey, agreed: Agreed) -> None:
        """Cache the last result for a table, and remove the oldest results: deleted topics that keep their table leave one."""
        self.seen[key] = agreed
        while len(self.seen) > SEEN_KEPT:
            self.seen.popitem(last=False)

    async def call(self, subject: str, work: Callable[[], Result]) -> Result:
        """Run ``work`` on one of the threads.

        Raises its exception as UnavailableError or AccessDeniedError, with ``subject`` in the message.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, work)
        except FirnError:
            raise
        except Exception as error:
            known_error = translated(subject, error)
            if known_error is None:
                raise
            raise known_error from error
