"""What a client is told of a connection; the adapters' own tests have real brokers believe it."""

from firn.model.jobs import KafkaConnection
from firn.model.kafka import connection_settings, kafka_id

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


def test_secrets_are_values() -> None:
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


def test_a_connection_in_the_clear_needs_no_secret() -> None:
    found = connection_settings(KafkaConnection(bootstrap_servers="b:9092"), FILES.__getitem__)
    assert found == {"bootstrap.servers": "b:9092", "security.protocol": "PLAINTEXT"}


def test_names_of_certificates_are_checked_unless_told_otherwise() -> None:
    careless = SECURE.model_copy(update={"verify_hostname": False})
    found = connection_settings(careless, FILES.__getitem__)
    assert found["ssl.endpoint.identification.algorithm"] == "none"


def test_topic_ids_are_written_as_kafkas_own_tools_do() -> None:
    assert kafka_id("a+b/c") == "a-b_c"
