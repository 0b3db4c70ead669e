"""Changes of ACLs take effect at once where they are made, within seconds elsewhere, and are in the audit log."""

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from firn.model.errors import UnavailableError
from firn_broker.network.router import Client
from tests.fakes.virtual_time import run
from tests.unit.broker.test_acl_requests import DELETE, acl, create, filtering
from tests.unit.broker.test_authorization import CREDENTIAL, QUOTA
from tests.unit.broker.whole import Asked, Shared, broker
from tests.unit.broker.whole import create as create_topic

AUTHORIZATION = {"type": "Acl", "super_users": ["User:admin"]}


def client(asked: Asked, principal: str) -> Asked:
    signed_in = Client("10.0.0.1:1", "test")
    signed_in.session.principal = principal
    return Asked(asked.broker, signed_in)


async def end_of_log(asked: Asked) -> ErrorCode:
    answer: Any = await asked.ask(
        2, 5, replica_id=-1, isolation_level=0,
        topics=[{"name": "orders", "partitions": [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]}],
    )  # fmt: skip
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code


def test_a_created_acl_takes_effect_until_it_is_deleted() -> None:
    async def story() -> None:
        shared = Shared()
        async with (
            broker(shared, seed=1, authorization=AUTHORIZATION) as first,
            broker(shared, seed=2, authorization=AUTHORIZATION) as second,
        ):
            admin, ana = client(first, "User:admin"), client(first, "User:shop.ana")
            elsewhere = client(second, "User:shop.ana")
            await create_topic(admin, "orders")
            assert await end_of_log(ana) is ErrorCode.topic_authorization_failed
            assert await create(admin, acl()) == [ErrorCode.none]
            assert await end_of_log(ana) is ErrorCode.none
            await asyncio.sleep(1.5)
            assert await end_of_log(elsewhere) is ErrorCode.none
            await admin.ask(DELETE, 3, filters=[filtering(principal_filter="User:shop.ana")])
            assert await end_of_log(ana) is ErrorCode.topic_authorization_failed
            await asyncio.sleep(1.5)
            assert await end_of_log(elsewhere) is ErrorCode.topic_authorization_failed

    run(story())


def test_changes_of_access_are_in_the_audit_log_without_secrets() -> None:
    async def story() -> None:
        async with broker(authorization=AUTHORIZATION) as asked:
            admin = client(asked, "User:admin")
            with capture_logs() as written:
                await create(admin, acl())
                await admin.ask(DELETE, 3, filters=[filtering()])
                await admin.ask(49, 1, entries=[QUOTA], validate_only=True)
                await admin.ask(49, 1, entries=[QUOTA], validate_only=False)
                wrong = {**CREDENTIAL, "name": "b", "iterations": 1}
                await admin.ask(51, 0, upsertions=[CREDENTIAL, wrong], deletions=[{"name": "c", "mechanism": 2}])
        lines = [(line["principal"], line["operation"], *line["resources"]) for line in written if line.get("audit")]
        rule = "Topic:orders (LITERAL): ALLOW READ for User:shop.ana from *"
        assert lines == [
            ("User:admin", "CreateAcls", rule),
            ("User:admin", "DeleteAcls", rule),
            ("User:admin", "AlterClientQuotas", "Cluster:user=a"),
            ("User:admin", "AlterUserScramCredentials", "User:a"),
        ]
        assert not any(secret in str(written) for secret in ("salt", "pppp"))

    run(story())


def test_a_change_with_an_unknown_outcome_is_in_the_audit_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with broker(authorization=AUTHORIZATION) as asked:
            admin, access = client(asked, "User:admin"), asked.broker.metadata_store.access

            async def lost(acls: Any, most: int) -> bool:
                await create_acls(acls, most)
                raise UnavailableError("the answer was lost")

            create_acls = access.create_acls
            with capture_logs() as written:
                with monkeypatch.context() as patched:
                    patched.setattr(access, "create_acls", lost)
                    assert await create(admin, acl()) == [ErrorCode.request_timed_out]
                await asked.broker.access.refresh()
                assert len(asked.broker.access.acls["User:shop.ana"]) == 1, "the change has taken effect"
        lines = [(line["event"], line["operation"], line["counts"]) for line in written if line.get("audit")]
        assert lines == [("change with an unknown outcome", "CreateAcls", {"Topic": 1})]

    run(story())


def test_a_refused_change_is_not_in_the_audit_log() -> None:
    async def story() -> None:
        async with broker(authorization={**AUTHORIZATION, "max_acls": 1}) as asked:
            admin = client(asked, "User:admin")
            with capture_logs() as written:
                assert await create(admin, acl(), acl(principal="User:b")) == [ErrorCode.policy_violation] * 2
                await admin.ask(42, 2, groups_names=("unknown",))
            assert not [line for line in written if line.get("audit")]

    run(story())
