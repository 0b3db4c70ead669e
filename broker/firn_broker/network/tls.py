"""TLS of a listener: contexts from files that change, and connections that are accepted before their handshake.

The event loop's own servers count no connection before its handshake has ended. So this module accepts connections
itself, and gives each a place among those that have not authenticated yet."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import structlog
from cryptography import x509

from firn.model.errors import InvalidSpecError
from firn_broker import metrics
from firn_broker.access.audit import Audit
from firn_broker.network.handshakes import Place, Places
from firn_broker.network.input import CLOSE_SECONDS
from firn_broker.settings import TlsSettings

log = structlog.get_logger()

BACKLOG = 1024
"""Connections that may wait to be accepted."""
ACCEPT_SECONDS = 0.1
"""Seconds between two attempts to accept a connection without free resources."""
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class TlsContext:
    """The newest context of a listener."""

    def __init__(self, name: str, settings: TlsSettings, *, certificates_only: bool = False) -> None:
        self._name = name
        self._settings = settings
        self._certificates_only = certificates_only
        """True if clients cannot authenticate in another way, so that a handshake without a certificate fails."""
        self._signature = self._signed()
        self._problem = ""
        """Why the changed files are not used; empty if they are."""
        self.context = self._load()
        """For new connections."""

    def refresh(self) -> None:
        """Load the files again if they have changed. If that fails, keep the context and try again at the next call."""
        signature = self._signed()
        if signature == self._signature:
            return
        try:
            self.context = self._load()
        except InvalidSpecError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("the new certificate is not used", listener=self._name, error=self._problem)
            return
        self._signature, self._problem = signature, ""
        log.info("the certificate has changed", listener=self._name)

    def _signed(self) -> list[tuple[int, ...]]:
        return [_signature(path) for path in self._files()]

    def _files(self) -> list[str]:
        settings = self._settings
        return [path for path in (settings.cert_file, settings.key_file, settings.client_ca_file) if path]

    def _load(self) -> ssl.SSLContext:
        """Make a context. Raises InvalidSpecError."""
        settings = self._settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = VERSIONS[settings.min_version]
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            context.load_cert_chain(settings.cert_file, settings.key_file)
            with open(settings.cert_file, "rb") as file:
                leaf = x509.load_pem_x509_certificate(file.read())
        except (OSError, ValueError, x509.InvalidVersion) as error:
            raise InvalidSpecError(
                f"configuration of the broker: listener {self._name}: cannot load the certificate of tls: {error}."
                f" Check the files {settings.cert_file}, {settings.key_file}"
            ) from error
        if settings.client_ca_file:
            # As with Java: an intermediate CA is enough. With its root, all other certificates of the root would be accepted.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.verify_mode = ssl.CERT_REQUIRED if self._certificates_only else ssl.CERT_OPTIONAL
            self._load_client_ca(context, settings.client_ca_file)
        metrics.CERTIFICATE_EXPIRY.labels(self._name).set_function(
            lambda: (leaf.not_valid_after_utc - datetime.now(UTC)).total_seconds()
        )
        return context

    def _load_client_ca(self, context: ssl.SSLContext, file: str) -> None:
        try:
            context.load_verify_locations(file)
        except OSError as error:
            raise InvalidSpecError(
                f"configuration of the broker: listener {self._name}: cannot load the CA of clients from {file}: {error}."
                " Put certificates in PEM into this file, or correct clientCaFile. In a profile, correct the key that access.clientCa"
                " names"
            ) from error


def _signature(path: str) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


async def bound_sockets(host: str, port: int) -> list[socket.socket]:
    """Bind a socket to each address of the host. Raises OSError."""
    sockets: list[socket.socket] = []
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            bound = socket.socket(family, kind, protocol)
            sockets.append(bound)
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind(address)
    except OSError:
        for bound in sockets:
            bound.close()
        raise
    return sockets


class TlsServer:
    """The accepting side of a TLS listener."""

    def __init__(
        self,
        listening: socket.socket,
        tls: TlsContext,
        places: Places,
        protocol: Callable[[Place], asyncio.BaseProtocol],
        seconds: float,
        audit: Audit,
    ) -> None:
        self._listening = listening
        self._tls = tls
        self._places = places
        self._protocol = protocol
        self._seconds = seconds
        self._audit = audit
        self._handshakes: dict[asyncio.Task[None], socket.socket] = {}
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Accept connections."""
        self._listening.listen(BACKLOG)
        self._accepting = asyncio.create_task(self._accept())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, peer = await loop.sock_accept(self._listening)
            except OSError as error:
                # No file descriptor or no memory is free.
                self._audit.refused("", f"cannot accept connections: {error}")
                await asyncio.sleep(ACCEPT_SECONDS)
                continue
            try:
                self._begin(connected, str(peer[0]))
            except Exception:
                # One connection must not end the listener.
                connected.close()
                log.exception("cannot begin a TLS handshake", peer=str(peer[0]))

    def _begin(self, connected: socket.socket, address: str) -> None:
        now = asyncio.get_running_loop().time()
        place = self._places.take(address, now)
        if place is None:
            connected.close()
            return
        task = asyncio.create_task(self._handshake(connected, place))
        # uvloop cannot cancel a handshake: it raises RuntimeError and keeps the connection. The end of the socket ends both.
        place.close = partial(_shut, connected)
        self._handshakes[task] = connected
        task.add_done_callback(self._handshakes.pop)

    async def _handshake(self, connected: socket.socket, place: Place) -> None:
        made = False

        def protocol() -> asyncio.BaseProtocol:
            return self._protocol(place)

        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol,
                connected,
                ssl=self._tls.context,
                ssl_handshake_timeout=self._seconds,
                ssl_shutdown_timeout=CLOSE_SECONDS,
            )
            made = True
        except (OSError, TimeoutError) as error:
            # ssl.SSLError is an OSError.
            metrics.FAILED_HANDSHAKES.inc()
            if (problem := _problem_of_certificate(error)) is not None:
                self._audit.failed(place.address, "certificate", problem)
            else:
                self._audit.handshake_failed(place.address, _reason(error))
        finally:
            if not made:
                place.leave()
                connected.close()

    def close(self) -> None:
        """Accept no more connections, and end the handshakes."""
        if self._accepting is not None:
            self._accepting.cancel()
        for connected in self._handshakes.values():
            _shut(connected)
        self._listening.close()


def _shut(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _problem_of_certificate(error: Exception) -> str | None:
    """Return why the certificate of the client is refused; None if the handshake failed for another reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    missing = getattr(error, "reason", None) == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
    return "the client has no certificate" if missing else None


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error) or type(error).__name__
