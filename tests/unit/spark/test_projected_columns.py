"""Workers compute projected columns, and a value that does not fit its column makes its record a dead letter."""

import hashlib
import hmac
import json
import random
import re
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.model.errors import NotReadyError
from firn_spark.worker.decoding import Decoded, Decoder, Known
from tests.unit.spark.records import fetched, job, utc

FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "customer", "type": "struct<email: string, address: struct<city: string>>"},
    {"name": "amount", "type": "decimal(9,2)"},
    {"name": "ratio", "type": "double"},
    {"name": "note", "type": "string"},
    {"name": "flag", "type": "boolean"},
    {"name": "ref", "type": "uuid"},
    {"name": "at", "type": "timestamptz"},
    {"name": "days", "type": "int"},
]
REF = "00000000-0000-0000-0000-0000000000ff"


def decoded(columns: list[dict[str, Any]], values: list[Any], **records: Any) -> Decoded:
    options, salts = records.pop("options", {}), records.pop("salts", {})
    spec = {"schema": {"format": "Json", "fields": FIELDS, "columns": columns, **options}}
    schema = IcebergTopic.parse({"metadata": {"name": "t"}, "spec": spec}).record_schema()
    given = job(("a", "int")).model_copy(update={"record_schema": schema})
    rows = [value if value is None or isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    return Decoder(given, ingested_at=1, known=Known(salts=salts)).decode(fetched(rows, **records))


def column(values: list[Any], **given: Any) -> list[Any]:
    """Return the values of one column, and the code of each record that became a dead letter in place of its value."""
    records = {key: given.pop(key) for key in ("key", "headers", "salts") if key in given}
    found = decoded([{"name": "c", **given}], values, **records)
    return in_order(found, len(values))


def in_order(found: Decoded, count: int) -> list[Any]:
    result: list[Any] = [None] * count
    for row in found.rows.to_pylist():
        result[row["_kafka"]["offset"]] = row["c"]
    for letter in [] if found.dead is None else found.dead.to_pylist():
        result[letter["_kafka"]["offset"]] = f"<{letter['error_code']}>"
    return result


def of(field: str, *values: Any) -> list[Any]:
    return [{field: value} for value in values]


def test_the_table_has_the_listed_columns_in_order_and_the_kept_fields() -> None:
    columns = [{"name": "mail", "from": "$.customer.email"}, {"name": "id", "from": "$.id"}]
    value = {"id": 7, "customer": {"email": "a@b"}, "note": "n"}
    assert decoded(columns, [value]).rows.column_names == ["mail", "id", "_kafka"]
    kept = decoded(columns, [value], options={"otherFields": "Keep"}).rows
    assert kept.column_names == ["mail", "id", "amount", "ratio", "note", "flag", "ref", "at", "days", "_kafka"]
    assert (kept["mail"].to_pylist(), kept["note"].to_pylist()) == (["a@b"], ["n"])


def test_members_of_missing_structs_are_null() -> None:
    values = [{"customer": {"address": {"city": "Oslo"}}}, {"customer": {}}, {"customer": None}, {}, None]
    assert column(values, **{"from": "$.customer.address.city"}) == ["Oslo", None, None, None, None]


def test_a_constant_is_in_every_row() -> None:
    assert column([{}, None], constant="web") == ["web", "web"]
    assert column([{}], constant="1.5", type="decimal(4,2)") == [Decimal("1.50")]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("2020-02-29", "date", date(2020, 2, 29)),
        ("23:59:59.000001", "time", time(23, 59, 59, 1)),
        ("10:05", "time", time(10, 5)),
        ("2020-02-29T10:00:00.5", "timestamp", datetime(2020, 2, 29, 10, 0, 0, 500_000)),
        ("2020-02-29 10:00", "timestamp", datetime(2020, 2, 29, 10)),
        ("2020-02-29T10:00Z", "timestamptz", utc("2020-02-29T10:00:00")),
        ("2020-02-29t10:00:00.120000000z", "timestamptz", utc("2020-02-29T10:00:00.12")),
        ("2020-02-29 10:00:00+02", "timestamptz", utc("2020-02-29T08:00:00")),
        ("2020-02-29T10:00:00.123456-0330", "timestamptz", utc("2020-02-29T13:30:00.123456")),
    ],
)
def test_a_constant_can_be_a_time(text: str, kind: str, value: Any) -> None:
    assert column([{}, None], constant=text, type=kind) == [value, value]


