"""What a driver is started with: `firn.model.jobs.GroupSettings`, from the configuration."""

from firn.model import names, quantities
from firn.model.config import Catalog, Config, IngestionGroup, KafkaProfile, KafkaSecurity, Profile
from firn.model.jobs import CatalogConnection, GroupSettings, KafkaConnection
from firn_controllers import children
from firn_controllers.cache.addresses import bootstrap_servers
from firn_controllers.ports import Manifest

PYTHON_AT_LEAST = 384 * 2**20
"""Bytes that the Python side of a driver needs beside the JVM's heap; Spark's own least overhead."""
DRIVER_BESIDE_HEAP = 512 * 2**20
"""A driver's JVM outside its heap, and its own Python process."""
EXECUTOR_BESIDE_HEAP = 256 * 2**20
TASK_AT_LEAST = 160 * 2**20
"""A Python worker with its libraries and compiled decoders, before it holds a row."""
TASK_COPIES = 3.2
"""What a task holds at the most for each byte of its buffer: rows, a sorted copy by partition, the file being written. Measured."""
BUFFER_LEAST, BUFFER_MOST = 16 * 2**20, 128 * 2**20
"""Less makes files too small; more makes none better."""


def group_settings(config: Config, group: str) -> GroupSettings:
    """Settings of ``group``."""
    configured = config.groups[group]
    image = configured.image or config.images.spark
    return GroupSettings(
        group=group,
        namespace=config.namespace,
        cores=configured.cores,
        heap=configured.heap,
        bytes_per_commit=quantities.size(configured.bytes_per_commit),
        buffer_bytes=buffer_bytes(configured),
        executors=configured.executors,
        executor_image=image.image if configured.executors else None,
        executor_pull_policy=image.pull_policy,
        pull_secrets=tuple(config.images.pull_secrets) if configured.executors else (),
        service_account=configured.service_account,
        spark_conf=configured.spark_conf,
        kafka={name: kafka_connection(name, profile, config.namespace) for name, profile in config.profiles.items()},
        catalogs={name: catalog_connection(found) for name, found in config.catalogs.items()},
    )


def buffer_bytes(group: IngestionGroup) -> int:
    """Decoded rows that one of the group's tasks may hold, so that all that run at once fit the pod's memory beside the JVM."""
    if group.executors is None:
        room = quantities.size(group.memory) - quantities.heap(group.heap) - DRIVER_BESIDE_HEAP
        tasks = group.cores
    else:
        room = quantities.heap(group.executors.overhead) - EXECUTOR_BESIDE_HEAP
        tasks = group.executors.cores
    return min(BUFFER_MOST, max(BUFFER_LEAST, int((room / tasks - TASK_AT_LEAST) / TASK_COPIES)))


def memory_hint(group: IngestionGroup) -> str:
    """What to say beside "out of memory" where arithmetic alone explains it: nobody but us adds up heap and Python in client mode."""
    needed = quantities.heap(group.heap) + PYTHON_AT_LEAST
    if needed <= quantities.size(group.memory):
        return ""
    return f"; memory {group.memory} holds no heap of {group.heap} and 384Mi for Python"


def kafka_connection(name: str, profile: Profile, namespace: str) -> KafkaConnection:
    """How to reach the brokers of a profile. A fleet of our own is reached in the clear, inside the cluster."""
    security = KafkaSecurity()
    if isinstance(profile, KafkaProfile) and not profile.managed:
        security = profile.security
    sasl = security.sasl
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
    )


def catalog_connection(configured: Catalog) -> CatalogConnection:
    """How to reach a catalog."""
    return CatalogConnection(
        type=configured.type,
        uri=configured.uri,
        warehouse=configured.warehouse,
        properties=configured.properties,
        secret_properties={name: reference.path for name, reference in configured.secret_properties.items()},
    )


def build(settings: GroupSettings, owner: children.Owner, labels: dict[str, str]) -> Manifest:
    """The ConfigMap ``firn-ingest-G``."""
    data = {"group.json": settings.model_dump_json(indent=2)}
    return children.child_object("v1", "ConfigMap", names.ingestion(settings.group), owner, labels, data=data)
