"""The process that indexes offsets for a broker (`firn_broker.cluster.jobs`): it gets named offsets, and answers with the counts."""

import random
from collections.abc import Mapping
from typing import Any

from firn.driver_requests.landed_offsets import Landed
from firn.model.clock import SystemClock
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.jobs import do_job
from firn_broker.history.files import TableFiles
from firn_broker.history.indexing.indexing import Indexing
from firn_broker.log_types import NodeLease
from firn_broker.metadata_store.opened import open_store
from firn_broker.settings import BrokerSettings
from firn_broker.storage.objects import open_objects


async def index(asked: Mapping[str, Any]) -> Mapping[str, object]:
    """Index offsets, and return the counts. Raises FirnError."""
    settings = BrokerSettings.model_validate(asked["settings"])
    store = open_store(settings.model_copy(update={"require_durable": False}), SystemClock(), "")
    objects = open_objects(settings.objects)
    await store.start()
    try:
        identifiers = Identifiers(SystemClock(), random.Random())
        indexing = Indexing(store, objects, identifiers, TableFiles(settings.history.stores), SystemClock())
        indexed = await indexing.index(NodeLease(*asked["lease"]), Landed.model_validate(asked["landed"]))
        return indexed.report()
    finally:
        await store.close()
        await objects.close()


if __name__ == "__main__":
    do_job(index)
