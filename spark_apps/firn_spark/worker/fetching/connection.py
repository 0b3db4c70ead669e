"""A connection to one broker: frames, versions, TLS and SASL.

Source: Kafka's protocol guide, "Network" and "SASL". It has one request in flight at a time.
"""

import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from kio.schema.errors import ErrorCode

from firn.kafka_clients import refuses_certificate
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, UnavailableError
from firn.records.cursor import MalformedError
from firn.records.message_reader import decode_answer
from firn.records.message_writer import Fields, encode_request
from firn.sasl import exchange
from firn_spark.worker.fetched import Numbers
from firn_spark.worker.fetching import answers
from firn_spark.worker.fetching.access import Access
from firn_spark.worker.fetching.buffers import Buffers

CONNECT_SECONDS = 10.0
ANSWER_BYTES = 1 << 30
"""Bytes of an answer. A batch comes whole, however large it is."""
LOWEST_RATE = 128 << 10
"""Bytes a second that an answer must have after the time for its first byte. The timeout of a socket starts again with each byte."""
SESSION_PART = 0.9
"""Part of the lifetime of a session after which the client authenticates again."""
CREDENTIALS_HINT = "correct the profile's credentials or certificates"
FETCH, METADATA, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 1, 3, 17, 18, 36
VERSIONS: Mapping[int, tuple[int, int]] = {
    FETCH: (4, 12),
    METADATA: (1, 12),
    SASL_HANDSHAKE: (1, 1),
    SASL_AUTHENTICATE: (0, 2),
}
"""Lowest and highest version of each API that this client uses. From version 13 on, Fetch names topics by ID."""
_FLEXIBLE = {FETCH: 12, METADATA: 9, SASL_AUTHENTICATE: 2}
_CLIENT = b"firn"

R = TypeVar("R")


