"""The Certificate of cert-manager for the brokers of a profile, whatever its brokers are."""

from ipaddress import ip_address

from firn.model import durations, names
from firn.model.config import Certificate
from firn_controllers import children
from firn_controllers.fleet.layout import Fleet
from firn_controllers.ports import CertificateState, Manifest
from firn_controllers.trust.hosts import hosts


def build(fleet: Fleet, certificate: Certificate) -> Manifest:
    """Build the Certificate ``firn-broker-P-tls``, whose Secret has the same name. Raises InvalidSpecError."""
    issuer = certificate.cert_manager
    assert issuer is not None
    found = hosts(fleet.owner.namespace, fleet.name, fleet.profile, certificate)
    addresses = [host for host in found if _is_address(host)]
    spec = {
        "secretName": certificate.secret_name(fleet.name),
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
    name = names.brokers_certificate(fleet.name)
    return children.child_object("cert-manager.io/v1", "Certificate", name, **fleet.meta(), spec=spec)


def problem(fleet: Fleet, state: CertificateState) -> str | None:
    """Return why the certificate is not as configured, or None."""
    if state.ready:
        return None
    cause = state.message or "cert-manager has not reported it as Ready yet"
    name = names.brokers_certificate(fleet.name)
    return f"Certificate {name}: {cause}; see kubectl -n {fleet.owner.namespace} describe certificate {name}"


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _seconds(duration: str) -> str:
    """Return a duration in Go's form, which has no days."""
    return f"{durations.milliseconds(duration) // 1000}s"
