"""Port `ClientSecrets`: the fake and the adapter pass the same suite. The adapter has only the rights to create and to patch."""

import base64
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

from firn.model.errors import ConflictError
from firn_controllers.ports import ClientSecret, ClientSecrets, UserRef
from firn_operator.adapters.kube.api_client import Api, RateLimit, path
from firn_operator.adapters.kube.client_secrets import KubeClientSecrets
from tests.apiserver import DEMO, ApiServer
from tests.fakes.users.client_secrets import FakeClientSecrets, FakeSecret

OWNER = UserRef("checkout", "3f0c1d0e-6f2b-4d5e-9c64-0123456789ab")
STRANGER = UserRef("checkout", "00000000-6f2b-4d5e-9c64-0123456789ab")
FIRST = {"username": "demo.checkout.a", "password": "first-password", "ca.crt": "-----BEGIN CERTIFICATE-----\n"}
SECOND = {"username": "demo.checkout.b", "password": "second-password"}
_numbers = itertools.count()


@dataclass(frozen=True)
class Subject:
    """A port, and the functions of other clients by the name of the Secret."""

    secrets: ClientSecrets
    create: Callable[[str], Any]
    """Creates a Secret without an owner."""
    add: Callable[[str, str, str], Any]
    """Adds a key with a value."""
    delete: Callable[[str], Any]
    content: Callable[[str], dict[str, str]]

    async def write(self, name: str, data: dict[str, str], uid: str | None = None, owner: UserRef = OWNER) -> str:
        return await self.secrets.write(DEMO, name, owner, data, f"revision of {data['username']}", uid)

    async def look(self, name: str, owner: UserRef = OWNER) -> ClientSecret | None:
        return await self.secrets.look(DEMO, name, owner)


def _place(name: str = "") -> str:
    return path("v1", "Secret", DEMO, name)


