"""The protocol that all SASL mechanisms implement (RFC 4422)."""

from collections.abc import Awaitable
from typing import NamedTuple, Protocol

from firn_broker.access_types import ScramCredential


class Step(NamedTuple):
    """The broker's answer to one message of a client."""

    answer: bytes
    principal: str | None = None
    """The authenticated principal, with the last message."""
    lifetime_ms: int | None = None
    """Milliseconds for which the credential is valid from now on; None if it has no end."""
    credential: ScramCredential | None = None
    """The SCRAM credential that the client used. Its session ends with it."""
    rejected: str | None = None
    """The reason for the audit log, if this answer rejects the client. Its next message raises AuthenticationError with the
    same reason, but a client may disconnect instead."""


class AuthenticationError(Exception):
    """A client failed to authenticate. The text is for the client and reveals nothing."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason
        """The cause, for the audit log."""


class Exchange(Protocol):
    """The exchange of messages between one client and the broker."""

    def step(self, data: bytes) -> Awaitable[Step]:
        """Answer a message of the client. Raises AuthenticationError.

        Raises UnavailableError if the broker cannot check the credential now. A closed connection makes the client try
        again, and an answer with an error does not.
        """
        ...
