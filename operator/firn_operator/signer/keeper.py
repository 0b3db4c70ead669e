"""Keeps CAs and the certificates of brokers and stores, from what their Secrets contain and the time.

Each pass reads both Secrets and writes what is missing, so a signer that ends between two writes continues where it was.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from firn.model import names
from firn.model.clock import Clock
from firn.model.errors import ConflictError, CorruptDataError, InvalidSpecError
from firn_controllers.ports import CertificateSecret, CertificateSecrets
from firn_controllers.trust import renewal
from firn_controllers.trust.renewal import Issued, Rollover, Terms
from firn_operator.signer import certificates
from firn_operator.signer.certificates import Pair

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Naming:
    """How messages, Secrets and certificates name the servers of one kind. The servers with one certificate have a name."""

    kind: str
    servers: str
    """Value of the label ``certificate`` of metrics, for the certificate of the servers."""
    authority: Callable[[str], str]
    certificate: Callable[[str], str]
    subject: Callable[[str], str]
    """Common name of a certificate."""
    has_profiles: bool


PROFILES = Naming(
    "profile",
    "brokers",
    names.authority,
    names.brokers_certificate,
    names.fleet,
    has_profiles=True,
)
"""The brokers of profiles with ``selfSigned``."""
STORES = Naming("store", "server", names.store_authority, names.store_certificate, names.store, has_profiles=False)
"""The stores of the quick start."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The ends of what the Secrets of a profile or a store contain after a pass."""

    servers: datetime
    authority: datetime


@dataclass(frozen=True, slots=True)
class Authorities:
    """The Secret with the CAs of a profile or a store."""

    current: Pair
    """The CA that signs certificates."""
    generation: int
    upcoming: Pair | None
    """The next CA during a rollover."""
    previous: str
    """Certificate of the CA before, which clients still trust; empty if there is none."""

    @property
    def trusted(self) -> str:
        """The certificates of all CAs that clients trust, as PEM, in an order that the step Promote does not change."""
        upcoming = self.upcoming.certificate if self.upcoming else ""
        found = {text.strip() for text in (self.current.certificate, upcoming, self.previous)} - {""}
        return "".join(f"{text}\n" for text in sorted(found))

    @classmethod
    def read(cls, data: Mapping[str, str]) -> "Authorities":
        """Return the CAs in a Secret. Raises CorruptDataError."""
        current, following = (Pair(data.get(f"{name}.crt", ""), data.get(f"{name}.key", "")) for name in ("ca", "next"))
        upcoming = following if following.certificate or following.key else None
        if not (certificates.fits(current) and (upcoming is None or certificates.fits(upcoming))):
            raise CorruptDataError("a key does not belong to its certificate")
        previous, generation = data.get("previous.crt", ""), data.get("generation", "1")
        if previous:
            certificates.ends(previous)
        if not generation.isdigit():
            raise CorruptDataError("its generation is no number")
        return cls(current, int(generation), upcoming, previous)


