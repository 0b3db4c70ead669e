"""Acts on the certificates of brokers: requests them from cert-manager, lets brokers read them, and changes their source."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import product
from typing import Any

from firn.model import names
from firn.model.config import Certificate
from firn.model.errors import FirnError, InvalidSpecError
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.fleet import certificate
from firn_controllers.fleet.kafka.layout import KafkaFleet, Stage
from firn_controllers.fleet.kinds import AnyFleet
from firn_controllers.ports import PodState
from firn_controllers.reconcilers.context import Context
from firn_controllers.topic_users import checks, credentials
from firn_controllers.topic_users.client_files import client_connection
from firn_controllers.trust import sources
from firn_controllers.trust.sources import Held, Sources

log = logging.getLogger(__name__)

RELOAD_INTERVAL = 120.0
"""Seconds between two requests to read certificates again. Each one is a record of some bytes in Kafka's metadata. Also between two
looks at the certificates that brokers present."""


class FleetCertificates:
    """Keeps the certificates of all profiles."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reload_due: dict[str, float] = {}
        """Profile -> time of the next reload of its brokers' certificates."""
        self._ends_due: dict[str, float] = {}
        """Profile -> time of the next look at the certificates that its brokers present."""
        self._waits: dict[str, str] = {}
        """Profile -> the wait of a change of the source that is in the log."""

    async def request(self, fleet: AnyFleet) -> str | None:
        """Apply the Certificates of cert-manager. Returns why the brokers may lack one. Raises InvalidSpecError."""
        access, problem = fleet.profile.access, None
        for source in access.certificate.sources if access is not None else ():
            if source.cert_manager is not None:
                found = await self._request(fleet, source)
                problem = problem or found
        return problem

    async def _request(self, fleet: AnyFleet, source: Certificate) -> str | None:
        port = self._context.ports.certificates
        if port is None:
            return None
        manifest = certificate.build(fleet, source)
        try:
            state = await port.apply(manifest)
        except InvalidSpecError:
            raise
        except FirnError as error:
            # The brokers keep the certificate that they have.
            return str(error)
        if state.ends is not None and source.secret_name(fleet.name) == fleet.certificate_secret:
            self._context.board.certificate_ends[fleet.name, "brokers"] = state.ends
        return certificate.problem(fleet, source, state)

    async def reload(self, fleet: KafkaFleet) -> None:
        """Let the brokers use a renewed certificate. They do not watch their files."""
        now = self._context.ports.clock.monotonic()
        if fleet.stage is Stage.PLAIN or now < self._reload_due.get(fleet.name, now):
            return
        try:
            await self._context.ports.topics.reload_certificates(fleet.name)
        except FirnError as error:
            # A broker that refuses a wrong certificate keeps the one that it has.
            log.warning("profile %s: the brokers did not read their certificates again: %s", fleet.name, error)
        self._reload_due[fleet.name] = now + RELOAD_INTERVAL

    async def find_end(self, fleet: KafkaFleet, pods: Sequence[PodState]) -> None:
        """Find the end of the certificate that ends first. Only the brokers have the Secret, and the operator may not read it."""
        now = self._context.ports.clock.monotonic()
        hosts = [f"{pod.name}.{fleet.domain}" for pod in pods if pod.ready]
        if fleet.stage < Stage.MOVED or not hosts or now < self._ends_due.get(fleet.name, now):
            return
        places = product(hosts, fleet.encrypted_ports)
        found = await asyncio.gather(*(self._presented_end(fleet.name, host, port) for host, port in places))
        if ends := [end for end in found if end is not None]:
            self._context.board.certificate_ends[fleet.name, "presented"] = min(ends)
        self._ends_due[fleet.name] = now + RELOAD_INTERVAL

    async def _presented_end(self, profile: str, host: str, port: int) -> datetime | None:
        """Return the end of the certificate that a broker presents at a port; None if it does not answer."""
        try:
            return await self._context.ports.topics.certificate_end(host, port)
        except FirnError as error:
            log.warning("profile %s: %s", profile, error)
            return None

    async def advanced(self, fleet: AnyFleet, *, complete: bool) -> tuple[AnyFleet, str | None]:
        """Make the next step of a change of the source, if it is due. ``complete``: all brokers have the template of ``fleet``.

        Returns the fleet after the step, and why the next one needs an action of a user.
        """
        access, port, before = fleet.profile.access, self._context.ports.authorities, fleet.sources
        if access is None or port is None or before is None:
            return fleet, None
        now = self._context.ports.clock.now()
        held = sources.settled(before, now) if complete else before
        if held != before:
            self._announce(fleet.name, access.certificate, before, held)
        authorities = await port.of_sources(fleet.name)
        problem = certificate.source_problem(fleet, access.certificate, authorities)
        if problem is None:
            wanted = certificate.wanted(fleet, access.certificate, authorities)
            # A wait for clients makes sense only after all brokers trust both CAs.
            asks = complete and wanted.presents != held.newest.presents
            client = await self._client_problem(fleet, held.newest) if asks else None
            decision = sources.next_sources(held, wanted, complete=complete, client=client, now=now)
            held, problem = decision.sources, decision.problem
            self._log(fleet.name, decision.waits)
        changed = replace(fleet, sources=held)
        bundle = certificate.bundle(changed, authorities)
        if bundle is not None:
            await self._context.ports.cluster.apply(bundle)
        return changed, problem

    def _announce(self, profile: str, configured: Certificate, before: Sources, held: Sources) -> None:
        """Record that all brokers have a stage, and how to continue."""
        newest = held.newest
        if len(newest.trusts) == 1:
            text = f"all brokers have the certificate of Secret {newest.presents}; the change of its source is complete"
        elif configured.previous is not None and newest.presents == configured.secret_name(profile):
            text = (
                f"all brokers have the certificate of Secret {newest.presents}; remove access.certificate.previous to end the trust in the"
                " previous CA"
            )
        else:
            text = (
                f"all brokers have the stage Trust; when all clients trust the CAs of Secrets {' and '.join(newest.trusts)}, set"
                " access.certificate.stage to Issue"
            )
        if len(before.alive) > 1:
            event = Announcement("Normal", EventReason.CERTIFICATE_STAGE, f"profile {profile}: {text}")
            self._context.announce(event)

    def _log(self, profile: str, waits: str) -> None:
        if waits and self._waits.get(profile) != waits:
            log.info("profile %s: %s", profile, waits)
        self._waits[profile] = waits

    async def _client_problem(self, fleet: AnyFleet, trusted: Held) -> str | None:
        """Return a sentence about the first driver or TopicUser that lacks a CA of ``trusted``, with the next step; None if all have them."""
        cluster, config, namespace = self._context.ports.cluster, self._context.config, self._context.owner.namespace
        for group in config.groups:
            live = await cluster.stateful_set(names.ingestion(group))
            if live is None or live.replicas == 0:
                continue
            found = _mounted(live.manifest) & set(trusted.trusts)
            if found and (len(found) < len(trusted.trusts) or live.updated < live.replicas):
                return (
                    f"the driver of ingestion group {group} does not trust both CAs yet; see kubectl -n {namespace} describe pod"
                    f" {names.ingestion(group)}-0"
                )
        users, port = self._context.users, self._context.ports.authorities
        certificates = "" if port is None else await port.certificates(fleet.name)
        for entry in sorted(users.all(), key=lambda entry: entry.name):
            if entry.profile != fleet.name or entry.resource is None or entry.deleting:
                continue
            connection = credentials.read(entry.status, "").connection
            if connection is None:
                continue
            try:
                expected = client_connection(config, fleet.name, checks.profile_users(entry, config), certificates)
            except InvalidSpecError:
                continue  # its condition SpecValid reports it
            if connection != expected.digest:
                own, name = entry.name
                return (
                    f"the Secret of TopicUser {own}/{name} does not have both CAs yet; wait for the end of the overlap of its passwords, or set a"
                    f" shorter authentication.rotation.overlap; see kubectl -n {own} describe tuser {name}"
                )
        return None


def _mounted(manifest: Mapping[str, Any]) -> set[str]:
    """Return the names of the Secrets in the projected volumes of a StatefulSet's pods."""
    volumes = manifest["spec"]["template"]["spec"].get("volumes") or ()
    parts = [part for volume in volumes for part in (volume.get("projected") or {}).get("sources") or ()]
    return {part["secret"]["name"] for part in parts if "secret" in part}
