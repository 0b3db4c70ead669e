"""Composition of the operator process: adapters, controllers, watches, probes, and an orderly end."""

import asyncio
import contextlib
import gc
import logging
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import REGISTRY
from prometheus_client.registry import Collector

from firn.model import durations, names
from firn.model.clock import SystemClock
from firn.model.config import Config, access_of
from firn.model.errors import AccessDeniedError, FirnError, NotReadyError, UnavailableError
from firn.model.jobs import CatalogConnection, KafkaConnection
from firn.sasl.tokens import issuer
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.fleet.access import is_secured
from firn_controllers.ingestion_group import settings as group_settings
from firn_controllers.ports import Authorities, Ports, UserPorts
from firn_controllers.reconcile import Controllers
from firn_controllers.reconcilers.survey import Survey
from firn_operator.adapters import progress
from firn_operator.adapters.authorities import MountedAuthorities
from firn_operator.adapters.iceberg.debt import CatalogDebts
from firn_operator.adapters.iceberg.tables import CatalogTables
from firn_operator.adapters.kafka.access import KafkaAccess
from firn_operator.adapters.kafka.topics import Brokers, KafkaTopics
from firn_operator.adapters.kube.api_client import Api, ApiError, RateLimit, login, path
from firn_operator.adapters.kube.certificates import KubeCertificates
from firn_operator.adapters.kube.client_secrets import KubeClientSecrets
from firn_operator.adapters.kube.cluster import KubeCluster
from firn_operator.adapters.kube.workloads import Workloads
from firn_operator.adapters.schemas import RegistrySchemas
from firn_operator.process import crd, telemetry
from firn_operator.process.telemetry import Health
from firn_operator.process.watches import BEHIND_LIMIT, Watches

log = logging.getLogger(__name__)
Result = TypeVar("Result")

CLUSTER_NAMESPACE = "kube-system"
SWITCH_SECONDS = 0.001
"""Seconds after which a thread of a catalog or of Kafka yields to the event loop."""
_STUCK_LIMIT = 150.0
"""Seconds without progress of a queue that has work; longer than the deadline of one reconcile."""
OWN_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
"""The token of the operator's ServiceAccount. The cluster has one issuer for the tokens of all ServiceAccounts."""
_RETRY = 5.0
_OWNER_INTERVAL = 10.0
"""Seconds between two checks of the object that owns the workloads."""


def topics(config: Config, workloads: Workloads | None = None) -> KafkaTopics:
    """Return the Kafka adapter for every profile of the configuration.

    A new topic gets the brokers' default number of replicas. The default of a fleet fits its live brokers, which may be
    more than the configured ones. While brokers get the secure listener, the StatefulSets of ``workloads`` say which
    listener the adapter uses.
    """
    return KafkaTopics({name: Brokers(connection(config, name, workloads or Workloads())) for name in config.profiles})


def connection(config: Config, name: str, workloads: Workloads) -> Callable[[], KafkaConnection]:
    """Return the function that returns the present connection to the brokers of a profile."""
    profile = config.profiles[name]
    access = access_of(profile)
    secure = group_settings.kafka_connection(name, profile, config.namespace)
    before = group_settings.kafka_connection(name, profile, config.namespace, secured=False)

    def current() -> KafkaConnection:
        if access is None:
            return secure
        return secure if is_secured(access, workloads.stateful_set(names.fleet(name))) else before

    return current


def with_issuer(config: Config) -> Config:
    """Return the configuration in which each profile with ``access`` names the issuer of ServiceAccount tokens, if it is known."""
    if not config.closed_profiles:
        return config
    try:
        return config.with_issuer(issuer(OWN_TOKEN.read_text()))
    except OSError:
        return config


def access(
    config: Config, api: Api
) -> tuple[UserPorts | None, KafkaAccess | None, Authorities | None, Callable[[], None]]:
    """Return the ports of TopicUsers, of the rights of drivers and of the CAs of brokers, and the function that closes them.

    The first is None if the configuration has no users, and the others if the operator manages no ACLs of drivers.
    """
    managed = config.profiles_with_acls
    if not config.users.enabled and not managed:
        return None, None, None, lambda: None
    connections = {
        name: group_settings.kafka_connection(name, profile, config.namespace)
        for name, profile in config.profiles.items()
    }
    principals = KafkaAccess(connections)
    authorities = MountedAuthorities(connections)
    users = UserPorts(principals, KubeClientSecrets(api), authorities)
    rights = (principals, authorities) if managed else (None, None)
    return users if config.users.enabled else None, *rights, principals.close


def tables(config: Config) -> CatalogTables:
    """Return the Iceberg adapter for every catalog of the configuration."""
    return CatalogTables(_catalog_connections(config))


def debts(config: Config) -> CatalogDebts:
    """Return the adapter that measures the maintenance debt of tables in every catalog of the configuration."""
    return CatalogDebts(_catalog_connections(config), SystemClock())


