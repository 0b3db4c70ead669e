"""The configuration of all brokers of a fleet, and the script that adds the settings of one broker."""

from firn.model.config import Authority
from firn.model.errors import ExitCode
from firn_controllers.fleet import builders, outside
from firn_controllers.fleet.kafka import listeners, plain_clients
from firn_controllers.fleet.kafka.layout import CONFIG_PATH, DATA_PATH, KafkaFleet
from firn_controllers.fleet.kafka.listeners import CLIENTS_COPY, KEYS_FILE, KEYSTORE, TLS_PATH, TOKEN_FILE, TOKENS_PATH
from firn_controllers.fleet.layout import EXTERNAL_PORT
from firn_controllers.ports import Manifest

LONGEST = str(2**63 - 1)
START = f"""#!/bin/sh
# Starts one broker: adds to the common configuration what this pod is, formats an empty volume, becomes Kafka.
# A formatted volume keeps its quorum: another number of voters could elect a controller that lacks the metadata.
set -eu
ordinal="${{HOSTNAME##*-}}"
config=/tmp/server.properties
@tls@listeners="@listeners@"
advertised="@advertised@"
{outside.ADDRESS}if [ -n "$external" ]; then
  listeners="$listeners,EXTERNAL://:{EXTERNAL_PORT}"
  advertised="$advertised,EXTERNAL://$external"
fi
voters="$FIRN_VOTERS"
if [ -f {DATA_PATH}/log/meta.properties ] && [ -s {DATA_PATH}/voters ]; then
  voters="$(cat {DATA_PATH}/voters)"
  if [ "$voters" != "$FIRN_VOTERS" ]; then
    echo "The volume has a quorum of $voters voters. The broker ignores the $FIRN_VOTERS voters of its StatefulSet." >&2
  fi
else
  echo "$voters" > {DATA_PATH}/voters.new
  mv {DATA_PATH}/voters.new {DATA_PATH}/voters
fi
quorum=
voter=0
while [ "$voter" -lt "$voters" ]; do
  quorum="$quorum${{quorum:+,}}$voter@${{HOSTNAME%-*}}-$voter.$FIRN_SERVICE:@voters@"
  voter=$((voter + 1))
done
roles=broker
if [ "$ordinal" -lt "$voters" ]; then
  roles=broker,controller
  listeners="$listeners,@controllers@"
fi
cp {CONFIG_PATH}/server.properties "$config"
{{
  echo
  echo "node.id=$ordinal"
  echo "process.roles=$roles"
  echo "controller.quorum.voters=$quorum"
  echo "listeners=$listeners"
  echo "advertised.listeners=$advertised"
}} >> "$config"
if [ ! -f {DATA_PATH}/log/meta.properties ]; then
  release="$(cat {CONFIG_PATH}/release-version)"
  /opt/kafka/bin/kafka-storage.sh format --ignore-formatted --cluster-id "$FIRN_CLUSTER_ID" --config "$config" \\
    ${{release:+--release-version "$release"}}
fi
@clients@exec /opt/kafka/bin/kafka-server-start.sh "$config"
"""
LOGGING = "log4j2.properties"
"""The configuration of the log, for brokers with ``access``."""
KEYSTORE_SECONDS = 5
"""Seconds between two looks for a changed certificate."""
_TLS = f"""keystore="{KEYSTORE}"
if ! grep -q "BEGIN PRIVATE KEY" {TLS_PATH}/tls.key; then
  echo "The key tls.key of the Secret is not PKCS #8. Convert it: openssl pkcs8 -topk8 -nocrypt. For cert-manager, set" >&2
  echo "privateKey.encoding: PKCS8 in its Certificate." >&2
  exit 1
fi
refresh() {{
  (umask 077; cat {TLS_PATH}/tls.key {TLS_PATH}/tls.crt > "$keystore.new")
  if cmp -s "$keystore.new" "$keystore"; then rm "$keystore.new"; else mv "$keystore.new" "$keystore"; fi
@authority@}}
refresh
# Kafka reads the changed file when the operator asks for it. The loop ends with the broker, which keeps this process id.
while sleep {KEYSTORE_SECONDS} && kill -0 $$ 2>/dev/null; do refresh || true; done &
allowed="-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{TOKENS_PATH}/{KEYS_FILE},file://{TOKENS_PATH}/{TOKEN_FILE}"
export KAFKA_OPTS="${{KAFKA_OPTS:-}} $allowed"
export KAFKA_LOG4J_OPTS="${{KAFKA_LOG4J_OPTS:--Dlog4j2.configurationFile={CONFIG_PATH}/{LOGGING}}}"
"""
"""Shell script that keeps the keystore equal to the files of the Secret, allows Kafka to read tokens, and sets the log's
configuration."""
_LOGGING = """# Everything is in the log of the container. The configuration of the official image writes denials to a file of the pod.
status = warn
appender.console.type = Console
appender.console.name = STDOUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = STDOUT
logger.requests.name = kafka.request.logger
logger.requests.level = WARN
logger.states.name = state.change.logger
logger.states.level = WARN
"""


