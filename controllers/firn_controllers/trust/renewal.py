"""Decides when the signer replaces a certificate or a CA. No I/O, no keys."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from firn.model import durations
from firn.model.config import Certificate


@dataclass(frozen=True, slots=True)
class Terms:
    """The configured terms of a profile."""

    hosts: tuple[str, ...]
    lifetime: timedelta
    renew_before: timedelta
    authority_lifetime: timedelta

    @classmethod
    def of(cls, certificate: Certificate, hosts: tuple[str, ...]) -> "Terms":
        """Return the terms of a certificate that the signer issues."""
        assert certificate.self_signed is not None
        return cls(
            hosts,
            durations.parse(certificate.duration),
            durations.parse(certificate.renew_before),
            durations.parse(certificate.self_signed.authority_duration),
        )


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate of brokers as it is in the Secret."""

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
