"""Version v1alpha1 of the API group ``firn.dev``."""

from firn.api.v1alpha1.compaction_policy import CompactionPolicy
from firn.api.v1alpha1.dead_letter_replay import DeadLetterReplay
from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.api.v1alpha1.retention_policy import RetentionPolicy
from firn.api.v1alpha1.topic_grant import TopicGrant
from firn.api.v1alpha1.topic_set import TopicSet
from firn.api.v1alpha1.topic_user import TopicUser

__all__ = [
    "CompactionPolicy",
    "DeadLetterReplay",
    "IcebergTopic",
    "RetentionPolicy",
    "TopicGrant",
    "TopicSet",
    "TopicUser",
]
