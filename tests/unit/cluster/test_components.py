"""Configuration of the local provider's node."""

from pathlib import Path

from hack.localcluster.layout import Layout
from hack.localcluster.node.components import components
from hack.localcluster.node.objects import manifests
from hack.localcluster.node.settings import write_settings


def test_components_agree_on_rights_storage_and_addresses(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    programs = {each.name: each for each in components(layout, Path("kube"), Path("coredns"), {6443: 7, 30000: 8})}
    assert "--authorization-mode=Node,RBAC" in programs["kube-apiserver"].arguments
    assert programs["forward"].arguments[2:] == ["7=127.0.0.1:6443", "8=10.250.0.1:30000"]
    assert programs["forward"].descriptors == [7, 8]
    assert all(not each.descriptors for name, each in programs.items() if name != "forward")
    [storage] = [each for each in manifests() if each["kind"] == "StorageClass"]
    assert storage["volumeBindingMode"] == "WaitForFirstConsumer"


def test_settings_are_rewritten_without_new_keys(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    write_settings(layout, 12345)
    key = (layout.keys / "ca.key").read_bytes()
    first = layout.kubeconfig.read_text()
    write_settings(layout, 12345)
    assert (layout.keys / "ca.key").read_bytes() == key
    assert layout.kubeconfig.read_text() == first
    assert "https://127.0.0.1:12345" in first
    assert layout.kubeconfig.stat().st_mode & 0o077 == 0


def test_each_cluster_has_its_own_control_groups(tmp_path: Path) -> None:
    assert Layout(tmp_path / "a").control_group != Layout(tmp_path / "b").control_group
