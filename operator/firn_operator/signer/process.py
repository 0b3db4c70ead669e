"""The loop of the signer, its metrics and its probe."""

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from datetime import datetime

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from firn.model import names
from firn.model.clock import Clock, SystemClock
from firn.model.config import Config
from firn.model.errors import FirnError
from firn_controllers.trust.hosts import hosts
from firn_controllers.trust.renewal import Terms
from firn_operator.adapters.kube.api_client import Api, RateLimit, login
from firn_operator.adapters.kube.certificate_secrets import KubeCertificateSecrets
from firn_operator.process import telemetry
from firn_operator.signer.keeper import Keeper

log = logging.getLogger(__name__)

INTERVAL = 30.0
"""Seconds between two passes over all profiles."""
_RETRY = 5.0
"""Seconds to the next pass after a profile failed."""
_STUCK = 600.0
"""Seconds without the end of a pass after which the probe fails."""


def subjects(config: Config) -> dict[str, Terms]:
    """Return the terms of the profiles with ``selfSigned``, by name. Raises InvalidSpecError."""
    return {
        name: Terms.of(access.certificate, hosts(config.namespace, name, config.profiles[name], access.certificate))
        for name, access in config.closed_profiles.items()
        if access.certificate.self_signed is not None
    }


class Passes:
    """Passes over the profiles. Each repeats until it succeeds."""

    def __init__(self, keeper: Keeper, profiles: Mapping[str, Terms], clock: Clock) -> None:
        self._keeper = keeper
        self._profiles = profiles
        self._clock = clock
        self._ended = clock.monotonic()
        self._problems: dict[str, str] = {}
        """Profile -> the error of its last pass."""
        self.ends: dict[tuple[str, str], datetime] = {}
        """Profile and certificate -> its end. A profile has none before its first pass."""

    @property
    def stuck(self) -> bool:
        """Return True if no pass has ended for a long time."""
        return self._clock.monotonic() - self._ended > _STUCK

    async def one(self) -> float:
        """Make one pass over all profiles, and return the seconds to the next."""
        for profile, terms in self._profiles.items():
            try:
                kept = await self._keeper.keep(profile, terms)
                self.ends |= {(profile, "brokers"): kept.brokers, (profile, "authority"): kept.authority}
            except FirnError as error:
                if self._problems.get(profile) != str(error):
                    log.warning("profile %s: %s", profile, error)
                self._problems[profile] = str(error)
            else:
                self._problems.pop(profile, None)
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


async def run(namespace: str, profiles: Mapping[str, Terms], listen: tuple[str, int]) -> None:
    """Keep the certificates of ``profiles`` until SIGTERM or SIGINT."""
    stop, clock = asyncio.Event(), SystemClock()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    api = Api(await login(), RateLimit(10, 10))
    secrets = KubeCertificateSecrets(api, namespace, os.environ.get("POD_NAME", names.SIGNER))
    passes = Passes(Keeper(secrets, clock), profiles, clock)
    runner = await _serve(passes, clock, listen)
    try:
        await passes.repeat(stop)
    finally:
        await runner.cleanup()
        await api.close()


async def _serve(passes: Passes, clock: Clock, listen: tuple[str, int]) -> web.AppRunner:
    """Serve metrics and the probe, and nothing else."""
    registry = CollectorRegistry()
    registry.register(telemetry.CertificateMetrics(lambda: passes.ends, clock.now))

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def livez(_: web.Request) -> web.Response:
        return web.Response(status=500 if passes.stuck else 200, text="no pass ends" if passes.stuck else "ok")

    return await telemetry.serve_routes(listen, [web.get("/metrics", scrape), web.get("/livez", livez)])
