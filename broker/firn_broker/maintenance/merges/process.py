"""The process that merges objects for a broker: one selection on standard input, the counts on standard output.

A process of its own does it, because a merge reads and checks hundreds of megabytes. The event loop of the broker must
not wait for that."""

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import Mapping
from typing import Any

from firn.model.clock import SystemClock
from firn.model.errors import ExitCode, FencedError, FirnError, UnavailableError
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.process_setup import end_with_parent, log_as_json
from firn_broker.log_types import MergeSource, NodeLease
from firn_broker.maintenance.merges.merging import Merged, Merging, Selection
from firn_broker.metadata_store.opened import open_store
from firn_broker.settings import BrokerSettings, BucketSettings, DirectorySettings
from firn_broker.storage.objects import open_objects

SLOWEST_UPLOAD = 2 << 20
"""Bytes per second of an upload that does not count as stuck."""
NICENESS = 10
"""A merge must not take a core from the broker's event loop."""


def request(settings: BrokerSettings, lease: NodeLease, selection: Selection) -> bytes:
    """Return what a process reads."""
    return json.dumps(
        {
            "settings": settings.model_dump(by_alias=True, mode="json"),
            "parent": os.getpid(),
            "lease": [lease.node, lease.epoch],
            "level": selection.level,
            "sources": selection.sources,
        }
    ).encode()


async def merge(asked: Mapping[str, Any]) -> Merged:
    """Merge a selection. Raises FirnError."""
    settings = BrokerSettings.model_validate(asked["settings"])
    # The broker has migrated the schema. With ``migrates``, a newer compatible one is accepted as by the broker.
    store = open_store(settings.model_copy(update={"require_durable": False}), SystemClock(), "")
    objects = open_objects(_patient(settings))
    await store.start()
    try:
        merging = Merging(store, objects, Identifiers(SystemClock(), random.Random()), settings.upkeep.merged_bytes)
        sources = [MergeSource(*source) for source in asked["sources"]]
        return await merging.merge(NodeLease(*asked["lease"]), Selection(asked["level"], sources))
    finally:
        await store.close()
        await objects.close()


def _patient(settings: BrokerSettings) -> DirectorySettings | BucketSettings:
    """Return the settings of the object store, with the time that the upload of a merged object may need."""
    if isinstance(settings.objects, DirectorySettings):
        return settings.objects
    seconds = settings.objects.timeout_seconds + settings.upkeep.merged_bytes / SLOWEST_UPLOAD
    return settings.objects.model_copy(update={"timeout_seconds": seconds})


def main() -> int:
    """Merge, and print the counts as JSON. The exit code is one of `ExitCode`."""
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
        merged = asyncio.run(merge(asked))
    except (UnavailableError, FencedError) as error:
        print(error, file=sys.stderr)
        return ExitCode.TEMPORARY
    except FirnError as error:
        print(error, file=sys.stderr)
        return ExitCode.CONFIGURATION
    print(json.dumps(merged.report()))
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
