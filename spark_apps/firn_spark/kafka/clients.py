"""Settings of Kafka clients: librdkafka, and the Java client of Spark's Kafka source."""

import logging
from collections.abc import Mapping
from typing import Any

from firn.kafka_clients import RECONNECT_BACKOFF_MS, authorities, connection_settings
from firn.model.jobs import KafkaConnection, TokenEndpoint
from firn_spark.credentials import read_secret

STALL_SECONDS = 30.0
"""Seconds without a record or an end of a partition after which a task fails."""
POLL_RECORDS = 5_000
POLL_BYTES = 4 * 1024 * 1024
"""Records and bytes that Spark's Kafka source takes from a partition at once. With Kafka's default of 500, its bookkeeping between polls costs a
quarter of the throughput."""


def client_config(connection: KafkaConnection) -> dict[str, Any]:
    """Return librdkafka's settings for ``connection``. Raises NotReadyError if a secret's file is missing."""
    return {
        **connection_settings(connection, read_secret),
        "log_level": 3,
        "socket.connection.setup.timeout.ms": 10_000,
        "reconnect.backoff.ms": RECONNECT_BACKOFF_MS,
        "reconnect.backoff.max.ms": 5_000,
    }


def spark_options(connection: KafkaConnection) -> dict[str, str]:
    """Return the options of Spark's Kafka source for ``connection`` (Kafka's Java client, PEM certificates inline)."""
    options = {
        "kafka.bootstrap.servers": connection.bootstrap_servers,
        "kafka.security.protocol": connection.protocol,
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(int(STALL_SECONDS * 1000)),
        "kafka.max.poll.records": str(POLL_RECORDS),
        "kafka.max.partition.fetch.bytes": str(POLL_BYTES),
    }
    certificates = authorities(connection, read_secret)
    if certificates is not None:
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": certificates,
        }
    if connection.certificate_path is not None and connection.certificate_key_path is not None:
        options |= {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": read_secret(connection.certificate_path),
            "kafka.ssl.keystore.key": read_secret(connection.certificate_key_path),
        }
    if "SSL" in connection.protocol and not connection.verify_hostname:
        options["kafka.ssl.endpoint.identification.algorithm"] = ""
    if connection.sasl_mechanism is not None:
        password = read_secret(connection.sasl_password_path) if connection.sasl_password_path else ""
        options["kafka.sasl.mechanism"] = connection.sasl_mechanism
        if connection.sasl_tokens is not None:
            return options | _token_options(connection.sasl_tokens, connection.sasl_username or "", password)
        module = "plain.PlainLoginModule" if connection.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
        login = {"username": connection.sasl_username or "", "password": password}
        options["kafka.sasl.jaas.config"] = _login(module, login)
    return options


def _token_options(tokens: TokenEndpoint, client: str, secret: str) -> dict[str, str]:
    """Return the options for SASL OAUTHBEARER with client credentials (KIP-768)."""
    login = {"clientId": client, "clientSecret": secret}
    if tokens.scope:
        login["scope"] = tokens.scope
    login |= {f"extension_{key}": value for key, value in tokens.extensions.items()}
    if tokens.ca_path is not None:
        login |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": read_secret(tokens.ca_path)}
    package = "org.apache.kafka.common.security.oauthbearer"
    return {
        "kafka.sasl.jaas.config": _login("oauthbearer.OAuthBearerLoginModule", login),
        "kafka.sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
        "kafka.sasl.oauthbearer.token.endpoint.url": tokens.url,
    }


def _login(module: str, values: Mapping[str, str]) -> str:
    """Return the JAAS configuration of a module of Kafka."""
    given = " ".join(f"{key}={_quoted(value)}" for key, value in values.items())
    return f"org.apache.kafka.common.security.{module} required {given};"


def _quoted(text: str) -> str:
    """Return a string of a JAAS configuration, which ends at the end of a line."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def silent_logger() -> Any:
    """Return a logger that drops librdkafka's messages; errors reach callers as exceptions."""
    logger = logging.getLogger("firn.kafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
