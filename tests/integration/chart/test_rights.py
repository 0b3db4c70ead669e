"""Rights of the chart's service accounts, checked with a real API server."""

from datetime import timedelta

import pytest
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

from firn.model.clock import SystemClock
from firn.model.errors import AccessDeniedError
from firn_controllers.ports import ClientSecret, UserRef
from firn_controllers.trust.renewal import Terms
from firn_operator.adapters.kube.api_client import Api, RateLimit
from firn_operator.adapters.kube.certificate_secrets import KubeCertificateSecrets
from firn_operator.adapters.kube.client_secrets import KubeClientSecrets
from firn_operator.signer.keeper import Keeper
from tests.apiserver import ApiServer


def allowed(
    api: ApiServer, account: str, verb: str, resource: str, namespace: str = "", group: str = "", name: str = ""
) -> bool:
    """Return True if the API server allows this to the service account of firn-system."""
    plain, _, subresource = resource.partition("/")
    attributes = {"verb": verb, "resource": plain, "subresource": subresource, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:firn-system:{account}",
            "groups": ["system:serviceaccounts", "system:serviceaccounts:firn-system", "system:authenticated"],
            "resourceAttributes": {**attributes, "group": group, "name": name},
        },
    }
    answer = api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "group"),
    [
        ("list", "icebergtopics", "watched", "firn.dev"),
        ("watch", "icebergtopics", "watched", "firn.dev"),
        ("patch", "icebergtopics", "watched", "firn.dev"),
        ("patch", "icebergtopics/status", "watched", "firn.dev"),
        ("create", "icebergtopics", "watched", "firn.dev"),
        ("delete", "icebergtopics", "watched", "firn.dev"),
        ("watch", "topicsets", "watched", "firn.dev"),
        ("patch", "topicsets", "watched", "firn.dev"),
        ("patch", "topicsets/status", "watched", "firn.dev"),
        ("watch", "topicusers", "watched", "firn.dev"),
        ("patch", "topicusers", "watched", "firn.dev"),
        ("patch", "topicusers/status", "watched", "firn.dev"),
        ("watch", "topicgrants", "watched", "firn.dev"),
        ("watch", "compactionpolicies", "watched", "firn.dev"),
        ("get", "retentionpolicies", "watched", "firn.dev"),
        ("create", "secrets", "watched", ""),
        ("patch", "secrets", "watched", ""),
        ("watch", "deadletterreplays", "watched", "firn.dev"),
        ("delete", "deadletterreplays", "watched", "firn.dev"),
        ("patch", "deadletterreplays/status", "watched", "firn.dev"),
        ("create", "events", "watched", ""),
        ("create", "leases", "watched", "coordination.k8s.io"),
        ("patch", "events", "firn-system", ""),
        ("patch", "statefulsets", "firn-system", "apps"),
        ("delete", "statefulsets", "firn-system", "apps"),
        ("create", "services", "firn-system", ""),
        ("delete", "services", "firn-system", ""),
        ("delete", "configmaps", "firn-system", ""),
        ("create", "poddisruptionbudgets", "firn-system", "policy"),
        ("create", "jobs", "firn-system", "batch"),
        ("watch", "jobs", "firn-system", "batch"),
        ("delete", "jobs", "firn-system", "batch"),
        ("watch", "pods", "firn-system", ""),
        ("watch", "configmaps", "firn-system", ""),
        ("watch", "services", "firn-system", ""),
        ("watch", "poddisruptionbudgets", "firn-system", "policy"),
    ],
)
def test_the_operator_has_the_rights_it_needs(
    api: ApiServer, verb: str, resource: str, namespace: str, group: str
) -> None:
    assert allowed(api, "firn-operator", verb, resource, namespace, group)


@pytest.mark.parametrize(
    ("verb", "resource", "group"),
    [
        ("update", "configmaps/finalizers", ""),
        ("get", "pods", ""),
        ("delete", "pods", ""),
        ("get", "statefulsets", "apps"),
        ("delete", "poddisruptionbudgets", "policy"),
    ],
)
def test_the_operator_has_no_other_rights(api: ApiServer, verb: str, resource: str, group: str) -> None:
    assert not allowed(api, "firn-operator", verb, resource, "firn-system", group)


@pytest.mark.parametrize("account", ["firn-operator", "firn-ingest", "firn-signer", "spark"])
@pytest.mark.parametrize(
    ("verb", "resource", "namespace", "group"),
    [
        ("get", "secrets", "firn-system", ""),
        ("get", "secrets", "watched", ""),
        ("list", "secrets", "watched", ""),
        ("watch", "secrets", "watched", ""),
        ("delete", "secrets", "watched", ""),
        ("patch", "secrets", "elsewhere", ""),
        ("list", "secrets", "", ""),
        ("create", "secrets", "firn-system", ""),
        ("create", "pods/exec", "firn-system", ""),
        ("create", "serviceaccounts/token", "firn-system", ""),
        ("patch", "roles", "firn-system", "rbac.authorization.k8s.io"),
        ("list", "icebergtopics", "elsewhere", "firn.dev"),
        ("list", "icebergtopics", "", "firn.dev"),
        ("create", "configmaps", "watched", ""),
        ("patch", "statefulsets", "watched", "apps"),
        ("delete", "persistentvolumeclaims", "elsewhere", ""),
    ],
)
def test_no_account_has_forbidden_rights(
    api: ApiServer, account: str, verb: str, resource: str, namespace: str, group: str
) -> None:
    assert not allowed(api, account, verb, resource, namespace, group)


