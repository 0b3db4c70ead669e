"""Quotas of clients: rates over time, the precedence of entities, and limits of memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

import pytest

from firn_broker.access import quotas
from firn_broker.access.quotas import BURST_SECONDS, MOST_MS, MOST_REQUEST_MS, Quota, Quotas
from firn_broker.access_types import Entity

IN, OUT = Quota.PRODUCER_BYTES, Quota.CONSUMER_BYTES
USER, OTHER = "User:shop.checkout", "User:shop.other"


@dataclass
class Cluster:
    """A cluster with quotas, and a broker with a virtual clock."""

    quotas: Mapping[Entity, Mapping[str, float]] = field(default_factory=dict)
    now: float = 1000.0
    broker: Quotas = field(init=False)

    def __post_init__(self) -> None:
        self.broker = Quotas(self, lambda: self.now)

    def use(self, amount: float, principal: str = USER, client_id: str = "app", quota: Quota = IN) -> int:
        return self.broker.record(quota, principal, client_id, amount)


def user(name: str | None = "shop.checkout") -> Entity:
    return (("user", name),)


def client(name: str | None = "app") -> Entity:
    return (("client-id", name),)


def both(user_name: str | None = "shop.checkout", client_name: str | None = "app") -> Entity:
    return (("client-id", client_name), ("user", user_name))


def limited(entity: Entity, rate: float = 100, quota: Quota = IN) -> Cluster:
    return Cluster({entity: {quota: rate}})


def test_without_quotas_nothing_is_throttled() -> None:
    cluster = Cluster()
    assert cluster.use(1e12) == 0
    assert cluster.broker.wait(IN, USER, "app") == 0
    assert cluster.broker.burst(OUT, USER, "app") == inf
    assert cluster.broker.record_connection("10.0.0.1") == 0


def test_an_idle_client_may_use_a_burst_and_then_its_rate() -> None:
    cluster = limited(user())
    assert cluster.use(100 * BURST_SECONDS) == 0
    assert cluster.use(50) == 500
    assert cluster.broker.wait(IN, USER, "app") == 500
    cluster.now += 0.5
    assert cluster.broker.wait(IN, USER, "app") == 0
    assert cluster.use(1) == 10


def test_a_client_that_waits_as_long_as_the_broker_says_keeps_its_rate() -> None:
    cluster = limited(user(), 1000)
    cluster.use(1000 * BURST_SECONDS)
    begin, used = cluster.now, 0
    for size in (700, 5, 12_000, 1, 333) * 20:
        used += size
        cluster.now += cluster.use(size) / 1000
    assert used / (cluster.now - begin) == pytest.approx(1000, rel=0.01)


def test_a_client_below_its_rate_is_never_throttled() -> None:
    cluster = limited(user())
    for _ in range(1000):
        assert cluster.use(99) == 0
        cluster.now += 1


def test_a_long_pause_saves_no_more_than_a_burst() -> None:
    cluster = limited(user())
    cluster.use(1)
    cluster.now += 1e6
    assert cluster.use(100 * BURST_SECONDS + 100) == 1000


def test_a_clock_that_goes_back_gives_and_takes_nothing() -> None:
    cluster = limited(user())
    cluster.use(100 * BURST_SECONDS)
    cluster.now -= 100
    assert cluster.use(100) == 1000


def test_the_largest_fetch_is_a_burst() -> None:
    assert limited(client(), 7, OUT).broker.burst(OUT, USER, "app") == 7 * BURST_SECONDS


def test_each_quota_counts_for_itself() -> None:
    cluster = Cluster({user(): {IN: 10, OUT: 20}})
    assert cluster.use(10 * BURST_SECONDS + 10) == 1000
    assert cluster.use(20 * BURST_SECONDS, quota=OUT) == 0
    assert cluster.use(20, quota=OUT) == 1000
    assert cluster.use(1e9, quota=Quota.MUTATIONS) == 0


def test_request_time_throttles_for_at_most_a_second() -> None:
    cluster = limited(user(), 50, Quota.REQUEST_TIME)
    assert cluster.use(50 * BURST_SECONDS + 25, quota=Quota.REQUEST_TIME) == 500
    assert cluster.use(1e9, quota=Quota.REQUEST_TIME) == MOST_REQUEST_MS


def test_a_throttle_time_fits_into_the_protocol() -> None:
    assert limited(user(), 1e-9).use(1e9) == MOST_MS
    assert limited(user(), 0).use(1) == MOST_MS
    assert limited(user(), 0).use(0) == 0


ORDER = (both(), both(client_name=None), user(), both(None), both(None, None), user(None), client(), client(None))


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_most_specific_entity_decides(first: int) -> None:
    """The order of Kafka: an entity with a user wins over one without."""
    values = {entity: {str(IN): float(number + 1)} for number, entity in enumerate(ORDER) if number >= first}
    assert Cluster(values).broker.burst(IN, USER, "app") == (first + 1) * BURST_SECONDS


@pytest.mark.parametrize("entity", [user("shop.other"), client("other"), both("shop.other"), both(client_name="other")])
def test_quotas_of_other_entities_do_not_count(entity: Entity) -> None:
    assert limited(entity, 1).use(1e9) == 0


def test_an_entity_without_a_value_for_the_quota_does_not_decide() -> None:
    cluster = Cluster({both(): {OUT: 1}, user(): {"unknown": 1}, client(None): {IN: 5}})
    assert cluster.broker.burst(IN, USER, "app") == 5 * BURST_SECONDS


@pytest.mark.parametrize(
    ("entity", "shared"),
    [
        (both(), {("shop.checkout", "app")}),
        (user(), {("shop.checkout", "app"), ("shop.checkout", "job")}),
        (user(None), {("shop.checkout", "app"), ("shop.checkout", "job")}),
        (both(None), {("shop.checkout", "app")}),
        (both(None, None), {("shop.checkout", "app")}),
        (both(client_name=None), {("shop.checkout", "app")}),
        (client(), {("shop.checkout", "app"), ("shop.other", "app")}),
        (client(None), {("shop.checkout", "app"), ("shop.other", "app")}),
    ],
)
def test_these_clients_share_a_quota(entity: Entity, shared: set[tuple[str, str]]) -> None:
    cluster = limited(entity)
    cluster.use(100 * BURST_SECONDS + 1)
    waiting = {
        (name, client_id)
        for name in ("shop.checkout", "shop.other")
        for client_id in ("app", "job")
        if cluster.broker.wait(IN, f"User:{name}", client_id)
    }
    assert waiting == shared


def test_a_client_without_an_id_has_the_default_quota_of_ids() -> None:
    assert limited(client(None)).use(1e4, client_id="") > 0
    assert limited(both(None, None)).use(1e4, client_id="") > 0
    assert limited(client()).use(1e4, client_id="") == 0


def test_a_change_applies_to_the_next_request() -> None:
    cluster = limited(user())
    assert cluster.use(100 * BURST_SECONDS + 100) == 1000
    cluster.quotas = {user(): {IN: 1000.0}}
    assert cluster.broker.wait(IN, USER, "app") == 100
    cluster.quotas = {user(): {IN: 1.0}}
    cluster.now += 1000
    assert cluster.use(BURST_SECONDS + 1) == 1000
    cluster.quotas = {}
    assert cluster.use(1e9) == 0


def test_strict_mutations_are_rejected_only_after_the_quota_is_used() -> None:
    cluster = limited(user(), 2, Quota.MUTATIONS)
    assert cluster.broker.wait(Quota.MUTATIONS, USER, "app") == 0
    cluster.use(1000, quota=Quota.MUTATIONS)
    assert cluster.broker.wait(Quota.MUTATIONS, USER, "app") == (1000 - 2 * BURST_SECONDS) * 500


def test_connections_count_by_address() -> None:
    cluster = Cluster({(("ip", "10.0.0.1"),): {Quota.CONNECTIONS: 1}, (("ip", None),): {Quota.CONNECTIONS: 10, IN: 1}})
    for _ in range(BURST_SECONDS):
        assert cluster.broker.record_connection("10.0.0.1") == 0
    assert cluster.broker.record_connection("10.0.0.1") == 1000
    for address in ("10.0.0.2", "10.0.0.3"):
        for _ in range(10 * BURST_SECONDS):
            assert cluster.broker.record_connection(address) == 0
        assert cluster.broker.record_connection(address) == 100
    assert cluster.use(1e9) == 0, "a quota of an address does not count for users"


def test_many_client_ids_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MOST_BUCKETS", 100)
    cluster = limited(client(None))
    for number in range(1000):
        cluster.use(1, client_id=f"{'x' * 100}{number}" + "y" * 10_000)
    buckets = vars(cluster.broker)["_buckets"]
    assert len(buckets) == 100
    assert max(len(place[2]) for place in buckets) == quotas.LONGEST_ID


def test_a_forgotten_client_gets_no_second_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MOST_BUCKETS", 10)
    cluster = limited(client(None))
    total, throttled = 100, 0
    for number in range(total):
        throttled += cluster.use(100 * BURST_SECONDS, client_id=str(number)) > 0
    assert throttled == total - 10
    cluster.now += BURST_SECONDS
    assert cluster.use(1, client_id="new") > 0, "the oldest bucket is in debt"
    cluster.now += 1e6
    for number in range(10):
        cluster.use(0, client_id=f"later-{number}")
    cluster.now += BURST_SECONDS
    assert cluster.use(100 * BURST_SECONDS, client_id="idle") == 0, "all buckets are full, so nothing is lost"


def test_the_client_that_was_used_least_recently_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MOST_BUCKETS", 2)
    cluster = limited(client(None))
    for client_id in ("a", "b", "a", "c"):
        cluster.use(1, client_id=client_id)
    assert {place[2] for place in vars(cluster.broker)["_buckets"]} == {"a", "c"}
