"""A quick check of JSON accepts only values that the strict decoder accepts, and it accepts the usual ones."""

import json
import random
from typing import Any

import pytest

from firn.model.jobs import Column, RecordSchema, Rename
from tests.unit.decoders.strict_verdicts import accepted, fits, opened
from tests.unit.spark.test_avro_decoders import damaged

USUAL = {
    "boolean": ["true", "false"],
    "int": ["0", "-0", "17", "-999999999", "2099999999"],
    "long": ["0", "-17", "1764300000000", "8999999999999999999"],
    "float": ["0", "-1", "3.25", "1e9", "2.5E-3"],
    "double": ["0", "-1", "3.25", "1e99", "2.5E-3", "12345678901234567890.5"],
    "decimal(9, 2)": ["0", "12", "-1234567.89", '"12.5"', "0.00"],
    "decimal(4, 4)": ["0", "0.1234", '"-0.5"'],
    "decimal(38, 0)": ["9" * 38, "-1"],
    "string": ['""', '"a"', '"größe 🦀"', r'"a\"b\\c\/\n\u00e9\u0000"', '"\x7f"', '"{,}"'],
    "date": ['"2026-11-28"', '"1999-12-31"', '"2024-04-30"', '"2024-01-29"'],
    "time": ['"12:30"', '"23:59:59"', '"00:00:00.123456"', '"00:00:00.123456000"'],
    "timestamp": ['"2026-11-28T12:30:00"', '"2026-11-28t12:30:00.5"', "1764300000000", "-5", "0"],
    "timestamptz": [
        '"2026-11-28T12:30:00Z"',
        '"2026-11-28 12:30:00.5+01:00"',
        '"2026-11-28T12:30-0330"',
        '"2026-11-28t12:30:00.123456000z"',
        '"9999-12-31T23:59:59.999999Z"',
        "1764300000000",
    ],
    "timestamp_ns": ['"2026-11-28T12:30:00.123456789"', "1764300000"],
    "timestamptz_ns": ['"2026-11-28T12:30:00.123456789Z"', "1764300000"],
    "uuid": ['"0189a0f6-7f5b-7c3e-9a51-0123456789aB"'],
    "binary": ['""', '"QUJD"', '"QQ=="', '"QUI="'],
    "fixed[3]": ['"QUJD"'],
    "fixed[4]": ['"QUJDRA=="'],
    "list<variant>": ["[]", '[1,true,"a"]'],
    "map<string, variant>": ["{}", "{ }"],
    "variant": ["1", "true", '"a"', "8999999999999999999"],
    "list<int>": ["[]", "[1]", "[ 1 , null,2 ]"],
    "list<list<string>>": ["[]", '[["a"],[]]'],
    "map<string, int>": ["{}", "{ }"],
    "struct<a: int, b: string>": ["{}", '{"a":1}', '{"b":"x"}', '{ "a" : 1 , "b" : null }'],
    "list<struct<a: int, b: date>>": ['[{"a":1,"b":"2026-11-28"},{"b":null}]', "[{},null]"],
}
RARE = [
    "01", "+1", "-", "1.", ".5", "1e", "1.0", "1e2", "2147483647", "2147483648", "-2147483648", "-2147483649", "2100000000",
    "9223372036854775807", "9223372036854775808", "1" + "0" * 25, "1e39", "3.5e38", "1e308", "1e309", "-1e400", "NaN", "Infinity",
    "-Infinity", "nul", "True", "'a'", '"a', 'a"', r'"\ud83d\ude00"', r'"\ud83d"', r'"\uD800"', r'"\x41"', r'"\u12"', '"\n"', '"\0"', '"a\tb"',
    '"24:00"', '"12:60"', '"12:30:60"', '"12:30:00."', '"12:30:00.1234567"', '"12:30:00.1234560"', '"2023-02-29"', '"2024-02-29"', '"2024-04-31"',
    '"0000-01-01"', '"0999-01-01"', '"10000-01-01"', '"1677-09-21T00:12:43"', '"2262-04-12T00:00:00Z"', '"2300-01-01T00:00:00"',
    '"1600-01-01T00:00:00Z"', '"9999-12-31T23:59:59-00:01"', '"9999-12-31T23:59:59+0001"', '"0001-01-01T00:00Z"', '"0001-01-01T00:00+01"',
    '"2026-11-28T12:30:00+18:00"', '"2026-11-28T12:30:00+18:01"', '"2026-11-28T12:30:00z"', '"2026-11-28"',
    "9223372036854775", "9223372036854776", "9223372036854", "99999999999999", '"QR=="', '"QUJ"', '"QUJD="', '"QQ"', '"Q?=="', '"0.125"', "0.125",
    '"1e3"', "0.12345", "10000000.5", "9" * 39, "[1,]", "[,1]", "[1 2]", "[1", "[[1]]", '{"a":1,}', '{"a":1,"a":2}', '{"a":1 "b":"x"}', "{,}",
    '{"b":"x","a":1}', '{"c":1}', '{"a":1,"c":[2]}', '{"a"}', '{"a":}', '{"x":1,"x":2}', '{"x":1}', '{"x":1,"y":2}', '[{"a":1},{"a":1,"a":1}]', "",
    "null", "null null", "1 2",
]  # fmt: skip


