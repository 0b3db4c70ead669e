"""A world in memory: all that the ports reach, and an operator process that can be killed and restarted."""

import json
from typing import Any

from firn.model import names
from firn.model.config import Config
from firn.model.jobs import IngestJob
from firn_controllers.cache.policies import KINDS
from firn_controllers.ports import Manifest, Ports, TableDebt, UserPorts
from firn_controllers.reconcile import Controllers
from tests import gen
from tests.fakes.clock import FakeClock
from tests.fakes.cluster import FakeCluster
from tests.fakes.faults import Faults, Killed
from tests.fakes.maintainer import FakeMaintainer
from tests.fakes.progress import FakeDriver, FakeProgress
from tests.fakes.schemas import FakeSchemas
from tests.fakes.tables import FakeTables
from tests.fakes.topics import FakeTopics
from tests.fakes.users.access import FakeAccess
from tests.fakes.users.authorities import FakeAuthorities
from tests.fakes.users.certificates import FakeCertificates
from tests.fakes.users.client_secrets import FakeClientSecrets

QUIET_ROUNDS = 4


class World:
    """All systems outside the operator. ``start`` begins a new operator process without the memory of earlier ones."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or gen.config()
        self.clock = FakeClock()
        self.faults = Faults()
        self.topics = FakeTopics(self.faults)
        self.tables = FakeTables(self.faults)
        self.cluster = FakeCluster(self.faults, self.clock)
        self.maintainer = FakeMaintainer(self.cluster)
        self.progress = FakeProgress()
        self.schemas = FakeSchemas()
        self.access = FakeAccess(self.faults)
        self.secrets = FakeClientSecrets(self.faults)
        self.authorities = FakeAuthorities()
        self.certificates = FakeCertificates()
        self.driver = FakeDriver(self.progress, self.tables, self.clock)
        self.debts: dict[tuple[str, str], TableDebt] = {}
        self.pods_run = True
        self.cluster_uid = "kubernetes-1"
        self.start()

    def start(self, config: Config | None = None) -> None:
        """Start a new operator process: it lists everything, and then watches."""
        self.config = config or self.config
        users = UserPorts(self.access, self.secrets, self.authorities)
        servers = (self.topics, self.tables, self.cluster, self.progress, self.schemas)
        rights = self.access if self.config.profiles_with_acls else None
        ports = Ports(*servers, self.clock, users, self.certificates, rights, self.authorities)
        self.operator = Controllers(self.config, "config-uid", ports, jitter=lambda: 0.5, cluster_uid=self.cluster_uid)
        self.cluster.watch = [self._watched]
        for kind in ("Job", *KINDS, "DeadLetterReplay", "TopicSet", "TopicGrant", "TopicUser", "IcebergTopic"):
            for manifest in self.cluster.all(kind):
                self._watched("seen", manifest)
        for namespace, name in self.debts:
            self._measure(namespace, name)
        self.operator.begin()

    async def settle(self, seconds: float = 3600.0, restart: bool = True) -> None:
        """Run until no process writes any more, or until the time limit. ``restart`` restarts a killed operator."""
        until = self.clock.monotonic() + seconds
        quiet = 0
        while quiet < QUIET_ROUNDS and self.clock.monotonic() < until:
            before = self.faults.writes()
            try:
                await self.step()
            except Killed:
                if not restart:
                    raise
                self.faults.kill_at = None
                self.start()
                before = -1
            quiet = quiet + 1 if self.faults.writes() == before else 0
            self.clock.advance(5.0)

    async def step(self) -> None:
        """Let the operator reconcile all waiting keys; then pods and drivers move once."""
        await self.operator_only()
        if self.pods_run:
            self.cluster.run_pods()
        running = {
            state.labels[names.LABEL_GROUP]
            for state in self.cluster.pod_states.values()
            if state.running and names.LABEL_GROUP in state.labels
        }
        jobs = [
            IngestJob.model_validate_json(contract["data"]["job.json"])
            for contract in self.cluster.contracts().values()
        ]
        self.driver.run(running, jobs)
        self.maintainer.run()
        for namespace, name in self.debts:
            if f"uid-{namespace}-{name}" not in self.operator.board.debts:
                self._measure(namespace, name)

    async def operator_only(self) -> None:
        """Let the operator reconcile all waiting keys while nothing else moves."""
        schedule = self.operator.queue.schedule
        schedule.release()
        while (key := schedule.start_next()) is not None:
            schedule.done(key, await self.operator.reconcile(key))

    def owes(self, name: str = "flights", namespace: str = "demo", **debt: Any) -> None:
        """Give the table of a topic this much debt."""
        uuid = self.cluster.topic(name, namespace)["status"]["table"]["uuid"]
        self.debts[namespace, name] = TableDebt(table_uuid=uuid, **debt)
        self._measure(namespace, name)

    def _measure(self, namespace: str, name: str) -> None:
        self.operator.board.debts[f"uid-{namespace}-{name}"] = self.debts[namespace, name]
        self.operator.debt_changed((namespace, name))

    def conditions(
        self, name: str = "flights", namespace: str = "demo", kind: str = "IcebergTopic"
    ) -> dict[str, tuple[str, str]]:
        """Return status and reason by condition type."""
        status = self.cluster.resource(kind, name, namespace)["status"]
        return {condition["type"]: (condition["status"], condition["reason"]) for condition in status["conditions"]}

    def message(self, kind: str, name: str = "flights", of: str = "IcebergTopic") -> str:
        """Return the message of a condition."""
        status = self.cluster.resource(of, name)["status"]
        text: str = next(condition["message"] for condition in status["conditions"] if condition["type"] == kind)
        return text

    def job(self, uid: str = "uid-demo-flights") -> IngestJob:
        """Return a job contract in force."""
        return IngestJob.model_validate_json(self.cluster.contracts()[uid]["data"]["job.json"])

    def state(self) -> dict[str, Any]:
        """Return the state of everything, without fields in which two equivalent histories may differ."""
        state: dict[str, Any] = {}
        for place, live in self.cluster.objects.items():
            # After a crash, an operator may take the topic that it has just created for one that existed before.
            text = json.dumps(_stable(live), sort_keys=True).replace("Adopted", "Created")
            text = text.replace(r"topic_created\":false", r"topic_created\":true")
            state["/".join(place)] = json.loads(text)
        state["topics"] = {key: (topic.partitions, dict(topic.configs)) for key, topic in self.topics.topics.items()}
        state["tables"] = {key: (table.schema, table.owner) for key, table in self.tables.tables.items()}
        return state

    def _watched(self, change: str, manifest: Manifest) -> None:
        match manifest["kind"], change:
            case "Job", _:
                self.operator.child_seen(manifest["metadata"]["labels"])
            case "IcebergTopic", "seen":
                self.operator.topic_seen(manifest)
            case "IcebergTopic", _:
                self.operator.topic_gone(manifest)
            case "DeadLetterReplay", "seen":
                self.operator.replay_seen(manifest)
            case "DeadLetterReplay", _:
                self.operator.replay_gone(manifest)
            case "TopicSet", "seen":
                self.operator.set_seen(manifest)
            case "TopicSet", _:
                self.operator.set_gone(manifest)
            case (("TopicUser" | "TopicGrant"), _):
                self._user_watched(change, manifest)
            case _, "seen":
                self.operator.policy_seen(manifest)
            case _:
                self.operator.policy_gone(manifest)

    def _user_watched(self, change: str, manifest: Manifest) -> None:
        events = self.operator.user_events
        match manifest["kind"], change:
            case "TopicUser", "seen":
                events.user_seen(manifest)
            case "TopicUser", _:
                events.user_gone(manifest)
            case _, "seen":
                events.grant_seen(manifest)
            case _:
                events.grant_gone(manifest)


def _stable(value: Any) -> Any:
    if isinstance(value, dict):
        dropped = {"resourceVersion", "lag", "lastTransitionTime", names.TEMPLATE_HASH}
        return {key: _stable(item) for key, item in value.items() if key not in dropped}
    if isinstance(value, list):
        return [_stable(item) for item in value]
    return value