class Connection:
    """A connection that is authenticated. Raises OSError while it breaks, and what the functions say."""

    def __init__(self, host: str, port: int, access: Access, seconds: float, buffers: Buffers) -> None:
        """Connect. Answers may take ``seconds``, and are read into ``buffers``. Raises AccessDeniedError if the broker refuses the client."""
        self.name = f"{host}:{port}"
        self._access = access
        self._number = 0
        self._asked: tuple[int, int] | None = None
        self._session_end: float | None = None
        """Monotonic second after which the client authenticates again; None if the session does not end."""
        self._versions: dict[int, tuple[int, int]] = {}
        self._seconds = seconds
        self._buffers = buffers
        self._socket: socket.socket = socket.create_connection((host, port), CONNECT_SECONDS)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = access.tls()
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
            self._socket.settimeout(seconds)
            self._negotiate()
            if access.protocol.startswith("SASL"):
                self._authenticate()
        except ssl.SSLError as error:
            self.close()
            self._refused(error)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def fileno(self) -> int:
        """Return the number of the socket, for `select`."""
        return self._socket.fileno()

    def version(self, api: int) -> int:
        """Return the version of an API for this broker. Raises UnavailableError if there is none."""
        lowest, highest = VERSIONS[api]
        first, last = self._versions.get(api, (0, -1))
        if min(highest, last) < max(lowest, first):
            raise UnavailableError(
                f"broker {self.name} serves versions {first} to {last} of API {api}, and Firn uses {lowest} to {highest}; "
                "use brokers of Kafka 2.1 or newer",
                reason=Reason.BROKER_UNREACHABLE,
            )
        return min(highest, last)

    def send(self, api: int, fields: Fields) -> None:
        """Send a request. Its answer has to be received before the next one."""
        if self._session_end is not None and time.monotonic() > self._session_end:
            # After the end of the session, the broker would close the connection (KIP-368).
            self._session_end = None
            self._authenticate()
        version = self.version(api)
        self._send(api, version, encode_request(api, version, fields))

    def receive(self, record: type[R]) -> tuple[R, Numbers]:
        """Receive the answer to the last request, as ``record``. Also return its frame, in which records are views."""
        assert self._asked is not None, "no request was sent"
        api, version = self._asked
        frame, place = self._receive()
        if version >= _FLEXIBLE.get(api, version + 1):
            place += 1  # no tagged fields
        try:
            return decode_answer(record, api, version, memoryview(frame), place), frame  # type: ignore[arg-type]
        except MalformedError as error:
            raise UnavailableError(
                f"broker {self.name}: an answer of API {api} is malformed: {error}", reason=Reason.BROKER_UNREACHABLE
            ) from error

    def _send(self, api: int, version: int, body: bytes) -> None:
        self._number = (self._number + 1) & 0x7FFFFFFF
        self._asked = api, version
        head = b"".join(number.to_bytes(size, "big") for number, size in ((api, 2), (version, 2), (self._number, 4)))
        head += (
            len(_CLIENT).to_bytes(2, "big") + _CLIENT + (b"\0" if version >= _FLEXIBLE.get(api, version + 1) else b"")
        )
        self._socket.sendall((len(head) + len(body)).to_bytes(4, "big") + head + body)

    def _receive(self) -> tuple[Numbers, int]:
        size = int.from_bytes(self._read(4).tobytes(), "big")
        if not 4 <= size <= ANSWER_BYTES:
            raise UnavailableError(
                f"broker {self.name}: an answer claims {size} bytes; check that the address is a Kafka listener of this protocol",
                reason=Reason.BROKER_UNREACHABLE,
            )
        frame = self._read(size)
        if int.from_bytes(frame[:4].tobytes(), "big") != self._number:
            raise UnavailableError(
                f"broker {self.name}: an answer belongs to another request", reason=Reason.BROKER_UNREACHABLE
            )
        return frame, 4

    def _read(self, size: int) -> Numbers:
        data = self._buffers.lend(size)
        view, place = memoryview(data), 0  # type: ignore[arg-type]
        deadline = time.monotonic() + self._seconds + size / LOWEST_RATE
        try:
            while place < size:
                count = self._socket.recv_into(view[place:])
                if not count:
                    raise ConnectionError(f"broker {self.name} closed the connection")
                place += count
                if place < size and time.monotonic() > deadline:
                    raise TimeoutError(
                        f"broker {self.name} sent only {place} of {size} bytes of an answer in time; check its load and the network"
                    )
        except ssl.SSLError as error:
            self._refused(error)
        data.setflags(write=False)
        return data

    def _refused(self, error: ssl.SSLError) -> NoReturn:
        """Raise for an error of TLS. With TLS 1.3, brokers refuse a certificate after the handshake."""
        if isinstance(error, ssl.SSLCertVerificationError) or refuses_certificate(_openssl(error)):
            raise AccessDeniedError(f"broker {self.name}: {error}; {CREDENTIALS_HINT}") from error
        raise error

    def _negotiate(self) -> None:
        self._send(API_VERSIONS, 0, b"")
        versions, _ = self.receive(answers.Versions)
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in versions.api_keys}

    def _authenticate(self) -> None:
        mechanism = self._access.mechanism or ""
        self.send(SASL_HANDSHAKE, {"mechanism": mechanism})
        shaken, _ = self.receive(answers.Handshake)
        if shaken.error_code is not ErrorCode.none:
            offered = ", ".join(shaken.mechanisms)
            raise AccessDeniedError(
                f"broker {self.name} offers {offered or 'no mechanism'}, and not {mechanism}; {CREDENTIALS_HINT}"
            )
        try:
            access = self._access
            exchange.authenticate(self._say, mechanism, access.username, access.password, access.tokens)
        except (AccessDeniedError, ValueError) as error:
            if self._access.tokens is not None:
                self._access.tokens.forget()
            # The driver reads the first of our errors in the text of a failed task.
            raise AccessDeniedError(f"broker {self.name}: {error}; {CREDENTIALS_HINT}") from None

    def _say(self, data: bytes) -> bytes:
        self.send(SASL_AUTHENTICATE, {"auth_bytes": data})
        authenticated, _ = self.receive(answers.Authentication)
        if authenticated.error_code is not ErrorCode.none:
            cause = authenticated.error_message or authenticated.error_code.name
            raise AccessDeniedError(cause)
        lifetime = authenticated.session_lifetime.total_seconds()
        self._session_end = time.monotonic() + lifetime * SESSION_PART if lifetime > 0 else None
        return authenticated.auth_bytes


def _openssl(error: ssl.SSLError) -> str:
    """Return an error's text in the form of OpenSSL's own messages, which `refuses_certificate` knows."""
    reason: Any = error.reason or ""
    return f"{error} {_ALERTS.get(reason, '')}"


_ALERTS = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "SSL alert number 116",
    "SSLV3_ALERT_BAD_CERTIFICATE": "SSL alert number 42",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "SSL alert number 46",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "SSL alert number 45",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "SSL alert number 44",
    "TLSV1_ALERT_UNKNOWN_CA": "SSL alert number 48",
    "TLSV1_ALERT_ACCESS_DENIED": "SSL alert number 49",
}
"""Python's names of alerts that refuse a certificate."""
