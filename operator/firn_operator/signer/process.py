"""The loop of the signer, its metrics and its probe."""

import asyncio
import logging
import os
import signal
from collections.abc import Collection, Mapping
from datetime import datetime

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from firn.model import names
from firn.model.clock import Clock, SystemClock
from firn.model.config import Config
from firn.model.errors import FirnError, InvalidSpecError
from firn_controllers.cache.addresses import CLIENT_PORT
from firn_controllers.trust.hosts import hosts, store_hosts
from firn_controllers.trust.renewal import Terms
from firn_operator.adapters.kube.api_client import Api, ApiError, RateLimit, login, path
from firn_operator.adapters.kube.certificate_secrets import KubeCertificateSecrets
from firn_operator.process import telemetry
from firn_operator.signer.keeper import STORES, Keeper

log = logging.getLogger(__name__)

INTERVAL = 30.0
"""Seconds between two passes over all servers."""
_RETRY = 5.0
"""Seconds to the next pass after one failed."""
_STUCK = 600.0
"""Seconds without the end of a pass after which the probe fails."""


def subjects(config: Config) -> dict[str, Terms]:
    """Return the terms of the profiles with ``selfSigned``, by name, also as the previous source. Raises InvalidSpecError."""
    return {
        name: Terms.of(source, hosts(config.namespace, name, config.profiles[name], source))
        for name, access in config.closed_profiles.items()
        for source in access.certificate.sources
        if source.self_signed is not None
    }


def store_subjects(namespace: str, stores: Collection[str]) -> dict[str, Terms]:
    """Return the terms of stores of the quick start, by name."""
    return {store: Terms.default(store_hosts(namespace, store)) for store in stores}


class Passes:
    """Passes over servers of one kind. Each repeats until it succeeds."""

    def __init__(self, keeper: Keeper, servers: Mapping[str, Terms], clock: Clock) -> None:
        self._keeper = keeper
        self._servers = servers
        self._clock = clock
        self._ended = clock.monotonic()
        self._problems: dict[str, str] = {}
        """Profile or store -> the error of its last pass."""
        self.ends: dict[tuple[str, str], datetime] = {}
        """Profile or store, and certificate -> its end. There is none before the first pass."""

    @property
    def stuck(self) -> bool:
        """Return True if no pass has ended for a long time."""
        return self._clock.monotonic() - self._ended > _STUCK

    async def one(self) -> float:
        """Make one pass over all servers, and return the seconds to the next."""
        naming = self._keeper.naming
        for server, terms in self._servers.items():
            try:
                kept = await self._keeper.keep(server, terms)
                self.ends |= {(server, naming.servers): kept.servers, (server, "authority"): kept.authority}
            except FirnError as error:
                if self._problems.get(server) != str(error):
                    log.warning("%s %s: %s", naming.kind, server, error)
                self._problems[server] = str(error)
            else:
                self._problems.pop(server, None)
        self._ended = self._clock.monotonic()
        return _RETRY if self._problems else INTERVAL

    async def repeat(self, stop: asyncio.Event) -> None:
        """Make passes until ``stop`` is set."""
        while not stop.is_set():
            waiting = await self.one()
            try:
                await asyncio.wait_for(stop.wait(), waiting)
            except TimeoutError:
                continue


async def create(
    namespace: str, stores: Collection[str], *, also_existing: bool, closing: Mapping[str, str] | None = None
) -> None:
    """Create the certificates of stores before their first start, and renew what is due. Raises FirnError.

    Without ``also_existing``, InvalidSpecError names the value to set if stores have run without TLS. For ``closing`` (profile -> its key
    in the values), it names the values to set if brokers of a profile accept clients without encryption.
    """
    api = Api(await login(), RateLimit(10, 10))
    try:
        secrets = KubeCertificateSecrets(api, namespace, os.environ.get("POD_NAME", names.SIGNER))
        undecided = [
            text for profile, key in (closing or {}).items() if (text := await _open(api, namespace, profile, key))
        ]
        for store in stores:
            passwords, certificate = names.store(store), names.store_certificate(store)
            without = await secrets.read(passwords) is not None and await secrets.read(certificate) is None
            if without and not also_existing:
                undecided.append(
                    f"quickStart.tls: Secret {namespace}/{passwords} exists without {certificate}, so the stores of the quick start run without"
                    " TLS. Set quickStart.tls=true to let the stores and Firn's pods use TLS after this upgrade, or quickStart.tls=false to"
                    " continue without. Other clients of the stores need new settings with TLS"
                )
                break
        if undecided:
            raise InvalidSpecError("\n".join(undecided))
        keeper = Keeper(secrets, SystemClock(), STORES)
        for store, terms in store_subjects(namespace, stores).items():
            await keeper.keep(store, terms)
    finally:
        await api.close()


async def _open(api: Api, namespace: str, profile: str, key: str) -> str | None:
    """Return how to decide about brokers that accept clients without encryption; None if they do not, or do not exist."""
    try:
        found = await api.call("GET", path("apps/v1", "StatefulSet", namespace, names.fleet(profile)))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    containers = found["spec"]["template"]["spec"]["containers"]
    if CLIENT_PORT not in [port["containerPort"] for each in containers for port in each.get("ports", [])]:
        return None
    return (
        f"{key}.access: the brokers of StatefulSet {namespace}/{names.fleet(profile)} accept clients without encryption, and this upgrade"
        f" would close them. Set {key}.access.plaintext=Keep to move the clients first, {key}.access.plaintext=Close to close the brokers"
        f" now, or {key}.access=null and {key}.users=null to leave brokers without access as they are"
    )


async def run(
    namespace: str, profiles: Mapping[str, Terms], stores: Mapping[str, Terms], listen: tuple[str, int]
) -> None:
    """Keep the certificates of ``profiles`` and ``stores`` until SIGTERM or SIGINT."""
    stop, clock = asyncio.Event(), SystemClock()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    api = Api(await login(), RateLimit(10, 10))
    secrets = KubeCertificateSecrets(api, namespace, os.environ.get("POD_NAME", names.SIGNER))
    brokers = Passes(Keeper(secrets, clock), profiles, clock)
    servers = Passes(Keeper(secrets, clock, STORES), stores, clock)
    runner = await _serve(brokers, servers, clock, listen)
    try:
        await asyncio.gather(brokers.repeat(stop), servers.repeat(stop))
    finally:
        await runner.cleanup()
        await api.close()


async def _serve(brokers: Passes, stores: Passes, clock: Clock, listen: tuple[str, int]) -> web.AppRunner:
    """Serve metrics and the probe, and nothing else."""
    registry = CollectorRegistry()
    registry.register(telemetry.CertificateMetrics(lambda: brokers.ends, clock.now))
    registry.register(telemetry.StoreCertificateMetrics(lambda: stores.ends, clock.now))

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def livez(_: web.Request) -> web.Response:
        stuck = brokers.stuck or stores.stuck
        return web.Response(status=500 if stuck else 200, text="no pass ends" if stuck else "ok")

    return await telemetry.serve_routes(listen, [web.get("/metrics", scrape), web.get("/livez", livez)])
