"""Addresses, certificates and credentials are taken as librdkafka takes them."""

import ssl
from pathlib import Path

import pytest

from firn.model.errors import AccessDeniedError
from firn.sasl.scram import Scram
from firn.sasl.tokens import TokenClient
from firn_spark.worker.fetching.access import Access
from tests.servers.kafka import certificates

ADDRESSES = {
    "a:9093": [("a", 9093)],
    "a:1, b:2 ,": [("a", 1), ("b", 2)],
    "a": [("a", 9092)],
    "SASL_SSL://a.example:9092": [("a.example", 9092)],
    "[::1]:9092,[fe80::1]": [("::1", 9092), ("fe80::1", 9092)],
}


@pytest.mark.parametrize("text", ADDRESSES)
def test_every_form_of_an_address_is_read(text: str) -> None:
    assert Access(text).addresses == ADDRESSES[text]


@pytest.mark.slow
def test_a_bundle_of_certificates_may_have_comments_in_any_language(tmp_path: Path) -> None:
    certificates(tmp_path / "tls", "localhost")
    certificate = (tmp_path / "tls" / "ca.crt").read_text()
    bundle = f"# Főtanúsítvány\n{certificate}\n# ルート\n{certificate}"
    context = Access("a:1", protocol="SSL", authority=bundle).tls()
    assert context is not None
    assert context.cert_store_stats()["x509_ca"] == 1
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_secrets_are_not_in_the_text_of_an_access() -> None:
    tokens = TokenClient("https://id.example/token", "firn", "client-secret")
    text = repr(Access("a:1", certificate_key="key-secret", password="password-secret", tokens=tokens))
    assert "secret" not in text


# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
CHALLENGE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROOF = b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_scram_agrees_with_the_example_of_its_standard() -> None:
    client = Scram("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert client.first() == b"n,,n=user,r=" + NONCE.encode()
    assert client.final(CHALLENGE).endswith(PROOF)
    client.check(SIGNATURE)


@pytest.mark.parametrize("answer", [b"v=AAAA", b"e=invalid-proof", b"", b"\xff"])
def test_a_broker_that_does_not_know_the_password_is_refused(answer: bytes) -> None:
    client = Scram("SCRAM-SHA-256", "user", "pencil", NONCE)
    client.final(CHALLENGE)
    with pytest.raises(AccessDeniedError):
        client.check(answer)


@pytest.mark.parametrize(
    "change", [(b"rOpr", b"other"), (b"i=4096", b"i=1"), (b"i=4096", b"i=2000000000"), (b"i=4096", b"")]
)
def test_a_challenge_for_another_client_is_refused(change: tuple[bytes, bytes]) -> None:
    with pytest.raises(AccessDeniedError, match="no SCRAM challenge"):
        Scram("SCRAM-SHA-256", "user", "pencil", NONCE).final(CHALLENGE.replace(*change))
