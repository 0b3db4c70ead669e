"""One profile: applies its fleet's objects, rolls it one broker at a time, and tells the board whether topics can be managed."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from firn.model import names
from firn.model.conditions import Reason
from firn.model.config import Config
from firn.model.errors import FirnError, InvalidSpecError, UnavailableError
from firn_controllers import manifests
from firn_controllers.announcements import Announcement, EventReason
from firn_controllers.board import Board
from firn_controllers.fleet import (
    config_map,
    disruption_budget,
    health,
    metadata_version,
    rollout,
    services,
    stateful_set,
)
from firn_controllers.fleet.health import FleetHealth
from firn_controllers.fleet.layout import Fleet
from firn_controllers.manifests import Owner
from firn_controllers.ports import FleetState, PodState, Ports, StatefulSetState
from firn_controllers.queue import Outcome

INTERVAL = 10.0
INTERVAL_BUSY = 3.0
"""Seconds between looks while the fleet rolls or has a problem."""

Announce = Callable[[Announcement], None]


class FleetReconciler:
    """Reconciles profiles; ``changed`` is told the profile whose health changed, ``announce`` what is worth an Event."""

    def __init__(
        self,
        config: Config,
        owner: Owner,
        ports: Ports,
        board: Board,
        changed: Callable[[str], None],
        announce: Announce,
    ) -> None:
        self._config = config
        self._owner = owner
        self._ports = ports
        self._board = board
        self._changed = changed
        self._announce = announce
        self._scale_down_told: set[tuple[str, int]] = set()

    async def reconcile(self, profile: str) -> Outcome:
        """Look, apply, tell."""
        if not self._config.profiles[profile].managed:
            found = health.of(profile, None, (), await self._ask(profile), rolling=False)
        else:
            found = await self._fleet(profile)
        self._tell(profile, found)
        return Outcome(after=INTERVAL_BUSY if found.rolling or found.problem else INTERVAL)

    async def _fleet(self, profile: str) -> FleetHealth:
        cluster = self._ports.cluster
        live = await cluster.stateful_set(names.fleet(profile))
        fleet = Fleet.of(self._config, profile, self._owner, live)
        pods = await cluster.pods(fleet.labels)
        answers = any(pod.ready for pod in pods)
        admin = await self._ask(profile) if answers else UnavailableError(f"no broker of {fleet.service} is ready")
        self._refuse_scale_down(fleet)
        try:
            rolling = await self._apply(fleet, live, pods, admin if isinstance(admin, FleetState) else None)
        except InvalidSpecError as error:
            return FleetHealth(Reason.BROKER_UNREACHABLE, str(error), stalled=True)
        return health.of(profile, fleet, pods, admin, rolling)

    async def _apply(
        self,
        fleet: Fleet,
        live: StatefulSetState | None,
        pods: Sequence[PodState],
        admin: FleetState | None,
    ) -> bool:
        """Apply all objects; True while the pods are not all made from the newest template."""
        cluster = self._ports.cluster
        wanted = manifests.template_hash(stateful_set.build(fleet, 0))
        complete = rollout.complete(wanted, pods, fleet.replicas)
        version = metadata_version.pending(fleet)
        if version is not None and complete:
            name = metadata_version.job_name(fleet, version)
            job = await cluster.get("batch/v1", "Job", self._owner.namespace, name)
            if metadata_version.succeeded(job):
                fleet = replace(fleet, metadata_version=version)
            elif job is None:
                await cluster.apply(metadata_version.build(fleet, version))
        await cluster.apply(config_map.build(fleet))
        await cluster.apply(services.headless(fleet))
        await cluster.apply(services.bootstrap(fleet))
        for service in services.external(fleet):
            await cluster.apply(service)
        await cluster.apply(disruption_budget.build(fleet))
        partition = rollout.partition(wanted, live, pods, admin, fleet.replicas)
        await cluster.apply(stateful_set.build(fleet, partition))
        return not complete and live is not None and any(pod.template_hash != wanted for pod in pods)

    async def _ask(self, profile: str) -> FleetState | FirnError:
        try:
            return await self._ports.topics.fleet(profile)
        except FirnError as error:
            return error

    def _tell(self, profile: str, found: FleetHealth) -> None:
        before = self._board.fleets.get(profile)
        if found == before:
            return
        self._board.fleets[profile] = found
        self._changed(profile)
        what = f"brokers of profile {profile}"
        if found.problem is None and (before is None or before.problem is not None):
            self._announce(Announcement("Normal", EventReason.AVAILABLE, f"{what} answer"))
        elif found.problem is not None and before is not None and before.problem is None:
            self._announce(Announcement("Warning", EventReason.UNAVAILABLE, found.message))
        was_rolling = before is not None and before.rolling
        if found.rolling and not was_rolling:
            self._announce(Announcement("Normal", EventReason.ROLLING_OUT, f"{what} are replaced one by one"))
        elif was_rolling and not found.rolling:
            self._announce(Announcement("Normal", EventReason.ROLLED_OUT, f"{what} are all replaced"))

    def _refuse_scale_down(self, fleet: Fleet) -> None:
        asked = fleet.profile.replicas
        if asked < fleet.replicas and (fleet.name, asked) not in self._scale_down_told:
            self._scale_down_told.add((fleet.name, asked))
            self._announce(
                Announcement(
                    "Warning",
                    EventReason.SCALE_DOWN_REFUSED,
                    f"profile {fleet.name} has {fleet.replicas} brokers and stays so, though replicas is {asked}: the partitions on them would be"
                    " lost",
                )
            )
