"""Addresses, certificates and credentials of a task's connections to brokers and their bucket, with the secrets as values."""

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from firn.kafka_clients import addresses, authorities
from firn.model.jobs import DirectReads, KafkaConnection
from firn.sasl.tokens import GivenToken, TokenClient
from firn_spark.credentials import read_secret

GRANT_HINT = "grant the driver's user Describe and Read on the topic, or correct its credentials"
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Access:
    """Access to the brokers of a profile; picklable. Its text shows no secret."""

    bootstrap_servers: str
    protocol: str = "PLAINTEXT"
    authority: str | None = None
    certificate: str | None = None
    certificate_key: str | None = field(default=None, repr=False)
    verify_hostname: bool = True
    mechanism: str | None = None
    username: str = ""
    password: str = field(default="", repr=False)
    tokens: TokenClient | GivenToken | None = None
    """Set if the mechanism is OAUTHBEARER."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Return host and port of the bootstrap servers."""
        return addresses(self.bootstrap_servers)

    def tls(self) -> ssl.SSLContext | None:
        """Return the context for connections; None for connections without TLS."""
        if not self.protocol.endswith("SSL"):
            return None
        context = ssl.create_default_context(cadata=None if self.authority is None else _certificates(self.authority))
        context.check_hostname = self.verify_hostname
        if self.certificate is not None and self.certificate_key is not None:
            _load(context, f"{self.certificate}\n{self.certificate_key}\n")
        return context


@dataclass(frozen=True, slots=True)
class Bucket:
    """The place of WAL objects, and the options of obstore; picklable. Its text shows no option, because some are secrets."""

    url: str
    options: Mapping[str, str] = field(repr=False)
    authority: str | None = field(default=None, repr=False)
    """CA certificates in PEM."""


def bucket(reads: DirectReads) -> Bucket:
    """Return the bucket of ``reads``. Raises NotReadyError if a secret's file is missing."""
    secrets = {option: read_secret(path) for option, path in reads.secret_properties.items()}
    authority = None if reads.ca_path is None else read_secret(reads.ca_path)
    return Bucket(reads.url, {**reads.properties, **secrets}, authority)


def access(connection: KafkaConnection) -> Access:
    """Return the access of ``connection``. Raises NotReadyError if a secret's file is missing."""
    files = (connection.certificate_path, connection.certificate_key_path)
    certificate, key = (None if path is None else read_secret(path) for path in files)
    password = read_secret(connection.sasl_password_path) if connection.sasl_password_path else ""
    return Access(
        bootstrap_servers=connection.bootstrap_servers,
        protocol=connection.protocol,
        authority=authorities(connection, read_secret),
        certificate=certificate,
        certificate_key=key,
        verify_hostname=connection.verify_hostname,
        mechanism=connection.sasl_mechanism,
        username=connection.sasl_username or "",
        password=password,
        tokens=_tokens(connection, password),
    )


def _tokens(connection: KafkaConnection, secret: str) -> TokenClient | GivenToken | None:
    endpoint = connection.sasl_tokens
    if connection.sasl_token_path is not None:
        return GivenToken(read_secret(connection.sasl_token_path))
    if endpoint is None:
        return None
    return TokenClient(
        endpoint.url,
        connection.sasl_username or "",
        secret,
        endpoint.scope,
        tuple(sorted(endpoint.extensions.items())),
        None if endpoint.ca_path is None else _certificates(read_secret(endpoint.ca_path)),
    )


def _certificates(text: str) -> str:
    """Return the certificates of a bundle, without the comments between them, which may not be ASCII."""
    return "\n".join(_CERTIFICATE.findall(text)) or text


def _load(context: ssl.SSLContext, chain: str) -> None:
    # ssl reads certificates from files only. This one has no name and never reaches a disk.
    file = os.memfd_create("certificate")
    try:
        os.write(file, chain.encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
