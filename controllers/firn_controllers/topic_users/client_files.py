"""The content of a TopicUser's Secret: its connection as single values, and as files of clients."""

import json
from dataclasses import dataclass, field

from firn.model.config import Config, KafkaProfile, ProfileUsers, access_of
from firn_controllers.cache.addresses import secure_servers
from firn_controllers.children import digest

MECHANISM = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class ClientConnection:
    """The connection that all users of a profile have."""

    bootstrap_servers: str
    tls: bool
    verify_hostname: bool
    certificates: str
    """Certificates of the authorities of the brokers, as PEM; empty for those that clients trust anyway."""

    @property
    def protocol(self) -> str:
        """Kafka's ``security.protocol``."""
        return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"

    @property
    def digest(self) -> str:
        """A short text that changes with the connection."""
        return digest([self.bootstrap_servers, self.tls, self.verify_hostname, self.certificates])


@dataclass(frozen=True, slots=True)
class Login:
    """A name and its password. No text of the object shows the password."""

    username: str
    password: str = field(repr=False)


def client_connection(config: Config, name: str, users: ProfileUsers, certificates: str) -> ClientConnection:
    """Return the connection of the users of profile ``name``."""
    profile = config.profiles[name]
    if access_of(profile) is not None or not isinstance(profile, KafkaProfile):
        servers = users.bootstrap_servers or secure_servers(name, config.namespace)
        return ClientConnection(servers, tls=True, verify_hostname=True, certificates=certificates)
    security = profile.security
    return ClientConnection(
        bootstrap_servers=users.bootstrap_servers or profile.bootstrap_servers or "",
        tls=security.tls,
        verify_hostname=security.verify_hostname,
        certificates=certificates if security.tls else "",
    )


def secret_data(connection: ClientConnection, login: Login) -> dict[str, str]:
    """Return the keys of the Secret."""
    jaas = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{login.username}" password="{login.password}";'
    )
    data = {
        "bootstrap.servers": connection.bootstrap_servers,
        "security.protocol": connection.protocol,
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": jaas,
        "username": login.username,
        "password": login.password,
        "client.properties": _properties(connection, jaas),
        "librdkafka.json": _librdkafka(connection, login),
    }
    return data | ({"ca.crt": connection.certificates} if connection.certificates else {})


def _properties(connection: ClientConnection, jaas: str) -> str:
    """Return a file for clients of the JVM, and for Kafka's own tools."""
    lines = [
        f"bootstrap.servers={connection.bootstrap_servers}",
        f"security.protocol={connection.protocol}",
        f"sasl.mechanism={MECHANISM}",
        f"sasl.jaas.config={jaas}",
    ]
    if connection.certificates:
        pem = connection.certificates.strip().replace("\r", "").replace("\n", "\\n")
        lines += ["ssl.truststore.type=PEM", f"ssl.truststore.certificates={pem}"]
    if connection.tls and not connection.verify_hostname:
        lines.append("ssl.endpoint.identification.algorithm=")
    return "\n".join(lines) + "\n"


def _librdkafka(connection: ClientConnection, login: Login) -> str:
    settings = {
        "bootstrap.servers": connection.bootstrap_servers,
        "security.protocol": connection.protocol,
        "sasl.mechanisms": MECHANISM,
        "sasl.username": login.username,
        "sasl.password": login.password,
    }
    if connection.certificates:
        settings["ssl.ca.pem"] = connection.certificates
    if connection.tls and not connection.verify_hostname:
        settings["ssl.endpoint.identification.algorithm"] = "none"
    return json.dumps(settings, indent=2) + "\n"
