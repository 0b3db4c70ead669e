"""Port `Topics` in memory. It passes tests/contract/suites.py like the adapter."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from firn.model.conditions import Reason
from firn.model.errors import FirnError, InvalidSpecError, UnavailableError
from firn_controllers.ports import FleetState, TopicNames, TopicState
from tests.fakes.faults import Faults, effect

KNOWN_CONFIGS = re.compile(r"(retention|cleanup|segment|max|min|compression|delete|firn)\..*")


class FakeTopics:
    def __init__(self, faults: Faults | None = None) -> None:
        self.reloads: list[str] = []
        """The profiles whose brokers read their certificates again."""
        self.certificate_ends: dict[tuple[str, int], datetime] = {}
        """Host and port of a broker -> when the certificate ends that it presents."""
        self.faults = faults or Faults()
        self.topics: dict[tuple[str, str], TopicState] = {}
        self.problem: dict[str, FirnError] = {}
        """Profile -> the error of every call."""
        self.under_replicated = 0
        self.lagging_topics: tuple[str, ...] = ()
        self.brokers = 3
        self.cluster_id = "kafka-1"
        self.defaults = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}
        self._ids = 0

    async def describe(self, profile: str, topic: str) -> TopicState | None:
        self._answer(profile)
        live = self.topics.get((profile, topic))
        if live is None:
            return None
        return replace(live, defaults={key: self.defaults[key] for key in self.defaults.keys() - live.configs.keys()})

    async def list_names(self, profile: str) -> TopicNames:
        self._answer(profile)
        return TopicNames(frozenset(topic for owner, topic in self.topics if owner == profile), self.cluster_id)

    @effect
    async def create(self, profile: str, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        self._answer(profile)
        self._check(topic, configs)
        if (profile, topic) not in self.topics:
            self._ids += 1
            self.topics[profile, topic] = TopicState(topic, f"{self._ids:022d}", partitions, dict(configs))
            self.faults.log.append(f"create topic {topic}")

    @effect
    async def grow(self, profile: str, topic: str, partitions: int) -> None:
        self._answer(profile)
        live = self.topics[profile, topic]
        if partitions < live.partitions:
            raise InvalidSpecError(f"topic {topic} has {live.partitions} partitions, which cannot become {partitions}")
        if partitions > live.partitions:
            self.topics[profile, topic] = replace(live, partitions=partitions)
            self.faults.log.append(f"grow topic {topic}")

    @effect
    async def alter_configs(self, profile: str, topic: str, put: Mapping[str, str], remove: Sequence[str]) -> None:
        self._answer(profile)
        self._check(topic, put)
        live = self.topics[profile, topic]
        kept = {key: value for key, value in live.configs.items() if key not in remove}
        self.topics[profile, topic] = replace(live, configs=kept | dict(put))
        self.faults.log.append(f"configure topic {topic}")

    @effect
    async def delete(self, profile: str, topic: str) -> None:
        self._answer(profile)
        if self.topics.pop((profile, topic), None) is not None:
            self.faults.log.append(f"delete topic {topic}")

    async def fleet(self, profile: str, *, replicas: bool = False) -> FleetState:
        self._answer(profile)
        return (
            FleetState(self.brokers, self.under_replicated, self.lagging_topics)
            if replicas
            else FleetState(self.brokers, 0)
        )

    async def reload_certificates(self, profile: str) -> None:
        self._answer(profile)
        self.reloads.append(profile)

    async def certificate_end(self, host: str, port: int) -> datetime:
        if (host, port) not in self.certificate_ends:
            raise UnavailableError(f"cannot read the certificate of {host}:{port}")
        return self.certificate_ends[host, port]

    def _answer(self, profile: str) -> None:
        if profile in self.problem:
            raise self.problem[profile]

    def _check(self, topic: str, configs: Mapping[str, str]) -> None:
        for key, value in configs.items():
            if not KNOWN_CONFIGS.fullmatch(key) or (key.endswith(".ms") and not value.lstrip("-").isdigit()):
                raise InvalidSpecError(f"topic {topic}: {key}={value} is refused", reason=Reason.BAD_TOPIC_CONFIG)
