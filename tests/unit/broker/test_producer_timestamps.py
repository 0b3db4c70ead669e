"""Timestamps of producers: a topic's configs and the broker's clock decide which are valid."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.fakes.virtual_time import run
from tests.gen import NOW
from tests.unit.broker.batches import raw
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import broker, create

NOW_MS = int(NOW.timestamp() * 1000)
HOUR = 3_600_000
WRONG, RIGHT = ErrorCode.invalid_timestamp, ErrorCode.none


@pytest.mark.parametrize(
    ("configs", "time", "expected"),
    [
        ({}, NOW_MS * 1000, WRONG),
        ({}, NOW_MS + 2 * HOUR, WRONG),
        ({}, NOW_MS + HOUR // 2, RIGHT),
        ({}, 1000, RIGHT),
        ({}, -1, RIGHT),
        ({"message_timestamp_after_max_ms": str(3 * HOUR)}, NOW_MS + 2 * HOUR, RIGHT),
        ({"message_timestamp_before_max_ms": str(HOUR)}, NOW_MS - 2 * HOUR, WRONG),
        ({"message_timestamp_before_max_ms": str(HOUR)}, NOW_MS - HOUR // 2, RIGHT),
        ({"message_timestamp_type": "LogAppendTime"}, NOW_MS * 1000, RIGHT),
    ],
)
def test_a_timestamp_is_accepted_within_the_bounds_of_the_topic(
    configs: dict[str, Any], time: int, expected: ErrorCode
) -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t", **configs)
            assert (await produce(asked, "t", 0, raw(time=time))).error_code is expected
            assert (await produce(asked, "t", 0, raw())).error_code is (
                WRONG if "message_timestamp_before_max_ms" in configs else RIGHT
            )

    run(story())
