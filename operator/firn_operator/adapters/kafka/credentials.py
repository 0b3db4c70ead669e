"""Credentials of users: the request DescribeUserScramCredentials.

librdkafka has this request too. But librdkafka 2.16 ends the process if a broker denies it. Source: KIP-554.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from confluent_kafka import KafkaError
from confluent_kafka.admin import ScramMechanism

from firn.sasl.scram import LAST_USE_TAG
from firn_operator.adapters.kafka.connection import (
    NO_TAGS,
    BrokerConnection,
    Reader,
    compact_array,
    compact_string,
    failure,
)

_DESCRIBE, _VERSION = 50, 0
_EPOCH = datetime.fromtimestamp(0, UTC)


def describe(broker: BrokerConnection, users: Sequence[str]) -> dict[str, datetime | None]:
    """Return the last use of each user that has a credential of SCRAM-SHA-512: 1970 without any use, and None if the brokers
    do not describe it. Raises KafkaException."""
    body = compact_array(*(compact_string(user) + NO_TAGS for user in users)) + NO_TAGS
    answer = broker.request(_DESCRIBE, _VERSION, body, tagged=True)
    answer.int32()  # throttle time
    code, text = answer.int16(), answer.compact_string()
    if code:
        raise failure(code, text)
    found: dict[str, datetime | None] = {}
    for _ in range(answer.compact_count()):
        user, code, text = answer.compact_string() or "", answer.int16(), answer.compact_string()
        uses = _last_uses(answer)
        if ScramMechanism.SCRAM_SHA_512.value in uses:
            found[user] = uses[ScramMechanism.SCRAM_SHA_512.value]
        if code not in (KafkaError.NO_ERROR, KafkaError.RESOURCE_NOT_FOUND):
            raise failure(code, text)
    return found


def _last_uses(answer: Reader) -> dict[int, datetime | None]:
    """Return the last use of a user's credentials by mechanism. They are at the end of the user's part of the answer."""
    uses: dict[int, datetime | None] = {}
    for _ in range(answer.compact_count()):
        mechanism = answer.int8()
        answer.int32()  # iterations
        used = answer.tags().get(LAST_USE_TAG)
        milliseconds = None if used is None or len(used) != 8 else int.from_bytes(used, "big", signed=True)
        uses[mechanism] = None if milliseconds is None else _EPOCH + timedelta(milliseconds=milliseconds)
    answer.tags()
    return uses
