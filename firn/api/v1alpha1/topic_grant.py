"""TopicGrant: the consent of a namespace that TopicUsers of other namespaces use its IcebergTopics."""

from typing import Annotated, ClassVar

from pydantic import Field

from firn.api.model import ApiModel, ObjectMeta, Rule
from firn.api.v1alpha1.policy import NAME_RULE, LabelSelector
from firn.api.v1alpha1.topic_user import NamespaceName, ResourceName, Roles

KIND = "TopicGrant"
PLURAL = "topicgrants"
SHORT_NAME = "tgrant"

UserPattern = Annotated[str, Field(pattern=r"^[-a-z0-9.*]+$", max_length=63)]


class OfferedTopics(ApiModel):
    """IcebergTopics of the namespace, by name or by labels."""

    rules: ClassVar[tuple[Rule, ...]] = (Rule("has(self.name) != has(self.selector)", "write either name or selector"),)

    name: ResourceName | None = Field(
        default=None, description="Name of an IcebergTopic in the namespace of the TopicGrant."
    )
    selector: LabelSelector | None = Field(
        default=None,
        description="Labels of IcebergTopics in the namespace of the TopicGrant. An empty selector matches all of them.",
    )


class Grantees(ApiModel):
    """TopicUsers of one namespace."""

    namespace: NamespaceName = Field(description="Namespace of the TopicUsers.")
    users: Annotated[tuple[UserPattern, ...], Field(min_length=1, max_length=64)] = Field(
        description="Names of the TopicUsers, in which * stands for any characters, such as checkout-*.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )


class TopicGrantSpec(ApiModel):
    """The consent."""

    topics: Annotated[tuple[OfferedTopics, ...], Field(min_length=1, max_length=64)] = Field(
        description="The IcebergTopics that the users may use.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    to: Annotated[tuple[Grantees, ...], Field(min_length=1, max_length=64)] = Field(
        description="The users.", json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    roles: Roles = Field(
        description="Roles that the users may have on the topics.", json_schema_extra={"x-kubernetes-list-type": "set"}
    )


class TopicGrant(ApiModel):
    """The consent of a namespace that TopicUsers of other namespaces use its IcebergTopics. It gives a TopicUser only the roles that the
    TopicUser also lists. After the TopicGrant is deleted, the operator removes these roles."""

    rules: ClassVar[tuple[Rule, ...]] = (NAME_RULE,)

    metadata: ObjectMeta
    spec: TopicGrantSpec
