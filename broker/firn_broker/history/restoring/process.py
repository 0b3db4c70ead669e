"""The process that restores batches for ``firn-broker fsck`` (`firn_broker.cluster.jobs`): it gets keys, and answers with the result."""

from collections.abc import Mapping
from typing import Any

from firn_broker.cluster.jobs import do_job
from firn_broker.history.files import TableFiles
from firn_broker.history.rebuilding.rebuilder import Rebuilder
from firn_broker.history.restoring.restoring import restore
from firn_broker.settings import BrokerSettings
from firn_broker.storage.objects import open_objects


async def restored(asked: Mapping[str, Any]) -> Mapping[str, object]:
    """Restore the batches of the named objects, and return the result. Raises FirnError."""
    settings = BrokerSettings.model_validate(asked["settings"])
    objects = open_objects(settings.objects)
    try:
        found = await restore(objects, asked["keys"], Rebuilder(objects, TableFiles(settings.history.stores)))
        return found.report()
    finally:
        await objects.close()


if __name__ == "__main__":
    do_job(restored)
