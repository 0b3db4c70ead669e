"""Runs a command in the operator's pod, or a statement in the pod of queries, with ``kubectl exec`` and the rights of a person.

Only these pods have the configuration. The operator's pod has the credentials of catalogs and brokers, that of queries has those of the
catalogs. kubectl logs in as it always does for this
person, also with plugins.

kubectl says nothing to the command in the pod when it ends early, for example for Ctrl-C or behind ``| head``, and the pod reads output
that has no reader. Only the input of the command then ends. So `run` keeps this input open while it needs the command, and the command
ends with it. If kubectl is killed, a terminal in the pod stays open and the command would go on. So the command gets no terminal.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

from firn.model import names
from firn.model.errors import AccessDeniedError, ExitCode, InvalidSpecError, UnavailableError
from firn_operator.cli.resources.connection import Collection, Connection, Manifest

_OPERATOR = "operator"
_SELECTOR = f"app.kubernetes.io/name=firn,app.kubernetes.io/component={_OPERATOR}"
_QUERY = "query"
_QUERY_POD = "firn-query-0"
"""The pod of the chart's StatefulSet ``firn-query``. A Role can give the right to exec into it by this name."""
_RIGHTS = (("get", "pods"), ("create", "pods/exec"))
"""Rights that kubectl needs. Without this check, its own message would name no next step."""
_MOST_BYTES = 4096
"""Most bytes of all arguments. They are part of the URL of the request to exec, and proxies refuse long URLs (414, 431)."""
_ENDED = re.compile(rb"command terminated with exit code (\d+)\s*")
"""Last line of the output of kubectl after a command that failed. Failures of kubectl itself have no such line."""
_SIGNALLED = 128
"""The exit code of a process that a signal ended is this number plus the number of the signal."""
_INTERRUPTED = _SIGNALLED + signal.SIGINT


def run(api: Connection, release: str, arguments: Sequence[str], *, context: str | None = None) -> int:
    """Run ``firn`` with these arguments in a pod of the namespace ``release``. Return its exit code.

    ``firn sql`` runs in the pod of queries if the release has it, and all other commands in the operator's pod.

    Output goes to the streams of this process as it arrives. On a terminal, tables are as wide as the terminal. If this process or kubectl ends,
    the command ends, too.

    Raises InvalidSpecError for too long arguments, and without kubectl or the operator. Raises AccessDeniedError that names a missing
    right, and UnavailableError.
    """
    kubectl = shutil.which("kubectl")
    command = "firn " + " ".join(arguments[: 2 if arguments[0] == "dlq" else 1])
    size = sum(len(os.fsencode(each)) for each in arguments)
    if size > _MOST_BYTES:
        raise InvalidSpecError(
            f"{command} has arguments of {size} bytes, and the request that runs it in a pod has room for {_MOST_BYTES}; shorten them, for"
            " example the statement, or run the command in a shell of the pod"
        )
    if kubectl is None:
        raise InvalidSpecError(
            f"{command} runs in a pod of Firn, and this machine has no program kubectl, which starts it there; install kubectl, and"
            " add its folder to PATH"
        )
    queries = arguments[0] == "sql" and _has_query_pod(api, release)
    pod, container = (_QUERY_POD, _QUERY) if queries else (_pod(api, release), _OPERATOR)
    for verb, resource in _RIGHTS:
        if not api.may(verb, Collection(resource, release, ""), _QUERY_POD if queries else ""):
            place = f"pod {_QUERY_POD}" if queries else "the operator's pod"
            raise AccessDeniedError(
                f"{command} runs in {place}, and you may not {verb} {resource} in namespace {release}; ask an administrator of Firn for this"
                " right, or to run the command"
            )
    code, ended = _execute(
        [
            kubectl,
            *([f"--context={context}"] if context is not None else []),
            f"--namespace={release}",
            "exec",
            "--stdin",
            f"--container={container}",
            pod,
            "--",
            "env",
            f"{names.CLI_ENDS_WITH_INPUT}=1",
            *_terminal(),
            "firn",
            *arguments,
        ]
    )
    if code > 0 and not ended:
        raise UnavailableError(
            f"kubectl could not run {command} in pod {release}/{pod}, or lost the connection to it: kubectl's message is above; try again"
        )
    return code if code >= 0 else _SIGNALLED - code


def _terminal() -> list[str]:
    """Return the variables by which the command writes for the terminal of this process."""
    if not sys.stdout.isatty():
        return []
    return [f"COLUMNS={shutil.get_terminal_size().columns}", "FORCE_COLOR=1"]


def _has_query_pod(api: Connection, release: str) -> bool:
    """Return whether the release has the pod of queries. Raises UnavailableError while it does not run."""
    pod = api.read(Collection("pods", release, ""), _QUERY_POD)
    if pod is not None and not _runs(pod, _QUERY):
        raise UnavailableError(
            f"firn sql runs in pod {release}/{_QUERY_POD}, which does not run; kubectl -n {release} describe pod {_QUERY_POD} shows the cause"
        )
    return pod is not None


def _pod(api: Connection, release: str) -> str:
    """Return the name of a running pod of the operator. Raises InvalidSpecError if there is none, UnavailableError while it starts."""
    found = api.list(Collection("pods", release, ""), labelSelector=_SELECTOR)
    if not found:
        raise InvalidSpecError(
            f"namespace {release} in the cluster of {api.login.name} has no pod of the operator; name the operator's namespace with"
            " --release-namespace, or the cluster with --context"
        )
    running = [pod["metadata"]["name"] for pod in found if _runs(pod, _OPERATOR)]
    if not running:
        raise UnavailableError(
            f"Deployment {release}/firn-operator has no running pod; kubectl -n {release} describe pods -l {_SELECTOR} shows the cause"
        )
    return str(running[0])


def _runs(pod: Manifest, container: str) -> bool:
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return not pod["metadata"].get("deletionTimestamp") and any(
        each["name"] == container and "running" in (each.get("state") or {}) for each in containers
    )


def _execute(command: Sequence[str]) -> tuple[int, bool]:
    """Run kubectl. Return its exit code, and whether this is the code of the command in the pod.

    Its input is empty and ends with this process. A loop of a shell may read the input of this process itself.
    """
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            last = _relay(process.stderr)
            code = process.wait()
        except KeyboardInterrupt:
            # The terminal has interrupted kubectl, too. If another process sent the signal, kubectl may still run.
            process.stdin.close()
            process.wait()
            return _INTERRUPTED, True
    match = _ENDED.fullmatch(last)
    ended = match is not None and int(match[1]) == code
    if last and not (ended and code in {*ExitCode, _INTERRUPTED}):
        _write(last)
    return code, ended


def _relay(errors: IO[bytes]) -> bytes:
    """Copy the lines of kubectl to standard error. Return the last one instead of copying it, if it says how the command ended."""
    held = b""
    for line in errors:
        if held:
            _write(held)
        held = line if _ENDED.fullmatch(line) else b""
        if not held:
            _write(line)
    return held


def _write(line: bytes) -> None:
    sys.stderr.buffer.write(line)
    sys.stderr.buffer.flush()
