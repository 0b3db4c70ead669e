"""The compiled encoder of variants may leave a value to the strict one, but its bytes equal those of the strict encoder."""

import json
import os
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from firn.decoders.bad_records import BadRecordError
from firn.decoders.json import RecordReader, parse
from firn.decoders.json_limits import MAX_DEPTH, MAX_VARIANT_BYTES
from firn.decoders.json_variants import encoded
from firn.model.jobs import Column
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Places
from firn_spark.worker.formats import arrays
from firn_spark.worker.formats.json import variant_kernel, variants
from firn_spark.worker.formats.json.blocks import BlockDecoder

SEEDS = 60 if os.environ.get("FIRN_LONG") else 6
NUMBERS = (
    "0", "-0", "7", "-1", "127", "-128", "128", "-129", "32767", "-32768", "32768", "-32769", "2147483647", "-2147483648", "2147483648",
    "-2147483649", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "-9223372036854775809", "9999999999999999999",
    "-9999999999999999999", "10000000000000000000", "18446744073709551616", "1" * 38, "1" * 39, "-" + "9" * 40, "0.0", "-0.0", "0.5", "-0.5",
    "1.50", "0.000000001", "0.0000000001", "-0.0000000000", "123456.789", "9.99999999", "99.99999999", "0.123456789012345678",
    "0.1234567890123456789", "-0.0012345678901234567", "12345678901.1234567", "99999999999999999.99", "0." + "0" * 37 + "1",
    "0." + "0" * 38 + "1", "0." + "0" * 60, "922337203685477580.8", "-922337203685477580.8", "0.30000000000000004", "1e0", "1E2", "1.5e3",
    "-2.5E-3", "-0e0", "0.0e5", "1e308", "1e309", "-1e400", "5e-324", "1e-400", "123456789012345678901234567890e-10", "2.2250738585072014e-308",
)  # fmt: skip
TEXTS = (
    "",
    "a",
    "é",
    "😀",
    "b" * 62,
    "b" * 63,
    "b" * 64,
    "ä" * 32,
    'a"b',
    "\\",
    "\\n",
    "\n",
    "/\x7f\t",
    "c" * 300,
    '":',
    'a":"b',
)
NAMES = (
    "",
    "a",
    "b",
    "aa",
    "ab",
    "abcdefgh",
    "abcdefghi",
    "abcdefghj",
    "ä",
    "ﬀ",
    "😀",
    'a"',
    "\\n",
    "\n",
    "a\x00",
    "n" * 40,
)


def number(chance: random.Random) -> str:
    if chance.random() < 0.5:
        return chance.choice(NUMBERS)
    digits = str(chance.randrange(10 ** chance.randrange(1, 22)))
    if chance.random() < 0.6:
        place = chance.randrange(1, len(digits) + 1)
        digits = f"{digits[:place]}.{digits[place:] or chance.choice('0123456789')}"
    power = chance.choice(["", "", "", "e5", "E-7", "e+0"])
    return chance.choice(["", "-"]) + digits + power


def quoted(chance: random.Random, text: str) -> str:
    return json.dumps(text, ensure_ascii=chance.random() < 0.3)


def value(chance: random.Random, depth: int = 0) -> str:
    space = chance.choice(["", "", "", " ", "\t\n"])
    kind = chance.random()
    if kind < 0.25 and depth < 5:
        members = [
            f"{quoted(chance, chance.choice(NAMES))}{space}:{space}{value(chance, depth + 1)}"
            for _ in range(chance.choice([0, 1, 2, 4, 7]))
        ]
        return f"{{{space}{f'{space},{space}'.join(members)}{space}}}"
    if kind < 0.4 and depth < 5:
        elements = [value(chance, depth + 1) for _ in range(chance.choice([0, 1, 3, 5]))]
        return f"[{space}{f',{space}'.join(elements)}{space}]"
    if kind < 0.7:
        return number(chance)
    if kind < 0.9:
        return quoted(chance, chance.choice(TEXTS))
    return chance.choice(["null", "true", "false", *[r'"\u00e9\ud83d\ude00"'] * 3, r'"\ud800"'])


def strictly(text: bytes) -> Any:
    try:
        return encoded(parse(text))
    except BadRecordError:
        return None


def check(texts: Sequence[str]) -> int:
    """Compare both encoders, and return how many values the compiled one left."""
    values = [text.encode() for text in texts]
    places = Places.from_arrow(pa.array(values, pa.binary()))
    encoder = variants.Encoder(len(values), largest=max(map(len, values)), members=False)
    encoder.encode(places.data, places.firsts, places.ends, np.arange(len(values) + 1), 0)
    array, sure = encoder.finish()
    array.validate(full=True)
    for text, found, certain in zip(values, array.to_pylist(), sure, strict=True):
        assert (found if certain else None) == strictly(text), text
    return encoder.left


@pytest.mark.parametrize("seed", range(SEEDS))
def test_both_encoders_make_the_same_bytes(seed: int) -> None:
    chance = random.Random(seed)
    check([value(chance) for _ in range(1500)])


def test_both_encoders_agree_on_numbers_at_limits() -> None:
    assert check(NUMBERS) < 20
    check([f"[{number},{number} ]" for number in NUMBERS])


