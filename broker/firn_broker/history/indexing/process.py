"""The process that indexes offsets for a broker: the offsets and the data files on standard input, the counts on standard output.

A process of its own does it, because it reads and compares gigabytes, and needs libraries that a broker without such topics does not
load."""

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from firn.model.clock import SystemClock
from firn.model.errors import ExitCode, FencedError, FirnError, UnavailableError
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.process_setup import end_with_parent, log_as_json
from firn_broker.history.entries import DataFile, FieldIds
from firn_broker.history.files import TableFiles
from firn_broker.history.indexing.indexing import Indexed, Indexing, Landed
from firn_broker.log_types import NodeLease
from firn_broker.metadata_store.opened import open_store
from firn_broker.settings import BrokerSettings
from firn_broker.storage.objects import open_objects

NICENESS = 10
"""The process must not take a core from the broker's event loop."""


async def index(asked: Mapping[str, Any]) -> Indexed:
    """Index offsets. Raises FirnError."""
    settings = BrokerSettings.model_validate(asked["settings"])
    store = open_store(settings.model_copy(update={"require_durable": False}), SystemClock(), "")
    objects = open_objects(settings.objects)
    await store.start()
    try:
        identifiers = Identifiers(SystemClock(), random.Random())
        landed = Landed(
            UUID(asked["topic"]),
            {int(partition): tuple(bounds) for partition, bounds in asked["partitions"].items()},
            [DataFile(*file) for file in asked["files"]],
            FieldIds(*asked["fields"]),
        )
        indexing = Indexing(store, objects, identifiers, TableFiles(settings.history.stores))
        return await indexing.index(NodeLease(*asked["lease"]), landed)
    finally:
        await store.close()
        await objects.close()


def main() -> int:
    """Index, and print the counts as JSON. The exit code is one of `ExitCode`."""
    end_with_parent(signal.SIGKILL)
    # The broker ends this process. A terminal or systemd sends these signals to all processes of the broker.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    log_as_json()
    try:
        asked = json.load(sys.stdin.buffer)
        if os.getppid() != asked["parent"]:
            # The broker ended before this process could ask for its end.
            return ExitCode.TEMPORARY
        indexed = asyncio.run(index(asked))
    except (UnavailableError, FencedError) as error:
        print(error, file=sys.stderr)
        return ExitCode.TEMPORARY
    except FirnError as error:
        print(error, file=sys.stderr)
        return ExitCode.CONFIGURATION
    print(json.dumps(indexed.report()))
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
