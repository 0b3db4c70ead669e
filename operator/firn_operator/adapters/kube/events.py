"""Events about our resources, sent in the background within a rate limit. A repeated Event raises a count."""

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime

from firn.model import names
from firn.model.errors import AccessDeniedError, UnavailableError
from firn_operator.adapters.kube.api_client import MERGE_PATCH, PLURALS, Api, ApiError, RateLimit, path

log = logging.getLogger(__name__)

_EVENTS_KEPT = 2000
EVENTS_WAITING = 5000
"""Number of Events that may wait to be sent."""
_EVENTS_PER_SECOND, _EVENTS_AT_ONCE = 25.0, 100
DROPS_LOGGED = 60.0
"""Seconds between two messages about dropped Events. With thousands of new topics, most Events are dropped."""


@dataclass(frozen=True, slots=True)
class EventSubject:
    """The object that an Event is about."""

    namespace: str
    name: str
    uid: str
    kind: str


@dataclass(slots=True)
class _Sent:
    """An Event that exists: its name, first time and count."""

    name: str
    first: str
    count: int


class EventRecorder:
    """Sends Events one by one in the background. A repeated Event only raises its count."""

    def __init__(self, api: Api, instance: str) -> None:
        self._api = api
        self._instance = instance
        self._limit = RateLimit(_EVENTS_PER_SECOND, _EVENTS_AT_ONCE)
        self._waiting: asyncio.Queue[tuple[EventSubject, str, str, str]] = asyncio.Queue(EVENTS_WAITING)
        self._sent: OrderedDict[bytes, _Sent] = OrderedDict()
        self._dropped = 0
        self._logged = float("-inf")

    def record(self, subject: EventSubject, type_: str, reason: str, message: str) -> None:
        """Queue an Event for `run`; drop it when the queue is full, with a warning at intervals."""
        try:
            self._waiting.put_nowait((subject, type_, reason, message))
        except asyncio.QueueFull:
            self._dropped += 1
            if time.monotonic() - self._logged >= DROPS_LOGGED:
                self._logged = time.monotonic()
                log.warning(
                    "%d Events were dropped since the start, because too many wait to be sent; the last one is %s of %s %s/%s",
                    self._dropped,
                    reason,
                    subject.kind,
                    subject.namespace,
                    subject.name,
                )

    async def run(self) -> None:
        """Send queued Events until cancelled."""
        while True:
            item = await self._waiting.get()
            try:
                await self._send(*item)
            except (ApiError, UnavailableError, AccessDeniedError) as error:
                log.warning("an Event could not be sent: %s", error)
            except Exception:
                log.exception("an Event could not be sent")

    async def _send(self, subject: EventSubject, type_: str, reason: str, message: str) -> None:
        key = hashlib.blake2b("\0".join((subject.uid, type_, reason, message)).encode(), digest_size=12).digest()
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        sent = self._sent.pop(key, None)
        if sent is not None and await self._count(subject, sent, now):
            self._sent[key] = sent
            return
        sent = _Sent(f"{subject.name[:200]}.{key.hex()}{time.time_ns() // 1_000_000:x}", now, 1)
        apiversion = next((version for version, kind in PLURALS if kind == subject.kind), "v1")
        await self._api.call(
            "POST",
            path("v1", "Event", subject.namespace),
            body={
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": sent.name, "namespace": subject.namespace},
                "involvedObject": {
                    "apiVersion": apiversion,
                    "kind": subject.kind,
                    "namespace": subject.namespace,
                    "name": subject.name,
                    "uid": subject.uid,
                },
                "type": type_,
                "reason": reason,
                "message": message[:1024],
                "count": 1,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "source": {"component": names.FIELD_MANAGER},
                "reportingComponent": names.FIELD_MANAGER,
                "reportingInstance": self._instance,
            },
            limit=self._limit,
        )
        self._sent[key] = sent
        if len(self._sent) > _EVENTS_KEPT:
            self._sent.popitem(last=False)

    async def _count(self, subject: EventSubject, sent: _Sent, now: str) -> bool:
        """Raise the count of an Event that was sent before; return False if it has expired."""
        body = {"count": sent.count + 1, "lastTimestamp": now}
        try:
            await self._api.call(
                "PATCH",
                path("v1", "Event", subject.namespace, sent.name),
                body=body,
                content_type=MERGE_PATCH,
                limit=self._limit,
            )
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        sent.count += 1
        return True
