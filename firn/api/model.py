"""The base of the API's models: camelCase keys, CEL rules, and fields common to all kinds."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from firn.api.structural import VALIDATIONS
from firn.model import durations

JsonSchema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """A CEL rule that the API server checks. A rule with ``oldSelf`` is checked on updates only.

    A rule of an object is in ``ApiModel.rules``. A rule of a field is an annotation of its type.
    """

    rule: str
    message: str

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        schema = handler(core)
        schema.setdefault(VALIDATIONS, []).append(self.schema())
        return schema

    def schema(self) -> JsonSchema:
        """Return the entry in ``x-kubernetes-validations``."""
        return {"rule": self.rule, "message": self.message}


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a text, which the API server and the operator check.

    For a ``pattern`` of JSON schema, the API server would show the pattern to users. ``message`` says how to write the
    text.
    """

    pattern: str
    message: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        rule = Rule(f"self.matches(r'{self.pattern}')", self.message)
        return rule.__get_pydantic_json_schema__(core, handler)

    def _checked(self, text: str) -> str:
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError(self.message)
        return text

    def bounded(self, rule: str, message: str) -> Rule:
        """Return a rule for texts of this form. Other texts break no second rule."""
        return Rule(f"!self.matches(r'{self.pattern}') || ({rule})", message)


class ApiModel(BaseModel):
    """Base of the API's models, immutable and with camelCase keys.

    Unknown keys are ignored, so that an older operator can read a newer object.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, extra="ignore", frozen=True
    )

    rules: ClassVar[tuple[Rule, ...]] = ()
    """CEL rules on this object."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchema:
        schema = handler(core)
        if cls.rules:
            handler.resolve_ref_schema(schema)[VALIDATIONS] = [rule.schema() for rule in cls.rules]
        return schema


DURATION = Form(durations.PATTERN, "write a number and a unit of ms, s, m, h or d, such as 30d")
Duration = Annotated[str, Field(max_length=10), DURATION]
"""A number and a unit, such as ``60s``."""


def up_to_a_day(least: str) -> str:
    """Return the CEL condition that a duration is at least ``least`` and at most a day, for `Form.bounded`."""
    return (
        "self.endsWith('d') ? self == '1d' : (self.endsWith('ms') || self.size() <= 6)"
        f" && duration(self) >= duration('{least}') && duration(self) <= duration('24h')"
    )


Int64 = Annotated[int, Field(json_schema_extra={"format": "int64"})]
"""A number that may exceed 32 bits."""


class ObjectMeta(ApiModel):
    """The parts of ``metadata`` that Firn reads."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()


class Condition(ApiModel):
    """A condition, as ``metav1.Condition`` defines it."""

    type: str = Field(
        max_length=64, pattern=r"^[A-Za-z]+$", description="Type of the condition. Each type has one entry."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    reason: str = Field(
        max_length=64, pattern=r"^[A-Za-z]+$", description="Cause of the status: one word of a closed list."
    )
    message: str = Field(
        default="", max_length=32768, description="Cause of the status as a sentence, with the next step."
    )
    last_transition_time: datetime = Field(description="Time of the last change of status.")
    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that the condition describes."
    )
