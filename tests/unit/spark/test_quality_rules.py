"""Rows that fail quality rules are dead letters, stop the topic, or are counted."""

import json
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, IngestJob, QualityRule
from firn.quality.binding import bind
from firn_spark.worker import arrow_types
from firn_spark.worker.decoding import Decoder
from firn_spark.worker.landing import LandingPlan, TopicLanding, land
from firn_spark.worker.quality.kernels import kernel
from tests.unit.spark import records, tables
from tests.unit.spark.records import batch, fetched

COLUMNS = {
    "i": "int", "l": "long", "f": "float", "x": "double", "m": "decimal(10,2)", "n": "decimal(20,3)", "s": "string", "b": "boolean",
    "d": "date", "ts": "timestamp", "p": "struct<k: int, t: string>",
}  # fmt: skip
LITERALS: dict[str, tuple[str, ...]] = {
    "number": ("0", "1", "-2", "2.5", "-0.5", "1e2", "9007199254740993", "0.1", "12345678901234567.125"),
    "string": ("'a'", "'B'", "'ä%'", "''", "'it''s'"),
    "date": ("date '1969-12-31'", "date '2026-02-28'"),
    "timestamp": ("timestamp '2026-02-28 12:00:00'", "timestamp '1900-01-01T00:00:00.000001'"),
}
NAMES: dict[str, tuple[str, ...]] = {
    "number": ("i", "l", "x", "m", "n", "p.k"), "string": ("s", "p.t", "lower(s)", "upper(p.t)"), "date": ("d",), "timestamp": ("ts",),
}  # fmt: skip


def rows_of(chance: random.Random, count: int) -> list[dict[str, Any]]:
    def maybe(make: Callable[[], Any]) -> Any:
        return None if chance.random() < 0.2 else make()

    def text() -> str:
        return chance.choice(["a", "B", "ab", "ä%", "", "it's", "x_y", "Ångström"])

    whole = [0, 1, -2, 2, 100]
    return [
        {
            "i": maybe(lambda: chance.choice(whole)),
            "l": maybe(lambda: chance.choice([*whole, 9007199254740993, 2**63 - 1, -(2**63)])),
            "f": maybe(lambda: chance.choice([0.0, 2.5, -0.5])),
            "x": maybe(lambda: chance.choice([0.0, 0.1, 2.5, -0.5, 1e300])),
            "m": maybe(lambda: Decimal(chance.choice(["0", "2.5", "0.1", "-99999999.99"]))),
            "n": maybe(lambda: Decimal(chance.choice(["0", "2.5", "12345678901234567.125"]))),
            "s": maybe(text),
            "b": maybe(lambda: chance.choice([True, False])),
            "d": maybe(lambda: chance.choice([-1, 0, 20_512])),
            "ts": maybe(lambda: chance.choice([0, 1_772_280_000_000_000, -(2**52)])),
            "p": maybe(lambda: {"k": maybe(lambda: chance.choice(whole)), "t": maybe(text)}),
        }
        for _ in range(count)
    ]


def operand(chance: random.Random, kind: str) -> str:
    if kind == "number" and chance.random() < 0.2:
        # Doubles only: DuckDB computes integers and decimals in their own types.
        return f"(x {chance.choice('+-*/')} {chance.choice(['x', 'f'])})"
    return chance.choice((*NAMES[kind], *LITERALS[kind]))


def check(chance: random.Random, depth: int) -> str:
    if depth and chance.random() < 0.6:
        one, other = check(chance, depth - 1), check(chance, depth - 1)
        return chance.choice([f"({one}) and ({other})", f"{one} or {other}", f"not ({one})"])
    kind = chance.choice(list(NAMES))
    name, first, second = chance.choice(NAMES[kind]), operand(chance, kind), operand(chance, kind)
    negated = chance.choice(["", "not "])
    forms = [
        f"{name} {chance.choice(['=', '!=', '<', '<=', '>', '>='])} {first}",
        f"{name} {negated}between {first} and {second}",
        f"{name} {negated}in ({', '.join(chance.sample(LITERALS[kind], 2))})",
        f"{name} is {negated}null",
        chance.choice(["b", "b = false", "p is null"]),
    ]
    if kind == "string":
        forms += [f"{name} {negated}like {chance.choice(['''%a''', 'a_', '%', ''])!r}", f"length({name}) > 1"]
    return chance.choice(forms)


