"""Credentials of users: the request DescribeUserScramCredentials.

librdkafka has this request too. But librdkafka 2.16 ends the process if a broker denies it. Source: KIP-554.
"""

from collections.abc import Sequence

from confluent_kafka import KafkaError
from confluent_kafka.admin import ScramMechanism

from firn_operator.adapters.kafka.connection import (
    NO_TAGS,
    BrokerConnection,
    Reader,
    compact_array,
    compact_string,
    failure,
)

_DESCRIBE, _VERSION = 50, 0


def describe(broker: BrokerConnection, users: Sequence[str]) -> set[str]:
    """Return the users that have a credential of SCRAM-SHA-512. Raises KafkaException."""
    body = compact_array(*(compact_string(user) + NO_TAGS for user in users)) + NO_TAGS
    answer = broker.request(_DESCRIBE, _VERSION, body, tagged=True)
    answer.int32()  # throttle time
    code, text = answer.int16(), answer.compact_string()
    if code:
        raise failure(code, text)
    found = set()
    for _ in range(answer.compact_count()):
        user, code, text = answer.compact_string() or "", answer.int16(), answer.compact_string()
        if ScramMechanism.SCRAM_SHA_512.value in _mechanisms(answer):
            found.add(user)
        if code not in (KafkaError.NO_ERROR, KafkaError.RESOURCE_NOT_FOUND):
            raise failure(code, text)
    return found


def _mechanisms(answer: Reader) -> set[int]:
    """Return the mechanisms of a user's credentials, at the end of the user's part of the answer."""
    mechanisms = set()
    for _ in range(answer.compact_count()):
        mechanisms.add(answer.int8())
        answer.int32()  # iterations
        answer.skip_tags()
    answer.skip_tags()
    return mechanisms