def start(fleet: KafkaFleet) -> str:
    """Return the script that starts one broker. Raises InvalidSpecError."""
    of_broker, of_controller = listeners.of_brokers(fleet), listeners.of_controllers(fleet)
    access = fleet.profile.access
    clients = None if access is None else access.client_ca
    changes = {
        "tls": "" if access is None else f"@needs@{_TLS}",
        "needs": "" if clients is None else _needs(clients),
        "authority": "" if clients is None else _copied(clients),
        "listeners": ",".join(f"{each.name}://:{each.port}" for each in of_broker),
        "advertised": ",".join(f"{each.name}://$HOSTNAME.$FIRN_SERVICE:{each.port}" for each in of_broker),
        "controllers": ",".join(f"{each.name}://:{each.port}" for each in of_controller),
        "voters": str(of_controller[0].port),
        "clients": plain_clients.script(fleet),
    }
    script = outside.placed(START, fleet)
    for place, text in changes.items():
        script = script.replace(f"@{place}@", text)
    return script


def _needs(clients: Authority) -> str:
    """Return a part of the script that reports a missing CA of clients. Kafka names only a file, deep in an exception."""
    source = f"Secret {clients.secret}" if clients.secret is not None else f"ConfigMap {clients.config_map}"
    return f"""if ! grep -q "BEGIN CERTIFICATE" "{clients.path}" 2>/dev/null; then
  echo "The key {clients.key} of the {source} has no certificate. Put the CA of clients there, in PEM, or correct" >&2
  echo "access.clientCa of the profile." >&2
  exit {ExitCode.CONFIGURATION.value}
fi
"""


def _copied(clients: Authority) -> str:
    """Return a part of the script that copies the CA of clients. Kafka stops the reload of all other certificates if it cannot
    read one of its files, so the copy is replaced by another certificate only."""
    return f"""  if grep -q "BEGIN CERTIFICATE" "{clients.path}" 2>/dev/null && ! cmp -s "{clients.path}" "{CLIENTS_COPY}"; then
    cp "{clients.path}" "{CLIENTS_COPY}.new"
    mv "{CLIENTS_COPY}.new" "{CLIENTS_COPY}"
  fi
"""


def properties(fleet: KafkaFleet) -> dict[str, str]:
    """Return the common part of ``server.properties``.

    The profile's ``config`` wins over ours, and has no key for the identity of a broker.
    """
    replication = str(fleet.replication_factor)
    in_sync = str(fleet.in_sync)
    ours = {
        **listeners.properties(fleet),
        "log.dirs": f"{DATA_PATH}/log",
        "auto.create.topics.enable": "false",
        "num.partitions": str(fleet.profile.default_partitions),
        "default.replication.factor": replication,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replication,
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replication,
        "share.coordinator.state.topic.min.isr": in_sync,
        # Kafka 4 rejects records more than an hour ahead. The time of a record is data, which the broker must not judge.
        "log.message.timestamp.after.max.ms": LONGEST,
        "log.message.timestamp.before.max.ms": LONGEST,
    }
    return ours | fleet.profile.config


def text(fleet: KafkaFleet) -> str:
    """Return ``server.properties`` as a file, with sorted keys, escaped as java.util.Properties reads it."""
    escape = str.maketrans({"\\": "\\\\", "\n": "\\n", "\r": "\\r"})
    return "".join(f"{key}={value.translate(escape)}\n" for key, value in sorted(properties(fleet).items()))


def name(fleet: KafkaFleet) -> str:
    """Return the name ``firn-broker-P-HASH``."""
    return builders.config_map_name(fleet, _read_at_start(fleet))


def build(fleet: KafkaFleet) -> Manifest:
    """Build the ConfigMap. ``release-version`` is not part of its name, because it matters only to an empty volume."""
    version = fleet.metadata_version or fleet.profile.metadata_version or ""
    return builders.config_map(fleet, _read_at_start(fleet), **{"release-version": version})


def _read_at_start(fleet: KafkaFleet) -> dict[str, str]:
    logging = {LOGGING: _LOGGING} if fleet.profile.access is not None else {}
    return {"server.properties": text(fleet), "start.sh": start(fleet), **logging}
