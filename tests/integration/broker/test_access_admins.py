"""Admin clients manage users, ACLs and quotas."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from tests.integration.broker.admins import admin
from tests.servers.firn_broker import FirnBroker


def test_librdkafka_manages_users(firn: FirnBroker, name: str) -> None:
    client: Any = admin(firn)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192)
    changes = [UserScramCredentialUpsertion(name, info, b"password")]
    for future in client.alter_user_scram_credentials(changes).values():
        future.result(30)
    (described,) = client.describe_user_scram_credentials([name])[name].result(30).scram_credential_infos
    assert (described.mechanism, described.iterations) == (ScramMechanism.SCRAM_SHA_512, 8192)
    assert name in client.describe_user_scram_credentials().result(30)
    deletions = [UserScramCredentialDeletion(name, ScramMechanism.SCRAM_SHA_512)]
    for future in client.alter_user_scram_credentials(deletions).values():
        future.result(30)
    with pytest.raises(KafkaException) as raised:
        client.alter_user_scram_credentials(deletions)[name].result(30)
    assert raised.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND


def test_librdkafka_manages_acls(firn: FirnBroker, name: str) -> None:
    client: Any = admin(firn)
    principal = f"User:{name}"
    acls = [
        AclBinding(
            ResourceType.TOPIC, name, ResourcePatternType.PREFIXED, principal, "*", operation, AclPermissionType.ALLOW
        )
        for operation in (AclOperation.READ, AclOperation.WRITE)
    ]
    for future in client.create_acls(acls).values():
        future.result(30)
    any_host: Any = None
    wanted = AclBindingFilter(
        ResourceType.TOPIC, f"{name}-suffix", ResourcePatternType.MATCH, principal, any_host, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    assert sorted(client.describe_acls(wanted).result(30)) == sorted(acls)
    (deleted,) = client.delete_acls([wanted]).values()
    assert sorted(deleted.result(30)) == sorted(acls)
    assert client.describe_acls(wanted).result(30) == []
