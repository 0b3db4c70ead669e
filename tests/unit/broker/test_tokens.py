"""OAUTHBEARER at the broker: tokens that it accepts, forged and malformed ones, and the keys of the issuer."""

import asyncio
import base64
import hashlib
import hmac
import http.server
import json
import random
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from jwt.algorithms import ECAlgorithm, RSAAlgorithm
from pydantic import ValidationError

from firn.model.errors import UnavailableError
from firn_broker.access.mechanisms import jwks as key_sets
from firn_broker.access.mechanisms.exchange import AuthenticationError, Step
from firn_broker.access.mechanisms.jwks import PAUSE_SECONDS, KeySet, key_set, parsed
from firn_broker.access.mechanisms.tokens import MOST_BYTES, MOST_LIFETIME, MOST_TOKEN, TokenExchange, TokenVerifier
from firn_broker.settings import OauthSettings

SETTINGS = OauthSettings(issuer="https://issuer.example", audience="firn-broker", jwks_file="unused")
RSA_KEY = rsa.generate_private_key(65537, 2048)
OTHER_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
LIFETIME = 86_400
"""Seconds. Some tokens are signed when the file is imported, which may be half an hour before their tests."""
ACCOUNT = "system:serviceaccount:shop:checkout"


def jwk(kid: str | None, key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, **more: object) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        entry = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        entry = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return entry | ({} if kid is None else {"kid": kid}) | more


def jwks(*entries: object) -> bytes:
    return json.dumps({"keys": entries}).encode()


JWKS = jwks(jwk("rsa", RSA_KEY, use="sig"), jwk("ec", EC_KEY))


def claims(**changes: object) -> dict[str, object]:
    now = int(time.time())
    stated = {
        "iss": SETTINGS.issuer,
        "aud": SETTINGS.audience,
        "sub": "shop.checkout",
        "iat": now,
        "exp": now + LIFETIME,
    }
    return {name: value for name, value in (stated | changes).items() if value is not None}


def signed(key: Any = RSA_KEY, algorithm: str = "RS256", kid: str | None = "rsa", **changes: object) -> str:
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode(claims(**changes), key, algorithm, headers=headers)


def forged(header: Mapping[str, object], secret: bytes = b"") -> str:
    """Return a token with any header; its signature is an HMAC."""
    parts = (json.dumps(part).encode() for part in (header, claims()))
    text = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    return (text + b"." + base64.urlsafe_b64encode(hmac.digest(secret, text, "sha256")).rstrip(b"=")).decode()


def message(token: str, header: str = "n,,", more: str = "") -> bytes:
    return f"{header}\x01auth=Bearer {token}\x01{more}\x01".encode()


class Issuer:
    """The source of a key set, with a virtual clock."""

    def __init__(self, content: bytes = JWKS) -> None:
        self.content: bytes | Exception = content
        self.requests = 0
        self.now = 0.0
        self.keys = KeySet(self.ask, 3600, name="test", clock=lambda: self.now)

    def ask(self) -> bytes:
        self.requests += 1
        if isinstance(self.content, Exception):
            raise self.content
        return self.content


def exchange(settings: OauthSettings = SETTINGS, issuer: Issuer | None = None) -> TokenExchange:
    return TokenExchange(TokenVerifier(settings, (issuer or Issuer()).keys))


