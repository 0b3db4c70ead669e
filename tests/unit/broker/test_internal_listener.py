"""The internal listener says where batches are, to clients that have its token, within its limits."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from firn.driver_requests import batch_ranges
from firn.driver_requests.batch_ranges import IN_TABLE, MAX_PARTITIONS, PATH, Answer, Question, WantedRange
from firn.driver_requests.landed_offsets import (
    LANDED_PATH,
    MAX_FILES,
    UNINDEXED_PATH,
    Asked,
    DataFile,
    FirstOffset,
    FirstOffsets,
    Landed,
    LandedAnswer,
    LandedRange,
    RecordFields,
    Refusal,
    Unindexed,
)  # fmt: skip
from firn.model.errors import UnavailableError
from firn_broker.access_types import Caller, Operation
from firn_broker.internal import listener, ranges
from firn_broker.internal.gates import SharedToken
from firn_broker.internal.listener import InternalListener
from firn_broker.internal.ranges import find_ranges
from firn_broker.log.writer import Append
from firn_broker.log_types import BatchRange, Lookup, LookupResult, WalRange
from firn_broker.ports import LogStore
from tests.unit.broker.batches import batch
from tests.unit.broker.rig import FIRST, SECOND, TOPIC, Rig, move_to_table, rig

TOKEN = "a-long-token"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return file


@asynccontextmanager
async def serving(
    log_store: LogStore, token_file: Path, add: Callable[[Landed], Refusal | None] = lambda landed: Refusal.COPY,
    gate: type[SharedToken] = SharedToken,
) -> AsyncIterator[int]:  # fmt: skip
    """Serve on a free port."""
    server = await InternalListener(log_store, gate(token_file), add).bind("127.0.0.1", 0)
    await server.start_serving()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def post(
    port: int, body: bytes, token: str | None = TOKEN, path: str = PATH, length: str | None = None
) -> tuple[int, bytes]:
    """Return status and body of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"POST {path} HTTP/1.1", "Host: broker", f"Content-Length: {len(body) if length is None else length}"]
    lines += [] if token is None else [f"Authorization: Bearer {token}"]
    writer.write("\r\n".join([*lines, "", ""]).encode() + body)
    answer = await reader.read()
    writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), rest


def question(*wanted: WantedRange) -> bytes:
    return Question(partitions=wanted).model_dump_json().encode()


FIRST_OFFSETS = WantedRange(TOPIC, 0, 0, 1_000)


async def fill(made: Rig, objects: int) -> None:
    """Write objects with two records for each of both partitions."""
    for _ in range(objects):
        await made.writer.append([Append(partition, batch(2), False) for partition in (FIRST, SECOND)])


async def test_an_answer_has_the_places_that_a_fetch_would_read(token_file: Path) -> None:
    async with rig() as made, serving(made.store.log, token_file) as port:
        await fill(made, 3)
        status, body = await post(port, question(FIRST_OFFSETS, WantedRange(TOPIC, 1, 3, 5)))
        assert status == 200
        answer = Answer.model_validate_json(body)
        first, second = ([one.base_offset for one in part.ranges] for part in answer.partitions)
        assert first == [0, 2, 4]
        assert second == [2, 4]
        assert set(answer.objects) == set(made.objects.objects)
        for key, stored in answer.keys_and_ranges(0):
            data = made.objects.objects[key][stored.position : stored.position + stored.length]
            assert data == bytes(batch(2).data)


WRONG_TOKENS = {"none": None, "another": "a-long-tokem", "a part": TOKEN[:-1], "empty": "", "not ASCII": "\xe9"}


@pytest.mark.parametrize("token", WRONG_TOKENS)
async def test_a_wrong_token_gets_nothing(token_file: Path, token: str) -> None:
    async with rig() as made, serving(made.store.log, token_file) as port:
        assert await post(port, b"", WRONG_TOKENS[token]) == (401, b"wrong token\n")


async def test_a_new_token_holds_from_the_next_request_on(token_file: Path) -> None:
    async with rig() as made, serving(made.store.log, token_file) as port:
        token_file.write_text("another")
        assert (await post(port, question()))[0] == 401
        assert (await post(port, question(), "another"))[0] == 200


@pytest.mark.parametrize("content", [None, "", "\n"])
async def test_without_a_token_the_listener_serves_no_client(token_file: Path, content: str | None) -> None:
    token_file.unlink()
    if content is not None:
        token_file.write_text(content)
    async with rig() as made, serving(made.store.log, token_file) as port:
        for given in (TOKEN, "", None):
            status, body = await post(port, question(), given)
            assert (status, b"has no token" in body) == (503, True)


