"""The authentication of one connection: the state machine of KIP-43 and KIP-368.

A client names a mechanism (SaslHandshake) and then exchanges messages with the broker (SaslAuthenticate). Until it is
authenticated, the broker answers no other request but ApiVersions. A client may authenticate again at any time, as the
same principal. It has to do so before its session ends. Unlike in Kafka, a session also ends when its SCRAM credential is
deleted or replaced: a password that leaked must not work until its clients disconnect."""

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from firn_broker.access.mechanisms.exchange import AuthenticationError, Exchange, Step
from firn_broker.access.principals import PrincipalRules, Subject
from firn_broker.access.uses import Uses
from firn_broker.access_types import ANONYMOUS, ScramCredential, ScramMechanism


class Stored(Protocol):
    """The stored SCRAM credentials."""

    @property
    def version(self) -> int:
        """Return a number that changes when a credential does."""
        ...

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        """Return the credential of a user, without ``User:``."""
        ...


@dataclass(frozen=True, slots=True)
class Admission:
    """How the clients of a listener authenticate."""

    mechanisms: Mapping[str, Callable[[], Exchange]] = field(default_factory=dict)
    """By Kafka's name of the mechanism: begins an exchange."""
    certificates: PrincipalRules | None = None
    """The rules that name the principals of certificates, if a certificate is enough."""
    session_seconds: float = 0
    """The longest session in seconds; 0 sets no limit."""
    stored: Stored | None = None
    """The credentials that sessions need for as long as they last."""
    uses: Uses | None = None
    """Notes the use of credentials."""

    @property
    def required(self) -> bool:
        """Return whether clients have to authenticate."""
        return self.certificates is not None or bool(self.mechanisms)


OPEN = Admission()
"""The admission of a listener whose clients need not authenticate."""


class Session:
    """The identity of the client of one connection."""

    def __init__(self, admission: Admission, subject: Subject | None = None, ends: float | None = None) -> None:
        """Begin with the subject of the client's certificate, if it has one that the broker trusts, and the time when it ends
        the session. Raises AuthenticationError if no rule of the listener gives it a principal."""
        certified = None
        if subject is not None and admission.certificates is not None:
            certified = admission.certificates.principal(subject)
        self._admission = admission
        self.principal = certified or ANONYMOUS
        """The principal: of the certificate, or of the last exchange."""
        self.credential: ScramCredential | None = None
        """The SCRAM credential that the client used."""
        self._seen: int | None = None
        """`Stored.version` when the credential was last found."""
        self._begun = not admission.required or certified is not None
        self._ends = ends if certified is not None else None
        self._mechanism = ""
        self._used = ""
        """The mechanism of the last exchange that succeeded."""
        self._exchange: Exchange | None = None
        self.rejected = False
        """True if the broker has rejected the client already, and the exchange ends with the client's next message."""
        self._failed = False
        """True after a failed exchange. The client gets no other chance, and loses its earlier session."""

    @property
    def authenticated(self) -> bool:
        """Return whether the client may send requests of all APIs, if its session has not ended."""
        return self._begun

    def refusal(self, now: float) -> str | None:
        """Return why a request other than those that authenticate is refused at time ``now``; None if it is not."""
        if self._failed:
            return "the client has failed to authenticate on this connection"
        if not self._begun:
            return "the client has to authenticate first: configure SASL or a client certificate"
        if self._ends is not None and now >= self._ends:
            return "the session has ended: the client has to authenticate again (KIP-368)"
        if self.revoked:
            return "the password of the client was changed or deleted: the client has to connect again"
        return None

    @property
    def revoked(self) -> bool:
        """Return whether the credential of the client was deleted or replaced."""
        credential, stored = self.credential, self._admission.stored
        if credential is None or stored is None or stored.version == self._seen:
            return False
        if stored.credential(*credential.key) != credential:
            return True
        self._seen = stored.version
        return False

    def note_use(self) -> None:
        """Note that the client uses its credential now, if it has one."""
        if self.credential is not None and self._admission.uses is not None:
            self._admission.uses.note(self.credential.key)

    def handshake(self, mechanism: str) -> bool:
        """Begin an exchange. Return False if the listener does not have the mechanism, or if the client used another one before.

        Raises AuthenticationError if an exchange is running, or if the listener has no mechanism."""
        if not self._admission.mechanisms:
            raise AuthenticationError("This listener has no SASL mechanism", "no mechanism")
        if self._exchange is not None or self._failed:
            raise AuthenticationError("Unexpected SaslHandshake request", "handshake during an exchange")
        begin = self._admission.mechanisms.get(mechanism)
        if begin is None or (self._used and self._used != mechanism):
            return False
        self._mechanism, self._exchange = mechanism, begin()
        return True

    async def authenticate(self, data: bytes, now: Callable[[], float]) -> Step:
        """Answer a message of the client. After the last one, the step has the principal and the lifetime of the session.

        ``now`` returns the time in seconds. Raises AuthenticationError: the connection has to be closed."""
        exchange = self._exchange
        if exchange is None:
            raise AuthenticationError("SaslAuthenticate request without SaslHandshake", "no handshake")
        try:
            step = await exchange.step(data)
        except AuthenticationError:
            self._exchange = None
            self._failed = True
            raise
        if step.principal is None:
            self.rejected = step.rejected is not None
            return step
        self._exchange = None
        if self._used and step.principal != self.principal:
            self._failed = True
            raise AuthenticationError(
                "Cannot change principals during re-authentication", f"was {self.principal}, is {step.principal}"
            )
        lifetime = self._lifetime_ms(step)
        self._ends = None if lifetime is None else now() + lifetime / 1000
        self.principal, self.credential, self._seen = step.principal, step.credential, None
        self._used, self._begun = self._mechanism, True
        self.note_use()
        return step._replace(lifetime_ms=lifetime)

    def _lifetime_ms(self, step: Step) -> int | None:
        limits = [] if step.lifetime_ms is None else [step.lifetime_ms]
        if self._admission.session_seconds:
            limits.append(int(self._admission.session_seconds * 1000))
        return min(limits, default=None)

    @property
    def mechanisms(self) -> list[str]:
        """Return the mechanisms of the listener."""
        return sorted(self._admission.mechanisms)

    @property
    def mechanism(self) -> str:
        """Return the mechanism that the client has chosen; empty before."""
        return self._mechanism


def identified(admission: Admission, certificate: Mapping[str, Any] | None, now: float) -> Session:
    """Begin the session of a client with the certificate that TLS has verified (``ssl.SSLSocket.getpeercert``).

    ``now`` is the time of the event loop in seconds. The session ends with the certificate, or at the limit of the listener.
    Raises AuthenticationError if no rule of the listener gives the certificate a principal."""
    if not certificate:
        return Session(admission)
    left = ssl.cert_time_to_seconds(certificate["notAfter"]) - time.time()
    return Session(admission, certificate["subject"], now + min(left, admission.session_seconds or left))
