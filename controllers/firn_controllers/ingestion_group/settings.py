"""The settings that a driver starts with (`firn.model.jobs.GroupSettings`), from the configuration."""

import json
from collections.abc import Collection, Mapping

from firn.model import names, quantities
from firn.model.config import (
    Catalog,
    Config,
    Credential,
    DisklessProfile,
    IngestionGroup,
    KafkaProfile,
    KafkaSecurity,
    Profile,
    Registry,
    access_of,
)
from firn.model.jobs import (
    CatalogConnection,
    DirectReads,
    GroupSettings,
    KafkaConnection,
    RegistryConnection,
    TokenEndpoint,
)
from firn_controllers import children
from firn_controllers.cache.addresses import bootstrap_servers, internal_listener, secure_servers
from firn_controllers.cache.contracts import Need
from firn_controllers.ingestion_group import needs
from firn_controllers.ports import Manifest

PYTHON_AT_LEAST = 384 * 2**20
"""Bytes that the driver's Python needs beside the JVM's heap. This is Spark's own lowest overhead."""
DRIVER_BESIDE_HEAP = 512 * 2**20
"""Bytes of a driver's JVM outside its heap, and of its Python process."""
EXECUTOR_BESIDE_HEAP = 256 * 2**20
TASK_AT_LEAST = 160 * 2**20
"""Bytes of a Python worker with its libraries and compiled decoders, before it holds a row."""
TASK_COPIES = 3.2
"""Bytes that a task holds at most for each byte of its buffer: rows, a copy sorted by partition, the file being
written. Measured.
"""
BUFFER_LEAST, BUFFER_MOST = 16 * 2**20, 128 * 2**20
"""Limits of a buffer in bytes. A smaller buffer makes files too small; a larger one does not make them better."""


def group_settings(
    config: Config,
    group: str,
    cluster: str = "",
    opening: Collection[str] = (),
    needed: frozenset[Need] | None = None,
) -> GroupSettings:
    """Return the settings of ``group`` in the Kubernetes cluster with this identity.

    ``opening``: profiles with ``access`` whose brokers do not all have the secure listener yet. ``needed``: the members of the
    configuration that the driver gets; None: all that topics of the group may use.
    """
    configured = config.groups[group]
    allowed = needs.allowed(config, group)
    granted = allowed if needed is None else allowed & needed
    profiles = {name: profile for name, profile in config.profiles.items() if ("profiles", name) in granted}
    registries = {name: each for name, each in config.registries.items() if ("registries", name) in granted}
    image = configured.image or config.images.spark
    return GroupSettings(
        group=group,
        namespace=config.namespace,
        cluster=cluster,
        former_clusters=tuple(config.former_clusters),
        cores=configured.cores,
        heap=configured.heap,
        bytes_per_commit=quantities.size(configured.bytes_per_commit),
        buffer_bytes=buffer_bytes(configured),
        executors=configured.executors,
        executor_image=image.image if configured.executors else None,
        executor_pull_policy=image.pull_policy,
        executor_storage=configured.ephemeral_storage if configured.executors else None,
        executor_storage_request=configured.ephemeral_storage_request if configured.executors else None,
        pull_secrets=tuple(config.images.pull_secrets) if configured.executors else (),
        service_account=config.ingest_account(group),
        spark_conf=configured.spark_conf,
        kafka={
            name: kafka_connection(
                name,
                profile,
                config.namespace,
                secured=name not in opening,
                credential=config.driver_credential(name, group),
            )
            for name, profile in profiles.items()
        },
        catalogs={
            name: catalog_connection(catalog)
            for name, catalog in config.catalogs.items()
            if ("catalogs", name) in granted
        },
        direct={
            name: direct_reads(name, profile, config.namespace)
            for name, profile in profiles.items()
            # Until all brokers have the secure listener, drivers have no token for the internal one, and fetch.
            if isinstance(profile, DisklessProfile) and profile.direct_reads is not None and name not in opening
        },
        registries={name: registry_connection(registry) for name, registry in registries.items()},
        salts={name: salt.value.path for name, salt in config.salts.items() if ("salts", name) in granted},
        schema_directory=names.SCHEMA_DIRECTORY if registries else None,
    )


def buffer_bytes(group: IngestionGroup) -> int:
    """Return the bytes of decoded rows that a task of the group may hold, so that all parallel tasks fit into the pod's
    memory.
    """
    if group.executors is None:
        room = quantities.size(group.memory) - quantities.heap(group.heap) - DRIVER_BESIDE_HEAP
        tasks = group.cores
    else:
        room = quantities.heap(group.executors.overhead) - EXECUTOR_BESIDE_HEAP
        tasks = group.executors.cores
    return min(BUFFER_MOST, max(BUFFER_LEAST, int((room / tasks - TASK_AT_LEAST) / TASK_COPIES)))


def memory_hint(group: IngestionGroup) -> str:
    """Return a sentence for messages about missing memory; empty if the memory has room for heap and Python.

    In client mode Spark does not check their sum.
    """
    needed = quantities.heap(group.heap) + PYTHON_AT_LEAST
    if needed <= quantities.size(group.memory):
        return ""
    return f"the group's memory of {group.memory} is less than its heap of {group.heap} plus 384Mi for Python; raise memory, or lower heap"


