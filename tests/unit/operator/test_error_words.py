"""Exceptions of libraries become errors that show which component has to act, with texts that are stable across
retries."""

import obstore.exceptions
import psycopg
import pytest
import requests
from confluent_kafka import KafkaError, KafkaException
from pyiceberg import exceptions as iceberg_errors
from sqlalchemy import exc as sql_errors

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError, InvalidSpecError, NotReadyError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn_operator.adapters.iceberg.catalog_errors import translated
from firn_operator.adapters.kafka.topics import Brokers, ProfileClients


def refused(cause: str | Exception) -> sql_errors.DBAPIError:
    """Return SQLAlchemy's form of a driver's exception. A connection error has no SQLSTATE."""
    return sql_errors.DBAPIError("SELECT 1", {}, psycopg.OperationalError(cause) if isinstance(cause, str) else cause)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (refused('connection failed: FATAL:  password authentication failed for user "firn"'), AccessDeniedError),
        (refused('connection failed: FATAL:  role "firn" does not exist'), AccessDeniedError),
        (refused('connection failed: FATAL:  database "lake" does not exist'), UnavailableError),
        (refused(psycopg.errors.InsufficientPrivilege("no way to table iceberg_tables")), AccessDeniedError),
        (refused(psycopg.errors.UndefinedTable('relation "iceberg_tables" does not exist')), UnavailableError),
        (refused(psycopg.errors.UndefinedObject('role "nobody" does not exist')), UnavailableError),
        (refused("connection refused"), UnavailableError),
        (obstore.exceptions.PermissionDeniedError("403"), AccessDeniedError),
        (obstore.exceptions.GenericError("connection refused"), UnavailableError),
        (iceberg_errors.ForbiddenError("no"), AccessDeniedError),
        (iceberg_errors.OAuthError("no"), AccessDeniedError),
        (iceberg_errors.ServerError("later"), UnavailableError),
        (iceberg_errors.CommitStateUnknownException("who knows"), UnavailableError),
        (requests.ConnectionError("refused"), UnavailableError),
    ],
)
def test_an_error_of_a_catalog_has_its_kind_and_text(error: Exception, kind: type[FirnError]) -> None:
    translation = translated("table lake.demo.orders", error)
    assert type(translation) is kind
    assert "table lake.demo.orders" in str(translation)
    if kind is UnavailableError:
        assert translation.reason == Reason.CATALOG_UNREACHABLE


def test_an_unexpected_error_is_not_translated() -> None:
    assert translated("table", KeyError("oops")) is None


@pytest.mark.parametrize(
    ("code", "kind", "reason"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDeniedError, Reason.ACCESS_DENIED),
        (KafkaError._AUTHENTICATION, AccessDeniedError, Reason.ACCESS_DENIED),
        (KafkaError.INVALID_CONFIG, InvalidSpecError, Reason.BAD_TOPIC_CONFIG),
        (KafkaError.POLICY_VIOLATION, InvalidSpecError, Reason.BAD_TOPIC_CONFIG),
        (KafkaError.INVALID_REPLICATION_FACTOR, NotReadyError, Reason.BROKER_STARTING),
        (KafkaError._TIMED_OUT, UnavailableError, Reason.BROKER_UNREACHABLE),
        (KafkaError.NOT_CONTROLLER, UnavailableError, Reason.BROKER_UNREACHABLE),
    ],
)
async def test_an_error_of_kafka_has_its_kind_and_text(code: int, kind: type[FirnError], reason: Reason) -> None:
    profile = ProfileClients("classic", Brokers(KafkaConnection(bootstrap_servers="kafka:9092")))
    translated = profile._translated("create topic orders", KafkaException(KafkaError(code, "because")))
    assert type(translated) is kind
    assert translated.reason == reason
    assert "create topic orders at kafka:9092 (profile classic): because" in str(translated)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("retention.m", "; did you mean retention.ms?"),
        ("cleanup.policies", "; did you mean cleanup.policy?"),
        ("x.y", ""),
    ],
)
async def test_an_unknown_topic_config_leads_to_the_similar_one(name: str, suggestion: str) -> None:
    profile = ProfileClients("classic", Brokers(KafkaConnection(bootstrap_servers="kafka:9092")))
    refused = KafkaException(KafkaError(KafkaError.INVALID_CONFIG, f"Unknown topic config name: {name}"))
    assert str(profile._translated("create topic dbad", refused)).endswith(
        f"Unknown topic config name: {name}{suggestion}"
    )


async def test_texts_omit_details_that_change_with_each_try() -> None:
    profile = ProfileClients("classic", Brokers(KafkaConnection(bootstrap_servers="kafka:9092")))
    words = {
        str(profile._translated("list brokers", KafkaException(KafkaError(KafkaError._TRANSPORT, text))))
        for text in (
            "kafka:9092/bootstrap: Connect to ipv4#10.0.0.1:9092 failed: Connection refused (after 0ms in state CONNECT)",
            "kafka:9092/bootstrap: Connect to ipv4#10.0.0.1:9092 failed: Connection refused (after 2012ms in state CONNECT,"
            " 3 identical error(s) suppressed)",
        )
    }
    assert len(words) == 1, words
