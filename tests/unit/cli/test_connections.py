"""Errors before the first request: no kubeconfig, an unreadable one, an unknown context. And the modules of a person's machine."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from firn.model.errors import InvalidSpecError, UnavailableError
from firn_operator.cli.resources.connection import Collection, Connection, log_in, near, topics

ROOT = Path(__file__).resolve().parents[3]
ABSENT = (
    "pyiceberg",
    "duckdb",
    "pyarrow",
    "confluent_kafka",
    "kopf",
    "obstore",
    "psycopg",
    "structlog",
    "prometheus_client",
)
"""Distributions that the extra ``cli`` does not install."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path


def kubeconfig(path: Path, server: str = "https://127.0.0.1:1") -> Path:
    contexts = [
        {"name": "shop-test", "context": {"cluster": "c", "user": "u", "namespace": "shop"}},
        {"name": "shop-prod", "context": {"cluster": "c", "user": "u"}},
    ]
    document = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": contexts,
        "current-context": "shop-test",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


def test_without_a_kubeconfig_the_error_names_the_next_step() -> None:
    with pytest.raises(InvalidSpecError, match=r"there is no kubeconfig: .* set KUBECONFIG to the file"):
        log_in()


def test_the_file_in_the_home_folder_is_used(home: Path) -> None:
    kubeconfig(home / ".kube" / "config")
    found = log_in()
    assert (found.name, found.namespace, found.settings.host) == ("context shop-test", "shop", "https://127.0.0.1:1")


def test_context_and_namespace_are_chosen(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(home / "other")))
    assert log_in("shop-prod").namespace == "default"
    assert log_in("shop-test", "mine").namespace == "mine"


def test_an_unknown_context_is_answered_with_near_names(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(home / "other")))
    with pytest.raises(InvalidSpecError, match=r"no context shop-pord; did you mean shop-prod"):
        log_in("shop-pord")


@pytest.mark.parametrize(
    "content", ["", "text", "a: [", "contexts: 1\ncurrent-context: x", "current-context: x\ncontexts: []"]
)
def test_an_unusable_kubeconfig_is_an_error_without_a_trace(
    content: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "bad").write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(home / "bad"))
    with pytest.raises(InvalidSpecError, match="cannot be used"):
        log_in()


def test_a_server_that_does_not_answer_is_unavailable(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(home / "other")))
    with (
        Connection(log_in()) as connection,
        pytest.raises(
            UnavailableError, match=r"https://127.0.0.1:1 of context shop-test does not answer: .*refused"
        ) as error,
    ):
        connection.list(topics("shop"))
    assert "0x" not in str(error.value)


def test_names_become_paths_and_resources_of_rbac() -> None:
    assert topics("a").path("b") == "/apis/firn.dev/v1alpha1/namespaces/a/icebergtopics/b"
    assert topics(None).path() == "/apis/firn.dev/v1alpha1/icebergtopics"
    assert Collection("events", "a", "").path() == "/api/v1/namespaces/a/events"
    assert topics("a/b").path("../c") == "/apis/firn.dev/v1alpha1/namespaces/a%2Fb/icebergtopics/..%2Fc"


def test_near_names_are_few() -> None:
    assert near("ordres", ["orders", "flights"], "topics") == "did you mean orders?"
    assert near("x", ["orders", "flights"], "topics") == "topics are flights, orders"
    assert near("x", [], "topics") == "there are no topics"


def test_status_and_plan_need_only_the_small_extra() -> None:
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
for name in {ABSENT!r}:
    sys.modules[name] = None
import firn_operator.cli.main
import firn_operator.cli.resources.status
import firn_operator.cli.resources.plan
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_another_command_names_the_extra_that_it_needs() -> None:
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
sys.modules["duckdb"] = None
sys.argv[:] = ["firn", "sql", "select 1", "--config", "/nonexistent"]
from firn_operator.cli.main import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("firn: this installation has no module duckdb")


def test_kubectl_finds_the_tool_as_a_plugin() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl-firn"] == scripts["firn"]
    module, _, name = scripts["kubectl-firn"].partition(":")
    assert callable(getattr(import_module(module), name))
    plugin = ROOT / "hack/images/operator/bin/kubectl-firn"
    assert plugin.stat().st_mode & 0o111
    assert "firn" in plugin.read_text()
