"""Decides which certificate brokers present and which CAs they trust while the source of their certificate changes. No I/O.

Brokers of two templates may run at the same time, so each must trust the certificate of the other. Diskless brokers do not connect to
each other. Their stages concern only their clients.
"""

import json
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Self

from firn_controllers.trust.renewal import STAGE_AGE


@dataclass(frozen=True, slots=True)
class Held:
    """The Secrets of one template: that of the brokers' certificate, and those of the CAs, sorted, by which the brokers are verified.

    Firn's clients verify the brokers, and brokers of Apache Kafka verify each other.
    """

    presents: str
    trusts: tuple[str, ...]
    bundle: str = ""
    """Digest of the CAs of several Secrets; empty for brokers that read the CA of their own Secret."""

    def accepts(self, other: "Held") -> bool:
        """Return whether brokers of both templates trust each other."""
        return self.presents in other.trusts and other.presents in self.trusts


@dataclass(frozen=True, slots=True)
class Sources:
    """The templates from which pods may run, the newest at the end, and since when all pods run from the newest."""

    alive: tuple[Held, ...]
    since: datetime | None = None

    @property
    def newest(self) -> Held:
        """The template that the operator applies."""
        return self.alive[-1]

    @classmethod
    def of(cls, secret: str) -> Self:
        """Return the sources of new brokers, which trust the CA of their own Secret."""
        return cls((Held(secret, (secret,)),))

    @classmethod
    def read(cls, text: str) -> Self:
        """Read what `written` returned. Raises ValueError."""
        try:
            document = json.loads(text)
            alive = tuple(
                Held(str(held["presents"]), tuple(map(str, held["trusts"])), str(held["bundle"]))
                for held in document["alive"]
            )
            since = document["since"]
            if not alive:
                raise ValueError("no template")
            return cls(alive, datetime.fromisoformat(since) if since is not None else None)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the sources of a certificate: {error}") from error

    def written(self) -> str:
        """Return a text for an annotation."""
        since = self.since.isoformat() if self.since is not None else None
        return json.dumps({"alive": [asdict(held) for held in self.alive], "since": since}, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Decision:
    """The sources to apply. At most one of ``waits`` and ``problem`` says why they are not the wanted ones."""

    sources: Sources
    waits: str = ""
    """Cause of a wait that time or the roll-out ends."""
    problem: str | None = None
    """Cause of a wait that ends with an action of a user, and this action."""


def settled(sources: Sources, now: datetime) -> Sources:
    """Return the sources after all brokers have the newest template. ``since`` is of a change only, because nothing else needs it."""
    changing = len(sources.newest.trusts) > 1
    return Sources((sources.newest,), (sources.since or now) if changing else None)


def next_sources(sources: Sources, wanted: Held, *, complete: bool, client: str | None, now: datetime) -> Decision:
    """Decide about the next template. ``complete``: all brokers have the newest one, so `settled` was called.

    ``client``: a sentence about one of Firn's clients that does not trust the CA of the wanted Secret, with the next step; None if all do.
    """
    newest, target = sources.newest, wanted
    if newest.presents in wanted.trusts and not newest.accepts(wanted):
        # Trust comes first, also if the configuration already asks for the new certificate.
        target = replace(wanted, presents=newest.presents)
    if target == newest:
        return Decision(sources)
    if not newest.accepts(target):
        return Decision(sources, problem=_previous_problem(newest.presents, wanted.presents))
    if not all(held.accepts(target) for held in sources.alive):
        return Decision(sources, waits="until all brokers have the present stage")
    if target.presents not in {held.presents for held in sources.alive}:
        new = f"the certificate of Secret {target.presents} waits"
        if not complete or sources.since is None:
            return Decision(sources, waits=f"{new} until all brokers have the stage Trust")
        if now - sources.since < STAGE_AGE:
            minutes = STAGE_AGE.total_seconds() / 60
            return Decision(sources, waits=f"{new} until the stage Trust is {minutes:.0f} minutes old")
        if client is not None:
            return Decision(sources, problem=f"{new}, because {client}")
    alive = (*(held for held in sources.alive if held != target), target)
    return Decision(Sources(alive))


def _previous_problem(presented: str, wanted: str) -> str:
    return (
        f"the brokers keep the certificate of Secret {presented}, because clients that trust only its CA refuse that of Secret"
        f" {wanted}; set access.certificate.previous to the source of Secret {presented}, with stage: Trust"
    )
