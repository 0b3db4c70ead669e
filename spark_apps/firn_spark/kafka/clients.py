"""Settings of Kafka clients: librdkafka, and the Java client of Spark's Kafka source."""

import logging
from typing import Any

from firn.kafka_clients import RECONNECT_BACKOFF_MS, connection_settings
from firn.model.jobs import KafkaConnection
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
    if connection.ca_path is not None:
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": read_secret(connection.ca_path),
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
        module = "plain.PlainLoginModule" if connection.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
        options |= {
            "kafka.sasl.mechanism": connection.sasl_mechanism,
            "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
            f"username={_quoted(connection.sasl_username or '')} password={_quoted(password)};",
        }
    return options


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def silent_logger() -> Any:
    """Return a logger that drops librdkafka's messages; errors reach callers as exceptions."""
    logger = logging.getLogger("firn.kafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger
