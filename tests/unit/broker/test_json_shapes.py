"""JSON values come back from the columns of their rows, byte for byte."""

import json
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from firn_broker.history.shapes import choosing, finding
from firn_broker.history.shapes.choosing import MOST_FAILURES, MOST_SHAPES, Chooser
from firn_broker.history.shapes.shape import Object
from tests.unit.broker.typed_rows import Typed

TOKENS: Mapping[str, list[list[str]]] = {
    "boolean": [["true", "false"]],
    "int": [["0", "-7", "2147483647"]],
    "long": [["0", "-9223372036854775808"]],
    "double": [
        ["0.0", "-0.0", "3.0", "0.1", "1e+16", "1.5e-05", "123456789.123", "5e-324", "1e+21", "9999999999999998.0", "0.0001"],
        ["0.0", "-0.0", "3.0", "1e16", "1.5e-6", "0.00001", "1000000000000000.0", "12345678901.5"],
        ["0.0", "-0.0", "3.0", "1.0E7", "9999999.0", "0.001", "1.0E-4", "1.2345678912E10", "4.9E-324", "-9.9E-324"],
        ["0", "3", "0.1", "0.000001", "1e-7", "100000000000000000000", "1e+21", "1.5e+300"],
        ["0", "-0", "3", "0.1", "1e-7", "1e+21"],
        ["0", "3", "1E+15", "1E-06", "1.5E+20", "0.00001"],
        ["0.50", "12.25", "-3.00", "100.10"],
        ["1", "7", "-3", "1234567"],
    ],
    "float": [
        ["0.1", "3.0", "16777216.0", "1e-05", "3.4028235e+38"],
        ["0.1", "3", "16777216"],
        ["0.5", "1.0E10", "3.0", "1.4E-45"], ["0.10000000149011612", "1e-07", "0.5"],
    ],
    "decimal(10, 2)": [["1.50", "0.00", "-12345678.90"], ["1.5", "0", "-3"], ['"1.50"', '"0.10"'], ['"1.5"', '"10"']],
    "string": [
        ['"plain"', '""', r'"\"\\\/"'.replace(r"\/", "/"), '"é€😀"', r'"\n\t\b\f\r\u0000\u001f"', '"<>&"'],
        ['"plain"', r'"\u00e9\ud83d\ude00"', r'"\n\u0001\u007f"'],
        [r'"\u001F\u000B"', '"é"'],
        [r'"\u003c\u003e\u0026\u003d\u0027\u2028"', '"é"', r'"\""'],
        [r'"\u003c\u003e\u0026\u2028"', '"=é"', r'"\b\f"'],
        [r'"\u003c"', r'"\u0008\u000c\n"'],
        [r'"a\/b"', r'"\u00e9"'],
        [r'"\u0022\u0027\u002B\u0060"', r'"\u00E9"', r'"\\"'],
    ],
    "date": [['"2026-11-25"', '"0001-01-01"', '"9999-12-31"']],
    "time": [['"10:20:30"', '"00:00:00"'], ['"10:20:30.123"', '"10:20:30.000"'], ['"10:20"', '"10:20:30.123"', '"10:20:30"']],
    "timestamptz": [
        ['"2026-11-25T10:20:30.123Z"', '"1969-12-31T23:59:59.999Z"'],
        ['"2026-11-25T10:20:30Z"', '"2026-11-25T10:20:30.120Z"', '"2026-11-25T10:20:30.123456Z"'],
        ['"2026-11-25T10:20:30.5Z"', '"2026-11-25T10:20:30Z"', '"2026-11-25T10:20:30.123456Z"'],
        ['"2026-11-25T10:20:30+00:00"', '"2026-11-25T10:20:30.120000+00:00"'],
        ['"2026-11-25 10:20:30.123+02:00"', '"2026-01-01 00:30:00.000+02:00"'],
        ['"2026-11-25T10:20:30.123000000-0530"', '"2026-11-25T00:20:30.000000000-0530"'],
        ["1764066030123", "0", "-1"],
    ],
    "timestamp": [['"2026-11-25T10:20"', '"2026-11-25T10:20:30"', '"2026-11-25T10:20:30.500"'], ['"2026-11-25T10:20:30.123456"']],
    "timestamp_ns": [['"2026-11-25T10:20:30.123456789"', '"2026-11-25T10:20:30.000000001"']],
    "uuid": [['"12345678-90ab-cdef-1234-567890abcdef"'], ['"12345678-90AB-CDEF-1234-567890ABCDEF"']],
    "binary": [['"AQI="', '""', '"/+8="']],
    "fixed[2]": [['"AQI="', '"AAA="']],
    "list<string>": [['["a", "b"]', "[]", '["c"]', '["a", null, ""]']],
    "list<list<int>>": [["[[1,2],[]]", "[]", "[[],[3]]", "[null,[4]]"]],
    "map<string, int>": [['{"a": 1, "b": 2}', "{}", '{"c": null}']],
    "map<string, struct<a: int>>": [['{"k": {"a": 1}, "l": null}', '{"m": {"a": null}}']],
    "map<int, boolean>": [['{"1": true, "2": false}', "{}"]],
    "struct<a: int, b: string>": [['{"a": 1, "b": "x"}', '{"a": null, "b": "y"}'], ['{"b": "x", "a": 1}'], ['{"a": 1}', "{}", '{"a": 2, "b": "x"}']],
    "list<struct<a: int, b: string>>": [['[{"a": 1, "b": "x"}, {"a": 2, "b": null}]', "[]"], ['[{"a": 1}, {"a": 2, "b": "x"}, {"b": "y"}]']],
}  # fmt: skip
CASES = [(kind, tokens) for kind, lists in TOKENS.items() for tokens in lists]
Writer = Callable[[Mapping[str, Any]], bytes]