def schema(*fields: Column, **more: Any) -> RecordSchema:
    return RecordSchema(format="Json", fields=fields, **more)


def of(kind: str, **more: Any) -> RecordSchema:
    return schema(Column(name="id", type="long"), Column(name="x", type=kind, **more))


@pytest.mark.parametrize("kind", USUAL)
def test_usual_values_of_a_type_are_accepted(kind: str) -> None:
    values = [f'{{"id": 1, "x": {text}}}'.encode() for text in [*USUAL[kind], "null"]]
    assert accepted(of(kind), values) == len(values)
    assert opened(of(kind)).accepts(values)


@pytest.mark.parametrize("kind", USUAL)
def test_values_of_any_type_are_accepted_only_if_they_fit(kind: str) -> None:
    texts = [*RARE, *(text for others in USUAL.values() for text in others)]
    pick = random.Random(kind)
    values = [f'{{"x":{text}}}'.encode("utf-8", "surrogatepass") for text in texts]
    values += [damaged(pick, value) for value in values]
    for epoch in ("s", "ms", "us", "ns"):
        for truncate in (False, True):
            given = of(kind, epoch=epoch).model_copy(update={"truncate_times": truncate})
            check = opened(given)
            check.learn([b'{"x":{"y":2,"x":1}}'])
            accepted(given, values, check)


@pytest.mark.parametrize("kind", ["time", "timestamp", "timestamptz", "list<timestamptz>"])
def test_times_that_are_truncated_can_have_more_digits(kind: str) -> None:
    texts = {"time": "12:30:00.1234567", "timestamp": "2026-11-28T12:30:00.123456789"}
    text = texts.get(kind, "2026-11-28T12:30:00.1234567Z")
    value = json.dumps({"x": [text] if kind.startswith("list") else text}).encode()
    assert accepted(of(kind), [value]) == 0
    assert accepted(of(kind).model_copy(update={"truncate_times": True}), [value]) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"{}", b"{ }", b"[]", b"7", b"null", b"{", b'{"id":1', b'{"id":1}}', b'{"id":1}{"id":1}', b'{"id":1}\0{"id":1}', b'\0{"id":1}',
        b'\0\0\0\0{"id":1}', b'\0\0\0\0\7{"id":1}', b'\0\0\0\0\7', b'\0\0\0\0\0\0{"id":1}', b',"id":1}', b'{,"id":1}', b'{"id":1,}',
        b'{"id":1,"id":1}', b'{"id":1,"ID":1}', b'{"x":"a","id":1}', b'{"id":1 "x":"a"}', b'{"id":1,"x":"\xff"}', b'{"id":1,"x":"\xed\xa0\x80"}',
        b'\xef\xbb\xbf{"id":1}', b' {"id":1}', b'{"id":1} ', b'{"\\u0069d":1}', b'{"id":1,"other":1}', b'{"other":1,"id":1}', None,
    ],
)  # fmt: skip
def test_objects_of_any_form_are_accepted_only_if_they_fit(text: bytes | None) -> None:
    fields = (Column(name="id", type="long", required=True), Column(name="x", type="string"))
    for given in (schema(*fields), schema(fields[1]), schema(*fields, unknown_fields="DeadLetter")):
        accepted(given, [text, b'{"id":1,"x":"a"}'])


def test_a_value_with_the_separator_of_values_is_not_two_values() -> None:
    given = of("string")
    check = opened(given)
    pieces = [b'{"id":1}', b'{"id":1}\0{"id":2}', b"", b"\0", b'{"id":1}\0']
    for first in pieces:
        for second in pieces:
            assert check.accepts([first, second]) <= all(fits(given, [first, second]))


def test_required_fields_and_defaults_decide_as_in_the_strict_decoder() -> None:
    given = schema(
        Column(name="a", type="int", required=True),
        Column(name="b", type="int", required=True, default="7"),
        Column(name="c", type="int", default="8"),
    )
    members = [None, "null", "1"]
    values = [
        ("{" + ",".join(f'"{name}":{text}' for name, text in zip("abc", texts, strict=True) if text) + "}").encode()
        for texts in ((a, b, c) for a in members for b in members for c in members)
    ]
    assert accepted(given, [*values, None]) == sum(fits(given, [*values, None])) > 3


