"""The broker's side of SCRAM (RFC 5802, RFC 7677), without channel binding.

As in Kafka, names and passwords are UTF-8 without SASLprep (``ScramFormatter.java``, ``normalize``). Stricter than Kafka's
``ScramSaslServer.java``, the broker checks the channel binding of the last message and rejects mandatory extensions, both
as RFC 5802 requires.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from firn_broker.access.mechanisms.exchange import AuthenticationError, Step
from firn_broker.access_types import CredentialKey, ScramCredential, ScramMechanism

MECHANISMS: Mapping[str, ScramMechanism] = {
    "SCRAM-SHA-256": ScramMechanism.SHA_256,
    "SCRAM-SHA-512": ScramMechanism.SHA_512,
}
"""Mechanisms by the names that clients send."""
DIGESTS: Mapping[ScramMechanism, str] = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}
"""The hash function of a mechanism, by its name in `hashlib`."""
MOST_BYTES = 4096
"""Most bytes of a message. RFC 5802 has no limit; a name and two nonces take a few hundred."""
DECOY_ITERATIONS, DECOY_SALT_BYTES = 8192, 64
"""The iterations and the bytes of the salt of users that do not exist. Most users of a cluster are TopicUsers, so decoys look
like their credentials: the operator chooses 8,192 iterations, and its librdkafka a salt of 64 bytes. A user with other numbers,
such as the 4,096 iterations of Kafka's tools, is known to exist."""
_MOST_SHOWN = 100
_NAME = r"(?:[^=,\x00-\x1f\x7f-\x9f]|=2C|=3D)+"
_NONCE = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64 = r"[A-Za-z0-9+/]*={0,2}"
# Kafka's extensions have longer names than RFC 5802 allows.
_EXTENSIONS = r"(?:,[A-Za-z]+=[^,\x00]+)*"
_FIRST = re.compile(
    rf"(?P<header>[ny],(?:a=(?P<other>{_NAME}))?,)(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>{_NONCE})(?P<more>{_EXTENSIONS}))"
)
_FINAL = re.compile(rf"(?P<bare>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})")
_DELEGATION_TOKEN = re.compile(r",tokenauth=true(?:,|$)", re.IGNORECASE)

Lookup = Callable[[CredentialKey], ScramCredential | None]
"""Returns the stored credential of a user; None if there is none."""


class Credentials:
    """Stored credentials, and decoys for users without one. Otherwise the first answer shows if a user exists."""

    def __init__(
        self,
        lookup: Lookup,
        secret: Callable[[], bytes],
        *,
        iterations: int = DECOY_ITERATIONS,
        salt_bytes: int = DECOY_SALT_BYTES,
    ) -> None:
        """Derive decoys from what ``secret`` returns.

        All brokers of a cluster need the same secret, also after a restart. A stored credential has the same salt at each
        broker, so a salt that differs would show that the user does not exist."""
        self._lookup = lookup
        self._secret = secret
        self._iterations = iterations
        self._salt_bytes = salt_bytes

    def find(self, *keys: CredentialKey) -> tuple[ScramCredential, bool]:
        """Return the stored credential of the first key that has one and True, or a decoy for the first key and False.

        The decoy is computed in either case, because its time would show that the user does not exist.
        """
        decoy = self._decoy(keys[0])
        for key in keys:
            found = self._lookup(key)
            if found is not None:
                return found, True
        return decoy, False

    def _decoy(self, key: CredentialKey) -> ScramCredential:
        size = hashlib.new(DIGESTS[key.mechanism]).digest_size
        name = f"{key.mechanism.name} {key.user}".encode()
        stream = hashlib.shake_256(hmac.digest(self._secret(), name, "sha512")).digest(self._salt_bytes + 2 * size)
        salt, keys = stream[: self._salt_bytes], stream[self._salt_bytes :]
        return ScramCredential(key, self._iterations, salt, stored_key=keys[:size], server_key=keys[size:])


@dataclass(frozen=True, slots=True)
class _Challenge:
    """The broker's state between the two messages of a client."""

    credential: ScramCredential
    stored: bool
    header: bytes
    nonce: str
    first: str
    """Both first messages, as the proof signs them."""


