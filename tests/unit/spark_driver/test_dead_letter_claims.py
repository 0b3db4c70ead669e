"""After a commit of dead letters without an answer, the driver claims the dead-letter table again. The late commit then fails."""

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from firn.model.errors import CommitUnknownError
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds import preparation
from firn_spark.ingestion.rounds.committing import TopicCommits
from firn_spark.ingestion.rounds.landing_job import TopicResult
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.tables import claims, dead_letters
from firn_spark.tables.commits import Committer, Landed
from tests.unit.spark_driver.results import descriptor
from tests.unit.spark_driver.topic import topic

OURS = Landed("id-1", 7, {0: 5}, commit_id="ours", writer="ours")


class Commits:
    """A committer that counts its commits."""

    writer = "ours"

    def __init__(self) -> None:
        self.count = 0

    def commit(self, *_: object) -> Landed:
        self.count += 1
        return OURS


@pytest.mark.parametrize(("commit_again", "commits"), [(False, 0), (True, 1)])
def test_a_claim_is_committed_again_only_on_request(
    monkeypatch: pytest.MonkeyPatch, commit_again: bool, commits: int
) -> None:
    monkeypatch.setattr(dead_letters, "read_landed", lambda table: OURS)
    committer = Commits()
    assert dead_letters.claim(cast(Committer, committer), None, "id-1", 7, commit_again) is OURS
    assert committer.count == commits


def test_a_commit_without_an_answer_makes_the_next_claim_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    landing = topic()
    landing.epoch, landing.letters.landed, landing.letters.java = 7, OURS, object()
    answers: list[Any] = [CommitUnknownError("no answer"), OURS]

    def commit(*_: object) -> Landed:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return cast(Landed, answer)

    monkeypatch.setattr(dead_letters, "commit", commit)
    meter = SimpleNamespace(audited=lambda *_, agrees: None)
    commits = TopicCommits(cast(Any, None), cast(Any, None), cast(Any, None), Failpoints(), cast(Any, meter))
    result = TopicResult(dead=[descriptor(1)], dead_rows=1, records=1)
    with pytest.raises(CommitUnknownError):
        commits.commit(landing, {0: (5, 9)}, result, 0.0)
    assert landing.letters.unsettled
    landing.failed(CommitUnknownError("no answer"), 0.0)
    assert landing.letters.unsettled, "a failed round forgets the tables, and must not forget this"


@pytest.mark.parametrize("unsettled", [False, True])
def test_the_next_round_claims_again_after_a_commit_without_an_answer(
    monkeypatch: pytest.MonkeyPatch, unsettled: bool
) -> None:
    landing = topic()
    landing.epoch, landing.table.landed, landing.letters.java = 7, OURS, object()
    landing.letters.unsettled = unsettled
    asked: list[bool] = []

    def claim(*_: object, commit_again: bool) -> Landed:
        asked.append(commit_again)
        return OURS

    monkeypatch.setattr(dead_letters, "claim", claim)
    monkeypatch.setattr(preparation, "read_landed", lambda *_: OURS)
    monkeypatch.setattr(claims, "take", lambda *_: 7)
    committer = SimpleNamespace(check=lambda *_: None)
    begun = Preparation(
        None, cast(Any, SimpleNamespace(spec=lambda table: None)), MagicMock(), cast(Any, committer), Failpoints()
    )
    begun.begin(landing)
    assert asked == [unsettled]
    assert not landing.letters.unsettled
