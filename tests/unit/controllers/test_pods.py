"""The reasons why a pod does not run, with texts that stay the same across reconciles."""

from dataclasses import replace

import pytest

from firn.model.conditions import Reason
from firn_controllers.conditions import pods
from firn_controllers.ports import PodState
from tests import gen

CASES = [
    pytest.param(gen.pod(), None, False, id="ready"),
    pytest.param(gen.broken_pod(), None, False, id="starting"),
    pytest.param(gen.broken_pod(waiting_reason="ImagePullBackOff"), Reason.IMAGE_PULL_FAILED, False, id="image pull backs off"),
    pytest.param(gen.broken_pod(waiting_reason="ErrImageNeverPull"), Reason.IMAGE_PULL_FAILED, False, id="image never pulled"),
    pytest.param(gen.broken_pod(waiting_reason="InvalidImageName"), Reason.IMAGE_PULL_FAILED, False, id="no image name"),
    pytest.param(
        gen.broken_pod(unschedulable="0/1 nodes are available: 1 Insufficient cpu."), Reason.UNSCHEDULABLE, False, id="no free node"
    ),
    pytest.param(
        gen.broken_pod(waiting_reason="CreateContainerConfigError"), Reason.BACKING_OFF, True, id="a missing Secret"
    ),
    pytest.param(
        gen.broken_pod(waiting_reason="CrashLoopBackOff", last_exit_code=137, last_exit_reason="OOMKilled", restarts=2),
        Reason.OUT_OF_MEMORY, False, id="killed for memory",
    ),
    pytest.param(
        gen.broken_pod(waiting_reason="CrashLoopBackOff", last_exit_code=137, last_exit_reason="Error", restarts=9),
        Reason.OUT_OF_MEMORY, True, id="killed repeatedly",
    ),
    pytest.param(gen.broken_pod(last_exit_code=76, last_exit_reason="Error", restarts=1), Reason.OUT_OF_MEMORY, False, id="exit 76: heap"),
    pytest.param(gen.broken_pod(last_exit_code=76, last_exit_reason="Error", restarts=5), Reason.OUT_OF_MEMORY, True, id="exit 76 five times: heap"),
    pytest.param(gen.broken_pod(last_exit_code=2, restarts=1), Reason.BACKING_OFF, True, id="exit 2: configuration"),
    pytest.param(gen.broken_pod(last_exit_code=4, restarts=1), Reason.BACKING_OFF, True, id="exit 4: corrupt data"),
    pytest.param(gen.broken_pod(last_exit_code=1, restarts=1), Reason.BACKING_OFF, False, id="exit 1: a bug"),
    pytest.param(gen.broken_pod(last_exit_code=1, restarts=5), Reason.BACKING_OFF, True, id="exit 1 five times"),
    pytest.param(gen.broken_pod(last_exit_code=75, restarts=1), None, False, id="exit 75: temporary"),
    pytest.param(
        gen.broken_pod(last_exit_code=75, restarts=3, waiting_reason="CrashLoopBackOff"), Reason.BACKING_OFF, False,
        id="exit 75 repeatedly: temporary",
    ),
    pytest.param(gen.pod(last_exit_code=137, last_exit_reason="OOMKilled", restarts=9), None, False, id="recovered"),
    pytest.param(
        gen.broken_pod(last_exit_code=143, last_exit_reason="Error", deleting=True), None, False, id="being deleted, for example for a replacement"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("pod", "reason", "stalled"), CASES)
def test_the_trouble_of_a_pod_has_its_reason(pod: PodState, reason: Reason | None, stalled: bool) -> None:
    trouble = pods.pod_trouble(pod, "firn-spark:1", "firn-system")
    assert (trouble and trouble.reason, bool(trouble and trouble.stalled)) == (reason, stalled)
    if trouble is not None:
        assert pod.name in trouble.message
        assert "firn-system" in trouble.message or reason is Reason.OUT_OF_MEMORY


WAITING = gen.broken_pod("firn-ingest-a1-exec-7", waiting_reason="ErrImagePull")


@pytest.mark.parametrize(
    ("executors", "reason"),
    [
        pytest.param([], Reason.STARTING, id="not requested yet"),
        pytest.param([gen.broken_pod()], Reason.STARTING, id="starting"),
        pytest.param([gen.broken_pod(), WAITING], Reason.IMAGE_PULL_FAILED, id="the image of one executor"),
        pytest.param([WAITING, gen.pod(deleting=True)], Reason.IMAGE_PULL_FAILED, id="the last executor is being deleted"),
        pytest.param(
            [gen.broken_pod(unschedulable="0/3 nodes are available: 3 Insufficient cpu.")], Reason.UNSCHEDULABLE, id="no free node"
        ),
        pytest.param([WAITING, gen.pod()], None, id="one executor runs"),
        pytest.param([replace(WAITING, deleting=True)], Reason.STARTING, id="Spark creates a replacement"),
        pytest.param([gen.broken_pod(last_exit_code=137, phase="Failed")], Reason.STARTING, id="ended: the driver reports the reason"),
    ],
)  # fmt: skip
def test_the_trouble_of_executors_has_its_reason(executors: list[PodState], reason: Reason | None) -> None:
    trouble = pods.executor_trouble(executors, "firn-spark:1", "firn-system", "big")
    assert (trouble and trouble.reason) == reason
    assert trouble is None or "exec-7" not in trouble.message, "the next pod has another name"
    assert reason in (None, Reason.STARTING) or "-l spark-role=executor,firn.dev/group=big" in str(trouble)


@pytest.mark.parametrize(
    "text",
    [
        "0/3 nodes are available: 1 Insufficient memory, 2 node(s) had untolerated taint. preemption: 0/3 nodes are available.",
        "0/5 nodes are available: 3 node(s) had untolerated taint, 2 Insufficient memory. preemption: not helpful.",
    ],
)
def test_a_scheduler_message_loses_its_counts(text: str) -> None:
    assert pods.scheduler_causes(text) == "Insufficient memory, node(s) had untolerated taint"


def test_changing_words_of_the_kubelet_are_not_repeated() -> None:
    texts = {
        pods.pod_trouble(
            gen.broken_pod(
                waiting_reason="CrashLoopBackOff", waiting_message=f"back-off {seconds}s restarting", last_exit_code=1, restarts=restarts
            ),
            "image",
            "firn-system",
        )
        for seconds, restarts in ((10, 1), (20, 2), (40, 3))
    }  # fmt: skip
    assert len(texts) == 1


def test_the_first_pod_by_name_is_reported() -> None:
    trouble = pods.worst_trouble(
        [gen.broken_pod("b-1", waiting_reason="ErrImagePull"), gen.broken_pod("b-0", unschedulable="x: y")], "i", "n"
    )
    assert trouble is not None
    assert trouble.reason is Reason.UNSCHEDULABLE
