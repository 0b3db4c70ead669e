"""Results of a round's tasks, as `firn_spark.worker.landing` makes them."""

import json
from typing import Any

from firn_spark.ingestion.rounds.landing_job import TopicResult
from firn_spark.worker.fetching.slices import Ranges

PARTITION, OFFSET = 1, 2
SCHEMA = json.dumps(
    {
        "fields": [
            {"id": 9, "name": "id", "type": "long"},
            {
                "id": 3,
                "name": "_kafka",
                "type": {"fields": [{"id": PARTITION, "name": "partition"}, {"id": OFFSET, "name": "offset"}]},
            },
        ]
    }
)


def descriptor(records: int, partition: tuple[int, int] = (0, 0), offset: tuple[int, int] = (0, 0)) -> str:
    """Return the descriptor of a data file with these lowest and highest values."""

    def bounds(side: int) -> dict[str, Any]:
        values = [partition[side].to_bytes(4, "little").hex(), offset[side].to_bytes(8, "little").hex()]
        return {"keys": [PARTITION, OFFSET], "values": values}

    file = {"file-path": "file:///a.parquet", "record-count": records}
    return json.dumps(file | {"lower-bounds": bounds(0), "upper-bounds": bounds(1)})


def landed(ranges: Ranges) -> TopicResult:
    """Return the result of a round in which every offset of ``ranges`` became a row."""
    sizes = {part: end - start for part, (start, end) in ranges.items()}
    return TopicResult(
        data=[descriptor(sizes[part], (part, part), (start, end - 1)) for part, (start, end) in ranges.items()],
        rows=sum(sizes.values()),
        records=sum(sizes.values()),
        partitions={part: (sizes[part], start, end - 1) for part, (start, end) in ranges.items()},
    )
