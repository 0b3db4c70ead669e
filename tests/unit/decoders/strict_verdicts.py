"""Compare a quick check with the strict decoder of its schema."""

from collections.abc import Sequence

from firn.decoders.bad_records import BadRecordError
from firn.decoders.checks import check_of
from firn.decoders.quick_checks.opening import QuickCheck, quick_check_of
from firn.model.jobs import RecordSchema

Value = bytes | None


def opened(schema: RecordSchema) -> QuickCheck:
    """Return the quick check of a schema that has one."""
    check = quick_check_of(schema)
    assert check is not None
    return check


def fits(schema: RecordSchema, values: Sequence[Value]) -> list[bool]:
    """Return the verdicts of the strict decoder."""
    check = check_of(schema)

    def good(value: Value) -> bool:
        try:
            check(value)
        except BadRecordError:
            return False
        return True

    return [good(value) for value in values]


def accepted(schema: RecordSchema, values: Sequence[Value], check: QuickCheck | None = None) -> int:
    """Return how many values the quick check accepts, each alone. Fail if the strict decoder refuses one of them."""
    check = check or opened(schema)
    quick, strict = [check.accepts([value]) for value in values], fits(schema, values)
    wrong = [value for value, sure, fit in zip(values, quick, strict, strict=True) if sure and not fit]
    assert not wrong, f"the quick check accepts {wrong[0]!r}"
    for start in range(0, len(values), 7):
        part = slice(start, start + 7)
        assert all(strict[part]) or not check.accepts(values[part]), f"it accepts all of {values[part]!r}"
    return sum(quick)
