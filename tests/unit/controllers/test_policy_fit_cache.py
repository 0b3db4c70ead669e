"""The fit of a policy and a topic is computed once for each generation of both, also for very many topics."""

from dataclasses import replace

import pytest

from firn_controllers.cache import policies
from firn_controllers.cache.policies import KINDS, MISFITS_KEPT, PolicyCache, policy_entry
from firn_controllers.cache.topics import TopicEntry
from tests import gen


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the computed answers."""
    made: list[object] = []
    monkeypatch.setattr(policies, "misfit", lambda policy, topic, _: made.append(policy))
    return made


def cache() -> PolicyCache:
    made = PolicyCache()
    for kind in KINDS:
        made.put(policy_entry(gen.policy("nightly", kind=kind, selector={}), gen.config()))
    return made


def resolve(cache: PolicyCache, topics: list[TopicEntry]) -> None:
    for topic in topics:
        for kind in KINDS:
            assert cache.resolve(kind, topic).followed


def topics(count: int) -> list[TopicEntry]:
    topic = gen.observed().entry
    return [replace(topic, uid=f"uid-{number}") for number in range(count)]


def test_all_topics_under_two_policies_are_computed_once(
    computed: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each topic stands for a hundred of 10,000."""
    monkeypatch.setattr(policies, "MISFITS_KEPT", MISFITS_KEPT // 100)
    kept, many = cache(), topics(100)
    resolve(kept, many)
    resolve(kept, many)
    assert len(computed) == 200
    # All topics change, and a few are still seen as they were.
    changed = [replace(topic, generation=topic.generation + 1) for topic in many]
    resolve(kept, changed)
    resolve(kept, [*changed, *many[:10]])
    assert len(computed) == 400


def test_a_full_cache_forgets_only_the_oldest_answer(computed: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "MISFITS_KEPT", 8)
    kept, many = cache(), topics(5)
    resolve(kept, many)
    assert len(computed) == 10
    resolve(kept, many[1:])
    assert len(computed) == 10
