"""The internal listener of brokers with rights: TLS, and tokens whose principal needs rights on each topic."""

import asyncio
import base64
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from firn.driver_requests.landed_offsets import LANDED_PATH, DataFile, Landed, LandedRange, RecordFields
from firn.model.jobs import DirectReads
from firn_broker.access.audit import Audit
from firn_broker.access.authorizer import Authorizer
from firn_broker.access.mechanisms.jwks import key_set
from firn_broker.access.mechanisms.tokens import TokenVerifier
from firn_broker.access_types import ANY, Acl, Operation, PatternType, Permission, ResourceType
from firn_broker.internal.gates import AccountTokens
from firn_broker.internal.listener import InternalListener
from firn_broker.log.writer import Append
from firn_broker.network.server import Server
from firn_broker.network.tls import TlsContext
from firn_broker.settings import AuthorizationSettings, ConnectionSettings, OauthSettings, TlsSettings
from firn_broker.topics.topic_metadata import TopicMetadata
from firn_spark.kafka.diskless.direct_reads import DirectReader
from firn_spark.worker.fetching.slices import Slice
from tests.authority import Authority
from tests.fakes.clock import FakeClock
from tests.unit.broker.batches import batch
from tests.unit.broker.connections import Router
from tests.unit.broker.rig import FIRST, TOPIC, Rig, rig

ACCOUNT = "system:serviceaccount:firn-system:firn-ingest"
IDS = {"t": base64.urlsafe_b64encode(TOPIC.bytes).decode().rstrip("=")}
NAMED = Landed(
    topic=TOPIC,
    generation=1,
    until_ms=5,
    ranges=(LandedRange(0, 0, 1),),
    files=(DataFile("s3://a/b", 9),),
    fields=RecordFields(1, 2, 3, 4, 5, 6),
)
GROUPS = [[Slice("t", 0, 0, 2)]]
KEY = rsa.generate_private_key(65537, 2048)


class Acls:
    """The ACLs of the cluster."""

    version = 0

    def __init__(self, *acls: Acl) -> None:
        self.acls = {acl.principal: [acl] for acl in acls}


def allowed(topic: str, operation: Operation = Operation.READ) -> Acl:
    """Allow the driver an operation on a topic."""
    principal, literal = f"User:{ACCOUNT}", PatternType.LITERAL
    return Acl(principal, ANY, ResourceType.TOPIC, topic, literal, operation, Permission.ALLOW)


class Guarded:
    """An internal listener with TLS, and its files."""

    def __init__(self, made: Rig, directory: Path, *acls: Acl, unauthenticated: int = 20) -> None:
        self.made, self.directory = made, directory
        self.authority = Authority(directory)
        pair = self.authority.issue("broker", "127.0.0.1")
        self.tls = TlsSettings(cert_file=str(pair.certificate), key_file=str(pair.key))
        keys = directory / "keys.json"
        keys.write_text(json.dumps({"keys": [RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"kid": "one"}]}))
        oauth = OauthSettings(issuer="issuer", audience="brokers", jwks_file=str(keys), principal_claim="sub")
        settings = AuthorizationSettings.model_validate({"type": "Acl"})
        self.failed: list[tuple[str, str, str]] = []
        self.named: list[Landed] = []
        self.gate = AccountTokens(
            TokenVerifier(oauth, key_set(oauth)),
            Authorizer(Acls(*acls), settings, Audit(FakeClock())),
            TopicMetadata(made.store.topics, made.watermarks),
            lambda *given: self.failed.append(given),
        )
        self.server = Server(ConnectionSettings(max_unauthenticated_per_address=unauthenticated))
        self.port = 0

    async def start(self) -> None:
        listener = InternalListener(self.made.store.log, self.gate, self.named.append)
        context = TlsContext("internal", self.tls)
        _, self.port = await self.server.bind_tls("127.0.0.1", 0, context, listener.protocol)
        await self.server.accept(Router())  # type: ignore[arg-type]

    def token(self, **claims: object) -> str:
        """Return a token of the driver's ServiceAccount with these claims."""
        now = int(time.time())
        stated = {"iss": "issuer", "aud": ["brokers"], "sub": ACCOUNT, "iat": now, "exp": now + 600}
        return jwt.encode(stated | claims, KEY, "RS256", headers={"kid": "one"})

    async def name_files(self) -> int:
        """Name data files of the topic, as a driver does. Return the status."""
        context = ssl.create_default_context(cafile=self.authority.file)
        async with httpx.AsyncClient(verify=context) as client:
            headers = {"Authorization": f"Bearer {self.token()}"}
            address = f"https://127.0.0.1:{self.port}{LANDED_PATH}"
            return (await client.post(address, headers=headers, content=NAMED.model_dump_json())).status_code

    async def locate(self, ca: Path | None = None, previous: Path | None = None, **claims: object) -> bool:
        """Ask as a driver with a token of these claims. Return whether the brokers named the places."""
        token = self.directory / "token"
        token.write_text(self.token(**claims))
        reads = DirectReads(
            address=f"https://127.0.0.1:{self.port}",
            token_path=str(token),
            url="s3://log",
            listener_ca_path=str(ca or self.authority.file),
            previous_listener_ca_path=str(previous) if previous is not None else None,
        )
        ((found,),) = await asyncio.to_thread(DirectReader("waves", reads).locate, GROUPS, IDS)
        return bool(found.ranges)


