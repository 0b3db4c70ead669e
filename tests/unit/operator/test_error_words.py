"""Exceptions of libraries become errors that say who has to act, with a text that is stable across retries."""

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
from firn_operator.adapters.kafka import Brokers, ProfileClients


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
def test_errors_of_catalogs(error: Exception, kind: type[FirnError]) -> None:
    found = translated("table lake.demo.orders", error)
    assert type(found) is kind
    assert "table lake.demo.orders" in str(found)
    if kind is UnavailableError:
        assert found.reason == Reason.CATALOG_UNREACHABLE


def test_a_bug_of_ours_stays_what_it_is() -> None:
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
async def test_errors_of_kafka(code: int, kind: type[FirnError], reason: Reason) -> None:
    profile = ProfileClients("classic", Brokers(KafkaConnection(bootstrap_servers="kafka:9092")))
    translated = profile._translated("create topic orders", KafkaException(KafkaError(code, "because")))
    assert type(translated) is kind
    assert translated.reason == reason
    assert "create topic orders at kafka:9092 (profile classic): because" in str(translated)


async def test_what_changes_from_try_to_try_is_left_out() -> None:
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