@pytest_asyncio.fixture(params=["fake", "kubernetes"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "fake":
        fake = FakeClientSecrets()
        yield Subject(
            fake,
            lambda name: fake.secrets.setdefault((DEMO, name), FakeSecret("")),
            lambda name, key, value: fake.secrets[DEMO, name].others.update({key: value}),
            lambda name: fake.secrets.pop((DEMO, name)),
            lambda name: fake.secrets[DEMO, name].data,
        )
        return
    server: ApiServer = request.getfixturevalue("api_server")
    configuration = Configuration()
    await kube_config.load_kube_config(str(server.kubeconfig), client_configuration=configuration)
    api = Api(configuration, RateLimit(1000, 1000))

    def content(name: str) -> dict[str, str]:
        found = server.call("GET", _place(name)).get("data") or {}
        return {key: base64.b64decode(value).decode() for key, value in found.items()}

    def add(name: str, key: str, value: str) -> None:
        body = {"stringData": {key: value}}
        server.call("PATCH", f"{_place(name)}?fieldManager=kubectl-edit", body, "application/merge-patch+json")

    yield Subject(
        KubeClientSecrets(api),
        lambda name: server.call("POST", _place(), {"metadata": {"name": name}, "stringData": {"own": "1"}}),
        add,
        lambda name: server.call("DELETE", _place(name)),
        content,
    )
    await api.close()


@pytest.fixture
def name() -> str:
    return f"checkout-{next(_numbers)}"


async def test_a_secret_is_created_and_updated(subject: Subject, name: str) -> None:
    uid = await subject.write(name, FIRST)
    assert subject.content(name) == FIRST
    assert await subject.write(name, SECOND, uid) == uid
    assert subject.content(name) == SECOND
    assert await subject.write(name, FIRST, uid) == uid
    assert subject.content(name) == FIRST
    assert await subject.write(name, SECOND, uid) == uid
    assert subject.content(name) == SECOND


async def test_a_caller_that_forgot_the_uid_finds_its_secret(subject: Subject, name: str) -> None:
    uid = await subject.write(name, FIRST)
    assert await subject.write(name, SECOND) == uid
    assert subject.content(name) == SECOND


async def test_a_secret_of_another_client_stays(subject: Subject, name: str) -> None:
    subject.create(name)
    before = subject.content(name)
    for uid in (None, str(uuid4())):
        with pytest.raises(ConflictError, match=f"Secret demo/{name} exists.*checkout does not own it"):
            await subject.write(name, FIRST, uid)
    assert subject.content(name) == before


async def test_a_secret_of_an_earlier_user_of_the_name_stays(subject: Subject, name: str) -> None:
    await subject.write(name, FIRST, owner=STRANGER)
    with pytest.raises(ConflictError):
        await subject.write(name, SECOND)
    assert subject.content(name) == FIRST


async def test_a_deleted_secret_is_created_again(subject: Subject, name: str) -> None:
    uid = await subject.write(name, FIRST)
    subject.delete(name)
    again = await subject.write(name, SECOND, uid)
    assert again != uid
    assert subject.content(name) == SECOND


async def test_a_replaced_secret_stays(subject: Subject, name: str) -> None:
    uid = await subject.write(name, FIRST)
    subject.delete(name)
    subject.create(name)
    before = subject.content(name)
    with pytest.raises(ConflictError):
        await subject.write(name, SECOND, uid)
    assert subject.content(name) == before


async def test_the_metadata_say_which_credential_a_secret_has(subject: Subject, name: str) -> None:
    assert await subject.look(name) is None
    assert await subject.look(name) is None, "looking creates nothing"
    uid = await subject.write(name, FIRST)
    assert await subject.look(name) == ClientSecret(uid, "revision of demo.checkout.a")
    await subject.write(name, SECOND, uid)
    assert await subject.look(name) == ClientSecret(uid, "revision of demo.checkout.b")
    assert subject.content(name) == SECOND
    subject.delete(name)
    assert await subject.look(name) is None


async def test_only_the_owner_sees_the_metadata(subject: Subject, name: str) -> None:
    subject.create(name)
    with pytest.raises(ConflictError, match="checkout does not own it"):
        await subject.look(name)
    await subject.write(other := f"{name}-owned", FIRST, owner=STRANGER)
    with pytest.raises(ConflictError, match="checkout does not own it"):
        await subject.look(other)


async def test_keys_of_other_clients_stay_and_our_values_are_restored(subject: Subject, name: str) -> None:
    uid = await subject.write(name, FIRST)
    subject.add(name, "note", "of the team")
    assert await subject.write(name, SECOND, uid) == uid
    assert subject.content(name) == {**SECOND, "note": "of the team"}


# ---- the API server


@pytest.fixture
def server(api_server: ApiServer) -> ApiServer:
    return api_server


@pytest.mark.parametrize("subject", ["kubernetes"], indirect=True)
async def test_the_user_owns_its_secret(subject: Subject, server: ApiServer, name: str) -> None:
    await subject.write(name, FIRST)
    live = server.call("GET", _place(name))
    assert live["type"] == "Opaque"
    (reference,) = live["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["name"], reference["uid"]) == ("TopicUser", OWNER.name, OWNER.uid)


@pytest.mark.parametrize("subject", ["kubernetes"], indirect=True)
async def test_an_immutable_secret_of_another_client_stays(subject: Subject, server: ApiServer, name: str) -> None:
    server.call("POST", _place(), {"metadata": {"name": name}, "immutable": True, "stringData": {"own": "1"}})
    before = server.call("GET", _place(name))
    with pytest.raises(ConflictError, match="does not own it"):
        await subject.write(name, FIRST)
    assert server.call("GET", _place(name)) == before


@pytest.mark.parametrize("subject", ["kubernetes"], indirect=True)
async def test_no_request_reads_a_secret_and_no_answer_has_its_content(
    subject: Subject, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods, answers = [], []
    real = Api.call

    async def call(api: Api, method: str, *args: Any, **kwargs: Any) -> Any:
        methods.append(method)
        answers.append(await real(api, method, *args, **kwargs))
        return answers[-1]

    monkeypatch.setattr(Api, "call", call)
    await subject.look(name)
    uid = await subject.write(name, FIRST)
    await subject.write(name, SECOND)
    await subject.write(name, FIRST, uid)
    await subject.look(name)
    assert set(methods) == {"POST", "PATCH"}
    assert {answer["kind"] for answer in answers} == {"PartialObjectMetadata"}
    assert not [answer for answer in answers if "data" in answer]
