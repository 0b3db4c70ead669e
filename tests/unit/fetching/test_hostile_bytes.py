"""No bytes of a broker make the reader read or write outside of their buffer, or fail with another error than its own."""

import os
import random

import numpy as np

from firn.model.errors import CorruptDataError
from firn.records.cursor import MalformedError
from firn.records.message_reader import decode_answer
from firn.records.message_writer import encode
from firn_spark.worker.fetched import Fetched, Places
from firn_spark.worker.fetching import answers, kernel
from firn_spark.worker.fetching.batches import OldFormatError
from firn_spark.worker.fetching.connection import FETCH, VERSIONS
from tests.unit.fetching.log import COMPRESS, TRANSACTIONAL, Batch, Record, marker
from tests.unit.fetching.reading import blocks_of
from tests.unit.fetching.test_batches import crc_of

FRAMES = 1_000_000 if os.environ.get("FIRN_LONG") else 50_000
SEED = 11


def sample(rng: random.Random) -> bytes:
    """Return a batch of any kind."""
    if rng.random() < 0.1:
        return marker(rng.randrange(9), rng.randrange(2), aborts=rng.random() < 0.5).encode()
    records = [
        Record(
            delta,
            rng.choice([None, b"", rng.randbytes(rng.randrange(40))]),
            rng.choice([None, b"k"]),
            rng.randrange(-9, 9),
            ((b"name", b"value"),) * rng.randrange(3),
        )
        for delta in range(rng.randrange(6))
    ]
    codec = rng.choice([0, 0, 0, *COMPRESS])
    return Batch(rng.randrange(9), records, codec=codec, attributes=rng.choice([0, TRANSACTIONAL]), producer=0).encode()


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Change some bytes of a batch, and give it the checksum that belongs to them."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        place = rng.choice([rng.randrange(len(changed)), rng.randrange(57, len(changed))])
        changed[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    if rng.random() < 0.9:
        changed[17:21] = crc_of(changed[21:])
    return bytes(changed)


def within(places: Places) -> bool:
    """Return whether all places are inside of their bytes."""
    return bool(np.all((places.firsts >= 0) & (places.firsts <= places.ends) & (places.ends <= len(places.data))))


def checked(block: Fetched) -> None:
    assert within(block.keys)
    assert within(block.values)
    assert within(block.headers.names)
    assert within(block.headers.values)
    block.headers.to_arrow()


def test_damaged_batches_are_read_or_refused() -> None:
    rng = random.Random(SEED)
    refused = 0
    for _ in range(FRAMES // 10):
        data = sample(rng)
        for _ in range(10):
            try:
                blocks, position = blocks_of(damaged(data, rng), 0, 100, [(0, 0)])
            except (CorruptDataError, OldFormatError):
                refused += 1
            else:
                assert 0 <= position.next <= 100
                for block in blocks:
                    checked(block)
    assert 0.2 < refused / FRAMES < 0.95


def test_the_kernel_writes_no_more_records_than_the_batch_claims() -> None:
    rng = random.Random(SEED)
    for _ in range(2_000):
        data = np.frombuffer(damaged(sample(rng), rng), np.uint8)
        table = np.zeros((1, kernel.BATCH_COLUMNS), np.int64)
        table[0, kernel.PLACE], table[0, kernel.SIZE] = kernel.HEADER, len(data) - kernel.HEADER
        table[0, kernel.COUNT], table[0, kernel.DELTA], table[0, kernel.TO] = 4, 4, 100
        records = np.full((kernel.RECORD_ROWS, 6), -7, np.int64)
        present = np.zeros((2, 6), bool)
        count, _ = kernel.read(data, table, records, present)
        assert 0 <= count <= 4
        assert np.all(records[:, 4:] == -7)


def test_damaged_answers_are_read_or_refused() -> None:
    rng = random.Random(SEED)
    part = {
        "partition_index": 1, "error_code": 0, "high_watermark": 9, "last_stable_offset": 9, "log_start_offset": 0,
        "aborted_transactions": [{"producer_id": 1, "first_offset": 2}] * 3, "preferred_read_replica": -1,
        "records": Batch(0, [Record(0)]).encode(),
    }  # fmt: skip
    fields = {"error_code": 0, "session_id": 0, "responses": [{"topic": "orders", "partitions": [part] * 3}] * 2}
    lowest, highest = VERSIONS[FETCH]
    frames = [(version, encode(FETCH, version, fields)) for version in range(lowest, highest + 1)]
    for version, whole in frames:
        answer = decode_answer(answers.Fetch, FETCH, version, memoryview(whole), 0)
        assert bytes(answer.responses[1].partitions[2].records or b"") == part["records"]
    for _ in range(FRAMES):
        version, whole = rng.choice(frames)
        changed = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            changed[rng.randrange(len(changed))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        try:
            answer = decode_answer(answers.Fetch, FETCH, version, memoryview(bytes(changed)), 0)
        except MalformedError:
            continue
        for topic in answer.responses:
            assert all(one.records is None or len(one.records) < len(whole) for one in topic.partitions)
