"""Reconciles a profile: applies the objects of its fleet, replaces brokers one at a time, and puts its health on the
board.
"""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError, InvalidSpecError, UnavailableError
from firn_controllers import children
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.fleet import builders, health, kinds, rollout
from firn_controllers.fleet.access import open_pods, open_warning
from firn_controllers.fleet.diskless.layout import DisklessFleet
from firn_controllers.fleet.health import FleetHealth
from firn_controllers.fleet.kafka import metadata_version, plain_clients, token_keys
from firn_controllers.fleet.kafka.layout import KafkaFleet, Stage, applied_replicas, kept_size, quorum
from firn_controllers.fleet.kafka.plain_clients import Sightings
from firn_controllers.fleet.kinds import AnyFleet
from firn_controllers.fleet.layout import Fleet
from firn_controllers.fleet.rollout import Step
from firn_controllers.ports import FleetState, PodState, StatefulSetState
from firn_controllers.queue import Outcome
from firn_controllers.reconcilers.context import Context
from firn_controllers.reconcilers.fleet.certificates import FleetCertificates

log = logging.getLogger(__name__)

INTERVAL = 10.0
KEYS_INTERVAL = 60.0
"""Seconds between two reads of the keys that verify tokens of ServiceAccounts."""
LONG_WAIT = 300.0
"""Seconds without a step after which the wait of a roll-out is reported."""
OPEN_INTERVAL = 3600.0
"""Seconds between two Events for open brokers. By default, Kubernetes keeps an Event for an hour."""
INTERVAL_BUSY = 3.0
"""Seconds between two reconciles while brokers are being replaced or upgraded, or have a problem."""


@dataclass(slots=True)
class _Wait:
    """Wait of a roll-out: its present reason, the time of the last step, and the reason in its Event."""

    reason: str
    since: float
    reported: str = ""


