"""Statements run in a pod of their own, whose limits and rights are not those of the operator."""

import json
import subprocess
import sys

import pytest

from hack import quickstart
from hack.quickstart import SYSTEM, get, kubectl

PROGRAM = "import sys; sys.argv[0] = 'firn'; from firn_operator.cli.main import main; sys.exit(main())"
INSIDE = "ls /etc/firn/secrets; test ! -e /var/run/secrets/kubernetes.io && echo no token"


def typed(*words: str) -> subprocess.CompletedProcess[str]:
    """Run ``firn sql`` as on a user's machine: with a kubeconfig, and without the operator's configuration."""
    command = [sys.executable, "-c", PROGRAM, "sql", *words]
    return subprocess.run(command, env=quickstart.environment(), capture_output=True, text=True, timeout=120)


def restarts() -> list[int]:
    pods = json.loads(
        kubectl("-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/component in (operator, query)", "-o", "json")
    )
    return [each["restartCount"] for pod in pods["items"] for each in pod["status"]["containerStatuses"]]


def test_a_statement_runs_in_a_pod_of_its_own(release: None) -> None:
    before = restarts()
    answered = typed("-o", "json", "select 41 + 1 as n")
    assert (answered.returncode, answered.stderr) == (0, "")
    assert json.loads(answered.stdout) == [{"n": 42}]
    refused = typed("select * from read_text('/etc/firn/secrets/firn-postgres/password')")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "neither files, addresses nor extensions" in refused.stderr
    hungry = typed("select list(n) from range(200_000_000) numbers(n)")
    assert (hungry.returncode, "needs more memory than firn sql has" in hungry.stderr) == (2, True), hungry.stderr
    assert restarts() == before
    words = kubectl("-n", SYSTEM, "exec", "firn-query-0", "--", "sh", "-c", INSIDE).splitlines()
    assert words[-1] == "no token"
    assert {"firn-postgres", "firn-s3"} <= set(words)
    with pytest.raises(RuntimeError, match=r"firn sql runs in pod firn-query-0, and not in the operator's container"):
        kubectl("-n", SYSTEM, "exec", "deploy/firn-operator", "--", "firn", "sql", "select 1")
    pod = get("pod", "firn-query-0")
    assert pod is not None
    assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == "1Gi"
