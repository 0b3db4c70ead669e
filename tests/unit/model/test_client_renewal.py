"""Replacement of clients whose requests are not answered."""

from firn.client_renewal import RENEWAL_SECONDS, Renewal
from tests.fakes.clock import FakeClock


class Client:
    closed = False

    def __exit__(self, *_: object) -> None:
        self.closed = True


def test_a_client_is_replaced_once_without_an_answer() -> None:
    clock = FakeClock()
    renewal = Renewal(clock.monotonic)
    clock.advance(RENEWAL_SECONDS)
    assert not renewal.due(), "each request was answered"
    renewal.unanswered()
    assert renewal.due()
    assert not renewal.due()


def test_a_new_client_has_time_to_connect() -> None:
    clock = FakeClock()
    renewal = Renewal(clock.monotonic)
    renewal.unanswered()
    assert not renewal.due()
    clock.advance(RENEWAL_SECONDS)
    assert renewal.due()
    renewal.replace(Client())
    renewal.unanswered()
    assert not renewal.due()


def test_a_replaced_client_is_closed_after_its_requests() -> None:
    clock = FakeClock()
    renewal, first, second, third = Renewal(clock.monotonic), Client(), Client(), Client()
    renewal.replace(first)
    clock.advance(RENEWAL_SECONDS)
    renewal.replace(second)
    assert not first.closed
    clock.advance(RENEWAL_SECONDS)
    renewal.replace(third)
    assert (first.closed, second.closed) == (True, False)
    renewal.close()
    assert second.closed
    assert third.closed