def schemas(config: Config) -> RegistrySchemas:
    """Return the adapter for every schema registry of the configuration."""
    connections = {name: group_settings.registry_connection(item) for name, item in config.registries.items()}
    return RegistrySchemas(connections, SystemClock())


def _catalog_connections(config: Config) -> dict[str, CatalogConnection]:
    return {name: group_settings.catalog_connection(catalog) for name, catalog in config.catalogs.items()}


async def run(config: Config, metrics: tuple[str, int], probes: tuple[str, int]) -> None:
    """Run the operator until SIGTERM or SIGINT. Raises the exception of a task that fails."""
    config = with_issuer(config)
    stop = asyncio.Event()
    health = Health()
    servers = await telemetry.serve(health, metrics, probes)
    _on_signals(stop.set)
    api: Api | None = None
    try:
        configuration = await login()
        api = Api(configuration, RateLimit(config.writes_per_second, config.write_burst))
        found = await _until(stop, health, lambda: _start_up(api, config))
        if found is None:
            return
        owner_uid, cluster_uid = found
        workloads = Workloads()
        resync = durations.milliseconds(config.resync) / 1000
        instance = os.environ.get("POD_NAME", "firn-operator")
        cluster = KubeCluster(api, config.namespace, workloads, resync, instance)
        if await _until(stop, health, lambda: _claim(cluster, config)) is None:
            return
        lake = tables(config)
        progress_reader = progress.HttpProgress(progress.service_address(config.namespace))
        kafka_topics = topics(config, workloads)
        registries = schemas(config)
        user_ports, rights, authorities, close_access = access(config, api)
        others = (SystemClock(), user_ports, KubeCertificates(api), rights, authorities)
        ports = Ports(kafka_topics, lake, cluster, progress_reader, registries, *others)
        meters = (telemetry.QueueMeter(), telemetry.RunMeter())
        controllers = Controllers(config, owner_uid, ports, random.random, *meters, cluster_uid=cluster_uid)
        telemetry.watch_fleets(config.profiles, controllers.board)
        telemetry.watch_groups(config.groups, controllers.board)
        table_debts = debts(config)
        survey = _survey(config, table_debts, controllers)
        figures = _figures(config, controllers, survey)
        watches = Watches(config, api, configuration, controllers, workloads, cluster)
        health.starting = "listing resources"
        await _until(stop, health, watches.sync)
        health.checks += [_queue_moves(controllers), _watch_delivers(watches)]
        for collector in figures:
            REGISTRY.register(collector)
        try:
            helpers = {
                "survey": survey.run(),
                "owner": _owner_stays(api, config, owner_uid),
                "stalls": telemetry.measure_stalls(),
            }
            await _work(stop, health, controllers, watches, cluster, helpers)
        finally:
            for collector in figures:
                REGISTRY.unregister(collector)
            await progress_reader.close()
            for close in (kafka_topics.close, close_access, registries.close, table_debts.close, lake.close):
                close()
    finally:
        if api is not None:
            await api.close()
        for server in servers:
            await server.cleanup()


def _survey(config: Config, table_debts: CatalogDebts, controllers: Controllers) -> Survey:
    return Survey(
        config, table_debts, controllers.topics, controllers.policies, controllers.board, controllers.debt_changed
    )


async def _work(
    stop: asyncio.Event,
    health: Health,
    controllers: Controllers,
    watches: Watches,
    cluster: KubeCluster,
    others: Mapping[str, Coroutine[Any, Any, None]],
) -> None:
    async with watches.running() as kopf_tasks:
        _on_signals(stop.set)  # kopf has set its own handlers
        reconciling = asyncio.create_task(controllers.run(), name="reconciling")
        helpers = [
            asyncio.create_task(watches.resync(), name="resync"),
            asyncio.create_task(cluster.run(), name="events"),
            asyncio.create_task(stop.wait(), name="signal"),
            *(asyncio.create_task(other, name=name) for name, other in others.items()),
        ]
        health.starting = None
        # A full garbage collection stops the loop for up to 0.2 s with 1,000 topics. Objects of the start live as long as the process, and
        # later ones are freed by reference counts.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        sys.setswitchinterval(SWITCH_SECONDS)
        log.info("start-up complete; reconciling")
        done, _ = await asyncio.wait([reconciling, *helpers, *kopf_tasks], return_when=asyncio.FIRST_COMPLETED)
        health.starting = "stopping"
        ended = ", ".join(sorted(task.get_name() for task in done))
        log.info("stopping: %s", "received SIGTERM or SIGINT" if stop.is_set() else f"task {ended} ended")
        controllers.stop()
        await reconciling
        for task in helpers:
            task.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
    if not stop.is_set():
        for task in done:
            task.result()
        raise RuntimeError(f"task {', '.join(task.get_name() for task in done)} ended unexpectedly")


