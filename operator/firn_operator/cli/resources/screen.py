"""The report of ``firn status`` as lines of text, and the table of many topics. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from firn_operator.cli.resources import report as reports
from firn_operator.cli.resources.terminal import Line, Style

_LABEL = 15
_DAY, _HOUR, _MINUTE, _SECOND, _ALONE = ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1), ("", 0)
_SCALES = (
    (8 * 86_400, _DAY, _ALONE),
    (2 * 86_400, _DAY, _HOUR),
    (8 * 3_600, _HOUR, _ALONE),
    (3 * 3_600, _HOUR, _MINUTE),
    (600, _MINUTE, _ALONE),
    (120, _MINUTE, _SECOND),
)
"""Seconds from which an age has these units, as in duration.HumanDuration of Kubernetes."""
_NONE = "-"
NAMED = 5
"""Number of IcebergTopics of a set that the screen names."""


def lines(report: Mapping[str, Any]) -> list[Line]:
    """Return the whole screen of one topic."""
    return [
        *_head(report),
        *_section("Conditions", _conditions(report["conditions"])),
        *_section("Kafka topic", _fields(_topic(report))),
        *_section("Table", _fields(_table(report))),
        *_section("Tables of routes", _tables(report["tables"])),
        *_section("Ingestion", _fields(_ingestion(report))),
        *_section("Quality rules", _quality(report["quality"])),
        *_section("Publishing", _fields(_publishing(report["publish"]))),
        *_section("Losses", _losses(report["losses"])),
        *_section("Maintenance", _fields(_maintenance(report["maintenance"]))),
        *_section("Audit", _fields(_audit(report["audit"]))),
        *_section("Events", _events(report["events"])),
        Line(""),
        _next_step(report["nextStep"]),
    ]


def set_lines(report: Mapping[str, Any]) -> list[Line]:
    """Return the whole screen of one TopicSet."""
    return [
        *_head(report, "TopicSet"),
        *_section("Conditions", _conditions(report["conditions"])),
        *_section("Topics", _fields(_set(report))),
        *_section("Refused topics", _refused(report)),
        *_section("Events", _events(report["events"])),
        Line(""),
        _next_step(report["nextStep"], "TopicSet"),
    ]


def _set(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    spec = report["spec"]
    without = f", without {spec['exclude']}" if spec["exclude"] else ""
    yield "match", f"{spec['match']}{without} (profile {spec['profile']})"
    yield "Kafka cluster", report["clusterId"] or ""
    for label, key in (("matched", "matched"), ("made", "made"), ("kept", "kept"), ("refused", "topicsRefused")):
        yield label, f"{report[key]:,}" if report[key] is not None else "not known yet"
    others = report["notReady"]
    more = f" and {len(others) - NAMED:,} more" if len(others) > NAMED else ""
    yield "not Ready", f"{len(others):,} IcebergTopics: {', '.join(others[:NAMED])}{more}" if others else ""
    yield "removal", spec["removal"] or "Keep"


def _refused(report: Mapping[str, Any]) -> Iterator[Line]:
    for each in report["refused"]:
        yield Line(f"  ! {each['topic']} ({each['why']}): {each.get('message', '')}", "bad", indent=4)
    more = (report["topicsRefused"] or 0) - len(report["refused"])
    if more > 0:
        yield Line(f"  and {more:,} more", "bad")


def _quality(rules: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    for each in rules:
        failed = "not known yet" if each["failed"] is None else f"{each['failed']:,} records failed"
        mark: Style = "bad" if each["failed"] else "" if each["failed"] is None else "good"
        yield Line(f"  {each['rule']:<{_LABEL}} {failed} ({each['onFail']}): {each['check']}", mark, indent=_LABEL + 3)


def _head(report: Mapping[str, Any], kind: str = "IcebergTopic") -> Iterator[Line]:
    found = next((each for each in report["conditions"] if each["type"] == "Ready"), None)
    name = f"{kind} {report['namespace']}/{report['name']}"
    deleting = ", being deleted" if report["deleting"] else ""
    if found is None:
        yield Line(f"{name}: no status yet{deleting}", "bad")
        return
    words = {"True": "Ready", "False": "not Ready"}.get(report["ready"], "not known to be Ready")
    since = f" for {duration(found['ageSeconds'])}" if found["ageSeconds"] is not None else ""
    earlier = f", {found['status']} for an earlier spec" if report["ready"] != found["status"] else ""
    style: Style = "good" if report["ready"] == "True" else "bad"
    yield Line(f"{name}: {words} ({found['reason']}{earlier}){since}{deleting}", style)


def _section(title: str, content: Iterable[Line]) -> list[Line]:
    found = list(content)
    return [Line(""), Line(title, "head"), *found] if found else []


def _fields(pairs: Iterable[tuple[str, str]]) -> Iterator[Line]:
    """Yield a line for each value that is not empty."""
    for label, value in pairs:
        if value:
            yield Line(f"  {label:<{_LABEL}} {value}", indent=_LABEL + 3)


def _conditions(conditions: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    for each in conditions:
        mark: Style = "bad" if each["bad"] else "dim" if each["status"] == "Unknown" else "good"
        sign = {"bad": "!", "dim": "?", "good": "+"}[mark]
        head = f"  {sign} {each['type']:<19} {each['status']:<7} {each['reason']:<20} {duration(each['ageSeconds']):>5}"
        yield Line(f"{head}  {each['message']}", mark, indent=8)


def _topic(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    topic = report["topic"]
    yield "name", _with(topic.get("name"), "profile", topic.get("profile"))
    yield "id", topic.get("id", "")
    yield "partitions", str(topic.get("partitions", ""))
    yield "bootstrap", topic.get("bootstrapServers", "")
    yield "schema", _schema(report["schema"])


def _schema(schema: Mapping[str, Any]) -> str:
    if "as" in schema:
        return f"{schema['format']}: key and value as {schema['as']}"
    if "registry" in schema:
        return f"{schema['format']}, subject {schema['subject']} of schema registry {schema['registry']}"
    return f"{schema['format']} with {schema['fields']} fields" if "fields" in schema else f"{schema['format']}"


def _table(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    table = report["table"]
    yield "name", table.get("identifier", "")
    yield "location", table.get("location", "")
    yield "uuid", table.get("uuid", "")


def _tables(tables: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    for each in tables:
        mark: Style = "good" if each["ready"] == "True" else "bad" if each["ready"] == "False" else "dim"
        sign = {"bad": "!", "dim": "?", "good": "+"}[mark]
        parts = [each.get("identifier", each["name"]), f"IcebergTopic {each['topic']}"]
        parts.append(
            f"last commit {each['lastCommitTime']}" if each.get("lastCommitTime") else "no commit of records yet"
        )
        if each.get("deadLetters"):
            parts.append(f"{each['deadLetters']:,} dead letters")
        yield Line(f"  {sign} {each['reason']:<20} {', '.join(parts)}", mark, indent=8)


def _ingestion(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    ingestion, letters = report["ingestion"], report["deadLetters"]
    yield "group", ingestion.get("group", "")
    yield "freshness", f"{ingestion['freshness']}{_freshness(report)}"
    commit = ingestion["lastCommitAgeSeconds"]
    yield "last commit", f"{duration(commit)} ago ({ingestion['lastCommitTime']})" if commit is not None else "none yet"
    yield "lag", _lag(ingestion.get("lag"), ingestion["lagAgeSeconds"])
    yield "suspended", "records wait in the Kafka topic" if ingestion["suspended"] else ""
    halt = ingestion.get("haltedAt")
    yield "halted at", f"partition {halt['partition']}, offset {halt['offset']}" if halt else ""
    count = letters["records"]
    place = f" in table {letters['table']}" if letters["table"] else f", onBadRecord is {letters['onBadRecord']}"
    yield "dead letters", f"{count:,}{place}" if count is not None else "not known yet"


def _lag(lag: Mapping[str, Any] | None, measured: int | None) -> str:
    if lag is None:
        return "not known yet"
    return f"{lag['records']:,} records, {duration(lag['seconds'])} behind (measured {duration(measured)} ago)"


def _freshness(report: Mapping[str, Any]) -> str:
    found = next((each for each in report["conditions"] if each["type"] == "Fresh"), None)
    if found is None:
        return ""
    return f": {found['message']}" if found["status"] == "True" else f": {found['reason']}, {found['message']}"


def _publishing(section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not section:
        return
    since = f" since {section['waitingSince']}" if section.get("waitingSince") else ""
    yield "branch", section["branch"]
    yield "main lacks", f"{section['waitingRows']:,} rows{since}"
    for check in section.get("checks") or ():
        result = {True: "passed", False: "failed"}.get(check.get("passed"), "not checked yet")
        values = f": {check['values']}" if check.get("values") else ""
        yield "check", f"{check['check']} {result}{values}, {check['failed']:,} times failed"


def _losses(losses: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    for loss in losses:
        yield Line(f"  ! {loss['name']}: {loss['offsets']:,} offsets, {loss['ranges']}", "bad", indent=4)


def _maintenance(section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "dataFiles" in section:
        due, small = section.get("dueFiles", 0), section.get("smallFiles", 0)
        yield (
            "data files",
            f"{section['dataFiles']:,} with {size(section.get('dataBytes', 0))}, {small:,} small, {due:,} due",
        )
        yield (
            "other files",
            (
                f"{section.get('deleteFiles', 0):,} delete files, {section.get('manifests', 0):,} Iceberg manifests,"
                f" {section.get('snapshots', 0):,} snapshots, {size(section.get('metadataBytes', 0))} of metadata"
            ),
        )
    yield "due since", section.get("oldestUncompactedTime", "")
    for kind in ("compaction", "retention"):
        binding = section.get(kind)
        if binding:
            yield (
                kind,
                f"CompactionPolicy {_policy(binding)}"
                if kind == "compaction"
                else f"RetentionPolicy {_policy(binding)}",
            )
            yield "", _run(binding)


def _policy(binding: Mapping[str, Any]) -> str:
    if not binding.get("policy"):
        return "of this topic does not fit; PoliciesResolved says why"
    because = {"NamedByTopic": "named by the topic", "Selected": "selected by label"}.get(
        binding.get("because", ""), ""
    )
    following = f", next run {binding['nextRunTime']}" if binding.get("nextRunTime") else ""
    return f"{binding['policy']}, {because}{following}"


def _run(section: Mapping[str, Any]) -> str:
    run = section.get("lastRun")
    if not run:
        return "no run yet"
    moment = run.get("finishTime") or run.get("startTime") or ""
    message = f": {run['message']}" if run.get("message") else ""
    mode = f" in mode {run['mode']}" if run.get("mode") else ""
    failures = f"; {section['failures']} failed runs in a row" if section.get("failures") else ""
    return f"last run {run['name']}{mode} {run.get('result', 'Running')} {moment}{message}{failures}"


def _audit(audit: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "excluded", audit.get("excluded", "")
    if audit.get("result"):
        counts = [f"{audit[key]:,} {key}" for key in ("missing", "doubled", "stray", "unproved") if audit.get(key)]
        found = f"{audit['result']} at {audit.get('time', _NONE)}, {audit.get('offsets', 0):,} offsets compared"
        yield "result", ", ".join([found, *counts])
    failed = audit.get("failed")
    if failed:
        yield (
            "finding",
            (
                f"run {failed['run']} at {failed['time']}: {failed.get('missing', 0):,} missing, {failed.get('doubled', 0):,} doubled,"
                f" {failed.get('stray', 0):,} stray"
            ),
        )
    if audit.get("lastRun"):
        yield "runs", _run(audit)
    yield "next run", audit.get("nextRunTime", "")


def _events(events: Sequence[Mapping[str, Any]] | None) -> Iterator[Line]:
    if events is None:
        yield Line("  you may not list Events in this namespace", "dim")
    for each in events or ():
        style: Style = "bad" if each["type"] == "Warning" else "dim"
        yield Line(
            f"  {duration(each['ageSeconds']):>5}  {each['type']:<7} {each['reason']}: {each['message']}", style, 9
        )


def _next_step(step: str, subject: str = "topic") -> Line:
    return Line(f"Next step: {step}", "bad") if step else Line(f"Next step: none, the {subject} needs nothing", "good")


def _with(value: str | None, label: str, other: str | None) -> str:
    return f"{value or _NONE} ({label} {other})" if other else value or ""


# Many topics

COLUMNS = ("NAMESPACE", "NAME", "READY", "REASON", "PROFILE", "PARTITIONS", "TABLE", "FRESH", "COMMIT", "DEAD", "AGE")


def rows(topics: Iterable[Mapping[str, Any]], now: datetime) -> list[tuple[str, ...]]:
    """Return a row for each topic: those that are not Ready first, then by name."""
    found = [_row(topic, now) for topic in topics]
    return sorted(found, key=lambda row: (row[2] == "True", row[0], row[1]))


def _row(topic: Mapping[str, Any], now: datetime) -> tuple[str, ...]:
    metadata, status = topic["metadata"], topic.get("status") or {}
    by_type = {each["type"]: each for each in status.get("conditions") or []}
    ingestion = status.get("ingestion") or {}
    letters = ingestion.get("deadLetters")
    return (
        metadata["namespace"],
        metadata["name"],
        reports.ready(topic),
        by_type.get("Ready", {}).get("reason", _NONE),
        status.get("profile", _NONE),
        str(status.get("partitions", _NONE)),
        (status.get("table") or {}).get("identifier", _NONE),
        by_type.get("Fresh", {}).get("status", _NONE),
        duration(reports.age(ingestion.get("lastCommitTime"), now)),
        str(letters) if letters is not None else _NONE,
        duration(reports.age(metadata.get("creationTimestamp"), now)),
    )


def table_lines(found: Sequence[tuple[str, ...]]) -> list[Line]:
    """Return the rows as aligned columns with a heading."""
    widths = [max(len(row[column]) for row in (COLUMNS, *found)) for column in range(len(COLUMNS))]

    def aligned(row: Sequence[str]) -> str:
        return "   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()

    body = [Line(aligned(row), "" if row[2] == "True" else "bad") for row in found]
    return [Line(aligned(COLUMNS), "head"), *body]


# Values


def duration(seconds: int | None) -> str:
    """Return an age as kubectl writes it, such as 90s, 2m30s, 3h5m or 2d4h; a dash if it is not known."""
    if seconds is None:
        return _NONE
    for least, (unit, length), (small, short) in _SCALES:
        if seconds >= least:
            rest = seconds % length // short if short else 0
            return f"{seconds // length}{unit}{rest}{small}" if rest else f"{seconds // length}{unit}"
    return f"{seconds}s"


def size(count: int) -> str:
    """Return a number of bytes with a binary unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def now() -> datetime:
    """Return the time of this machine in UTC."""
    return datetime.now(UTC)