def test_the_last_header_with_the_name_counts() -> None:
    def header(*values: bytes | None, name: str = "h") -> list[dict[str, Any]]:
        return [{"key": name, "value": value} for value in values]

    headers = [
        header(b"a", b"b"),
        None,
        [],
        header(None),
        header(b"x", name="H"),
        [*header(b"c"), *header(b"y", name="z")],
    ]
    assert column([{}] * 6, headers=headers, **{"from": "header:h"}) == ["b", None, None, None, None, "c"]
    assert column([{}] * 6, **{"from": "header:h"}) == [None] * 6
    assert decoded([{"name": "c", "from": "header:h"}], []).rows.num_rows == 0


def test_keys_headers_and_values_are_texts_unless_the_column_is_binary() -> None:
    key = [b"1", b"x", None, b"\xff"]
    assert column([{}] * 4, key=key, **{"from": "key"}) == ["1", "x", None, "<InvalidUtf8>"]
    assert column([{}] * 4, key=key, type="int", **{"from": "key"}) == [1, "<InvalidFormat>", None, "<InvalidUtf8>"]
    assert column([{}] * 4, key=key, type="binary", **{"from": "key"}) == key
    assert column([{"note": "n"}, None], **{"from": "value"}) == ['{"note": "n"}', None]


def test_hashes_and_masks() -> None:
    mails = ["anna@example.org", None, "short", "größe@x.de", ""]
    values = [{"customer": {"email": mail}} for mail in mails]
    digests = [None if mail is None else hashlib.sha256(mail.encode()).hexdigest() for mail in mails]
    assert column(values, **{"from": "$.customer.email", "with": "Sha256"}) == digests
    masked = ["************.org", None, "*****", "******x.de", ""]
    assert column(values, **{"from": "$.customer.email", "with": "Mask"}) == masked
    assert column(of("id", 12), **{"from": "$.id", "with": "Sha256"}) == [hashlib.sha256(b"12").hexdigest()]
    assert column([{}], key=[b"\xff"], **{"from": "key", "with": "Sha256"}) == [hashlib.sha256(b"\xff").hexdigest()]
    assert column([{}], key=[b"\xff"], **{"from": "key", "with": "Mask"}) == ["<InvalidUtf8>"]
    letters = decoded([{"name": "c", "from": "key", "with": "Mask"}], [{}], key=[b"card 4111\xff"]).dead
    assert letters is not None
    assert "4111" not in letters["error_detail"][0].as_py(), "the column masks the value"


HMAC_CASE_1 = "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
HMAC_CASE_3 = "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"


def test_a_salted_hash_is_hmac_sha_256() -> None:
    """The test cases 1 and 3 of RFC 4231."""
    salts = {"first": b"\x0b" * 20, "second": b"\xaa" * 20}
    first = column(
        of("note", "Hi There", None, "Hi There"), salts=salts, salt="first", **{"from": "$.note", "with": "Sha256"}
    )
    assert first == [HMAC_CASE_1, None, HMAC_CASE_1]
    second = column([{}], salts=salts, salt="second", key=[b"\xdd" * 50], **{"from": "key", "with": "Sha256"})
    assert second == [HMAC_CASE_3]


def test_columns_with_and_without_a_salt_are_independent() -> None:
    mail = {"from": "$.note", "with": "Sha256"}
    columns = [{"name": name, **mail, **salt} for name, salt in (("a", {"salt": "s"}), ("b", {"salt": "t"}), ("c", {}))]
    salts = {"s": b"s" * 16, "t": b"t" * 16}
    (row,) = decoded(columns, of("note", "x"), salts=salts).rows.select(["a", "b", "c"]).to_pylist()
    digests = {name: hmac.new(salts[salt], b"x", "sha256").hexdigest() for name, salt in (("a", "s"), ("b", "t"))}
    assert row == {**digests, "c": hashlib.sha256(b"x").hexdigest()}


@pytest.mark.parametrize("salts", [{}, {"people": b""}, {"other": b"o" * 32}])
def test_a_task_without_the_salt_computes_no_digest(salts: dict[str, bytes]) -> None:
    hashed = {"name": "c", "from": "$.note", "with": "Sha256", "salt": "people"}
    with pytest.raises(NotReadyError, match="column c: the task did not get salt people"):
        decoded([hashed], of("note", "x"), salts=salts)


