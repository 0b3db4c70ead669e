"""A model of a client and its batches: whatever order its requests arrive in, the log has its batches in order.

The client keeps Java's rules: first attempts go out in order, up to five at a time, to any brokers. A batch is sent
again only after all earlier ones have an answer, and a request without an answer may still arrive later."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

import pytest
from kio.schema.errors import ErrorCode

from firn.records.record_batch import following_sequence
from firn_broker.metadata_store import idempotence
from firn_broker.metadata_store.idempotence import HELD, KnownBatch, ProducerState

IN_FLIGHT = 5
SEEDS = 3_000


@dataclass
class Coordinator:
    """A partition, with the rule of `metadata_store.idempotence`."""

    forgotten: bool
    log: list[int] = field(default_factory=list)
    state: ProducerState | None = None

    def commit(self, sequence: int) -> ErrorCode:
        verdict = idempotence.judge(self.state, 0, sequence, 1, lambda: self.forgotten)
        if verdict is HELD:
            self.state = idempotence.hold(self.state, 0, sequence)
        if isinstance(verdict, KnownBatch):
            return ErrorCode.none
        if verdict is None:
            self.state = idempotence.remember(self.state, 0, sequence, 1, len(self.log), -1)
            self.log.append(sequence)
        return verdict or ErrorCode.none

    def contains(self, sequence: int) -> bool:
        return idempotence.contains(self.state, 0, sequence, 1, lambda: self.forgotten)


class Client:
    """Sends batches with consecutive sequences."""

    def __init__(self, first: int, count: int) -> None:
        self.batches = [following_sequence(first, number) for number in range(count)]
        self.waiting = list(self.batches)
        self.again: set[int] = set()
        """Batches that have to be sent again."""
        self.sent: list[int] = []
        """Batches with a request under way."""
        self.late: list[int] = []
        """Requests that the client has given up, and that may still arrive."""

    @property
    def done(self) -> bool:
        return not (self.waiting or self.again or self.sent)

    def step(self, chance: Random, coordinator: Coordinator) -> None:
        """Send, deliver or give up one request."""
        unanswered = [number for number in self.batches if number in self.again or number in self.sent]
        actions: list[Callable[[], object]] = []
        if self.waiting and len(unanswered) < IN_FLIGHT and not self.again:
            actions.append(lambda: self.sent.append(self.waiting.pop(0)))
        if self.again and unanswered[0] in self.again:
            actions.append(lambda: self._send_again(unanswered[0]))
        if self.sent:
            actions += [lambda: self._deliver(chance.choice(self.sent), coordinator)] * 3
            actions.append(lambda: self._give_up(chance.choice(self.sent)))
        if self.late:
            actions.append(lambda: coordinator.commit(self.late.pop(chance.randrange(len(self.late)))))
        chance.choice(actions)()

    def _send_again(self, sequence: int) -> None:
        self.again.remove(sequence)
        self.sent.append(sequence)

    def _give_up(self, sequence: int) -> None:
        self.sent.remove(sequence)
        self.late.append(sequence)
        self.again.add(sequence)

    def _deliver(self, sequence: int, coordinator: Coordinator) -> None:
        self.sent.remove(sequence)
        if coordinator.commit(sequence):
            self.again.add(sequence)


@pytest.mark.parametrize(("first", "forgotten"), [(0, False), (0, True), (7, True)])
def test_the_log_has_all_batches_of_a_producer_in_order(first: int, forgotten: bool) -> None:
    for seed in range(SEEDS):
        chance = Random(seed)
        coordinator, client = Coordinator(forgotten), Client(first, 8)
        for _ in range(2_000):
            if client.done:
                break
            client.step(chance, coordinator)
        assert (client.done, coordinator.log) == (True, client.batches), f"seed {seed}"


@pytest.mark.parametrize(("first", "forgotten"), [(0, False), (0, True), (7, True)])
def test_a_batch_counts_as_contained_only_if_the_log_has_it(first: int, forgotten: bool) -> None:
    """Also after the coordinator has gone back, so that acknowledged batches are lost."""
    contained = 0
    for seed in range(SEEDS // 4):
        chance = Random(seed)
        coordinator, client = Coordinator(forgotten), Client(first, 12)
        backup = deepcopy(coordinator)
        for _ in range(60):
            if client.done:
                break
            client.step(chance, coordinator)
            if chance.random() < 0.05:
                backup = deepcopy(coordinator)
            if chance.random() < 0.02:
                coordinator = deepcopy(backup)
            claimed = [sequence for sequence in client.batches if coordinator.contains(sequence)]
            assert set(claimed) <= set(coordinator.log), f"seed {seed}"
            contained += len(claimed)
    assert contained, "the test compared nothing"
