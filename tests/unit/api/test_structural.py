"""Rules that turn pydantic's schema into a structural schema, with a test for each rule."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, WithJsonSchema

from firn.api.model import ApiModel, Rule
from firn.api.structural import StructuralError, structural
from firn.api.v1alpha1 import IcebergTopic
from firn.api.v1alpha1.policy import NAME_RULE
from firn.model import names


class Inner(ApiModel):
    """The nested model."""

    size: Literal["Small", "Large"] = "Small"
    note: str | None = None


class Tree(ApiModel):
    children: tuple["Tree", ...] = ()


def schema_of(kind: Any, **field: Any) -> dict[str, Any]:
    class Model(ApiModel):
        member: kind = Field(**field)

    schema = structural(Model.model_json_schema(by_alias=True))
    assert schema.pop("type") == "object"
    schema.pop("required", None)
    assert set(schema) == {"properties"}
    return dict(schema["properties"]["member"])


def refusal_of(kind: Any, **field: Any) -> str:
    with pytest.raises(StructuralError) as refused:
        schema_of(kind, **field)
    return str(refused.value)


def test_titles_are_dropped_and_keys_are_camel_case() -> None:
    class Model(ApiModel):
        long_name: int

    assert structural(Model.model_json_schema(by_alias=True)) == {
        "type": "object",
        "properties": {"longName": {"type": "integer"}},
        "required": ["longName"],
    }


def test_a_field_named_title_is_a_field() -> None:
    class Model(ApiModel):
        title: int

    assert structural(Model.model_json_schema(by_alias=True))["properties"] == {"title": {"type": "integer"}}


def test_references_are_inlined_and_their_siblings_win() -> None:
    inner = {
        "type": "object",
        "properties": {
            "size": {"type": "string", "enum": ["Small", "Large"], "default": "Small"},
            "note": {"type": "string"},
        },
    }
    assert schema_of(Inner) == {**inner, "description": "The nested model."}
    assert schema_of(Inner, description="Ours.") == {**inner, "description": "Ours."}
    assert schema_of(Inner | None, default=None, description="Ours.") == {**inner, "description": "Ours."}
    assert schema_of(list[Inner]) == {"type": "array", "items": {**inner, "description": "The nested model."}}


def test_a_recursive_model_is_rejected() -> None:
    assert "Tree contains itself" in refusal_of(Tree)


def test_an_optional_field_is_its_type_alone() -> None:
    assert schema_of(Annotated[int, Field(ge=1)] | None, default=None) == {"type": "integer", "minimum": 1}


def test_a_union_is_rejected() -> None:
    assert refusal_of(int | str).startswith("schema.member: a union")


def test_a_constant_is_an_enum_of_one() -> None:
    assert schema_of(Literal["Json"]) == {"type": "string", "enum": ["Json"]}


def test_defaults_of_an_object_are_its_members_in_full() -> None:
    assert schema_of(Inner, default=Inner())["default"] == {"size": "Small"}


@pytest.mark.parametrize(
    ("kind", "default"), [(str | None, None), (str, ""), (list[int], []), (dict[str, str], {}), (tuple[int, ...], ())]
)
def test_empty_defaults_are_left_out(kind: Any, default: Any) -> None:
    assert "default" not in schema_of(kind, default=default)


@pytest.mark.parametrize(("kind", "default"), [(bool, False), (int, 0), (str, "a")])
def test_other_defaults_stay(kind: Any, default: Any) -> None:
    assert schema_of(kind, default=default)["default"] == default


def test_maps_and_bounds_are_kept() -> None:
    kind = Annotated[dict[str, Annotated[str, Field(max_length=9, pattern="^a")]], Field(max_length=3)]
    assert schema_of(kind) == {
        "type": "object",
        "maxProperties": 3,
        "additionalProperties": {"type": "string", "maxLength": 9, "pattern": "^a"},
    }


def test_rules_of_a_field_and_of_its_model_are_joined() -> None:
    class Ruled(ApiModel):
        rules = (Rule("has(self.a)", "a"),)
        a: int | None = None

    schema = schema_of(Annotated[Ruled, Rule("self.a > 1", "more")])
    assert schema["x-kubernetes-validations"] == [
        {"rule": "has(self.a)", "message": "a"},
        {"rule": "self.a > 1", "message": "more"},
    ]
    text = schema_of(Annotated[str, Rule("self != ''", "some")] | None, default=None)
    assert text == {"type": "string", "x-kubernetes-validations": [{"rule": "self != ''", "message": "some"}]}


@pytest.mark.parametrize(
    ("kind", "field", "named"),
    [
        (Annotated[int, Field(gt=0)], {}, "exclusiveMinimum"),
        (tuple[int, str], {}, "prefixItems"),
        (dict[str, Any], {}, "additionalProperties"),
        (Annotated[str, WithJsonSchema({"type": "string", "contentEncoding": "base64"})], {}, "contentEncoding"),
    ],
)
def test_an_unsupported_type_is_rejected_and_named(kind: Any, field: dict[str, Any], named: str) -> None:
    message = refusal_of(kind, **field)
    assert message.startswith("schema.member: ")
    assert named in message


def test_a_member_without_a_type_is_rejected() -> None:
    assert refusal_of(Any) == "schema.member: the field has no type; annotate it with one"


def test_the_rule_of_names_has_the_limit_of_derived_names() -> None:
    assert NAME_RULE.rule == f"self.metadata.name.size() <= {names.LONGEST_NAME}"
    assert NAME_RULE in IcebergTopic.rules
