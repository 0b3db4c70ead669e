"""The simulation finds a broken product within a few seeds. Otherwise it would prove nothing."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from firn.model.conditions import ConditionType
from firn.model.jobs import IngestJob
from firn.model.progress import Cause, described
from firn_controllers.conditions.render import Verdict
from firn_controllers.iceberg_topic import status
from firn_controllers.iceberg_topic.reports import completeness
from firn_spark.ingestion import jobs
from firn_spark.ingestion.publishing import publisher
from firn_spark.ingestion.publishing.checks import Checks
from firn_spark.ingestion.publishing.following import FollowBranch
from firn_spark.ingestion.rounds import planning, rounds
from firn_spark.ingestion.rounds.ahead import NextRound
from firn_spark.ingestion.rounds.committing import TopicCommits
from firn_spark.ingestion.rounds.landing_job import TopicResult
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.ingestion.rounds.rounds import Rounds
from firn_spark.ingestion.topics.state import Fence, Log
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import TopicInfo
from firn_spark.tables import claims, commits
from firn_spark.tables.branches.landing import head, head_of, lineage, unpublished
from firn_spark.tables.commits import Committer, Landed, newest, read_landed
from tests.simulation.product import driver
from tests.simulation.product.checker import CHECKS
from tests.simulation.product.story import Step, Story, story_of, tell
from tests.simulation.product.world import Options

SEEDS = range(100)
Patch = pytest.MonkeyPatch


class Unfenced(Committer):
    """Commits on top of any commit and any claim."""

    def commit(self, table: Any, descriptors: Any, base: Any, *rest: Any) -> Landed:
        return super().commit(table, descriptors, read_landed(table), *rest)

    def check(self, *_: Any) -> None:
        """Accept every commit."""

    def check_claim(self, *_: Any) -> None:
        """Accept every claim."""


def no_read_back(patch: Patch) -> None:
    """A request whose answer is missing is repeated without a look at the table."""

    def swap(table: Any, change: Any, points: Any, attempts: int = 12) -> None:
        table.refresh()
        if change.done(table):
            return
        for _ in range(attempts):
            try:
                table.operations().commit(*change.build(table))
                break
            except Exception:
                table.refresh()
                change.landed = newest(table)
        table.refresh()
        change.done(table)

    patch.setattr(commits, "swap", swap)


class LettersLast(TopicCommits):
    """Commits rows before dead letters."""

    waiting: Mapping[int, tuple[Any, ...]] = {}

    def _commit_dead(self, topic: Topic, *rest: Any) -> None:
        self.waiting = {**self.waiting, id(topic): rest}

    def _commit_rows(self, topic: Topic, *rest: Any) -> None:
        super()._commit_rows(topic, *rest)
        if id(topic) in self.waiting:
            super()._commit_dead(topic, *self.waiting[id(topic)])
            self.waiting = {key: value for key, value in self.waiting.items() if key != id(topic)}


class OffsetsFirst(Committer):
    """Commits the offsets before the rows."""

    def commit(self, table: Any, descriptors: Any, base: Any, *rest: Any) -> Landed:
        landed = super().commit(table, (), base, *rest)
        return super().commit(table, descriptors, landed, *rest) if descriptors else landed


def silent_deletions(patch: Patch) -> None:
    """No commit records offsets that the log deleted."""
    gaps = Topic.gaps
    kept = property(lambda topic: [gap for gap in gaps.__get__(topic) if gap.cause != Cause.DELETED])
    patch.setattr(Topic, "gaps", kept)


class LettersAgain(Preparation):
    """Does not look which dead letters are ahead of the table."""

    def _exclude_dead(self, topic: Topic, dead: Landed) -> None:
        pass


class EagerCleaning(Committer):
    """Deletes the files of a commit whenever it fails."""

    def commit(self, table: Any, descriptors: Any, *rest: Any) -> Landed:
        try:
            return super().commit(table, descriptors, *rest)
        except Exception:
            self.discard(table, descriptors)
            raise


class AnyResult(Rounds):
    """Commits results of tasks that failed."""

    def _commit_valid(self, written: Any, *rest: Any) -> None:
        for result in written.results.values():
            result.error = None
        super()._commit_valid(written, *rest)


class AnyTopic(Rounds):
    """Commits what it read, although the topic was re-created meanwhile."""

    def _commit_valid(self, written: Any, current: Any, *rest: Any) -> None:
        same: Any = {topic.job.topic: TopicInfo(topic.topic_id, ()) for topic in written.planned}
        super()._commit_valid(written, same, *rest)


class AnyNext(Rounds):
    """Commits the next round although the round before it was refused."""

    def _take(self, following: NextRound) -> Any:
        topic = following.topic
        if topic.table.java is None and topic.table.landed is not None:
            topic.table.java, topic.letters.java, topic.table.spec, topic.letters.spec, *_ = following.basis
            topic.prepared = topic.letters.claimed = True
            topic.reading.position.update(following.planned.starts)
        return super()._take(following)


def history_only(patch: Patch) -> None:
    """Offsets are not read from the properties if the snapshot with them has expired."""

    def of_snapshot(*values: Any, **named: Any) -> Landed | None:
        found = newest(*values, **named)
        return None if found is None or found.snapshot_id is None else found

    patch.setattr(commits, "newest", of_snapshot)
    patch.setattr(claims, "newest", of_snapshot)


def no_cuts(patch: Patch) -> None:
    """The driver never notices that the log lost records, or gave landed offsets to others."""
    patch.setattr(Log, "lose", lambda *_: None)
    no_comparison(patch)
    patch.setattr(rounds, "compare_ranges", lambda *_: {})


def no_comparison(patch: Patch) -> None:
    """The driver sees only logs that are shorter than its position."""
    patch.setattr(planning, "compare_positions", lambda *_: {})


def never_back(patch: Patch) -> None:
    """A topic that was fenced stays fenced."""
    patch.setattr(Fence, "lifts", lambda *_: False)


class LettersAsRows(TopicCommits):
    """Commits the files of dead letters as files of rows, too."""

    def _commit_rows(self, topic: Topic, result: TopicResult, *rest: Any) -> None:
        super()._commit_rows(topic, replace(result, data=[*result.data, *result.dead]), *rest)


class ShedsRows(Committer):
    """Removes old snapshots with the files that they added."""

    def replaced(self, base: Any, snapshot: Any | None, *rest: Any) -> Any:
        updated = super().replaced(base, snapshot, *rest)
        old = base.metadata.all_snapshots
        gone = {file for each in old if updated.metadata.find(each.id) is None for file in each.added}
        if snapshot is None or not gone:
            return updated
        kept = tuple(file for file in snapshot.snapshot.files if file not in gone)
        thinner = type(snapshot)(replace(snapshot.snapshot, files=kept))
        return super().replaced(base, thinner, *rest)


def always(patch: Patch, kind: ConditionType, instead_of: str) -> None:
    conditions = status.conditions

    def changed(*values: Any) -> dict[ConditionType, Verdict]:
        verdicts = conditions(*values)
        if verdicts[kind].status == instead_of:
            verdicts[kind] = replace(verdicts[kind], status="True")
        return verdicts

    patch.setattr(status, "conditions", changed)


def always_fresh(patch: Patch) -> None:
    """The status ignores how long records wait."""
    always(patch, ConditionType.FRESH, "False")


def stale_reports(patch: Patch) -> None:
    """The status counts the last report of a driver that no longer answers."""
    always(patch, ConditionType.FRESH, "Unknown")


def forgotten_creation(patch: Patch) -> None:
    """The driver takes the topic for one that existed before."""
    parse = jobs.parse

    def changed(*values: Any) -> IngestJob | None:
        job = parse(*values)
        return None if job is None else job.model_copy(update={"topic_created": False})

    patch.setattr(jobs, "parse", changed)


def forgotten_tables(patch: Patch) -> None:
    """The driver takes a table that replaced another for the first one, of a topic that existed before."""
    forgotten_creation(patch)
    patch.setattr(Topic, "replaced_table", False)


def kept_cuts(patch: Patch) -> None:
    """The driver takes a cut of the log for one below the offsets of the next table, too."""
    patch.setattr(Log, "forget_cuts", lambda *_: None)
    patch.setattr(Log, "limit_cuts", lambda *_: None)


def forgotten_losses(patch: Patch) -> None:
    """The status reports the losses of the present table only."""
    patch.setattr(completeness, "unacknowledged", _of_present_table)


def _of_present_table(observed: Any) -> list[Any]:
    losses = observed.progress.losses if observed.progress is not None else None
    if losses is None:
        return []
    offsets, ranges = losses.since(0)
    return [{"name": losses.name, "offsets": offsets, "ranges": described(ranges)}] if offsets else []


def always_complete(patch: Patch) -> None:
    """The status ignores losses."""
    always(patch, ConditionType.COMPLETE, "False")


def always_ready(patch: Patch) -> None:
    """The status ignores that ingestion is not ready."""
    always(patch, ConditionType.READY, "False")


def unchecked(patch: Patch) -> None:
    """Main gets rows whose check failed."""
    patch.setattr(Checks, "judge", lambda *_: ())


def over_main(patch: Patch) -> None:
    """Main gets the branch in place of the change of another writer."""

    def lacking(metadata: Any) -> list[Any]:
        found = unpublished(metadata)
        return [*lineage(metadata, head_of(metadata))][::-1] if found is None else found

    def done(_: FollowBranch, table: Any) -> bool:
        newest = head(table)
        return newest is not None and table.currentSnapshot().snapshotId() == newest.snapshotId()

    patch.setattr(publisher, "unpublished", lacking)
    patch.setattr(FollowBranch, "done", done)


MUTANTS: dict[str, tuple[Callable[..., Any], ...]] = {
    "8": (
        Unfenced, no_read_back, LettersLast, OffsetsFirst, silent_deletions, no_cuts, no_comparison, LettersAgain,
        AnyResult, AnyNext, history_only,
    ),
    "9": (history_only,),
    "10": (no_read_back,),
    "11": (EagerCleaning,),
    "12": (ShedsRows,),
    "14": (Unfenced,),
    "15": (LettersAsRows,),
    "16": (always_ready, always_fresh, stale_reports, always_complete),
    "17": (unchecked, over_main),
    "liveness": (never_back,),
}  # fmt: skip
"""Number of an invariant -> broken parts of the product, or functions that break it, which this invariant alone finds."""


def test_each_invariant_has_a_mutant() -> None:
    assert MUTANTS.keys() == CHECKS


@pytest.mark.parametrize(
    ("number", "mutant"),
    [(number, mutant) for number, mutants in MUTANTS.items() for mutant in mutants],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_the_checker_finds(number: str, mutant: Callable[..., Any], monkeypatch: Patch) -> None:
    if isinstance(mutant, type):
        monkeypatch.setattr(driver, mutant.__bases__[0].__name__, mutant)
    else:
        mutant(monkeypatch)
    for seed in SEEDS:
        if any(problem.startswith(f"{number}:") for problem in tell(story_of(seed), {number}).wrong):
            return
    pytest.fail(f"{mutant.__doc__} Invariant {number} did not notice it in {len(SEEDS)} stories.")


def test_the_checker_finds_a_round_that_read_another_topic(monkeypatch: Patch) -> None:
    monkeypatch.setattr(driver, "Rounds", AnyTopic)
    steps = (
        Step(10.0, "produce", (0, 3, False)),
        Step(10.1, "arm", ("driver", "task.read", "slow", 0, 14.0)),
        Step(17.0, "recreate_topic"),
        Step(22.0, "produce", (0, 3, False)),
    )
    assert any(problem.startswith("8:") for problem in tell(Story(Options(partitions=1), steps)).wrong)


REPLACED = (
    Step(10.0, "produce", (0, 6, False)),
    Step(40.0, "suspend", (30.0,)),
    Step(45.0, "produce", (0, 2, False)),
    Step(60.0, "drop_table"),
    Step(62.0, "retention", (0, 1.0)),
    Step(64.0, "produce", (0, 3, False)),
)
"""The log deletes records after their table was dropped, and before the next table has them."""
NEVER_LANDED = (
    Step(1.0, "suspend", (30.0,)),
    Step(5.0, "produce", (0, 3, False)),
    Step(10.0, "retention", (0, 0.5)),
)
"""The log of a topic that the operator created deletes records before the first commit."""
CUT_THEN_DROPPED = (
    Step(10.0, "produce", (0, 3, True)),
    Step(30.0, "suspend", (10.0,)),
    Step(32.0, "drop_table"),
    Step(34.0, "cut_back", (0, 2)),
    Step(36.0, "produce", (0, 3, False)),
)
"""The log loses records of a table that is dropped, and their offsets land again in the next table."""
LOST_THEN_REPLACED = (
    Step(10.0, "produce", (0, 6, False)),
    Step(25.0, "cut_back", (0, 2)),
    Step(45.0, "replace_table"),
    Step(50.0, "produce", (0, 5, False)),
)
"""The table that records a loss is dropped after the status has shown the loss."""


@pytest.mark.parametrize(
    ("mutant", "steps", "found"),
    [
        (forgotten_tables, REPLACED, "8"),
        (forgotten_losses, LOST_THEN_REPLACED, "liveness"),
        (forgotten_creation, NEVER_LANDED, "8"),
        (kept_cuts, CUT_THEN_DROPPED, "8"),
    ],
    ids=["driver", "status", "first commit", "cut log"],
)
def test_the_checker_finds_a_loss_that_is_hidden_or_invented(
    mutant: Callable[[Patch], None], steps: tuple[Step, ...], found: str, monkeypatch: Patch
) -> None:
    story = Story(Options(partitions=1), steps)
    assert tell(story).wrong == []
    mutant(monkeypatch)
    assert found in {problem.partition(":")[0] for problem in tell(story).wrong}
