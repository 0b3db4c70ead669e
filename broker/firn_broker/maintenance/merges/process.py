"""The process that merges objects for a broker (`firn_broker.cluster.jobs`): it gets a selection, and answers with the counts."""

import random
from collections.abc import Mapping
from typing import Any

from firn.model.clock import SystemClock
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.jobs import do_job
from firn_broker.log_types import MergeSource, NodeLease
from firn_broker.maintenance.merges.merging import Merging, Selection
from firn_broker.metadata_store.opened import open_store
from firn_broker.settings import BrokerSettings, BucketSettings, DirectorySettings
from firn_broker.storage.objects import open_objects

SLOWEST_UPLOAD = 2 << 20
"""Bytes per second of an upload that does not count as stuck."""


def request(settings: BrokerSettings, lease: NodeLease, selection: Selection) -> Mapping[str, Any]:
    """Return the document that a process reads."""
    return {
        "settings": settings.model_dump(by_alias=True, mode="json"),
        "lease": [lease.node, lease.epoch],
        "level": selection.level,
        "sources": selection.sources,
    }


async def merge(asked: Mapping[str, Any]) -> Mapping[str, int]:
    """Merge a selection, and return the counts. Raises FirnError."""
    settings = BrokerSettings.model_validate(asked["settings"])
    # The broker has migrated the schema. With ``migrates``, a newer compatible one is accepted as by the broker.
    store = open_store(settings.model_copy(update={"require_durable": False}), SystemClock(), "")
    objects = open_objects(_patient(settings))
    await store.start()
    try:
        merging = Merging(store, objects, Identifiers(SystemClock(), random.Random()), settings.upkeep.merged_bytes)
        sources = [MergeSource(*source) for source in asked["sources"]]
        merged = await merging.merge(NodeLease(*asked["lease"]), Selection(asked["level"], sources))
        return merged.report()
    finally:
        await store.close()
        await objects.close()


def _patient(settings: BrokerSettings) -> DirectorySettings | BucketSettings:
    """Return the settings of the object store, with the time that the upload of a merged object may need."""
    if isinstance(settings.objects, DirectorySettings):
        return settings.objects
    seconds = settings.objects.timeout_seconds + settings.upkeep.merged_bytes / SLOWEST_UPLOAD
    return settings.objects.model_copy(update={"timeout_seconds": seconds})


if __name__ == "__main__":
    do_job(merge)
