"""Of transactions, only committed ones are read. The oracle applies them record by record."""

import random

import pytest

from tests.unit.fetching.log import TRANSACTIONAL, Batch, Record, marker
from tests.unit.fetching.reading import blocks_of, rows_of


@pytest.mark.parametrize("seed", range(60))
def test_committed_records_of_interleaved_transactions_are_read(seed: int) -> None:
    rng = random.Random(seed)
    log: list[Batch] = []
    aborted: list[tuple[int, int, int]] = []
    committed: list[int] = []
    running: dict[int, list[int]] = {}
    offset = 0
    for _ in range(rng.randrange(5, 60)):
        producer = rng.randrange(4)
        match rng.random():
            case low if low < 0.2:
                log.append(Batch(offset, [Record(0)]))
                committed.append(offset)
            case low if low < 0.7:
                records = [Record(delta) for delta in range(rng.randrange(1, 4))]
                codec = rng.choice([0, 4])
                log.append(Batch(offset, records, codec=codec, attributes=TRANSACTIONAL, producer=producer))
                running.setdefault(producer, []).extend(offset + one.delta for one in records)
            case low:
                aborts = low < 0.85
                log.append(marker(offset, producer, aborts=aborts))
                if offsets := running.pop(producer, []):
                    if aborts:
                        aborted.append((producer, offsets[0], offset))
                    else:
                        committed += offsets
        offset += len(log[-1].records)
    # A broker answers with offsets before the first transaction that still runs. It lists the aborted transactions that
    # begin before that offset and end at or after the first one that was asked for.
    stable = min((offsets[0] for offsets in running.values()), default=offset)
    start = rng.randrange(stable) if stable else 0
    data = b"".join(batch.encode() for batch in log if start < batch.base + len(batch.records) and batch.base < stable)
    rng.shuffle(aborted)
    listed = [(producer, first) for producer, first, last in aborted if first < stable and last >= start]
    blocks, position = blocks_of(data, start, stable, listed)
    assert [row.offset for row in rows_of(blocks)] == sorted(one for one in committed if start <= one < stable)
    assert position.next == stable
