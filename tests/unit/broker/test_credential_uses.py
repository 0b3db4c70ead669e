"""The last uses of credentials: stored soon after the first use, once a minute later, and again after an outage."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from kio.index import load_response_schema

from firn.model.errors import UnavailableError
from firn.records.message_reader import decode_answer
from firn.records.message_writer import LAST_USE, encode
from firn_broker.access.mechanisms.exchange import Step
from firn_broker.access.session import Admission, Session
from firn_broker.access.uses import STORED_SECONDS, CredentialUses
from firn_broker.access_types import CredentialKey, ScramCredential, ScramMechanism
from firn_broker.ports import AccessStore
from tests.fakes.clock import FakeClock
from tests.unit.broker.connections import gone, serving
from tests.unit.broker.test_sessions import Scripted

ANA, BEN = (CredentialKey(user, ScramMechanism.SHA_512) for user in ("ana", "ben"))


class Store:
    """The part of `AccessStore` that stores uses."""

    def __init__(self) -> None:
        self.noted: list[tuple[set[CredentialKey], int]] = []
        self.down = False

    async def note_uses(self, keys: Sequence[CredentialKey], used_ms: int) -> None:
        if self.down:
            raise UnavailableError("no coordinator")
        self.noted.append((set(keys), used_ms))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def uses(store: Store, clock: FakeClock) -> CredentialUses:
    return CredentialUses(cast(AccessStore, store), clock)


def milliseconds(clock: FakeClock) -> int:
    return int(clock.now().timestamp() * 1000)


async def test_a_use_is_stored_at_once_and_later_uses_once_a_minute(
    uses: CredentialUses, store: Store, clock: FakeClock
) -> None:
    await uses.flush()
    assert store.noted == []
    uses.note(ANA)
    await uses.flush()
    assert store.noted == [({ANA}, milliseconds(clock))]
    for _ in range(int(STORED_SECONDS) - 1):
        clock.advance(1)
        uses.note(ANA)
        await uses.flush()
    assert len(store.noted) == 1
    uses.note(BEN)
    await uses.flush()
    assert store.noted[1:] == [({BEN}, milliseconds(clock))]
    clock.advance(1)
    uses.note(ANA)
    await uses.flush()
    assert store.noted[2:] == [({ANA}, milliseconds(clock))]
    clock.advance(STORED_SECONDS)
    await uses.flush()
    assert len(store.noted) == 3, "no client uses them any more"


async def test_a_use_during_an_outage_is_stored_afterwards(
    uses: CredentialUses, store: Store, clock: FakeClock
) -> None:
    store.down = True
    uses.note(ANA)
    with pytest.raises(UnavailableError):
        await uses.flush()
    store.down = False
    uses.note(ANA)
    await uses.flush()
    assert store.noted == [({ANA}, milliseconds(clock))]


def session_of_ana(uses: CredentialUses) -> Session:
    secrets: Any = (b"salt", b"stored", b"server")
    step = Step(b"", "User:ana", credential=ScramCredential(ANA, 4096, *secrets))
    return Session(Admission({"SCRAM": lambda: Scripted([step])}, uses=uses))


async def test_an_open_connection_uses_its_credential_all_the_time(
    uses: CredentialUses, store: Store, clock: FakeClock
) -> None:
    session = session_of_ana(uses)
    assert session.handshake("SCRAM")
    await session.authenticate(b"1", lambda: 0.0)
    await uses.flush()
    async with serving() as (server, _, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await gone(server, 1)
        (connection,) = server._connections
        connection.client.session = session
        clock.advance(STORED_SECONDS)
        connection.check_timeouts(asyncio.get_running_loop().time())
        await uses.flush()
        writer.close()
    assert [keys for keys, _ in store.noted] == [{ANA}, {ANA}]


async def test_a_session_notes_its_credential_from_its_authentication_on(uses: CredentialUses, store: Store) -> None:
    session = session_of_ana(uses)
    session.note_use()
    assert session.handshake("SCRAM")
    await uses.flush()
    assert store.noted == []
    await session.authenticate(b"1", lambda: 0.0)
    await uses.flush()
    assert [keys for keys, _ in store.noted] == [{ANA}]


def test_a_last_use_is_a_tagged_field_that_clients_skip() -> None:
    info = {"mechanism": 2, "iterations": 4096}
    result = {"user": "ana", "error_code": 0, "error_message": None}

    def written(*infos: Any) -> bytes:
        return encode(
            50, 0, {"error_code": 0, "error_message": None, "results": [{**result, "credential_infos": infos}]}
        )

    plain, tagged = written(info), written({**info, LAST_USE: 1})
    assert len(tagged) == len(plain) + 2 + 1 + 8
    for data in (plain, tagged):
        read: Any = decode_answer(load_response_schema(50, 0), 50, 0, memoryview(data), 0)
        assert read.results[0].credential_infos[0].iterations == 4096
