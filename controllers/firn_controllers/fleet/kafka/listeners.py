"""The listeners of a fleet, and its configs for TLS, authentication and ACLs.

Brokers and controllers authenticate to each other with tokens of their ServiceAccount. The subject of a certificate may be
empty, and the operator cannot read it, so no rule could tell the certificate of a broker from that of a client.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from firn.model import names
from firn.model.config import Access
from firn_controllers.cache.addresses import CERTIFICATE_PORT, CLIENT_PORT, SECURE_PORT
from firn_controllers.fleet.access import issuer
from firn_controllers.fleet.kafka.layout import CONTROLLER_PORT, QUORUM_PORT, KafkaFleet, Stage
from firn_controllers.fleet.layout import EXTERNAL_PORT

TLS_PATH = "/etc/firn/tls"
"""Directory with the files of the certificate, as the Secret has them."""
KEYSTORE_PATH = "/etc/firn/keystore"
"""Directory in memory with the key and the certificate in one file, as Kafka reads them."""
KEYSTORE = f"{KEYSTORE_PATH}/keystore.pem"
CLIENTS_COPY = f"{KEYSTORE_PATH}/clients.pem"
"""A copy of the CA of clients."""
TOKENS_PATH = "/etc/firn/tokens"
"""Directory with a token of the brokers' ServiceAccount, and the keys that verify tokens."""
KEYS_FILE = "jwks.json"
TOKEN_FILE = "token"
SESSION_MS = 3_600_000
"""Longest session of a client with a password or a token, in milliseconds. After it, the client authenticates again (KIP-368)."""
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_SCRAM = "org.apache.kafka.common.security.scram"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener of brokers or controllers, and Kafka's security protocol."""

    name: str
    port: int
    protocol: str = "PLAINTEXT"


INTERNAL = Listener("INTERNAL", CLIENT_PORT)
CONTROLLER = Listener("CONTROLLER", CONTROLLER_PORT)
SECURE = Listener("SECURE", SECURE_PORT, "SASL_SSL")
CERTIFICATE = Listener("CERTIFICATE", CERTIFICATE_PORT, "SSL")
QUORUM = Listener("QUORUM", QUORUM_PORT, "SASL_SSL")


def of_brokers(fleet: KafkaFleet) -> list[Listener]:
    """Return the listeners of every broker inside the cluster. Clients of a listener get its addresses."""
    access = fleet.profile.access
    found = [INTERNAL] if fleet.open else []
    if fleet.stage >= Stage.BESIDE and access is not None:
        found += [SECURE, *([CERTIFICATE] if access.client_ca is not None else [])]
    return found


def of_controllers(fleet: KafkaFleet) -> list[Listener]:
    """Return the listeners of every controller. Brokers and controllers connect to the first one."""
    match fleet.stage:
        case Stage.PLAIN:
            return [CONTROLLER]
        case Stage.BESIDE:
            return [CONTROLLER, QUORUM]
        case Stage.MOVED:
            return [QUORUM, CONTROLLER]
        case Stage.CLOSED:
            return [QUORUM]


def properties(fleet: KafkaFleet) -> dict[str, str]:
    """Return the configs of the listeners. Raises InvalidSpecError if the issuer of tokens is not known."""
    access = fleet.profile.access
    listeners = [*of_brokers(fleet), *of_controllers(fleet)]
    if fleet.profile.external is not None:
        listeners.append(Listener("EXTERNAL", EXTERNAL_PORT, "PLAINTEXT" if fleet.open else "SASL_SSL"))
    found = {
        "controller.listener.names": ",".join(listener.name for listener in of_controllers(fleet)),
        "inter.broker.listener.name": "SECURE" if fleet.stage >= Stage.MOVED else "INTERNAL",
        "listener.security.protocol.map": ",".join(f"{listener.name}:{listener.protocol}" for listener in listeners),
    }
    if access is None:
        return found
    found |= _rights(fleet, access)
    for listener in listeners:
        if listener.protocol == "SASL_SSL":
            scram = listener.name != "QUORUM" and "ScramSha512" in access.authentication
            found |= _sasl(listener, scram=scram)
        elif access.client_ca is not None and listener.protocol == "SSL":
            found |= _certificates(listener, access.principal_rules)
    return found


def _rights(fleet: KafkaFleet, access: Access) -> dict[str, str]:
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": ";".join(fleet.super_users),
        # Without it, a connection outlives the password that it used.
        "connections.max.reauth.ms": str(SESSION_MS),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": KEYSTORE,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": f"{TLS_PATH}/ca.crt" if fleet.bundle is None else fleet.bundle.path,
        # Otherwise a broker refuses a new certificate with another subject or other names until it restarts.
        "ssl.allow.dn.changes": "true",
        "ssl.allow.san.changes": "true",
        "sasl.mechanism.controller.protocol": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "sasl.oauthbearer.expected.audience": names.TOKEN_AUDIENCE,
        "sasl.oauthbearer.expected.issuer": issuer(fleet.name, access),
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{TOKENS_PATH}/{KEYS_FILE}",
        "sasl.oauthbearer.token.endpoint.url": f"file://{TOKENS_PATH}/{TOKEN_FILE}",
    }


def _certificates(listener: Listener, rules: Sequence[str]) -> dict[str, str]:
    """Return the configs of a listener for certificates of the CA of clients. Brokers and controllers do not trust this CA."""
    prefix = f"listener.name.{listener.name.lower()}.ssl"
    return {
        f"{prefix}.client.auth": "required",
        f"{prefix}.principal.mapping.rules": ",".join(rules),
        f"{prefix}.truststore.location": CLIENTS_COPY,
        f"{prefix}.truststore.type": "PEM",
    }


def _sasl(listener: Listener, *, scram: bool) -> dict[str, str]:
    """Return the configs of a listener for tokens, and with ``scram`` for passwords."""
    prefix = f"listener.name.{listener.name.lower()}"
    oauth = f"{prefix}.oauthbearer.sasl"
    found = {
        f"{prefix}.sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER" if scram else "OAUTHBEARER",
        f"{oauth}.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
        f"{oauth}.login.callback.handler.class": f"{_OAUTH}.OAuthBearerLoginCallbackHandler",
        f"{oauth}.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
    }
    if scram:
        found[f"{prefix}.scram-sha-512.sasl.jaas.config"] = f"{_SCRAM}.ScramLoginModule required;"
    return found
