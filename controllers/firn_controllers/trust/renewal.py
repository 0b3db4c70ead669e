"""Decides when the signer replaces a certificate or a CA. No I/O, no keys."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from firn.model import durations
from firn.model.config import Certificate, SelfSigned
from firn.model.errors import InvalidSpecError

Stage = Literal["Trust", "Issue", "Finish"]
Step = Literal["Prepare", "Abandon", "Promote", "Drop"]
"""Prepare: create the next CA. Abandon: delete it. Promote: let it sign certificates. Drop: end the trust in the CA before."""
STAGE_AGE = timedelta(minutes=15)
"""Least age of a stage before the next one. The kubelet replaces mounted files within about two minutes."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The configured terms of a profile."""

    hosts: tuple[str, ...]
    lifetime: timedelta
    renew_before: timedelta
    authority_lifetime: timedelta
    generation: int = 1
    stage: Stage = "Finish"

    @classmethod
    def of(cls, certificate: Certificate, hosts: tuple[str, ...]) -> "Terms":
        """Return the terms of a certificate that the signer issues."""
        assert certificate.self_signed is not None
        return cls(
            hosts,
            durations.parse(certificate.duration),
            durations.parse(certificate.renew_before),
            durations.parse(certificate.self_signed.authority_duration),
            certificate.self_signed.generation,
            certificate.self_signed.stage,
        )

    @classmethod
    def default(cls, hosts: tuple[str, ...]) -> "Terms":
        """Return the terms of a certificate without a configuration of its own."""
        return cls.of(Certificate(self_signed=SelfSigned()), hosts)


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate of servers as it is in the Secret."""

    hosts: frozenset[str]
    ends: datetime
    signed: bool
    """True if the present CA signed it, and its key is in the Secret."""


def reason_to_issue(live: Issued | None, terms: Terms, authority_ends: datetime, now: datetime) -> str | None:
    """Return why the signer issues a certificate now; None if the live certificate stays."""
    if live is None:
        return "there is none yet"
    if not live.signed:
        return "the present CA did not sign it, or its key does not fit"
    if live.hosts != set(terms.hosts):
        return "its names have changed"
    # A certificate ends no later than its CA, so a new one would end at the same time.
    if live.ends <= now + terms.renew_before and live.ends < authority_ends:
        return f"it ends at {live.ends:%Y-%m-%dT%H:%M:%SZ}"
    if live.ends > now + terms.lifetime:
        return "the configured duration is shorter"
    return None


def reason_to_create(ends: datetime | None, now: datetime) -> str | None:
    """Return why the signer creates a CA now; None if the live CA, which ends at ``ends``, stays."""
    if ends is None:
        return "there is none yet"
    return None if ends > now else f"it ended at {ends:%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class Rollover:
    """How far the CA of a profile is replaced."""

    generation: int
    """Generation of the CA that signs certificates."""
    upcoming: bool
    """True if the Secret has the next CA, too."""
    previous: bool
    """True if clients still trust the CA before."""
    trusted: timedelta | None
    """Time for which clients have had the present list of CAs; None if they do not have it yet."""
    used: timedelta | None
    """Age of the certificate of the servers; None if the present CA did not sign it."""


def next_step(live: Rollover, terms: Terms) -> Step | None:
    """Return the step of a rollover that is due, or None. Raises InvalidSpecError for a generation that cannot follow."""
    if terms.generation == live.generation:
        if live.upcoming:
            return "Abandon"
        used = live.used is not None and live.used >= STAGE_AGE
        return "Drop" if live.previous and terms.stage == "Finish" and used else None
    if terms.generation != live.generation + 1 or live.previous:
        wanted = live.generation if live.previous else f"{live.generation} or {live.generation + 1}"
        raise InvalidSpecError(
            f"selfSigned.generation is {terms.generation}, and the CA has generation {live.generation}; set {wanted}, because a CA is replaced"
            " by the next one only, after the stage Finish of the one before"
        )
    if not live.upcoming:
        return "Prepare"
    trusted = live.trusted is not None and live.trusted >= STAGE_AGE
    return "Promote" if terms.stage != "Trust" and trusted else None
