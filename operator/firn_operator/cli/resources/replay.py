"""``firn dlq replay``: creates a DeadLetterReplay, and follows it to its end."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum
from typing import Any

from firn.decoders.bad_records import Code
from firn.model import durations, names
from firn.model.errors import InvalidSpecError, UnavailableError
from firn_operator.cli.resources.connection import Connection, Manifest, RefusedError, near, replays, topics
from firn_operator.cli.resources.terminal import Line, show

POLL_SECONDS = 1.0
TIMEOUT = 3900.0
"""Seconds after which the command stops to follow a replay: more than the deadline of its run."""
KEPT = "7d"
"""Time for which a replay of the command stays after its end."""
_NAME = 36
"""Characters of a topic's name in the name of its replay, which has at most 52."""


class ReplayCode(IntEnum):
    """Exit codes of ``firn dlq replay``."""

    DONE = 0
    WOULD_LAND = 2
    """With --dry-run: dead letters would become rows."""
    REFUSED = 3
    """The replay failed, or cannot start until a user acts."""
    NO_REPLAY = 78


@dataclass(frozen=True, slots=True)
class Order:
    """The replay to create."""

    topic: str
    dry_run: bool = False
    codes: Sequence[str] = ()
    since: str = ""
    """A time such as 2026-03-01T00:00:00Z, a date, whose day begins at midnight in UTC, or a duration before now such as 2d."""
    limit: int | None = None

    def manifest(self, namespace: str, topic: str, now: datetime) -> Manifest:
        """Return the resource. Raises InvalidSpecError for a wrong ``since``, and for a code that does not exist."""
        where: Manifest = {}
        unknown = next((code for code in self.codes if code not in set(Code)), None)
        if unknown is not None:
            raise InvalidSpecError(
                f"--code {unknown} is no cause of dead letters; {near(unknown, sorted(Code), 'causes')}"
            )
        if self.codes:
            where["codes"] = list(self.codes)
        if self.since:
            where["since"] = _moment(self.since, now)
        return {
            "apiVersion": names.API_VERSION,
            "kind": "DeadLetterReplay",
            "metadata": {"name": f"{topic[:_NAME].rstrip('-.')}-{now:%Y%m%d-%H%M%S}", "namespace": namespace},
            "spec": {
                "topicRef": {"name": topic},
                "mode": "DryRun" if self.dry_run else "Enforce",
                "ttlAfterFinished": KEPT,
                **({"where": where} if where else {}),
                **({"limit": {"records": self.limit}} if self.limit is not None else {}),
            },
        }


def run(
    connection: Connection,
    order: Order,
    *,
    as_json: bool,
    timeout: float = TIMEOUT,
    sleep: Callable[[float], None] = time.sleep,
) -> ReplayCode:
    """Create the replay, follow it, and print its result. Raises FirnError if it cannot be created or followed."""
    namespace, name = connection.login.place(order.topic)
    collection = topics(namespace)
    if connection.read(collection, name) is None:
        known = [each["metadata"]["name"] for each in connection.list(collection)]
        hint = near(name, known, f"IcebergTopics {collection.place}")
        raise InvalidSpecError(f"IcebergTopic {collection.namespace}/{name} does not exist; {hint}")
    place, manifest = replays(namespace), order.manifest(namespace, name, datetime.now(UTC))
    try:
        made = connection.create(place, manifest)
    except RefusedError as error:
        raise InvalidSpecError(f"the API server refuses the replay: {error}") from error
    replay = f"DeadLetterReplay {collection.namespace}/{made['metadata']['name']}"
    print(f"created {replay}", file=sys.stderr)
    ended = _follow(connection, made, replay, timeout, sleep)
    if as_json:
        print(json.dumps({"replay": made["metadata"]["name"], **_figures(ended)}, indent=2, ensure_ascii=False))
    else:
        show(_lines(replay, ended))
    return _code(ended, dry=order.dry_run)


