"""The broker's side of PLAIN (RFC 4616). The password is checked against the SCRAM credential of the user.

So a user has one password for all mechanisms, and the broker stores no other. Only listeners with TLS offer PLAIN.
"""

import asyncio
import hashlib
import hmac
import re
from concurrent.futures import Executor

from firn_broker.access.mechanisms.exchange import AuthenticationError, Step
from firn_broker.access.mechanisms.scram import DIGESTS, Credentials, shown, stored_key, wrong
from firn_broker.access_types import CredentialKey, ScramMechanism

NAME = "PLAIN"
"""The mechanism by the name that clients send."""
MOST_BYTES = 4096
"""Most bytes of a message. Servers must accept names and passwords of 255 bytes (RFC 4616, section 2)."""
_CONTROL, _SURROGATE = re.compile(r"[\x00-\x1f\x7f-\x9f]"), re.compile(r"[\ud800-\udfff]")


class PlainExchange:
    """Authenticates one client. Implements `firn_broker.access.mechanisms.exchange.Exchange`."""

    def __init__(self, credentials: Credentials, executor: Executor) -> None:
        """Hash passwords in ``executor``: 4,096 iterations take milliseconds, in which the event loop serves other clients."""
        self._credentials = credentials
        self._executor = executor
        self._done = False

    async def step(self, data: bytes) -> Step:
        """Implement `Exchange.step`."""
        if self._done:
            raise _rejected("a message after the end of the exchange")
        self._done = True
        user, password = _parsed(data)
        # A decoy takes the time of a credential with the default iterations.
        credential, stored = self._credentials.find(
            CredentialKey(user, ScramMechanism.SHA_512), CredentialKey(user, ScramMechanism.SHA_256)
        )
        digest = DIGESTS[credential.key.mechanism]
        salted = await asyncio.get_running_loop().run_in_executor(
            self._executor, hashlib.pbkdf2_hmac, digest, password, credential.salt, credential.iterations
        )
        right = hmac.compare_digest(stored_key(salted, digest), credential.stored_key)
        if not (right and stored):
            raise _rejected(wrong(user, stored))
        return Step(b"", f"User:{user}", credential=credential)


def _parsed(data: bytes) -> tuple[str, bytes]:
    """Return the user and the password of a message."""
    if len(data) > MOST_BYTES:
        raise _rejected(f"a message of {len(data)} bytes; the most are {MOST_BYTES}")
    if data.count(0) != 2:
        raise _rejected("a message without exactly three fields")
    # Not strict, because the error would contain the password. No valid text has a lone surrogate.
    other, user, password = data.decode(errors="surrogateescape").split("\0")
    if any(_SURROGATE.search(text) for text in (other, user, password)):
        raise _rejected("a message that is not UTF-8")
    if not user or not password or _CONTROL.search(user):
        raise _rejected("a message without a valid user name or without a password")
    if other not in ("", user):
        raise _rejected(f"user {shown(user)} wants to act for user {shown(other)}")
    return user, password.encode()


def _rejected(reason: str) -> AuthenticationError:
    return AuthenticationError(
        "the broker does not accept the user name and the password; check both at the client", reason
    )
