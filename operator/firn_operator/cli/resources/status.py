"""``firn status``: reads IcebergTopics or a TopicSet, and their Events, and prints the report."""

import json
import sys
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from firn.model import names
from firn.model.errors import AccessDeniedError, InvalidSpecError
from firn_operator.cli.resources import report as reports
from firn_operator.cli.resources import screen
from firn_operator.cli.resources.connection import Collection, Connection, Manifest, events, near, topic_sets, topics
from firn_operator.cli.resources.terminal import show


class StatusCode(IntEnum):
    """Exit codes of ``firn status`` about the topics."""

    READY = 0
    NOT_READY = 3


def one(connection: Connection, topic: str, *, as_json: bool) -> StatusCode:
    """Print the report on a topic, NAME or NAMESPACE/NAME. Raises InvalidSpecError with near names if it does not exist."""
    manifest = _read(connection, topics, "IcebergTopic", topic)
    document = reports.report(manifest, _events(connection, manifest), screen.now())
    if as_json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        show(screen.lines(document))
    return StatusCode.READY if document["ready"] == "True" else StatusCode.NOT_READY


def one_set(connection: Connection, topic_set: str, *, as_json: bool) -> StatusCode:
    """Print the report on a TopicSet, NAME or NAMESPACE/NAME. Raises InvalidSpecError with near names if it does not exist."""
    manifest = _read(connection, topic_sets, "TopicSet", topic_set)
    metadata = manifest["metadata"]
    made = connection.list(topics(metadata["namespace"]), labelSelector=f"{names.LABEL_TOPIC_SET}={metadata['name']}")
    document = reports.set_report(manifest, made, _events(connection, manifest), screen.now())
    if as_json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        show(screen.set_lines(document))
    return StatusCode.READY if document["ready"] == "True" else StatusCode.NOT_READY


def _read(connection: Connection, kind_of: Callable[[str | None], Collection], kind: str, place: str) -> Manifest:
    """Return a resource, NAME or NAMESPACE/NAME. Raises InvalidSpecError if it does not exist, or if its namespace differs from --namespace."""
    namespace, name = connection.login.place(place)
    collection = kind_of(namespace)
    manifest = connection.read(collection, name)
    if manifest is None:
        hint = _names(connection, collection, kind, name)
        raise InvalidSpecError(f"{kind} {collection.namespace}/{name} does not exist; {hint}")
    return manifest


def many(connection: Connection, *, everywhere: bool, as_json: bool) -> StatusCode:
    """Print a table of the topics in a namespace, or in all."""
    collection = topics(None if everywhere else connection.namespace)
    found = connection.list(collection)
    moment = screen.now()
    if as_json:
        documents = [reports.report(each, None, moment) for each in found]
        for document in documents:
            del document["events"]  # a list does not read them
        print(json.dumps(documents, indent=2, ensure_ascii=False))
    elif not found:
        hint = "" if everywhere else "; -A lists those of all namespaces"
        print(f"there are no IcebergTopics {collection.place}{hint}", file=sys.stderr)
    else:
        show(screen.table_lines(screen.rows(found, moment)), wrap=False)
    all_ready = all(reports.ready(each) == "True" for each in found)
    return StatusCode.READY if all_ready else StatusCode.NOT_READY


def _names(connection: Connection, collection: Collection, kind: str, name: str) -> str:
    """Return the resources with names close to ``name``, if the person may list them."""
    try:
        known = [each["metadata"]["name"] for each in connection.list(collection)]
    except AccessDeniedError:
        return f"you may not list the {kind}s {collection.place}, so no near names are known"
    return near(name, known, f"{kind}s {collection.place}")


def _events(connection: Connection, manifest: Manifest) -> list[Any] | None:
    """Return the Events about a topic; None if the person may not list them."""
    metadata = manifest["metadata"]
    try:
        return connection.list(events(metadata["namespace"]), fieldSelector=f"involvedObject.uid={metadata['uid']}")
    except AccessDeniedError:
        return None