def kafka_connection(
    name: str, profile: Profile, namespace: str, *, secured: bool = True, credential: Credential | None = None
) -> KafkaConnection:
    """Return the connection to the brokers of a profile. ``credential``: that of drivers in an existing Kafka; None: the operator's.

    A managed fleet without ``access`` is reached without encryption, inside the cluster. With ``access``, it is so until
    its brokers are ``secured``.
    """
    access = access_of(profile)
    if access is not None and secured:
        present, before = names.ACCESS_AUTHORITIES
        return KafkaConnection(
            bootstrap_servers=secure_servers(name, namespace),
            protocol="SASL_SSL",
            ca_path=names.access_file(name, present),
            previous_ca_path=names.access_file(name, before) if access.certificate.previous is not None else None,
            sasl_mechanism="OAUTHBEARER",
            sasl_token_path=names.access_file(name, "token"),
        )
    security = KafkaSecurity()
    if isinstance(profile, KafkaProfile) and not profile.managed:
        security = profile.security_with(credential)
    sasl = security.sasl
    tokens = sasl.tokens if sasl else None
    return KafkaConnection(
        bootstrap_servers=bootstrap_servers(name, profile, namespace),
        protocol=security.protocol,
        ca_path=security.ca.path if security.ca else None,
        certificate_path=security.certificate.path if security.certificate else None,
        certificate_key_path=security.certificate_key.path if security.certificate_key else None,
        verify_hostname=security.verify_hostname,
        sasl_mechanism=sasl.mechanism if sasl else None,
        sasl_username=sasl.username if sasl else None,
        sasl_password_path=sasl.password.path if sasl else None,
        sasl_tokens=TokenEndpoint(
            url=tokens.url,
            scope=tokens.scope,
            extensions=tokens.extensions,
            ca_path=tokens.ca.path if tokens.ca else None,
        )
        if tokens
        else None,
    )


def direct_reads(name: str, profile: DisklessProfile, namespace: str) -> DirectReads:
    """Return how drivers read the bucket of a profile with direct reads.

    With ``access``, drivers send the tokens of their ServiceAccount over TLS, as to the secure listener.
    """
    token, reads, access = profile.token(name), profile.direct_reads, profile.access
    guarded, (present, before) = access is not None, names.ACCESS_AUTHORITIES
    changing = access is not None and access.certificate.previous is not None
    assert reads is not None
    return DirectReads(
        address=internal_listener(name, namespace, tls=guarded),
        token_path=names.access_file(name, "token") if token is None else token.path,
        listener_ca_path=names.access_file(name, present) if guarded else None,
        previous_listener_ca_path=names.access_file(name, before) if changing else None,
        url=profile.object_store.place(name),
        properties={**profile.object_store.properties, **reads.properties},
        secret_properties={key: reference.path for key, reference in reads.secret_properties.items()},
        ca_path=profile.object_store.tls.ca.path if profile.object_store.tls else None,
    )


def catalog_connection(configured: Catalog) -> CatalogConnection:
    """Return the connection to a catalog."""
    tls, store = configured.tls, configured.object_store.tls
    certificate, key = (None, None) if tls is None or tls.certificate is None else tls.certificate.references
    return CatalogConnection(
        type=configured.type,
        uri=configured.uri,
        warehouse=configured.warehouse,
        properties=configured.properties,
        secret_properties={name: reference.path for name, reference in configured.secret_properties.items()},
        own_references=configured.own_references,
        ca_path=tls.ca.path if tls else None,
        certificate_path=certificate.path if certificate else None,
        certificate_key_path=key.path if key else None,
        store_ca_path=store.ca.path if store else None,
    )


def registry_connection(configured: Registry) -> RegistryConnection:
    """Return the connection to a schema registry."""
    return RegistryConnection(
        url=configured.url,
        ca_path=configured.ca_path,
        username=configured.username,
        password_path=configured.password.path if configured.password else None,
        token_path=configured.token.path if configured.token else None,
    )


def read(config_map: Manifest | None) -> GroupSettings | None:
    """Return the settings in the ConfigMap of a group; None if there are none that this release can read."""
    try:
        return GroupSettings.model_validate_json(((config_map or {}).get("data") or {})["group.json"])
    except (KeyError, ValueError):
        return None


def build(
    settings: GroupSettings, owner: children.Owner, labels: dict[str, str], users: Mapping[str, str] | None = None
) -> Manifest:
    """Build the ConfigMap ``firn-ingest-G``. ``users``: the user of the driver in each profile whose ACLs the operator manages."""
    data = {"group.json": settings.model_dump_json(indent=2)}
    marks = {names.DRIVER_USERS: json.dumps(users, sort_keys=True)} if users else {}
    return children.child_object(
        "v1", "ConfigMap", names.ingestion(settings.group), owner, labels, annotations=marks, data=data
    )


def read_users(config_map: Manifest | None) -> dict[str, str]:
    """Return the users of a driver by profile, as `build` noted them. The configuration may no longer have the group."""
    text = (((config_map or {}).get("metadata") or {}).get("annotations") or {}).get(names.DRIVER_USERS, "{}")
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {str(profile): str(user) for profile, user in found.items()} if isinstance(found, dict) else {}
