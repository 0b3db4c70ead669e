"""The process that reads tables for ``firn-broker fsck`` (`firn_broker.cluster.jobs`). It gets the keys of history objects or the rows of
a topic, and answers with the result."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from firn_broker.cluster.jobs import do_job
from firn_broker.history.files import TableFiles
from firn_broker.history.rebuilding.rebuilder import Rebuilder
from firn_broker.history.restoring import tables
from firn_broker.history.restoring.restoring import restore
from firn_broker.settings import BrokerSettings
from firn_broker.storage.objects import open_objects

TABLE_ROWS = TypeAdapter(tables.TableRows)


async def restored(asked: Mapping[str, Any]) -> Mapping[str, object]:
    """Restore the batches of the named objects or the records of a topic, and return the result. Raises FirnError."""
    settings = BrokerSettings.model_validate(asked["settings"])
    objects, files = open_objects(settings.objects), TableFiles(settings.history.stores)
    try:
        if "topic" in asked:
            return {"keys": await tables.rebuild(objects, TABLE_ROWS.validate_python(asked["topic"]), files)}
        found = await restore(objects, asked["keys"], Rebuilder(objects, files))
        return found.report()
    finally:
        await objects.close()


if __name__ == "__main__":
    do_job(restored)
