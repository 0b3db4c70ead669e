"""Gates that hold a round of the driver at a place, while a test changes the world around it."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds.landing_job import LandingJobs
from tests.integration.ingestion.world import WAIT
from tests.servers.process import PATIENCE


class Gate:
    """After ``closed`` is set, hold the first caller until ``open`` is set."""

    def __init__(self) -> None:
        self.closed, self.held, self.open = threading.Event(), threading.Event(), threading.Event()

    def pass_(self) -> None:
        if self.closed.is_set() and not self.held.is_set():
            self.held.set()
            assert self.open.wait(WAIT * PATIENCE)


def gate_at(place: str, monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    if place == "before reading":
        read: Callable[..., Any] = LandingJobs.run

        def job(jobs: LandingJobs, planned: Any) -> Any:
            gate.pass_()
            return read(jobs, planned)

        monkeypatch.setattr(LandingJobs, "run", job)
    else:

        def reach(_: Failpoints, name: str) -> None:
            if name == place:
                gate.pass_()

        monkeypatch.setattr(Failpoints, "reach", reach)
    return gate