class ScramExchange:
    """Authenticates one client. Implements `firn_broker.access.mechanisms.exchange.Exchange`."""

    def __init__(
        self, mechanism: ScramMechanism, credentials: Credentials, nonce: Callable[[], str] = secrets.token_urlsafe
    ) -> None:
        """``nonce`` returns the broker's part of the nonce: printable ASCII without a comma, never the same text twice."""
        self._mechanism = mechanism
        self._credentials = credentials
        self._nonce = nonce
        self._steps = 0
        self._challenge: _Challenge | None = None

    async def step(self, data: bytes) -> Step:
        """Implement `Exchange.step`."""
        self._steps += 1
        challenge, self._challenge = self._challenge, None
        if self._steps == 1:
            return self._first(self._text(data))
        if challenge is None:
            raise self._rejected("a message after the end of the exchange")
        return self._final(self._text(data), challenge)

    def _text(self, data: bytes) -> str:
        if len(data) > MOST_BYTES:
            raise self._rejected(f"a message of {len(data)} bytes; the most are {MOST_BYTES}")
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise self._rejected("a message that is not UTF-8") from error

    def _first(self, message: str) -> Step:
        found = _FIRST.fullmatch(message)
        if found is None:
            wants = (
                "channel binding, which the broker does not offer"
                if message.startswith("p=")
                else "a malformed message"
            )
            raise self._rejected(f"first message: {wants}")
        user, other = _decoded(found["user"]), found["other"]
        if other is not None and _decoded(other) != user:
            raise self._rejected(f"user {shown(user)} wants to act for user {shown(_decoded(other))}")
        if _DELEGATION_TOKEN.search(found["more"]):
            raise self._rejected(
                f"user {shown(user)} wants to use a delegation token, which the broker does not support"
            )
        credential, stored = self._credentials.find(CredentialKey(user, self._mechanism))
        nonce = found["nonce"] + self._nonce()
        answer = f"r={nonce},s={base64.b64encode(credential.salt).decode()},i={credential.iterations}"
        self._challenge = _Challenge(credential, stored, found["header"].encode(), nonce, f"{found['bare']},{answer}")
        return Step(answer.encode())

    def _final(self, message: str, challenge: _Challenge) -> Step:
        found = _FINAL.fullmatch(message)
        if found is None:
            raise self._rejected("last message: a malformed message")
        binding, proof = self._bytes(found["binding"]), self._bytes(found["proof"])
        credential, digest = challenge.credential, DIGESTS[self._mechanism]
        user = credential.key.user
        if not hmac.compare_digest(found["nonce"].encode(), challenge.nonce.encode()):
            raise self._rejected(f"user {shown(user)}: the last message belongs to another exchange")
        if binding != challenge.header or len(proof) != hashlib.new(digest).digest_size:
            raise self._rejected(f"user {shown(user)}: last message: wrong channel binding or length of the proof")
        signed = f"{challenge.first},{found['bare']}".encode()
        signature = hmac.digest(credential.stored_key, signed, digest)
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        right = hmac.compare_digest(hashlib.new(digest, client_key).digest(), credential.stored_key)
        if not (right and challenge.stored):
            raise self._rejected(wrong(user, challenge.stored))
        answer = b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, digest))
        return Step(answer, f"User:{user}", credential=credential)

    def _bytes(self, text: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise self._rejected("last message: a field that is not base64") from error

    def _rejected(self, reason: str) -> AuthenticationError:
        return AuthenticationError(
            "the broker does not accept the SCRAM credentials of the client; check its user name and its password",
            reason,
        )


def credential(key: CredentialKey, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the credential of a salted password (RFC 5802, section 3)."""
    digest = DIGESTS[key.mechanism]
    server_key = hmac.digest(salted, b"Server Key", digest)
    return ScramCredential(key, iterations, salt, stored_key=stored_key(salted, digest), server_key=server_key)


def stored_key(salted: bytes, digest: str) -> bytes:
    """Return the stored key of a salted password. ``digest`` is a name of `hashlib`."""
    return hashlib.new(digest, hmac.digest(salted, b"Client Key", digest)).digest()


def shown(user: str) -> str:
    """Return the name of a user, as a client sent it, for the audit log."""
    return repr(user[:_MOST_SHOWN])


def wrong(user: str, stored: bool) -> str:
    """Return the reason if the password of a user is wrong, or if no credential is ``stored``."""
    return f"user {shown(user)}: the password is wrong" if stored else f"user {shown(user)} has no credential"


def _decoded(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
