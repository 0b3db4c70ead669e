"""A connection to one of a profile's brokers, for requests that librdkafka lacks or fails at: frames, TLS and SASL.

Source: Kafka's protocol guide, "Network" and "SASL", and KIP-482 for compact forms and tagged fields.
"""

import socket
import ssl
import struct
import time
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaError, KafkaException

from firn import trust
from firn.kafka_clients import addresses, authorities
from firn.model.errors import AccessDeniedError, FirnError
from firn.model.jobs import KafkaConnection
from firn.sasl import exchange
from firn.sasl.tokens import GivenToken, TokenClient
from firn_operator.adapters import secret_files

_SASL_HANDSHAKE, _API_VERSIONS, _SASL_AUTHENTICATE = 17, 18, 36
_ANSWER_BYTES = 64 << 20
_CLIENT = b"firn"


class Reader:
    """Reads the fields of an answer in order. Raises KafkaException if the answer ends early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        taken = self._data[self._place : self._place + size]
        if size < 0 or len(taken) < size:
            raise failure(
                KafkaError._BAD_MSG, "the broker's answer ends early; check that the address is a Kafka listener"
            )
        self._place += size
        return taken

    def int8(self) -> int:
        """Return a number of one byte."""
        return int.from_bytes(self.take(1), "big", signed=True)

    def int16(self) -> int:
        """Return a number of two bytes."""
        return int.from_bytes(self.take(2), "big", signed=True)

    def int32(self) -> int:
        """Return a number of four bytes."""
        return int.from_bytes(self.take(4), "big", signed=True)

    def float64(self) -> float:
        """Return a floating-point number of eight bytes."""
        (value,) = struct.unpack(">d", self.take(8))
        return float(value)

    def string(self) -> str | None:
        """Return a text, or None for null."""
        size = self.int16()
        return None if size < 0 else self.take(size).decode(errors="replace")

    def compact_count(self) -> int:
        """Return the number of elements of an array in its compact form, which is 0 for null."""
        return max(0, self._varint() - 1)

    def compact_string(self) -> str | None:
        """Return a text in its compact form, or None for null."""
        size = self._varint() - 1
        return None if size < 0 else self.take(size).decode(errors="replace")

    def tags(self) -> dict[int, bytes]:
        """Return the tagged fields of a structure by their tags."""
        return {self._varint(): self.take(self._varint()) for _ in range(self._varint())}

    def _varint(self) -> int:
        value, shift = 0, 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def count(self) -> int:
        """Return the number of elements of an array, which is 0 for null."""
        return max(0, self.int32())


def string(text: str | None) -> bytes:
    """Return a text in Kafka's form; None is null."""
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def array(*elements: bytes) -> bytes:
    """Return encoded elements as an array."""
    return struct.pack(">i", len(elements)) + b"".join(elements)


NO_TAGS = b"\0"
"""The tagged fields of a structure that has none."""


def compact_string(text: str) -> bytes:
    """Return a text in its compact form."""
    data = text.encode()
    return _varint(len(data) + 1) + data


def compact_array(*elements: bytes) -> bytes:
    """Return encoded elements as an array in its compact form."""
    return _varint(len(elements) + 1) + b"".join(elements)


def _varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def failure(code: int, text: str | None) -> KafkaException:
    """Return an exception with one of the codes of Kafka or librdkafka."""
    return KafkaException(KafkaError(code, text or KafkaError(code).str()))


