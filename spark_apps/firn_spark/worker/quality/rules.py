"""Judges rows by the quality rules of a topic."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, QualityRule, Rename
from firn.quality.binding import bind
from firn.quality.expressions import names
from firn.tables.rows import METADATA_COLUMN
from firn_spark.worker.quality.kernels import Kernel, call, kernel

Mask = npt.NDArray[np.bool_]


class FailedRule(BadRecordError):
    """A record that fails a rule. One error stands for all records that fail the rule."""

    def __init__(self, rule: QualityRule, field: str) -> None:
        super().__init__(Code.QUALITY_RULE, Stage.QUALITY, f"rule {rule.name}: {rule.check}")
        self.rule = rule.name
        self.on_fail = rule.on_fail
        if field:
            self.within(f".{field}")


@dataclass(frozen=True, slots=True)
class Failures:
    """The records of a batch that fail a rule."""

    error: FailedRule
    mask: Mask


class Rules:
    """The rules of a topic, ready for its table."""

    def __init__(self, rules: Sequence[QualityRule], columns: Sequence[Column], renames: Sequence[Rename] = ()) -> None:
        """Compile the rules for a table with these columns. Raises InvalidSpecError if a check does not fit the table."""
        self._rules = [_compiled(rule, columns, renames) for rule in rules]

    def judge(self, columns: Mapping[str, pa.Array], bad: Collection[int]) -> list[Failures]:
        """Return the rules that records fail, in order. The records at the indices ``bad`` have no row to judge."""
        places = np.fromiter(bad, np.int64, len(bad))
        found = []
        for error, check in self._rules:
            passed = check(columns)
            if call("all", passed).as_py() is not False:  # A check that is null passes, as in SQL.
                continue
            mask: Mask = ~call("coalesce", passed, pa.scalar(True)).to_numpy(zero_copy_only=False)
            mask[places] = False
            if mask.any():
                found.append(Failures(error, mask))
        return found


class Filter:
    """The filter of a topic, ready for its table."""

    def __init__(self, condition: str, columns: Sequence[Column], renames: Sequence[Rename] = ()) -> None:
        """Compile the condition for a table with these columns. Raises InvalidSpecError if it does not fit the table."""
        try:
            self._check = kernel(bind(condition, columns, renames))
        except InvalidSpecError as error:
            raise InvalidSpecError(f"spec.schema.filter: {error}", reason=error.reason) from None
        except pa.ArrowInvalid as error:
            raise InvalidSpecError(f"spec.schema.filter: {error}") from error

    def left_out(self, columns: Mapping[str, pa.Array]) -> Mask:
        """Return the rows that do not land: those for which the condition is false or null, as with WHERE in SQL."""
        passed = self._check(columns)
        mask: Mask = ~call("coalesce", passed, pa.scalar(False)).to_numpy(zero_copy_only=False)
        return mask


def first_errors(failures: Iterable[Failures]) -> dict[int, FailedRule]:
    """Return the cause for each record that fails a rule other than Count: the first rule with Halt, else the first one."""
    errors: dict[int, FailedRule] = {}
    for action in ("Halt", "DeadLetter"):
        for each in failures:
            if each.error.on_fail == action:
                for index in np.flatnonzero(each.mask).tolist():
                    errors.setdefault(index, each.error)
    return errors


def _compiled(rule: QualityRule, columns: Sequence[Column], renames: Sequence[Rename]) -> tuple[FailedRule, Kernel]:
    try:
        expression = bind(rule.check, columns, renames)
        compiled = kernel(expression)
    except InvalidSpecError as error:
        raise InvalidSpecError(f"quality rule {rule.name}: {error}", reason=error.reason) from None
    except pa.ArrowInvalid as error:
        raise InvalidSpecError(f"quality rule {rule.name}: {error}") from error
    first = next((name.path for name in names(expression) if not name.path[0].startswith(METADATA_COLUMN)), ())
    return FailedRule(rule, ".".join(first)), compiled