@pytest.mark.parametrize("seed", range(4))
def test_checks_have_the_values_of_sql(seed: int) -> None:
    chance = random.Random(seed)
    columns = [Column(name=name, type=kind) for name, kind in COLUMNS.items()]
    schema = arrow_types.arrow_schema(columns)
    table = pa.Table.from_pylist(rows_of(chance, 120), schema=schema).combine_chunks()
    arrays = {name: table[name].chunk(0) for name in table.column_names}
    with duckdb.connect() as database:
        database.execute("set ieee_floating_point_ops = false")
        database.register("t", table)
        for _ in range(150):
            text = check(chance, 3)
            bound = bind(text, columns)
            expected = [value for (value,) in database.execute(f"select {text} from t").fetchall()]
            assert kernel(bound)(arrays).to_pylist() == expected, text


def value_of(text: str, kind: str, value: Any) -> Any:
    column = Column(name="a", type=kind)
    return kernel(bind(text, [column]))({"a": pa.array([value], arrow_types.arrow_schema([column]).field("a").type)})[
        0
    ].as_py()


@pytest.mark.parametrize(
    ("text", "kind", "value", "expected"),
    [
        ("a between -90 and 60", "double", float("nan"), False),
        ("a != 0", "double", float("nan"), True),
        ("a = 9007199254740993", "long", 9007199254740992, False),
        ("a > 9223372036854775807.5", "long", 2**63 - 1, False),
        ("1 / a > 0", "int", 0, None),
        ("length(a) = 2", "map<string, int>", [("x", 1), ("y", 2)], True),
        ("length(a) = 2", "list<int>", [1, None], True),
        ("length(a) = 3", "fixed[3]", b"abc", True),
        ("length(a) = 2", "string", "äö", True),
        ("a = '00000000-0000-0000-0000-00000000000A'", "uuid", bytes(15) + b"\n", True),
        ("a in ('00000000-0000-0000-0000-00000000000A')", "uuid", bytes(16), False),
        ("a matches '^[a-z]+$'", "string", "abc", True),
        ("a matches '(?i)B'", "string", "abc", True),
        ("a not matches 'x'", "string", None, None),
        ("a like '50\\%'", "string", "50%", True),
        ("a = timestamp '2026-01-01 02:00+02:00'", "timestamptz", 1_767_225_600_000_000, True),
        ("a = timestamp '2026-01-01 02:00+02:00'", "timestamptz_ns", 1_767_225_600_000_000_000, True),
        ("a > timestamp '2026-01-01 00:00Z'", "timestamptz_ns", 1_767_225_600_000_000_001, True),
        ("a > timestamp '1678-01-01'", "timestamp_ns", -(2**63) + 1, False),
        ("a in (timestamp '2261-12-31')", "timestamp_ns", 2**63 - 1, False),
        ("a in (1.5, 2)", "int", 2, True),
        ("a < 123456789012345678901234567890.5", "decimal(38,10)", Decimal("1234567890123456789012345678.0000000001"), True),
        ("a in (1, 2)", "decimal(5,1)", Decimal("2.0"), True),
        ("a = a", "time", 5, True),
    ],
)  # fmt: skip
def test_a_check_of_one_value(text: str, kind: str, value: Any, expected: bool | None) -> None:
    assert value_of(text, kind, value) is expected


def ruled(*rules: tuple[str, str, str], **changes: Any) -> IngestJob:
    given = tuple(QualityRule(name=name, check=check, on_fail=action) for name, check, action in rules)
    return records.job(("a", "int"), ("c", "int"), quality_rules=given, **changes)


def decode(job: IngestJob, *values: Any, **options: Any) -> Any:
    encoded = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return Decoder(job, ingested_at=1, **options).decode(fetched(encoded))


def offsets(table: Any) -> list[int]:
    return [] if table is None else [place["offset"] for place in table["_kafka"].to_pylist()]


