"""TopicUsers in a world in memory: credentials, ACLs, quotas, the order of a deletion, and what the status says."""

import json
from typing import Any

import pytest

from firn.model import names
from firn.model.errors import AccessDeniedError, UnavailableError
from firn_controllers.ports import AclRule, Manifest, PrincipalState
from tests import gen
from tests.fakes.users.client_secrets import FakeSecret
from tests.fakes.world import World

A, B = "demo.checkout.a", "demo.checkout.b"
WRITE = AclRule("Topic", "flights", "Literal", "Write")
DESCRIBE = AclRule("Topic", "flights", "Literal", "Describe")
READ = AclRule("Topic", "flights", "Literal", "Read")


@pytest.fixture
async def world() -> World:
    world = World(gen.with_users())
    world.cluster.create(gen.topic("flights", profile="outside"))
    await world.settle()
    return world


def status(world: World, name: str = "checkout") -> Manifest:
    found: Manifest = world.cluster.resource("TopicUser", name)["status"]
    return found


def conditions(world: World, name: str = "checkout") -> dict[str, tuple[str, str]]:
    return world.conditions(name, kind="TopicUser")


def message(world: World, kind: str, name: str = "checkout") -> str:
    return world.message(kind, name, of="TopicUser")


def edit(world: World, **spec: Any) -> None:
    world.cluster.edit("checkout", lambda live: live["spec"].update(spec), kind="TopicUser")


def annotate(world: World, key: str, value: str) -> None:
    change = lambda live: live["metadata"].setdefault("annotations", {}).update({key: value})  # noqa: E731
    world.cluster.edit("checkout", change, spec=False, kind="TopicUser")


def secret(world: World) -> FakeSecret:
    return world.secrets.secrets["demo", "checkout-kafka"]


def acls(world: World, user: str) -> frozenset[AclRule]:
    """Return the ACLs of a principal."""
    return frozenset(world.access.acls.get(("outside", user), ()))


def works(world: World) -> bool:
    """Return whether a client with the files of the Secret can log in and write to the topic."""
    data = secret(world).data
    user = data["username"]
    return world.access.accepts("outside", user, data["password"]) and WRITE in acls(world, user)


async def created(world: World, *modifiers: gen.Modifier, **spec: Any) -> None:
    world.cluster.create(gen.user("checkout", *modifiers, **spec))
    await world.settle()


async def test_a_user_gets_a_secret_whose_credential_may_write(world: World) -> None:
    await created(world)
    assert works(world)
    assert acls(world, A) == {WRITE, DESCRIBE}
    assert conditions(world) == {
        "Ready": ("True", "AllReady"),
        "SpecValid": ("True", "Valid"),
        "CredentialsReady": ("True", "Issued"),
        "GrantsApplied": ("True", "Applied"),
        "QuotasApplied": ("True", "Applied"),
    }
    shown = status(world)
    assert (shown["profile"], shown["principals"], shown["topics"]) == ("outside", [f"User:{A}"], 1)
    assert (shown["credentials"]["secret"], shown["credentials"]["current"]) == ("checkout-kafka", "a")
    assert "next" not in shown["credentials"]
    assert secret(world).owner == "uid-user-demo-checkout"


async def test_the_password_is_in_the_secret_alone(world: World) -> None:
    await created(world)
    password = secret(world).data["password"]
    assert len(password) >= 32
    shown = json.dumps([*world.cluster.objects.values()]) + repr(world.cluster.events) + repr(world.faults.log)
    assert password not in shown
    assert password not in repr(world.operator._user_reconciler._memory)


async def test_a_rotation_moves_the_secret_and_keeps_the_credential_before(world: World) -> None:
    rotation = {"every": "30d", "overlap": "1d"}
    await created(world, authentication={"type": "ScramSha512", "rotation": rotation})
    before = secret(world).data["password"]
    world.clock.advance(30 * 86400)
    await world.settle()
    assert secret(world).data["username"] == B
    assert works(world)
    assert world.access.accepts("outside", A, before), (
        "clients have until the end of the overlap to read the Secret again"
    )
    assert acls(world, A) == acls(world, B)
    assert status(world)["principals"] == [f"User:{A}", f"User:{B}"]
    assert "works until" in message(world, "CredentialsReady")
    world.clock.advance(86400)
    await world.settle()
    assert ("outside", A) not in world.access.states
    assert works(world)
    assert "previousUntil" not in status(world)["credentials"]


