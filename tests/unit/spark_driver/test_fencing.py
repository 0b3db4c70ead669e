"""The fence between two drivers: a writer stops when another one committed with its epoch or a newer one."""

from typing import Any, cast

import pytest

from firn.model.errors import FencedError
from firn_spark.failpoints import Failpoints
from firn_spark.tables.commits import Committer, Landed

OURS, EPOCH = "ours", 7
BASE = Landed("id-1", EPOCH - 1, {0: 5}, commit_id="base", writer="before")


def landed(epoch: int, writer: str) -> Landed:
    return Landed("id-1", epoch, {0: 9}, commit_id="later", writer=writer)


def check(newest: Landed | None, base: Landed | None) -> None:
    Committer(cast(Any, None), OURS, Failpoints()).check(newest, base, EPOCH, "lake.shop.orders")


@pytest.mark.parametrize("base", [None, BASE], ids=["into an empty table", "after another commit"])
@pytest.mark.parametrize(
    "newest",
    [landed(EPOCH + 1, "theirs"), landed(EPOCH + 1, OURS), landed(EPOCH, "theirs")],
    ids=["a newer epoch", "a newer epoch of this writer", "this epoch by another writer"],
)
def test_a_commit_that_takes_precedence_fences_the_writer(newest: Landed, base: Landed | None) -> None:
    with pytest.raises(FencedError, match=rf"lake\.shop\.orders: writer {newest.writer} committed with epoch"):
        check(newest, base)


@pytest.mark.parametrize(
    ("newest", "base"),
    [
        (None, None),
        (BASE, BASE),
        (landed(EPOCH - 1, "theirs"), BASE),
        (landed(EPOCH, OURS), BASE),
        (landed(EPOCH + 1, "theirs"), landed(EPOCH + 1, "theirs")),
    ],
    ids=["no commit", "no commit since", "an older epoch", "this writer's own commit", "a newer epoch, read before"],
)
def test_other_commits_do_not_fence_the_writer(newest: Landed | None, base: Landed | None) -> None:
    check(newest, base)
