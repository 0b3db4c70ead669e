"""The settings document of all brokers of a fleet (``firn_broker.settings``), and the script that adds the settings of
one broker.
"""

from typing import Any

import yaml

from firn.model import durations, names, quantities
from firn.model.config import Access, ObjectStore, Registry, SecretKey
from firn_controllers.cache.addresses import CLIENT_PORT, INTERNAL_PORT, SECURE_PORT
from firn_controllers.fleet import builders, outside
from firn_controllers.fleet.access import API_SERVER_KEYS, issuer
from firn_controllers.fleet.diskless.layout import API_SERVER_PATH, CONFIG_PATH, METRICS_PORT, DisklessFleet
from firn_controllers.fleet.layout import EXTERNAL_PORT
from firn_controllers.ports import Manifest

START = f"""#!/bin/sh
# Starts one broker: adds to the common settings what this pod is. Values are YAML, so texts are in quotes.
set -eu
command="${{*:-serve}}"
ordinal="${{HOSTNAME##*-}}"
export FIRN_BROKER_NODE_ID="$ordinal"
export FIRN_BROKER_ZONE="'${{ZONE:-}}'"
export FIRN_BROKER_LISTENER__ADVERTISED="'$HOSTNAME.$FIRN_SERVICE:{CLIENT_PORT}'"
{outside.ADDRESS}if [ -n "$external" ]; then
  export FIRN_BROKER_EXTERNAL__ADVERTISED="'$external'"
fi
exec firn-broker --config {CONFIG_PATH}/broker.yaml $command
"""
_MAIN = "export FIRN_BROKER_LISTENER__ADVERTISED="
_SECURE = f"""export FIRN_BROKER_LISTENERS__SECURE__ADVERTISED="'$HOSTNAME.$FIRN_SERVICE:{SECURE_PORT}'"
"""
JWKS = f"https://kubernetes.default.svc{API_SERVER_KEYS}"


def settings(fleet: DisklessFleet) -> dict[str, Any]:
    """Return the common part of the settings.

    The profile's ``config`` wins over ours, and has no key for the identity of a broker.
    """
    profile = fleet.profile
    coordinator: dict[str, Any] = {
        "type": "postgres",
        "uri": profile.coordinator.uri,
        "schemaName": fleet.schema,
    }
    user = profile.coordinator.user
    coordinator |= {"userFile": user.path} if isinstance(user, SecretKey) else {"user": user}
    if profile.coordinator.password is not None:
        coordinator["passwordFile"] = profile.coordinator.password.path
    tls = profile.coordinator.tls
    if tls is not None:
        coordinator["caFile"] = tls.ca.path
        if tls.certificate is not None:
            certificate, key = tls.certificate.references
            coordinator |= {"certFile": certificate.path, "keyFile": key.path}
    store = profile.object_store
    ours: dict[str, Any] = {
        "coordinator": coordinator,
        "objects": _bucket(store, fleet.url),
        "listener": {"name": "INTERNAL", "bind": f"0.0.0.0:{CLIENT_PORT}"},
        "metricsListen": f"0.0.0.0:{METRICS_PORT}",
        "topics": {
            "autoCreate": False,
            "partitions": profile.default_partitions,
            "configs": profile.topic_config,
        },
        "writer": {
            "flushSeconds": durations.milliseconds(profile.flush_interval) / 1000,
            "flushBytes": quantities.size(profile.flush_bytes),
        },
    }
    if profile.history_brokers:
        ours["historyBrokers"] = profile.history_brokers
    if profile.history is not None:
        stores = [_bucket(each, each.url) for each in profile.history.stores]
        ours["history"] = {"stores": stores, "workers": profile.history.workers}
    if profile.external is not None:
        ours["external"] = {"name": "EXTERNAL", "bind": f"0.0.0.0:{EXTERNAL_PORT}"}
    if fleet.token is not None:
        ours["internal"] = {"bind": f"0.0.0.0:{INTERNAL_PORT}", "tokenFile": fleet.token.path}
    if fleet.registries:
        ours["registries"] = {name: _registry(configured) for name, configured in fleet.registries.items()}
    if profile.access is not None:
        ours = _merged(ours, _access(fleet, profile.access))
    return _merged(ours, profile.config)


def _bucket(store: ObjectStore, url: str) -> dict[str, Any]:
    return {
        "type": "bucket",
        "url": url,
        "config": store.properties,
        "secretConfig": {key: reference.path for key, reference in store.secret_properties.items()},
        **({} if store.tls is None else {"caFile": store.tls.ca.path}),
    }


def _access(fleet: DisklessFleet, access: Access) -> dict[str, Any]:
    """Return the settings of the secure listener and of the rights of clients. Raises InvalidSpecError."""
    secret = fleet.certificate_secret
    tls: dict[str, Any] = {
        "certFile": names.secret_file(secret, "tls.crt"),
        "keyFile": names.secret_file(secret, "tls.key"),
    }
    if access.client_ca is not None:
        tls |= {"clientCaFile": access.client_ca.path, "principalRules": list(access.principal_rules)}
    guarded = {"tls": tls, "authentication": list(access.authentication)}
    added: dict[str, Any] = {
        "listeners": {"secure": {"name": "SECURE", "bind": f"0.0.0.0:{SECURE_PORT}", **guarded}},
        "authorization": {
            "type": "Acl",
            "default": "Deny",
            "superUsers": list(fleet.super_users),
            "operators": [f"User:{names.service_account(fleet.owner.namespace, names.OPERATOR_ACCOUNT)}"],
        },
        "oauth": {
            "issuer": issuer(fleet.name, access),
            "audience": names.TOKEN_AUDIENCE,
            "jwksUrl": JWKS,
            "caFile": f"{API_SERVER_PATH}/ca.crt",
            "tokenFile": f"{API_SERVER_PATH}/token",
            # The principal is the subject, as of an existing Kafka. It cannot be the name of a user with a password or a certificate.
            "principalClaim": "sub",
        },
    }
    if fleet.profile.direct_reads is not None:
        files = {key: tls[key] for key in ("certFile", "keyFile")}
        added["internal"] = {"bind": f"0.0.0.0:{INTERNAL_PORT}", "tls": files}
    if fleet.closed:
        # A broker needs a first listener. No other pod reaches this one, and its clients have no rights.
        added["listener"] = {"bind": f"127.0.0.1:{CLIENT_PORT}"}
        if fleet.profile.external is not None:
            added["external"] = guarded
    return added


def _registry(configured: Registry) -> dict[str, str]:
    files = {"passwordFile": configured.password, "tokenFile": configured.token}
    given = {"url": configured.url, "username": configured.username, "caFile": configured.ca_path or ""}
    given |= {key: reference.path for key, reference in files.items() if reference is not None}
    return {key: value for key, value in given.items() if value}


def _merged(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Merge ``theirs`` over ``ours``, key by key down to values that are not mappings."""
    both = dict(ours)
    for key, value in theirs.items():
        before = both.get(key)
        both[key] = _merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return both


def name(fleet: DisklessFleet) -> str:
    """Return the name ``firn-broker-P-HASH``."""
    return builders.config_map_name(fleet, _read_at_start(fleet))


def build(fleet: DisklessFleet) -> Manifest:
    """Build the ConfigMap."""
    return builders.config_map(fleet, _read_at_start(fleet))


def _read_at_start(fleet: DisklessFleet) -> dict[str, str]:
    start = START if fleet.profile.access is None else START.replace(_MAIN, _SECURE + _MAIN)
    return {"broker.yaml": yaml.safe_dump(settings(fleet)), "start.sh": outside.placed(start, fleet)}