async def test_the_old_principal_loses_its_acls_before_its_credential(world: World) -> None:
    await created(world, authentication={"rotation": {"every": "30d", "overlap": "1d"}})
    world.clock.advance(30 * 86400)
    await world.settle()
    world.clock.advance(86400)
    world.faults.log.clear()
    await world.settle()
    assert [line for line in world.faults.log if A in line] == [f"change ACLs {A}", f"remove credential {A}"]


async def test_a_rotation_is_followed_once_for_each_request(world: World) -> None:
    await created(world)
    annotate(world, names.ROTATE, "2026-03-01")
    await world.settle()
    assert secret(world).data["username"] == B
    await world.settle()
    assert world.secrets.calls["write"] == 2
    annotate(world, names.ROTATE, "again")
    await world.settle()
    assert world.secrets.calls["write"] == 2, "the credential before would end too early"
    world.clock.advance(86400)
    await world.settle()
    assert secret(world).data["username"] == A
    assert works(world)


async def test_a_shorter_overlap_ends_the_credential_before_at_once(world: World) -> None:
    await created(world, authentication={"rotation": {"overlap": "7d"}})
    annotate(world, names.ROTATE, "1")
    await world.settle()
    assert ("outside", A) in world.access.states
    edit(world, authentication={"rotation": {"overlap": "1s"}})
    await world.settle()
    assert ("outside", A) not in world.access.states


@pytest.mark.parametrize("loss", ["secret", "revision", "credential"])
async def test_a_lost_credential_is_made_again(world: World, loss: str) -> None:
    await created(world)
    if loss == "secret":
        del world.secrets.secrets["demo", "checkout-kafka"]
    elif loss == "revision":
        secret(world).revision, secret(world).ours["password"] = "edited", "edited"
    else:
        world.access.forget()
    world.clock.advance(3600)
    await world.settle()
    assert works(world)


async def test_a_change_of_the_connection_rotates(world: World) -> None:
    await created(world)
    config = gen.with_users(bootstrapServers="public.example:9094")
    world.start(config)
    await world.settle()
    assert secret(world).data["bootstrap.servers"] == "public.example:9094"
    assert secret(world).data["username"] == B


async def test_a_taken_secret_stays_as_it_is(world: World) -> None:
    world.secrets.secrets["demo", "checkout-kafka"] = FakeSecret("", {"key": "value"})
    await created(world)
    assert secret(world).data == {"key": "value"}
    assert conditions(world)["CredentialsReady"] == ("False", "SecretNameTaken")
    assert conditions(world)["Stalled"] == ("True", "SecretNameTaken")
    assert "credential" not in " ".join(world.faults.log), "no credential that no Secret has"
    del world.secrets.secrets["demo", "checkout-kafka"]
    world.clock.advance(3600)
    await world.settle()
    assert works(world)


async def test_a_denied_secret_is_reported_and_revocations_still_take_effect(world: World) -> None:
    await created(world)
    world.secrets.problem = AccessDeniedError("secrets is forbidden")
    annotate(world, names.ROTATE, "1")
    await world.settle(600)
    assert conditions(world)["CredentialsReady"] == ("False", "AccessDenied")
    edit(world, grants=[])
    await world.settle(600)
    assert acls(world, A) == acls(world, B) == frozenset()
    world.secrets.problem = None
    world.clock.advance(3600)
    await world.settle()
    assert conditions(world)["Ready"][0] == "True"


async def test_brokers_that_do_not_answer_are_reported_and_retried(world: World) -> None:
    world.access.problem["outside"] = UnavailableError("no broker answers")
    await created(world)
    assert conditions(world)["GrantsApplied"] == ("False", "BrokerUnreachable")
    assert conditions(world)["CredentialsReady"] == ("False", "BrokerUnreachable")
    assert conditions(world)["Reconciling"] == ("True", "WaitingForDependency")
    world.access.problem.clear()
    world.clock.advance(3600)
    await world.settle()
    assert works(world)


