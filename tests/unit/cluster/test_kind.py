"""The configuration that the kind provider renders. Running kind needs a container engine, which CI does not have."""

import json
from pathlib import Path

import pytest

from hack.localcluster import provider
from hack.localcluster.artifacts.tools import KUBERNETES
from hack.localcluster.kind import Kind
from hack.localcluster.layout import NODE_PORTS, Layout
from hack.support.progress import Failure


@pytest.fixture
def kind(tmp_path: Path) -> Kind:
    return Kind(Layout(tmp_path / ".cluster"), "podman")


def test_the_node_runs_the_version_of_the_local_provider(kind: Kind) -> None:
    [node] = kind.configuration()["nodes"]
    assert node["image"] == f"kindest/node:v{KUBERNETES}"
    assert node["role"] == "control-plane"


def test_node_ports_are_the_same_ports_of_the_loopback_address(kind: Kind) -> None:
    [node] = kind.configuration()["nodes"]
    assert [each["hostPort"] for each in node["extraPortMappings"]] == list(NODE_PORTS)
    assert all(each["hostPort"] == each["containerPort"] for each in node["extraPortMappings"])
    assert {each["listenAddress"] for each in node["extraPortMappings"]} == {"127.0.0.1"}
    [patch] = node["kubeadmConfigPatches"]
    assert json.loads(patch)["apiServer"]["extraArgs"]["service-node-port-range"] == "30000-30031"


def test_a_cluster_is_named_after_its_directory(kind: Kind, tmp_path: Path) -> None:
    other = Kind(Layout(tmp_path / "elsewhere" / ".cluster"), "podman")
    assert kind.name != other.name
    assert kind.command("delete", "cluster") == ["kind", "delete", "cluster", "--name", kind.name]


def test_kind_runs_with_the_chosen_engine(kind: Kind) -> None:
    assert kind.environment() == {"KIND_EXPERIMENTAL_PROVIDER": "podman"}


def engine(directory: Path, name: str, exit_code: int) -> None:
    """Write a client program. Exit code 0 means that its engine answers."""
    program = directory / name
    program.write_text(f"#!/bin/sh\nexit {exit_code}\n")
    program.chmod(0o755)


def test_a_client_without_an_engine_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    engine(tmp_path, "docker", 1)
    engine(tmp_path, "podman", 1)
    assert provider.container_engine() is None
    assert type(provider.choose("auto", Layout(tmp_path / ".cluster"))).__name__ == "Local"
    with pytest.raises(Failure, match="--provider local"):
        provider.choose("kind", Layout(tmp_path / ".cluster"))


def test_auto_chooses_kind_if_an_engine_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    engine(tmp_path, "docker", 1)
    engine(tmp_path, "podman", 0)
    assert provider.container_engine() == "podman"
    assert isinstance(provider.choose("auto", Layout(tmp_path / ".cluster")), Kind)


def test_auto_keeps_the_current_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    engine(tmp_path, "docker", 0)
    (tmp_path / "provider").write_text("local")
    assert type(provider.choose("auto", Layout(tmp_path))).__name__ == "Local"
    with pytest.raises(Failure, match="hack/cluster down"):
        provider.choose("kind", Layout(tmp_path))
