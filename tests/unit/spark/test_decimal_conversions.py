"""Conversions to decimals agree with exact arithmetic, also beyond the digits that Arrow's decimals can hold."""

import random
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

from firn.schemas.projections import exact_decimal
from firn.tables import types
from firn.tables.types import Primitive, Type
from firn_spark.worker.projections.casts import Cast

EXACT = Context(prec=3000, Emax=10**6, Emin=-(10**6))
STRING = Primitive("string")


def expected(value: Decimal, kind: types.Decimal) -> Decimal | None:
    """Return the value if the type has it, by arithmetic that rounds nothing."""
    unscaled = value.scaleb(kind.scale, EXACT)
    whole = unscaled == unscaled.to_integral_value(context=EXACT)
    return value if whole and abs(unscaled) < 10**kind.precision else None


def check(before: Type, after: Type, values: pa.Array, wanted: Sequence[Any]) -> None:
    found, bad = Cast(before, after).apply(values)
    assert found.to_pylist() == list(wanted), (str(before), str(after), values)
    assert set(bad) == {place for place, value in enumerate(wanted) if value is None}


def number(pick: random.Random) -> str:
    digits = "".join(pick.choices("0123456789", k=pick.choice([1, 3, 10, 20, 30, 38, 39, 60, 80])))
    text = pick.choice(["", "-"]) + pick.choice(["", "0", "000"]) + digits
    if pick.random() < 0.5:
        text += "." + "".join(pick.choices(pick.choice(["0", "0123456789"]), k=pick.choice([1, 5, 20, 38, 60])))
    if pick.random() < 0.3:
        text += pick.choice("eE") + pick.choice(["", "-", "+"]) + str(pick.choice([0, 1, 5, 30, 38, 76, 100, 999]))
    return text


def decimal_type(pick: random.Random) -> types.Decimal:
    scale = pick.randint(0, 38)
    return types.Decimal(pick.randint(max(1, scale), 38), scale)


@pytest.mark.parametrize("seed", range(3))
def test_texts_become_the_same_decimals_or_are_bad(seed: int) -> None:
    pick = random.Random(seed)
    for _ in range(60):
        kind, texts = decimal_type(pick), [number(pick) for _ in range(40)]
        wanted = [expected(Decimal(text), kind) for text in texts]
        check(STRING, kind, pa.array(texts), wanted)
        assert [exact_decimal(text, kind) for text in texts] == wanted


@pytest.mark.parametrize("seed", range(3))
def test_decimals_become_the_same_values_or_are_bad(seed: int) -> None:
    pick = random.Random(seed)
    for _ in range(60):
        before, after = decimal_type(pick), decimal_type(pick)
        digits = [tuple(map(int, str(pick.randrange(1, 10 ** pick.randint(1, before.precision))))) for _ in range(40)]
        values = [Decimal((pick.randint(0, 1), each, -before.scale)) for each in digits]
        array = pa.array(values, pa.decimal128(before.precision, before.scale))
        check(before, after, array, [expected(value, after) for value in values])
        whole = [value == value.to_integral_value(context=EXACT) for value in values]
        longs = [int(value) if each and abs(value) < 2**63 else None for value, each in zip(values, whole, strict=True)]
        check(before, Primitive("long"), array, longs)
        check(before, Primitive("double"), array, [float(value) for value in values])
        check(before, STRING, array, [format(value, "f") for value in values])


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("340282366920938463463374607431768211461", "decimal(9,2)", None),
        (str(2**256 - 1), "decimal(38,0)", None),
        ("9" * 39, "decimal(38,0)", None),
        ("9" * 38, "decimal(38,0)", Decimal("9" * 38)),
        ("1" * 30, "decimal(38,10)", None),
        ("0." + "0" * 60 + "1", "decimal(9,2)", None),
        ("1." + "0" * 5000, "decimal(9,2)", Decimal(1)),
        ("0" * 5000 + "1", "decimal(9,2)", Decimal(1)),
        ("1" * 5000, "decimal(38,0)", None),
        ("1e-999", "decimal(38,38)", None),
        ("0e999", "decimal(9,2)", Decimal(0)),
        ("12e-1", "decimal(9,2)", Decimal("1.2")),
    ],
)
def test_a_text_with_many_digits_is_no_other_number(text: str, kind: str, value: Decimal | None) -> None:
    check(STRING, types.parse(kind), pa.array(["0", text]), [Decimal(0), value])
