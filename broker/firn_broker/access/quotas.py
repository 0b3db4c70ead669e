"""Quotas of clients: the rates that entities may use, and the time for which the broker throttles a client that uses more.

Entities and their precedence are those of Kafka (``ClientQuotaManager.java``, KIP-13, KIP-55, KIP-546). Kafka measures
byte rates over eleven windows, and mutations with a token bucket (KIP-599). Here all rates have a token bucket: it has the
same rate in the long run and the same burst, takes two numbers instead of eleven windows, and says exactly how long a
client has to wait. As in Kafka, each broker counts for itself.
"""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, inf
from typing import Protocol

from firn_broker.access_types import Entity

BURST_SECONDS = 10
"""Seconds of its rate that an idle client may use at once: Kafka's ten full windows (``quota.window.num``)."""
MOST_BUCKETS = 20_000
"""Most buckets of a broker, each of about 500 bytes. Only clients with a quota have one."""
LONGEST_ID = 256
"""Characters by which client ids differ. A client may send 32 KiB, and the broker keeps the id with its bucket."""
MOST_MS = 2**31 - 1
"""The longest throttle time of Kafka's protocol."""
MOST_REQUEST_MS = 1_000
"""The longest throttle time for the time of requests: one window, as in Kafka's ``ClientRequestQuotaManager``."""


class Quota(StrEnum):
    """Quotas, with Kafka's names."""

    PRODUCER_BYTES = "producer_byte_rate"
    """Bytes of produce requests a second."""
    CONSUMER_BYTES = "consumer_byte_rate"
    """Bytes of fetch responses a second."""
    REQUEST_TIME = "request_percentage"
    """Time of the event loop, in percent of a second: a request of 10 ms counts as 1."""
    MUTATIONS = "controller_mutation_rate"
    """Partitions that requests create or delete a second."""
    CONNECTIONS = "connection_creation_rate"
    """Connections that an address opens a second."""


