"""The admin client of a profile's brokers: librdkafka's, with early timeouts, and errors that show which component has to act."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from firn.client_renewal import Renewal, close
from firn.kafka_clients import RECONNECT_BACKOFF_MS, connection_settings, refuses_certificate
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn_operator.adapters import secret_files

REQUEST_TIMEOUT = 10.0
"""Seconds after which an admin request times out."""
_PATIENCE = 3.0
"""Seconds after which a request times out early while no broker accepts a connection."""
REST_SECONDS = 3.0
"""Seconds for which brokers that did not answer get no request, so that a thousand topics do not time out in turn."""
DENIALS = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
    }
)
"""Codes of brokers that refuse the client or the operation."""
_CLIENT_NOISE = re.compile(r"^\[[^\]]*\]:?\s*|\s*\((?:after \d+ms|\d+ identical).*$", re.DOTALL)

_REQUEST = re.compile(r"\bRequest\(processor=")
"""The request in the words of a Kafka that denies it, with numbers that differ each time."""


def client_settings(connection: KafkaConnection) -> dict[str, Any]:
    """Return librdkafka's settings for ``connection``. Raises NotReadyError if a secret's file is missing."""
    purpose = f"Kafka {connection.bootstrap_servers}"
    return {
        **connection_settings(connection, lambda path: secret_files.read(path, purpose)),
        "client.id": "firn",
        "socket.connection.setup.timeout.ms": 5000,
        "reconnect.backoff.ms": RECONNECT_BACKOFF_MS,
        "reconnect.backoff.max.ms": 2000,
        "log_level": 0,
    }


class ProfileAdmin:
    """The admin client of a profile. Another one replaces it after a change of a credential file, or without answers."""

    def __init__(self, name: str, connection: KafkaConnection | Callable[[], KafkaConnection]) -> None:
        """``connection`` may be a function, if the profile changes its listener."""
        self._name = name
        self._current = connection if callable(connection) else lambda: connection
        self._admin: AdminClient | None = None
        self._made_with: tuple[KafkaConnection, secret_files.Signature] | None = None
        self._trouble: KafkaError | None = None
        self._all_down = False
        self._resting_until = 0.0
        self._resting_for = ""
        self._renewal = Renewal()

    @property
    def _connection(self) -> KafkaConnection:
        return self._current()

    def kind(self, code: int, text: str) -> FirnError:
        """Return the error for one of Kafka's codes, with ``text`` as its first part."""
        return UnavailableError(text, reason=Reason.BROKER_UNREACHABLE)

    def check_rest(self) -> None:
        """Raise UnavailableError during `REST_SECONDS`."""
        if time.monotonic() < self._resting_until:
            raise UnavailableError(self._resting_for, reason=Reason.BROKER_UNREACHABLE)

    def admin(self) -> AdminClient:
        """Return the client, a new one if a secret file or the connection changed, or if brokers did not answer for a while.

        Raises UnavailableError during `REST_SECONDS`.
        """
        self.check_rest()
        connection = self._connection
        now = connection, secret_files.signature(connection.secret_files)
        if self._admin is None or now != self._made_with or self._renewal.due():
            settings = client_settings(connection)
            try:
                admin = AdminClient(cast(Any, {**settings, "error_cb": self._note}))
            except KafkaException as error:
                raise AccessDeniedError(
                    f"profile {self._name}: the Kafka client rejects its settings: {error.args[0].str()}"
                ) from error
            if self._admin is not None:
                self._renewal.replace(self._admin)
            self._admin, self._made_with = admin, now
        return self._admin

    def close(self) -> None:
        """Close the client."""
        self._renewal.close()
        if self._admin is not None:
            close(self._admin)
            self._admin = None

    def _note(self, trouble: KafkaError) -> None:
        # Only this callback distinguishes a broker that is down from one that refuses the client: requests just time out.
        if trouble.code() == KafkaError._ALL_BROKERS_DOWN:
            self._all_down = True
        else:
            self._trouble = trouble

    async def _answer(self, action: str, awaited: Any, fine: int | None = None) -> Any:
        """Return the result of ``awaited``, or its error as a value. Returns None if Kafka answers with the code
        ``fine``."""
        try:
            return await self._patiently(awaited)
        except KafkaException as error:
            code = error.args[0].code()
            if code == fine:
                return None
            return self._translated(action, error)

    async def _all(self, action: str, futures: "Iterable[Future[Any]]") -> list[Any]:
        """Return the results of many futures of one request. Raises the error of the first one that failed."""
        awaited = asyncio.gather(*(asyncio.wrap_future(future) for future in futures), return_exceptions=True)
        results = await self._answer(action, awaited)
        if isinstance(results, BaseException):
            raise results
        for result in results:
            if isinstance(result, KafkaException):
                raise self._translated(action, result)
            if isinstance(result, BaseException):
                raise result
        return list(results)

    async def _patiently(self, awaited: Any) -> Any:
        """Return the result of ``awaited``. Times out early while no broker can be reached."""
        task = asyncio.ensure_future(awaited)
        started = time.monotonic()
        self._all_down = False
        while not (await asyncio.wait({task}, timeout=0.5))[0]:
            if self._admin is not None:
                self._admin.poll(0)  # serves the error callback
            if self._all_down and time.monotonic() - started > _PATIENCE:
                task.add_done_callback(lambda late: late.cancelled() or late.exception())
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return task.result()

    def _translated(self, action: str, error: KafkaException) -> FirnError:
        cause: KafkaError = error.args[0]
        timed_out = cause.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
        if timed_out and self._admin is not None:
            self._renewal.unanswered()
            self._admin.poll(0)
            cause, self._trouble = self._trouble or cause, None
        subject = f"cannot {action} at {self._connection.bootstrap_servers} (profile {self._name})"
        text = KafkaError(cause.code()).str() if _REQUEST.search(cause.str()) else cause.str()
        text = _CLIENT_NOISE.sub("", text).rstrip(".") or cause.name()
        code = KafkaError._SSL if refuses_certificate(text) else cause.code()
        chained = self.kind(code, f"{subject}: {text}")
        if timed_out and isinstance(chained, UnavailableError):
            self._resting_until = time.monotonic() + REST_SECONDS
            self._resting_for = f"profile {self._name}: {text}"
        chained.__cause__ = error
        return chained
