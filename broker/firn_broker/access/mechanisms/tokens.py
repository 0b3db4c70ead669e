"""The broker's side of OAUTHBEARER (RFC 7628): access tokens that an issuer signed (JWT, RFC 7519).

As in Kafka (``OAuthBearerSaslServer.java``), the answer to an invalid token is JSON with a status, and the exchange fails
with the client's next message. A token needs a key id, and only public keys check signatures: the broker accepts neither
``none`` nor a shared secret.
"""

import base64
import binascii
import json
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jwt

from firn_broker.access.mechanisms.exchange import AuthenticationError, Step
from firn_broker.access.mechanisms.jwks import KeySet
from firn_broker.settings import OauthSettings

NAME = "OAUTHBEARER"
"""The mechanism by the name that clients send."""
MOST_BYTES, MOST_TOKEN = 32 << 10, 16 << 10
"""Most bytes of a message, and of its token. Usual tokens have one to four KiB."""
MOST_LIFETIME = 1 << 40
"""Most milliseconds of a lifetime, which is 64 bits in Kafka's protocol."""
MOST_NAME = 255
"""Most characters of the name in a token."""
_FIRST = re.compile(
    r"[ny],(?:a=(?P<other>(?:[^=,\x00-\x1f\x7f]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\t\r\n]*\x01)*)\x01"
)
_BEARER = re.compile(r"bearer +(?P<token>[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+)", re.IGNORECASE)
_NAME = re.compile(rf"[^\x00-\x1f\x7f-\x9f]{{1,{MOST_NAME}}}")
_SERVICE_ACCOUNT = re.compile(r"system:serviceaccount:(?P<namespace>[a-z0-9-]{1,63}):(?P<name>[a-z0-9.-]{1,253})")
_INVALID = b'{"status":"invalid_token"}'


class Verified(NamedTuple):
    """A valid token."""

    name: str
    """The name of the principal, without ``User:``."""
    lifetime_ms: int


class _InvalidTokenError(Exception):
    """A token is not valid. The text is for the audit log, and has no part of the token."""


class TokenVerifier:
    """Checks tokens: signature, issuer, audience and times."""

    def __init__(self, settings: OauthSettings, keys: KeySet) -> None:
        self._settings = settings
        self._keys = keys

    async def verify(self, token: str) -> Verified:
        """Check a token. Raises AuthenticationError, and UnavailableError if the issuer's keys cannot be read now."""
        try:
            return await self._verified(token)
        except _InvalidTokenError as error:
            raise AuthenticationError(
                "the broker does not accept the token; check its issuer, its audience and its lifetime", str(error)
            ) from None

    async def _verified(self, token: str) -> Verified:
        if len(token) > MOST_TOKEN:
            raise _InvalidTokenError(f"a token of {len(token)} bytes; the most are {MOST_TOKEN}")
        header = _header(token)
        kid, algorithm = header.get("kid"), header.get("alg")
        if not isinstance(kid, str) or not isinstance(algorithm, str):
            raise _InvalidTokenError("a token without a key id or an algorithm")
        if "crit" in header:
            raise _InvalidTokenError("a token with critical extensions, of which the broker knows none")
        key = await self._keys.find(kid)
        if key is None:
            raise _InvalidTokenError(f"a token with the key id {kid[:100]!r}, which the issuer does not have")
        if algorithm not in key.algorithms:
            raise _InvalidTokenError(f"a token with the algorithm {algorithm[:20]!r}, which its key does not allow")
        settings = self._settings
        try:
            claims = jwt.decode(
                token,
                key.public,
                algorithms=[algorithm],
                issuer=settings.issuer,
                audience=settings.audience,
                leeway=settings.clock_skew_seconds,
                options={"require": ["exp", "iss", "aud", settings.principal_claim]},
            )
            end = float(claims["exp"]) + settings.clock_skew_seconds
            lifetime = max(1, min(MOST_LIFETIME, int((end - time.time()) * 1000)))
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _InvalidTokenError(f"token: {type(error).__name__}") from None
        return Verified(self._name(claims.get(settings.principal_claim)), lifetime)

    def _name(self, value: object) -> str:
        claim = self._settings.principal_claim
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise _InvalidTokenError(f"a token whose claim {claim} is not a name of 1 to {MOST_NAME} characters")
        if not self._settings.kubernetes:
            return value
        account = _SERVICE_ACCOUNT.fullmatch(value)
        if account is None:
            raise _InvalidTokenError(f"a token whose claim {claim} names no ServiceAccount: {value!r}")
        # A namespace has no dot, so two ServiceAccounts never have one name.
        return f"{account['namespace']}.{account['name']}"


class TokenExchange:
    """Authenticates one client. Implements `firn_broker.access.mechanisms.exchange.Exchange`."""

    def __init__(self, verifier: TokenVerifier) -> None:
        self._verifier = verifier
        self._failed: AuthenticationError | None = None
        self._begun = False

    async def step(self, data: bytes) -> Step:
        """Implement `Exchange.step`."""
        if self._failed is not None:
            raise self._failed
        if self._begun:
            raise _rejected("a message after the end of the exchange")
        self._begun = True
        token, other = _parsed(data)
        try:
            verified = await self._verifier.verify(token)
        except AuthenticationError as error:
            self._failed = error
            return Step(_INVALID, rejected=error.reason)
        if other not in (None, verified.name):
            raise _rejected(f"user {verified.name!r} wants to act for another user")
        return Step(b"", f"User:{verified.name}", lifetime_ms=verified.lifetime_ms)


def _header(token: str) -> Mapping[str, Any]:
    encoded = token.split(".", 1)[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise _InvalidTokenError("a token without a JSON header")
    return header


def _parsed(data: bytes) -> tuple[str, str | None]:
    """Return the token of a first message, and the user for which the client wants to act."""
    if len(data) > MOST_BYTES:
        raise _rejected(f"a message of {len(data)} bytes; the most are {MOST_BYTES}")
    found = _FIRST.fullmatch(data.decode(errors="replace"))
    if found is None:
        raise _rejected("a malformed message")
    pairs = [pair.partition("=")[::2] for pair in found["pairs"].split("\x01") if pair]
    bearers = [value for key, value in pairs if key == "auth"]
    bearer = _BEARER.fullmatch(bearers[0]) if len(bearers) == 1 else None
    if bearer is None:
        raise _rejected("a message without exactly one bearer token")
    other = found["other"]
    return bearer["token"], other and other.replace("=2C", ",").replace("=3D", "=")


def _rejected(reason: str) -> AuthenticationError:
    return AuthenticationError("the broker does not accept the message of the client; send one bearer token", reason)
