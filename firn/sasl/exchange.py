"""The messages with which a client of Kafka authenticates a connection, for each mechanism that Firn uses."""

from collections.abc import Callable
from typing import Protocol

from firn.model.errors import AccessDeniedError
from firn.sasl.scram import Scram


class Token(Protocol):
    """An access token."""

    def first_message(self) -> bytes:
        """Return the message that authenticates a connection (RFC 7628, section 3.1)."""
        ...


def authenticate(
    say: Callable[[bytes], bytes], mechanism: str, username: str, password: str, token: Token | None
) -> None:
    """Authenticate by ``token``, or else by ``mechanism``. ``say`` sends a message, and returns the broker's.

    Raises AccessDeniedError if the broker rejects the client, ValueError if its messages are malformed, and what ``say`` raises.
    """
    if token is not None:
        cause = say(token.first_message())
        if cause:
            # The broker waits for another message before it ends the connection (RFC 7628, section 3.2.3).
            raise AccessDeniedError(f"the broker rejects the token: {cause.decode(errors='replace')[:200]}")
    elif mechanism == "PLAIN":
        say(f"\0{username}\0{password}".encode())
    else:
        client = Scram(mechanism, username, password)
        client.check(say(client.final(say(client.first()))))
