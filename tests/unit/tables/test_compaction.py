"""Properties of the plan: rewrites that it must not make, and a table that stays small under any writer."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, pairwise

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

from firn.model.maintenance import CompactionWork
from firn.tables import compaction
from firn.tables.compaction import CommitTimes, DataFile, Group, is_small, is_worn, manifests_fragmented, plan

MIB = 1024 * 1024
DAY = 86_400_000
NOW = 1_800_000_000_000
GRACE = 300_000
TARGET = 512 * MIB
WORK = CompactionWork(target_file_bytes=TARGET, open_grace_ms=GRACE)


def small(path: str, size: int = MIB, age: int = 2 * GRACE, **more: object) -> DataFile:
    return DataFile(path, size, 1000, str(more.pop("partition", "p")), 0, NOW - age, **more)  # type: ignore[arg-type]


def lag(groups: Sequence[Group]) -> int:
    """Return how long the oldest due group has been due, or 0 without one."""
    return max((NOW - group.owed_ms for group in groups), default=0)


@st.composite
def tables(draw: st.DrawFn) -> list[DataFile]:
    sizes = st.one_of(
        st.integers(1, 2 * TARGET),
        st.integers(1, 4 * MIB),
        st.sampled_from([MIB, TARGET // 2, TARGET * 3 // 4, TARGET]),
    )
    files = []
    for number in range(draw(st.integers(0, 120))):
        records = draw(st.integers(0, 1000))
        dirty = draw(st.booleans()) and draw(st.booleans())
        files.append(
            DataFile(
                path=f"f{number}",
                bytes=draw(sizes),
                records=records,
                partition=draw(st.sampled_from("ab")),
                spec_id=draw(st.integers(0, 1)),
                added_ms=NOW - draw(st.one_of(st.integers(0, 2 * GRACE), st.integers(0, 3 * DAY))),
                deletes=draw(st.integers(0, 1200)) if dirty else 0,
                delete_files=draw(st.integers(1, 15)) if dirty else 0,
                arranged=draw(st.booleans()),
            )
        )
    return files


works = st.builds(
    CompactionWork,
    target_file_bytes=st.sampled_from([64 * MIB, TARGET]),
    open_grace_ms=st.sampled_from([0, GRACE]),
    delete_file_ratio=st.sampled_from([0.1, 0.3, 1.0]),
    everything=st.booleans(),
)


@pytest.mark.slow
@seed(1)
@given(tables(), works)
def test_a_plan_takes_each_old_file_once_within_partition_and_spec(files: list[DataFile], work: CompactionWork) -> None:
    by_path = {file.path: file for file in files}
    groups = plan(files, work, NOW)
    taken = [file for group in groups for file in group.files]
    assert len({file.path for file in taken}) == len(taken)
    for group in groups:
        assert group.files
        assert {(file.partition, file.spec_id) for file in group.files} == {(group.partition, group.spec_id)}
        assert all(by_path[file.path] is file for file in group.files)
        assert all(file.added_ms <= NOW - work.open_grace_ms for file in group.files)
        assert list(group.files) == sorted(group.files, key=lambda file: (file.added_ms, file.path))


@pytest.mark.slow
@seed(2)
@given(tables(), works, st.randoms(use_true_random=False))
def test_a_plan_does_not_depend_on_the_order_of_files(
    files: list[DataFile], work: CompactionWork, shuffle: random.Random
) -> None:
    other = list(files)
    shuffle.shuffle(other)
    assert plan(other, work, NOW) == plan(files, work, NOW)


@pytest.mark.slow
@seed(3)
@given(tables(), works)
def test_every_group_improves_its_files(files: list[DataFile], work: CompactionWork) -> None:
    for group in plan(files, work, NOW):
        match group.reason:
            case "SmallFiles":
                assert len(group.files) > group.outputs
                assert group.bytes >= 2 * max(file.bytes for file in group.files), (
                    "the file of each row at least doubles"
                )
                assert all(is_small(file.bytes, work.target_file_bytes) for file in group.files)
                assert group.outputs == 1 or group.bytes // group.outputs * 4 >= work.target_file_bytes * 3 - 4
            case "Settled":
                assert len(group.files) - group.outputs >= 3
                assert all(file.added_ms <= NOW - compaction.QUIET_MS for file in group.files)
            case "Deletes":
                assert all(is_worn(file, work) for file in group.files)
            case "Arrange":
                assert work.everything


@pytest.mark.slow
@seed(4)
@given(tables(), works)
def test_every_worn_file_in_reach_is_rewritten(files: list[DataFile], work: CompactionWork) -> None:
    taken = {file.path for group in plan(files, work, NOW) for file in group.files}
    for file in files:
        if file.added_ms <= NOW - work.open_grace_ms and is_worn(file, work):
            assert file.path in taken


@pytest.mark.slow
@seed(5)
@given(tables(), works)
def test_large_clean_files_may_be_omitted(files: list[DataFile], work: CompactionWork) -> None:
    work = work.model_copy(update={"everything": False})
    # The newest file of a partition shows when it became quiet, so it is included here.
    newest = {(file.spec_id, file.partition): file.path for file in sorted(files, key=lambda file: file.added_ms)}
    kept = [
        file
        for file in files
        if is_small(file.bytes, work.target_file_bytes)
        or is_worn(file, work)
        or newest[file.spec_id, file.partition] == file.path
    ]
    assert plan(kept, work, NOW) == plan(files, work, NOW)


def applied(
    files: list[DataFile], groups: tuple[Group, ...], now: int, names: "count[int]", shrink: float
) -> list[DataFile]:
    """Return the files after the groups were rewritten. ``shrink`` is the ratio of merged files to their sources."""
    gone = {file.path for group in groups for file in group.files}
    out = [file for file in files if file.path not in gone]
    for group in groups:
        live = sum(file.live_bytes for file in group.files)
        rows = sum(max(file.records - file.deletes, 0) for file in group.files)
        if rows:
            out += [
                DataFile(
                    f"c{next(names)}",
                    max(1, int(live / group.outputs * shrink)),
                    max(1, rows // group.outputs),
                    group.partition,
                    group.spec_id,
                    now,
                )
                for _ in range(group.outputs)
            ]
    return out


@pytest.mark.slow
@seed(6)
@given(
    st.integers(0, 2**32),
    st.sampled_from([MIB // 8, MIB, 7 * MIB]),
    st.sampled_from([1.0, 1.6, 8.0]),
    st.sampled_from([1.0, 0.7]),
)
def test_small_files_are_bounded_and_rewrites_logarithmic(chance: int, size: int, spread: float, shrink: float) -> None:
    """A writer never stops for two days in one partition, with a plan every ten minutes."""
    rng = random.Random(chance)
    names = count()
    files: list[DataFile] = []
    appended = rewritten = 0
    commits = 10
    now = NOW
    most = 0
    rounds = 288
    for _ in range(rounds):
        for step in range(commits):
            length = max(1, int(size * spread ** rng.uniform(-1, 1)))
            appended += length
            files.append(DataFile(f"a{next(names)}", length, 1000, "p", 0, now + step * 60_000))
        now += 600_000
        groups = plan(files, WORK, now)
        rewritten += sum(group.bytes for group in groups)
        files = applied(files, groups, now, names, shrink)
        most = max(most, sum(is_small(file.bytes, TARGET) for file in files))
    depth = math.log2(TARGET / (size / spread)) + 1
    assert most <= commits + 3 * depth, "the files of a round, and some of each size class"
    assert rewritten <= appended * depth
    # The rest converges: without a writer plans soon become empty, and stay so.
    for _ in range(40):
        now += GRACE
        groups = plan(files, WORK, now)
        files = applied(files, groups, now, names, shrink)
    assert plan(files, WORK, now + GRACE) == ()
    now += DAY + GRACE
    files = applied(files, plan(files, WORK, now), now, names, 1.0)
    assert sum(is_small(file.bytes, TARGET) for file in files) <= 3, "a quiet partition is merged"
    assert plan(files, WORK, now + DAY + GRACE) == ()


@pytest.mark.slow
@seed(7)
@given(tables(), works)
def test_repeated_plans_come_to_an_end(files: list[DataFile], work: CompactionWork) -> None:
    work = work.model_copy(update={"everything": False})
    names = count()
    now = NOW
    for _ in range(60):
        now += GRACE
        groups = plan(files, work, now)
        files = applied(files, groups, now, names, 1.0)
    now += DAY
    files = applied(files, plan(files, work, now), now, names, 1.0)
    for _ in range(20):
        now += DAY
        if not (groups := plan(files, work, now)):
            break
        files = applied(files, groups, now, names, 1.0)
    assert plan(files, work, now) == ()


def test_a_late_trickle_does_not_rewrite_the_large_file_each_day() -> None:
    """A tiny late file arrives each day in an old partition, which has one file just below the limit for small
    files."""
    names = count()
    now = NOW
    big = TARGET // 2
    files = [DataFile("big", big, 10**6, "p", 0, now - DAY)]
    rewritten = 0
    for _ in range(70):
        now += DAY + GRACE
        files.append(DataFile(f"late{next(names)}", 10_000, 10, "p", 0, now - GRACE))
        groups = plan(files, WORK, now)
        rewritten += sum(group.bytes for group in groups)
        files = applied(files, groups, now, names, 1.0)
    assert rewritten <= 70 / 4 * big


@pytest.mark.parametrize(
    ("deletes", "delete_files", "worn"),
    [(0, 0, False), (29, 1, False), (30, 1, True), (100, 1, True), (0, 9, False), (1, 10, True), (0, 10, True)],
)
def test_deletes_are_a_reason_by_ratio_and_by_number(deletes: int, delete_files: int, worn: bool) -> None:
    large = DataFile("f", TARGET, 100, "p", 0, NOW - DAY, deletes=deletes, delete_files=delete_files)
    groups = plan([large], WORK, NOW)
    assert [group.reason for group in groups] == (["Deletes"] if worn else [])
    assert lag(groups) == (DAY - GRACE if worn else 0)


def test_a_file_is_due_since_its_first_delete() -> None:
    old = DataFile("f", TARGET, 100, "p", 0, NOW - 30 * DAY, deletes=50, delete_files=2, deleted_ms=NOW - 7)
    young = replace(old, path="g", added_ms=NOW - GRACE - 3)
    assert lag(plan([old], WORK, NOW)) == 7
    assert lag(plan([young], WORK, NOW)) == 3, "before that the file was within the grace"


def test_deletes_inside_the_grace_wait() -> None:
    young = DataFile("f", TARGET, 100, "p", 0, NOW - GRACE + 1, deletes=100, delete_files=1)
    assert plan([young], WORK, NOW) == ()


def test_equality_deletes_of_a_few_rows_count_by_their_files() -> None:
    files = [small(f"f{n}", TARGET, deletes=1, delete_files=12) for n in range(2)]
    assert {file.path for group in plan(files, WORK, NOW) for file in group.files} == {"f0", "f1"}


def test_three_small_files_wait_for_a_fourth() -> None:
    files = [small(f"f{n}") for n in range(3)]
    assert plan(files, WORK, NOW) == ()
    (group,) = plan([*files, small("f3")], WORK, NOW)
    assert (len(group.files), group.outputs, group.reason) == (4, 1, "SmallFiles")
    assert lag([group]) == GRACE


@pytest.mark.parametrize(("size", "grouped"), [(2 * MIB, True), (2 * MIB - 1, False)])
def test_a_group_has_at_least_twice_the_bytes_of_its_largest_file(size: int, grouped: bool) -> None:
    files = [small("large", 6 * MIB), *(small(f"f{n}", size) for n in range(3))]
    assert [len(group.files) for group in plan(files, WORK, NOW)] == ([4] if grouped else [])


def test_a_group_is_due_since_its_fourth_small_file() -> None:
    alone = [small(f"a{n}", age=30 * DAY) for n in range(3)]
    fourth = small("b", age=3 * GRACE)
    assert lag(plan([*alone, fourth], WORK, NOW)) == 2 * GRACE
    later = [small(f"c{n}", age=GRACE + n) for n in range(50)]
    assert lag(plan([*alone, fourth, *later], WORK, NOW)) == 2 * GRACE


def test_files_of_a_quiet_partition_are_due_since_it_closed() -> None:
    files = [small(f"f{n}", MIB << 2 * n, age=compaction.QUIET_MS + 5 * DAY - n) for n in range(4)]
    (group,) = plan(files, WORK, NOW)
    assert group.reason == "Settled"
    assert lag([group]) == 5 * DAY - 3


def test_a_backlog_is_grouped_by_target_size_and_time() -> None:
    files = [small(f"f{n:05}", MIB, age=DAY // 2 - n) for n in range(3000)]
    groups = plan(files, WORK, NOW)
    assert sum(group.outputs for group in groups) <= 6
    ranges = sorted((group.files[0].added_ms, group.files[-1].added_ms) for group in groups)
    assert all(earlier[1] <= later[0] for earlier, later in pairwise(ranges))


def test_many_tiny_files_are_split_into_groups_that_a_task_can_open() -> None:
    groups = plan([small(f"f{n}", 1000) for n in range(5000)], WORK, NOW)
    assert all(len(group.files) <= compaction.MAX_FILES for group in groups)
    assert sum(len(group.files) for group in groups) == 5000


def test_everything_takes_all_files_except_arranged_ones() -> None:
    work = WORK.model_copy(update={"everything": True, "strategy": "ZOrder", "columns": ("a",)})
    done = [small(f"d{n}", TARGET, partition="done", arranged=True) for n in range(3)]
    fresh = [small("x", TARGET, partition="new", arranged=True), small("y", 5, partition="new")]
    groups = plan([*done, *fresh], work, NOW)
    assert [[file.path for file in group.files] for group in groups] == [["x", "y"]]
    deleted = small("d9", TARGET, partition="done", arranged=True, deletes=900, delete_files=1)
    assert len(plan([*done, deleted], work, NOW)) == 1


def test_a_partly_arranged_partition_continues_with_the_rest() -> None:
    work = WORK.model_copy(update={"everything": True, "strategy": "ZOrder", "columns": ("a",)})
    half = compaction.ARRANGED_TARGETS
    done = [small(f"d{n}", TARGET, age=(400 - n) * GRACE, arranged=True) for n in range(half)]
    rest = [small(f"r{n}", TARGET, age=(200 - n) * GRACE) for n in range(half)]
    crumb = small("crumb", MIB, age=300 * GRACE, arranged=True)
    (group, *others) = plan([*done, *rest, crumb], work, NOW)
    assert {file.path for rewritten in (group, *others) for file in rewritten.files} == {
        "crumb",
        *(file.path for file in rest),
    }
    assert plan([*done, crumb], work, NOW) == ()


def test_the_lag_is_that_of_the_oldest_group() -> None:
    files = [small(f"f{n}", partition=p, age=(n + 3) * GRACE) for p in "ab" for n in range(5 + (p == "b"))]
    assert lag(plan(files, WORK, NOW)) == 4 * GRACE, "since the fourth of the six older files passed its grace"


@pytest.mark.parametrize(
    ("lengths", "wanted"),
    [
        ([], False),
        ([1000] * 10, False),
        ([1000] * 11, True),
        ([compaction.MANIFEST_BYTES] * 100, False),
        ([compaction.MANIFEST_BYTES // 4] * 40, True),
    ],
)
def test_manifests_are_fragmented_if_many_can_be_merged(lengths: list[int], wanted: bool) -> None:
    assert manifests_fragmented(lengths) is wanted


def test_a_file_of_a_removed_snapshot_is_as_old_as_the_next_known_one() -> None:
    times = CommitTimes({2: 20, 7: 70, 5: 50})
    assert [times.of(number) for number in (1, 2, 3, 5, 6, 7, 8)] == [20, 20, 50, 50, 70, 70, 70]