@pytest.mark.parametrize(("source", "shown"), [("$.customer.email", False), ("$.note", True)])
def test_the_message_of_a_bad_record_has_no_value_that_a_column_hashes(source: str, shown: bool) -> None:
    letters = decoded([{"name": "c", "from": source, "with": "Sha256"}], of("customer", {"email": 4111})).dead
    assert letters is not None
    assert letters["error_path"][0].as_py() == "$.customer.email"
    assert ("4111" in letters["error_detail"][0].as_py()) is shown


CASTS: list[tuple[str, str, dict[str, Any], list[tuple[Any, Any]]]] = [
    ("id", "int", {}, [(5, 5), (2**31 - 1, 2**31 - 1), (2**31, "<OutOfRange>"), (None, None)]),
    ("id", "double", {}, [(2**53, 2.0**53), (2**53 + 1, "<OutOfRange>")]),
    ("id", "string", {}, [(-7, "-7")]),
    ("id", "decimal(7,2)", {}, [(99999, Decimal(99999)), (100000, "<OutOfRange>"), (-3, Decimal(-3))]),
    ("id", "timestamptz", {"epoch": "s"}, [(1, utc("1970-01-01T00:00:01")), (10**15, "<OutOfRange>")]),
    ("id", "timestamp", {}, [(1500, datetime(1970, 1, 1, 0, 0, 1, 500_000))]),
    ("id", "timestamptz", {"epoch": "ns"}, [(3000, utc("1970-01-01T00:00:00.000003")), (1, "<Inexact>"), (None, None)]),
    ("amount", "long", {}, [(2, 2), (2.5, "<Inexact>")]),
    ("amount", "decimal(9,1)", {}, [(2.5, Decimal("2.5")), (2.55, "<Inexact>")]),
    ("amount", "string", {}, [(0.05, "0.05"), (3, "3.00")]),
    ("amount", "double", {}, [(2.55, 2.55)]),
    ("ratio", "long", {}, [(2.0, 2), (2.5, "<Inexact>"), (1e300, "<Inexact>")]),
    ("flag", "string", {}, [(True, "true"), (False, "false")]),
    ("ref", "string", {}, [(REF.upper(), REF), (None, None)]),
    ("at", "long", {}, [("1970-01-01T00:00:01.5Z", 1500), ("1969-12-31T23:59:59.999Z", -1), ("1970-01-01T00:00:00.0005Z", "<Inexact>"),
                        (None, None)]),
    ("at", "long", {"epoch": "s"}, [("2020-01-01T00:00:00Z", 1_577_836_800), ("2020-01-01T00:00:00.5Z", "<Inexact>")]),
    ("at", "long", {"epoch": "us"}, [("1970-01-01T00:00:00.000001Z", 1), ("9999-12-31T00:00:00Z", 253_402_214_400_000_000)]),
    ("at", "long", {"epoch": "ns"}, [("1970-01-01T00:00:00.000001Z", 1000), ("9999-12-31T00:00:00Z", "<OutOfRange>")]),
    ("days", "date", {}, [(0, date(1970, 1, 1)), (-719_162, date(1, 1, 1)), (2_932_896, date(9999, 12, 31)), (2_932_897, "<OutOfRange>"),
                          (-719_163, "<OutOfRange>"), (None, None)]),
    ("note", "timestamptz", {}, [("2020-01-01t00:00:00.123456000z", utc("2020-01-01T00:00:00.123456")),
                                 ("2020-01-01T00:00:00.1234567Z", "<Inexact>"), ("2020-01-01T00:00:00.Z", "<InvalidFormat>")]),
    ("note", "timestamp", {}, [("2020-01-01t00:00:00.120000000000", datetime(2020, 1, 1, 0, 0, 0, 120_000)),
                               ("2020-01-01T00:00:00.000000001", "<Inexact>")]),
    ("note", "time", {}, [("10:05:00.1234560", time(10, 5, 0, 123_456)), ("10:05:00.1234567", "<Inexact>")]),
    ("note", "time", {}, [("10:05", time(10, 5)), ("24:00", "<OutOfRange>"), ("10", "<InvalidFormat>")]),
    ("at", "date", {}, [("1969-12-31T23:00:00Z", date(1969, 12, 31)), (253_402_300_799_999, date(9999, 12, 31)),
                        (253_402_300_800_000, "<OutOfRange>"), (-62_135_596_800_001, "<OutOfRange>")]),
    ("note", "int", {}, [("12", 12), ("-0012", -12), ("1.0", "<InvalidFormat>"), ("0x1f", "<InvalidFormat>"), ("", "<InvalidFormat>"),
                         ("99999999999", "<OutOfRange>"), ("1\n", "<InvalidFormat>")]),
    ("note", "double", {}, [("1e3", 1000.0), ("nan", "<InvalidFormat>"), ("1e999", "<OutOfRange>")]),
    ("note", "float", {}, [("0.5", 0.5), ("1e300", "<OutOfRange>")]),
    ("note", "boolean", {}, [("true", True), ("TRUE", "<InvalidFormat>"), ("1", "<InvalidFormat>")]),
    ("note", "decimal(5,2)", {}, [("1e2", Decimal(100)), ("1.005", "<OutOfRange>"), ("1000", "<OutOfRange>")]),
    ("note", "date", {}, [("2020-02-29", date(2020, 2, 29)), ("2020-02-30", "<OutOfRange>"), ("2020-2-3", "<InvalidFormat>"),
                          ("0000-12-31", "<OutOfRange>"), ("0001-01-01", date(1, 1, 1)), ("9999-12-31", date(9999, 12, 31))]),
    ("note", "timestamp", {}, [("2020-01-01T10:00:00.5", datetime(2020, 1, 1, 10, 0, 0, 500_000)), ("2020-01-01T10:00Z", "<InvalidFormat>"),
                               ("0000-12-31T23:59", "<OutOfRange>"), ("0001-01-01 00:00", datetime(1, 1, 1))]),
    ("note", "timestamptz", {}, [("2020-01-01 10:00+02:00", utc("2020-01-01T08:00:00")), ("2020-01-01T10:00", "<InvalidFormat>"),
                                 ("2020-01-01T25:00Z", "<OutOfRange>"), ("0001-01-01T00:00+01:00", "<OutOfRange>"),
                                 ("0001-01-01T00:00-18", utc("0001-01-01T18:00:00")), ("9999-12-31T23:59-00:01", "<OutOfRange>"),
                                 ("9999-12-31T23:59+0001", utc("9999-12-31T23:58:00")), ("2020-01-01T00:00+18:01", "<OutOfRange>"),
                                 ("2020-01-19T00:00Z", utc("2020-01-19T00:00:00")), ("2020-01-01T00:00-01:60", "<OutOfRange>"),
                                 *((f"2020-01-01T00:00{zone}", "<OutOfRange>") for zone in ("+19", "+19:30", "+1930", "+20:00", "-23:59"))]),
    ("note", "uuid", {}, [(REF, bytes.fromhex(REF.replace("-", ""))), ("ff", "<InvalidFormat>")]),
    ("note", "binary", {}, [("ä", "ä".encode())]),
]  # fmt: skip


