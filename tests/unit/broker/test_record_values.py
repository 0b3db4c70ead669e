"""The first bytes of values are those that clients wrote, with every codec, and other bytes are rejected."""

from random import Random

import pytest

from firn.records.contents import MAX_RECORDS, UndecodableError, open_batch
from firn.records.values import FRAMING, first_bytes
from tests.unit.broker.test_contents import CODECS, batch, record


def _some(chance: Random) -> bytes | None:
    size = chance.choice((None, 0, 1, 4, 5, 6, 63, 64, 200, 9_000))
    return None if size is None else chance.randbytes(size)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("codec", CODECS)
def test_random_records_give_the_first_bytes_of_their_values(codec: str, seed: int) -> None:
    chance = Random(seed)
    number, compress = CODECS[codec]
    values = [_some(chance) for _ in range(chance.choice((1, 70, 300)))]
    times = (0, -1, 63, 64, -65, 1 << 20, -(1 << 40))
    body = b"".join(
        record(delta, time=chance.choice(times), key=_some(chance), value=value) for delta, value in enumerate(values)
    )
    found = first_bytes(batch(compress(body), len(values), attributes=number))
    assert found == [None if value is None else value[:FRAMING] for value in values]


@pytest.mark.parametrize("seed", range(300))
def test_damaged_records_are_rejected_or_stay_within_their_bounds(seed: int) -> None:
    chance = Random(seed)
    body = bytearray(b"".join(record(delta, value=chance.randbytes(40)) for delta in range(5)))
    for _ in range(chance.randint(1, 3)):
        body[chance.randrange(len(body))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    damaged = batch(bytes(body), 5)
    try:
        found = first_bytes(damaged)
    except UndecodableError:
        return
    assert len(found) == 5
    assert all(value is None or len(value) <= FRAMING for value in found)


@pytest.mark.parametrize(
    "body",
    [b"", record(0)[:-1], record(0) + b"\0", b"\x80" * 40, b"\xff" * 40],
    ids=["no record", "cut", "more", "long", "longer"],
)
def test_bytes_that_are_not_one_record_are_rejected(body: bytes) -> None:
    with pytest.raises(UndecodableError):
        first_bytes(batch(body, 1))


def test_a_batch_above_the_bounds_is_rejected() -> None:
    with pytest.raises(UndecodableError, match="more than"):
        first_bytes(batch(b"", MAX_RECORDS + 1))
    number, compress = CODECS["zstd"]
    large = batch(compress(record(0, value=bytes(1 << 20))), 1, attributes=number)
    assert first_bytes(large) == [bytes(FRAMING)]
    assert len(next(open_batch(large))[1]) == 1
    with pytest.raises(UndecodableError, match="at most 1000 bytes"):
        first_bytes(large, 1000)
