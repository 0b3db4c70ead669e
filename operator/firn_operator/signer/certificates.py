"""Certificates and keys as PEM: an authority, the certificates that it signs, and what a Secret contains (RFC 5280)."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from firn.model.errors import CorruptDataError

SKEW = timedelta(minutes=10)
"""A certificate is valid this long before it is made, for clocks that are behind."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str = field(repr=False)


def new_authority(name: str, now: datetime, lifetime: timedelta) -> Pair:
    """Create a CA. ``name`` begins its common name, which differs for each CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    identity = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    subject = _named(f"{name[:40]} {identity.digest.hex()[:8]}")
    builder = _builder(subject, subject, key, now, now + lifetime)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    builder = builder.add_extension(identity, critical=False)
    return _pair(builder.sign(key, hashes.SHA256()), key)


def issue(authority: Pair, name: str, hosts: tuple[str, ...], now: datetime, lifetime: timedelta) -> Pair:
    """Issue a certificate for servers, valid for ``hosts``. It ends no later than the authority. Raises CorruptDataError."""
    signer, signer_key = certificate(authority.certificate), _key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    ends = min(now + lifetime, signer.not_valid_after_utc)
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    # Brokers are clients of each other, too.
    purposes = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key())
    builder = _builder(_named(name), signer.subject, key, now, ends)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(purposes, critical=False).add_extension(names, critical=False)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    builder = builder.add_extension(issuer, critical=False)
    return _pair(builder.sign(signer_key, hashes.SHA256()), key)


def certificate(pem: str) -> x509.Certificate:
    """Return the first certificate of a PEM text. Raises CorruptDataError."""
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError as error:
        raise CorruptDataError(f"it has no readable certificate ({error})") from error


def made(pem: str) -> datetime:
    """Return when this process made the first certificate of a PEM text. Raises CorruptDataError."""
    return certificate(pem).not_valid_before_utc + SKEW


def ends(pem: str) -> datetime:
    """Return when the first certificate of a PEM text ends. Raises CorruptDataError."""
    return certificate(pem).not_valid_after_utc


def hosts_of(pem: str) -> frozenset[str]:
    """Return the names for which a certificate is valid. Raises CorruptDataError."""
    try:
        found = certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    addresses = found.get_values_for_type(x509.IPAddress)
    return frozenset([*found.get_values_for_type(x509.DNSName), *(str(address) for address in addresses)])


def fits(pair: Pair) -> bool:
    """Return whether the key belongs to the certificate. Raises CorruptDataError."""
    return certificate(pair.certificate).public_key() == _key(pair.key).public_key()


def signed_by(pem: str, authority: str) -> bool:
    """Return whether an authority signed a certificate. Raises CorruptDataError."""
    try:
        certificate(pem).verify_directly_issued_by(certificate(authority))
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _key(pem: str) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError) as error:
        # The text of the error may have parts of the key.
        raise CorruptDataError("it has no readable private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CorruptDataError("its private key is not of an elliptic curve")
    return key


def _pair(made: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(made.public_bytes(serialization.Encoding.PEM).decode(), text.decode())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(begins - SKEW).not_valid_after(ends)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