MALFORMED: dict[str, tuple[int, dict[str, Any]]] = {
    "no JSON": (400, {"body": b"{"}),
    "no partitions": (400, {"body": b"{}"}),
    "a negative offset": (400, {"body": json.dumps({"partitions": [[str(TOPIC), 0, -1, 1]]}).encode()}),
    "a large offset": (400, {"body": json.dumps({"partitions": [[str(TOPIC), 0, 0, 1 << 63]]}).encode()}),
    "a name in place of an id": (400, {"body": json.dumps({"partitions": [["orders", 0, 0, 1]]}).encode()}),
    "too many partitions": (
        400,
        {"body": json.dumps({"partitions": [[str(TOPIC), 0, 0, 1]] * (MAX_PARTITIONS + 1)}).encode()},
    ),
    "another path": (404, {"body": b"", "path": "/v2/ranges"}),
    "no length": (400, {"body": b"", "length": ""}),
    "a negative length": (400, {"body": b"", "length": "-1"}),
    "a large length": (413, {"body": b"", "length": str(batch_ranges.MAX_REQUEST_BYTES + 1)}),
    "a very long length": (413, {"body": b"", "length": "9" * 5_000}),
    "long headers": (413, {"body": b"", "path": "/" + "x" * 10_000}),
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_request_is_refused(token_file: Path, name: str) -> None:
    status, request = MALFORMED[name]
    async with rig() as made, serving(made.store.log, token_file) as port:
        assert (await post(port, **request))[0] == status
        assert (await post(port, question()))[0] == 200


async def test_the_largest_question_fits_into_a_request() -> None:
    wanted = WantedRange(UUID(int=(1 << 128) - 1), 2**31 - 1, 1 << 62, 1 << 62)
    assert len(question(*[wanted] * MAX_PARTITIONS)) <= batch_ranges.MAX_REQUEST_BYTES


async def test_a_request_that_does_not_arrive_is_dropped(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "ARRIVAL_SECONDS", 0.05)
    async with rig() as made, serving(made.store.log, token_file) as port:
        assert (await post(port, b"{", length="100"))[0] == 503


async def test_connections_are_limited(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "CONNECTIONS", 1)
    async with rig() as made, serving(made.store.log, token_file) as port:
        _, first = await asyncio.open_connection("127.0.0.1", port)
        reader, second = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        first.close()
        second.close()


async def test_a_silent_coordinator_makes_the_listener_unavailable(token_file: Path) -> None:
    class Broken:
        async def find(self, *_: object) -> None:
            raise UnavailableError("the coordinator is away")

    async with serving(Broken(), token_file) as port:  # type: ignore[arg-type]
        assert await post(port, question(FIRST_OFFSETS)) == (503, b"the coordinator is away\n")


async def test_errors_have_the_names_of_a_fetch() -> None:
    async with rig() as made:
        await fill(made, 1)
        wanted = (
            WantedRange(UUID(int=9), 0, 0, 5), WantedRange(TOPIC, 7, 0, 5), WantedRange(TOPIC, 0, 5, 9),
            WantedRange(TOPIC, 0, 2, 9), WantedRange(TOPIC, 0, 1, 1),
        )  # fmt: skip
        answer = await find_ranges(made.store.log, Question(partitions=wanted))
        assert [part.error for part in answer.partitions] == [
            "unknown_topic_or_partition", "unknown_topic_or_partition", "offset_out_of_range", "", "",
        ]  # fmt: skip
        assert all(not part.ranges for part in answer.partitions)


async def test_offsets_before_the_log_start_are_out_of_range() -> None:
    async with rig() as made:
        await fill(made, 3)
        await made.store.log.advance_start(FIRST, 3)
        before, after = (WantedRange(TOPIC, 0, start, 6) for start in (1, 3))
        answer = await find_ranges(made.store.log, Question(partitions=(before, after)))
        assert [part.error for part in answer.partitions] == ["offset_out_of_range", ""]
        assert [one.base_offset for one in answer.partitions[1].ranges] == [2, 4]


async def test_an_answer_is_limited_and_can_be_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "MAX_RANGES", 4)
    async with rig() as made:
        await fill(made, 5)
        starts, found = {0: 0, 1: 0}, 0
        while starts:
            wanted = [WantedRange(TOPIC, part, start, 10) for part, start in starts.items()]
            answer = await find_ranges(made.store.log, Question(partitions=tuple(wanted)))
            assert 1 <= sum(len(part.ranges) for part in answer.partitions) <= 4 + len(wanted)
            for one, part in zip(wanted, answer.partitions, strict=True):
                assert part.ranges[0].base_offset == one.start
                found += len(part.ranges)
                starts[one.partition] = part.ranges[-1].last_offset + 1
            starts = {part: start for part, start in starts.items() if start < 10}
        assert found == 10


