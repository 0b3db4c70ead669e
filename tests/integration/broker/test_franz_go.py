"""franz-go against the broker: a program of ours, and franz-go's own tests.

The Go program in tests/clients/franz runs the steps and exits at the first error. franz-go's tests come with its module.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.servers.firn_broker import FirnBroker

MODULE = Path(__file__).parents[2] / "clients" / "franz"


QUICK = (
    "TestPing|TestIssue325|TestConsumeTopicRetrieval|TestConsumeTopicRetrieval_Many|TestConsumeRegex|TestAddRemovePartitions"
    "|TestPauseIssue489|TestPauseIssueOct2023|TestIssue523|TestIssue648|TestIssue769|TestIssue810|TestIssue831|TestPooling"
)
SLOW = "TestIssue337|TestDirectPartitionPurge|TestIssue434|TestIssue865|TestGroupSimple|TestClient_Produce|TestGroupETL"
"""Tests of pauses in the client, of 10,000 records that each wait for an acknowledgement, and of groups."""


def go(*arguments: str | Path) -> None:
    """Run Go in the module of the client. Go caches its results."""
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": os.environ.get("GOFLAGS", "") + " -mod=readonly"}
    ended = subprocess.run(["go", *arguments], cwd=MODULE, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.fixture(scope="module")
def franz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the client."""
    program = tmp_path_factory.mktemp("franz") / "franz"
    go("build", "-o", program, ".")
    return program


def test_franz_go_produces_consumes_and_administers(franz: Path, firn: FirnBroker, name: str) -> None:
    ended = subprocess.run([franz, firn.bootstrap, name], capture_output=True, text=True, timeout=90)
    assert (ended.returncode, ended.stdout) == (0, "proven\n"), ended.stderr


@pytest.fixture(scope="module")
def tests_of_franz_go(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build franz-go's own tests."""
    program = tmp_path_factory.mktemp("kgo") / "kgo.test"
    go("test", "-c", "-o", program, "github.com/twmb/franz-go/pkg/kgo")
    return program


@pytest.mark.parametrize(("tests", "seconds"), [(QUICK, 120), pytest.param(SLOW, 900, marks=pytest.mark.long)])
def test_the_tests_of_franz_go_pass(tests_of_franz_go: Path, firn: FirnBroker, tests: str, seconds: int) -> None:
    environment = {
        **os.environ, "KGO_SEEDS": firn.bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": "50000", "KGO_LOG_LEVEL": "none",
    }  # fmt: skip
    command = [str(tests_of_franz_go), "-test.v", "-test.run", f"^({tests})$", "-test.timeout", f"{seconds}s"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds + 30)
    assert ended.returncode == 0, ended.stdout[-4000:]
    passed = set(re.findall(r"^--- PASS: (\w+)", ended.stdout, re.MULTILINE))
    assert passed == set(tests.split("|"))
