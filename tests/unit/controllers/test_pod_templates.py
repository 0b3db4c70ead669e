"""The pods that the operator and Spark make: their limits, and the images that they run."""

import pytest
import yaml

from firn.model.config import Config
from firn_controllers.fleet import kinds
from firn_controllers.ingestion_group import settings
from firn_controllers.ports import Manifest
from tests import gen
from tests.pods import OWNER, children, config_with_options, executor, violations

WITH_API = ("firn-ingest", "firn-maintain")
"""Accounts of the pods that use the Kubernetes API: drivers watch contracts, and runs hold leases."""
DIGEST = f"registry.example.com/firn@sha256:{'0a' * 32}"


def templates(config: Config) -> dict[str, Manifest]:
    """Return the specs of the pods that the operator makes, by kind and name of their owner."""
    return {
        f"{child['kind']} {child['metadata']['name']}": child["spec"]["template"]["spec"]
        for child in children(config)
        if child["kind"] in ("StatefulSet", "Job")
    }


TEMPLATES = templates(config_with_options())


def pinned() -> Config:
    """Return a configuration in which a digest names each image."""
    return config_with_options(images={key: {"image": f"{key}.{DIGEST}"} for key in ("spark", "kafka", "broker")})


def limits(pod: Manifest) -> tuple[str, str, str]:
    """Return request and limit of a pod's disk space, and the size of its scratch volume."""
    (resources,) = [container["resources"] for container in pod["containers"]]
    (volume,) = [volume for volume in pod["volumes"] if "emptyDir" in volume]
    sizes = [resources[key]["ephemeral-storage"] for key in ("requests", "limits")]
    return sizes[0], sizes[1], volume["emptyDir"]["sizeLimit"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_pod_is_restricted_and_limited(name: str) -> None:
    assert violations(TEMPLATES[name]) == []


@pytest.mark.parametrize("name", TEMPLATES)
def test_only_pods_that_use_the_kubernetes_api_mount_its_token(name: str) -> None:
    pod = TEMPLATES[name]
    assert (pod.get("automountServiceAccountToken") is not False) == (pod.get("serviceAccountName") in WITH_API)


def test_executors_are_restricted_and_limited_and_have_no_token() -> None:
    config = config_with_options()
    pod = executor(settings.group_settings(config, "default"))["spec"]
    assert violations(pod) == []
    assert pod["automountServiceAccountToken"] is False


def test_a_group_sets_the_disk_space_of_its_driver_and_executors() -> None:
    group = {"ephemeralStorage": "40Gi", "ephemeralStorageRequest": "2Gi", "executors": {"instances": 1}}
    config = config_with_options(groups={"default": group})
    contents = settings.group_settings(config, "default")
    assert limits(executor(contents)["spec"]) == ("2Gi", "40Gi", "40Gi")
    (driver,) = [pod for name, pod in templates(config).items() if name == "StatefulSet firn-ingest-default"]
    assert limits(driver) == ("2Gi", "40Gi", "40Gi")


def test_a_size_sets_the_disk_space_of_its_runs() -> None:
    size = {"ephemeralStorage": "300Gi", "ephemeralStorageRequest": "5Gi", "executors": {"instances": 1}}
    config = config_with_options(maintenance={"sizes": {"small": {}, "large": size}})
    (run,) = [pod for pod in templates(config).values() if pod.get("serviceAccountName") == "firn-maintain"]
    assert limits(run) == ("5Gi", "300Gi", "300Gi")


@pytest.mark.parametrize("profile", [{}, gen.diskless()], ids=["Kafka", "Diskless"])
@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"limits": {"memory": "4Gi"}}, None),
        ({"requests": {"ephemeral-storage": "3Gi"}, "limits": {"ephemeral-storage": "9Gi"}}, ("3Gi", "9Gi", "9Gi")),
    ],
    ids=["default", "own"],
)
def test_the_resources_of_a_profile_set_the_disk_space_of_its_brokers(
    profile: dict[str, object], resources: dict[str, object], expected: tuple[str, str, str] | None
) -> None:
    config = gen.config(profiles={"classic": {**profile, "resources": resources}})
    stateful_set = kinds.stateful_set(kinds.managed_fleet(config, "classic", OWNER, None), 3)
    pod = stateful_set["spec"]["template"]["spec"]
    found = limits(pod)
    assert found[1] == found[2]
    assert expected in (None, found)
    if expected is None:
        assert pod["containers"][0]["resources"]["limits"]["memory"] == "4Gi"


def test_a_limit_of_disk_space_without_a_request_stays_alone() -> None:
    """Kubernetes then requests the limit. A default request could exceed it, and the API server would reject the pod."""
    config = gen.config(profiles={"classic": {"resources": {"limits": {"ephemeral-storage": "1Mi"}}}})
    stateful_set = kinds.stateful_set(kinds.managed_fleet(config, "classic", OWNER, None), 3)
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {"ephemeral-storage": "1Mi"}}


@pytest.mark.parametrize("place", ["groups", "sizes"])
def test_a_request_above_the_limit_is_rejected(place: str) -> None:
    values = {"ephemeralStorage": "1Gi", "ephemeralStorageRequest": "2Gi"}
    changes = {"groups": {"default": values}} if place == "groups" else {"maintenance": {"sizes": {"small": values}}}
    with pytest.raises(ValueError, match="ephemeralStorageRequest 2Gi is more than ephemeralStorage 1Gi"):
        gen.config(**changes)


def test_digests_reach_every_pod_that_the_operator_makes() -> None:
    config = pinned()
    images = {container["image"] for pod in templates(config).values() for container in pod["containers"]}
    assert images == {f"{key}.{DIGEST}" for key in ("spark", "kafka", "broker")}
    group = settings.group_settings(config, "default")
    assert group.executor_image == f"spark.{DIGEST}"
    runs = [
        yaml.safe_load(child["data"]["run.json"]) for child in children(config) if "run.json" in child.get("data", {})
    ]
    assert [run["executor_image"] for run in runs] == [f"spark.{DIGEST}"]


@pytest.mark.parametrize("image", ["", "a b", "firn-spark@sha256:12", "firn-spark@latest", f"a@sha256:{'0a' * 32}x"])
def test_a_malformed_reference_of_an_image_is_rejected(image: str) -> None:
    with pytest.raises(ValueError, match="image"):
        gen.config(groups={"default": {"image": {"image": image}}})
