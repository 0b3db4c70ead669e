"""Client settings of a connection. The adapters' own tests use them with real brokers."""

import base64
import json

import pytest

from firn.kafka_clients import connection_settings, kafka_id, refuses_certificate
from firn.model.errors import NotReadyError
from firn.model.jobs import KafkaConnection, TokenEndpoint
from firn.sasl import tokens

FILES = {"/ca": "the authority", "/cert": "the certificate", "/key": "its key", "/password": "hush"}
SECURE = KafkaConnection(
    bootstrap_servers="b:9093",
    protocol="SASL_SSL",
    ca_path="/ca",
    certificate_path="/cert",
    certificate_key_path="/key",
    sasl_mechanism="PLAIN",
    sasl_username="firn",
    sasl_password_path="/password",
)


def test_secrets_are_read_from_their_files() -> None:
    assert connection_settings(SECURE, FILES.__getitem__) == {
        "bootstrap.servers": "b:9093",
        "security.protocol": "SASL_SSL",
        "ssl.endpoint.identification.algorithm": "https",
        "ssl.ca.pem": "the authority",
        "ssl.certificate.pem": "the certificate",
        "ssl.key.pem": "its key",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "firn",
        "sasl.password": "hush",
    }


def test_a_token_endpoint_replaces_user_and_password() -> None:
    endpoint = TokenEndpoint(url="https://id/token", scope="kafka", extensions={"b": "2", "a": "1"}, ca_path="/ca")
    connection = SECURE.model_copy(update={"sasl_mechanism": "OAUTHBEARER", "sasl_tokens": endpoint})
    settings = connection_settings(connection, FILES.__getitem__)
    assert {name: value for name, value in settings.items() if name.startswith(("sasl", "https"))} == {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://id/token",
        "sasl.oauthbearer.client.id": "firn",
        "sasl.oauthbearer.client.secret": "hush",
        "sasl.oauthbearer.scope": "kafka",
        "sasl.oauthbearer.extensions": "b=2,a=1",
        "https.ca.pem": "the authority",
    }


def jwt(number: int, **claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps({"jti": number, **claims}).encode()).decode().rstrip("=")
    return f"e30.{payload}.c2ln"


def test_librdkafka_reads_a_token_again_before_it_expires() -> None:
    files = {"/ca": "the authority", "/token": jwt(1, exp=1_900_000_000)}
    connection = KafkaConnection(
        bootstrap_servers="b:9096",
        protocol="SASL_SSL",
        ca_path="/ca",
        sasl_mechanism="OAUTHBEARER",
        sasl_token_path="/token",
    )
    settings = connection_settings(connection, files.__getitem__)
    assert settings["sasl.mechanism"] == "OAUTHBEARER"
    assert settings["oauth_cb"]("") == (files["/token"], 1_900_000_000)
    files["/token"] = jwt(2, exp=1_900_003_600)
    assert settings["oauth_cb"]("") == (files["/token"], 1_900_003_600)
    assert connection.secret_files == ("/ca",), "a new token makes no new client"
    with pytest.raises(NotReadyError, match="no JWT with the claim exp"):
        connection_settings(connection, {**files, "/token": jwt(3)}.__getitem__)


@pytest.mark.parametrize("token", ["", "a.b", "a.!.c", jwt(1), "e30.MTI.c2ln"])
def test_a_token_without_claims_has_no_end_and_no_issuer(token: str) -> None:
    assert tokens.issuer(token) == ""
    with pytest.raises(NotReadyError):
        tokens.expiry(token)


def test_the_text_of_a_token_shows_no_secret() -> None:
    given = tokens.GivenToken("a.b.c")
    assert "a.b.c" not in repr(given)
    assert given.first_message() == b"n,,\x01auth=Bearer a.b.c\x01\x01"


def test_a_plaintext_connection_needs_no_secret() -> None:
    settings = connection_settings(KafkaConnection(bootstrap_servers="b:9092"), FILES.__getitem__)
    assert settings == {"bootstrap.servers": "b:9092", "security.protocol": "PLAINTEXT"}


def test_host_names_of_certificates_are_checked_by_default() -> None:
    careless = SECURE.model_copy(update={"verify_hostname": False})
    settings = connection_settings(careless, FILES.__getitem__)
    assert settings["ssl.endpoint.identification.algorithm"] == "none"


def test_topic_ids_are_written_as_in_the_tools_of_kafka() -> None:
    assert kafka_id("a+b/c") == "a-b_c"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("Receive failed: error:0A000412:SSL routines::ssl/tls alert bad certificate: SSL alert number 42", True),
        ("Receive failed: error:0A00045C:SSL routines::tlsv13 alert certificate required: SSL alert number 116", True),
        ("sasl_ssl://localhost:9093/bootstrap: error:0A000086:SSL routines::certificate verify failed", True),
        ("Receive failed: error:0A000418:SSL routines::tlsv1 alert unknown ca: SSL alert number 48", True),
        ("SSL handshake failed: error:0A00042E:SSL routines::tlsv1 alert protocol version: SSL alert number 70", False),
        (
            "SSL handshake failed: error:0A000410:SSL routines::ssl/tls alert handshake failure: SSL alert number 40",
            False,
        ),
        ("Connect to ipv4#10.0.0.1:9092 failed: Connection refused", False),
    ],
)
def test_a_rejected_certificate_differs_from_a_lost_connection(text: str, refused: bool) -> None:
    assert refuses_certificate(text) is refused
