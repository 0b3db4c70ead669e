"""TLS of a listener: certificates that change, certificates of clients, and clients that stop in their handshake."""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import uvloop
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from firn.model.errors import InvalidSpecError
from firn_broker.access.principals import PrincipalRules
from firn_broker.access.session import Admission
from firn_broker.network.budget import Counted, Share
from firn_broker.network.output import PIECE, SMALL, pieces
from firn_broker.network.router import Buffers, Client
from firn_broker.network.server import Connection, Entrance, Server
from firn_broker.network.tls import TlsContext
from firn_broker.settings import ConnectionSettings, TlsSettings
from firn_broker.wire.headers import RequestHeader
from tests.authority import Authority, Pair
from tests.unit.broker.connections import OTHER, Router, answers, closed, free, request


class Listener:
    """A TLS listener on the loopback address."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.clients = Authority(directory, "clients")
        self.pair = self.authority.issue("broker", "127.0.0.1")
        self.settings = TlsSettings(cert_file=str(self.pair.certificate), key_file=str(self.pair.key))
        self.entrance = Entrance()
        self.connections = ConnectionSettings()
        self.certificates_only = False
        self.router: Router = Router()
        self.server: Server
        self.port = self.plain_port = 0

    def asks_for_certificates(self) -> None:
        self.settings = self.settings.model_copy(update={"client_ca_file": str(self.clients.file)})
        self.entrance = Entrance(admission=Admission(certificates=PrincipalRules(("RULE:^CN=(.*)$/$1/",))))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Listener"]:
        self.server = Server(self.connections)
        context = TlsContext("SECURE", self.settings, certificates_only=self.certificates_only)
        _, self.port = await self.server.bind("127.0.0.1", 0, self.entrance, context)
        _, self.plain_port = await self.server.bind("127.0.0.1", 0)
        await self.server.accept(self.router)  # type: ignore[arg-type]
        try:
            yield self
        finally:
            await self.server.stop(1, lambda: None)

    async def connect(
        self, pair: Pair | None = None, **versions: ssl.TLSVersion
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context(cafile=str(self.authority.file))
        for name, version in versions.items():
            setattr(context, name, version)
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context)

    async def ask(self, pair: Pair | None) -> None:
        """Connect and send a request. With TLS 1.3, a client learns of a refusal only after its handshake."""
        reader, writer = await self.connect(pair)
        writer.write(request(OTHER, 1))
        await answers(reader, 1)

    async def places(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.server.places) != count:
                await asyncio.sleep(0.005)


@pytest.fixture(
    scope="module", params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"]
)
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    """The broker runs on uvloop, whose TLS is another implementation."""
    policy: asyncio.AbstractEventLoopPolicy = request.param()
    return policy


@pytest.fixture
def listener(tmp_path: Path) -> Listener:
    return Listener(tmp_path)


def _serial(writer: asyncio.StreamWriter) -> str:
    certificate = writer.get_extra_info("ssl_object").getpeercert()
    return str(certificate["serialNumber"])


def _connections(listener: str) -> float:
    return REGISTRY.get_sample_value("firn_broker_listener_connections", {"listener": listener}) or 0.0


async def test_connections_are_counted_by_listener(listener: Listener) -> None:
    listener.entrance = Entrance(listener="secure")
    async with listener.serving():
        before = _connections("secure"), _connections("main")
        reader, writer = await listener.connect()
        writer.write(request(OTHER, 1))
        await answers(reader, 1)
        other, plain = await asyncio.open_connection("127.0.0.1", listener.plain_port)
        plain.write(request(OTHER, 1))
        await answers(other, 1)
        assert (_connections("secure"), _connections("main")) == (before[0] + 1, before[1] + 1)
        writer.close()
        plain.close()
        async with asyncio.timeout(30):
            while (_connections("secure"), _connections("main")) != before:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_requests_are_answered_over_tls(listener: Listener, version: ssl.TLSVersion) -> None:
    async with listener.serving():
        reader, writer = await listener.connect(minimum_version=version, maximum_version=version)
        writer.write(request(OTHER, 1) + request(OTHER, 2, size=100_000))
        assert await answers(reader, 2) == [1, 2]
        writer.close()


class Large(Router):
    """Answers with more bytes than the buffers of both sockets take. A share of a budget holds them."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener
        self.body: list[bytes | memoryview] = [
            random.Random(1).randbytes(size) for size in (5, 3 * PIECE, 1, 16 << 20, 100, PIECE - 1)
        ]

    async def handle(self, header: RequestHeader, frame: memoryview, client: Client) -> Buffers | None:
        await super().handle(header, frame, client)
        share = Share(self.listener.server._budget, client.peer)
        await share.acquire(sum(map(len, self.body)))
        return Counted(self.body, share)


