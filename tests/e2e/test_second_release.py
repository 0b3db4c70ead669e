"""A release in its own namespace, with rights to that namespace only and without CRDs of its own, is installed,
upgraded, uninstalled and reinstalled."""

import base64
import json
from collections.abc import Iterator

import pytest

from hack import quickstart
from hack.quickstart import Manifest, apply, await_until, kubectl, run

NAMESPACE = "e2e-second"
OURS = "deployments,statefulsets,services,configmaps,poddisruptionbudgets,pods,jobs,serviceaccounts,roles,rolebindings"
KEPT = "firn-broker-classic-quorum"
"""ConfigMap with the controllers of the volumes, which stays with them."""
OF_EVERY_NAMESPACE = {"kube-root-ca.crt", "default"}


@pytest.fixture
def second(crds: None) -> Iterator[None]:
    """Create an empty namespace under PodSecurity ``restricted``, and delete it afterwards."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    yield
    run("helm", "uninstall", "firn", "--namespace", NAMESPACE, "--ignore-not-found", "--wait", "--timeout", "2m")
    kubectl("delete", "namespace", NAMESPACE, "--timeout=120s")


def install() -> None:
    arguments = ["--set", "crds.enabled=false", "--set-json", f'watchNamespaces=["{NAMESPACE}"]']
    for key, value in quickstart.image_values().items():
        arguments += ["--set", f"{key}={value}"]
    chart = str(quickstart.ROOT / "charts" / "firn")
    run(
        "helm", "upgrade", "--install", "firn", chart, "--namespace", NAMESPACE, *arguments, "--wait", "--timeout", "5m"
    )
    await_until("the broker is ready", broker_is_ready, timeout=180)


def broker_is_ready() -> bool:
    stateful_set = quickstart.get("statefulset", "firn-broker-classic", NAMESPACE)
    return stateful_set is not None and stateful_set["status"].get("readyReplicas") == 1


def objects(kinds: str) -> list[Manifest]:
    items: list[Manifest] = json.loads(kubectl("-n", NAMESPACE, "get", kinds, "-o", "json"))["items"]
    return [item for item in items if item["metadata"]["name"] not in OF_EVERY_NAMESPACE]


def uids(kinds: str) -> dict[str, str]:
    return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["uid"] for item in objects(kinds)}


def await_only_data() -> None:
    """Wait until Kubernetes has deleted all children. Kafka has 120 s to stop, and needs seconds as a rule."""
    kept = {f"ConfigMap/{KEPT}"}
    try:
        await_until("only the data is left", lambda: set(uids(OURS)) == kept, timeout=300)
    except TimeoutError:
        assert set(uids(OURS)) == kept
        raise


def passwords() -> dict[str, Manifest]:
    return {
        item["metadata"]["name"]: {"uid": item["metadata"]["uid"], "data": item["data"]}
        for item in objects("secrets")
        if item["type"] == "Opaque"
    }


def test_a_second_release_keeps_the_data_of_the_first(second: None) -> None:
    crd = kubectl("get", "crd", "icebergtopics.firn.dev", "-o", "jsonpath={.metadata.uid}")

    install()
    pods, secrets, claims = uids("pods"), passwords(), uids("persistentvolumeclaims")
    assert {"Pod/firn-postgres-0", "Pod/firn-s3-0", "Pod/firn-broker-classic-0"} < set(pods)
    authorities = {"firn-signer-classic", "firn-postgres-signer", "firn-s3-signer"}
    assert set(secrets) == {"firn-postgres", "firn-s3", *authorities}
    generated = [secrets[name]["data"].values() for name in ("firn-postgres", "firn-s3")]
    assert all(len(base64.b64decode(value)) == 32 for values in generated for value in values)
    assert not any("quickstart-secrets" in name for name in uids("jobs,serviceaccounts,roles,rolebindings"))
    assert sql("show ssl") == "on"
    assert "no pg_hba.conf entry" in sql("show ssl", sslmode="disable")

    install()
    assert uids("pods") == pods
    assert passwords() == secrets

    run("helm", "uninstall", "firn", "--namespace", NAMESPACE, "--wait", "--timeout", "2m")
    await_only_data()
    assert passwords() == secrets
    assert uids("persistentvolumeclaims") == claims
    assert kubectl("get", "crd", "icebergtopics.firn.dev", "-o", "jsonpath={.metadata.uid}") == crd


@pytest.mark.long
def test_a_reinstalled_release_reuses_volumes_and_passwords(second: None) -> None:
    install()
    write = "create table kept (value int); insert into kept values (7)"
    sql(write)
    claims = uids("persistentvolumeclaims")
    run("helm", "uninstall", "firn", "--namespace", NAMESPACE, "--wait", "--timeout", "2m")
    await_only_data()

    install()
    assert uids("persistentvolumeclaims") == claims
    assert sql("select value from kept") == "7"


def sql(statement: str, sslmode: str = "require") -> str:
    """Return the answer of PostgreSQL over the network, with the generated password, or its error."""
    psql = f'psql "host=firn-postgres user=firn dbname=firn sslmode={sslmode}" -tAc "{statement}"'
    command = f'PGPASSWORD="$(cat "$POSTGRES_PASSWORD_FILE")" {psql} 2>&1 || true'
    return kubectl("-n", NAMESPACE, "exec", "firn-postgres-0", "--", "sh", "-c", command).strip()