async def test_no_secret_is_written_before_the_acls_are_there(world: World) -> None:
    world.access.problem["change_acls"] = UnavailableError("no broker answers")
    await created(world)
    assert world.secrets.calls["write"] == 0
    world.access.problem.clear()
    world.clock.advance(3600)
    await world.settle()
    assert works(world)


async def test_the_secret_is_written_some_time_after_the_last_change_in_kafka(world: World) -> None:
    world.access.problem["change_acls"] = UnavailableError("no broker answers")
    world.cluster.create(gen.user())
    await world.operator_only()
    world.clock.advance(10)
    world.access.problem.clear()
    await world.operator_only()
    assert (len(acls(world, A)), world.secrets.calls["write"]) == (2, 0), "brokers learn of a change one after another"
    world.clock.advance(1)
    await world.operator_only()
    assert world.secrets.calls["write"] == 0
    world.clock.advance(1)
    await world.operator_only()
    assert works(world)


async def test_a_stream_of_new_topics_does_not_delay_a_secret_for_ever(world: World) -> None:
    world.cluster.create(gen.user(grants=[{"topics": [{"selector": {}}], "roles": ["Produce"]}]))
    for number in range(30):
        world.cluster.create(gen.topic(f"new{number}", profile="outside", table={"name": f"new{number}"}))
        await world.step()
        world.clock.advance(2)
    assert world.secrets.calls["write"] == 1


async def test_quotas_are_divided_while_two_credentials_work(world: World) -> None:
    await created(world, quotas={"producerBytesPerSecond": "10Mi", "requestPercent": 50})
    whole = {"producer_byte_rate": 10.0 * 2**20, "request_percentage": 50.0}
    assert world.access.states["outside", A].quotas == whole
    annotate(world, names.ROTATE, "1")
    await world.settle()
    half = {key: value / 2 for key, value in whole.items()}
    assert world.access.states["outside", A].quotas == world.access.states["outside", B].quotas == half
    world.clock.advance(86400)
    await world.settle()
    assert world.access.states["outside", B].quotas == whole
    edit(world, quotas={})
    await world.settle()
    assert world.access.states["outside", B].quotas == {}


async def test_other_quotas_and_foreign_acls_of_the_cluster_stay(world: World) -> None:
    world.access.put("outside", "admin", PrincipalState(frozenset({READ}), {}, True))
    world.access.put("outside", A, PrincipalState(frozenset({READ}), {"controller_mutation_rate": 5.0}))
    await created(world)
    assert world.access.states["outside", "admin"] == PrincipalState(frozenset({READ}), {}, True)
    assert world.access.states["outside", A].quotas == {"controller_mutation_rate": 5.0}
    assert acls(world, A) == {WRITE, DESCRIBE}


async def test_a_deletion_removes_acls_then_credentials_then_the_resource(world: World) -> None:
    await created(world, quotas={"requestPercent": 50})
    annotate(world, names.ROTATE, "1")
    await world.settle()
    world.faults.log.clear()
    world.cluster.remove("checkout", kind="TopicUser")
    await world.settle()
    assert world.faults.log == [
        *(
            line
            for user in (A, B)
            for line in (f"change ACLs {user}", f"change quotas {user}", f"remove credential {user}")
        ),
        "finalizers checkout []",
    ]
    assert world.access.states == {}


async def test_unreachable_brokers_block_a_deletion_until_it_is_forced(world: World) -> None:
    await created(world)
    world.access.problem["outside"] = UnavailableError("no broker answers")
    world.cluster.remove("checkout", kind="TopicUser")
    await world.settle(600)
    assert conditions(world)["DeletionBlocked"] == ("True", "BrokerUnreachable")
    assert "allow-forced-deletion=true" in message(world, "DeletionBlocked")
    annotate(world, names.FORCE_DELETION, "true")
    await world.settle()
    assert not world.cluster.all("TopicUser")
    assert [event[1] for event in world.cluster.events].count("DataLeftBehind") == 1