def test_the_operator_may_read_only_its_own_crds(api: ApiServer) -> None:
    group = "apiextensions.k8s.io"
    crds = "customresourcedefinitions"
    assert allowed(api, "firn-operator", "get", crds, group=group, name="icebergtopics.firn.dev")
    assert not allowed(api, "firn-operator", "get", crds, group=group, name="others.example.com")
    assert not allowed(api, "firn-operator", "patch", crds, group=group, name="icebergtopics.firn.dev")


@pytest.mark.parametrize(("account", "may"), [("firn-ingest", False), ("spark", True)])
@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("create", "pods"),
        ("watch", "pods"),
        ("deletecollection", "pods"),
    ],
)
def test_only_drivers_with_executors_may_create_pods(
    api: ApiServer, account: str, may: bool, verb: str, resource: str
) -> None:
    assert allowed(api, account, verb, resource, "firn-system") is may


@pytest.mark.parametrize("account", ["firn-ingest", "spark"])
@pytest.mark.parametrize("resource", ["configmaps", "services", "persistentvolumeclaims"])
@pytest.mark.parametrize("verb", ["create", "delete", "deletecollection"])
def test_drivers_may_create_and_delete_nothing_else(api: ApiServer, account: str, verb: str, resource: str) -> None:
    assert not allowed(api, account, verb, resource, "firn-system")


@pytest.mark.parametrize("account", ["firn-ingest", "spark"])
def test_drivers_may_watch_contracts(api: ApiServer, account: str) -> None:
    assert allowed(api, account, "watch", "configmaps", "firn-system")
    assert not allowed(api, account, "get", "configmaps", "firn-system")
    assert not allowed(api, account, "watch", "configmaps", "watched")


async def client_of(api: ApiServer, account: str) -> Api:
    """Return a client with the rights of a ServiceAccount of firn-system."""
    place = f"/api/v1/namespaces/firn-system/serviceaccounts/{account}/token"
    token = api.call("POST", place, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    configuration = Configuration()
    await kube_config.load_kube_config(str(api.kubeconfig), client_configuration=configuration)
    configuration.cert_file = configuration.key_file = None
    configuration.api_key = {"BearerToken": f"Bearer {token}"}
    return Api(configuration, RateLimit(1000, 1000))


async def test_the_signer_may_write_and_read_its_own_secrets_and_no_others(api: ApiServer) -> None:
    client = await client_of(api, "firn-signer")
    secrets = KubeCertificateSecrets(client, "firn-system", "a")
    keeper = Keeper(secrets, SystemClock())
    terms = Terms(("kafka.example.com",), timedelta(days=90), timedelta(days=30), timedelta(days=3650))
    try:
        await keeper.keep("waves", terms)
        leaf = await secrets.read("firn-broker-waves-tls")
        assert leaf is not None
        await secrets.update("firn-broker-waves-tls", {"tls.crt": "damaged"}, leaf.version)
        await keeper.keep("waves", terms)
        repaired = await secrets.read("firn-broker-waves-tls")
        assert repaired is not None
        assert repaired.data["tls.crt"] not in ("damaged", leaf.data["tls.crt"])
        for refused in ("firn-broker-others-tls", "firn-signer-others", "firn-postgres"):
            with pytest.raises(AccessDeniedError):
                await secrets.read(refused)
            with pytest.raises(AccessDeniedError):
                await secrets.create(refused, "waves", {"password": "guessed"})
        body = {"metadata": {"name": "firn-broker-waves-tls"}}
        with pytest.raises(AccessDeniedError):
            await client.call("POST", "/api/v1/namespaces/firn-system/secrets", body=body)
        with pytest.raises(AccessDeniedError):
            await client.call("GET", "/api/v1/namespaces/firn-system/secrets")
    finally:
        await client.close()
        for name in ("firn-broker-waves-tls", "firn-signer-waves"):
            api.call("DELETE", f"/api/v1/namespaces/firn-system/secrets/{name}")


@pytest.mark.parametrize("verb", ["list", "watch", "delete", "update"])
@pytest.mark.parametrize("name", ["firn-broker-waves-tls", "firn-signer-waves"])
def test_the_signer_may_do_no_more_with_its_secrets(api: ApiServer, verb: str, name: str) -> None:
    assert not allowed(api, "firn-signer", verb, "secrets", "firn-system", name=name)


async def test_these_rights_are_enough_to_write_the_secrets_of_users_and_to_find_them_again(api: ApiServer) -> None:
    client = await client_of(api, "firn-operator")
    secrets, owner = KubeClientSecrets(client), UserRef("checkout", "3f0c1d0e-6f2b-4d5e-9c64-0123456789ab")
    try:
        assert await secrets.look("watched", "checkout-kafka", owner) is None
        uid = await secrets.write("watched", "checkout-kafka", owner, {"password": "first"}, "r1", None)
        assert await secrets.write("watched", "checkout-kafka", owner, {"password": "second"}, "r2", uid) == uid
        assert await secrets.write("watched", "checkout-kafka", owner, {"password": "third"}, "r3", None) == uid
        assert await secrets.look("watched", "checkout-kafka", owner) == ClientSecret(uid, "r3")
        with pytest.raises(AccessDeniedError):
            await secrets.write("elsewhere", "checkout-kafka", owner, {"password": "first"}, "r1", None)
        with pytest.raises(AccessDeniedError):
            await client.call("GET", "/api/v1/namespaces/watched/secrets/checkout-kafka")
    finally:
        await client.close()
        api.call("DELETE", "/api/v1/namespaces/watched/secrets/checkout-kafka")
