"""Plans of TopicSets, from what was observed."""

from collections.abc import Mapping
from typing import Any

import pytest

from firn.api.v1alpha1 import TopicSet
from firn.model import names
from firn_controllers.cache.topic_sets import set_entry
from firn_controllers.cache.topics import Name, TopicCache, topic_claim, topic_entry
from firn_controllers.ports import Manifest
from firn_controllers.topic_sets.checks import ready_set
from firn_controllers.topic_sets.plan import ObservedSet, SetPlan, plan_set
from firn_controllers.topic_sets.template import Refusal
from tests import gen

CONFIG = gen.adopting()
ORDERS, CARTS = "dev.shop.orders", "dev.shop.carts"


def plan(
    *live: Manifest, topics: tuple[str, ...] = (ORDERS, CARTS), older: Mapping[str, Name] | None = None, **spec: Any
) -> SetPlan:
    return plan_set(observed(*live, topics=topics, older=older, **spec))


def observed(
    *live: Manifest,
    topics: tuple[str, ...] = (ORDERS, CARTS),
    older: Mapping[str, Name] | None = None,
    refused: Mapping[str, Refusal] | None = None,
    deleted: frozenset[str] = frozenset(),
    **spec: Any,
) -> ObservedSet:
    manifest = gen.topic_set(**spec)
    cache = TopicCache()
    for each in live:
        cache.put(topic_entry(each, CONFIG))
    return ObservedSet(
        entry=set_entry(manifest),
        rendered=ready_set(TopicSet.parse(manifest), CONFIG).render(sorted(topics), {}),
        listed=frozenset(topics),
        topics=cache,
        claim=lambda topic: topic_claim(CONFIG, "classic", topic),
        older=lambda topic: (older or {}).get(topic),
        refused=refused or {},
        deleted=deleted,
    )


def made(topic: str, name: str = "", **spec: Any) -> Manifest:
    """Return the IcebergTopic of a topic as the set made it."""
    manifest = ready_set(TopicSet.parse(gen.topic_set()), CONFIG).render([topic], {})[topic].manifest
    live = gen.topic(name or manifest["metadata"]["name"])
    live["metadata"] |= {key: manifest["metadata"][key] for key in ("labels", "annotations")}
    live["spec"] = {**manifest["spec"], **spec}
    return live


def created(given: SetPlan) -> list[str]:
    return [rendered.topic for rendered in given.create]


def refused(given: SetPlan) -> dict[str, str]:
    return {refusal.topic: refusal.why for refusal in given.refused}


def test_new_topics_are_created_by_name() -> None:
    given = plan()
    assert created(given) == [CARTS, ORDERS]
    assert (given.matched, given.made, given.kept, given.excess) == (2, 0, 0, 0)


def test_an_agreement_changes_nothing() -> None:
    given = plan(made(ORDERS), made(CARTS))
    assert given.settled
    assert given.made == 2


def test_an_iceberg_topic_keeps_its_name() -> None:
    given = plan(made(ORDERS, "earlier-name"), topics=(ORDERS,))
    assert given.settled


def test_an_iceberg_topic_that_differs_is_updated_in_place() -> None:
    ((rendered, live),) = plan(made(ORDERS, "earlier", table={"name": "other"}), topics=(ORDERS,)).update
    assert rendered.over(live)["metadata"]["name"] == "earlier"
    assert rendered.over(live)["metadata"]["uid"] == "uid-demo-earlier"


def test_an_iceberg_topic_that_is_being_deleted_waits() -> None:
    live = made(ORDERS, table={"name": "other"})
    gen.deleting("x")(live)
    assert plan(live, topics=(ORDERS,)).settled


HELD = {"namespace": "shop", "name": "all"}


@pytest.mark.parametrize(
    ("other", "names"),
    [
        (gen.topic("a", table={**HELD, "shared": True}), [CARTS, ORDERS]),
        (gen.topic("a", table=HELD), []),
        (gen.topic("a", table={**HELD, "name": "ALL", "shared": True}), []),
        (gen.topic("a", table={**HELD, "shared": True}, namespace="vault"), []),
    ],
)
def test_topics_of_a_set_share_a_table_if_all_of_its_topics_share_it(other: Manifest, names: list[str]) -> None:
    template = {"metadata": {"name": "all-$name"}, "spec": {"table": {**HELD, "shared": True}}}
    given = plan(other, template=template)
    assert created(given) == names
    assert set(refused(given).values()) == (set() if names else {"TableConflict"})


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (gen.topic("a", topicName=ORDERS), "TopicTaken"),
        (gen.topic("a", topicName=ORDERS, namespace="vault"), "TopicTaken"),
        (gen.topic("shop-orders"), "NameConflict"),
        (gen.topic("a", table={"namespace": "shop", "name": "orders"}), "TableConflict"),
        (gen.topic("a", table={"namespace": "shop", "name": "ORDERS"}), "TableConflict"),
        (gen.topic("a", table={"namespace": "shop", "name": "orders"}, namespace="vault"), "TableConflict"),
    ],
)
def test_an_iceberg_topic_of_others_refuses_a_topic(other: Manifest, why: str) -> None:
    given = plan(other)
    assert created(given) == [CARTS]
    assert refused(given) == {ORDERS: why}
    if other["metadata"]["namespace"] == "vault":
        assert "vault" not in given.refused[0].message