class FleetReconciler:
    """Reconciles profiles: keeps their health on the board, and wakes their topics when it changes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.config
        self._owner = context.owner
        self._cluster = context.ports.cluster
        self._scale_downs_refused: set[tuple[str, int, int]] = set()
        self._waits: dict[str, _Wait] = {}
        """Profile -> the wait of its roll-out."""
        self._pruned: set[str] = set()
        """Profiles whose old configurations this process has removed since the last roll-out."""
        self._keys_due: dict[str, float] = {}
        """Profile -> time of the next read of the keys for its brokers."""
        self._warnings_due: dict[str, float] = {}
        """Profile -> time of the next Event for open brokers."""
        self._certificates = FleetCertificates(context)
        self._logs_due: dict[str, float] = {}
        """Profile -> time of the next read of its brokers' logs."""
        self._sightings: dict[str, Sightings] = {}
        """Profile with ``plaintext: Keep`` -> the clients that connect without encryption."""
        self._closed: set[str] = set()
        """Profiles of which this process has removed the Services for outside clients that are no longer configured."""

    async def reconcile(self, profile: str) -> Outcome:
        """Apply the objects of one fleet and publish its health."""
        if not self._config.profiles[profile].managed:
            fleet_health, busy = health.fleet_health(profile, None, (), await self._ask(profile)), False
        else:
            fleet_health, busy = await self._fleet(profile)
        self._publish(profile, fleet_health)
        return Outcome(after=INTERVAL_BUSY if busy or fleet_health.problem else INTERVAL)

    async def _fleet(self, profile: str) -> tuple[FleetHealth, bool]:
        """Return the health of a managed fleet, and whether the next reconcile may continue a roll-out or upgrade."""
        cluster = self._cluster
        live = await cluster.stateful_set(names.fleet(profile))
        try:
            fleet = await self._sized(profile, live)
        except InvalidSpecError as error:
            return FleetHealth(Reason.BROKER_UNREACHABLE, str(error), stalled=True), False
        pods = await cluster.pods(fleet.labels)
        self._report_openness(profile, open_pods(pods))
        answers = any(pod.ready for pod in pods)
        admin = await self._ask(profile) if answers else UnavailableError(f"no broker of {fleet.service} is ready")
        self._refuse_scale_down(fleet, live)
        try:
            kinds.refuse_other_kind(fleet, live)
            wanted = children.template_hash(kinds.stateful_set(fleet, 0))
            rolling = rollout.under_way(wanted, live, pods)
            settled = rollout.complete(wanted, pods, fleet.replicas) and not rolling
            fleet, problem = await self._advanced(fleet, settled)
            before, wanted = wanted, children.template_hash(kinds.stateful_set(fleet, 0))
            rolling = rolling or wanted != before
            uncertified = await self._certificates.request(fleet)
            # Only a roll-out waits for replicas, and a list of all partitions takes long.
            detailed = await self._ask(profile, replicas=True) if rolling and answers else admin
            await self._apply(fleet, rollout.step(wanted, live, pods, _answer(detailed, fleet), fleet.replicas))
        except InvalidSpecError as error:
            # Nothing was applied, so running brokers stay as they are, and topics can be managed.
            fleet_health = health.fleet_health(profile, fleet, pods, admin, wrong=str(error))
            if fleet_health.problem is not None:
                fleet_health = FleetHealth(Reason.BROKER_UNREACHABLE, str(error), stalled=True)
            return fleet_health, False
        if rolling:
            self._pruned.discard(profile)
        elif settled:
            await self._prune(fleet)
            if isinstance(fleet, KafkaFleet) and plain_clients.are_reported(fleet):
                await self._find_plain_clients(fleet, pods)
        if isinstance(fleet, KafkaFleet):
            await self._certificates.find_end(fleet, pods)
            if isinstance(admin, FleetState):
                await self._certificates.reload(fleet)
        finalizes = isinstance(fleet, KafkaFleet) and metadata_version.pending(fleet) is not None and problem is None
        problem = problem or uncertified
        wrong = problem or self._wait_problem(profile)
        fleet_health = health.fleet_health(profile, fleet, pods, admin, rolling=rolling, wrong=wrong)
        if problem is not None and fleet_health.problem is not None:
            # The brokers' own message cannot name a cause such as a missing certificate, or a certificate that the operator does not trust.
            fleet_health = replace(fleet_health, message=f"{fleet_health.message}; {problem}")
        return fleet_health, rolling or finalizes

    async def _advanced(self, fleet: AnyFleet, settled: bool) -> tuple[AnyFleet, str | None]:
        """Make the next step of a change for which all brokers need the step before. ``settled``: they have the template of ``fleet``.

        Returns the fleet after the step, and why it lacks a step: a failure, or the action of a user that is due.
        """
        if settled and isinstance(fleet, DisklessFleet) and fleet.profile.access is not None:
            fleet = replace(fleet, secured=True)
        failure = None
        if isinstance(fleet, KafkaFleet):
            fleet, failure = await self._finalized(fleet, settled)
            if settled and Stage.PLAIN < fleet.stage < Stage.CLOSED:
                fleet = fleet.at(Stage(fleet.stage + 1), self._config)
            failure = await self._publish_token_keys(fleet) or failure
        fleet, problem = await self._certificates.advanced(fleet, complete=settled)
        return fleet, problem or failure

    async def _sized(self, profile: str, live: StatefulSetState | None) -> AnyFleet:
        """Return the fleet. It has the size of its volumes, also after the StatefulSet was deleted.

        Raises InvalidSpecError if the record of the size cannot be read.
        """
        cluster, kept = self._cluster, None
        if live is None:
            kept = kept_size(await cluster.get("v1", "ConfigMap", self._owner.namespace, names.quorum(profile)))
        fleet = kinds.managed_fleet(self._config, profile, self._owner, live, kept)
        if isinstance(fleet, KafkaFleet):
            await cluster.apply(quorum(fleet))
        return fleet

    async def _finalized(self, fleet: KafkaFleet, settled: bool) -> tuple[KafkaFleet, str | None]:
        """Finalize the metadata version. Returns the fleet with the version in force, and why the next version failed."""
        cluster = self._cluster
        version = metadata_version.pending(fleet)
        if version is None or not settled:
            return fleet, None
        name = metadata_version.job_name(fleet, version)
        job = await cluster.get("batch/v1", "Job", self._owner.namespace, name)
        if job is None:
            await cluster.apply(metadata_version.build(fleet, version))
            return fleet, None
        if metadata_version.succeeded(job):
            text = f"brokers of profile {fleet.name} have metadata version {version}; a downgrade to an older Kafka is no longer possible"
            self._context.announce(Announcement("Normal", EventReason.FINALIZED, text))
            return replace(fleet, metadata_version=version), None
        return fleet, metadata_version.failure(job, version)

    async def _publish_token_keys(self, fleet: KafkaFleet) -> str | None:
        """Give the brokers the keys that verify tokens of ServiceAccounts. Returns why that failed."""
        now = self._context.ports.clock.monotonic()
        if fleet.profile.access is None or now < self._keys_due.get(fleet.name, now):
            return None
        try:
            await self._cluster.apply(token_keys.build(fleet, await self._cluster.token_keys()))
        except (AccessDeniedError, UnavailableError) as error:
            return token_keys.problem(error)
        self._keys_due[fleet.name] = now + KEYS_INTERVAL
        return None

    async def _find_plain_clients(self, fleet: KafkaFleet, pods: Sequence[PodState]) -> None:
        """Report the clients that connect without encryption, from the logs of the brokers."""
        profile, now = fleet.name, self._context.ports.clock.monotonic()
        if now < self._logs_due.get(profile, now):
            return
        self._logs_due[profile] = now + plain_clients.INTERVAL
        try:
            logs = [await self._cluster.pod_log(pod.name, plain_clients.WINDOW) for pod in pods]
            seen = set().union(*map(plain_clients.clients, logs))
        except FirnError as error:
            # Without a log, the operator must not report that no client is left.
            log.warning("profile %s: cannot find clients without encryption: %s", profile, error)
            return
        sightings = self._sightings.setdefault(profile, Sightings(started=now))
        new = sightings.add(seen, now)
        found, before = frozenset(sightings.last), self._context.board.plain_clients.get(profile)
        if new:
            text = plain_clients.message(profile, found)
            self._context.announce(Announcement("Warning", EventReason.UNENCRYPTED_CLIENTS, text))
        elif not found and before is None and now - sightings.started < plain_clients.MEMORY:
            return
        elif not found and before != found:
            text = f"profile {profile}: no client has connected without encryption for {plain_clients.MEMORY / 60:.0f} minutes"
            self._context.announce(Announcement("Normal", EventReason.ALL_ENCRYPTED, text))
        self._context.board.plain_clients[profile] = found

    async def _apply(self, fleet: AnyFleet, step: Step) -> None:
        cluster = self._cluster
        await cluster.apply(kinds.config_map(fleet))
        await cluster.apply(builders.headless_service(fleet))
        await cluster.apply(builders.bootstrap_service(fleet))
        await self._apply_external(fleet)
        await cluster.apply(builders.disruption_budget(fleet))
        await cluster.apply(kinds.stateful_set(fleet, step.partition))
        wait = self._waits.get(fleet.name)
        if step.waits is None:
            self._waits.pop(fleet.name, None)
        elif wait is None or wait.reason != step.waits:
            since = wait.since if wait is not None else self._context.ports.clock.monotonic()
            self._waits[fleet.name] = _Wait(step.waits, since, wait.reported if wait is not None else "")
            log.info("profile %s: the operator waits %s before it replaces the next broker", fleet.name, step.waits)

    def _wait_problem(self, profile: str) -> str | None:
        """Return why the roll-out makes no step, as it was after `LONG_WAIT`, or None."""
        wait = self._waits.get(profile)
        if wait is None or self._context.ports.clock.monotonic() - wait.since < LONG_WAIT:
            return None
        # Reasons change often. Each new text would be another Event.
        wait.reported = wait.reported or wait.reason
        return f"the roll-out waits {wait.reported}; remove the cause of this wait, also if it is a topic of another client"

    async def _apply_external(self, fleet: Fleet) -> None:
        """Apply the configured Services for clients outside, and delete all others at once."""
        cluster, wanted = self._cluster, builders.external_services(fleet)
        for service in wanted:
            await cluster.apply(service)
        if fleet.name in self._closed:
            return
        kept = {service["metadata"]["name"] for service in wanted}
        for name in await cluster.list_names("v1", "Service", fleet.labels):
            if name.startswith(builders.external_prefix(fleet)) and name not in kept:
                await cluster.delete("v1", "Service", self._owner.namespace, name)
                log.info("removed Service %s: profile %s no longer configures it for clients outside", name, fleet.name)
        self._closed.add(fleet.name)

    async def _prune(self, fleet: AnyFleet) -> None:
        """Delete the configurations that no broker starts from any more."""
        if fleet.name in self._pruned:
            return
        kept, cluster = {kinds.config_map(fleet)["metadata"]["name"]}, self._cluster
        kept |= {bundle.config_map for bundle in fleet.bundles if bundle.config_map is not None}
        for name in await cluster.list_names("v1", "ConfigMap", fleet.labels):
            if name not in kept:
                await cluster.delete("v1", "ConfigMap", self._owner.namespace, name)
        self._pruned.add(fleet.name)

    async def _ask(self, profile: str, *, replicas: bool = False) -> FleetState | FirnError:
        try:
            return await self._context.ports.topics.fleet(profile, replicas=replicas)
        except FirnError as error:
            return error

    def _report_openness(self, profile: str, pods: Collection[str]) -> None:
        """Report brokers that accept clients without encryption, now and each hour. ``pods``: those that do so now."""
        now = self._context.ports.clock.monotonic()
        is_open = self._config.openness[profile] or bool(pods)
        self._context.board.open_fleets[profile] = is_open
        if not is_open or now < self._warnings_due.get(profile, now):
            return
        self._warnings_due[profile] = now + OPEN_INTERVAL
        text = open_warning(profile, self._config.closed_profiles.get(profile), pods)
        self._context.announce(Announcement("Warning", EventReason.BROKERS_OPEN, text))

    def _publish(self, profile: str, fleet_health: FleetHealth) -> None:
        before = self._context.board.fleets.get(profile)
        if fleet_health == before:
            return
        self._context.board.fleets[profile] = fleet_health
        self._context.wake_topics(lambda entry: entry.profile == profile)
        what = f"brokers of profile {profile}"
        if fleet_health.problem is None and (before is None or before.problem is not None):
            self._context.announce(Announcement("Normal", EventReason.AVAILABLE, f"{what} answer"))
        elif fleet_health.problem is not None and before is not None and before.problem is None:
            self._context.announce(Announcement("Warning", EventReason.UNAVAILABLE, fleet_health.message))
        was_degraded = before.degraded if before is not None else ""
        if fleet_health.degraded and fleet_health.degraded != was_degraded:
            self._context.announce(Announcement("Warning", EventReason.DEGRADED, fleet_health.degraded))
        elif was_degraded and not fleet_health.degraded and fleet_health.problem is None:
            self._context.announce(Announcement("Normal", EventReason.RECOVERED, f"all {what} run again"))
        was_rolling = before is not None and before.rolling
        if fleet_health.rolling and not was_rolling:
            self._context.announce(
                Announcement("Normal", EventReason.ROLLING_OUT, f"{what} are being replaced one by one")
            )
        elif was_rolling and not fleet_health.rolling:
            self._context.announce(Announcement("Normal", EventReason.ROLLED_OUT, f"{what} have all been replaced"))

    def _refuse_scale_down(self, fleet: AnyFleet, live: StatefulSetState | None) -> None:
        name, asked, kept = fleet.name, fleet.profile.replicas, fleet.replicas
        if asked >= kept or (name, asked, kept) in self._scale_downs_refused:
            return
        self._scale_downs_refused.add((name, asked, kept))
        text = (
            f"profile {name} keeps its {kept} brokers although replicas is {asked}, because the partitions on them would be lost; set replicas"
            f" to {kept}"
        )
        applied = applied_replicas(live) if live is not None else kept
        if applied < kept:
            text = (
                f"another client raised the number of brokers of profile {name} from {applied} to {kept}; the operator keeps them, because they may"
                f" have partitions; set replicas to {kept}"
            )
        self._context.announce(Announcement("Warning", EventReason.SCALE_DOWN_REFUSED, text))


def _answer(admin: FleetState | FirnError, fleet: AnyFleet) -> FleetState | None:
    """Return what the brokers answer; None if they do not."""
    if isinstance(admin, FleetState):
        return admin
    if isinstance(admin, AccessDeniedError) and isinstance(fleet, DisklessFleet) and fleet.profile.access is not None:
        # Brokers with a wrong issuer or certificate refuse the operator until the roll-out has replaced them. They hold no data, so
        # pods that are ready are enough.
        return FleetState(fleet.replicas, 0)
    return None
