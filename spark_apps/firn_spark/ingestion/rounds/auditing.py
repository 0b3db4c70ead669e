"""The audit of a round before its commit: records, rows and files have to agree with the offsets that the round passes.

It uses only what the tasks report: counts, and the bounds of the columns of partition and offset in the data files.
Offsets without a record are no disagreement, because markers of transactions, aborted records and compaction leave
them. Only the full audit can compare them with the log (`firn_spark.maintenance.steps.audit`).
"""

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from firn.tables.rows import METADATA_COLUMN
from firn_spark.ingestion.rounds.landing_job import TopicResult
from firn_spark.worker.fetching.slices import Ranges

Passed = Mapping[int, tuple[int, int]]
"""Partition -> (first offset of the round, next offset after it). A halt shortens the range that was read."""


def disagreement(ranges: Ranges, passed: Passed, result: TopicResult, schema: str, dead_schema: str) -> str:
    """Return why the files of a round must not be committed; empty if they agree with its offsets.

    ``ranges`` were read, ``passed`` lands. The schemas are Iceberg's JSON, empty for a table without files.
    """
    return (
        _of_records(ranges, result)
        or _of_counts(passed, result)
        or next(_of_files(result.data, result.rows, passed, schema), "")
        or next(_of_files(result.dead, result.dead_rows, passed, dead_schema), "")
    )


def empty_offsets(passed: Passed, result: TopicResult) -> int:
    """Return the number of offsets that pass without a record."""
    return sum(end - start for start, end in passed.values()) - _landed(result)


def _landed(result: TopicResult) -> int:
    left_out = result.skipped + result.excluded + result.unrouted + sum(result.filtered.values())
    return result.rows + result.dead_rows + left_out


def _of_records(ranges: Ranges, result: TopicResult) -> str:
    for partition, (count, first, last) in sorted(result.partitions.items()):
        start, end = ranges.get(partition, (0, 0))
        if not start <= first <= last < end:
            return f"partition {partition}: records at offsets {first} to {last} are outside of the range {start} to {end - 1}"
        if count > end - start:
            return f"partition {partition}: the tasks read {count} records of {end - start} offsets from {start} on"
    return ""


def _of_counts(passed: Passed, result: TopicResult) -> str:
    landed, offsets = _landed(result), sum(end - start for start, end in passed.values())
    if landed > offsets:
        return f"{landed} records would land for {offsets} offsets"
    # The tasks read on beyond a halt, and drop what they read there.
    if landed != result.records and not result.halts:
        return f"the tasks read {result.records} records, of which {landed} would land"
    return ""


def _of_files(descriptors: Sequence[str], rows: int, passed: Passed, schema: str) -> Iterator[str]:
    """Yield what is wrong with the files that hold ``rows`` rows together."""
    files: list[dict[str, Any]] = [json.loads(descriptor) for descriptor in descriptors]
    counted = sum(file["record-count"] for file in files)
    if counted != rows:
        yield f"the files have {counted} rows, and the tasks made {rows}"
    columns = _columns(schema) if schema else None
    for file in files if columns is not None else ():
        partitions, offsets = (_bounds(file, column) for column in columns or ())
        if partitions is None or offsets is None:
            continue  # the table keeps no bounds of these columns
        inside = [passed[part] for part in passed if partitions[0] <= part <= partitions[1]]
        low, high = min((start for start, _ in inside), default=0), max((end for _, end in inside), default=0)
        where = f"file {file['file-path']}"
        if not low <= offsets[0] <= offsets[1] < high:
            yield f"{where} has offsets {offsets[0]} to {offsets[1]}, outside of the range {low} to {high - 1}"
        if partitions[0] == partitions[1] and file["record-count"] > offsets[1] - offsets[0] + 1:
            yield f"{where} has {file['record-count']} rows with offsets {offsets[0]} to {offsets[1]}"


@functools.lru_cache(256)
def _columns(schema: str) -> tuple[int, int] | None:
    """Return the ids of the columns of partition and offset; None if the table lacks them."""
    found: dict[str, int] = {}
    for column in json.loads(schema)["fields"]:
        name, kind = column["name"], column["type"]
        if name == METADATA_COLUMN and isinstance(kind, dict):
            found |= {member["name"]: member["id"] for member in kind["fields"]}
        elif name.startswith(f"{METADATA_COLUMN}_"):
            found[name.removeprefix(f"{METADATA_COLUMN}_")] = column["id"]
    return (found["partition"], found["offset"]) if found.keys() >= {"partition", "offset"} else None


def _bounds(file: Mapping[str, Any], column: int) -> tuple[int, int] | None:
    """Return the lowest and the highest value of a column, if the file's descriptor has them."""
    bounds = []
    for side in ("lower-bounds", "upper-bounds"):
        values = file.get(side) or {"keys": [], "values": []}
        if column not in values["keys"]:
            return None
        text = values["values"][values["keys"].index(column)]
        bounds.append(int.from_bytes(bytes.fromhex(text), "little", signed=True))
    return bounds[0], bounds[1]
