import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from firn.model.conditions import Reason
from firn.model.jobs import Column, RecordSchema
from firn_spark.ingestion import jobs
from firn_spark.ingestion.rounds.committing import first_halts, halt
from firn_spark.ingestion.rounds.failures import classify
from firn_spark.ingestion.rounds.landing_job import forced, parse_results
from firn_spark.ingestion.rounds.planning import slices
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.tables.commits import Landed
from firn_spark.tables.dead_letters import ahead, letters, moment
from firn_spark.worker.fetching.slices import Slice
from tests.unit.spark_driver.topic import job, topic

RANGES = st.dictionaries(
    st.integers(0, 40),
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 100), st.integers(1, 100)), min_size=1),
    min_size=1,
)


def cover(groups: Sequence[Sequence[Slice]]) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the range of each partition. Its parts have to meet, and none may overlap another."""
    ranges: dict[tuple[str, int], tuple[int, int]] = {}
    for part in sorted((part for group in groups for part in group), key=lambda part: part.start):
        first, end = ranges.get((part.topic, part.partition), (part.start, part.start))
        assert part.start == end < part.end
        ranges[part.topic, part.partition] = first, part.end
    return ranges


@given(RANGES, st.integers(1, 4), st.integers(1, 2_000))
def test_slices_cover_each_range_once(drawn: Any, tasks: int, scale: int) -> None:
    planned = {
        topic(f"t{name}"): {part: (start * scale, (start + length) * scale) for part, (start, length) in ranges.items()}
        for name, ranges in drawn.items()
    }
    groups = slices(planned, tasks)
    assert 1 <= len(groups) <= tasks
    wanted = {(one.job.topic, part): bounds for one, ranges in planned.items() for part, bounds in ranges.items()}
    assert cover(groups) == wanted


@pytest.mark.parametrize(("record_bytes", "records"), [(1024.0, 3_500), (128.0, 28_000), (100_000.0, 35)])
def test_a_topic_with_few_bytes_stays_in_one_task(record_bytes: float, records: int) -> None:
    planned = {topic(name, record_bytes=record_bytes): {0: (0, records), 1: (5, records)} for name in ("a", "b", "c")}
    groups = slices(planned, 4)
    assert len(groups) == 3
    assert all(len({part.topic for part in group}) == 1 for group in groups)


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_all_tasks_get_about_the_same_share_of_a_large_topic(partitions: int) -> None:
    groups = slices({topic("a"): dict.fromkeys(range(partitions), (100, 900100 // partitions))}, 4)
    sizes = [sum(part.end - part.start for part in group) for group in groups]
    assert len(sizes) == 4
    assert max(sizes) < 1.4 * min(sizes)


def test_few_large_records_are_divided_too() -> None:
    groups = slices({topic("a", record_bytes=1_000_000.0): {0: (0, 40)}}, 4)
    assert [sum(part.end - part.start for part in group) for group in groups] == [10, 10, 10, 10]


@given(st.integers(1, 400), st.floats(100.0, 8e6), st.integers(1, 3), st.integers(1, 64))
@example(18, 2.17e6, 1, 4)
def test_no_task_has_two_parts_of_a_partition(records: int, record_bytes: float, partitions: int, tasks: int) -> None:
    planned = {topic("a", record_bytes=record_bytes): dict.fromkeys(range(partitions), (0, records))}
    for group in slices(planned, tasks):
        assert len({part.partition for part in group}) == len(group)


def test_no_task_has_few_bytes_while_others_have_more() -> None:
    groups = slices({topic("a", record_bytes=1024.0): {0: (0, 9_000)}}, 16)
    assert all(sum(part.end - part.start for part in group) >= 2_048 for group in groups)


def test_a_partition_that_may_halt_stays_in_one_task() -> None:
    halting = topic("a")
    halting.job = halting.job.model_copy(update={"on_bad_record": "Halt"})
    groups = slices({halting: {0: (0, 900_000), 1: (0, 50_000)}}, 4)
    assert sorted(len(group) for group in groups) == [1, 1]


def test_results_of_tasks_are_added_up() -> None:
    stats = {
        "rows": 3,
        "dead": 1,
        "skipped": 2,
        "excluded": 4,
        "unrouted": 0,
        "bytes": 50,
        "partitions": {"0": [10, 0, 9]},
        "code": "WrongKind",
        "path": "$.id",
        "times": {"at": [3, 1, "s", 5]},
        "rules": {},
        "filtered": {},
    }
    results = parse_results(
        [
            ("a", "data", "file 1"),
            ("a", "stats", json.dumps(stats)),
            ("a", "data", "file 2"),
            ("a", "dead", "file 3"),
            ("a", "stats", json.dumps(stats)),
            ("b", "error", json.dumps({"type": "OSError", "message": "no space"})),
            ("c", "dead-letters-missing", "{}"),
        ]
    )
    assert (results["a"].data, results["a"].dead) == (["file 1", "file 2"], ["file 3"])
    assert (results["a"].rows, results["a"].dead_rows, results["a"].skipped, results["a"].excluded) == (6, 2, 4, 8)
    assert (results["a"].bytes, results["a"].records) == (100, 20)
    assert results["a"].times == {"at": (6, 2, "s", 5)}
    assert results["b"].error == "OSError: no space"
    assert results["c"].dead_letters_missing


def test_the_first_halt_of_a_partition_counts() -> None:
    def place(partition: int, offset: int) -> dict[str, object]:
        return {
            "partition": partition,
            "offset": offset,
            "code": "c",
            "stage": "s",
            "path": "",
            "detail": "",
            "rule": "",
        }

    halts = first_halts([place(0, 9), place(0, 4), place(1, 7)])  # type: ignore[list-item]
    assert {part: halt["offset"] for part, halt in halts.items()} == {0: 4, 1: 7}


def test_resume_is_parsed() -> None:
    assert forced(job(resume=None)) == {}
    assert forced(job(resume="skip:2:900")) == {2: frozenset({900})}


@pytest.mark.parametrize("text", ["skip", "skip:1", "skip:x:y", "skip:1:2:3", f"skip:1:{2**63}", "skip:1:2\n"])
def test_an_invalid_resume_makes_the_contract_invalid(text: str) -> None:
    assert jobs.parse(job().model_copy(update={"resume": text}).model_dump_json(), "test") is None


@pytest.mark.parametrize("code", ["137(SIGKILL, possible container OOM)", "52(JVM OOM)"])
def test_an_executor_killed_for_memory_is_reported(code: str) -> None:
    message = f"Job aborted due to stage failure: ... Reason: \nThe executor with id 3 exited with exit code {code}.\n"
    failure = classify(RuntimeError(message), topic())
    assert failure.reason == Reason.OUT_OF_MEMORY
    assert "raise the memory or overhead" in str(failure)


def test_only_dead_letters_of_the_same_topic_can_be_ahead() -> None:
    landed = Landed("id", 3, {0: 20, 1: 5, 2: 7})
    assert ahead(landed, "id", {0: 10, 1: 5}) == {0: 20, 2: 7}
    assert ahead(landed, "another id", {0: 10}) == {}
    assert ahead(None, "id", {}) == {}


@pytest.mark.parametrize("now", [500, 5000])
def test_dead_letter_times_of_a_new_topic_follow_all_earlier_ones(now: int) -> None:
    base = Landed("old", 3, {0: 20}, letters=(900, 1000))
    since, until = letters(base, "new", now)
    assert since > 1000 == until
    assert moment([Landed("new", 4, {}, letters=(since, until)), None], now) >= since
    assert letters(base, "old", now) == (900, 1000)


@pytest.mark.parametrize(
    ("path", "column"),
    [("$.a.b[3]", "a"), ("$.a", "a"), ("$", ""), ("$.secret-4711", ""), ("$.other", ""), ('$["4711"]', "")],
)
def test_a_halt_tells_no_part_of_the_record(path: str, column: str) -> None:
    halted = topic(record_schema=RecordSchema(format="Json", fields=(Column(name="a", type="int"),)))
    halt(
        halted,
        2,
        {
            "partition": 2,
            "offset": 9,
            "code": "WrongKind",
            "stage": "Schema",
            "path": path,
            "detail": "4711",
            "rule": "",
        },
    )
    assert halted.halted is not None
    assert halted.halted.column == column
    assert "4711" not in progress_of(halted, 0, 0).model_dump_json()
