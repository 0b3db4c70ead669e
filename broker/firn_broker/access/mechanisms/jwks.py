"""The public keys with which an issuer signs tokens (JSON Web Key Set, RFC 7517), from a file or over HTTPS."""

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import urllib3
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from jwt.exceptions import PyJWTError

from firn.model.errors import UnavailableError
from firn_broker.settings import OauthSettings

log = structlog.get_logger()

PAUSE_SECONDS = 10.0
"""Fewest seconds between two requests for keys. A client chooses the key id of its token, so it could cause a request with
each one. A broker reads the keys of a file again after the same time."""
REFRESH_SECONDS = 1.0
"""Seconds that a client with a known key waits for the reading of an old copy."""
ANSWER_SECONDS, MOST_ANSWER = 5.0, 1 << 20
"""Most seconds and bytes of an answer."""
MOST_KEYS = 100
"""Most keys of a set; the broker ignores further ones."""
RSA_BITS = range(2048, 8192 + 1)
"""Sizes of RSA keys. Smaller ones can be broken, and larger ones take milliseconds of the event loop for each token."""
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Mapping[str, tuple[str, ...]] = {"P-256": ("ES256",), "P-384": ("ES384",), "P-521": ("ES512",)}

Ask = Callable[[], bytes]
"""Returns the JSON of a key set. It may block, and raises OSError, ValueError or an HTTPError of urllib3."""


class Key(NamedTuple):
    """A public key, and the algorithms whose signatures it may check."""

    public: RSAPublicKey | EllipticCurvePublicKey
    algorithms: tuple[str, ...]


class KeySet:
    """The keys of an issuer by their ids, and a copy of them for times when the issuer does not answer."""

    def __init__(self, ask: Ask, max_age: float, *, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask again after ``max_age`` seconds. ``name`` is that of the source, in messages."""
        self._ask = ask
        self._max_age = max_age
        self._name = name
        self._clock = clock
        self._keys: Mapping[str, Key] = {}
        self._loaded: float | None = None
        self._tried: float | None = None
        self._failure = ""
        self._running: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="jwks")

    async def find(self, kid: str) -> Key | None:
        """Return the key with an id; None if the issuer has none.

        Raises UnavailableError if the issuer does not answer and the key is not in the copy.
        """
        now = self._clock()
        old = self._loaded is None or now - self._loaded >= self._max_age
        if (old or kid not in self._keys) and (self._tried is None or now - self._tried >= PAUSE_SECONDS):
            self._running = self._running or asyncio.create_task(self._load())
        if self._running is not None and (old or kid not in self._keys):
            # Clients whose key is in the copy do not wait long for an issuer that may not answer. All wait for one answer.
            await asyncio.wait((self._running,), timeout=REFRESH_SECONDS if kid in self._keys else None)
        key = self._keys.get(kid)
        if key is None and self._failure:
            raise UnavailableError(
                f"{self._name}: {self._failure}; check the issuer of tokens, the network, and oauth.caFile"
            )
        return key

    def close(self) -> None:
        """Start no more requests."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _load(self) -> None:
        try:
            self._keys = await asyncio.get_running_loop().run_in_executor(self._threads, self._loading)
            self._loaded, self._failure = self._clock(), ""
        except (OSError, ValueError, urllib3.exceptions.HTTPError) as error:
            self._failure = f"cannot read the keys: {str(error)[:300] or type(error).__name__}"
            log.warning("keys of tokens", source=self._name, problem=self._failure, kept=len(self._keys))
        finally:
            self._tried, self._running = self._clock(), None

    def _loading(self) -> Mapping[str, Key]:
        keys = parsed(self._ask())
        if not keys:
            raise ValueError("the key set has no public RSA or EC key with an id")
        return keys


def key_set(settings: OauthSettings) -> KeySet:
    """Return the key set that the settings name."""
    if settings.jwks_file:
        path = Path(settings.jwks_file)
        return KeySet(path.read_bytes, PAUSE_SECONDS, name=f"oauth.jwksFile {path}")
    return KeySet(lambda: _answer(settings), settings.jwks_seconds, name=f"oauth.jwksUrl {settings.jwks_url}")


def _answer(settings: OauthSettings) -> bytes:
    headers = {"Accept": "application/jwk-set+json, application/json"}
    if settings.token_file:
        token = Path(settings.token_file).read_text().strip()
        if not (token.isascii() and token.isprintable()):
            raise ValueError(f"the token in {settings.token_file} is not one line of printable ASCII")
        headers["Authorization"] = f"Bearer {token}"
    deadline = time.monotonic() + ANSWER_SECONDS
    # Made for each request, because the file of the CA may change.
    context = ssl.create_default_context(cafile=settings.ca_file or None)
    with urllib3.PoolManager(ssl_context=context) as pool:
        response = pool.request(
            "GET",
            settings.jwks_url,
            headers=headers,
            retries=False,
            redirect=False,
            preload_content=False,
            timeout=urllib3.Timeout(total=ANSWER_SECONDS),
        )
        if response.status != 200:
            raise ValueError(f"HTTP status {response.status}")
        body = bytearray()
        while chunk := response.read(1 << 16):
            body += chunk
            if len(body) > MOST_ANSWER or time.monotonic() > deadline:
                raise ValueError(f"more than {MOST_ANSWER >> 20} MiB or {ANSWER_SECONDS:.0f} s")
        return bytes(body)


def parsed(content: bytes) -> Mapping[str, Key]:
    """Return the usable keys of a key set by their ids. Raises ValueError if it is no key set."""
    try:
        document = json.loads(content)
    except RecursionError as error:
        raise ValueError("the JSON is too deep") from error
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("no key set: it has no list of keys")
    keys: dict[str, Key] = {}
    for entry in entries[:MOST_KEYS]:
        key = _key(entry) if isinstance(entry, dict) else None
        if key is not None and isinstance(entry.get("kid"), str):
            keys.setdefault(entry["kid"], key)
    return keys


def _key(entry: Mapping[str, Any]) -> Key | None:
    """Return the key of an entry; None if it is for another use, of another type, or unusable."""
    operations = entry.get("key_ops", ["verify"])
    if entry.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    public: object
    algorithms: tuple[str, ...]
    try:
        # Only the public members, because a private key in the set must not be used.
        if entry.get("kty") == "RSA":
            algorithms, public = _RSA, RSAAlgorithm.from_jwk({name: entry[name] for name in ("kty", "n", "e")})
        elif entry.get("kty") == "EC":
            algorithms = _CURVES[entry["crv"]]
            public = ECAlgorithm.from_jwk({name: entry[name] for name in ("kty", "crv", "x", "y")})
        else:
            return None
    except (PyJWTError, LookupError, TypeError, ValueError):
        return None
    if isinstance(public, RSAPublicKey) and public.key_size not in RSA_BITS:
        return None
    if not isinstance(public, RSAPublicKey | EllipticCurvePublicKey):
        return None
    stated = entry.get("alg")
    return Key(public, tuple(each for each in algorithms if stated in (None, each)))