def _compact(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()


WRITERS: Mapping[str, Writer] = {
    "spaces": lambda record: json.dumps(record).encode(),
    "compact": _compact,
    "indented": lambda record: json.dumps(record, indent=2).encode() + b"\n",
    "without null": lambda record: _compact({name: value for name, value in record.items() if value is not None}),
    "in another order": lambda record: _compact(dict(reversed(list(record.items())))),
    "framed": lambda record: b"\0\0\0\0\xfd" + _compact(record),
}
ORDERS = Typed(
    {"id": "long", "name": "string", "price": "double", "paid": "boolean", "place": "struct<city: string, zip: int>", "tags": "list<string>"}
)  # fmt: skip


def orders(seed: int, count: int) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    return [
        {
            "id": chance.randrange(2**53),
            "name": chance.choice(["plain", 'a "quoted" \\ one', "tab\t", "é€😀", None]),
            "price": chance.choice([3.0, 0.1, 1e-7, round(chance.random() * 100, 2), None]),
            "paid": chance.choice([True, False, None]),
            "place": chance.choice([None, {"city": chance.choice(["Bern", None]), "zip": chance.randrange(9_999)}]),
            "tags": chance.choice([None, [], ["a"], ["b", "c,d"]]),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize(("kind", "tokens"), CASES, ids=lambda each: each if isinstance(each, str) else each[0])
def test_each_form_of_a_type_comes_back(kind: str, tokens: list[str]) -> None:
    typed = Typed({"x": kind, "n": "int"})
    texts = [f'{{"x":{token},"n":{number}}}'.encode() for number, token in enumerate([*tokens, "null"] * 3)]
    assert typed.unshaped(texts) == []


@pytest.mark.parametrize("name", list(WRITERS))
def test_records_of_one_writer_come_back(name: str) -> None:
    chooser = Chooser(ORDERS.names)
    for seed in range(4):
        assert ORDERS.unshaped([WRITERS[name](record) for record in orders(seed, 300)], chooser) == []
    chooser.order(chooser.numbers(*ORDERS.compared([WRITERS[name](record) for record in orders(9, 300)])))
    # This writer leaves empty arrays on one line.
    assert len(chooser.shapes) == (2 if name == "indented" else 1)


def test_records_of_several_writers_come_back() -> None:
    chance = random.Random(5)
    texts = [chance.choice(list(WRITERS.values()))(record) for record in orders(5, 900)]
    chooser = Chooser(ORDERS.names)
    assert ORDERS.unshaped(texts, chooser) == []
    assert len(chooser.shapes) <= MOST_SHAPES


def test_other_values_have_no_shape() -> None:
    texts: list[bytes | None] = [_compact(record) for record in orders(1, 60)]
    odd = [
        b'{"id":1,"other":2}',  # the table does not have it
        b'{"id":1 ,"name":"a","price":1.5}',  # white space changes
        rb'{"id":1,"name":"\u0061"}',  # an escape that needs none
        b'{"id":1,"price":1.50e0}',
    ]
    assert sorted(ORDERS.unshaped([*texts[:20], *odd, None, *texts[20:]])) == sorted(odd)


def test_shapes_of_few_records_leave_room_for_others() -> None:
    texts = [b'{"id":%d,%s"name":"a"}' % (number, b" " * number) for number in range(2 * MOST_SHAPES)]
    chooser = Chooser(ORDERS.names)
    chooser.order(chooser.numbers(*ORDERS.compared(texts)))
    assert ORDERS.unshaped([_compact(record) for record in orders(1, 60)], chooser) == []


def test_free_text_costs_no_more_than_a_few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [b'{"id":%d,%s"name":"a"}' % (number, b" " * number) for number in range(300)]
    chooser, looked = Chooser(ORDERS.names), list[bytes]()

    def counted(text: bytes, *given: Any) -> Iterator[Object]:
        looked.append(text)
        return finding.find(text, *given)

    monkeypatch.setattr(choosing, "find", counted)
    ORDERS.unshaped(texts, chooser)
    assert len(chooser.shapes) <= MOST_SHAPES
    assert 1 <= len(looked) <= MOST_FAILURES + MOST_SHAPES