class Source(Protocol):
    """The quotas of the cluster."""

    @property
    def quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        """Return the values by entity. A change replaces the mapping."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled: float
    """Second of the clock at which `tokens` were counted."""

    def fill(self, rate: float, now: float) -> None:
        """Add the tokens since the last call."""
        self.tokens = min(rate * BURST_SECONDS, self.tokens + max(0.0, now - self.filled) * rate)
        self.filled = now


_Place = tuple[Quota, str | None, str | None]
"""The clients that share a bucket: all of a user, or all with a client id, or those with both."""
_ABSENT = ""
"""Stands for a type that an entity does not have."""
_Limits = Mapping[tuple[str | None, str | None], float]
"""Rates by user and client id, or by address and `_ABSENT`. None is the default of a type."""


class Quotas:
    """Counts the use of clients against their quotas. One for a broker, and only for its event loop."""

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds that never decrease."""
        self._source = source
        self._clock = clock
        self._read: Mapping[Entity, Mapping[str, float]] = {}
        self._limits: Mapping[Quota, _Limits] = {}
        self._buckets: OrderedDict[_Place, _Bucket] = OrderedDict()

    @property
    def active(self) -> bool:
        """Return whether any entity has a quota. Without one, callers skip the rest."""
        return bool(self._current())

    def limits(self, quota: Quota, principal: str, client_id: str) -> bool:
        """Return whether the client has this quota."""
        return self._find(quota, principal, client_id) is not None

    def record(self, quota: Quota, principal: str, client_id: str, amount: float) -> int:
        """Count ``amount`` and return the milliseconds for which to throttle the client; 0 within its quota."""
        found = self._find(quota, principal, client_id)
        return 0 if found is None else self._take(*found, amount)

    def wait(self, quota: Quota, principal: str, client_id: str) -> int:
        """Return the milliseconds until the client is within its quota, without counting anything.

        A request that a quota strictly limits is rejected with this time (THROTTLING_QUOTA_EXCEEDED, KIP-599), and a fetch
        gets no records.
        """
        return self.record(quota, principal, client_id, 0)

    def burst(self, quota: Quota, principal: str, client_id: str) -> float:
        """Return the most that the client may use at once; infinity without a quota. A fetch response has at most this
        many bytes (``getMaxValueInQuotaWindow``)."""
        found = self._find(quota, principal, client_id)
        return inf if found is None else found[1] * BURST_SECONDS

    def record_connection(self, address: str) -> int:
        """Count a connection of an address, and return the milliseconds for which to delay it; 0 within its quota."""
        limits = self._current().get(Quota.CONNECTIONS)
        if not limits:
            return 0
        rate = limits.get((address, _ABSENT), limits.get((None, _ABSENT)))
        return 0 if rate is None else self._take((Quota.CONNECTIONS, address, None), rate, 1)

    def _find(self, quota: Quota, principal: str, client_id: str) -> tuple[_Place, float] | None:
        """Return the bucket of a client and its rate; None without a quota.

        Unlike in Kafka, an empty client id is one like any other. Otherwise a client without an id would have no quota.
        """
        limits = self._current().get(quota)
        if not limits:
            return None
        user, client = principal.removeprefix("User:"), client_id[:LONGEST_ID]
        # In Kafka's order. The client id of a rule may be longer than that of a bucket.
        for of_user in (user, None):
            for of_client in (client_id or None, None):
                rate = limits.get((of_user, of_client))
                if rate is not None:
                    return (quota, user, client), rate
            rate = limits.get((of_user, _ABSENT))
            if rate is not None:
                return (quota, user, None), rate
        rate = limits.get((_ABSENT, client_id or None), limits.get((_ABSENT, None)))
        return None if rate is None else ((quota, None, client), rate)

    def _take(self, place: _Place, rate: float, amount: float) -> int:
        now = self._clock()
        bucket = self._buckets.get(place)
        if bucket is None:
            bucket = self._buckets[place] = _Bucket(self._first_tokens(rate, now), now)
        else:
            self._buckets.move_to_end(place)
            bucket.fill(rate, now)
        bucket.tokens -= amount
        if bucket.tokens >= 0:
            return 0
        most = MOST_REQUEST_MS if place[0] is Quota.REQUEST_TIME else MOST_MS
        return min(most, ceil(-bucket.tokens / rate * 1000)) if rate > 0 else most

    def _first_tokens(self, rate: float, now: float) -> float:
        """Return the tokens of a new bucket, and make room for it.

        The bucket that was used least recently is deleted. If it was not full, its client could continue with a full one, and
        exceed its quota by the use of many client ids. So new buckets then begin empty.
        """
        if len(self._buckets) < MOST_BUCKETS:
            return rate * BURST_SECONDS
        _, oldest = self._buckets.popitem(last=False)
        return rate * BURST_SECONDS if now - oldest.filled >= BURST_SECONDS and oldest.tokens >= 0 else 0.0

    def _current(self) -> Mapping[Quota, _Limits]:
        quotas = self._source.quotas
        if quotas is not self._read:
            self._read, self._limits = quotas, _by_quota(quotas)
        return self._limits


def _by_quota(quotas: Mapping[Entity, Mapping[str, float]]) -> Mapping[Quota, _Limits]:
    known = {str(quota): quota for quota in Quota}
    limits: dict[Quota, dict[tuple[str | None, str | None], float]] = defaultdict(dict)
    for entity, values in quotas.items():
        names = dict(entity)
        for name, value in values.items():
            quota = known.get(name)
            if quota is None:
                continue
            if quota is Quota.CONNECTIONS:
                if "ip" in names:
                    limits[quota][names["ip"], _ABSENT] = value
            elif "ip" not in names:
                limits[quota][names.get("user", _ABSENT), names.get("client-id", _ABSENT)] = value
    return limits