def test_a_record_that_fails_is_a_dead_letter_with_the_rule_and_its_bytes() -> None:
    decoded = decode(ruled(("plausible", "a between 0 and 9", "DeadLetter")), {"a": 3}, {"a": 11}, {}, b'{"a": "x"}')
    assert offsets(decoded.rows) == [0, 2]
    letter, broken = decoded.dead.to_pylist()
    assert (letter["error_code"], letter["error_stage"], letter["error_path"]) == ("QualityRule", "Quality", "$.a")
    assert letter["error_detail"] == "rule plausible: a between 0 and 9"
    assert letter["value"] == b'{"a": 11}'
    assert broken["error_code"] == "WrongKind"
    assert decoded.failed == {"plausible": 1}
    assert decoded.sample is not None


def test_the_first_rule_is_the_cause_and_every_rule_counts() -> None:
    rules = (("low", "a < 5", "Count"), ("small", "a < 7", "DeadLetter"), ("tiny", "a < 6", "DeadLetter"))
    decoded = decode(ruled(*rules, on_bad_record="Skip"), {"a": 4}, {"a": 5}, {"a": 6}, {"a": 7})
    assert offsets(decoded.rows) == [0, 1]
    causes = [letter["error_detail"].split(":")[0] for letter in decoded.dead.to_pylist()]
    assert causes == ["rule tiny", "rule small"]
    assert decoded.failed == {"low": 3, "small": 1, "tiny": 2}


def test_a_rule_with_halt_stops_the_partition() -> None:
    rules = (("small", "a < 5", "DeadLetter"), ("known", "a in (1, 2)", "Halt"))
    decoded = decode(ruled(*rules), {"a": 1}, b"{", {"a": 9}, {"a": 9}, {"a": 1})
    assert offsets(decoded.rows) == [0]
    assert offsets(decoded.dead) == [1]
    (halt,) = decoded.halts
    assert (halt.offset, halt.error.detail) == (2, "rule known: a in (1, 2)")
    assert decoded.failed == {"small": 1, "known": 1}


def test_a_user_skips_the_record_of_a_halt() -> None:
    decoded = decode(ruled(("known", "a = 1", "Halt")), {"a": 1}, {"a": 9}, {"a": 1}, force_dead={0: frozenset({1})})
    assert offsets(decoded.rows) == [0, 2]
    assert decoded.dead.to_pylist()[0]["error_code"] == "QualityRule"
    assert decoded.halts == ()


def test_a_rule_reads_the_columns_of_kafka() -> None:
    for shape, name in (("Struct", "_kafka.offset"), ("Flat", "_kafka_offset")):
        decoded = decode(ruled(("first", f"{name} < 1", "DeadLetter"), metadata_columns=shape), {}, {})
        assert decoded.rows.num_rows == 1
        assert decoded.dead.to_pylist()[0]["error_path"] == "$"


def test_a_rule_that_does_not_fit_the_table_fails_the_topic() -> None:
    for check in ("b > 1", "a > 'x'"):
        with pytest.raises(InvalidSpecError, match="quality rule wrong: check"):
            decode(ruled(("wrong", check, "Count")), {})
    text = records.job(raw_as="String", quality_rules=(QualityRule(name="wrong", check="value matches '(?=a)'"),))
    with pytest.raises(InvalidSpecError, match="quality rule wrong: Invalid regular expression"):
        Decoder(text, ingested_at=1)


def test_counts_and_the_halted_rule_reach_the_driver(tmp_path: Path) -> None:
    job = ruled(("few", "a < 2", "Count"), ("known", "a < 5", "Halt"))
    landing = TopicLanding(job, tables.table_of(job, tmp_path))
    values = [json.dumps({"a": number}).encode() for number in range(8)]
    plan = LandingPlan({"t": landing}, ingested_at=1)
    results = tables.results(land(iter([batch(values[:3]), batch(values[3:], offset=[3, 4, 5, 6, 7])]), plan))["t"]
    assert results["stats"][0]["rules"] == {"few": 4, "known": 1}
    assert (results["halt"][0]["rule"], results["halt"][0]["offset"]) == ("known", 5)
    assert len(tables.read(results["data"])) == 5
