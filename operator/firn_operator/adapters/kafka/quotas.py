"""Quotas of users: the requests DescribeClientQuotas and AlterClientQuotas, which librdkafka does not have.

Source: KIP-546, and the schemas of both messages in Kafka. Version 0 has the same fields as version 1.
"""

import struct
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException

from firn_operator.adapters.kafka.connection import BrokerConnection, Reader, array, failure, string

_DESCRIBE, _ALTER = 48, 49
_VERSION = 0
_USER = "user"
_EXACT, _ANY = 0, 2
"""Match types of DescribeClientQuotas: the entity of a name, and each entity that has a name."""
_STRICT = b"\x01"
"""No entity with further parts: not the quotas of a user for one of its client ids."""
_NOT_ONLY_A_CHECK = b"\0"
Quotas = dict[str, float]
Changes = Mapping[str, float | None]


def describe(broker: BrokerConnection, users: Sequence[str], each: int) -> dict[str, Quotas]:
    """Return the quotas of the users that have any; none if the brokers have no quotas. Raises KafkaException.

    Up to ``each`` users have a request each. The quotas of more users are found in those of all users.
    """
    if not broker.serves(_DESCRIBE, _VERSION):
        return {}
    filters = [(_EXACT, user) for user in users] if len(users) <= each else [(_ANY, None)]
    found: dict[str, Quotas] = {}
    for match, name in filters:
        component = string(_USER) + struct.pack(">b", match) + string(name)
        found |= _described(broker.request(_DESCRIBE, _VERSION, array(component) + _STRICT))
    return {user: found[user] for user in users if user in found}


def alter(broker: BrokerConnection, changes: Mapping[str, Changes]) -> dict[str, KafkaException | None]:
    """Change quotas by user. Return the error of each user, or None. Raises KafkaException."""
    entries = [
        _entity(user) + array(*(_operation(*each) for each in wanted.items())) for user, wanted in changes.items()
    ]
    answer = broker.request(_ALTER, _VERSION, array(*entries) + _NOT_ONLY_A_CHECK)
    answer.int32()  # throttle time
    outcome: dict[str, KafkaException | None] = {}
    for _ in range(answer.count()):
        code, text = answer.int16(), answer.string()
        outcome[_name(answer)] = failure(code, text) if code else None
    return outcome


def _entity(user: str) -> bytes:
    return array(string(_USER) + string(user))


def _operation(key: str, value: float | None) -> bytes:
    return string(key) + struct.pack(">d?", value or 0.0, value is None)


def _described(answer: Reader) -> dict[str, Quotas]:
    answer.int32()  # throttle time
    code, text = answer.int16(), answer.string()
    if code:
        raise failure(code, text)
    found = {}
    for _ in range(answer.count()):
        name = _name(answer)
        found[name] = {answer.string() or "": answer.float64() for _ in range(answer.count())}
    return found


def _name(answer: Reader) -> str:
    """Return the user of an entity; empty for the default of all users."""
    parts = {answer.string(): answer.string() for _ in range(answer.count())}
    return parts.get(_USER) or ""
