"""A broker's copy of credentials, ACLs and quotas equals the coordinator's, also after the coordinator went back."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from firn.model.errors import UnavailableError
from firn_broker.access.directory import AccessDirectory
from firn_broker.access_types import Access, AccessVersion, ScramMechanism
from firn_broker.metadata_store.sqlite.access import SqliteAccess
from firn_broker.metadata_store.sqlite.database import Inline
from firn_broker.metadata_store.sqlite.store import SqliteStore
from tests.contract.metadata_store.access import ANA, BEN, EVE, OF_ALL, OF_ANA, acl, credential
from tests.fakes.clock import FakeClock
from tests.fakes.virtual_time import run
from tests.unit.broker.whole import Shared, broker


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    store = SqliteStore(":memory:", FakeClock(), "cluster", Inline())
    await store.start()
    yield store
    await store.close()


@pytest.fixture
def directory(store: SqliteStore) -> AccessDirectory:
    return AccessDirectory(store.access)


async def test_a_refresh_replaces_what_has_changed_and_removes_what_is_gone(
    store: SqliteStore, directory: AccessDirectory
) -> None:
    await store.access.change_credentials([credential("ana"), credential("ben")])
    await store.access.create_acls([acl(ANA), acl(BEN)], 10)
    await store.access.change_quotas({OF_ANA: {"a": 1.0}, OF_ALL: {"a": 2.0}})
    await directory.refresh()
    before = directory.acls
    await store.access.change_credentials([], [credential("ana").key])
    await store.access.delete_acls([acl(ANA)])
    await store.access.change_quotas({OF_ANA: {"a": None}, OF_ALL: {"b": 3.0}})
    await directory.refresh()
    assert directory.credentials == {"ben": [credential("ben")]}
    assert directory.acls == {BEN: [acl(BEN)]}
    assert directory.quotas == {OF_ALL: {"a": 2.0, "b": 3.0}}
    assert before == {ANA: [acl(ANA)], BEN: [acl(BEN)]}, "whoever uses the earlier copy sees no half of a change"


async def test_a_credential_is_found_by_user_and_mechanism(store: SqliteStore, directory: AccessDirectory) -> None:
    strong, weak = credential("ana"), credential("ana", ScramMechanism.SHA_256)
    await store.access.change_credentials([strong, weak, credential("ben")])
    await directory.refresh()
    assert directory.credential("ana", ScramMechanism.SHA_512) == strong
    assert directory.credential("ana", ScramMechanism.SHA_256) == weak
    assert directory.credential("ben", ScramMechanism.SHA_256) is None
    assert directory.credential("eve", ScramMechanism.SHA_512) is None


async def test_the_version_rises_only_with_changes(store: SqliteStore, directory: AccessDirectory) -> None:
    await directory.refresh()
    versions = [directory.version]
    for change in (
        store.access.create_acls([acl()], 10),
        store.access.change_credentials([credential()]),
        store.access.change_quotas({OF_ALL: {"a": 1.0}}),
    ):
        await directory.refresh()
        await change
        await directory.refresh()
        versions.append(directory.version)
    assert versions == sorted(set(versions))
    await directory.refresh()
    assert directory.version == versions[-1]


@pytest.mark.parametrize("others", [(), (BEN,), (BEN, EVE), (BEN, EVE, ANA)], ids=["none", "fewer", "as many", "more"])
async def test_a_coordinator_that_went_back_replaces_the_whole_copy(
    others: tuple[str, ...], store: SqliteStore, directory: AccessDirectory
) -> None:
    """The numbers of the lost versions belong to other changes now."""
    await store.access.create_acls([acl(ANA, "kept")], 10)
    backup = store.database.connection.serialize()
    await store.access.create_acls([acl(ANA, "lost")], 10)
    await store.access.change_credentials([credential("lost")])
    await directory.refresh()
    store.database.connection.deserialize(backup)
    for principal in others:
        await store.access.create_acls([acl(principal, "new")], 10)
    await directory.refresh()
    assert not directory.credentials
    expected = {(ANA, "kept"), *((principal, "new") for principal in others)}
    assert {(each.principal, each.name) for rows in directory.acls.values() for each in rows} == expected


class SlowAccess(SqliteAccess):
    """Answers of loads wait for ``gates``, in order."""

    gates: list[asyncio.Event]

    async def load_access(self, known: AccessVersion | None = None) -> Access | None:
        loaded = await super().load_access(known)
        if self.gates:
            await self.gates.pop(0).wait()
        return loaded


async def test_a_refresh_sees_changes_that_ended_before_it_began(store: SqliteStore) -> None:
    slow = SlowAccess(store.database)
    slow.gates = [asyncio.Event()]
    gate, directory = slow.gates[0], AccessDirectory(slow)
    first = asyncio.create_task(directory.refresh())
    while slow.gates:
        await asyncio.sleep(0)
    await store.access.create_acls([acl()], 10)
    second = asyncio.create_task(directory.refresh())
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, second)
    assert directory.acls == {ANA: [acl()]}


def test_brokers_learn_changes_of_others_within_seconds() -> None:
    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        await shared.store.access.create_acls([acl(ANA)], 10)
        async with broker(shared, seed=1) as first, broker(shared, seed=2) as second:
            assert first.broker.access.acls == {ANA: [acl(ANA)]}, "a broker serves no client before it knows the ACLs"
            await first.broker.metadata_store.access.create_acls([acl(BEN)], 10)
            await asyncio.sleep(1.5)
            assert first.broker.access.acls == second.broker.access.acls == {ANA: [acl(ANA)], BEN: [acl(BEN)]}

    run(story())


def test_brokers_go_on_with_their_copy_while_the_coordinator_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            await shared.store.access.create_acls([acl(ANA)], 10)
            await asyncio.sleep(1.5)

            async def away(known: AccessVersion | None = None) -> None:
                raise UnavailableError("the coordinator is away")

            with monkeypatch.context() as patched:
                patched.setattr(shared.store.access, "load_access", away)
                await shared.store.access.create_acls([acl(BEN)], 10)
                await asyncio.sleep(5)
                assert asked.broker.access.acls == {ANA: [acl(ANA)]}
            await asyncio.sleep(1.5)
            assert set(asked.broker.access.acls) == {ANA, BEN}
            assert asked.broker.healthy

    run(story())


def test_brokers_serve_again_after_the_coordinator_lost_changes_of_access() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, seed=1) as first, broker(shared, seed=2) as second:
            await shared.store.access.create_acls([acl(ANA)], 10)
            await asyncio.sleep(10)
            backup = shared.store.database.connection.serialize()
            await shared.store.access.delete_acls([acl(ANA)])
            await shared.store.access.create_acls([acl(BEN)], 10)
            await asyncio.sleep(1.5)
            shared.store.database.connection.deserialize(backup)
            await asyncio.sleep(15)
            for asked in (first, second):
                assert asked.broker.not_ready is None
                assert asked.broker.access.acls == {ANA: [acl(ANA)]}
            await shared.store.access.create_acls([acl(EVE)], 10)
            await asyncio.sleep(1.5)
            assert set(first.broker.access.acls) == set(second.broker.access.acls) == {ANA, EVE}

    run(story())
