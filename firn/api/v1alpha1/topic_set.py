"""TopicSet: an IcebergTopic for each existing Kafka topic whose name matches a pattern."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, WithJsonSchema

from firn.api.model import ApiModel, Condition, Int64, ObjectMeta, Rule
from firn.api.structural import VALIDATIONS, Schema, structural, unchecked
from firn.api.v1alpha1.iceberg_topic import IcebergTopicSpec
from firn.api.v1alpha1.policy import NAME_RULE, ConfiguredName
from firn.model.errors import InvalidSpecError

KIND = "TopicSet"
PLURAL = "topicsets"
SHORT_NAME = "tset"
MOST_TOPICS = 10_000
MOST_REFUSED = 20
"""Most refused topics that a status lists."""
MOST_PATTERN = 1024

SET_BY_OPERATOR = {
    "profile": Rule(
        "!has(self.profile)", "a template has no profile; remove it, because the operator sets that of the TopicSet"
    ),
    "topicName": Rule(
        "!has(self.topicName)", "a template has no topicName; remove it, because the operator sets the matched topic"
    ),
    "route": Rule("!has(self.route)", "a template has no route; remove it, and set routes"),
}
"""Fields of an IcebergTopic's spec that the operator sets itself, with the rule that refuses each in a template."""

PatternText = Annotated[str, Field(min_length=1, max_length=MOST_PATTERN)]
MetadataText = Annotated[str, Field(max_length=4096)]
Why = Literal["NameConflict", "InvalidName", "TableConflict", "TopicTaken", "MatchedByOlderSet", "InvalidSpec"]


def _template_spec() -> Schema:
    schema = unchecked(structural(IcebergTopicSpec.model_json_schema(by_alias=True)))
    # Without these members, the API server would remove the fields, and only some clients would report that.
    refused = {
        name: {"type": schema["properties"][name]["type"], "description": "Not allowed in a template."}
        for name in SET_BY_OPERATOR
    }
    rules = [rule.schema() for rule in SET_BY_OPERATOR.values()]
    return {**schema, "properties": {**schema["properties"], **refused}, VALIDATIONS: rules}


TemplateText = Annotated[
    dict[str, MetadataText],
    Field(max_length=64),
    Rule(
        "self.all(key, !key.startsWith('firn.dev/'))",
        "labels and annotations of a template must not start with firn.dev/, which the operator reserves",
    ),
]


class TemplateMetadata(ApiModel):
    """Name, labels and annotations of each IcebergTopic."""

    name: str = Field(
        min_length=1,
        max_length=253,
        description="Name of the IcebergTopic, such as $team-$name. In the values of placeholders, capital letters become small, and"
        " characters that Kubernetes does not allow become -.",
    )
    labels: TemplateText = Field(default_factory=dict, description="Labels, such as team: $team.")
    annotations: TemplateText = Field(default_factory=dict, description="Annotations.")


class TopicTemplate(ApiModel):
    """The IcebergTopic of a matched topic."""

    metadata: TemplateMetadata = Field(description="Name, labels and annotations of each IcebergTopic.")
    spec: Annotated[dict[str, Any], WithJsonSchema(_template_spec())] = Field(
        default_factory=dict,
        description="The spec of each IcebergTopic, without profile, topicName and route, which the operator sets. Only texts may have"
        " placeholders: $NAME or ${NAME} for a named group of match, $topic for the name of the Kafka topic, $$ for $. In table.namespace"
        " and table.name, characters of values that a table name cannot have become _.",
    )


class TopicSetSpec(ApiModel):
    """Desired IcebergTopics."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.profile == oldSelf.profile",
            "profile is immutable: create another TopicSet for another profile",
        ),
    )

    profile: ConfiguredName = Field(
        description="A profile of the operator's configuration whose existing topics the namespace may adopt (tenancy.adopt: Any). Immutable."
    )
    match: PatternText = Field(
        description="An RE2 expression. A topic matches if the expression is found in its name; ^ and $ stand for its begin and end. Named"
        " groups, such as (?P<team>[a-z]+), have the values of placeholders; no group may be named topic. Topics whose names start with _"
        " match only if the expression starts with _ or ^_. Topics whose names start with __ never match."
    )
    exclude: PatternText | None = Field(
        default=None, description="An RE2 expression. A topic does not match if the expression is found in its name."
    )
    limit: int = Field(
        default=1000,
        ge=1,
        le=MOST_TOPICS,
        description="Most IcebergTopics of the set. If more topics match, the operator creates no IcebergTopics for the others, in the order of"
        " their names.",
    )
    removal: Literal["Keep", "Delete"] = Field(
        default="Keep",
        description="Treatment of an IcebergTopic whose topic no longer matches or no longer exists, and of all of them when the set is deleted."
        " Keep: it stays. Delete: it is deleted, and its deletionPolicy decides about the data.",
    )
    template: TopicTemplate = Field(description="The IcebergTopic of each matched topic.")


class RefusedTopic(ApiModel):
    """A matched topic that has no IcebergTopic, or whose IcebergTopic cannot follow the template."""

    topic: str = Field(max_length=249, description="Name of the Kafka topic.")
    why: Why = Field(
        description="NameConflict: another object or topic has the name. InvalidName: the name is not valid in Kubernetes. TableConflict:"
        " another IcebergTopic has the table, or a table whose name differs only in case. TopicTaken: another IcebergTopic serves the topic."
        " MatchedByOlderSet: an older TopicSet matches the topic. InvalidSpec: the spec is refused."
    )
    message: str = Field(default="", max_length=1024, description="Cause and next step.")


class TopicSetStatus(ApiModel):
    """Observed state."""

    observed_generation: Int64 | None = Field(
        default=None, description="Generation of the spec that this status describes."
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Conditions. Ready: each matched topic has its IcebergTopic, which follows the template. The conditions of an IcebergTopic"
        " say whether its records land.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    cluster_id: str | None = Field(
        default=None,
        max_length=249,
        description="Kafka's id of the cluster whose topics the set follows. With removal Delete, the operator changes no IcebergTopic while the"
        " brokers of the profile have another id.",
    )
    matched: int | None = Field(default=None, description="Number of topics that match.")
    made: int | None = Field(default=None, description="Number of these topics that have an IcebergTopic of this set.")
    kept: int | None = Field(
        default=None,
        description="Number of IcebergTopics of this set whose topic no longer matches or no longer exists.",
    )
    topics_refused: int | None = Field(default=None, description="Number of refused topics.")
    refused: Annotated[tuple[RefusedTopic, ...], Field(max_length=MOST_REFUSED)] = Field(
        default=(),
        description="The first twenty refused topics by name.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )


class TopicSet(ApiModel):
    """An IcebergTopic for each existing Kafka topic whose name matches a pattern."""

    rules: ClassVar[tuple[Rule, ...]] = (NAME_RULE,)

    metadata: ObjectMeta
    spec: TopicSetSpec
    status: TopicSetStatus = Field(default_factory=TopicSetStatus)

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> Self:
        """Read the resource from a manifest or a live object. Raises InvalidSpecError that names every wrong field."""
        try:
            return cls.model_validate(manifest)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
            name = (manifest.get("metadata") or {}).get("name", "?")
            raise InvalidSpecError(f"TopicSet {name}: " + "; ".join(problems)) from error
