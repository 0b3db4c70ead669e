"""`firn plan` of TopicUsers and TopicGrants, the metrics of TopicUsers, and their part of the configuration."""

from typing import Any

import pytest
from prometheus_client.registry import CollectorRegistry
from pydantic import ValidationError

from firn.model.config import Config
from firn_controllers.cache.topic_users import UserEntry, user_entry
from firn_controllers.preview.effects import EffectKind
from firn_controllers.preview.users import preview, preview_grant
from firn_operator.process.telemetry import TopicUserMetrics
from tests import gen


def user(**spec: Any) -> UserEntry:
    return user_entry(gen.user(**spec))


def test_a_new_user_is_created_with_its_secret() -> None:
    (effect,) = preview(None, user(), gen.with_users(), configured=True)
    assert (effect.kind, "Secret checkout-kafka" in effect.text) == (EffectKind.CREATED, True)
    (effect,) = preview(None, user(authentication={"type": "Certificate"}), gen.with_users(), configured=True)
    assert "no credential" in effect.text


def test_changed_fields_have_their_effects() -> None:
    after = user(grants=[], authentication={"rotation": {"every": "7d"}}, quotas={"requestPercent": 5})
    effects = preview(user(), after, gen.with_users(), configured=True)
    assert {effect.text for effect in effects} == {
        "the operator changes the ACLs of the user",
        "the operator changes the quotas of the user",
        "the operator rotates the credential at these times",
    }
    assert preview(user(), user(), gen.with_users(), configured=True) == ()


def test_a_user_that_the_operator_refuses_is_refused() -> None:
    rotation = {"rotation": {"every": "1d", "overlap": "2d"}}
    for spec, reason in (({"profile": "classic"}, "NotAllowed"), ({"authentication": rotation}, "InvalidSpec")):
        (effect,) = preview(None, user(**spec), gen.with_users(), configured=True)
        assert (effect.kind, effect.reason) == (EffectKind.REFUSED, reason)


def test_without_the_configuration_only_the_spec_is_checked() -> None:
    (effect,) = preview(None, user(profile="unknown"), gen.config(), configured=False)
    assert effect.kind is EffectKind.CREATED
    rotation = {"rotation": {"every": "1d", "overlap": "2d"}}
    (effect,) = preview(None, user(authentication=rotation), gen.config(), configured=False)
    assert effect.reason == "InvalidSpec"


def test_a_grant_is_created_and_changed() -> None:
    whole = {"topics": [{"name": "x"}], "to": [{"namespace": "shop", "users": ["*"]}], "roles": ["Consume"]}
    before, after = gen.grant("g", "demo", **whole), gen.grant("g", "demo", **{**whole, "roles": ["Produce"]})
    (effect,) = preview_grant(None, before)
    assert effect.kind is EffectKind.CREATED
    effects = preview_grant(before, after)
    assert effects
    assert all(effect.field.startswith("spec.roles") for effect in effects)


def test_metrics_come_from_the_status() -> None:
    ready = {"type": "Ready", "status": "True"}
    status = {"conditions": [ready], "grantsRefused": 2, "credentials": {"expires": "2026-03-01T12:00:00Z"}}
    users = [user_entry(gen.user("a", gen.with_status(status))), user_entry(gen.user("b"))]
    registry = CollectorRegistry()
    registry.register(TopicUserMetrics(lambda: users))
    found = {
        (sample.name, sample.labels["user"]): sample.value for family in registry.collect() for sample in family.samples
    }
    assert found == {
        ("firn_topic_user_ready", "a"): 1.0,
        ("firn_topic_user_ready", "b"): 0.0,
        ("firn_topic_user_refused_grants", "a"): 2.0,
        ("firn_topic_user_expiry_timestamp_seconds", "a"): 1772366400.0,
    }


def test_brokers_without_authentication_have_no_users() -> None:
    document = gen.config().model_dump(by_alias=True)
    document["profiles"]["classic"]["users"] = {}
    with pytest.raises(ValidationError, match="users needs access or bootstrapServers"):
        Config.model_validate(document)
    assert gen.with_users().profiles["outside"].model_dump()["users"]["groups"] == ["{namespace}.*"]