async def test_the_deletion_of_a_user_whose_profile_is_gone_waits(world: World) -> None:
    await created(world)
    document = gen.with_users().model_dump(by_alias=True)
    del document["profiles"]["outside"]
    world.start(type(world.config).model_validate(document))
    world.cluster.remove("checkout", kind="TopicUser")
    await world.settle(600)
    assert conditions(world)["DeletionBlocked"] == ("True", "ProfileNotFound")
    world.start(gen.with_users())
    await world.settle()
    assert world.access.states == {}
    assert not world.cluster.all("TopicUser")


async def test_a_paused_user_stays(world: World) -> None:
    await created(world, gen.annotated(names.PAUSE, "true"))
    assert world.access.states == {}
    assert conditions(world)["Paused"][0] == "True"


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        ({"profile": "nowhere"}, "ProfileNotFound", "nowhere is not in the operator's configuration"),
        ({"profile": "classic"}, "NotAllowed", "profile classic has no users"),
        ({"authentication": {"rotation": {"every": "1d", "overlap": "1d"}}}, "InvalidSpec", "not shorter than every"),
        ({"authentication": {"type": "Kerberos"}}, "InvalidSpec", "spec.authentication.type"),
    ],
)
async def test_a_spec_that_cannot_be_followed_changes_nothing(
    world: World, spec: dict[str, Any], reason: str, text: str
) -> None:
    await created(world, **spec)
    assert conditions(world)["SpecValid"] == conditions(world)["Ready"] == ("False", reason)
    assert text in message(world, "SpecValid")
    assert world.access.states == {}


async def test_a_namespace_that_may_have_no_users_is_told_the_way_out(world: World) -> None:
    world.start(gen.with_users(namespaces=["platform"]))
    await created(world)
    assert conditions(world)["SpecValid"] == ("False", "NotAllowed")
    assert "profiles.outside.users.namespaces" in message(world, "SpecValid")


async def test_users_must_be_enabled(world: World) -> None:
    document = gen.with_users().model_dump(by_alias=True)
    document["users"] = {"enabled": False}
    world.start(type(world.config).model_validate(document))
    await created(world)
    assert conditions(world)["SpecValid"] == ("False", "NotAllowed")
    assert "users.enabled" in message(world, "SpecValid")


@pytest.mark.parametrize(
    ("authentication", "principal"),
    [
        ({"type": "Certificate"}, "demo.checkout"),
        ({"type": "OAuth", "serviceAccount": "web"}, "system:serviceaccount:demo:web"),
    ],
)
async def test_other_types_have_one_principal_and_no_secret(
    world: World, authentication: dict[str, str], principal: str
) -> None:
    world.access.put("outside", principal, PrincipalState(credential=True))
    await created(world, authentication=authentication)
    assert acls(world, principal) == {WRITE, DESCRIBE}
    assert status(world)["principals"] == [f"User:{principal}"]
    assert "CredentialsReady" not in conditions(world)
    assert conditions(world)["Ready"] == ("True", "AllReady")
    assert world.secrets.secrets == {}
    world.cluster.remove("checkout", kind="TopicUser")
    await world.settle()
    assert world.access.states == {("outside", principal): PrincipalState(credential=True)}


async def test_the_older_of_two_users_of_a_service_account_has_it(world: World) -> None:
    oauth = {"type": "OAuth", "serviceAccount": "web"}
    await created(world, authentication=oauth)
    younger = gen.user("younger", authentication=oauth, grants=[])
    younger["metadata"]["creationTimestamp"] = "2026-03-02T10:00:00Z"
    world.cluster.create(younger)
    await world.settle()
    assert conditions(world, "younger")["SpecValid"] == ("False", "ResourceConflict")
    principal = ("outside", "system:serviceaccount:demo:web")
    assert world.access.states[principal].acls == {WRITE, DESCRIBE}
    world.cluster.remove("checkout", kind="TopicUser")
    await world.settle()
    assert conditions(world, "younger")["Ready"] == ("True", "AllReady")
    assert principal not in world.access.states, "the younger user has no grants"
