"""``firn audit``: proves that every record of a topic is in its table or its dead letters, exactly once.

What the brokers still have (read committed, from the log start to the landed offsets) is compared with the offsets in the rows. Older
rows can only be checked against each other: their log is gone.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import duckdb
import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from pyiceberg.table import Table

from firn.model import names, rows
from firn.model.config import Config
from firn.model.errors import InvalidSpecError, UnavailableError
from firn.model.progress import Offsets, decode_offsets
from firn_controllers.ingestion_group import settings
from firn_operator import kafka
from firn_operator.lake import Lake, scan

_READ_TIMEOUT = 30.0
_OFFSETS = pa.schema([("partition", pa.int32()), ("offset", pa.int64())])
_CHUNK = 50_000


@dataclass(frozen=True, slots=True)
class PartitionAudit:
    """One partition. ``missing``, ``doubled`` and ``stray`` (rows of offsets that the log does not have) are 0 where all is well."""

    partition: int
    log_start: int
    landed: int
    records: int
    rows: int
    dead_letters: int
    missing: int
    doubled: int
    stray: int
    example: int | None

    @property
    def exact(self) -> bool:
        """True when nothing is missing, doubled or stray."""
        return not (self.missing or self.doubled or self.stray)


def landed_offsets(table: Table) -> Offsets:
    """Next offsets to land, as the newest ingestion commit of the table's history says, else its properties."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if names.SUMMARY_OFFSETS in summary:
            return decode_offsets(summary[names.SUMMARY_OFFSETS])
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    text = table.properties.get(names.SUMMARY_OFFSETS)
    return decode_offsets(text) if text is not None else {}


def row_offsets(table: Table | None) -> Iterator[pa.Table]:
    """(partition, offset) of every row, as a stream."""
    if table is None:
        return
    flat = f"{rows.METADATA_COLUMN}_partition" in {field.name for field in table.schema().fields}
    wanted = [f"{rows.METADATA_COLUMN}_partition", f"{rows.METADATA_COLUMN}_offset"] if flat else [rows.METADATA_COLUMN]
    for batch in scan(table, wanted):
        if flat:
            columns = [batch.column(0), batch.column(1)]
        else:
            struct = batch.column(0)
            columns = [struct.field("partition"), struct.field("offset")]
        yield pa.Table.from_arrays(
            [column.cast(kind) for column, kind in zip(columns, _OFFSETS.types, strict=True)], schema=_OFFSETS
        )


def log_offsets(
    settings: Mapping[str, Any], topic: str, landed: Offsets, tell: Callable[[str], None]
) -> tuple[Offsets, Iterator[pa.Table]]:
    """The log start offsets, and (partition, offset) of every committed record below ``landed``. Raises UnavailableError."""
    consumer = Consumer(
        {
            **settings,
            "group.id": "firn-audit",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.max.bytes": 8 * 2**20,
            "queued.max.messages.kbytes": 16 * 1024,
        }
    )
    try:
        starts = {
            partition: consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_READ_TIMEOUT)[0]
            for partition in landed
        }
    except KafkaException as error:
        consumer.close()
        raise UnavailableError(f"topic {topic}: the brokers do not answer: {error}") from error
    return starts, _read(consumer, topic, starts, landed, tell)


def _read(
    consumer: Consumer, topic: str, starts: Offsets, landed: Offsets, tell: Callable[[str], None]
) -> Iterator[pa.Table]:
    open_ = {partition for partition in landed if starts[partition] < landed[partition]}
    seen = 0
    partitions: list[int] = []
    offsets: list[int] = []
    try:
        if open_:
            consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in sorted(open_)])
        while open_:
            messages = consumer.consume(10_000, timeout=1.0)
            for message in messages:
                partition, offset, error = cast(int, message.partition()), cast(int, message.offset()), message.error()
                if error is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise UnavailableError(f"topic {topic}: {error}")
                    # The end, also where the last offsets are gaps (compaction, aborted transactions) that no message tells.
                    open_.discard(partition)
                elif offset >= landed[partition] - 1:
                    open_.discard(partition)
                if error is None and offset < landed[partition]:
                    partitions.append(partition)
                    offsets.append(offset)
            if len(offsets) >= _CHUNK or (not open_ and offsets):
                seen += len(offsets)
                tell(f"{seen:,} records of the log read")
                yield pa.table({"partition": pa.array(partitions, pa.int32()), "offset": pa.array(offsets, pa.int64())})
                partitions, offsets = [], []
    finally:
        consumer.close()