def _follow(
    connection: Connection, made: Manifest, replay: str, timeout: float, sleep: Callable[[float], None]
) -> Manifest:
    """Return the replay when it has ended, or waits for a user. Prints what it waits for. Raises UnavailableError after ``timeout``."""
    place, name = replays(made["metadata"]["namespace"]), made["metadata"]["name"]
    until, printed = time.monotonic() + timeout, ""
    while True:
        live = connection.read(place, name)
        if live is None:
            raise InvalidSpecError(f"{replay} was deleted before its end; its run was stopped")
        message = _condition(live, "Finished").get("message", "")
        if _is(live, "Finished") or _is(live, "Stalled"):
            return live
        if message and message != printed:
            printed = message
            print(message, file=sys.stderr)
        if time.monotonic() >= until:
            raise UnavailableError(
                f"{replay} has not ended within {timeout:.0f} s, and goes on: {message or 'the operator has not read it yet'};"
                f" kubectl wait --for=condition=Finished deadletterreplay/{name} -n {place.namespace} follows it"
            )
        sleep(POLL_SECONDS)


def _moment(text: str, now: datetime) -> str:
    """Return a time as the resource has it. Raises InvalidSpecError for a text that is no time."""
    try:
        moment = _time(text, now)
        if moment.tzinfo is None:
            raise InvalidSpecError(f"--since {text}: the time has no zone; write {moment.isoformat()}Z for UTC")
        moment = moment.astimezone(UTC)
    except OverflowError:
        raise InvalidSpecError(
            f"--since {text}: the time is before the year 1 or after the year 9999 in UTC; write a time of these years, or leave out --since"
        ) from None
    except ValueError:
        raise InvalidSpecError(
            f"--since {text}: write a time such as 2026-03-01T00:00:00Z, a date such as 2026-03-01, or a duration before now such as 2d"
        ) from None
    # strftime writes the years before 1000 without leading zeros.
    return f"{moment.replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def _time(text: str, now: datetime) -> datetime:
    """Return the start of a duration before ``now``, the midnight of a date in UTC, or a time. Raises ValueError and OverflowError."""
    with suppress(ValueError):
        return now - timedelta(milliseconds=durations.milliseconds(text))
    with suppress(ValueError):
        return datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
    return datetime.fromisoformat(text)


def _condition(manifest: Manifest, kind: str) -> Manifest:
    conditions = (manifest.get("status") or {}).get("conditions") or []
    return next((item for item in conditions if item["type"] == kind), {})


def _is(manifest: Manifest, kind: str) -> bool:
    return bool(_condition(manifest, kind).get("status") == "True")


def _figures(ended: Manifest) -> dict[str, Any]:
    """Return the result as a document."""
    keys = ("run", "matched", "landed", "failed", "remaining", "codes", "failures")
    status = ended.get("status") or {}
    finished = _condition(ended, "Finished")
    return {
        "reason": finished.get("reason", ""),
        "message": finished.get("message", ""),
        **{key: status[key] for key in keys if key in status},
    }


def _lines(replay: str, ended: Manifest) -> list[Line]:
    figures = _figures(ended)
    good = _is(ended, "Ready")
    lines = [Line(f"{replay}: {figures['reason']}", "head")]
    for key, title in (("codes", "dead letters by cause"), ("failures", "do not fit the current schema")):
        lines += [Line(f"  {code:<22}{count:>12,}  {title}") for code, count in (figures.get(key) or {}).items()]
    if "remaining" in figures:
        lines.append(Line(f"  {'remaining':<22}{figures['remaining']:>12,}  dead letters that stay"))
    return [*lines, Line(figures["message"], "good" if good else "bad", 2)]


def _code(ended: Manifest, *, dry: bool) -> ReplayCode:
    if not _is(ended, "Ready"):
        return ReplayCode.REFUSED
    landed = (ended.get("status") or {}).get("landed") or 0
    return ReplayCode.WOULD_LAND if dry and landed else ReplayCode.DONE
