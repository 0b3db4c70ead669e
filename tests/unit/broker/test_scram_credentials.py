"""DescribeUserScramCredentials and AlterUserScramCredentials answer as Kafka's controller does (KIP-554)."""

import base64
import hashlib
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from firn_broker.access_types import CredentialKey, ScramMechanism
from firn_broker.wire.requests import ScramCredentialUpsertion
from tests.fakes.virtual_time import run
from tests.unit.broker.whole import Asked, Shared, broker

DESCRIBE, ALTER = 50, 51
SHA_256, SHA_512 = 1, 2
SIZES = {SHA_256: 32, SHA_512: 64}


def upsertion(user: str, mechanism: int = SHA_512, iterations: int = 4096, **other: Any) -> dict[str, Any]:
    salted = b"p" * SIZES.get(mechanism, 32)
    return {
        "name": user, "mechanism": mechanism, "iterations": iterations, "salt": b"salt", "salted_password": salted, **other,
    }  # fmt: skip


def deletion(user: str, mechanism: int = SHA_512) -> dict[str, Any]:
    return {"name": user, "mechanism": mechanism}


async def alter(asked: Asked, *upsertions: dict[str, Any], delete: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    """Return errors and messages by user."""
    answer = await asked.ask(ALTER, 0, upsertions=upsertions, deletions=delete)
    results = {each.user: (each.error_code, each.error_message) for each in answer.results}
    assert len(results) == len(answer.results)
    return results


async def describe(asked: Asked, *users: str, every: bool = False) -> dict[str, Any]:
    """Return (mechanism, iterations) of each user, or the error."""
    answer = await asked.ask(DESCRIBE, 0, users=None if every else [{"name": user} for user in users])
    assert not answer.error_code
    return {
        each.user: each.error_code or [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in answer.results
    }


OK = (ErrorCode.none, None)


def test_the_broker_derives_the_keys_of_rfc_7677() -> None:
    """The example of RFC 7677, section 3: user "user", password "pencil"."""

    async def story() -> None:
        async with broker() as asked:
            salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
            salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
            assert await alter(asked, upsertion("user", SHA_256, salt=salt, salted_password=salted)) == {"user": OK}
            stored = asked.broker.access.credential("user", ScramMechanism.SHA_256)
            assert stored is not None
            assert (stored.salt, stored.iterations) == (salt, 4096)
            # The client's proof and the broker's signature of the example follow from these keys.
            assert base64.b64encode(stored.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
            assert base64.b64encode(stored.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="

    run(story())


def test_users_are_described_with_mechanisms_and_iterations() -> None:
    async def story() -> None:
        async with broker() as asked:
            await alter(asked, upsertion("ana"), upsertion("ben", SHA_256, 8192))
            await alter(asked, upsertion("ana", SHA_256))
            everyone = {"ana": [(SHA_256, 4096), (SHA_512, 4096)], "ben": [(SHA_256, 8192)]}
            assert await describe(asked, every=True) == everyone
            assert await describe(asked) == everyone
            assert await describe(asked, "ben", "eve", "ana", "ana") == {
                "ben": [(SHA_256, 8192)], "eve": ErrorCode.resource_not_found, "ana": ErrorCode.duplicate_resource,
            }  # fmt: skip
            assert await alter(asked, upsertion("ana", iterations=16384)) == {"ana": OK}
            assert await describe(asked, "ana") == {"ana": [(SHA_256, 4096), (SHA_512, 16384)]}

    run(story())


def test_deletions_delete_one_mechanism_and_report_missing_ones() -> None:
    async def story() -> None:
        async with broker() as asked:
            await alter(asked, upsertion("ana"))
            await alter(asked, upsertion("ana", SHA_256))
            results = await alter(asked, upsertion("new"), delete=(deletion("ana"), deletion("eve")))
            assert results == {
                "ana": OK,
                "eve": (ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"),
                "new": OK,
            }
            assert await describe(asked, every=True) == {"ana": [(SHA_256, 4096)], "new": [(SHA_512, 4096)]}

    run(story())


def test_a_user_cannot_be_changed_twice_by_a_request() -> None:
    async def story() -> None:
        async with broker() as asked:
            await alter(asked, upsertion("ana"))
            results = await alter(
                asked, upsertion("ana", SHA_256), upsertion("ben"), upsertion("ben", SHA_256), upsertion("eve"),
                delete=(deletion("ana"),),
            )  # fmt: skip
            twice = ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request"
            assert results == {"ana": twice, "ben": twice, "eve": OK}
            assert await describe(asked, every=True) == {"ana": [(SHA_512, 4096)], "eve": [(SHA_512, 4096)]}

    run(story())


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (upsertion(""), ErrorCode.unacceptable_credential),
        (upsertion("a\0b"), ErrorCode.unacceptable_credential),
        (upsertion("a\nb"), ErrorCode.unacceptable_credential),
        (upsertion("x" * 1001), ErrorCode.unacceptable_credential),
        (upsertion("ana", 0), ErrorCode.unsupported_sasl_mechanism),
        (upsertion("ana", 3), ErrorCode.unsupported_sasl_mechanism),
        (upsertion("ana", iterations=4095), ErrorCode.unacceptable_credential),
        (upsertion("ana", iterations=16385), ErrorCode.unacceptable_credential),
        (upsertion("ana", salt=b""), ErrorCode.unacceptable_credential),
        (upsertion("ana", salt=b"s" * 1001), ErrorCode.unacceptable_credential),
        (upsertion("ana", salted_password=b"p" * 63), ErrorCode.unacceptable_credential),
        (upsertion("ana", SHA_256, salted_password=b"p" * 64), ErrorCode.unacceptable_credential),
    ],
)
def test_an_invalid_credential_is_not_stored(wrong: dict[str, Any], error: ErrorCode) -> None:
    async def story() -> None:
        async with broker() as asked:
            results = await alter(asked, wrong, upsertion("valid"))
            assert results.pop("valid") == OK
            ((code, message),) = results.values()
            assert code is error
            assert message
            assert set(asked.broker.access.credentials) == {"valid"}

    run(story())


@pytest.mark.parametrize(
    ("user", "mechanism", "error"),
    [
        ("", SHA_512, ErrorCode.unacceptable_credential),
        ("a\0b", SHA_512, ErrorCode.unacceptable_credential),
        ("ana", 3, ErrorCode.unsupported_sasl_mechanism),
    ],
)
def test_an_invalid_deletion_is_rejected(user: str, mechanism: int, error: ErrorCode) -> None:
    async def story() -> None:
        async with broker() as asked:
            await alter(asked, upsertion("ana"))
            ((code, _),) = (await alter(asked, delete=(deletion(user, mechanism),))).values()
            assert code is error
            assert set(asked.broker.access.credentials) == {"ana"}

    run(story())


def test_another_broker_describes_a_change_at_once() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, seed=1) as first, broker(shared, seed=2) as second:
            await alter(first, upsertion("ana"))
            assert await describe(second, "ana") == {"ana": [(SHA_512, 4096)]}
            assert second.broker.access.credentials["ana"][0].key == CredentialKey("ana", ScramMechanism.SHA_512)

    run(story())


def test_requests_show_no_secrets_as_text() -> None:
    text = repr(ScramCredentialUpsertion("ana", SHA_512, 4096, b"the salt", b"the hash"))
    assert "ana" in text
    assert "the " not in text


def test_brokers_give_an_unknown_user_one_salt_also_after_a_restart() -> None:
    async def story() -> None:
        shared, key = Shared(), CredentialKey("nobody", ScramMechanism.SHA_512)
        found = set()
        async with broker(shared, seed=1) as one, broker(shared, seed=2) as two:
            found |= {asked.broker._proofs.credentials.find(key)[0].salt for asked in (one, two)}
        async with broker(shared, seed=3) as again:
            found.add(again.broker._proofs.credentials.find(key)[0].salt)
        assert len(found) == 1

    run(story())
