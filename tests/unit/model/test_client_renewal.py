"""Replacement of clients whose requests are not answered."""

from firn.client_renewal import RENEWAL_SECONDS, Renewal


class Client:
    closed = False

    def __exit__(self, *_: object) -> None:
        self.closed = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_client_is_replaced_once_without_an_answer() -> None:
    clock = Clock()
    renewal = Renewal(clock)
    clock.now = RENEWAL_SECONDS
    assert not renewal.due(), "each request was answered"
    renewal.unanswered()
    assert renewal.due()
    assert not renewal.due()


def test_a_new_client_has_time_to_connect() -> None:
    clock = Clock()
    renewal = Renewal(clock)
    renewal.unanswered()
    assert not renewal.due()
    clock.now = RENEWAL_SECONDS
    assert renewal.due()
    renewal.replace(Client())
    renewal.unanswered()
    assert not renewal.due()


def test_a_replaced_client_is_closed_after_its_requests() -> None:
    clock = Clock()
    renewal, first, second, third = Renewal(clock), Client(), Client(), Client()
    renewal.replace(first)
    clock.now = RENEWAL_SECONDS
    renewal.replace(second)
    assert not first.closed
    clock.now = 2 * RENEWAL_SECONDS
    renewal.replace(third)
    assert (first.closed, second.closed) == (True, False)
    renewal.close()
    assert second.closed
    assert third.closed
