"""The indexings of a broker: drivers name offsets, and one process after another indexes them."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import structlog

from firn.driver_requests.landed_offsets import Landed, Refusal
from firn.model.errors import UnavailableError
from firn_broker import metrics
from firn_broker.cluster.jobs import run_job
from firn_broker.log_types import NodeLease
from firn_broker.settings import BrokerSettings

log = structlog.get_logger()

WAITING = 100
"""Topics that wait at most."""
WAITING_FILES = 50_000
"""Data files of all these topics, unless one topic alone has more."""
PROCESS = "firn_broker.history.indexing.process"


class Indexings:
    """Indexes offsets that drivers name. A driver names them again if the broker ends before."""

    def __init__(
        self, settings: BrokerSettings, lease: Callable[[], NodeLease], single: Callable[[UUID], bool]
    ) -> None:
        """``single`` tells whether the log keeps no copy of a topic's records that its table gives back."""
        self._settings = settings
        self._single = single
        self._lease = lease
        self._waiting: dict[UUID, Landed] = {}
        self._more = asyncio.Event()

    def add(self, landed: Landed) -> Refusal | None:
        """Let offsets wait, in place of others of the topic. Return the reason if they do not."""
        if not self._single(landed.topic):
            return Refusal.COPY
        if not self._settings.history.stores:
            return Refusal.NO_STORE
        others = [each for topic, each in self._waiting.items() if topic != landed.topic]
        files = sum(len(each.files) for each in others) + len(landed.files)
        if len(others) >= WAITING or (others and files > WAITING_FILES):
            return Refusal.BUSY
        self._waiting[landed.topic] = landed
        self._more.set()
        return None

    async def run(self) -> None:
        """Index the waiting offsets, until cancelled."""
        while True:
            await self._more.wait()
            topic = next(iter(self._waiting))
            landed = self._waiting.pop(topic)
            if not self._waiting:
                self._more.clear()
            if not self._single(topic):
                # The topic changed while it waited: its log keeps its copy.
                continue
            try:
                await self._index(landed)
            except UnavailableError as error:
                metrics.INDEXING_PROBLEMS.labels("failed").inc()
                log.warning(
                    "offsets are not indexed yet; the driver names them again", topic=str(topic), error=str(error)
                )
            except Exception:
                metrics.INDEXING_PROBLEMS.labels("failed").inc()
                log.exception("the indexing of a topic failed", topic=str(topic))

    async def _index(self, landed: Landed) -> None:
        """Index in a process. Raises UnavailableError if it fails."""
        lease = self._lease()
        asked = {
            "settings": self._settings.model_dump(by_alias=True, mode="json"),
            "lease": [lease.node, lease.epoch],
            "landed": landed.model_dump(mode="json"),
        }
        indexed = await run_job(PROCESS, asked, work="indexes offsets", advice="raise its limit")
        metrics.INDEXED_BYTES.labels("table").inc(indexed["bytes"])
        metrics.INDEXED_BYTES.labels("kept").inc(indexed["kept_bytes"])
        metrics.INDEXED_BYTES.labels("left").inc(indexed["left_bytes"])
        metrics.INDEXING_PROBLEMS.labels("unreadable").inc(sum(indexed["problems"].values()))
        log.info("indexed offsets of a topic", topic=str(landed.topic), **indexed)
