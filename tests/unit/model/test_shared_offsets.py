"""`SharedOffsets`: the newest commit of every topic of a shared table, in one value that earlier versions reject."""

import pytest

from firn.model import names
from firn.model.errors import ConflictError
from firn.model.progress import (
    Look,
    Offsets,
    SharedOffsets,
    TopicCommit,
    View,
    decode_offsets,
    is_complete,
    recorded_offsets,
)
from firn.tables.ownership import Claimant, Ownership


def commit(resource: str, epoch: int, offsets: Offsets) -> TopicCommit:
    return TopicCommit(resource=resource, epoch=epoch, commit=f"{resource}-{epoch}", offsets=offsets)


BOTH = SharedOffsets.none().plus("us", commit("us", 1, {0: 4})).plus("eu", commit("eu", 7, {1: 9, 0: 2}))


def test_each_topic_has_its_newest_commit() -> None:
    later = BOTH.plus("us", commit("us", 2, {0: 5}))
    assert later.of(View("us", "us")) == ("us", commit("us", 2, {0: 5}))
    assert later.of(View("eu", "eu")) == ("eu", commit("eu", 7, {1: 9, 0: 2}))
    assert later.of(View("new", "new")) is None


def test_a_topic_that_was_created_again_follows_the_earlier_topic_of_its_resource() -> None:
    assert BOTH.of(View("eu-2", "eu")) == ("eu", commit("eu", 7, {1: 9, 0: 2}))
    again = BOTH.plus("eu-2", commit("eu", 8, {0: 1}))
    assert again.of(View("eu-2", "eu")) == ("eu-2", commit("eu", 8, {0: 1}))
    assert again.of(View("eu-3", "eu")) == ("eu-2", commit("eu", 8, {0: 1}))


def test_a_topic_keeps_its_offsets_under_another_resource() -> None:
    assert BOTH.of(View("eu", "us")) == ("eu", commit("eu", 7, {1: 9, 0: 2}))


def test_the_value_is_read_as_it_was_written() -> None:
    text = BOTH.encode()
    assert SharedOffsets.read(text) == BOTH
    assert list(SharedOffsets.read(text).topics) == ["eu", "us"]
    assert SharedOffsets.is_in(text)
    assert is_complete(text)


DAY = 24 * 3600 * 1000


def looked(day: float, *, gone: str = "eu", present: frozenset[str] = frozenset({"us"})) -> Look:
    return Look(int(day * DAY), present, {gone: BOTH.topics[gone].commit})


def after(*looks: Look) -> SharedOffsets:
    value = BOTH
    for each in looks:
        value = SharedOffsets.read(value.after(each).encode())
    return value


def test_an_entry_ends_at_the_third_look_without_its_topic_after_thirty_days() -> None:
    assert after(looked(0), looked(15), looked(30)) == SharedOffsets(version=2, topics={"us": BOTH.topics["us"]})
    assert after(looked(0), looked(15), looked(16), looked(29.9), looked(31)).topics.keys() == {"us"}


@pytest.mark.parametrize(
    "looks",
    [
        [looked(0), looked(40)],
        [looked(0), looked(0.5), looked(40)],
        [looked(0), looked(15), looked(29.9)],
        [looked(0), looked(0.1), looked(39.5), looked(40)],
        [looked(0), looked(40), looked(-1)],
        [looked(0), looked(15), Look(20 * DAY, frozenset({"eu"}), {}), looked(31), looked(50)],
        [looked(0), looked(15), Look(40 * DAY, frozenset(), {"eu": "another-commit"})],
        [looked(0), looked(15), Look(40 * DAY, frozenset(), {})],
    ],
    ids=[
        "two looks", "the same day", "too early", "two days", "a clock set back", "found again", "a commit since", "unknown",
    ],
)  # fmt: skip
def test_an_entry_stays_without_certain_looks(looks: list[Look]) -> None:
    assert after(*looks).topics.keys() == {"eu", "us"}


def test_a_commit_ends_the_absence_of_its_topic() -> None:
    value = after(looked(0), looked(15))
    assert value.topics["eu"].absent == (0, 15 * DAY)
    again = value.plus("eu", commit("eu", 8, {0: 3}))
    later = Look(60 * DAY, frozenset(), {"eu": "eu-8"})
    assert again.after(later).topics["eu"].absent == (60 * DAY,)


def test_a_name_with_a_topic_id_gives_it_back() -> None:
    assert names.topic_of(names.of_topic(names.TABLE_CLAIM, "id-1")) == "id-1"
    for key in (names.TABLE_CLAIM, names.TABLE_KAFKA_CLUSTER, "write.parquet.id-1", "firn", ""):
        assert names.topic_of(key) == ""


@pytest.mark.parametrize("text", ['{"0":4}', '{"since":"c","0":4}', "{}", "", "x"])
def test_the_offsets_of_one_topic_are_not_those_of_a_shared_table(text: str) -> None:
    assert not SharedOffsets.is_in(text)
    with pytest.raises(ValueError, match="SharedOffsets"):
        SharedOffsets.read(text)


def test_a_version_before_shared_tables_rejects_the_value() -> None:
    with pytest.raises(ValueError, match=r"firn\.offsets is not a JSON object of partitions"):
        decode_offsets(BOTH.encode())
    with pytest.raises(ValueError, match=r"firn\.offsets is not a JSON object of partitions"):
        recorded_offsets([{"firn.offsets": BOTH.encode(), "firn.commit-id": "c"}], {})


def test_the_offsets_of_a_shared_table_show_its_owner_after_the_operator_of_an_earlier_version_changed_it() -> None:
    """That operator writes the uid of the oldest resource into each table."""
    table = Ownership.of(
        {names.TABLE_OWNER: "uid-eu", names.TABLE_TENANT: "demo", names.SUMMARY_OFFSETS: BOTH.encode()}
    )
    us = Claimant("uid-us", "demo", "us", shared=True)
    us.check("lake.demo.all", table)
    assert us.owns(table)
    with pytest.raises(ConflictError, match="is shared by topics"):
        Claimant("uid-eu", "demo", "eu").check("lake.demo.all", table)
