"""How clients on librdkafka reach a profile's brokers, and what they call topics. Nothing here reads a file: secrets are passed in."""

import re
from collections.abc import Callable

from firn.model.jobs import KafkaConnection

_CERTIFICATE_ALERT = re.compile(r"SSL alert number (?:4[2-68]|49|116)\b")
"""TLS's alerts about a certificate (RFC 8446, 6.2) as OpenSSL writes them."""


def connection_settings(connection: KafkaConnection, secret: Callable[[str], str]) -> dict[str, str]:
    """librdkafka's settings for ``connection``; ``secret`` gives the value in the file of that path. Secrets are values in them, so that they
    can be sent to where the files are not."""
    config = {"bootstrap.servers": connection.bootstrap_servers, "security.protocol": connection.protocol}
    if connection.protocol.endswith("SSL"):
        config["ssl.endpoint.identification.algorithm"] = "https" if connection.verify_hostname else "none"
        for key, path in (
            ("ssl.ca.pem", connection.ca_path),
            ("ssl.certificate.pem", connection.certificate_path),
            ("ssl.key.pem", connection.certificate_key_path),
        ):
            if path is not None:
                config[key] = secret(path)
    if connection.sasl_mechanism is not None:
        config["sasl.mechanism"] = connection.sasl_mechanism
        config["sasl.username"] = connection.sasl_username or ""
        config["sasl.password"] = secret(connection.sasl_password_path) if connection.sasl_password_path else ""
    return config


def refuses_certificate(text: str) -> bool:
    """True where brokers do not take the client's certificate, or miss one: librdkafka calls that a lost connection, as they say so only after
    the handshake (TLS 1.3)."""
    return _CERTIFICATE_ALERT.search(text) is not None


def kafka_id(topic_id: object) -> str:
    """A topic id as Kafka's own tools print it: URL-safe base64, where librdkafka has the standard alphabet."""
    return str(topic_id).replace("+", "-").replace("/", "_")
