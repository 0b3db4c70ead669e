"""The driver gives its tasks the places of records only if brokers name all of them. Otherwise the tasks fetch."""

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from firn.driver_requests.batch_ranges import MAX_ANSWER_BYTES, PATH, Answer, FoundRanges, Question, StoredRange
from firn.model.jobs import DirectReads
from firn_broker.internal.gates import SharedToken
from firn_broker.internal.listener import InternalListener
from firn_broker.log.writer import Append
from firn_spark.kafka.diskless import direct_reads
from firn_spark.kafka.diskless.direct_reads import DirectReader
from firn_spark.worker.fetching.slices import ObjectRange, Slice
from tests.servers.process import free_port
from tests.unit.broker.batches import batch
from tests.unit.broker.rig import FIRST, SECOND, TOPIC, move_to_table, rig

TOPIC_ID = base64.urlsafe_b64encode(TOPIC.bytes).decode().rstrip("=")
IDS = {"orders": TOPIC_ID}
Reply = Callable[[Question], Answer | bytes | int]


class Brokers:
    """A listener that answers questions with ``replies``, the last one again and again."""

    def __init__(self, replies: Sequence[Reply]) -> None:
        self.questions: list[Question] = []
        self.tokens: list[str] = []
        outer, script = self, list(replies)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == PATH
                outer.tokens.append(self.headers["Authorization"])
                question = Question.model_validate_json(self.rfile.read(int(self.headers["Content-Length"])))
                outer.questions.append(question)
                reply = (script.pop(0) if len(script) > 1 else script[0])(question)
                body = reply.model_dump_json().encode() if isinstance(reply, Answer) else reply
                self.send_response(reply if isinstance(reply, int) else 200)
                self.end_headers()
                self.wfile.write(b"no" if isinstance(body, int) else body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def start() -> Iterator[Callable[..., Brokers]]:
    started: list[Brokers] = []

    def start(*replies: Reply) -> Brokers:
        started.append(Brokers(replies))
        return started[-1]

    yield start
    for brokers in started:
        brokers.close()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("secret\n")
    return file


def reader(address: str, token: Path, **more: Any) -> DirectReader:
    return DirectReader("waves", DirectReads(address=address, token_path=str(token), url="s3://b/p", **more))


def ranges(*bounds: tuple[int, int], error: str = "") -> FoundRanges:
    return FoundRanges(error, tuple(StoredRange(0, 10 * base, 10, base, last, -1) for base, last in bounds))


def answer(*partitions: FoundRanges) -> Reply:
    return lambda _: Answer(objects=("wal/00/a",), partitions=partitions)


def located(*bounds: tuple[int, int]) -> tuple[ObjectRange, ...]:
    return tuple(ObjectRange("wal/00/a", 10 * base, 10, base, last, -1) for base, last in bounds)


def test_slices_get_the_ranges_with_their_offsets(start: Callable[..., Brokers], token: Path) -> None:
    brokers = start(answer(ranges((0, 4), (5, 5), (6, 9))))
    groups = [[Slice("orders", 0, 2, 6)], [Slice("orders", 0, 6, 9)]]
    found = reader(brokers.address, token).locate(groups, IDS)
    assert [part.ranges for group in found for part in group] == [located((0, 4), (5, 5)), located((6, 9))]
    assert brokers.questions == [Question(partitions=((TOPIC, 0, 2, 9),))]
    assert brokers.tokens == ["Bearer secret"]


def test_the_driver_asks_until_all_offsets_are_there(start: Callable[..., Brokers], token: Path) -> None:
    brokers = start(answer(ranges((0, 4)), ranges((0, 9))), answer(ranges((5, 7))), answer(ranges((8, 9))))
    groups = [[Slice("orders", 0, 0, 10), Slice("orders", 1, 0, 10)]]
    (found,) = reader(brokers.address, token).locate(groups, IDS)
    assert [part.ranges for part in found] == [located((0, 4), (5, 7), (8, 9)), located((0, 9))]
    assert [[one.start for one in question.partitions] for question in brokers.questions] == [[0, 0], [5], [8]]


INCOMPLETE = {
    "an error": ranges(error="offset_out_of_range"),
    "nothing": ranges(),
    "the end is missing": ranges((0, 4)),
    "the start is missing": ranges((1, 9)),
    "a gap": ranges((0, 3), (5, 9)),
    "an overlap": ranges((0, 5), (2, 4), (6, 9)),
    "backwards": ranges((5, 9), (0, 4)),
}


@pytest.mark.parametrize("name", INCOMPLETE)
def test_a_partition_whose_offsets_are_not_all_there_is_fetched(
    start: Callable[..., Brokers], token: Path, name: str
) -> None:
    brokers = start(answer(INCOMPLETE[name], ranges((0, 9))), answer(ranges()))
    groups = [[Slice("orders", 0, 0, 10), Slice("orders", 1, 0, 10)]]
    (found,) = reader(brokers.address, token).locate(groups, IDS)
    assert [bool(part.ranges) for part in found] == [False, True]


def test_a_range_may_repeat_offsets_of_the_one_before(start: Callable[..., Brokers], token: Path) -> None:
    """Compaction may join ranges between two answers."""
    brokers = start(answer(ranges((0, 4))), answer(ranges((0, 9))))
    ((found,),) = reader(brokers.address, token).locate([[Slice("orders", 0, 0, 10)]], IDS)
    assert found.ranges == located((0, 4), (0, 9))


WRONG: dict[str, Reply] = {
    "refused": lambda _: 401,
    "away": lambda _: 503,
    "no JSON": lambda _: b"<html>",
    "an unknown object": lambda _: b'{"objects": [], "partitions": [["", [[0, 0, 1, 0, 9, -1]]]]}',
    "a negative position": lambda _: b'{"objects": ["a"], "partitions": [["", [[0, -1, 1, 0, 9, -1]]]]}',
    "a large length": lambda _: b'{"objects": ["a"], "partitions": [["", [[0, 0, 9999999999, 0, 9, -1]]]]}',
    "no partition": lambda _: b'{"objects": ["a"], "partitions": []}',
    "very much": lambda _: b" " * (MAX_ANSWER_BYTES + 2),
}


@pytest.mark.parametrize("name", WRONG)
def test_tasks_fetch_after_a_wrong_answer(start: Callable[..., Brokers], token: Path, name: str) -> None:
    brokers = start(WRONG[name])
    groups = [[Slice("orders", 0, 0, 10)]]
    asking = reader(brokers.address, token)
    assert asking.locate(groups, IDS) == groups
    assert asking.locate(groups, IDS) == groups
    assert len(brokers.questions) == 1, "the driver asks again only after a pause"


def test_the_driver_asks_again_after_a_pause(
    start: Callable[..., Brokers], token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_reads, "PAUSE_SECONDS", 0.0)
    brokers = start(lambda _: 503, answer(ranges((0, 9))))
    asking = reader(brokers.address, token)
    groups = [[Slice("orders", 0, 0, 10)]]
    assert asking.locate(groups, IDS) == groups
    assert asking.locate(groups, IDS)[0][0].ranges


def test_tasks_fetch_for_ever_longer_pauses_while_the_bucket_cannot_be_read(
    start: Callable[..., Brokers], token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(direct_reads, "time", SimpleNamespace(monotonic=lambda: now))
    asking = reader(start(answer(ranges((0, 9)))).address, token)

    def reads() -> bool:
        return bool(asking.locate([[Slice("orders", 0, 0, 10)]], IDS)[0][0].ranges)

    for pause in (30, 60, 120, 240, 480, 600, 600):
        assert reads()
        asking.note(usable=False)
        now += pause - 1
        assert not reads()
        now += 2
    asking.note(usable=True)
    assert reads()
    asking.note(usable=False)
    now += 31
    assert reads()


def test_tasks_fetch_while_no_broker_listens(token: Path) -> None:
    groups = [[Slice("orders", 0, 0, 10)]]
    assert reader(f"http://127.0.0.1:{free_port()}", token).locate(groups, IDS) == groups


def test_tasks_fetch_while_the_token_is_missing(start: Callable[..., Brokers], token: Path) -> None:
    brokers = start(answer(ranges((0, 9))))
    token.unlink()
    groups = [[Slice("orders", 0, 0, 10)]]
    assert reader(brokers.address, token).locate(groups, IDS) == groups
    assert not brokers.questions


def test_ranges_of_a_round_are_limited(
    start: Callable[..., Brokers], token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_reads, "ROUND_RANGES", 2)
    brokers = start(
        lambda question: Answer(
            objects=("wal/00/a",), partitions=tuple(ranges((one.start, one.start)) for one in question.partitions)
        )
    )
    groups = [[Slice("orders", 0, 0, 10), Slice("orders", 1, 0, 1)]]
    (found,) = reader(brokers.address, token).locate(groups, IDS)
    assert [bool(part.ranges) for part in found] == [False, True]
    assert len(brokers.questions) == 1


def test_credentials_are_read_for_each_round(token: Path, tmp_path: Path) -> None:
    secret = tmp_path / "key"
    asking = reader("http://127.0.0.1:1", token, properties={"aws_region": "r"}, secret_properties={"key": str(secret)})
    assert asking.bucket() is None
    for value in ("old", "new"):
        secret.write_text(value)
        bucket = asking.bucket()
        assert bucket is not None
        assert bucket.options == {"aws_region": "r", "key": value}
        assert value not in repr(bucket)


async def test_brokers_serve_the_slices_of_a_partition_that_they_rebuild(token: Path) -> None:
    async with rig() as made:
        for _ in range(4):
            await made.writer.append([Append(place, batch(2), False) for place in (FIRST, SECOND)])
        await move_to_table(made, 2, 3)
        server = await InternalListener(made.store.log, SharedToken(token), lambda landed: None).bind("127.0.0.1", 0)
        await server.start_serving()
        asking = reader(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", token)
        groups = [[Slice("orders", 0, 0, 2), Slice("orders", 1, 0, 8)], [Slice("orders", 0, 2, 8)]]
        found = await asyncio.to_thread(asking.locate, groups, IDS)
        beyond = await asyncio.to_thread(asking.locate, [[Slice("orders", 0, 4, 8)]], IDS)
        server.close()
    assert [[one.base for one in part.ranges] for group in found for part in group] == [[0], [0, 2, 4, 6], []]
    assert [part.rebuilt for group in found for part in group] == [False, False, True]
    assert [one.base for one in beyond[0][0].ranges] == [4, 6]


async def test_driver_and_broker_understand_each_other(token: Path) -> None:
    async with rig() as made:
        for _ in range(3):
            await made.writer.append([Append(place, batch(2), False) for place in (FIRST, SECOND)])
        server = await InternalListener(made.store.log, SharedToken(token), lambda landed: None).bind("127.0.0.1", 0)
        await server.start_serving()
        asking = reader(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", token)
        groups = [[Slice("orders", 0, 1, 5), Slice("orders", 1, 0, 6)], [Slice("orders", 0, 5, 6)]]
        found = await asyncio.to_thread(asking.locate, groups, IDS)
        again = {"orders": base64.urlsafe_b64encode(UUID(int=77).bytes).decode().rstrip("=")}
        recreated = await asyncio.to_thread(asking.locate, groups, again)
        server.close()
    assert [[one.base for one in part.ranges] for group in found for part in group] == [[0, 2, 4], [0, 2, 4], [4]]
    assert {one.key for group in found for part in group for one in part.ranges} == set(made.objects.objects)
    assert recreated == groups
