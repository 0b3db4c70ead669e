"""Replacement of clients of librdkafka whose requests are not answered.

librdkafka 2.13 to 2.16 forgets all brokers after an answer that names topics and no broker. A Kafka answers so while none of its brokers
is alive: after a restart, or when its only broker was too slow. The client may then never connect again. Source: librdkafka, issue 5301.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

RENEWAL_SECONDS = 30.0
"""Age in seconds from which a client is replaced after a request without an answer. While brokers are away, it is the time between two
replacements."""
_LONGEST_REQUEST_SECONDS = 60.0
"""Seconds after which no request of a replaced client can be under way. A client must not be closed before: the requests would not end."""


class Client(Protocol):
    """A client of confluent-kafka."""

    def __exit__(self, *_: Any) -> Any: ...


def close(client: Client) -> None:
    """Close a client. No request may be under way."""
    # An error callback makes a cycle of references to its client. If Python's garbage collector destroys the client in a thread of this
    # client, librdkafka aborts the process. confluent-kafka has no close() for admin clients.
    client.__exit__(None, None, None)


class Renewal:
    """Decides when a client is replaced, and closes replaced clients. Its methods may be called from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._made_at = clock()
        self._unanswered = False
        self._replaced: list[tuple[float, Client]] = []

    def unanswered(self) -> None:
        """Note that no broker answered a request of the client."""
        self._unanswered = True

    def due(self) -> bool:
        """Return True once if the client has to be replaced. The caller then makes another one, and calls `replace`."""
        with self._lock:
            now = self._clock()
            if not self._unanswered or now - self._made_at < RENEWAL_SECONDS:
                return False
            self._unanswered, self._made_at = False, now
            return True

    def replace(self, client: Client) -> None:
        """Close a replaced client as soon as its requests have ended: with a later replacement, or with `close`."""
        with self._lock:
            self._made_at = now = self._clock()
            self._unanswered = False
            ended = [old for since, old in self._replaced if now - since >= _LONGEST_REQUEST_SECONDS]
            self._replaced = [(since, old) for since, old in self._replaced if now - since < _LONGEST_REQUEST_SECONDS]
            self._replaced.append((now, client))
        for old in ended:
            close(old)

    def close(self) -> None:
        """Close all replaced clients. No request may be under way."""
        with self._lock:
            replaced, self._replaced = self._replaced, []
        for _, old in replaced:
            close(old)