class BrokerConnection:
    """An authenticated connection to the first bootstrap server that answers. It blocks, and raises KafkaException."""

    def __init__(self, connection: KafkaConnection, seconds: float) -> None:
        """Connect. All requests together may take ``seconds``. Raises NotReadyError if a secret's file is missing."""
        self._connection = connection
        self._purpose = f"Kafka {connection.bootstrap_servers}"
        self._deadline = time.monotonic() + seconds
        self._number = 0
        self._versions: dict[int, tuple[int, int]] = {}
        """Lowest and highest version of each API that the broker serves."""
        self._socket = self._connected()
        try:
            if connection.protocol.startswith("SASL"):
                self._authenticate()
            self._versions = self._negotiated()
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def serves(self, api: int, version: int) -> bool:
        """Return True if the broker serves this version of an API."""
        lowest, highest = self._versions.get(api, (0, -1))
        return lowest <= version <= highest

    def request(self, api: int, version: int, body: bytes, *, tagged: bool = False) -> Reader:
        """Send a request, and return the fields of its answer. ``tagged``: the version has tagged fields.

        Fails if the broker does not serve this version of the API.
        """
        if not self.serves(api, version):
            raise failure(KafkaError.UNSUPPORTED_VERSION, f"the brokers do not serve version {version} of API {api}")
        return self._call(api, version, body, tagged=tagged)

    def _call(self, api: int, version: int, body: bytes, *, tagged: bool = False) -> Reader:
        self._number += 1
        head = struct.pack(">hhih", api, version, self._number, len(_CLIENT)) + _CLIENT + (NO_TAGS if tagged else b"")
        try:
            self._socket.settimeout(self._left())
            self._socket.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
            size = int.from_bytes(self._read(4), "big")
            if not 4 <= size <= _ANSWER_BYTES:
                raise failure(
                    KafkaError._BAD_MSG, f"an answer claims {size} bytes; check that the address is a Kafka listener"
                )
            answer = Reader(self._read(size))
        except OSError as error:
            raise _failed(error) from error
        if answer.int32() != self._number:
            raise failure(
                KafkaError._BAD_MSG,
                "the broker's answer belongs to another request; check that the address is a Kafka listener",
            )
        if tagged:
            answer.tags()
        return answer

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(self._left())
            part = self._socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return bytes(data)

    def _connected(self) -> socket.socket:
        problem: OSError = ConnectionError("no bootstrap server has a valid address")
        servers = addresses(self._connection.bootstrap_servers)
        context = self._tls()
        for number, (host, port) in enumerate(servers):
            try:
                # A server that does not answer leaves time for the next ones.
                connected = socket.create_connection((host, port), self._left() / (len(servers) - number))
                return context.wrap_socket(connected, server_hostname=host) if context is not None else connected
            except OSError as error:
                problem = error
        raise _failed(problem) from problem

    def _tls(self) -> ssl.SSLContext | None:
        connection = self._connection
        if not connection.protocol.endswith("SSL"):
            return None
        for path in (connection.certificate_path, connection.certificate_key_path):
            if path is not None:
                secret_files.read(path, self._purpose)
        authorities(connection, lambda path: secret_files.read(path, self._purpose))
        try:
            context = trust.client_context(connection.ca_paths)
            context.check_hostname = connection.verify_hostname
            if connection.certificate_path is not None:
                context.load_cert_chain(connection.certificate_path, connection.certificate_key_path)
        except OSError as error:
            raise failure(KafkaError._SSL, f"a certificate or key cannot be loaded: {error}") from error
        return context

    def _negotiated(self) -> dict[int, tuple[int, int]]:
        answer = self._call(_API_VERSIONS, 0, b"")
        code = answer.int16()
        if code:
            raise failure(code, None)
        ranges = [(answer.int16(), answer.int16(), answer.int16()) for _ in range(answer.count())]
        return {api: (lowest, highest) for api, lowest, highest in ranges}

    def _authenticate(self) -> None:
        connection = self._connection
        mechanism, name = connection.sasl_mechanism or "", connection.sasl_username or ""
        answer = self._call(_SASL_HANDSHAKE, 1, string(mechanism))
        code = answer.int16()
        if code:
            raise failure(KafkaError._AUTHENTICATION, f"{KafkaError(code).str()}: {mechanism}")
        path = connection.sasl_password_path
        password = secret_files.read(path, self._purpose) if path else ""
        token: GivenToken | TokenClient | None = None
        if connection.sasl_token_path is not None:
            token = GivenToken(secret_files.read(connection.sasl_token_path, self._purpose))
        elif connection.sasl_tokens is not None:
            token = self._tokens(name, password)
        try:
            exchange.authenticate(self._say, mechanism, name, password, token)
        except (AccessDeniedError, ValueError) as error:
            raise failure(KafkaError._AUTHENTICATION, str(error)) from None
        except FirnError as error:
            raise failure(KafkaError._TRANSPORT, str(error)) from None

    def _tokens(self, client: str, secret: str) -> TokenClient:
        endpoint = self._connection.sasl_tokens
        assert endpoint is not None
        authority = None if endpoint.ca_path is None else secret_files.read(endpoint.ca_path, self._purpose)
        return TokenClient(
            endpoint.url, client, secret, endpoint.scope, tuple(sorted(endpoint.extensions.items())), authority
        )

    def _say(self, data: bytes) -> bytes:
        answer = self._call(_SASL_AUTHENTICATE, 0, struct.pack(">i", len(data)) + data)
        code, text = answer.int16(), answer.string()
        if code:
            raise failure(KafkaError._AUTHENTICATION, text or KafkaError(code).str())
        return answer.take(max(0, answer.int32()))


def _failed(error: OSError) -> KafkaException:
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return failure(KafkaError._SSL, str(error))
    if isinstance(error, TimeoutError):
        return failure(KafkaError._TIMED_OUT, "the brokers did not answer in time")
    return failure(KafkaError._TRANSPORT, str(error))
