"""The messages of a client that authenticates: what it sends, and the answers that it does not accept."""

from collections.abc import Sequence

import pytest

from firn.model.errors import AccessDeniedError
from firn.sasl.exchange import authenticate
from firn.sasl.tokens import GivenToken


class Broker:
    """Answers with a script, and keeps the messages of the client."""

    def __init__(self, *answers: bytes) -> None:
        self._answers: Sequence[bytes] = answers
        self.messages: list[bytes] = []

    def say(self, message: bytes) -> bytes:
        self.messages.append(message)
        return self._answers[len(self.messages) - 1]


def test_a_token_is_the_only_message() -> None:
    broker = Broker(b"")
    authenticate(broker.say, "OAUTHBEARER", "", "", GivenToken("a.b.c"))
    assert broker.messages == [b"n,,\x01auth=Bearer a.b.c\x01\x01"]


def test_a_rejected_token_is_access_denied() -> None:
    broker = Broker(b'{"status":"invalid_token"}')
    with pytest.raises(AccessDeniedError, match=r"rejects the token: .*invalid_token") as denied:
        authenticate(broker.say, "OAUTHBEARER", "", "", GivenToken("a.b.c"))
    assert "a.b.c" not in str(denied.value)


def test_plain_sends_name_and_password() -> None:
    broker = Broker(b"")
    authenticate(broker.say, "PLAIN", "firn", "secret", None)
    assert broker.messages == [b"\0firn\0secret"]


@pytest.mark.parametrize("answer", [b"r=other,s=c2FsdA==,i=4096", b"e=unknown-user", b""])
def test_scram_accepts_only_a_challenge_for_its_own_message(answer: bytes) -> None:
    with pytest.raises(AccessDeniedError):
        authenticate(Broker(answer).say, "SCRAM-SHA-256", "firn", "secret", None)
