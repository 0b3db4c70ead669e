"""The lease of a group: one driver serves its topics, and another one waits."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from firn.model.errors import UnavailableError
from firn.model.jobs import IngestJob
from firn_spark.ingestion.lease import UNANSWERED_SECONDS, LeasedJobs, holder
from firn_spark.leases import Files, Leases, Record
from tests.fakes.clock import FakeClock
from tests.unit.spark_driver.topic import job

JOBS = {"uid": job()}
NAME = "firn-ingest-g"


class Contracts:
    """Job contracts without a thread."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def current(self) -> Mapping[str, IngestJob]:
        return JOBS


class Store(Files):
    """A store of leases that can be away."""

    away = False

    def read(self, name: str) -> Record | None:
        if self.away:
            raise UnavailableError("lease: 403 Forbidden")
        return super().read(name)

    def write(self, name: str, record: Record, version: str | None) -> Record | None:
        if self.away:
            raise UnavailableError("lease: 403 Forbidden")
        return super().write(name, record, version)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def identity(uid: str) -> str:
    """Return the holder of a pod of the group's StatefulSet, whose pods always have the same name."""
    return holder({"POD_UID": uid}, "firn-ingest-g-0")


def driver(store: Store, pod: str, clock: FakeClock | None = None) -> LeasedJobs:
    return LeasedJobs(Contracts(), Leases(store, pod, 3600), NAME, clock=(clock or FakeClock()).monotonic)


def test_a_second_driver_has_no_jobs_until_the_first_one_stops(store: Store) -> None:
    first, second = driver(store, "pod-0"), driver(store, "pod-1")
    first.look()
    second.look()
    assert first.current() == JOBS
    assert second.current() is None
    first.stop()
    second.look()
    assert second.current() == JOBS
    second.stop()


def test_a_container_that_starts_again_still_has_the_lease(store: Store) -> None:
    pod = identity("uid-1")
    killed, started = driver(store, pod), driver(store, pod)
    killed.look()
    started.look()
    assert started.current() == JOBS
    started.stop()


def test_a_new_pod_of_the_same_name_waits_for_the_old_one(store: Store) -> None:
    old, new = driver(store, identity("uid-1")), driver(store, identity("uid-2"))
    old.look()
    new.look()
    assert old.current() == JOBS
    assert new.current() is None, "the old pod may still run on a node that does not answer"
    old.stop()
    new.look()
    assert new.current() == JOBS
    new.stop()


def test_a_process_does_not_take_the_lease_of_a_later_process_for_its_own(store: Store) -> None:
    pod = identity("uid-1")
    earlier, later = driver(store, pod), driver(store, pod)
    earlier.look()
    later.look()
    assert earlier._lease is not None
    earlier._lease.renew()
    assert earlier._lease.lost
    earlier.stop()
    assert store.read(NAME) is not None, "the later process still holds the lease"
    later.stop()


def test_outside_of_kubernetes_the_host_holds_the_lease() -> None:
    assert holder({}, "pod-0") == "pod-0"


def test_a_driver_whose_lease_another_one_has_taken_serves_no_topic(store: Store) -> None:
    first = driver(store, "pod-0")
    first.look()
    present = store.read(NAME)
    assert present is not None
    taken = store.write(NAME, replace(present, holder="pod-1"), present.version)
    assert taken is not None
    assert first._lease is not None
    first._lease.renew()
    first.look()
    assert first.current() == {}
    store.remove(NAME, taken.version)
    first.look()
    assert first.current() == JOBS
    first.stop()


def test_a_driver_that_cannot_ask_for_the_lease_serves_its_topics(store: Store) -> None:
    clock, store.away = FakeClock(), True
    alone = driver(store, "pod-0", clock)
    alone.look()
    assert alone.current() is None
    clock.advance(UNANSWERED_SECONDS)
    alone.look()
    assert alone.current() == JOBS
    store.away = False
    other = driver(store, "pod-1")
    other.look()
    alone.look()
    assert other.current() == JOBS
    assert alone.current() == {}
    other.stop()


def test_a_driver_keeps_its_topics_while_the_lease_cannot_be_renewed(store: Store) -> None:
    first = driver(store, "pod-0")
    first.look()
    store.away = True
    assert first._lease is not None
    assert not first._lease.renew()
    first.look()
    assert first.current() == JOBS
    store.away = False
    first.stop()
