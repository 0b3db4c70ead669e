"""The contract of `AccessStore`, for every implementation."""

import asyncio
from collections.abc import Mapping

import pytest

from firn_broker.access.directory import AccessDirectory
from firn_broker.access_types import (
    ANY,
    ANY_USER,
    Access,
    AccessVersion,
    Acl,
    CredentialKey,
    Entity,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    ScramCredential,
    ScramMechanism,
)
from firn_broker.metadata_store import access_rows
from firn_broker.ports import MetadataStore
from tests.contract.metadata_store.builders import StoreContract

MOST = 1_000
ANA, BEN, EVE = "User:shop.ana", "User:shop.ben", "User:shop.eve"
OF_ANA: Entity = (("client-id", None), ("user", "shop.ana"))
OF_ALL: Entity = (("user", None),)


def credential(
    user: str = "ana", mechanism: ScramMechanism = ScramMechanism.SHA_512, iterations: int = 4096
) -> ScramCredential:
    secrets = (f"{user} {mechanism} {part}".encode() + b"\0\xff" for part in ("salt", "stored", "server"))
    return ScramCredential(CredentialKey(user, mechanism), iterations, *secrets)


def acl(
    principal: str = ANA,
    name: str = "orders",
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(principal, ANY, ResourceType.TOPIC, name, PatternType.LITERAL, operation, permission)


async def loaded(store: MetadataStore, known: AccessVersion | None = None) -> Access:
    """Load what has changed since a version; by default everything."""
    access = await store.access.load_access(known)
    assert access is not None
    return access


async def acls(store: MetadataStore) -> Mapping[str, list[Acl]]:
    """Load all ACLs."""
    return {principal: sorted(rows) for principal, rows in (await loaded(store)).acls.items()}


class AccessContract(StoreContract):
    """The contract of `AccessStore`."""

    async def test_a_new_cluster_has_no_credentials_acls_and_quotas(self, store: MetadataStore) -> None:
        access = await loaded(store)
        assert access == Access(AccessVersion(0, ""), {}, {}, {})
        assert await store.access.load_access(access.version) is None

    async def test_a_credential_replaces_the_one_with_the_same_key(self, store: MetadataStore) -> None:
        strong, weak = credential("ana"), credential("ana", ScramMechanism.SHA_256)
        assert await store.access.change_credentials([strong, weak, credential("ben")]) == []
        stronger = credential("ana", iterations=8192)
        assert await store.access.change_credentials([stronger]) == []
        access = await loaded(store)
        assert {user: set(rows) for user, rows in access.credentials.items()} == {
            "ana": {stronger, weak}, "ben": {credential("ben")},
        }  # fmt: skip
        (same,) = access.credentials["ben"]
        assert same.salt == credential("ben").salt
        assert type(same.key.mechanism) is ScramMechanism

    async def test_deletions_report_the_credentials_that_did_not_exist(self, store: MetadataStore) -> None:
        await store.access.change_credentials([credential("ana"), credential("ben")])
        missing = CredentialKey("ana", ScramMechanism.SHA_256)
        assert await store.access.change_credentials([], [credential("ana").key, missing]) == [missing]
        assert set((await loaded(store)).credentials) == {"ben"}

    async def test_one_call_stores_and_deletes_credentials(self, store: MetadataStore) -> None:
        await store.access.change_credentials([credential("ana")])
        version = (await loaded(store)).version
        await store.access.change_credentials([credential("ben")], [credential("ana").key])
        assert (await loaded(store, version)).credentials == {"ana": [], "ben": [credential("ben")]}

    async def test_the_last_use_of_a_credential_is_kept_until_it_changes(self, store: MetadataStore) -> None:
        ana, ben = credential(), credential("ben")
        other = credential(mechanism=ScramMechanism.SHA_256)
        await store.access.change_credentials([ana, other, ben])
        version = (await loaded(store)).version
        assert await store.access.last_uses(["ana", "ben"]) == {}
        await store.access.note_uses([ana.key, ben.key, ana.key], 2_000)
        await store.access.note_uses([ana.key, other.key], 1_000)
        assert await store.access.last_uses(["ana"]) == {ana.key: 2_000, other.key: 1_000}, "a later time stays"
        assert await store.access.last_uses(["eve"]) == {}
        assert await store.access.load_access(version) is None, "a use makes no version"
        await store.access.change_credentials([credential(iterations=8192)])
        await store.access.change_credentials([], [ben.key])
        assert await store.access.last_uses(["ana", "ben"]) == {other.key: 1_000}

    async def test_a_use_of_an_unknown_credential_is_not_stored(self, store: MetadataStore) -> None:
        await store.access.note_uses([credential().key], 1_000)
        await store.access.change_credentials([credential()])
        assert await store.access.last_uses(["ana"]) == {}

    async def test_an_acl_exists_once(self, store: MetadataStore) -> None:
        write = acl(operation=Operation.WRITE)
        assert await store.access.create_acls([acl(), acl(), acl(BEN)], MOST)
        assert await store.access.create_acls([acl(), write], MOST)
        assert await acls(store) == {ANA: sorted([acl(), write]), BEN: [acl(BEN)]}

    @pytest.mark.parametrize(
        "other",
        [
            acl()._replace(principal=ANY_USER),
            acl()._replace(host="10.0.0.1"),
            acl()._replace(resource_type=ResourceType.GROUP),
            acl()._replace(name="Orders"),
            acl()._replace(pattern=PatternType.PREFIXED),
            acl()._replace(operation=Operation.ALL),
            acl()._replace(permission=Permission.DENY),
        ],
        ids=["principal", "host", "type", "name", "pattern", "operation", "permission"],
    )
    async def test_acls_that_differ_in_one_field_are_two(self, store: MetadataStore, other: Acl) -> None:
        await store.access.create_acls([acl(), other], MOST)
        await store.access.delete_acls([acl()])
        assert await acls(store) == {other.principal: [other]}
        (same,) = (await acls(store))[other.principal]
        assert [type(value) for value in same] == [type(value) for value in other]

    async def test_no_acl_of_a_call_is_created_if_they_would_be_too_many(self, store: MetadataStore) -> None:
        assert await store.access.create_acls([acl(), acl(BEN)], 2)
        known = (await loaded(store)).version
        assert not await store.access.create_acls([acl(), acl(EVE)], 2)
        assert await store.access.load_access(known) is None
        assert set(await acls(store)) == {ANA, BEN}
        assert await store.access.create_acls([acl(), acl(BEN)], 2), "they exist already"
        await store.access.delete_acls([acl(BEN)])
        assert await store.access.create_acls([acl(EVE)], 2)

    async def test_deleting_acls_that_do_not_exist_does_nothing(self, store: MetadataStore) -> None:
        await store.access.create_acls([acl(), acl(BEN)], MOST)
        await store.access.delete_acls([acl(name="other"), acl(EVE), acl(BEN)])
        assert await acls(store) == {ANA: [acl()]}

    async def test_quotas_are_stored_and_deleted_by_entity_and_name(self, store: MetadataStore) -> None:
        await store.access.change_quotas(
            {
                OF_ANA: {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
                OF_ALL: {"producer_byte_rate": 10.0},
            }
        )
        assert (await loaded(store)).quotas == {
            OF_ANA: {"producer_byte_rate": 1024.0, "request_percentage": 12.5}, OF_ALL: {"producer_byte_rate": 10.0},
        }  # fmt: skip
        known = (await loaded(store)).version
        await store.access.change_quotas(
            {
                OF_ANA: {"producer_byte_rate": None, "request_percentage": 50.0, "consumer_byte_rate": None},
                OF_ALL: {"producer_byte_rate": None},
            }
        )
        assert (await loaded(store)).quotas == {OF_ANA: {"request_percentage": 50.0}}
        assert (await loaded(store, known)).quotas == {OF_ANA: {"request_percentage": 50.0}, OF_ALL: {}}

    @pytest.mark.parametrize("name", ["Zoë", 'a "quoted", name', "\0", "<default>", ""])
    async def test_a_quota_keeps_any_name_of_an_entity(self, store: MetadataStore, name: str) -> None:
        entities: dict[Entity, dict[str, float | None]] = {
            (("user", name),): {"a": 1.0},
            (("user", None),): {"a": 2.0},
            (("client-id", name), ("user", name)): {"a": 3.0},
        }
        await store.access.change_quotas(entities)
        assert (await loaded(store)).quotas == entities

    async def test_a_refresh_loads_only_changed_users_principals_and_entities(self, store: MetadataStore) -> None:
        await store.access.change_credentials([credential("ana"), credential("ben"), credential("eve")])
        await store.access.create_acls([acl(ANA), acl(ANA, "other"), acl(BEN), acl(EVE)], MOST)
        await store.access.change_quotas({OF_ANA: {"a": 1.0, "b": 2.0}, OF_ALL: {"a": 3.0}})
        known = (await loaded(store)).version
        await store.access.change_credentials([credential("ana", ScramMechanism.SHA_256)], [credential("ben").key])
        await store.access.create_acls([acl(ANA, "third")], MOST)
        await store.access.delete_acls([acl(BEN)])
        await store.access.change_quotas({OF_ANA: {"b": 5.0}})
        access = await loaded(store, known)
        assert not access.whole
        assert {user: set(rows) for user, rows in access.credentials.items()} == {
            "ana": {credential("ana"), credential("ana", ScramMechanism.SHA_256)}, "ben": set(),
        }  # fmt: skip
        assert {principal: set(rows) for principal, rows in access.acls.items()} == {
            ANA: {acl(ANA), acl(ANA, "other"), acl(ANA, "third")}, BEN: set(),
        }  # fmt: skip
        assert access.quotas == {OF_ANA: {"a": 1.0, "b": 5.0}}
        assert access.version == (await loaded(store)).version
        assert await store.access.load_access(access.version) is None

    async def test_every_change_makes_a_new_version(self, store: MetadataStore) -> None:
        known = (await loaded(store)).version
        for change in (
            store.access.change_credentials([credential()]),
            store.access.change_credentials([credential()]),
            store.access.create_acls([acl()], MOST),
            store.access.create_acls([acl()], MOST),
            store.access.delete_acls([acl(EVE)]),
            store.access.change_quotas({OF_ALL: {"a": None}}),
        ):
            await change
            access = await loaded(store, known)
            assert access.version.number > known.number
            assert access.version.mark not in ("", known.mark)
            known = access.version

    async def test_a_version_of_another_history_loads_everything(self, store: MetadataStore) -> None:
        await store.access.create_acls([acl()], MOST)
        version = (await loaded(store)).version
        for known in (version._replace(mark="another"), AccessVersion(version.number + 5, version.mark)):
            access = await loaded(store, known)
            assert (access.whole, access.acls, access.version) == (True, {ANA: [acl()]}, version)

    async def test_a_version_that_a_repair_made_has_no_changes_of_access(self, store: MetadataStore) -> None:
        await store.access.create_acls([acl()], MOST)
        known = (await loaded(store)).version
        await store.nodes.raise_counter("access", 10)
        repaired = await loaded(store, known)
        assert repaired == Access(AccessVersion(10, ""), {}, {}, {}, whole=False)
        assert await store.access.load_access(repaired.version) is None
        await store.access.create_acls([acl(BEN)], MOST)
        changed = await loaded(store, repaired.version)
        assert (changed.version.number, changed.whole, set(changed.acls)) == (11, True, {ANA, BEN})

    async def test_no_refresh_misses_a_change_of_access(self, store: MetadataStore) -> None:
        """Many changes at the same time, and refreshes that each continue from the version before."""
        directory = AccessDirectory(store.access)
        left = 4

        async def change(worker: int) -> None:
            nonlocal left
            for number in range(10):
                principal = f"User:{worker}"
                await store.access.create_acls([acl(principal, f"t{number}"), acl(ANY_USER, f"{worker}-{number}")], 999)
                await store.access.change_credentials([credential(f"{worker}-{number}")])
                if number % 3 == 0:
                    await store.access.delete_acls([acl(principal, f"t{number}")])
                    await store.access.change_credentials([], [credential(f"{worker}-{number}").key])
            left -= 1

        async def refresh() -> None:
            while left:
                await directory.refresh()

        await asyncio.gather(*(change(worker) for worker in range(1, 5)), refresh(), refresh())
        await directory.refresh()
        access = await loaded(store)
        assert {principal: set(rows) for principal, rows in directory.acls.items()} == {
            principal: set(rows) for principal, rows in access.acls.items()
        }
        assert directory.credentials == access.credentials
        assert (len(directory.credentials), sum(map(len, directory.acls.values()))) == (24, 64)

    async def test_a_version_with_forgotten_changes_loads_everything(
        self, store: MetadataStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(access_rows, "KEPT_CHANGES", 3)
        await store.access.create_acls([acl()], MOST)
        known = (await loaded(store)).version
        for number, is_whole in enumerate((False, False, True, True)):
            await store.access.create_acls([acl(BEN, f"t{number}")], MOST)
            access = await loaded(store, known)
            assert (access.whole, len(access.acls[BEN])) == (is_whole, number + 1)
        known = access.version
        await store.access.create_acls([acl(f"User:{number}") for number in range(5)], MOST)
        assert (await loaded(store, known)).whole
        assert await store.access.load_access((await loaded(store)).version) is None

    async def test_secrets_are_in_no_text_of_what_is_loaded(self, store: MetadataStore) -> None:
        await store.access.change_credentials([credential("ana")])
        text = repr(await loaded(store))
        assert "'ana'" in text
        assert not any(secret in text for secret in ("salt", "stored", "server"))

    async def test_the_first_secret_is_that_of_all_brokers(self, store: MetadataStore) -> None:
        version = (await loaded(store)).version
        assert await store.access.secret(b"first\0\xff") == b"first\0\xff"
        assert await store.access.secret(b"second") == b"first\0\xff"
        found = await asyncio.gather(*(store.access.secret(b"%d" % number) for number in range(5)))
        assert set(found) == {b"first\0\xff"}
        assert (await loaded(store)).version == version

    async def test_directories_load_the_secret_with_their_first_refresh(self, store: MetadataStore) -> None:
        directories = [AccessDirectory(store.access) for _ in range(3)]
        await asyncio.gather(*(directory.refresh() for directory in directories))
        (secret,) = {directory.secret for directory in directories}
        assert len(secret) == 32