@pytest.mark.parametrize(("field", "kind", "options", "cases"), CASTS, ids=[f"{case[0]}-{case[1]}" for case in CASTS])
def test_values_become_the_stated_type(
    field: str, kind: str, options: dict[str, Any], cases: list[tuple[Any, Any]]
) -> None:
    given = {"from": f"$.{field}", "type": kind, **options}
    assert column(of(field, *(value for value, _ in cases)), **given) == [want for _, want in cases]


def test_digits_below_the_microsecond_are_cut_off_on_demand() -> None:
    def truncated(field: str, value: Any, kind: str, **more: str) -> Any:
        given = [{"name": "c", "from": f"$.{field}", "type": kind, **more}]
        found = decoded(given, of(field, value), options={"nanoseconds": "Truncate"}).rows
        return found["c"].to_pylist()

    day = "1969-12-31T23:59:59.123456"
    for digits in ("7", "789", "789" * 9):
        assert truncated("note", f"{day}{digits}z", "timestamptz") == [utc(day)]
        assert truncated("note", f"{day}{digits}", "timestamp") == [datetime.fromisoformat(day)]
        assert truncated("note", f"23:59:59.123456{digits}", "time") == [time(23, 59, 59, 123_456)]
    assert truncated("id", -1, "timestamp", epoch="ns") == [datetime(1969, 12, 31, 23, 59, 59, 999_999)]
    assert truncated("at", f"{day}789Z", "timestamptz") == [utc(day)]


