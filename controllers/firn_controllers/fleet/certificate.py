"""The Certificates of cert-manager for the brokers of a profile, and the CAs that these trust, whatever its brokers are."""

from collections.abc import Sequence
from ipaddress import ip_address

from firn.model import durations
from firn.model.config import Certificate
from firn_controllers import children
from firn_controllers.fleet.layout import Fleet
from firn_controllers.ports import CertificateState, Manifest
from firn_controllers.trust.hosts import hosts
from firn_controllers.trust.sources import Held


def build(fleet: Fleet, certificate: Certificate) -> Manifest:
    """Build the Certificate ``firn-broker-P-tls-ISSUER``, whose Secret has the same name. Raises InvalidSpecError."""
    issuer = certificate.cert_manager
    assert issuer is not None
    name = certificate.secret_name(fleet.name)
    found = hosts(fleet.owner.namespace, fleet.name, fleet.profile, certificate)
    addresses = [host for host in found if _is_address(host)]
    spec = {
        "secretName": name,
        "commonName": fleet.service,
        "dnsNames": [host for host in found if host not in addresses],
        "duration": _seconds(certificate.duration),
        "renewBefore": _seconds(certificate.renew_before),
        # Brokers are clients of each other, too.
        "usages": ["digital signature", "server auth", "client auth"],
        "privateKey": {"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always"},
        "issuerRef": {"name": issuer.name, "kind": issuer.kind, "group": issuer.group},
    }
    if addresses:
        spec["ipAddresses"] = addresses
    return children.child_object("cert-manager.io/v1", "Certificate", name, **fleet.meta(), spec=spec)


def problem(fleet: Fleet, certificate: Certificate, state: CertificateState) -> str | None:
    """Return why the certificate is not as configured, or None."""
    if state.ready:
        return None
    cause = state.message or "cert-manager has not reported it as Ready yet"
    name = certificate.secret_name(fleet.name)
    return f"Certificate {name}: {cause}; see kubectl -n {fleet.owner.namespace} describe certificate {name}"


def wanted(fleet: Fleet, certificate: Certificate, authorities: Sequence[str]) -> Held:
    """Return the Secrets that brokers use as configured. ``authorities``: the CAs of each source, in the order of ``certificate.sources``."""
    trusted = certificate.trusted(fleet.name)
    digest = children.digest(sorted(authorities)) if len(trusted) > 1 else ""
    return Held(certificate.presented(fleet.name), tuple(sorted(trusted)), digest)


def source_problem(fleet: Fleet, certificate: Certificate, authorities: Sequence[str]) -> str | None:
    """Return which source has no CA yet, and the next step; None if each has one, or the source does not change."""
    if certificate.previous is None:
        return None
    for source, text in zip(certificate.sources, authorities, strict=True):
        if text:
            continue
        name, namespace = source.secret_name(fleet.name), fleet.owner.namespace
        step = "create it with tls.crt, tls.key and ca.crt, or add ca.crt to it"
        if source.self_signed is not None:
            step = f"firn-signer writes it; see kubectl -n {namespace} logs deployment/firn-signer"
        elif source.cert_manager is not None:
            step = f"cert-manager writes it; see kubectl -n {namespace} describe certificate {name}"
        return f"the source of the certificate does not change yet, because Secret {name} has no ca.crt: {step}"
    return None


def bundle(fleet: Fleet, authorities: Sequence[str]) -> Manifest | None:
    """Build the ConfigMap with the CAs of several Secrets; None if the brokers need no ConfigMap, or trust other CAs than ``authorities``.

    Diskless brokers need no ConfigMap, because they do not connect to each other. The name contains the digest of the CAs, so brokers
    that trust other CAs keep their own ConfigMap.
    """
    found = fleet.bundle
    if found is None or fleet.sources is None or fleet.sources.newest.bundle != children.digest(sorted(authorities)):
        return None
    data = {found.key: "".join(f"{text}\n" for text in sorted(set(authorities)))}
    return children.child_object("v1", "ConfigMap", found.config_map or "", **fleet.meta(), data=data)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _seconds(duration: str) -> str:
    """Return a duration in Go's form, which has no days."""
    return f"{durations.milliseconds(duration) // 1000}s"
