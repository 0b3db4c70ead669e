"""The authentication of a connection: the order of handshake, exchange and requests, and the end of a session."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from firn_broker.access.mechanisms.exchange import AuthenticationError, Step
from firn_broker.access.principals import PrincipalRules
from firn_broker.access.session import OPEN, Admission, Session
from firn_broker.access_types import ANONYMOUS, CredentialKey, ScramCredential, ScramMechanism
from tests.unit.broker.connections import TOLD, closed, gone, request, serving


class Scripted:
    """An exchange with given answers."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)

    async def step(self, data: bytes) -> Step:
        if data == b"wrong":
            raise AuthenticationError("no", "a wrong password")
        return self._steps.pop(0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


CERTIFICATE = ((("commonName", "cert"),),)
ALICE = Step(b"", "User:alice")


def admission(
    *steps: Step, seconds: float = 0, certificates: bool = False, more: Mapping[str, Step] | None = None
) -> Admission:
    mechanisms = {"SCRAM": lambda: Scripted(steps or [ALICE])}
    for name, step in (more or {}).items():
        mechanisms[name] = lambda step=step: Scripted([step])  # type: ignore[misc]
    return Admission(mechanisms, PrincipalRules(("RULE:^CN=(.*)$/$1/",)) if certificates else None, seconds)


async def test_a_client_may_send_requests_after_its_exchange_only() -> None:
    session, clock = Session(admission(Step(b"challenge"), ALICE)), Clock()
    assert session.refusal(0) is not None
    assert session.handshake("SCRAM")
    assert session.refusal(0) is not None
    assert (await session.authenticate(b"1", clock)).answer == b"challenge"
    assert session.refusal(0) is not None
    assert session.principal == ANONYMOUS
    await session.authenticate(b"2", clock)
    assert session.refusal(0) is None
    assert session.principal == "User:alice"


async def test_an_unknown_mechanism_is_refused() -> None:
    session = Session(admission())
    assert not session.handshake("GSSAPI")
    assert session.mechanisms == ["SCRAM"]
    with pytest.raises(AuthenticationError, match="without SaslHandshake"):
        await session.authenticate(b"", Clock())


def test_a_second_handshake_during_an_exchange_is_refused() -> None:
    session = Session(admission())
    session.handshake("SCRAM")
    with pytest.raises(AuthenticationError, match="Unexpected"):
        session.handshake("SCRAM")


async def test_a_failed_exchange_leaves_the_client_without_a_principal() -> None:
    session = Session(admission())
    session.handshake("SCRAM")
    with pytest.raises(AuthenticationError):
        await session.authenticate(b"wrong", Clock())
    assert session.refusal(0) is not None


async def test_a_client_that_failed_has_no_other_chance_on_its_connection() -> None:
    session, clock = Session(admission()), Clock()
    session.handshake("SCRAM")
    await session.authenticate(b"", clock)
    session.handshake("SCRAM")
    with pytest.raises(AuthenticationError):
        await session.authenticate(b"wrong", clock)
    assert session.refusal(clock.now) is not None, "requests behind the failed one are not served"
    with pytest.raises(AuthenticationError):
        session.handshake("SCRAM")


def test_a_listener_without_authentication_serves_anonymous_clients() -> None:
    session = Session(OPEN)
    assert session.refusal(1e9) is None
    assert session.principal == ANONYMOUS
    with pytest.raises(AuthenticationError, match="no SASL mechanism"):
        session.handshake("PLAIN")


def test_a_certificate_is_enough_if_the_listener_says_so() -> None:
    assert Session(admission(certificates=True), CERTIFICATE).refusal(0) is None
    assert Session(admission(certificates=True)).refusal(0) is not None
    assert Session(admission(), CERTIFICATE).refusal(0) is not None


def test_a_certificate_without_a_rule_is_rejected() -> None:
    with pytest.raises(AuthenticationError):
        Session(admission(certificates=True), ((("organizationName", "x"),),))
    assert Session(OPEN, ((("organizationName", "x"),),)).principal == ANONYMOUS


async def test_an_exchange_replaces_the_principal_of_the_certificate() -> None:
    session = Session(admission(certificates=True), CERTIFICATE)
    session.handshake("SCRAM")
    await session.authenticate(b"", Clock())
    assert session.principal == "User:alice"


@pytest.mark.parametrize(
    ("of_credential", "limit", "lifetime"),
    [(None, 0, None), (None, 60, 60_000), (5_000, 0, 5_000), (5_000, 60, 5_000), (90_000, 60, 60_000), (0, 60, 0)],
)
async def test_a_session_ends_with_its_credential_or_at_the_limit(
    of_credential: int | None, limit: float, lifetime: int | None
) -> None:
    session, clock = Session(admission(ALICE._replace(lifetime_ms=of_credential), seconds=limit)), Clock()
    session.handshake("SCRAM")
    assert (await session.authenticate(b"", clock)).lifetime_ms == lifetime
    if lifetime is not None:
        end = clock.now + lifetime / 1000
        assert session.refusal(end - 0.001) is None or lifetime == 0
        assert "authenticate again" in (session.refusal(end) or "")


async def test_a_client_that_authenticates_again_goes_on() -> None:
    session, clock = Session(admission(seconds=10)), Clock()
    session.handshake("SCRAM")
    await session.authenticate(b"", clock)
    clock.now += 9
    session.handshake("SCRAM")
    assert session.refusal(clock.now) is None, "requests before the end of the session are served meanwhile"
    await session.authenticate(b"", clock)
    assert session.refusal(clock.now + 9) is None
    assert session.refusal(clock.now + 10) is not None


async def test_a_client_cannot_become_another_principal() -> None:
    steps = iter([ALICE, Step(b"", "User:bob")])
    session = Session(Admission({"SCRAM": lambda: Scripted([next(steps)])}))
    session.handshake("SCRAM")
    await session.authenticate(b"", Clock())
    session.handshake("SCRAM")
    with pytest.raises(AuthenticationError, match="Cannot change principals"):
        await session.authenticate(b"", Clock())
    assert session.principal == "User:alice"


async def test_a_client_cannot_change_its_mechanism() -> None:
    session = Session(admission(more={"OTHER": ALICE}))
    session.handshake("SCRAM")
    await session.authenticate(b"", Clock())
    assert not session.handshake("OTHER")


CREDENTIAL = ScramCredential(CredentialKey("alice", ScramMechanism.SHA_512), 4096, b"salt", b"stored", b"server")


class Stored:
    """Stored credentials of one user."""

    def __init__(self) -> None:
        self.version = 0
        self.found: ScramCredential | None = CREDENTIAL
        self.reads = 0

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        self.reads += 1
        return self.found

    def change(self, found: ScramCredential | None) -> None:
        self.version, self.found = self.version + 1, found


async def with_password(stored: Stored, credential: ScramCredential | None = CREDENTIAL) -> Session:
    """Return the session of a client that has just authenticated."""
    session = Session(Admission({"SCRAM": lambda: Scripted([replaced(credential)])}, stored=stored))
    assert session.handshake("SCRAM")
    await session.authenticate(b"1", Clock())
    return session


def replaced(credential: ScramCredential | None) -> Step:
    return ALICE._replace(credential=credential)


@pytest.mark.parametrize("now_stored", [None, replace(CREDENTIAL, stored_key=b"other")])
async def test_a_session_ends_with_its_credential(now_stored: ScramCredential | None) -> None:
    stored = Stored()
    session = await with_password(stored)
    assert session.refusal(0) is None
    stored.change(now_stored)
    assert "password" in (session.refusal(0) or "")
    assert session.refusal(0) is not None


async def test_a_session_goes_on_while_other_credentials_change() -> None:
    stored = Stored()
    session = await with_password(stored)
    for _ in range(3):
        stored.change(replace(CREDENTIAL))
        assert [session.refusal(0) for _ in range(10)] == [None] * 10
    assert stored.reads == 3


async def test_a_credential_that_was_replaced_during_the_exchange_begins_no_session() -> None:
    stored = Stored()
    session = await with_password(stored, replace(CREDENTIAL, stored_key=b"earlier"))
    assert session.refusal(0) is not None


async def test_a_client_with_a_token_does_not_depend_on_credentials() -> None:
    stored = Stored()
    session = await with_password(stored, None)
    stored.change(None)
    assert session.refusal(0) is None


async def test_a_client_that_waits_for_an_answer_is_disconnected_too() -> None:
    stored = Stored()
    async with serving() as (server, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        writer.write(request(TOLD, 1))
        await router.until(1)
        (connection,) = server._connections
        connection.client.session = await with_password(stored)
        stored.change(None)
        await closed(reader)
        await gone(server, 0)
        assert router.cut == [1]
        writer.close()