def compare(
    landed: Offsets,
    starts: Offsets,
    log: Iterator[pa.Table],
    good: Iterator[pa.Table],
    dead: Iterator[pa.Table],
    from_earliest: bool = True,
) -> list[PartitionAudit]:
    """Every partition's audit. ``from_earliest`` is False where ingestion began later than the log: what is before its first row is not missing."""
    connection = duckdb.connect(config={"memory_limit": "256MB"})
    try:
        for name, batches in (("log", log), ("good", good), ("dead", dead)):
            connection.execute(f'CREATE TABLE {name} (partition INTEGER, "offset" BIGINT)')
            for batch in batches:
                connection.register("batch", batch)
                connection.execute(f"INSERT INTO {name} SELECT * FROM batch")
                connection.unregister("batch")
        bounds = pa.table(
            {
                "partition": pa.array(list(landed), pa.int32()),
                "start": pa.array([starts.get(partition, 0) for partition in landed], pa.int64()),
                "landed": pa.array([landed[partition] for partition in landed], pa.int64()),
            }
        )
        connection.register("bounds", bounds)
        found = connection.execute(_COMPARE, {"from_earliest": from_earliest}).fetchall()
    finally:
        connection.close()
    return [PartitionAudit(*row) for row in found]


_COMPARE = """
WITH landed_rows AS (SELECT partition, "offset", count(*) AS times FROM (FROM good UNION ALL FROM dead) GROUP BY ALL),
firsts AS (SELECT partition, min("offset") AS first FROM landed_rows GROUP BY ALL),
missing AS (
  SELECT l.partition, count(*) AS n, min(l."offset") AS example FROM log l JOIN bounds b USING (partition) LEFT JOIN firsts f USING (partition)
  ANTI JOIN landed_rows r ON r.partition = l.partition AND r."offset" = l."offset"
  WHERE l."offset" >= b.start AND l."offset" < b.landed AND ($from_earliest OR l."offset" >= f.first) GROUP BY ALL),
doubled AS (SELECT partition, count(*) AS n, min("offset") AS example FROM landed_rows WHERE times > 1 GROUP BY ALL),
stray AS (
  SELECT r.partition, count(*) AS n, min(r."offset") AS example FROM landed_rows r JOIN bounds b USING (partition)
  ANTI JOIN log l ON l.partition = r.partition AND l."offset" = r."offset"
  WHERE r."offset" >= b.start GROUP BY ALL)
SELECT b.partition, b.start, b.landed,
  (SELECT count(*) FROM log l WHERE l.partition = b.partition), (SELECT count(*) FROM good g WHERE g.partition = b.partition),
  (SELECT count(*) FROM dead d WHERE d.partition = b.partition), coalesce(m.n, 0), coalesce(d.n, 0), coalesce(s.n, 0),
  coalesce(m.example, d.example, s.example)
FROM bounds b LEFT JOIN missing m USING (partition) LEFT JOIN doubled d USING (partition) LEFT JOIN stray s USING (partition)
ORDER BY ALL
"""


def resource_of(manifest: Mapping[str, Any]) -> tuple[str, str, str, str | None, bool]:
    """Profile, Kafka topic, table identifier, dead-letter identifier and whether ingestion began at the log's start, of a live IcebergTopic.
    Raises InvalidSpecError where its status does not name them yet."""
    status = manifest.get("status") or {}
    table = status.get("table") or {}
    if not table.get("identifier") or not status.get("topicName"):
        name = f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}"
        raise InvalidSpecError(f"icebergtopic {name} has no topic and table yet: see its conditions")
    start = ((manifest.get("spec") or {}).get("ingestion") or {}).get("startFrom", "Earliest")
    return status["profile"], status["topicName"], table["identifier"], table.get("deadLetters"), start == "Earliest"


def of_resource(config: Config, manifest: Mapping[str, Any], tell: Callable[[str], None]) -> list[PartitionAudit]:
    """The audit of a live IcebergTopic. Raises InvalidSpecError, UnavailableError."""
    profile, topic, identifier, dead_letters, from_earliest = resource_of(manifest)
    lake = Lake(config)
    table = lake.find(identifier)
    landed = landed_offsets(table)
    connection = settings.kafka(profile, config.profiles[profile], config.namespace)
    starts, log = log_offsets(kafka.client_settings(connection), topic, landed, tell)
    dead = lake.find(dead_letters) if dead_letters else None
    return compare(landed, starts, log, row_offsets(table), row_offsets(dead), from_earliest)


def as_json(audits: list[PartitionAudit]) -> str:
    """The audit for programs."""
    return json.dumps(
        {
            "exact": all(audit.exact for audit in audits),
            "partitions": [{field: getattr(audit, field) for field in PartitionAudit.__slots__} for audit in audits],
        }
    )
