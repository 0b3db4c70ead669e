import os
import signal
import subprocess
import sys
from typing import get_args

import pytest

from firn.model.errors import InvalidSpecError
from firn_spark import failpoints


def test_all_failpoints_are_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(failpoints.VARIABLE, raising=False)
    points = failpoints.from_environment()
    assert not points.active
    for name in get_args(failpoints.Name):
        points.reach(name)


def test_only_the_named_passage_of_the_named_place_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, "before-commit=raise:2, after-commit=raise")
    points = failpoints.from_environment()
    points.reach("before-commit")
    points.reach("after-data-files")
    with pytest.raises(failpoints.FailpointError, match="before-commit, passage 2"):
        points.reach("before-commit")
    points.reach("before-commit")
    with pytest.raises(failpoints.FailpointError, match="after-commit, passage 1"):
        points.reach("after-commit")


@pytest.mark.parametrize(
    "text", ["nowhere=kill:1", "before-commit=explode", "before-commit=kill:soon", "before-commit"]
)
def test_an_invalid_setting_is_rejected(text: str) -> None:
    with pytest.raises(InvalidSpecError, match="FIRN_FAILPOINTS"):
        failpoints.Failpoints(text)


def test_stop_suspends_the_process_until_it_is_continued() -> None:
    code = "from firn_spark.failpoints import Failpoints; Failpoints('before-commit=stop').reach('before-commit'); print('went on')"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=60)[0].endswith(b"went on\n")