class Keeper:
    """The Secrets of servers of one kind."""

    def __init__(self, secrets: CertificateSecrets, clock: Clock, naming: Naming = PROFILES) -> None:
        self._secrets = secrets
        self._clock = clock
        self.naming = naming

    async def keep(self, server: str, terms: Terms) -> Kept:
        """Create or renew what is due, and make at most one step of a rollover.

        Raises ConflictError, CorruptDataError, InvalidSpecError, UnavailableError and AccessDeniedError.
        """
        name, now = self.naming.certificate(server), self._clock.now()
        live = await self._read(name)
        found, refused = await self._authorities(server, terms), None
        try:
            authorities = await self._stepped(server, terms, found, live)
        except InvalidSpecError as error:
            authorities, refused = found[0], error  # certificates are renewed anyway
        current = authorities.current
        authority_ends = certificates.ends(current.certificate)
        reason = renewal.reason_to_issue(_issued(live, current), terms, authority_ends, now)
        data: dict[str, str] = {}
        if live is None or live.data.get("ca.crt") != authorities.trusted:
            data = {"ca.crt": authorities.trusted, "ca.since": now.isoformat()}
        if reason is not None:
            made = certificates.issue(current, self.naming.subject(server), terms.hosts, now, terms.lifetime)
            data |= {"tls.crt": made.certificate, "tls.key": made.key}
            log.info("%s %s: the signer issues a certificate, because %s", self.naming.kind, server, reason)
        if data:
            await self._write(name, server, data, live)
        if refused is not None:
            raise refused
        text = data.get("tls.crt") or (live.data["tls.crt"] if live is not None else "")
        return Kept(certificates.ends(text), authority_ends)

    async def _authorities(self, server: str, terms: Terms) -> tuple[Authorities, CertificateSecret | None]:
        """Return the CAs of servers and their Secret. Create a CA if there is none or it has ended; the Secret is then None."""
        name, now = self.naming.authority(server), self._clock.now()
        live = await self._read(name)
        try:
            found = None if live is None else Authorities.read(live.data)
            ends = None if found is None else certificates.ends(found.current.certificate)
        except CorruptDataError as error:
            raise CorruptDataError(
                f"Secret {name}: {error}; restore it from a backup. If you delete it, the signer creates another CA, and each client needs it"
            ) from error
        reason = renewal.reason_to_create(ends, now)
        if found is not None and reason is None:
            return found, live
        made = certificates.new_authority(f"firn {server}", now, terms.authority_lifetime)
        log.warning(
            "%s %s: the signer creates a CA, because %s; clients need its certificate", self.naming.kind, server, reason
        )
        data = {"ca.crt": made.certificate, "ca.key": made.key, "generation": str(terms.generation)}
        gone = dict.fromkeys(("next.crt", "next.key", "previous.crt")) if live is not None else {}
        await self._write(name, server, {**data, **gone}, live)
        return Authorities(made, terms.generation, None, ""), None

    async def _stepped(
        self,
        server: str,
        terms: Terms,
        found: tuple[Authorities, CertificateSecret | None],
        leaf: CertificateSecret | None,
    ) -> Authorities:
        """Make the step of a rollover that is due, and return the CAs after it. Raises InvalidSpecError."""
        authorities, live = found
        if live is None:
            return authorities
        now = self._clock.now()
        step = renewal.next_step(_rollover(authorities, leaf, now), terms)
        change: dict[str, str | None] = {}
        current, upcoming = authorities.current, authorities.upcoming
        if step == "Prepare":
            upcoming = certificates.new_authority(f"firn {server}", now, terms.authority_lifetime)
            change = {"next.crt": upcoming.certificate, "next.key": upcoming.key}
            authorities = replace(authorities, upcoming=upcoming)
        elif step == "Abandon":
            change = {"next.crt": None, "next.key": None}
            authorities = replace(authorities, upcoming=None)
        elif step == "Promote" and upcoming is not None:
            change = {"ca.crt": upcoming.certificate, "ca.key": upcoming.key, "generation": str(terms.generation)}
            change |= {"next.crt": None, "next.key": None, "previous.crt": current.certificate}
            authorities = Authorities(upcoming, terms.generation, None, current.certificate)
        elif step == "Drop":
            change = {"previous.crt": None}
            authorities = replace(authorities, previous="")
        if change:
            log.info("%s %s: the signer replaces the CA, step %s", self.naming.kind, server, step)
            await self._secrets.update(self.naming.authority(server), change, live.version)
        return authorities

    async def _read(self, name: str) -> CertificateSecret | None:
        live = await self._secrets.read(name)
        if live is not None and not live.own:
            raise ConflictError(
                f"Secret {name} exists, and no signer created it; delete it, or for brokers name it in access.certificate.secret of the"
                " profile"
            )
        return live

    async def _write(
        self, name: str, server: str, data: Mapping[str, str | None], live: CertificateSecret | None
    ) -> None:
        if live is None:
            profile = server if self.naming.has_profiles else None
            await self._secrets.create(name, profile, {key: text for key, text in data.items() if text is not None})
        else:
            await self._secrets.update(name, data, live.version)


def _rollover(authorities: Authorities, leaf: CertificateSecret | None, now: datetime) -> Rollover:
    """Return how far a rollover is, from what clients and brokers have in their Secret."""
    data = {} if leaf is None else leaf.data
    trusted = used = None
    try:
        if data.get("ca.crt") == authorities.trusted and "ca.since" in data:
            trusted = now - datetime.fromisoformat(data["ca.since"])
        if certificates.signed_by(data.get("tls.crt", ""), authorities.current.certificate):
            used = now - certificates.made(data["tls.crt"])
    except (CorruptDataError, ValueError, TypeError):
        pass  # the damaged value is replaced, and its age begins again
    upcoming, previous = authorities.upcoming is not None, bool(authorities.previous)
    return Rollover(authorities.generation, upcoming, previous, trusted, used)


def _issued(live: CertificateSecret | None, authority: Pair) -> Issued | None:
    """Return the certificate in a Secret; None if it has none that can be read."""
    if live is None:
        return None
    pair = Pair(live.data.get("tls.crt", ""), live.data.get("tls.key", ""))
    try:
        signed = certificates.fits(pair) and certificates.signed_by(pair.certificate, authority.certificate)
        return Issued(certificates.hosts_of(pair.certificate), certificates.ends(pair.certificate), signed)
    except CorruptDataError:
        return None
