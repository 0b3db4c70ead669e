"""Check the promises of lease stores with files and with Leases of a real API server, and `Leases` on top of them."""

import itertools
import threading
import time
from pathlib import Path

import pytest
from kubernetes import client
from kubernetes import config as kube

from firn.model.errors import FencedError, UnavailableError
from firn_spark.leases import Files, KubernetesLeases, Lease, Leases, Record, Store
from tests.apiserver import ApiServer
from tests.fakes.clock import FakeClock
from tests.servers.process import await_true

_numbers = itertools.count()


class StoreContract:
    """Fixtures: ``store``, and ``name`` of a lease that does not exist."""

    def test_a_missing_lease_is_none(self, store: Store, name: str) -> None:
        assert store.read(name) is None

    def test_a_record_reads_back_as_it_was_written(self, store: Store, name: str) -> None:
        written = store.write(name, Record("me", 1_700_000_000.25, 30), None)
        assert written is not None
        assert written.version
        assert store.read(name) == written
        assert (written.holder, written.renewed, written.seconds) == ("me", 1_700_000_000.25, 30)

    def test_only_one_of_two_writers_wins(self, store: Store, name: str) -> None:
        first = store.write(name, Record("a", 1.0, 30), None)
        assert first is not None
        assert store.write(name, Record("b", 1.0, 30), None) is None
        second = store.write(name, Record("b", 2.0, 30), first.version)
        assert second is not None
        assert second.version != first.version
        assert store.write(name, Record("a", 3.0, 30), first.version) is None
        assert store.read(name) == second

    def test_a_deleted_lease_is_not_overwritten(self, store: Store, name: str) -> None:
        first = store.write(name, Record("a", 1.0, 30), None)
        assert first is not None
        store.remove(name, first.version)
        assert store.read(name) is None
        assert store.write(name, Record("a", 2.0, 30), first.version) is None
        again = store.write(name, Record("b", 2.0, 30), None)
        assert again is not None
        assert store.write(name, Record("a", 2.0, 30), first.version) is None

    def test_only_the_expected_version_is_removed(self, store: Store, name: str) -> None:
        first = store.write(name, Record("a", 1.0, 30), None)
        assert first is not None
        second = store.write(name, Record("b", 1.0, 30), first.version)
        assert second is not None
        store.remove(name, first.version)
        assert store.read(name) == second
        store.remove(name, second.version)
        store.remove(name, second.version)
        assert store.read(name) is None

    def test_one_of_many_concurrent_takers_gets_the_lease(self, store: Store, name: str) -> None:
        gate = threading.Barrier(8)
        taken: list[Lease] = []

        def want(number: int) -> None:
            gate.wait()
            lease = Leases(store, f"holder-{number}", 60).acquire(name)
            if lease is not None:
                taken.append(lease)

        threads = [threading.Thread(target=want, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (lease,) = taken
        lease.check()
        lease.release()

    def test_a_released_lease_is_free_at_once(self, store: Store, name: str) -> None:
        mine = Leases(store, "mine", 60).acquire(name)
        assert mine is not None
        assert Leases(store, "theirs", 60).acquire(name) is None
        assert Leases(store, "theirs", 60).holder(name) == "mine"
        mine.release()
        with pytest.raises(FencedError, match="released"):
            mine.check()
        theirs = Leases(store, "theirs", 60).acquire(name)
        assert theirs is not None
        theirs.release()

    def test_an_expired_lease_is_taken_and_its_old_holder_is_fenced(self, store: Store, name: str) -> None:
        old = store.write(name, Record("dead", time.time() - 61, 60), None)
        assert old is not None
        lease = Leases(store, "next", 60).acquire(name)
        assert lease is not None
        # The holder whose lease expired continues.
        dead = Lease(store, name, old, time.monotonic(), time.monotonic)
        dead.check()
        dead.renew()
        with pytest.raises(FencedError, match="next holds it now"):
            dead.check()
        lease.check()
        lease.release()

    def test_a_held_lease_is_renewed_periodically(self, store: Store, name: str) -> None:
        lease = Leases(store, "me", 1).acquire(name)
        assert lease is not None
        first = store.read(name)
        assert first is not None
        renewed = first.renewed
        await_true("two renewals", lambda: (stored := store.read(name)) is not None and stored.renewed > renewed + 1)
        assert Leases(store, "other", 1).acquire(name) is None
        lease.check()
        lease.release()

    def test_a_late_renewal_fences_the_holder_before_expiry(self, store: Store, name: str) -> None:
        clock = FakeClock()
        lease = Leases(store, "me", 60, clock.monotonic).acquire(name)
        assert lease is not None
        clock.advance(39)
        lease.check()
        clock.advance(2)
        with pytest.raises(FencedError, match="could not be renewed in time"):
            lease.check()
        lease.renew()
        lease.check()
        lease.release()

    def test_a_renewal_without_an_answer_is_retried_soon(
        self, store: Store, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock = FakeClock()
        lease = Leases(store, "me", 60, clock.monotonic).acquire(name)
        assert lease is not None
        write = store.write

        def unanswered(*given: object) -> Record | None:
            write(*given)  # type: ignore[arg-type]
            raise UnavailableError("no answer")

        clock.advance(20)
        monkeypatch.setattr(store, "write", unanswered)
        assert lease.renew() is False, "the outcome is unknown"
        monkeypatch.setattr(store, "write", write)
        assert lease.renew() is False, "the holder has the lease and does not know how long"
        clock.advance(2)
        assert lease.renew() is True
        clock.advance(39)
        lease.check()
        lease.release()

    def test_a_renewal_that_the_client_sent_twice_is_no_loss(
        self, store: Store, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = Leases(store, "me", 60, FakeClock().monotonic).acquire(name)
        assert lease is not None
        write = store.write

        def twice(name: str, record: Record, version: str | None) -> Record | None:
            write(name, record, version)
            return write(name, record, version)

        monkeypatch.setattr(store, "write", twice)
        assert lease.renew() is False
        assert not lease.lost
        monkeypatch.setattr(store, "write", write)
        assert lease.renew() is True
        lease.release()

    def test_a_lost_lease_is_renewed_no_more(self, store: Store, name: str) -> None:
        lease = Leases(store, "me", 1).acquire(name)
        assert lease is not None

        def taken() -> bool:
            held = store.read(name)
            return held is not None and store.write(name, Record("other", time.time(), 30), held.version) is not None

        await_true("another process takes the lease", taken)
        await_true("the loss is noticed", lambda: lease.lost)
        await_true("no thread renews it", lambda: f"lease-{name}" not in {each.name for each in threading.enumerate()})


class TestFiles(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return Files(str(tmp_path / "leases"))

    @pytest.fixture
    def name(self) -> str:
        return f"firn-table-{next(_numbers)}"


class TestKubernetes(StoreContract):
    @pytest.fixture(scope="class")
    def api(self, api_server: ApiServer) -> client.CoordinationV1Api:
        return coordination(api_server)

    @pytest.fixture
    def store(self, api: client.CoordinationV1Api) -> Store:
        return KubernetesLeases(api, "default", {"app.kubernetes.io/managed-by": "firn"})

    @pytest.fixture
    def name(self) -> str:
        return f"firn-table-{next(_numbers)}"

    def test_an_error_of_kubernetes_names_the_service_account(self, api: client.CoordinationV1Api) -> None:
        with pytest.raises(UnavailableError, match="service account"):
            KubernetesLeases(api, "no-such-namespace").write("l", Record("me", 1.0, 30), None)


def coordination(server: ApiServer) -> client.CoordinationV1Api:
    configuration = client.Configuration()
    kube.load_kube_config(str(server.kubeconfig), client_configuration=configuration)
    return client.CoordinationV1Api(client.ApiClient(configuration))
