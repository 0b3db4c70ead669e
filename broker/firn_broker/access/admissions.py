"""The admission of a listener, from its settings."""

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

from firn_broker.access.mechanisms.exchange import Exchange
from firn_broker.access.mechanisms.plain import NAME as PLAIN
from firn_broker.access.mechanisms.plain import PlainExchange
from firn_broker.access.mechanisms.scram import MECHANISMS, Credentials, ScramExchange
from firn_broker.access.mechanisms.tokens import NAME as OAUTHBEARER
from firn_broker.access.mechanisms.tokens import TokenExchange, TokenVerifier
from firn_broker.access.principals import PrincipalRules
from firn_broker.access.session import Admission, Stored
from firn_broker.access.uses import Uses
from firn_broker.access_types import ScramMechanism
from firn_broker.settings import Authentication, Listener

_SCRAM: Mapping[Authentication, ScramMechanism] = {
    "ScramSha256": ScramMechanism.SHA_256,
    "ScramSha512": ScramMechanism.SHA_512,
}
_NAMES = {mechanism: name for name, mechanism in MECHANISMS.items()}


@dataclass(frozen=True, slots=True)
class Proofs:
    """The credentials, tokens and threads that the mechanisms of all listeners share."""

    credentials: Credentials
    executor: Executor
    """Computes the hashes of passwords, each of which takes milliseconds."""
    verifier: TokenVerifier | None = None
    """Checks tokens; None without the settings of an issuer."""
    stored: Stored | None = None
    """The stored credentials, with which sessions end."""
    uses: Uses | None = None
    """Notes the use of credentials."""


def admission(listener: Listener, proofs: Proofs, session_seconds: float = 0) -> Admission:
    """Return how clients of the listener authenticate. Raises InvalidSpecError."""
    mechanisms: dict[str, Callable[[], Exchange]] = {}
    for way in listener.authentication:
        if way in _SCRAM:
            mechanisms[_NAMES[_SCRAM[way]]] = partial(ScramExchange, _SCRAM[way], proofs.credentials)
        elif way == "Plain":
            mechanisms[PLAIN] = partial(PlainExchange, proofs.credentials, proofs.executor)
        elif way == "OAuth":
            assert proofs.verifier is not None, "the settings have an issuer"
            mechanisms[OAUTHBEARER] = partial(TokenExchange, proofs.verifier)
    rules = None
    if "Certificate" in listener.authentication and listener.tls is not None:
        rules = PrincipalRules(listener.tls.principal_rules)
    return Admission(mechanisms, rules, session_seconds, proofs.stored, proofs.uses)
