"""The demo trusts only the table: it waits until the acknowledged records have landed."""

import io
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from urllib3 import HTTPSConnectionPool
from urllib3.exceptions import ReadTimeoutError

from hack import produce_flights, quickstart
from hack.quickstart import Produced


class Message:
    """An acknowledged record."""

    def __init__(self, partition: int, offset: int) -> None:
        self._place = partition, offset

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]


class Producer:
    """Brokers with two partitions that hold records already. They reply after a delay."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._next = {0: 40, 1: 7}
        self._waiting: list[Callable[[], None]] = []

    def produce(self, topic: str, value: str, key: str, on_delivery: Callable[[None, Message], None]) -> None:
        part = len(key) % 2
        message = Message(part, self._next[part])
        self._next[part] += 1
        self._waiting.append(lambda: on_delivery(None, message))

    def flush(self, timeout: float) -> None:
        while self._waiting:
            self._waiting.pop()()

    def __len__(self) -> int:
        return len(self._waiting)


def test_a_producer_reports_its_end_offsets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("flights.csv", "carrier,flight\nUA,1\nB,2\nUA,3\n")
    archive.seek(0)
    monkeypatch.setattr(produce_flights, "Producer", Producer)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(archive))
    assert produce_flights.main("kafka:9092", "flights", 10) == 0
    assert Produced.parse(capsys.readouterr().out.splitlines()[-1]) == Produced(3, {0: 42, 1: 8})


def audit(**landed: int) -> dict[str, Any]:
    parts = [{"partition": int(name.removeprefix("p")), "landed": end, "exact": True} for name, end in landed.items()]
    return {"exact": True, "notes": [], "partitions": parts}


@pytest.mark.parametrize(
    ("landed", "outstanding"),
    [
        pytest.param(audit(p0=42, p1=8), 0, id="all records"),
        pytest.param(audit(p0=50, p1=8, p2=3), 0, id="all records, and those of other producers"),
        pytest.param(audit(p0=42, p1=7), 1, id="all records but one"),
        pytest.param(audit(p0=60), 8, id="a partition without landed records"),
        pytest.param(audit(), 50, id="a table without a commit, in which an audit finds no problem"),
    ],
)
def test_all_records_have_landed_at_the_acknowledged_offsets(landed: dict[str, Any], outstanding: int) -> None:
    assert Produced(3, {0: 42, 1: 8}).outstanding(landed) == outstanding


def test_progress_is_none_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(path: str) -> tuple[int, bytes]:
        raise ReadTimeoutError(HTTPSConnectionPool("api"), path, "timed out")

    monkeypatch.setattr(quickstart, "read", silent)
    assert quickstart.progress() is None
    monkeypatch.setattr(quickstart, "read", lambda path: (503, b"no endpoints available"))
    assert quickstart.progress() is None
