"""A table records the offsets that did not land: each once, by name, and never without bound."""

from firn.model.progress import RANGES, Cause, Gap, Losses, described

UUID = "3fa9c1d2-0000-0000-0000-000000000000"


def gap(start: int, end: int, partition: int = 0) -> Gap:
    return Gap(partition=partition, start=start, end=end, cause=Cause.DELETED)


def recorded(*gaps: Gap, topic_id: str = "id-1", known: Losses | None = None) -> Losses:
    return (known or Losses()).plus(gaps, topic_id, UUID, 1000.5)


def test_losses_are_read_as_they_were_written() -> None:
    losses = recorded(gap(5, 9), gap(3, 4, partition=7))
    assert Losses.read(losses.model_dump_json()) == losses
    assert [(loss.id, loss.partition, loss.at) for loss in losses.ranges] == [(1, 0, 1000), (2, 7, 1000)]


def test_an_invalid_property_stops_nothing() -> None:
    assert Losses.read(None) == Losses.read("") == Losses.read("{not json") == Losses.read("[1]") == Losses()


def test_an_offset_is_recorded_once() -> None:
    known = recorded(gap(5, 9), gap(12, 14))
    assert known.missing([gap(5, 9)], "id-1") == []
    assert known.missing([gap(0, 20)], "id-1") == [gap(0, 5), gap(9, 12), gap(14, 20)]
    assert known.missing([gap(5, 9)], "id-2") == [gap(5, 9)], "another topic has these offsets again"
    assert known.missing([gap(5, 9, partition=1)], "id-1") == [gap(5, 9, partition=1)]


def test_a_name_acknowledges_every_loss_up_to_it() -> None:
    first = recorded(gap(5, 9))
    both = recorded(gap(20, 21), known=first)
    assert first.name == "1-3fa9c1d2"
    assert both.since(0)[0] == 5
    assert both.since(both.acknowledged(first.name)) == (1, both.ranges[1:])
    assert both.since(both.acknowledged(both.name)) == (0, ())


def test_a_name_of_another_table_or_of_a_later_loss_acknowledges_nothing() -> None:
    losses = recorded(gap(5, 9))
    for name in (None, "", "1", "1-another", "2-3fa9c1d2", "x-3fa9c1d2", "-3fa9c1d2", "true"):
        assert losses.acknowledged(name) == 0


def test_the_list_is_bounded_and_no_offset_is_forgotten() -> None:
    losses = Losses()
    for number in range(RANGES + 10):
        losses = recorded(gap(number * 10, number * 10 + 3), known=losses)
    assert len(losses.ranges) == RANGES
    assert losses.since(0)[0] == 3 * (RANGES + 10)
    assert losses.since(10) == (3 * RANGES, losses.ranges)
    assert losses.newest == RANGES + 10
    assert len(losses.model_dump_json()) < 150 * RANGES


def cut(start: int, end: int, partition: int) -> Gap:
    return Gap(partition=partition, start=start, end=end, cause=Cause.CUT_BACK)


def test_cuts_of_more_partitions_than_are_listed_are_recorded_once() -> None:
    cuts = [cut(7, 10, part) for part in range(2 * RANGES)]
    known = Losses.read(recorded(*cuts).model_dump_json())
    assert known.missing(cuts, "id-1") == []
    assert known.missing(cuts, "id-2") == cuts, "another topic has these offsets again"
    assert known.missing([cut(5, 12, 0)], "id-1") == [cut(5, 7, 0), cut(10, 12, 0)]
    later = recorded(*(cut(20, 22, part) for part in range(2 * RANGES)), known=known)
    assert later.missing([cut(19, 25, 0)], "id-1") == [cut(19, 20, 0), cut(22, 25, 0)]
    recreated = recorded(*cuts, topic_id="id-2", known=later)
    assert recreated.missing(cuts, "id-2") == []
    assert len(recreated.model_dump_json()) < 150 * RANGES + 20 * RANGES, "the cuts of the earlier topic are gone"


def test_a_description_names_the_first_ranges() -> None:
    losses = recorded(*(gap(number * 10, number * 10 + 3, number) for number in range(5)))
    text = described(losses.ranges)
    assert text.startswith(
        "partition 0, offsets 0 to 2, deleted from the log before they landed; partition 1, offsets 10 to 12"
    )
    assert text.endswith("; and 2 more ranges")
