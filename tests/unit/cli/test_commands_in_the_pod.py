"""Commands that need the operator's configuration run in its pod, through kubectl, when they are typed on another machine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from typer.testing import CliRunner

from firn.model import names
from firn.model.errors import AccessDeniedError, FirnError, InvalidSpecError, UnavailableError
from firn_operator.cli import main, memory, pod
from firn_operator.cli.resources.connection import Collection, Connection, Manifest
from tests.servers.process import await_true

KUBECTL = """#!{python}
import json, os, sys
with open({calls!r}, "w") as file:
    json.dump(sys.argv[1:], file)
os.write(1, {out!r})
os.write(2, {err!r})
sys.exit({code})
"""
POD = """#!{python}
import json, os, subprocess, sys
variables = [word for word in sys.argv if word.startswith("FIRN_")]
command = subprocess.Popen(
    [{python!r}, "-c", {command!r}],
    stdin=subprocess.PIPE,
    env=dict(word.split("=") for word in variables) | {{"FIRN_CONFIG": {configuration!r}}},
    start_new_session=True,
)
with open({started!r} + "-", "w") as file:
    json.dump(dict(kubectl=os.getpid(), command=command.pid), file)
os.rename({started!r} + "-", {started!r})
while os.read(0, 100):
    pass
command.stdin.close()
command.wait()
"""
"""A program kubectl that starts a command as in a pod: only the input of the command ends with kubectl."""
LOCAL = """
import sys
sys.path[:0] = {path!r}
from firn_operator.cli import pod
from tests.unit.cli.test_commands_in_the_pod import Api, running
pod.run(Api(running()), "firn-system", ("check",))
"""


class Login:
    name = "context prod"


class Api:
    """The API server with these pods, for a person without these rights."""

    login = Login()

    def __init__(self, *pods: Manifest, lacks: str = "") -> None:
        self._pods = [each for each in pods if each["metadata"]["name"] != "firn-query-0"]
        self._query = next((each for each in pods if each["metadata"]["name"] == "firn-query-0"), None)
        self.asked: set[str] = set()
        self._lacks = lacks
        self.query: dict[str, str] = {}

    def list(self, collection: Collection, **query: str) -> list[Manifest]:
        assert collection.path() == "/api/v1/namespaces/firn-system/pods"
        self.query = query
        return self._pods

    def read(self, collection: Collection, name: str) -> Manifest | None:
        assert collection.path(name) == "/api/v1/namespaces/firn-system/pods/firn-query-0"
        return self._query

    def may(self, verb: str, collection: Collection, name: str = "") -> bool:
        self.asked.add(name)
        return f"{verb} {collection.plural}" != self._lacks


class Kubectl:
    """A program kubectl that records its arguments, and ends as given."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._calls = folder / "calls.json"
        self.ends()

    def ends(self, code: int = 0, out: bytes = b"", err: bytes = b"") -> None:
        self.runs(KUBECTL.format(python=sys.executable, calls=str(self._calls), out=out, err=err, code=code))

    def runs(self, script: str) -> None:
        path = self._folder / "kubectl"
        path.write_text(script)
        path.chmod(0o755)

    @property
    def arguments(self) -> list[str]:
        return list(json.loads(self._calls.read_text()))


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return Kubectl(folder)


def running(name: str = "firn-operator-1", container: str = "operator", **metadata: Any) -> Manifest:
    states = [{"name": container, "state": {"running": {}}}]
    return {"metadata": {"name": name, **metadata}, "status": {"phase": "Running", "containerStatuses": states}}


def run(*arguments: str, api: Api | None = None, context: str | None = None) -> int:
    asked = cast(Connection, api or Api(running()))
    return pod.run(asked, "firn-system", arguments or ("dlq", "list", "--", "shop/orders"), context=context)


def test_kubectl_gets_the_arguments_as_they_are(kubectl: Kubectl) -> None:
    statement = "select '$(id)'; `id` \"x\" | > & -- --output csv\n"
    assert run("sql", "--output=json", "--", statement, context="prod") == 0
    assert kubectl.arguments == [
        "--context=prod",
        "--namespace=firn-system",
        "exec",
        "--stdin",
        "--container=operator",
        "firn-operator-1",
        "--",
        "env",
        "FIRN_ENDS_WITH_INPUT=1",
        "firn",
        "sql",
        "--output=json",
        "--",
        statement,
    ]