async def half_sent(listener: Listener) -> tuple[Connection, asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a large answer, and wait until the broker has to wait for the client."""
    reader, writer = await listener.connect()
    writer.write(request(OTHER, 1))
    async with asyncio.timeout(30):
        while not (listener.server._budget.used and not next(iter(listener.server._connections))._output._open):
            await asyncio.sleep(0.001)
    (connection,) = listener.server._connections
    assert connection._output._left > PIECE
    return connection, reader, writer


async def test_an_answer_over_tls_is_encrypted_as_the_client_takes_it(listener: Listener) -> None:
    large = listener.router = Large(listener)
    async with listener.serving():
        connection, reader, writer = await half_sent(listener)
        assert connection._transport.get_write_buffer_size() <= SMALL + 2 * PIECE
        body = b"".join(large.body)
        assert await reader.readexactly(4 + len(body)) == len(body).to_bytes(4, "big") + body
        await free(listener.server._budget)
        writer.close()


async def test_a_client_that_disconnects_leaves_nothing_of_its_answer(listener: Listener) -> None:
    listener.router = Large(listener)
    async with listener.serving():
        _, _, writer = await half_sent(listener)
        writer.transport.abort()
        await free(listener.server._budget)


@pytest.mark.parametrize("sizes", [[], [0], [4, 9, 0, 100], [PIECE], [2 * PIECE], [7, 3 * PIECE, 1], [PIECE - 1, 1, 5]])
def test_pieces_have_the_bytes_of_an_answer_in_their_order(sizes: list[int]) -> None:
    buffers = [random.Random(size).randbytes(size) for size in sizes]
    found = list(pieces(buffers))
    assert b"".join(found) == b"".join(buffers)
    assert all(len(piece) == PIECE for piece in found[:-1])
    assert all(found)


async def test_a_lower_version_than_the_lowest_is_refused(listener: Listener) -> None:
    listener.settings = listener.settings.model_copy(update={"min_version": "1.3"})
    async with listener.serving():
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await listener.connect(maximum_version=ssl.TLSVersion.TLSv1_2)
        await listener.places(0)


async def test_bytes_that_are_not_tls_end_the_connection(listener: Listener) -> None:
    with capture_logs() as written:
        async with listener.serving():
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                writer.write(request(OTHER, 1))
                async with asyncio.timeout(30):
                    # A TLS alert may come before the end.
                    await reader.read()
            await listener.places(0)
            assert not listener.router.begun
    assert [(line["event"], line["audit"], line["address"]) for line in written] == [
        ("TLS handshake failed", True, "127.0.0.1")
    ]


async def test_a_new_certificate_serves_new_connections_and_old_ones_go_on(listener: Listener) -> None:
    async with listener.serving():
        reader, writer = await listener.connect()
        old = _serial(writer)
        listener.authority.issue("broker", "127.0.0.1")
        async with asyncio.timeout(30):
            while True:
                _, other = await listener.connect()
                new = _serial(other)
                other.close()
                if new != old:
                    break
                await asyncio.sleep(0.05)
        writer.write(request(OTHER, 1))
        assert await answers(reader, 1) == [1]
        writer.close()


def test_a_certificate_without_its_key_keeps_the_old_one(listener: Listener) -> None:
    context = TlsContext("SECURE", listener.settings)
    first = context.context
    key = listener.pair.key.read_bytes()
    listener.authority.issue("broker", "127.0.0.1")
    new_key = listener.pair.key.read_bytes()
    listener.pair.key.write_bytes(key)
    context.refresh()
    assert context.context is first
    listener.pair.key.write_bytes(new_key)
    context.refresh()
    assert context.context is not first


def test_a_file_that_cannot_be_read_for_a_while_is_read_again(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = TlsContext("SECURE", listener.settings)
    first = context.context
    listener.authority.issue("broker", "127.0.0.1")
    with monkeypatch.context() as broken:
        broken.setattr(ssl.SSLContext, "load_cert_chain", _fail)
        context.refresh()
    assert context.context is first
    context.refresh()
    assert context.context is not first


def _fail(*_: object) -> None:
    raise OSError("too many open files")


def test_a_missing_certificate_is_an_error_that_names_its_file(listener: Listener) -> None:
    listener.pair.certificate.unlink()
    with pytest.raises(InvalidSpecError, match=r"listener SECURE: cannot load .*broker\.crt"):
        TlsContext("SECURE", listener.settings)


@pytest.mark.parametrize("content", [None, b""], ids=["missing", "empty"])
def test_a_ca_of_clients_without_certificates_is_an_error_that_names_its_file(
    listener: Listener, content: bytes | None
) -> None:
    listener.asks_for_certificates()
    if content is None:
        listener.clients.file.unlink()
    else:
        listener.clients.file.write_bytes(content)
    with pytest.raises(InvalidSpecError, match=r"listener SECURE: cannot load the CA of clients from .*clients\.crt"):
        TlsContext("SECURE", listener.settings)


def test_new_connections_use_a_changed_ca_of_clients(listener: Listener, tmp_path: Path) -> None:
    new = Authority(tmp_path, "next")
    pairs = {"old": listener.clients.issue("old"), "new": new.issue("new")}
    texts = listener.clients.file.read_bytes(), new.file.read_bytes()
    listener.asks_for_certificates()
    context = TlsContext("SECURE", listener.settings, certificates_only=True)
    for number, accepted in enumerate([{"old"}, {"old", "new"}, {"new"}]):
        listener.clients.file.write_bytes(b"".join([texts[:1], texts, texts[1:]][number]))
        context.refresh()
        assert {name for name, pair in pairs.items() if _shakes_hands(context.context, listener, pair)} == accepted


def _shakes_hands(server: ssl.SSLContext, listener: Listener, pair: Pair) -> bool:
    """Return whether a server completes a handshake with a client in memory."""
    client = ssl.create_default_context(cafile=str(listener.authority.file))
    client.load_cert_chain(pair.certificate, pair.key)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for end in (asking, answering, asking):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    try:
        answering.do_handshake()
    except ssl.SSLCertVerificationError:
        return False
    return True


async def test_the_certificate_of_a_client_gives_its_principal(listener: Listener) -> None:
    listener.asks_for_certificates()
    async with listener.serving():
        reader, writer = await listener.connect(listener.clients.issue("shop.checkout"))
        writer.write(request(OTHER, 1))
        assert await answers(reader, 1) == [1]
        (connection,) = listener.server._connections
        assert connection.client.principal == "User:shop.checkout"
        await listener.places(0)
        writer.close()


async def test_an_intermediate_ca_of_clients_does_not_admit_clients_of_its_root(
    listener: Listener, tmp_path: Path
) -> None:
    root = Authority(tmp_path, "root")
    intermediate = Authority(tmp_path, "intermediate", root)
    listener.asks_for_certificates()
    listener.settings = listener.settings.model_copy(update={"client_ca_file": str(intermediate.file)})
    listener.certificates_only = True
    async with listener.serving():
        await listener.ask(intermediate.issue("client"))
        assert listener.router.begun
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await listener.ask(root.issue("other"))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("expired", "expired"),
        ("of another authority", "issuer"),
        ("of the brokers' authority", "self-signed certificate"),
        ("none", "the client has no certificate"),
    ],
)
async def test_a_client_without_a_valid_certificate_sends_no_request(
    listener: Listener, tmp_path: Path, kind: str, reason: str
) -> None:
    listener.asks_for_certificates()
    listener.certificates_only = True
    pair = None
    if kind == "expired":
        pair = listener.clients.issue("client", days=-1)
    elif kind == "of the brokers' authority":
        pair = listener.authority.issue("client")
    elif kind == "of another authority":
        pair = Authority(tmp_path, "other").issue("client")
    with capture_logs() as written:
        async with listener.serving():
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await listener.ask(pair)
            await listener.places(0)
            assert not listener.router.begun
    (failed,) = [line for line in written if line.get("audit")]
    assert (failed["event"], failed["address"], failed["mechanism"]) == (
        "authentication failed", "127.0.0.1", "certificate",
    )  # fmt: skip
    assert reason in failed["reason"]


async def test_clients_that_stop_in_their_handshake_are_closed(listener: Listener) -> None:
    listener.connections = ConnectionSettings(authentication_seconds=0.2)
    async with listener.serving():
        stopped = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(20)]
        # The first bytes of a ClientHello.
        for _, writer in stopped[:10]:
            writer.write(bytes.fromhex("16030101000100"))
        for reader, _ in stopped:
            async with asyncio.timeout(30):
                await reader.read()
        await listener.places(0)


async def test_an_address_has_few_places_before_authentication(listener: Listener) -> None:
    listener.connections = ConnectionSettings(max_unauthenticated_per_address=5)
    async with listener.serving():
        stopped = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(5)]
        await listener.places(5)
        reader, _ = await asyncio.open_connection("127.0.0.1", listener.port)
        await closed(reader)
        for _, writer in stopped:
            writer.close()
        await listener.places(0)
        _, writer = await listener.connect()
        writer.close()


async def test_the_oldest_handshake_makes_room_when_all_places_are_taken(listener: Listener) -> None:
    listener.connections = ConnectionSettings(max_unauthenticated=3)
    async with listener.serving():
        first, *_ = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(3)]
        await listener.places(3)
        reader, writer = await listener.connect()
        await closed(first[0])
        writer.write(request(OTHER, 1))
        assert await answers(reader, 1) == [1]
        writer.close()


async def test_requests_before_authentication_are_refused_by_their_first_bytes(listener: Listener) -> None:
    listener.asks_for_certificates()
    listener.connections = ConnectionSettings(authentication_seconds=600)
    async with listener.serving():
        reader, writer = await listener.connect()
        # Only the beginning of a Metadata request.
        writer.write(request(OTHER, 1)[:10])
        await closed(reader)
        assert not listener.router.begun


async def test_a_client_that_disconnects_keeps_its_place_until_its_request_ends(listener: Listener) -> None:
    listener.asks_for_certificates()
    listener.router.hold(1)
    async with listener.serving():
        _, writer = await listener.connect()
        writer.write(request(18, 1))
        await listener.router.until(1)
        writer.transport.abort()
        async with asyncio.timeout(30):
            while not all(connection._lost for connection in listener.server._connections):
                await asyncio.sleep(0.005)
        await listener.places(1)
        listener.router.gates[1].set()
        await listener.places(0)
