"""Port `CertificateSecrets`: the fake and the adapter pass the same suite."""

import base64
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

from firn.model.errors import ConflictError
from firn_controllers.ports import CertificateSecret, CertificateSecrets
from firn_operator.adapters.kube.api_client import Api, RateLimit, path
from firn_operator.adapters.kube.certificate_secrets import KubeCertificateSecrets
from tests.apiserver import DEMO, ApiServer
from tests.fakes.users.certificate_secrets import FakeCertificateSecrets

LEAF = {"tls.crt": "certificate", "tls.key": "key", "ca.crt": "authority"}
_numbers = itertools.count()


@dataclass(frozen=True)
class Subject:
    """The port of one process and of another, and the functions of other clients."""

    secrets: CertificateSecrets
    other: CertificateSecrets
    put: Callable[[str, dict[str, str]], Any]
    """Creates a Secret as a client that is no signer."""
    delete: Callable[[str], Any]

    async def live(self, name: str) -> CertificateSecret:
        found = await self.secrets.read(name)
        assert found is not None
        return found


@pytest_asyncio.fixture(params=["fake", "kubernetes"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "fake":
        fake = FakeCertificateSecrets()
        yield Subject(
            fake, fake, lambda name, data: fake.put(name, data, own=False), lambda name: fake.secrets.pop(name)
        )
        return
    server: ApiServer = request.getfixturevalue("api_server")
    configuration = Configuration()
    await kube_config.load_kube_config(str(server.kubeconfig), client_configuration=configuration)
    api = Api(configuration, RateLimit(1000, 1000))

    def put(name: str, data: dict[str, str]) -> None:
        values = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
        server.call("POST", path("v1", "Secret", DEMO), {"metadata": {"name": name}, "data": values})

    yield Subject(
        KubeCertificateSecrets(api, DEMO, "a"),
        KubeCertificateSecrets(api, DEMO, "b"),
        put,
        lambda name: server.call("DELETE", path("v1", "Secret", DEMO, name)),
    )
    await api.close()


@pytest.fixture
def name() -> str:
    return f"firn-broker-p{next(_numbers)}-tls"


async def test_a_secret_is_created_read_and_updated(subject: Subject, name: str) -> None:
    assert await subject.secrets.read(name) is None
    await subject.secrets.create(name, "p", LEAF)
    created = await subject.live(name)
    assert (created.data, created.own) == (LEAF, True)
    await subject.secrets.update(name, {"tls.crt": "another", "ca.crt": None}, created.version)
    assert (await subject.live(name)).data == {"tls.crt": "another", "tls.key": "key"}


async def test_two_processes_do_not_replace_what_the_other_has_created(subject: Subject, name: str) -> None:
    await subject.secrets.create(name, "p", LEAF)
    with pytest.raises(ConflictError):
        await subject.other.create(name, "p", {**LEAF, "tls.crt": "another"})
    assert (await subject.live(name)).data == LEAF


async def test_an_update_needs_the_version_that_was_read(subject: Subject, name: str) -> None:
    await subject.secrets.create(name, "p", LEAF)
    before = await subject.live(name)
    await subject.other.update(name, {"tls.crt": "first"}, before.version)
    with pytest.raises(ConflictError):
        await subject.secrets.update(name, {"tls.crt": "second"}, before.version)
    assert (await subject.live(name)).data["tls.crt"] == "first"


async def test_a_deleted_secret_is_not_created_by_an_update(subject: Subject, name: str) -> None:
    await subject.secrets.create(name, "p", LEAF)
    before = await subject.live(name)
    subject.delete(name)
    with pytest.raises(ConflictError):
        await subject.secrets.update(name, {"tls.crt": "second"}, before.version)
    assert await subject.secrets.read(name) is None


async def test_a_secret_of_another_client_is_not_ours(subject: Subject, name: str) -> None:
    subject.put(name, LEAF)
    assert not (await subject.live(name)).own
    with pytest.raises(ConflictError):
        await subject.secrets.create(name, "p", {**LEAF, "tls.crt": "another"})
    assert (await subject.live(name)).data == LEAF
