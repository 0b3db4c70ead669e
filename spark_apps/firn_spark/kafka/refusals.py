"""Errors of brokers and of librdkafka, by the party that has to act."""

from confluent_kafka import KafkaError

from firn.kafka_clients import refuses_certificate

NOT_LET_IN = frozenset({KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION, KafkaError._SSL})
DENIED = NOT_LET_IN | {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
UNANSWERED = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})


def refuses_connection(error: KafkaError) -> bool:
    """Return True if the brokers refused the connection itself: credentials or certificate."""
    return error.code() in NOT_LET_IN or refuses_certificate(error.str())


def denied(error: KafkaError) -> bool:
    """Return True if the brokers refused the connection or the request."""
    return error.code() in DENIED or refuses_connection(error)