def test_arguments_that_proxies_refuse_are_an_error(kubectl: Kubectl) -> None:
    words = ("sql", "--output=json", "--")
    room = 4096 - len("".join(words))
    assert run(*words, "é" * (room // 2) + "x" * (room % 2)) == 0
    with pytest.raises(
        InvalidSpecError, match=r"^firn sql has arguments of 4097 bytes, .* room for 4096; shorten them"
    ):
        run(*words, "é" * (room // 2) + "x" * (room % 2 + 1))


def test_a_command_for_a_terminal_has_its_width(kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "57")
    run()
    assert kubectl.arguments[-9:-5] == ["env", "FIRN_ENDS_WITH_INPUT=1", "COLUMNS=57", "FORCE_COLOR=1"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    monkeypatch.setenv("FIRN_ENDS_WITH_INPUT", "1")
    assert main.console().width == 57
    monkeypatch.delenv("COLUMNS")
    assert main.console().width == 200


@pytest.mark.parametrize("ended", ["firn", "kubectl"])
def test_the_command_in_the_pod_ends_with_firn_and_with_kubectl(ended: str, kubectl: Kubectl, tmp_path: Path) -> None:
    configuration, started = tmp_path / "config.yaml", tmp_path / "started"
    os.mkfifo(configuration)  # reading it never ends
    command = f"import sys; sys.path[:0] = {sys.path!r}; from firn_operator.cli.main import main; sys.argv[:] = ['firn', 'check']; main()"
    kubectl.runs(
        POD.format(python=sys.executable, command=command, configuration=str(configuration), started=str(started))
    )
    local = subprocess.Popen([sys.executable, "-c", LOCAL.format(path=sys.path)])
    try:
        await_true("the command has not started", started.exists)
        processes = json.loads(started.read_text())
        os.kill(local.pid if ended == "firn" else processes["kubectl"], signal.SIGKILL)
        await_true("the command has not ended", lambda: not works(processes["command"]))
    finally:
        local.kill()
        local.wait()


def works(process: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_output_keeps_its_bytes_and_the_input_stays_unread(kubectl: Kubectl, capfdbinary: Any) -> None:
    kubectl.ends(out=b"\xff\x00\r\n", err=b"a note\nno newline")
    read, write = os.pipe()
    os.write(write, b"next line of a loop")
    os.close(write)
    before = os.dup(0)
    os.dup2(read, 0)
    try:
        assert run() == 0
        assert os.read(0, 100) == b"next line of a loop"
    finally:
        os.dup2(before, 0)
    assert capfdbinary.readouterr() == (b"\xff\x00\r\n", b"a note\nno newline")


@pytest.mark.parametrize(
    ("code", "errors", "shown"),
    [
        (4, b"command terminated with exit code 4\n", b""),
        (130, b"command terminated with exit code 130\n", b""),
        (2, b"firn: wrong\ncommand terminated with exit code 2\n", b"firn: wrong\n"),
        (
            2,
            b"command terminated with exit code 2\nfirn: wrong\ncommand terminated with exit code 2\n",
            b"command terminated with exit code 2\nfirn: wrong\n",
        ),
        # Firn has no such exit code, so its output does not have the cause.
        (137, b"command terminated with exit code 137\n", b"command terminated with exit code 137\n"),
    ],
)
def test_the_exit_code_is_that_of_the_command(
    code: int, errors: bytes, shown: bytes, kubectl: Kubectl, capfdbinary: Any
) -> None:
    kubectl.ends(code, err=errors)
    assert run() == code
    assert capfdbinary.readouterr().err == shown


@pytest.mark.parametrize("errors", [b"error: lost\n", b"command terminated with exit code 2\n"])
def test_a_failure_of_kubectl_is_not_one_of_the_command(errors: bytes, kubectl: Kubectl, capfdbinary: Any) -> None:
    kubectl.ends(1, err=errors)
    with pytest.raises(
        UnavailableError, match=r"kubectl could not run firn dlq list in pod firn-system/firn-operator-1"
    ):
        run()
    assert capfdbinary.readouterr().err == errors


def test_the_pod_is_one_that_runs(kubectl: Kubectl) -> None:
    ending = running("ending", deletionTimestamp="2026-01-01T00:00:00Z")
    waits = [{"name": "operator", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    starting = {"metadata": {"name": "starting"}, "status": {"phase": "Running", "containerStatuses": waits}}
    pending: Manifest = {"metadata": {"name": "pending"}, "status": {"phase": "Pending"}}
    api = Api(ending, starting, pending, running("right"))
    run(api=api)
    assert "right" in kubectl.arguments
    assert api.query == {"labelSelector": "app.kubernetes.io/name=firn,app.kubernetes.io/component=operator"}
    with pytest.raises(UnavailableError, match=r"Deployment firn-system/firn-operator has no running pod; kubectl"):
        run(api=Api(ending, starting, pending))


def test_a_statement_runs_in_the_pod_of_queries(kubectl: Kubectl) -> None:
    api = Api(running("firn-query-0", "query"))
    assert run("sql", "--", "select 1", api=api) == 0
    assert kubectl.arguments[2:5] == ["--stdin", "--container=query", "firn-query-0"]
    assert kubectl.arguments[-4:] == ["firn", "sql", "--", "select 1"]
    # A Role can give the right to this pod only.
    assert api.asked == {"firn-query-0"}
    api = Api(running(), running("firn-query-0", "query"))
    run("audit", "--", "shop/orders", api=api)
    assert ("--container=operator" in kubectl.arguments, api.asked) == (True, {""})


def test_a_pod_of_queries_that_does_not_run_is_an_error(kubectl: Kubectl) -> None:
    stopped = {"metadata": {"name": "firn-query-0"}, "status": {"phase": "Pending"}}
    with pytest.raises(
        UnavailableError, match=r"pod firn-system/firn-query-0, which does not run; kubectl .* describe"
    ):
        run("sql", "--", "select 1", api=Api(running(), stopped))
    with pytest.raises(AccessDeniedError, match=r"firn sql runs in pod firn-query-0, and you may not create pods/exec"):
        run("sql", "--", "select 1", api=Api(running("firn-query-0", "query"), lacks="create pods/exec"))


@pytest.mark.parametrize(
    ("api", "kind", "message"),
    [
        (
            Api(),
            InvalidSpecError,
            r"namespace firn-system in the cluster of context prod has no pod .* --release-namespace",
        ),
        (
            Api(running(), lacks="create pods/exec"),
            AccessDeniedError,
            r"firn audit runs in the operator's pod, and you may not create pods/exec in namespace firn-system; ask",
        ),
        (Api(running(), lacks="get pods"), AccessDeniedError, r"you may not get pods in namespace firn-system; ask"),
    ],
)
def test_the_error_names_the_missing_pod_or_right(
    api: Api, kind: type[FirnError], message: str, kubectl: Kubectl
) -> None:
    with pytest.raises(kind, match=message):
        run("audit", "--", "shop/orders", api=api)


def test_without_kubectl_the_error_names_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InvalidSpecError, match=r"firn dlq list runs in .* no program kubectl.*; install kubectl"):
        run()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person's machine: a kubeconfig whose context has the namespace shop, and no configuration of the operator."""
    document = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u", "namespace": "shop"}}],
        "current-context": "prod",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.delenv("FIRN_CONFIG", raising=False)
    monkeypatch.setattr(names, "CONFIG_PATH", str(tmp_path / "config.yaml"))
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("dlq list orders", "dlq list --output=table -- shop/orders"),
        ("dlq list orders -n fair -o json", "dlq list --output=json -- fair/orders"),
        ("dlq list fair/orders", "dlq list --output=table -- fair/orders"),
        ("dlq list -n fair fair/orders", "dlq list --output=table -- fair/orders"),
        (
            "dlq show orders --code WrongKind --code InvalidJson --values --limit 5 --output csv",
            "dlq show --code=WrongKind --code=InvalidJson --limit=5 --values --output=csv -- shop/orders",
        ),
        ("dlq show -- --values", "dlq show --limit=20 --output=table -- shop/--values"),
        ("sql -o csv -- --x", "sql --max-rows=10000 --max-bytes=10737418240 --output=csv -- --x"),
        ("audit orders --output json", "audit --output=json -- shop/orders"),
        ("check", "check"),
    ],
)
def test_the_same_command_runs_in_the_pod(
    typed: str, expected: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def answer(_: Connection, release: str, arguments: tuple[str, ...], *, context: str | None) -> int:
        seen.extend((release, " ".join(arguments), context))
        return 4

    monkeypatch.setattr(pod, "run", answer)
    assert CliRunner().invoke(main.app, typed.split()).exit_code == 4
    assert seen == ["firn-system", expected, None]
    seen.clear()
    words = [*typed.split()[: 2 if "dlq" in typed else 1], "--context=prod", "--release-namespace=data"]
    CliRunner().invoke(main.app, [*words, *typed.split()[len(words) - 2 :]])
    assert seen == ["data", expected, "prod"]


def test_a_topic_of_another_namespace_than_the_chosen_one_is_refused(machine: Path) -> None:
    refused = CliRunner().invoke(main.app, ["dlq", "list", "-n", "shop", "fair/orders"]).exception
    assert isinstance(refused, InvalidSpecError)
    assert str(refused) == "fair/orders is in namespace fair, and --namespace is shop; leave out one of them"


@pytest.mark.parametrize("given", ["option", "environment", "place of the pod"])
def test_with_a_configuration_the_command_runs_here(given: str, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = machine / "config.yaml"
    path.write_text("unknown: 1")
    monkeypatch.setattr(memory, "stay_alone", lambda command: None)
    if given != "place of the pod":
        monkeypatch.setattr(names, "CONFIG_PATH", "/nonexistent")
    if given == "environment":
        monkeypatch.setenv("FIRN_CONFIG", str(path))
    options = ["--config", str(path)] if given == "option" else []
    for command in (["check"], ["sql", "select 1"], ["dlq", "list", "a/b"], ["dlq", "show", "a/b"]):
        result = CliRunner().invoke(main.app, [*command, *options])
        assert isinstance(result.exception, InvalidSpecError)
        assert str(result.exception).startswith(f"configuration {path}: ")


def test_a_given_configuration_that_does_not_exist_is_an_error(machine: Path) -> None:
    result = CliRunner().invoke(main.app, ["sql", "select 1", "--config", "/nonexistent"])
    assert "configuration /nonexistent: No such file; correct the path in --config" in str(result.exception)


def test_the_help_of_values_says_that_fields_are_masked() -> None:
    output = CliRunner().invoke(main.app, ["dlq", "show", "--help"]).output
    shown = " ".join(output.replace("│", " ").split())
    assert "*** stands for what the spec masks or hashes" in shown
    assert "If the spec masks or hashes a field, a header or the key, the command shows *** in its place" in shown


@pytest.mark.parametrize("topic", ["", "/orders", "shop/", "a/b/c"])
def test_a_text_that_names_no_topic_is_refused(topic: str, machine: Path) -> None:
    result = CliRunner().invoke(main.app, ["dlq", "list", topic])
    assert "is not an IcebergTopic: write NAME or NAMESPACE/NAME" in str(result.exception)


def test_the_pod_needs_only_the_small_extra(machine: Path, kubectl: Kubectl) -> None:
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
for name in ("pyiceberg", "duckdb", "pyarrow", "confluent_kafka", "kopf"):
    sys.modules[name] = None
from firn_operator.cli.main import main
for words in (["dlq", "list", "orders"], ["sql", "select 1"], ["audit", "orders"]):
    sys.argv[:] = ["firn", *words]
    print(main())
"""
    environment = {key: value for key, value in os.environ.items() if key != "FIRN_CONFIG"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment, check=True
    )
    assert done.stdout == "75\n" * 3
    assert "https://127.0.0.1:1 of context prod does not answer" in done.stderr