@asynccontextmanager
async def guarded(directory: Path, *acls: Acl, **more: Any) -> AsyncIterator[Guarded]:
    async with rig() as made:
        await made.writer.append([Append(FIRST, batch(2), False)])
        found = Guarded(made, directory, *acls, **more)
        await found.start()
        try:
            yield found
        finally:
            await found.server.stop(1, lambda: None)


async def test_a_driver_with_read_on_the_topic_gets_the_places(tmp_path: Path) -> None:
    async with guarded(tmp_path, allowed("t")) as listener:
        assert await listener.locate()
        assert not len(listener.server.places), "a client whose token was accepted takes no place"
        assert listener.failed == []


async def test_a_driver_without_read_on_the_topic_gets_no_places(tmp_path: Path) -> None:
    async with guarded(tmp_path, allowed("other")) as listener:
        assert not await listener.locate()
        assert listener.failed == []


@pytest.mark.parametrize("claims", [{"aud": ["others"]}, {"exp": 1}, {"iss": "other"}, {"sub": None}])
async def test_a_token_that_is_not_for_the_brokers_gets_nothing(tmp_path: Path, claims: dict[str, Any]) -> None:
    async with guarded(tmp_path, allowed("t")) as listener:
        assert not await listener.locate(None, **claims)
        ((address, mechanism, reason),) = listener.failed
        assert (address, mechanism) == ("127.0.0.1", "OAUTHBEARER")
        assert "token" in reason


async def test_a_driver_sends_no_token_to_a_server_of_another_ca(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    async with guarded(tmp_path, allowed("t")) as listener:
        foreign = Authority(other, "foreign").file
        assert not await listener.locate(foreign)
        assert listener.failed == [], "no token arrived"
        # While the source of the certificate changes, brokers may have that of either source.
        for present in (foreign, other / "missing.crt"):
            assert await listener.locate(present, listener.authority.file)


async def test_a_driver_with_alter_on_the_topic_names_data_files(tmp_path: Path) -> None:
    async with guarded(tmp_path, allowed("t", Operation.ALTER)) as listener:
        assert await listener.name_files() == 200
        assert listener.named == [NAMED]


async def test_a_driver_with_read_on_the_topic_names_no_data_files(tmp_path: Path) -> None:
    async with guarded(tmp_path, allowed("t")) as listener:
        assert await listener.name_files() == 403
        assert listener.named == []


async def test_connections_without_a_token_share_the_places_of_clients(tmp_path: Path) -> None:
    async with guarded(tmp_path, allowed("t"), unauthenticated=1) as listener:
        _, silent = await asyncio.open_connection("127.0.0.1", listener.port)
        async with asyncio.timeout(10):
            while len(listener.server.places) < 1:
                await asyncio.sleep(0.01)
        assert not await listener.locate(), "the address has too many connections"
        silent.close()
        async with asyncio.timeout(10):
            while len(listener.server.places):
                await asyncio.sleep(0.01)
        assert await listener.locate()