async def rejection(token: str, settings: OauthSettings = SETTINGS) -> str:
    """Return the reason for which the broker rejects a token."""
    server = exchange(settings)
    answer = await server.step(message(token))
    assert answer.answer == b'{"status":"invalid_token"}'
    assert answer.principal is None
    for _ in range(2):
        with pytest.raises(AuthenticationError, match="does not accept the token") as caught:
            await server.step(b"\x01")
        assert caught.value.reason == answer.rejected
    assert answer.rejected
    return answer.rejected


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [(RSA_KEY, "RS256", "rsa"), (RSA_KEY, "RS512", "rsa"), (RSA_KEY, "PS256", "rsa"), (EC_KEY, "ES256", "ec")],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize(("header", "more"), [("n,,", ""), ("n,a=shop.checkout,", "traceId=a b=c\x01")])
async def test_a_valid_token_authenticates(key: Any, algorithm: str, kid: str, header: str, more: str) -> None:
    server = exchange()
    token = signed(key, algorithm, kid)
    step = await server.step(message(token, header, more))
    assert step.answer == b""
    assert step.principal == "User:shop.checkout"
    assert step.lifetime_ms == pytest.approx((LIFETIME + 30) * 1000, abs=600_000)
    with pytest.raises(AuthenticationError):
        await server.step(message(token))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": 1_000_000}, "ExpiredSignatureError"),
        ({"exp": int(time.time()) - 60}, "ExpiredSignatureError"),
        ({"exp": None}, "MissingRequiredClaimError"),
        ({"exp": "soon"}, "DecodeError"),
        ({"exp": float("inf")}, "DecodeError"),
        ({"nbf": int(time.time()) + LIFETIME // 2}, "ImmatureSignatureError"),
        ({"iat": int(time.time()) + LIFETIME // 2}, "ImmatureSignatureError"),
        ({"aud": "another"}, "InvalidAudienceError"),
        ({"aud": None}, "MissingRequiredClaimError"),
        ({"aud": []}, "MissingRequiredClaimError"),
        ({"iss": "https://issuer.example/"}, "InvalidIssuerError"),
        ({"iss": None}, "MissingRequiredClaimError"),
        ({"sub": None}, "MissingRequiredClaimError"),
        ({"sub": ""}, "claim sub is not a name"),
        ({"sub": "a\nb"}, "claim sub is not a name"),
        ({"sub": "a" * 256}, "claim sub is not a name"),
    ],
)
async def test_a_token_with_a_wrong_claim_fails(changes: dict[str, Any], reason: str) -> None:
    assert reason in await rejection(signed(**changes))


async def test_times_may_differ_by_the_skew_of_clocks() -> None:
    now = int(time.time())
    step = await exchange().step(message(signed(exp=now - 10, nbf=now + 10)))
    assert step.principal == "User:shop.checkout"
    assert step.lifetime_ms is not None
    assert 1 <= step.lifetime_ms <= 20_000
    strict = SETTINGS.model_copy(update={"clock_skew_seconds": 0})
    assert "ExpiredSignatureError" in await rejection(signed(exp=now - 1), strict)


async def test_a_lifetime_fits_into_the_answer() -> None:
    assert (await exchange().step(message(signed(exp=10**300)))).lifetime_ms == MOST_LIFETIME


async def test_one_of_several_audiences_is_enough() -> None:
    assert (await exchange().step(message(signed(aud=["other", "firn-broker"])))).principal


PUBLIC_PEM = RSA_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
DEEP = base64.urlsafe_b64encode(b"[" * 8_000).decode().rstrip("=")
FORGED = {
    "the key of another issuer": (signed(OTHER_KEY), "InvalidSignatureError"),
    "no signature": (forged({"alg": "none", "kid": "rsa"}), "algorithm 'none'"),
    "the public key as a secret": (forged({"alg": "HS256", "kid": "rsa"}, PUBLIC_PEM), "algorithm 'HS256'"),
    "the algorithm of another type of key": (forged({"alg": "ES256", "kid": "rsa"}), "algorithm 'ES256'"),
    "no key id": (signed(kid=None), "without a key id"),
    "a key id that is a number": (forged({"alg": "RS256", "kid": 1}), "without a key id"),
    "an unknown key id": (signed(kid="unknown"), "which the issuer does not have"),
    "no algorithm": (forged({"kid": "rsa"}), "without a key id or an algorithm"),
    "critical extensions": (forged({"alg": "RS256", "kid": "rsa", "crit": ["x"]}), "critical extensions"),
    "a header that is a list": (f"{base64.urlsafe_b64encode(b'[]').decode().rstrip('=')}.e30.AAAA", "JSON header"),
    "a header that is not base64": ("e30e3.e30.AAAA", "JSON header"),
    "a deep header": (f"{DEEP}.e30.AAAA", "JSON header"),
    "a large token": (f"{signed()}{'A' * MOST_TOKEN}", "the most are"),
}


@pytest.mark.parametrize(("token", "reason"), FORGED.values(), ids=FORGED.keys())
async def test_a_forged_token_fails(token: str, reason: str) -> None:
    assert reason in await rejection(token)


async def test_a_changed_payload_fails() -> None:
    head, _, signature = signed().split(".")
    payload = base64.urlsafe_b64encode(json.dumps(claims(sub="admin")).encode()).decode().rstrip("=")
    assert "InvalidSignatureError" in await rejection(f"{head}.{payload}.{signature}")


TOKEN = signed()
MALFORMED = {
    "nothing": b"",
    "the answer to an error": b"\x01",
    "no header": b"auth=Bearer " + TOKEN.encode(),
    "channel binding": message(TOKEN, "p=tls-unique,,"),
    "no end": message(TOKEN)[:-1],
    "something after the end": message(TOKEN) + b"x",
    "no token": b"n,,\x01auth=Bearer \x01\x01",
    "another scheme": message(TOKEN).replace(b"Bearer", b"Basic"),
    "no authorization": b"n,,\x01host=a\x01\x01",
    "two tokens": message(TOKEN, more=f"auth=Bearer {TOKEN}\x01"),
    "a token in two parts": message("a.b"),
    "a space in the token": message(TOKEN.replace(".", " .")),
    "another user": message(TOKEN, "n,a=admin,"),
    "bytes that are not UTF-8": message(TOKEN).replace(b"n,,", b"n,a=\xff,"),
    "a large message": message(TOKEN, more="x=" + "a" * MOST_BYTES + "\x01"),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_message_fails_at_once(data: bytes) -> None:
    server = exchange()
    with pytest.raises(AuthenticationError) as caught:
        await server.step(data)
    assert TOKEN not in caught.value.reason + str(caught.value)
    with pytest.raises(AuthenticationError):
        await server.step(message(TOKEN))


@pytest.mark.parametrize("seed", range(4))
async def test_no_message_causes_another_error(seed: int) -> None:
    randomness, issuer, accepted = random.Random(seed), Issuer(), 0
    whole = [message(signed()), message(signed(EC_KEY, "ES256", "ec"))]
    for _ in range(1_000):
        data = bytearray(randomness.choice(whole))
        for _ in range(randomness.randint(1, 3)):
            place = randomness.randrange(len(data))
            match randomness.randrange(4):
                case 0:
                    data[place] = randomness.choice(b"AZaz09-_.=\x00\x01\xff")
                case 1:
                    del data[place : place + randomness.randint(1, 40)]
                case 2:
                    data[place:place] = randomness.choice([b".", b"\x01", b"=", b"eyJ", b"\xff", b"A" * 20_000])
                case _:
                    data[place:place] = data[: randomness.randint(0, 60)]
        server = exchange(issuer=issuer)
        try:
            step: Step | None = await server.step(bytes(data))
        except AuthenticationError:
            step = None
        if step is not None and step.principal is None:
            with pytest.raises(AuthenticationError):
                await server.step(b"\x01")
        accepted += step is not None and step.principal is not None
    # A change of the last character of a signature may not change its bytes, and the word Bearer has any case.
    assert accepted < 20
    assert issuer.requests == 1


KUBERNETES = SETTINGS.model_copy(update={"kubernetes": True})


async def test_a_service_account_is_namespace_and_name() -> None:
    step = await exchange(KUBERNETES).step(message(signed(sub=ACCOUNT)))
    assert step.principal == "User:shop.checkout"


@pytest.mark.parametrize("sub", ["shop.checkout", "system:node:a", f"{ACCOUNT}:x", "system:serviceaccount:sh.op:a"])
async def test_only_service_accounts_authenticate_in_kubernetes(sub: str) -> None:
    assert "names no ServiceAccount" in await rejection(signed(sub=sub), KUBERNETES)


async def test_another_claim_can_have_the_name() -> None:
    settings = SETTINGS.model_copy(update={"principal_claim": "azp"})
    assert (await exchange(settings).step(message(signed(azp="orders")))).principal == "User:orders"
    assert "MissingRequiredClaimError" in await rejection(signed(), settings)


async def test_one_request_loads_the_keys_for_many_clients() -> None:
    issuer = Issuer()
    steps = await asyncio.gather(*(exchange(issuer=issuer).step(message(TOKEN)) for _ in range(50)))
    assert all(step.principal for step in steps)
    assert issuer.requests == 1


async def test_a_new_key_is_used_at_once_and_a_removed_one_after_the_maximum_age() -> None:
    issuer = Issuer()
    assert (await exchange(issuer=issuer).step(message(TOKEN))).principal
    issuer.content = jwks(jwk("new", OTHER_KEY))
    issuer.now = 3000
    assert (await exchange(issuer=issuer).step(message(signed(OTHER_KEY, kid="new")))).principal
    assert (await exchange(issuer=issuer).step(message(TOKEN))).rejected
    issuer.content = JWKS
    issuer.now += 3599
    assert (await exchange(issuer=issuer).step(message(signed(OTHER_KEY, kid="new")))).principal
    issuer.now += 1
    assert (await exchange(issuer=issuer).step(message(signed(OTHER_KEY, kid="new")))).rejected


async def test_a_silent_issuer_delays_no_client_whose_key_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_sets, "REFRESH_SECONDS", 0.01)
    silent, released = False, threading.Event()

    def ask() -> bytes:
        if silent:
            released.wait(60)
        return JWKS

    now = 0.0
    keys = KeySet(ask, 3600, name="test", clock=lambda: now)
    assert await keys.find("rsa") is not None
    silent, now = True, 4000.0
    try:
        assert await asyncio.wait_for(keys.find("rsa"), 30) is not None
    finally:
        released.set()


async def test_unknown_key_ids_cause_few_requests() -> None:
    issuer = Issuer()
    for number in range(100):
        assert await issuer.keys.find(f"unknown-{number}") is None
    assert issuer.requests == 1
    issuer.now += PAUSE_SECONDS
    assert await issuer.keys.find("unknown") is None
    assert issuer.requests == 2


@pytest.mark.parametrize(
    "trouble",
    [OSError("down"), b"", b"[]", b'{"keys": 1}', jwks(), b"[" * 20_000, b"\xff"],
    ids=lambda value: str(value)[:20],
)
async def test_old_keys_stay_while_the_issuer_is_away(trouble: bytes | Exception) -> None:
    issuer = Issuer()
    assert (await exchange(issuer=issuer).step(message(TOKEN))).principal
    issuer.content = trouble
    for _ in range(3):
        issuer.now += 4000
        assert (await exchange(issuer=issuer).step(message(TOKEN))).principal
        with pytest.raises(UnavailableError, match="cannot read the keys"):
            await exchange(issuer=issuer).step(message(signed(kid="new")))
    assert issuer.requests == 4
    issuer.content = JWKS
    issuer.now += PAUSE_SECONDS
    assert (await exchange(issuer=issuer).step(message(signed(kid="new")))).rejected


async def test_without_any_key_the_client_has_to_try_again() -> None:
    issuer = Issuer()
    issuer.content = OSError("connection refused")
    for _ in range(3):
        with pytest.raises(UnavailableError, match="connection refused"):
            await exchange(issuer=issuer).step(message(TOKEN))
    assert issuer.requests == 1
    issuer.content = JWKS
    issuer.now += PAUSE_SECONDS
    assert (await exchange(issuer=issuer).step(message(TOKEN))).principal


async def test_a_client_that_disconnects_does_not_end_the_request_of_others() -> None:
    began, go, issuer = threading.Event(), threading.Event(), Issuer()

    def ask() -> bytes:
        began.set()
        assert go.wait(10)
        return JWKS

    keys = KeySet(ask, 3600, name="test", clock=lambda: issuer.now)
    first = asyncio.create_task(keys.find("rsa"))
    await asyncio.to_thread(began.wait, 10)
    second = asyncio.create_task(keys.find("rsa"))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    go.set()
    assert await second is not None
    keys.close()


def test_only_public_signature_keys_of_known_sizes_are_used() -> None:
    weak = rsa.generate_private_key(65537, 1024)
    private = RSAAlgorithm.to_jwk(RSA_KEY, as_dict=True) | {"kid": "private", "key_ops": ["verify"]}
    found = parsed(
        jwks(
            jwk("rsa", RSA_KEY),
            jwk("rsa", OTHER_KEY),
            jwk(None, RSA_KEY),
            jwk("encryption", RSA_KEY, use="enc"),
            jwk("wrapping", RSA_KEY, key_ops=["wrapKey"]),
            jwk("one", RSA_KEY, alg="RS384"),
            jwk("weak", weak),
            jwk("curve", ec.generate_private_key(ec.SECP256K1())),
            private,
            {"kty": "oct", "kid": "secret", "k": "AAAA"},
            {"kty": "RSA", "kid": "broken", "n": 1, "e": "AQAB"},
            {"kty": "EC", "kid": "unknown", "crv": ["P-256"], "x": "", "y": ""},
            {"kty": ["RSA"], "kid": "list"},
            "no object",
        )
    )
    assert set(found) == {"rsa", "one", "private"}
    assert found["rsa"].public == RSA_KEY.public_key()
    assert found["private"].public == RSA_KEY.public_key()
    assert found["one"].algorithms == ("RS384",)


class _Handler(http.server.BaseHTTPRequestHandler):
    """An API server of Kubernetes: keys for clients with the token."""

    def do_GET(self) -> None:
        allowed = self.headers["Authorization"] == "Bearer reader" and self.path == "/openid/v1/jwks"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(JWKS if allowed else b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def issuer_at(directory: Path) -> Iterator[str]:
    """Serve keys over HTTPS, with the certificate ``ca.crt``."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "issuer")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(EC_KEY.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(EC_KEY, hashes.SHA256())
    )
    (directory / "ca.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    (directory / "tls.key").write_bytes(EC_KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "ca.crt", directory / "tls.key")
    server = http.server.HTTPServer(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}/openid/v1/jwks"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


async def test_keys_over_https_with_a_ca_and_a_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with issuer_at(tmp_path) as url:
        base = {"issuer": "i", "audience": "a", "jwks_url": url, "token_file": str(token)}
        ca = str(tmp_path / "ca.crt")
        for content, stated, problem in (
            ("reader", {}, "CERTIFICATE_VERIFY_FAILED"),
            ("other", {"ca_file": ca}, "HTTP status 401"),
            ("two\nlines", {"ca_file": ca}, "not one line"),
        ):
            token.write_text(content)
            keys = key_set(OauthSettings(**base, **stated))
            with pytest.raises(UnavailableError, match=problem):
                await keys.find("rsa")
            keys.close()
        token.write_text("reader\n")
        keys = key_set(OauthSettings(**base, ca_file=ca))
        assert await keys.find("rsa") is not None
        keys.close()


async def test_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = key_set(OauthSettings(issuer="i", audience="a", jwks_file=str(path)))
    with pytest.raises(UnavailableError, match="No such file"):
        await keys.find("rsa")
    path.write_bytes(JWKS)
    keys = key_set(OauthSettings(issuer="i", audience="a", jwks_file=str(path)))
    assert await keys.find("rsa") is not None
    assert await keys.find(hashlib.sha256(b"").hexdigest()) is None
    keys.close()


@pytest.mark.parametrize(
    ("stated", "problem"),
    [
        ({}, "exactly one of jwksUrl and jwksFile"),
        ({"jwks_url": "https://a", "jwks_file": "b"}, "exactly one of jwksUrl and jwksFile"),
        ({"jwks_url": "http://a"}, "pattern"),
        ({"jwks_file": "b", "kubernetes": True, "principal_claim": "azp"}, "remove principalClaim"),
        ({"jwks_file": "b", "audience": ""}, "at least 1 character"),
    ],
)
def test_settings_name_one_source_of_keys(stated: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        OauthSettings.model_validate({"issuer": "i", "audience": "a", **stated})
