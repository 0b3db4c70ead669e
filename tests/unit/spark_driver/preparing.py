"""Preparations of topics without Kafka and without tables."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.schemas.other_clients import Followed
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds import preparation
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.tables import dead_letters
from firn_spark.tables.commits import Landed


def preparing(monkeypatch: pytest.MonkeyPatch, end: int = 0, landed: Landed | None = None) -> Preparation:
    """Return preparations of the topic ``orders``, whose log ends at ``end`` and whose table has ``landed``."""
    monkeypatch.setattr(preparation, "read_landed", lambda *_: landed)
    monkeypatch.setattr(dead_letters, "load", lambda *_: None)
    metadata = SimpleNamespace(currentSchemaId=lambda: 1, defaultSpecId=lambda: 1, defaultSortOrderId=lambda: 1)
    table = SimpleNamespace(
        uuid=lambda: "uuid", currentSnapshot=lambda: None, location=lambda: "s3://lake", properties=lambda: {"firn.kafka-cluster": "kafka-1"},
        schema=lambda: SimpleNamespace(schemaId=lambda: 1), operations=lambda: SimpleNamespace(current=lambda: metadata),
    )  # fmt: skip
    tables = SimpleNamespace(
        ensure=lambda *_: table, spec=lambda _: None, following=lambda _: (), followed=lambda *_: Followed()
    )
    kafka = SimpleNamespace(ends=lambda topics: {"orders": {0: end}})
    nothing: Any = None
    return Preparation(nothing, cast(Any, tables), cast(Any, lambda _: kafka), nothing, Failpoints())
