"""Rows for which the filter of the topic is not true do not land, and are counted by partition."""

import json
from pathlib import Path
from typing import Any

import pytest

from firn.decoders.bad_records import Code
from firn.model.errors import InvalidSpecError
from firn.model.jobs import QualityRule, Rename
from firn.tables.renames import named
from firn_spark.worker.decoding import Decoded, Decoder
from firn_spark.worker.landing import LandingPlan, TopicLanding, land
from tests.unit.spark import records, tables
from tests.unit.spark.records import batch, fetched

VALUES = [b'{"a": 1}', b'{"a": 2}', b'{"a": null}', b"{}", b"{", b'{"a": 3}', None]


def job(condition: str, **changes: Any) -> Any:
    return records.job(("a", "int"), ("b", "string"), filter=condition, **changes)


def decoded(condition: str, values: Any = VALUES, *, columns: Any = None, **changes: Any) -> Decoded:
    return Decoder(job(condition, **changes), ingested_at=0).decode(fetched(values, **(columns or {})))


def offsets(found: Decoded) -> list[int]:
    return [row["offset"] for row in found.rows["_kafka"].to_pylist()]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("a > 1", [1, 5]),
        ("a is null or a = 1", [0, 2, 3, 6]),
        ("not a = 1", [1, 5]),  # null is not true, as in WHERE
        ("_kafka.offset > 2", [3, 5, 6]),
        ("a > 100", []),
        ("a is null or a > 0", [0, 1, 2, 3, 5, 6]),
    ],
)
def test_only_rows_for_which_the_condition_is_true_land(condition: str, kept: list[int]) -> None:
    found = decoded(condition)
    assert offsets(found) == kept
    assert found.dead is not None
    assert found.dead["_kafka"].to_pylist()[0]["offset"] == 4, "the filter does not decide about bad records"
    assert dict(found.filtered) == ({0: 6 - len(kept)} if len(kept) < 6 else {})
    assert found.skipped == found.excluded == 0


@pytest.mark.parametrize(
    "renamed",
    [
        (),
        ("a", "aa"),
        ("place.depth", "place.level"),
        ("place", "spot"),
        ("place.depth", "place.level", "place", "spot"),
    ],
)
def test_conditions_and_rules_may_have_earlier_names(renamed: tuple[str, ...]) -> None:
    steps = tuple(Rename(old=old, new=new) for old, new in zip(renamed[::2], renamed[1::2], strict=True))
    rule = QualityRule(name="deep", check="place.depth < 9 and a = 1")
    made = records.job(
        ("a", "int"), ("place", "struct<depth: double>"), filter="place.depth > 1", quality_rules=(rule,)
    )
    made = made.model_copy(update={"record_schema": named(made.record_schema, steps)})
    values = [f'{{"a": 1, "place": {{"depth": {depth}}}}}'.encode() for depth in (0, 5, 9)]
    found = Decoder(made, ingested_at=0).decode(fetched(values))
    assert (offsets(found), dict(found.filtered), dict(found.failed)) == ([1], {0: 1}, {"deep": 1})


def test_counts_are_by_partition() -> None:
    partitions = {"partition": [0, 1, 1, 2, 0, 2, 1], "offset": [7, 0, 1, 5, 8, 6, 2]}
    assert dict(decoded("a > 1", columns=partitions).filtered) == {0: 1, 1: 2, 2: 1}


def test_a_filtered_row_is_not_judged_by_rules() -> None:
    rules = (QualityRule(name="small", check="a < 3"), QualityRule(name="set", check="a is not null", on_fail="Count"))
    found = decoded("a > 1", quality_rules=rules)
    assert offsets(found) == [1]
    assert dict(found.failed) == {"small": 1}
    assert found.dead is not None
    assert [row["offset"] for row in found.dead["_kafka"].to_pylist()] == [4, 5]


def test_rows_beyond_a_halt_are_not_counted() -> None:
    decoder = Decoder(job("a > 1", on_bad_record="Halt"), ingested_at=0)
    found = decoder.decode(fetched(VALUES))
    assert [halt.offset for halt in found.halts] == [4]
    assert (offsets(found), dict(found.filtered)) == ([1], {0: 3})
    again = decoder.decode(fetched([b'{"a": 0}'], offset=[9]))
    assert (again.rows.num_rows, dict(again.filtered)) == (0, {})


def test_a_record_that_resume_skips_becomes_a_dead_letter_in_spite_of_the_filter() -> None:
    decoder = Decoder(job("a > 1"), ingested_at=0, force_dead={0: frozenset({0})})
    found = decoder.decode(fetched([b'{"a": 1}', b'{"a": 0}']))
    assert found.dead is not None
    assert (found.dead.num_rows, dict(found.filtered)) == (1, {0: 1})


def test_a_replay_keeps_letters_that_the_filter_leaves_out() -> None:
    found = Decoder(job("a > 1"), ingested_at=0, rows_only=True).decode(fetched(VALUES))
    assert offsets(found) == [1, 5]
    assert found.codes == {Code.FILTERED.value: 4, Code.INVALID_JSON.value: 1}
    assert (dict(found.filtered), found.skipped) == ({}, 5)


def test_a_condition_that_does_not_fit_the_table_names_its_place() -> None:
    with pytest.raises(InvalidSpecError, match=r"spec\.schema\.filter: .*'c' is not a column of the table"):
        Decoder(job("c > 1"), ingested_at=0)


def test_a_task_reports_filtered_records(tmp_path: Path) -> None:
    one = job("a > 1")
    plan = LandingPlan(
        {"t": TopicLanding(one, tables.table_of(one, tmp_path / "t"), tables.dead_letters(tmp_path / "d"))},
        ingested_at=0,
    )
    [result] = land(iter([batch(VALUES), batch(VALUES, partition=[1] * 7)]), plan)
    stats = [json.loads(row["json"]) for row in result.to_pylist() if row["kind"] == "stats"]
    assert stats[0]["filtered"] == {"0": 4, "1": 4}
    assert (stats[0]["rows"], stats[0]["dead"]) == (4, 2)
