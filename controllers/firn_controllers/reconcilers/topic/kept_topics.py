"""Remembers which namespace made a Kafka topic, while no resource has a job contract for the topic.

That is so from before the creation of a topic until its first contract, and after the end of a resource that keeps its
topic. Each such topic has a ConfigMap ``firn-topic-DIGEST``. If a profile lets every namespace adopt its topics, the
operator does not need to know, and writes none.
"""

from dataclasses import asdict, dataclass

from firn.model import names
from firn.model.conditions import Reason
from firn.model.jobs import IngestJob
from firn_controllers import children
from firn_controllers.cache.topics import TopicEntry, topic_claim
from firn_controllers.children import COMPONENT
from firn_controllers.ports import Manifest, TopicState
from firn_controllers.queue import Lane
from firn_controllers.reconcilers.context import Context

COMPONENT_TOPIC = "kept-topic"


def kept_name(profile: str, topic: str) -> str:
    """Return the name of the ConfigMap of a Kafka topic."""
    return names.kept_topic(children.digest([profile, topic]))


@dataclass(frozen=True, slots=True)
class KeptTopic:
    """A Kafka topic, and the resource that made it."""

    profile: str
    topic: str
    namespace: str
    uid: str
    topic_id: str = ""
    """Kafka's id of the topic; empty if the topic may not exist."""

    @classmethod
    def read(cls, config_map: Manifest | None) -> "KeptTopic | None":
        """Return the topic that a ConfigMap remembers; None if it is missing or incomplete."""
        try:
            return cls(**config_map["data"]) if config_map is not None else None
        except (KeyError, TypeError):
            return None


class KeptTopics:
    """Reads and writes these ConfigMaps."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._config = context.config
        self._cluster = context.ports.cluster
        self._owner = context.owner

    async def put(self, kept: KeptTopic) -> None:
        """Remember the topic, unless every namespace may adopt it."""
        if self._concerns(kept.profile) and await self.get(kept.profile, kept.topic) != kept:
            name, labels = kept_name(kept.profile, kept.topic), {COMPONENT: COMPONENT_TOPIC}
            manifest = children.child_object("v1", "ConfigMap", name, self._owner, labels, data=asdict(kept))
            await self._cluster.apply(manifest, always=True)

    async def keep(self, job: IngestJob) -> None:
        """Remember the topic of a resource that ends, and reconcile the resources that wait for the topic."""
        if job.topic_id is not None:
            await self.put(KeptTopic(job.profile, job.topic, job.namespace, job.uid, job.topic_id))
        for entry in self._context.topics.holders(topic_claim(self._config, job.profile, job.topic)):
            self._context.wake_topic(entry.name, Lane.DEPENDENCY)

    async def get(self, profile: str, topic: str) -> KeptTopic | None:
        """Return the remembered topic, or None."""
        if not self._concerns(profile):
            return None
        name = kept_name(profile, topic)
        return KeptTopic.read(await self._cluster.get("v1", "ConfigMap", self._owner.namespace, name))

    async def maker(self, entry: TopicEntry, live: TopicState) -> KeptTopic | None:
        """Return the resource that made a topic that exists, if that is known; ``entry`` asks for it.

        Another client may have created the topic, after it was deleted, or after the brokers refused its creation.
        """
        kept = await self.get(entry.profile, live.name)
        if kept is None or kept.topic_id:
            return kept if kept is not None and kept.topic_id == live.topic_id else None
        return kept if kept.uid == entry.uid and entry.spec_valid != Reason.BAD_TOPIC_CONFIG else None

    async def forget(self, profile: str, topic: str) -> None:
        """Forget a topic that was deleted, or that a resource has."""
        if self._concerns(profile):
            await self._cluster.delete("v1", "ConfigMap", self._owner.namespace, kept_name(profile, topic))

    def _concerns(self, profile: str) -> bool:
        configured = self._config.profiles.get(profile)
        return configured is not None and configured.tenancy.adopt != "Any"
