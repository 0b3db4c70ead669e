"""ACLs of users: librdkafka's form for changes, and the request DescribeAcls.

librdkafka has this request too. But the Python client 2.16 hides its errors: it returns no ACLs if the broker denies the request.
Source: KIP-140, KIP-290, and the schemas of the message in Kafka. Version 1 has the same fields as version 3.
"""

import struct
from collections.abc import Mapping, Sequence

from confluent_kafka.admin import AclBinding, AclBindingFilter, AclPermissionType, ResourcePatternType, ResourceType
from confluent_kafka.admin import AclOperation as Operation

from firn_controllers.ports import AclOperation, AclPattern, AclResource, AclRule
from firn_operator.adapters.kafka.connection import BrokerConnection, Reader, failure, string

_DESCRIBE, _VERSION = 29, 1
_ANY = 1
"""Kafka's number for each kind of resource, pattern, operation or permission in a filter."""
_PRINCIPAL = "User:"
_EVERY_HOST = "*"
_RESOURCES: Mapping[AclResource, ResourceType] = {
    "Topic": ResourceType.TOPIC,
    "Group": ResourceType.GROUP,
    "TransactionalId": ResourceType.TRANSACTIONAL_ID,
    # librdkafka's name of the resource Cluster, which has the number of Kafka's.
    "Cluster": ResourceType.BROKER,
}
_PATTERNS: Mapping[AclPattern, ResourcePatternType] = {
    "Literal": ResourcePatternType.LITERAL,
    "Prefixed": ResourcePatternType.PREFIXED,
}
_OPERATIONS: Mapping[AclOperation, Operation] = {
    "Read": Operation.READ,
    "Write": Operation.WRITE,
    "Create": Operation.CREATE,
    "Delete": Operation.DELETE,
    "Alter": Operation.ALTER,
    "Describe": Operation.DESCRIBE,
    "DescribeConfigs": Operation.DESCRIBE_CONFIGS,
    "AlterConfigs": Operation.ALTER_CONFIGS,
}
_RESOURCE_NUMBERS = {value.value: name for name, value in _RESOURCES.items()}
_PATTERN_NUMBERS = {value.value: name for name, value in _PATTERNS.items()}
_OPERATION_NUMBERS = {value.value: name for name, value in _OPERATIONS.items()}
"""Names by the numbers of the protocol, which are those of librdkafka."""


def describe(broker: BrokerConnection, users: Sequence[str], each: int) -> dict[str, set[AclRule]]:
    """Return the rules of each user. Raises KafkaException.

    Up to ``each`` users have a request each. The rules of more users are found in the ACLs of all users.
    """
    principals = [_PRINCIPAL + user for user in users] if len(users) <= each else [None]
    found: dict[str, set[AclRule]] = {user: set() for user in users}
    for principal in principals:
        body = (
            struct.pack(">b", _ANY) + string(None) + struct.pack(">b", _ANY)
            + string(principal) + string(None) + struct.pack(">bb", _ANY, _ANY)
        )  # fmt: skip
        _collect(broker.request(_DESCRIBE, _VERSION, body), found)
    return found


def _collect(answer: Reader, found: Mapping[str, set[AclRule]]) -> None:
    """Add the rules of an answer to those of their users."""
    answer.int32()  # throttle time
    code, text = answer.int16(), answer.string()
    if code:
        raise failure(code, text)
    for _ in range(answer.count()):
        resource = _RESOURCE_NUMBERS.get(answer.int8())
        name = answer.string() or ""
        pattern = _PATTERN_NUMBERS.get(answer.int8())
        for _ in range(answer.count()):
            principal, host = answer.string() or "", answer.string()
            operation, permission = _OPERATION_NUMBERS.get(answer.int8()), answer.int8()
            rules = found.get(principal.removeprefix(_PRINCIPAL)) if principal.startswith(_PRINCIPAL) else None
            ours = host == _EVERY_HOST and permission == AclPermissionType.ALLOW.value
            if rules is not None and ours and resource and pattern and operation:
                rules.add(AclRule(resource, name, pattern, operation))


def binding(user: str, rule: AclRule) -> AclBinding:
    """Return the ACL of a rule."""
    return AclBinding(*_fields(user, rule))


def only(user: str, rule: AclRule) -> AclBindingFilter:
    """Return a filter for exactly this ACL."""
    return AclBindingFilter(*_fields(user, rule))


def _fields(
    user: str, rule: AclRule
) -> tuple[ResourceType, str, ResourcePatternType, str, str, Operation, AclPermissionType]:
    return (
        _RESOURCES[rule.resource],
        rule.name,
        _PATTERNS[rule.pattern],
        _PRINCIPAL + user,
        _EVERY_HOST,
        _OPERATIONS[rule.operation],
        AclPermissionType.ALLOW,
    )