@pytest.mark.parametrize("most", [1, 256])
async def test_an_answer_ends_before_table_ranges(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(ranges, "LOOKUP_RANGES", most)
    async with rig() as made:
        await fill(made, 4)
        await move_to_table(made, 2, 5)
        answer = await find_ranges(
            made.store.log, Question(partitions=tuple(WantedRange(TOPIC, 0, start, 8) for start in (0, 3, 6)))
        )
        assert [part.error for part in answer.partitions] == ["", IN_TABLE, ""]
        assert [[one.base_offset for one in part.ranges] for part in answer.partitions] == [[0], [], [6]]
        assert not any(key.endswith(".history") for key in answer.objects)


async def test_many_ranges_take_few_lookups() -> None:
    asked: list[int] = []

    class Log:
        async def find(self, lookups: list[Lookup], most: int) -> list[LookupResult]:
            asked.append(most)
            return [
                LookupResult(
                    ErrorCode.none, 0, 10_000,
                    [BatchRange(at, at, WalRange("a", 0, 1), 0, -1) for at in range(one.offset, one.offset + most)],
                )
                for one in lookups
            ]  # fmt: skip

    wanted = tuple(WantedRange(TOPIC, part, 0, 1_000) for part in range(3))
    answer = await find_ranges(Log(), Question(partitions=wanted))  # type: ignore[arg-type]
    assert [len(part.ranges) for part in answer.partitions] == [1_000] * 3
    assert len(asked) == 4


async def test_a_driver_learns_which_offsets_no_indexing_has_read(token_file: Path) -> None:
    async with rig() as made, serving(made.store.log, token_file) as port:
        await fill(made, 3)
        await move_to_table(made, 0, 3)
        asked = Unindexed(topics=(Asked(TOPIC, 8, (8,)), Asked(UUID(int=99), 1, ()))).model_dump_json().encode()
        status, body = await post(port, asked, path=UNINDEXED_PATH)
        assert status == 200
        found = FirstOffsets.model_validate_json(body)
        assert found.topics == (FirstOffset("", {0: 4, 1: 0}, {0: 0}, {0: 0}), FirstOffset("", {}, {}, {}))


async def test_named_offsets_wait_for_their_indexing(token_file: Path) -> None:
    added: list[Landed] = []

    def add(landed: Landed) -> Refusal | None:
        added.append(landed)
        return None if len(added) == 1 else Refusal.BUSY

    fields = RecordFields(1, 2, 3, 4, 5, 6)
    files = (DataFile("s3://a/b", 9),)
    named = Landed(topic=TOPIC, generation=1, until_ms=5, ranges=(LandedRange(0, 0, 5),), files=files, fields=fields)
    async with rig() as made, serving(made.store.log, token_file, add) as port:
        for refusal in (None, Refusal.BUSY):
            status, body = await post(port, named.model_dump_json().encode(), path=LANDED_PATH)
            assert (status, LandedAnswer.model_validate_json(body)) == (200, LandedAnswer(refusal=refusal))
        assert added == [named, named]
        many = named.model_copy(update={"files": (DataFile("s3://a/b", 9),) * (MAX_FILES + 1)})
        status, body = await post(port, many.model_dump_json().encode(), path=LANDED_PATH)
        assert (status, len(added)) == (400, 2)
        status, _ = await post(port, named.model_dump_json().encode(), token="wrong", path=LANDED_PATH)
        assert (status, len(added)) == (401, 2)


class NoRights(SharedToken):
    """A gate whose callers may read no topic."""

    async def forbidden(
        self, caller: Caller, topics: Collection[UUID], operation: Operation = Operation.READ
    ) -> Mapping[UUID, ErrorCode]:
        return dict.fromkeys(topics, ErrorCode.topic_authorization_failed)


async def test_a_driver_without_read_on_the_topic_learns_and_changes_nothing(token_file: Path) -> None:
    added: list[Landed] = []

    def add(landed: Landed) -> None:
        added.append(landed)

    named = Landed(topic=TOPIC, generation=1, until_ms=5, ranges=(), files=(), fields=RecordFields(1, 2, 3, 4, 5, 6))
    async with rig() as made, serving(made.store.log, token_file, add, NoRights) as port:
        await fill(made, 1)
        status, body = await post(port, named.model_dump_json().encode(), path=LANDED_PATH)
        assert (status, body, added) == (403, b"topic_authorization_failed\n", [])
        _, body = await post(
            port, Unindexed(topics=(Asked(TOPIC, 1, (1,)),)).model_dump_json().encode(), path=UNINDEXED_PATH
        )
        assert FirstOffsets.model_validate_json(body).topics == (FirstOffset("topic_authorization_failed", {}, {}, {}),)