def test_a_dead_letter_of_a_time_that_is_too_fine_names_the_setting() -> None:
    found = decoded([{"name": "c", "from": "$.note", "type": "time"}], of("note", "00:00:00.0000001"))
    assert found.dead is not None
    (letter,) = found.dead.to_pylist()
    assert letter["error_code"] == "Inexact"
    assert letter["error_detail"].endswith("schema.nanoseconds: Truncate cuts off these digits")


def test_a_dead_letter_names_the_column_its_source_and_the_value() -> None:
    columns = [{"name": "n", "from": "$.customer.address.city", "type": "int"}]
    values = [{"customer": {"address": {"city": "x" * 60}}}, b"{", {"customer": {"address": {"city": "5"}}}]
    found = decoded(columns, values)
    assert found.rows["n"].to_pylist() == [5]
    assert found.dead is not None
    first, second = found.dead.to_pylist()
    assert (first["error_code"], first["error_path"]) == ("InvalidFormat", "$.customer.address.city")
    assert first["error_detail"] == (f"column n: $.customer.address.city cannot become int, found {'x' * 47}…")
    assert second["error_code"] == "InvalidJson"


def test_a_dead_letter_shows_a_time_that_python_does_not_have() -> None:
    found = decoded([{"name": "day", "from": "$.at", "type": "date"}], of("at", 253_402_300_800_000))
    assert found.dead is not None
    (letter,) = found.dead.to_pylist()
    assert letter["error_detail"] == (
        "column day: $.at cannot become date, found 253402300800000000 microseconds since 1970"
    )


def test_a_required_column_without_a_value_makes_a_dead_letter() -> None:
    found = decoded([{"name": "c", "from": "header:h", "required": True}], [{}])
    assert found.dead is not None
    assert found.dead["error_code"].to_pylist() == ["MissingRequired"]
    assert found.dead["error_detail"].to_pylist() == ["column c is required, and header:h has no value"]


def plain(source: str, kind: str, value: Any) -> Any:
    """Compute a column as the documentation defines it, without Arrow; a code for a bad value."""
    if value is None:
        return None
    if kind == "Sha256":
        return hashlib.sha256(value.encode()).hexdigest()
    if kind == "Mask":
        return "*" * (len(value) - 4) + value[-4:] if len(value) >= 8 else "*" * len(value)
    if kind == "timestamptz":
        return value * 1000 if abs(value) <= (2**63 - 1) // 1000 else "<OutOfRange>"
    if source == "note" and not re.fullmatch(TEXTS[kind], value):
        return "<InvalidFormat>"
    if kind == "date":
        return plain_date(value)
    number = Decimal(value)
    if kind == "decimal(9,2)":
        return number if number * 100 == int(number * 100) and abs(number) < 10**7 else "<OutOfRange>"
    highest = 2 ** (31 if kind == "int" else 63)
    return int(number) if -highest <= number < highest else "<OutOfRange>"


TEXTS = {
    "int": "-?[0-9]+",
    "long": "-?[0-9]+",
    "date": "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "decimal(9,2)": r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?",
}


def plain_date(value: str) -> Any:
    try:
        return date.fromisoformat(value)
    except ValueError:
        return "<OutOfRange>"


def random_note(rng: random.Random) -> str | None:
    digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12)))
    return rng.choice(
        [None, "", digits, f"-{digits}", f"{digits}.{digits[:3]}", f"{rng.randint(1, 9999):04}-{rng.randint(0, 13):02}-{rng.randint(0, 32):02}",
         "".join(rng.choice("aä€😀*1 -.e") for _ in range(rng.randint(0, 12))), f"{digits[:3]}e{rng.randint(-3, 3)}"]
    )  # fmt: skip


def random_id(rng: random.Random) -> int | None:
    return rng.choice(
        [
            None,
            rng.randint(-10, 10),
            rng.randint(-(2**63), 2**63 - 1),
            rng.randint(-(2**31) - 2, 2**31 + 2),
            rng.randrange(2**40),
        ]
    )


