"""Pods connect to what they need, and to nothing else. The local cluster enforces the NetworkPolicies of the release."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from hack.quickstart import SYSTEM, await_until, kubectl
from tests.e2e import intrusions
from tests.e2e.intrusions import attempts

CLASSIC, DISKLESS = "firn-broker-classic-0", "firn-broker-diskless-0"
DRIVER, POSTGRES, S3 = "firn-ingest-default-0", "firn-postgres-0", "firn-s3-0"


@pytest.fixture
def addresses(client: str) -> dict[str, str]:
    """Return the address of each pod of the release, and of the client in another namespace."""
    return intrusions.addresses(client)


def await_connected(addresses: dict[str, str], namespace: str, pod: str, *targets: tuple[str, int]) -> None:
    """Wait until a pod connects to all targets: on a busy machine, a connection may take longer than one attempt."""
    wanted = {f"{name}:{port}": "connected" for name, port in targets}
    await_until(
        f"{pod} connects to {wanted}",
        lambda: attempts(addresses, namespace, pod, *targets) == wanted,
        timeout=60,
    )


def test_other_namespaces_reach_the_listeners_of_clients_only(addresses: dict[str, str], client: str) -> None:
    closed = [
        *((CLASSIC, 9098), (DISKLESS, 9090), (DISKLESS, 9095), (DRIVER, 8080), (DRIVER, 7078), (DRIVER, 7079)),
        *((POSTGRES, 5432), (S3, 7070), ("operator", 9090), ("operator", 8080)),
    ]
    answers = attempts(addresses, client, "client", *closed)
    assert answers == {f"{name}:{port}": "denied" for name, port in closed}
    await_connected(addresses, client, "client", (CLASSIC, 9092), (CLASSIC, 9096), (DISKLESS, 9092))

    # The peers of `networkPolicy.metricsFrom` reach metrics, and nothing else.
    kubectl("label", "namespace", client, "firn.dev/e2e=monitoring")
    await_connected(addresses, client, "client", ("operator", 9090), (DRIVER, 8080), (DISKLESS, 9090))
    assert set(attempts(addresses, client, "client", (POSTGRES, 5432), (CLASSIC, 9098)).values()) == {"denied"}
    kubectl("label", "namespace", client, "firn.dev/e2e-")
    await_until(
        "metrics are closed again",
        lambda: attempts(addresses, client, "client", ("operator", 9090)) == {"operator:9090": "denied"},
        timeout=60,
    )


def test_pods_of_the_release_reach_what_they_need_only(addresses: dict[str, str], client: str) -> None:
    needed = {
        "deploy/firn-operator": [(POSTGRES, 5432), (S3, 7070), (DRIVER, 8080), (CLASSIC, 9096), (DISKLESS, 9092)],
        DRIVER: [(POSTGRES, 5432), (S3, 7070), (CLASSIC, 9096), (DISKLESS, 9092), (DISKLESS, 9095)],
        DISKLESS: [(POSTGRES, 5432), (S3, 7070)],
        CLASSIC: [(CLASSIC, 9098)],
    }
    with ThreadPoolExecutor(len(needed)) as pool:
        list(pool.map(lambda pod: await_connected(addresses, SYSTEM, pod, *needed[pod]), needed))
    # Nothing listens at the client's port, so an allowed connection is refused.
    denied = {
        "deploy/firn-operator": [(CLASSIC, 9098), ("client", 8123)],
        DRIVER: [(CLASSIC, 9098), ("client", 8123)],
        DISKLESS: [(CLASSIC, 9092), ("client", 8123)],
        CLASSIC: [(POSTGRES, 5432), ("client", 8123)],
        POSTGRES: [(S3, 7070), (CLASSIC, 9092), ("client", 8123)],
        S3: [(POSTGRES, 5432), ("client", 8123)],
    }
    with ThreadPoolExecutor(len(denied)) as pool:
        found = pool.map(lambda pod: attempts(addresses, SYSTEM, pod, *denied[pod]), denied)
        answers = dict(zip(denied, found, strict=True))
    assert answers == {pod: {f"{name}:{port}": "denied" for name, port in denied[pod]} for pod in denied}