def _figures(config: Config, controllers: Controllers, survey: Survey) -> list[Collector]:
    """Return the metrics that are computed at each scrape."""

    def topics() -> list[TopicEntry]:
        return list(controllers.topics.all())

    figures: list[Collector] = [
        telemetry.DebtMetrics(lambda: list(survey.findings.values())),
        telemetry.LogMetrics(topics, controllers.board.configs.get),
        telemetry.TopicSetMetrics(controllers.sets.all),
        telemetry.TopicUserMetrics(controllers.user_events.users.all),
        telemetry.CertificateMetrics(lambda: controllers.board.certificate_ends),
        telemetry.OpenFleetMetrics(lambda: config.openness | controllers.board.open_fleets),
        telemetry.PlainClientMetrics(lambda: controllers.board.plain_clients),
    ]
    if config.maintenance.audit.schedule.strip():
        figures.append(telemetry.AuditMetrics(topics))
    return figures


async def _owner_stays(api: Api, config: Config, uid: str) -> None:
    """Check at intervals that the owner of our workloads has the uid that it had at the start.

    Raises NotReadyError if the owner was deleted or replaced.

    Kubernetes deletes objects whose owner no longer exists. So objects for the earlier owner would be deleted again and
    again. The process ends, and the next process uses the new owner.
    """
    interval = min(_OWNER_INTERVAL, durations.milliseconds(config.resync) / 1000)
    while True:
        await asyncio.sleep(interval)
        try:
            current = await _owner(api, config)
        except (UnavailableError, AccessDeniedError, ApiError) as error:
            log.warning("cannot read the owner of the workloads; the next check follows: %s", error)
            continue
        if current != uid:
            raise NotReadyError(
                f"ConfigMap {config.namespace}/{names.CONFIG_OBJECT}, which owns the workloads, was created again; the operator starts"
                " again and creates its objects for the new owner"
            )


async def _start_up(api: Api, config: Config) -> tuple[str, str]:
    """Check the CRDs. Return the uids of the object that owns our workloads and of the Kubernetes cluster.

    Raises NotReadyError and AccessDeniedError.
    """
    await crd.check(api)
    return await _owner(api, config), await _cluster(api)


async def _cluster(api: Api) -> str:
    """Return the uid of the namespace ``kube-system``, which every Kubernetes cluster has from its creation to its end."""
    try:
        namespace = await api.call("GET", f"/api/v1/namespaces/{CLUSTER_NAMESPACE}")
    except ApiError as error:
        if error.status != 404:
            raise
        raise NotReadyError(
            f"namespace {CLUSTER_NAMESPACE} does not exist; its uid identifies the Kubernetes cluster: wait for the API server"
        ) from error
    uid: str = namespace["metadata"]["uid"]
    return uid


async def _claim(cluster: KubeCluster, config: Config) -> bool:
    """Claim the namespaces that the configuration lists. Raises NotReadyError if another release has one of them."""
    for namespace in config.watch_namespaces:
        rival = await cluster.rival(namespace)
        if rival is not None:
            raise NotReadyError(
                f"the release in namespace {rival} manages the resources of namespace {namespace}; remove the namespace from watchNamespaces of"
                " one of the two releases, or delete its Lease firn-operator if that release is uninstalled"
            )
    return True


async def _owner(api: Api, config: Config) -> str:
    """Return the uid of the object that owns our workloads. Raises NotReadyError."""
    try:
        owner = await api.call("GET", path("v1", "ConfigMap", config.namespace, names.CONFIG_OBJECT))
    except ApiError as error:
        if error.status != 404:
            raise
        raise NotReadyError(
            f"ConfigMap {config.namespace}/{names.CONFIG_OBJECT}, which owns the workloads, does not exist; install the chart, which creates it"
        ) from error
    uid: str = owner["metadata"]["uid"]
    return uid


async def _until(stop: asyncio.Event, health: Health, attempt: Callable[[], Awaitable[Result]]) -> Result | None:
    """Repeat ``attempt`` until it succeeds, and return its result; None after ``stop``.

    Failures are logged and shown in /readyz.
    """
    while not stop.is_set():
        try:
            return await attempt()
        except (FirnError, ApiError) as error:
            if health.starting != str(error):
                log.warning("the operator cannot start yet: %s", error)
            health.starting = str(error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _RETRY)
    return None


def _on_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def _queue_moves(controllers: Controllers) -> Callable[[], str | None]:
    def check() -> str | None:
        stuck = controllers.queue.stuck_seconds
        return f"no reconcile has ended for {stuck:.0f} s" if stuck > _STUCK_LIMIT else None

    return check


def _watch_delivers(watches: Watches) -> Callable[[], str | None]:
    def check() -> str | None:
        behind = watches.deliveries.behind_seconds()
        telemetry.WATCH_BEHIND.set(behind)
        return f"a watch has not delivered for {behind:.0f} s" if behind > BEHIND_LIMIT else None

    return check
