"""Which drivers may ask at the internal listener, and about which topics."""

import hmac
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn_broker.access.authorizer import Authorizer
from firn_broker.access.mechanisms.exchange import AuthenticationError
from firn_broker.access.mechanisms.tokens import NAME, TokenVerifier
from firn_broker.access_types import ANONYMOUS, Caller, Operation, ResourceType
from firn_broker.topics.topic_metadata import TopicMetadata

log = structlog.get_logger()

_BEARER = re.compile(r"bearer +(?P<token>\S+)", re.IGNORECASE)


class WrongTokenError(Exception):
    """The token of a request is not valid. The text is for the client."""


class Gate(Protocol):
    """Checks the requests of drivers."""

    async def admit(self, header: str, host: str) -> Caller:
        """Return who sent a request, from its header ``Authorization``. Raises WrongTokenError and UnavailableError."""
        ...

    async def forbidden(
        self, caller: Caller, topics: Collection[UUID], operation: Operation = Operation.READ
    ) -> Mapping[UUID, ErrorCode]:
        """Return an error for each topic on which the caller may not perform ``operation``. Raises UnavailableError."""
        ...


class SharedToken:
    """A token of all drivers, in a file. Every client with the token may ask about every topic."""

    def __init__(self, file: Path) -> None:
        self._file = file

    async def admit(self, header: str, host: str) -> Caller:
        """Compare the token. Its file is read each time, so that a new token needs no restart."""
        try:
            token = self._file.read_bytes().strip()
        except OSError as error:
            log.error("cannot read the token of the internal listener", file=str(self._file), error=str(error))
            token = b""
        if not token:
            raise UnavailableError("the broker has no token; check that the Secret is mounted and has that key")
        scheme, _, given = header.partition(" ")
        # Comparing all bytes takes the same time for every wrong token.
        if not hmac.compare_digest(given.strip().encode("latin-1"), token) or scheme.lower() != "bearer":
            raise WrongTokenError("wrong token")
        return Caller(ANONYMOUS, host)

    async def forbidden(
        self, caller: Caller, topics: Collection[UUID], operation: Operation = Operation.READ
    ) -> Mapping[UUID, ErrorCode]:
        """Return nothing: the token is the right to ask."""
        return {}


@dataclass(frozen=True, slots=True)
class _Driver:
    """A client of the authorizer."""

    caller: Caller


class AccountTokens:
    """Tokens of the issuer, such as those of ServiceAccounts. As for a Fetch, the principal needs Read on each topic. To
    name data files it needs Alter: the broker deletes what they give back."""

    def __init__(
        self,
        verifier: TokenVerifier,
        authorizer: Authorizer,
        topics: TopicMetadata,
        failed: Callable[[str, str, str], None],
    ) -> None:
        """Check tokens with ``verifier``. ``failed`` gets the address, the mechanism and the reason of a wrong token."""
        self._verifier = verifier
        self._authorizer = authorizer
        self._topics = topics
        self._failed = failed

    async def admit(self, header: str, host: str) -> Caller:
        """Check signature, issuer, audience and times of the token."""
        given = _BEARER.fullmatch(header)
        if given is None:
            self._failed(host, NAME, "a request at the internal listener without a token")
            raise WrongTokenError("the request has no bearer token")
        try:
            verified = await self._verifier.verify(given["token"])
        except AuthenticationError as error:
            self._failed(host, NAME, error.reason)
            raise WrongTokenError(str(error)) from None
        return Caller(f"User:{verified.name}", host)

    async def forbidden(
        self, caller: Caller, topics: Collection[UUID], operation: Operation = Operation.READ
    ) -> Mapping[UUID, ErrorCode]:
        """Compare the topics with the ACLs. The audit log notes each denial."""
        errors: dict[UUID, ErrorCode] = {}
        client = _Driver(caller)
        for id in topics:
            topic = await self._topics.find_id(id)
            if topic is None:
                errors[id] = ErrorCode.unknown_topic_id
            elif self._authorizer.forbids(client, operation, ResourceType.TOPIC, topic.name):
                errors[id] = ErrorCode.topic_authorization_failed
        return errors
