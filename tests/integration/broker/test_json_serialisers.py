"""Records of seven serialisers of JSON come back from the columns of a table, byte for byte."""

import json
import shutil

import pytest

from firn_broker.history.shapes.choosing import Chooser
from tests.integration.broker.serialisers import WRITERS, records
from tests.unit.broker.typed_rows import Typed

ORDERS = Typed(
    {
        "id": "long",
        "name": "string",
        "price": "double",
        "ratio": "float",
        "ok": "boolean",
        "at": "timestamptz",
        "day": "date",
        "tags": "list<string>",
        "place": "struct<city: string, zip: int>",
        "note": "string",
        "labels": "map<string, string>",
    }
)
COUNT = 5_000
LEAST_SHARE = 0.99


@pytest.mark.parametrize("name", list(WRITERS))
def test_records_of_a_serialiser_come_back(name: str) -> None:
    if name == "rust" and shutil.which("cargo") is None:
        pytest.skip("cargo is not installed")
    texts = WRITERS[name](records(1, COUNT))
    assert len(texts) == COUNT
    assert [json.loads(text)["id"] for text in texts] == [record["id"] for record in records(1, COUNT)]
    chooser = Chooser(ORDERS.names)
    left = ORDERS.unshaped(texts, chooser)
    assert len(left) <= (1 - LEAST_SHARE) * COUNT, left[:3]
    chooser.order(chooser.numbers(*ORDERS.compared(texts)))
    assert len(chooser.shapes) <= 2
