"""The keys of a TopicUser's Secret."""

import json

import pytest

from firn.model.config import ProfileUsers
from firn_controllers.topic_users.client_files import Login, client_connection, secret_data
from tests import gen

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
LOGIN = Login("shop.checkout.a", "p-w_1")


def data(security: dict[str, object], certificates: str = "", **users: str) -> dict[str, str]:
    document = {"bootstrapServers": "kafka.example:9093", "security": security}
    config = gen.config(profiles={"classic": {}, "events": document})
    return secret_data(client_connection(config, "events", ProfileUsers.model_validate(users), certificates), LOGIN)


def properties(text: str) -> dict[str, str]:
    """Read a file as java.util.Properties does, as far as these files need it."""
    pairs = (line.split("=", 1) for line in text.splitlines())
    return {key: value.replace("\\n", "\n") for key, value in pairs}


def test_a_secret_has_single_values_and_client_files() -> None:
    found = data({"tls": True}, PEM)
    jaas = (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="shop.checkout.a" password="p-w_1";'
    )
    assert {key: found[key] for key in found.keys() - {"client.properties", "librdkafka.json"}} == {
        "bootstrap.servers": "kafka.example:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": jaas,
        "username": "shop.checkout.a",
        "password": "p-w_1",
        "ca.crt": PEM,
    }
    assert properties(found["client.properties"]) == {
        "bootstrap.servers": "kafka.example:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": jaas,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": PEM.strip(),
    }
    assert json.loads(found["librdkafka.json"]) == {
        "bootstrap.servers": "kafka.example:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "shop.checkout.a",
        "sasl.password": "p-w_1",
        "ssl.ca.pem": PEM,
    }


def test_addresses_of_users_take_precedence() -> None:
    assert data({}, bootstrapServers="public.example:9094")["bootstrap.servers"] == "public.example:9094"


@pytest.mark.parametrize("security", [{}, {"tls": True}])
def test_without_certificates_clients_use_their_own(security: dict[str, object]) -> None:
    found = data(security)
    assert found["security.protocol"] == ("SASL_SSL" if security else "SASL_PLAINTEXT")
    assert "ca.crt" not in found
    assert "truststore" not in found["client.properties"]


def test_names_in_certificates_are_not_checked_if_the_profile_says_so() -> None:
    found = data({"tls": True, "verifyHostname": False}, PEM)
    assert properties(found["client.properties"])["ssl.endpoint.identification.algorithm"] == ""
    assert json.loads(found["librdkafka.json"])["ssl.endpoint.identification.algorithm"] == "none"


def test_no_text_of_a_login_shows_the_password() -> None:
    assert LOGIN.password not in repr(LOGIN)
