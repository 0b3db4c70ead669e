"""Addresses and librdkafka's settings of clients of a profile's brokers. No function reads a file: callers pass secrets."""

import re
from collections.abc import Callable
from typing import Any

from firn.model.errors import NotReadyError
from firn.model.jobs import KafkaConnection, TokenEndpoint
from firn.sasl.tokens import expiry

RECONNECT_BACKOFF_MS = 1_000
"""Milliseconds before the first reconnect.

While no broker is reachable, librdkafka restarts from the bootstrap servers (KIP-899) and resets its backoff. A client that called
``list_topics`` for 40 s looked up an unknown host name 150 times in 10 s with the default of 100 ms, and 18 times with 1,000 ms.
"""
NO_TOPIC = "?"
"""A name that no topic can have. Brokers answer a metadata request for it with their ids, and create no topic.

librdkafka 2.16 then waits for the topic, and repeats the request until the client is closed: once a second, or twice if the client may
not describe the topic. Its settings for refreshes of metadata do not change that. Kafka's authorizer logs each of these denials. So a
driver, which may not describe the topic, uses a client for this request only.

DescribeCluster is no alternative. librdkafka 2.16 aborts the process if the answer has no broker, as that of a Kafka that starts. The
Python client crashes if the answer has no id of the cluster.
"""
_DEFAULT_PORT = 9092
_ADDRESS = re.compile(r"(?:\w+://)?(\[[^]]+\]|[^:/]+)(?::(\d+))?")
"""A server, perhaps behind the name of its protocol, which librdkafka accepts too."""
_BAD_CERTIFICATE = re.compile(r"SSL alert number (?:4[2-68]|49|116)\b|certificate verify failed")
"""Alerts of TLS about a certificate (RFC 8446, 6.2), and the failed check of a server's certificate, in OpenSSL's form."""


def addresses(bootstrap_servers: str) -> list[tuple[str, int]]:
    """Return host and port of the bootstrap servers."""
    matches = (_ADDRESS.fullmatch(text.strip()) for text in bootstrap_servers.split(",") if text.strip())
    return [(match[1].strip("[]"), int(match[2] or _DEFAULT_PORT)) for match in matches if match is not None]


def authorities(connection: KafkaConnection, secret: Callable[[str], str]) -> str | None:
    """Return the CA certificates of the brokers as PEM; None if the connection names none. ``secret`` returns the content of a file.

    While the source of the brokers' certificate changes, the new source may not have issued its certificate yet. Raises NotReadyError
    if no file can be read.
    """
    found: set[str] = set()
    problem: NotReadyError | None = None
    for path in connection.ca_paths:
        try:
            found.add(secret(path))
        except NotReadyError as error:
            problem = problem or error
    if problem is not None and not found:
        raise problem
    # In a fixed order, so that a change back of the source changes no Secret of a TopicUser.
    return "\n".join(sorted(found)) if found else None


def connection_settings(connection: KafkaConnection, secret: Callable[[str], str]) -> dict[str, Any]:
    """Return librdkafka's settings for ``connection``. ``secret`` returns the content of the file at a path.

    The settings contain secrets as values, except for a token that expires: librdkafka then calls ``oauth_cb`` in a thread of its own."""
    config: dict[str, Any] = {
        "bootstrap.servers": connection.bootstrap_servers,
        "security.protocol": connection.protocol,
    }
    if connection.protocol.endswith("SSL"):
        config["ssl.endpoint.identification.algorithm"] = "https" if connection.verify_hostname else "none"
        certificates = authorities(connection, secret)
        if certificates is not None:
            config["ssl.ca.pem"] = certificates
        for key, path in (
            ("ssl.certificate.pem", connection.certificate_path),
            ("ssl.key.pem", connection.certificate_key_path),
        ):
            if path is not None:
                config[key] = secret(path)
    if connection.sasl_mechanism is not None:
        config["sasl.mechanism"] = connection.sasl_mechanism
        if connection.sasl_token_path is not None:
            return config | {"oauth_cb": _token_reader(connection.sasl_token_path, secret)}
        password = secret(connection.sasl_password_path) if connection.sasl_password_path else ""
        if connection.sasl_tokens is None:
            config |= {"sasl.username": connection.sasl_username or "", "sasl.password": password}
        else:
            config |= _tokens(connection.sasl_tokens, connection.sasl_username or "", password, secret)
    return config


def _token_reader(path: str, secret: Callable[[str], str]) -> Callable[[str], tuple[str, float]]:
    """Return the function from which librdkafka gets a token and its end, in seconds since 1970."""

    def read(_: str) -> tuple[str, float]:
        token = secret(path)
        return token, expiry(token)

    # A client without a token blocks its maker for 10 s, and says nothing about the file.
    read("")
    return read


def _tokens(tokens: TokenEndpoint, client: str, password: str, secret: Callable[[str], str]) -> dict[str, str]:
    config = {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": tokens.url,
        "sasl.oauthbearer.client.id": client,
        "sasl.oauthbearer.client.secret": password,
    }
    if tokens.scope:
        config["sasl.oauthbearer.scope"] = tokens.scope
    if tokens.extensions:
        config["sasl.oauthbearer.extensions"] = ",".join(f"{key}={value}" for key, value in tokens.extensions.items())
    if tokens.ca_path is not None:
        config["https.ca.pem"] = secret(tokens.ca_path)
    return config


def refuses_certificate(text: str) -> bool:
    """Return True if brokers reject the client's certificate or require one, or if the client rejects theirs.

    librdkafka reports a lost connection for the former, because with TLS 1.3 the brokers reject it only after the handshake. It
    sometimes reports one for the latter, too."""
    return _BAD_CERTIFICATE.search(text) is not None


def kafka_id(topic_id: object) -> str:
    """Return a topic ID in the form of Kafka's own tools: URL-safe base64. librdkafka uses the standard alphabet."""
    return str(topic_id).replace("+", "-").replace("/", "_")
