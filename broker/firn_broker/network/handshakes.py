"""Connections whose clients have not authenticated yet, within bounds of their own.

Anyone can open such a connection. So each address may have few of them. If all places are taken, the oldest connection
loses its place: an honest client needs its place for some round trips only."""

from collections import Counter
from collections.abc import Callable

from firn_broker import metrics
from firn_broker.access.audit import Audit
from firn_broker.settings import ConnectionSettings


class Place:
    """The place of one connection, from its acceptance until its client has authenticated."""

    __slots__ = ("_places", "address", "begun", "close")

    def __init__(self, places: "Places", address: str, begun: float) -> None:
        self._places = places
        self.address = address
        self.begun = begun
        """When the connection was accepted, in seconds of the event loop."""
        self.close: Callable[[], object] = lambda: None
        """Closes the connection."""

    def leave(self) -> None:
        """Give up the place. Does nothing when it is given up already."""
        self._places.remove(self)


class Places:
    """The places of all listeners."""

    def __init__(self, settings: ConnectionSettings, audit: Audit) -> None:
        self._settings = settings
        self._audit = audit
        self._places: dict[Place, None] = {}
        self._addresses: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def take(self, address: str, begun: float) -> Place | None:
        """Take a place. Return None if the address has too many."""
        settings = self._settings
        if self._addresses[address] >= settings.max_unauthenticated_per_address:
            metrics.REFUSED_HANDSHAKES.labels("address").inc()
            reason = "too many connections that have not authenticated (connections.maxUnauthenticatedPerAddress)"
            self._audit.refused(address, reason)
            return None
        if len(self._places) >= settings.max_unauthenticated:
            oldest = next(iter(self._places))
            metrics.REFUSED_HANDSHAKES.labels("oldest").inc()
            self.remove(oldest)
            oldest.close()
        place = Place(self, address, begun)
        self._places[place] = None
        self._addresses[address] += 1
        metrics.UNAUTHENTICATED.set(len(self._places))
        return place

    def remove(self, place: Place) -> None:
        """Remove a place, if it is still there."""
        if place in self._places:
            del self._places[place]
            self._addresses[place.address] -= 1
            if not self._addresses[place.address]:
                del self._addresses[place.address]
            metrics.UNAUTHENTICATED.set(len(self._places))


class Entry:
    """The place of a connection, until its client has authenticated or the connection has ended."""

    def __init__(self, places: Places, place: Place | None) -> None:
        self._places = places
        self._place = place

    @property
    def waiting(self) -> bool:
        """Return whether the client has not authenticated yet."""
        return self._place is not None

    def begin(self, address: str, now: float, close: Callable[[], object]) -> bool:
        """Take a place, unless the connection has one. Return False if its address has too many."""
        self._place = self._place or self._places.take(address, now)
        if self._place is None:
            return False
        self._place.close = close
        return True

    def end(self) -> None:
        """Give up the place. Does nothing without one."""
        if self._place is not None:
            self._place.leave()
            self._place = None

    def late(self, now: float, seconds: float) -> bool:
        """Return whether the client should have authenticated within ``seconds``."""
        return self._place is not None and now - self._place.begun > seconds