def test_another_order_of_members_is_learned_from_an_accepted_value() -> None:
    given = schema(
        Column(name="a", type="int"),
        Column(name="b", type="struct<c: int, d: list<struct<e: int, f: int>>>"),
        Column(name="g", type="int"),
    )
    check = opened(given)
    value = b'{"new":[1],"b":{"d":[{"f":1,"e":2}],"c":1},"a":1}'
    plain = value.replace(b"[1]", b'"x"')
    assert not check.accepts([plain])
    check.learn([b'{"a":1}', value])
    assert check.accepts([plain])
    assert check.accepts([b'{"b":null,"a":1,"g":5}', b'{"a":1,"g":7}'])
    assert not check.accepts([value])
    assert accepted(given, [plain, value, b'{"a":1,"a":1}', b'{"a":1,"b":{},"a":2}'], check) == 1


def test_keys_of_a_map_are_learned_and_none_may_occur_twice() -> None:
    given = of("map<string, date>")
    check = opened(given)
    check.learn([b'{"id":1,"x":{"from":"2026-01-01","to":"2026-01-02"}}'])
    values = [
        '{"from":"2026-02-02","to":null}', "{}", '{"from":"2026-02-02"}', '{"from":"2026-02-02","from":"2026-02-02"}', '{"from":"x","to":null}'
    ]  # fmt: skip
    assert accepted(given, [f'{{"x":{value}}}'.encode() for value in values], check) == 2


def test_random_orders_do_not_make_the_check_forget_to_be_right() -> None:
    pick, names = random.Random(5), "abcdefgh"
    given = schema(*(Column(name=name, type="int") for name in names))
    check = opened(given)
    for _ in range(300):
        order = pick.sample(names, pick.randint(1, 8)) + pick.choices(names, k=pick.randrange(2))
        value = ("{" + ",".join(f'"{name}":{pick.choice(("1", "null"))}' for name in order) + "}").encode()
        accepted(given, [value], check)
        if fits(given, [value])[0]:
            check.learn([value])


@pytest.mark.parametrize(
    "more", [{"renames": (Rename(old="was", new="x"),)}, {"unknown_column": "rest"}, {"unknown_fields": "DeadLetter"}]
)
def test_members_that_the_schema_does_not_name(more: Any) -> None:
    given = schema(Column(name="id", type="long"), Column(name="x", type="int"), **more)
    check = opened(given)
    values = [
        b'{"id":1,"was":2}',
        b'{"was":2,"x":3}',
        b'{"was":"y"}',
        b'{"id":1,"rest":1e999}',
        b'{"id":1,"other":[]}',
        b'{"id":1}',
    ]
    check.learn(values[:1])
    assert accepted(given, values, check) == 1


def test_names_that_json_has_to_escape_have_no_quick_check() -> None:
    given = schema(Column(name='a"b', type="int"), Column(name="größe", type="int"))
    assert accepted(given, [json.dumps({'a"b': 1}).encode(), '{"größe":1}'.encode()]) == 0
    assert accepted(schema(Column(name="größe", type="int")), ['{"größe":1}'.encode()]) == 1


def many(count: int) -> tuple[RecordSchema, list[bytes]]:
    names = [f"column_{place:04}" for place in range(count)]
    value = "{" + ",".join(f'"{name}":"2026-11-28T12:30:00"' for name in names) + "}"
    return schema(*(Column(name=name, type="timestamp") for name in names)), [value.encode()]


def test_a_schema_with_so_many_fields_that_the_event_loop_would_stop_has_no_quick_check() -> None:
    usual, large = many(30), many(100)
    assert accepted(*usual) == 1
    assert accepted(*large) == 0
    assert fits(*large) == [True]


def test_of_too_many_orders_of_members_the_newest_ones_count() -> None:
    given, _ = many(14)
    names, check = [field.name for field in given.fields], opened(given)
    orders = [names[place:] + names[:place] for place in range(1, 5)]
    values = [("{" + ",".join(f'"{name}":null' for name in order) + "}").encode() for order in orders]
    for value in values:
        check.learn([value])
        for _ in range(100):
            check.learn([value])
    assert [check.accepts([value]) for value in values] == [False, False, True, True]


def test_members_whose_names_no_column_can_have_are_checked() -> None:
    fields = Column(name="order-id", type="long"), Column(name="x", type="struct<'a.b': int, '@id': string>")
    values = [b'{"order-id":1,"x":{"a.b":2,"@id":"c"}}', b'{"order-id":"1"}', b'{"x":{"a.b":"2"}}', b'{"order.id":"1"}']
    assert accepted(schema(*fields), values) == 1
