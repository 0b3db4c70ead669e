"""Keeps the CA of each profile and the certificate of its brokers, from what their Secrets contain and the time.

Each pass reads both Secrets and writes what is missing, so a signer that ends between two writes continues where it was.
"""

import logging
from dataclasses import dataclass
from datetime import datetime

from firn.model import names
from firn.model.clock import Clock
from firn.model.errors import ConflictError, CorruptDataError
from firn_controllers.ports import CertificateSecret, CertificateSecrets
from firn_controllers.trust import renewal
from firn_controllers.trust.renewal import Issued, Terms
from firn_operator.signer import certificates
from firn_operator.signer.certificates import Pair

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """The ends of what the Secrets of a profile contain after a pass."""

    brokers: datetime
    authority: datetime


class Keeper:
    """The Secrets of profiles with ``selfSigned``."""

    def __init__(self, secrets: CertificateSecrets, clock: Clock) -> None:
        self._secrets = secrets
        self._clock = clock

    async def keep(self, profile: str, terms: Terms) -> Kept:
        """Create or renew what is due. Raises ConflictError, CorruptDataError, UnavailableError and AccessDeniedError."""
        authority = await self._authority(profile, terms)
        name = names.brokers_certificate(profile)
        now, live = self._clock.now(), await self._read(name)
        authority_ends = certificates.ends(authority.certificate)
        reason = renewal.reason_to_issue(_issued(live, authority), terms, authority_ends, now)
        if live is not None and reason is None and live.data.get("ca.crt") == authority.certificate:
            return Kept(certificates.ends(live.data["tls.crt"]), authority_ends)
        data = {"ca.crt": authority.certificate}
        if reason is not None:
            made = certificates.issue(authority, names.fleet(profile), terms.hosts, now, terms.lifetime)
            data |= {"tls.crt": made.certificate, "tls.key": made.key}
            log.info("profile %s: the signer issues a certificate for the brokers, because %s", profile, reason)
        await self._write(name, profile, data, live)
        end = certificates.ends(data.get("tls.crt") or (live.data["tls.crt"] if live is not None else ""))
        return Kept(end, authority_ends)

    async def _authority(self, profile: str, terms: Terms) -> Pair:
        """Return the CA of a profile, and create it if there is none or it has ended."""
        name = names.authority(profile)
        now, live = self._clock.now(), await self._read(name)
        authority = None if live is None else Pair(live.data.get("ca.crt", ""), live.data.get("ca.key", ""))
        try:
            if authority is not None and not certificates.fits(authority):
                raise CorruptDataError("its key does not belong to its certificate")
            ends = None if authority is None else certificates.ends(authority.certificate)
        except CorruptDataError as error:
            raise CorruptDataError(
                f"Secret {name}: {error}; restore it from a backup. If you delete it, the signer creates another CA, and each client needs it"
            ) from error
        reason = renewal.reason_to_create(ends, now)
        if authority is not None and reason is None:
            return authority
        made = certificates.new_authority(f"firn {profile}", now, terms.authority_lifetime)
        log.warning("profile %s: the signer creates a CA, because %s; clients need its certificate", profile, reason)
        await self._write(name, profile, {"ca.crt": made.certificate, "ca.key": made.key}, live)
        return made

    async def _read(self, name: str) -> CertificateSecret | None:
        live = await self._secrets.read(name)
        if live is not None and not live.own:
            raise ConflictError(
                f"Secret {name} exists, and no signer created it; delete it, or name it in access.certificate.secret of the profile"
            )
        return live

    async def _write(self, name: str, profile: str, data: dict[str, str], live: CertificateSecret | None) -> None:
        if live is None:
            await self._secrets.create(name, profile, data)
        else:
            await self._secrets.update(name, data, live.version)


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