RANDOM = [("note", kind) for kind in (*TEXTS, "Sha256", "Mask")] + [("id", "int"), ("id", "timestamptz")]


@pytest.mark.parametrize(("source", "kind"), RANDOM)
def test_random_records_have_the_values_of_a_plain_evaluation(source: str, kind: str) -> None:
    rng = random.Random(f"{source} {kind}")
    values = [random_note(rng) if source == "note" else random_id(rng) for _ in range(500)]
    given = {"with": kind} if kind in ("Sha256", "Mask") else {"type": kind}
    found = decoded([{"name": "c", "from": f"$.{source}", **given}], of(source, *values))
    array = found.rows["c"]
    # Python has no times after the year 9999.
    own = array.cast("int64") if kind == "timestamptz" else array
    actual: list[Any] = [None] * len(values)
    for place, value in zip(found.rows["_kafka"].to_pylist(), own.to_pylist(), strict=True):
        actual[place["offset"]] = value
    assert found.dead is not None or kind in ("Sha256", "Mask")
    for letter in found.dead.to_pylist() if found.dead is not None else []:
        actual[letter["_kafka"]["offset"]] = f"<{letter['error_code']}>"
    assert actual == [plain(source, kind, value) for value in values]


ODD = [
    {"name": "order-id", "type": "long"},
    {"name": "user.name", "type": "string"},
    {"name": "user", "type": r"""struct<name: int, '[e]': string, 'it\'s "x"': date>"""},
    {"name": "größe 🦀", "type": "timestamptz", "epoch": "s"},
]


def test_columns_read_members_whose_names_no_column_can_have() -> None:
    columns = [
        {"name": "id", "from": "$['order-id']"},
        {"name": "name", "from": "$['user.name']"},
        {"name": "number", "from": "$.user.name"},
        {"name": "e", "from": "$.user['[e]']"},
        {"name": "x", "from": r"""$.user['it\'s "x"']"""},
        {"name": "at", "from": "$['größe 🦀']"},
    ]
    values = [
        {"order-id": 1, "user.name": "ann", "user": {"name": 2, "[e]": "e", 'it\'s "x"': "2026-01-31"}, "größe 🦀": 7},
        b'{"order\\u002did": 3, "user\\u002ename": "bo", "gr\\u00f6\\u00dfe \\ud83e\\udd80": 8}',
        {"order_id": 4, "user": {"name": None}, "orderid": 5},
    ]
    rows = decoded(columns, values, options={"fields": ODD}).rows.to_pylist()
    assert [[row[each["name"]] for each in columns] for row in rows] == [
        [1, "ann", 2, "e", date(2026, 1, 31), utc("1970-01-01T00:00:07")],
        [3, "bo", None, None, None, utc("1970-01-01T00:00:08")],
        [None] * 6,
    ]


def test_the_column_of_other_members_has_none_that_a_column_reads_by_brackets() -> None:
    columns = [{"name": "id", "from": "$['order-id']"}]
    options = {
        "fields": ODD[:1],
        "unknownFields": "Keep",
        "unknownFieldsColumn": "others",
        "otherFields": "Keep",
    }
    found = decoded(columns, [{"order-id": 1}, {"order-id": 2, "user.name": "ann"}], options=options).rows.to_pylist()
    assert [row["id"] for row in found] == [1, 2]
    assert found[0]["others"] is None
    assert b"user.name" in found[1]["others"]["metadata"]
    assert b"order-id" not in found[1]["others"]["metadata"]


def test_the_place_of_an_error_has_the_name_in_brackets() -> None:
    columns: list[dict[str, Any]] = [
        {"name": "id", "from": "$['order-id']", "type": "int", "required": True},
        {"name": "e", "from": "$.user['[e]']", "with": "Mask"},
    ]
    values = [{"order-id": "x"}, {"order-id": 2**40}, {}, {"order-id": 1, "user": {"[e]": 4711}}]
    letters = decoded(columns, values, options={"fields": ODD}).dead
    assert letters is not None
    assert letters["error_path"].to_pylist() == ["$['order-id']"] * 3 + ["$.user['[e]']"]
    assert letters["error_detail"].to_pylist() == [
        'expected long, found string "x"',
        f"column id: $['order-id'] cannot become int, found {2**40}",
        "column id is required, and $['order-id'] has no value",
        "expected string",
    ]