@pytest.mark.parametrize("seed", range(3))
def test_usual_values_are_not_left_to_the_strict_encoder(seed: int) -> None:
    """Names may differ from value to value, have any order, and be in many objects."""
    chance = random.Random(seed)
    names = [f"name-{number}" for number in range(40)]

    def usual() -> Any:
        members = chance.sample(names, chance.randrange(12))
        leaves = (chance.randrange(10**9), chance.uniform(-1e6, 1e6), "text é", None, True, round(chance.random(), 3))
        return {name: chance.choice([*leaves, [{"a": 1, name: 2}] * 3, {"b\n": "x"}]) for name in members}

    assert check([json.dumps(usual()) for _ in range(1000)]) == 0


def test_a_name_with_escapes_is_not_taken_for_the_same_bytes_without() -> None:
    assert check([r'{"\\n":1}', r'{"\n":2}', r'{"\\n":3}', r'{"a\"":1}', '{"a":1}', '{"a":2}']) == 0


def test_objects_with_the_same_names_in_other_places_differ() -> None:
    texts = [
        '{"a":{"b":1},"c":2}',
        '{"a":{"b":1,"c":2}}',
        '{"c":2,"a":{"b":1}}',
        '{"a":{}}',
        '{"a":1,"b":2,"c":3,"d":4}',
        "{}",
        "1",
    ]
    assert check(texts * 3) == 0


def test_large_values_take_wider_offsets_and_counts() -> None:
    texts = [
        json.dumps(list(range(255))), json.dumps(list(range(256))), json.dumps(["x" * 70] * 1000), json.dumps("x" * 70_000),
        json.dumps({f"k{place}": place for place in range(256)}), json.dumps({f"k{place}": place for place in range(257)}),
        json.dumps({f"{place:04}": "y" * 100 for place in reversed(range(1024))}), json.dumps([[0] * 300] * 300),
        json.dumps({"z" * 300: 1}), json.dumps({f"{'n' * 60}{place}": [] for place in range(1000)}),
    ]  # fmt: skip
    assert check(texts) == 0


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({f"k{place}": place for place in range(variant_kernel.MOST_NAMES + 1)}),
        json.dumps({f"{'n' * 900}{place}": place for place in range(100)}),
        json.dumps(list(range(2**17 + 1))),
        '{"a":1,"b":{"a":1,"a":2}}',
        '{"a":' + json.dumps("x" * (MAX_VARIANT_BYTES - 13)) + "}",
        json.dumps("x" * MAX_VARIANT_BYTES),
        "1e999",
    ],
)
def test_hostile_values_are_left_to_the_strict_encoder(text: str) -> None:
    assert check(['{"a":1}', text, '{"a":1}', '{"a":2,"b":1}']) == 1


def test_deep_values_are_encoded_up_to_the_limit() -> None:
    depth = MAX_DEPTH - 1
    assert check(["[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth]) == 0


FIELDS = (Column(name="id", type="long"), Column(name="a", type="string"), Column(name="loose", type="variant"))


def decoded(records: Sequence[bytes | None], fields: tuple[Column, ...] = FIELDS) -> Any:
    """Compare the records that the fast decoder vouches for with those of the strict one. Return their number, and the columns."""
    columns, vouched = BlockDecoder(fields, refuse_unknown=False, keep_unknown=True).decode(
        Places.from_arrow(pa.array(records, pa.binary()))
    )
    reader = RecordReader.for_schema(fields, refuse_unknown=False, keep_unknown=True)
    kinds = [*arrow_types.arrow_schema(fields).types, arrow_types.VARIANT]
    nothing: list[Any] = [None] * len(kinds)
    rows = [reader.read(record) if sure else nothing for record, sure in zip(records, vouched, strict=True)]
    for place, kind in enumerate(kinds):
        columns[place].validate(full=True)
        assert columns[place].to_pylist() == pa.array([row[place] for row in rows], kind).to_pylist()
    return int(vouched.sum()), columns


@pytest.mark.parametrize("seed", range(SEEDS))
def test_other_members_of_records_are_those_of_the_strict_decoder(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CALL_BYTES", 4000)
    chance = random.Random(seed)

    def record() -> bytes | None:
        members = [f'"id":{chance.randrange(99)}', f'"loose" : {value(chance)}', '"a":"x"', '"a":7']
        others = [f"{quoted(chance, chance.choice(NAMES))}:{value(chance)}" for _ in range(chance.randrange(5))]
        chosen = [*chance.sample(members, chance.randrange(4)), *others]
        chance.shuffle(chosen)
        return f"{{{','.join(chosen)}}}".encode() if chance.random() < 0.97 else chance.choice([None, b"[", b"{}"])

    vouched, _ = decoded([record() for _ in range(400)])
    assert vouched > 100


def test_other_members_are_kept_without_the_strict_decoder() -> None:
    records = [b'{"id":1}', b'{"x":1,"id":2,"y":{"z":[1,2]}}', b'{ "y" : 1 , "a":"b" }', b"{}", None]
    vouched, columns = decoded(records)
    assert vouched == 5
    assert [member is not None for member in columns[-1].to_pylist()] == [False, True, True, False, False]


def test_smallest_members_have_room() -> None:
    records = [b'{"":1}'] * 50 + [b'{"a":"","":1,"b":2,"c":3,"d":4,"e":5}'] * 50
    assert decoded(records)[0] == 100