def test_a_topic_of_an_older_set_is_refused_and_its_namespace_is_not_named() -> None:
    given = plan(older={ORDERS: ("demo", "first"), CARTS: ("vault", "hidden")})
    assert created(given) == []
    assert refused(given) == {ORDERS: "MatchedByOlderSet", CARTS: "MatchedByOlderSet"}
    carts, orders = given.refused
    assert "TopicSet first" in orders.message
    assert "hidden" not in carts.message
    assert "vault" not in carts.message


def test_a_topic_that_is_served_does_not_change_to_an_older_set() -> None:
    assert plan(made(ORDERS), topics=(ORDERS,), older={ORDERS: ("demo", "first")}).settled


def test_two_topics_of_one_name_are_one_refusal() -> None:
    given = plan(topics=("dev.shop.Orders", ORDERS))
    assert created(given) == ["dev.shop.Orders"]
    assert refused(given) == {ORDERS: "NameConflict"}
    given = plan(made(ORDERS), topics=("dev.shop.Orders", ORDERS))
    assert refused(given) == {"dev.shop.Orders": "NameConflict"}, "the topic that has the name keeps it"


def test_the_limit_prefers_topics_that_have_an_iceberg_topic() -> None:
    given = plan(made(ORDERS), limit=1)
    assert (created(given), given.excess, given.made) == ([], 1, 1)
    given = plan(made(ORDERS), made(CARTS), limit=1)
    assert (given.settled, given.excess, given.made) == (True, 0, 2), "no IcebergTopic is deleted for a lower limit"


def test_refused_topics_do_not_use_up_the_limit() -> None:
    first, second, third = "dev.a.first", "dev.a.second", "dev.z.third"
    topics = (first, second, CARTS, ORDERS, third)
    others = [gen.topic(name, topicName=topic) for name, topic in (("one", first), ("two", second))]
    taken = {first: "TopicTaken", second: "TopicTaken"}
    given = plan(*others, topics=topics, limit=2)
    assert (created(given), refused(given), given.excess) == ([CARTS, ORDERS], taken, 1)
    given = plan(*others, made(CARTS), made(ORDERS), topics=topics, limit=2)
    assert (created(given), refused(given), given.excess) == ([], taken, 1), "a full set reports the same topics"


def test_topics_with_invalid_names_do_not_use_up_the_limit() -> None:
    invalid = {f"dev.a.{'x' * 200}{number}": "InvalidName" for number in range(3)}
    given = plan(topics=(*invalid, CARTS), limit=1)
    assert (created(given), refused(given), given.excess) == ([CARTS], invalid, 0)


@pytest.mark.parametrize(("removal", "deleted", "kept"), [("Keep", 0, 1), ("Delete", 1, 0)])
def test_removal_of_an_iceberg_topic_without_a_match(removal: str, deleted: int, kept: int) -> None:
    given = plan(made(ORDERS), topics=(CARTS,), removal=removal)
    assert (len(given.delete), given.kept) == (deleted, kept)


def test_an_iceberg_topic_of_another_set_or_without_label_is_never_deleted() -> None:
    other = made(ORDERS)
    other["metadata"]["labels"] = {names.LABEL_TOPIC_SET: "another"}
    given = plan(other, gen.topic("plain", topicName="plain"), topics=(), removal="Delete")
    assert (given.delete, given.kept) == ((), 0)


def test_an_iceberg_topic_that_this_process_deleted_counts_no_more() -> None:
    live = made(ORDERS)
    given = plan_set(observed(live, topics=(CARTS,), removal="Delete", deleted=frozenset({live["metadata"]["uid"]})))
    assert (given.delete, given.kept) == ((), 0)


def test_a_refusal_of_the_api_server_is_not_tried_again() -> None:
    first = observed(topics=(ORDERS,))
    refusal = Refusal(ORDERS, "InvalidSpec", "no")
    given = plan_set(observed(topics=(ORDERS,), refused={first.rendered[ORDERS].digest: refusal}))
    assert (created(given), given.refused) == ([], (refusal,))
