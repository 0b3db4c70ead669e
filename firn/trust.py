"""CA certificates of servers: reading them, a trust store for the JVM, and hints for errors about certificates.

``python -m firn.trust FILE...`` writes the trust store of an executor (`TRUST_STORE`).
"""

import contextlib
import hashlib
import re
import ssl
import struct
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from firn.model.errors import NotReadyError

STORE_CA_FILE = "firn.s3.ca-file"
"""Property of a catalog and its FileIO: file with the CA certificates of the object store."""
TRUST_STORE = "/tmp/firn-trust.jks"
"""Trust store of an executor's JVM."""
EXECUTOR_FILES = "FIRN_TRUST"
"""Environment variable of executors: files with CA certificates, separated by colons."""
_PUBLIC = "/etc/ssl/certs/ca-certificates.crt"
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_JKS_MAGIC, _JKS_VERSION, _TRUSTED = 0xFEEDFEED, 2, 2
_DIGESTED = b"Mighty Aphrodite"
"""Text that the digest of a JKS file contains (``sun.security.provider.JavaKeyStore``)."""
_PASSWORD = "changeit"
"""Password that the JDK's own trust store has. It protects nothing, because certificates are public."""
_CAUSES = (
    (
        re.compile(r"hostname mismatch|ip address mismatch|does not match host name|notvalidforname|not valid for name|no subject alternative|"
                   r"no name matching|match any of the subject alternative|could not be verified by hostname", re.IGNORECASE),
        "the name of the server is not in its certificate; use a name that is there, or issue a certificate with this name",
    ),
    (
        re.compile(r"certificate has expired|validity check failed|certificate expired|expiredcontext|invalidcertificate\(expired", re.IGNORECASE),
        "the certificate of the server has expired; renew it",
    ),
    (
        re.compile(r"unable to get (local )?issuer|self[- ]signed certificate|unknownissuer|pkix path building|unable to find valid certification|"
                   r"root certificate file|cabadcertificate|badsignature|trustanchors", re.IGNORECASE),
        "the certificate of the server is not signed by a CA that the configuration names; put the CA of the server into tls.ca",
    ),
    (
        re.compile(r"certificate[ _]verify[ _]failed|curlcode: (60|51|77)\b|ssl peer certificate|invalid peer certificate|pkix path|sslhandshake",
                   re.IGNORECASE),
        "the certificate of the server is not accepted; compare its CA with tls.ca, its names with the address, and its validity",
    ),
)  # fmt: skip
"""Signs of OpenSSL, libpq, rustls, curl and the JDK, and what to do. The first match counts."""


def hint(text: str) -> str:
    """Return the cause and the next step if ``text`` is an error about the certificate of a server; else an empty text."""
    return next((advice for signs, advice in _CAUSES if signs.search(text)), "")


def with_hint(text: str) -> str:
    """Return ``text``, with `hint` appended."""
    advice = hint(text)
    return f"{text}: {advice}" if advice else text


def authorities(path: str, purpose: str) -> list[bytes]:
    """Return the certificates of a PEM file, as DER. Raises NotReadyError that names file and ``purpose``."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise NotReadyError(
            f"{purpose}: CA certificates {path} cannot be read ({type(error).__name__}); create the Secret or ConfigMap and the key that"
            " tls.ca names"
        ) from error
    try:
        found = [ssl.PEM_cert_to_DER_cert(block) for block in _PEM.findall(text)]
    except ValueError as error:
        raise NotReadyError(
            f"{purpose}: {path} has a damaged certificate: {error}; put certificates in PEM into the key that tls.ca names"
        ) from error
    if not found:
        raise NotReadyError(
            f"{purpose}: {path} has no certificate; put certificates in PEM into the key that tls.ca names"
        )
    return found


def client_context(files: Sequence[str]) -> ssl.SSLContext:
    """Return a TLS context that trusts the CAs in these PEM files; without files, it trusts public CAs. Raises OSError.

    Files may be missing while another one exists, because the new source of a certificate has no CA at first.
    """
    found = [path for path in files if Path(path).exists()] or list(files)
    context = ssl.create_default_context(cafile=found[0] if found else None)
    for path in found[1:]:
        context.load_verify_locations(path)
    return context


def public_authorities() -> list[bytes]:
    """Return the CA certificates of the image, as DER."""
    places = (_PUBLIC, ssl.get_default_verify_paths().cafile)
    found = next((place for place in places if place is not None and Path(place).exists()), None)
    return [] if found is None else authorities(found, "public CAs")


def java_trust_store(certificates: Iterable[bytes]) -> bytes:
    """Return a trust store of type JKS with these DER certificates.

    The format is that of ``sun.security.provider.JavaKeyStore``. Python's libraries in the image write none.
    """
    found = list(dict.fromkeys(certificates))
    content = struct.pack(">III", _JKS_MAGIC, _JKS_VERSION, len(found))
    for number, certificate in enumerate(found):
        content += struct.pack(">I", _TRUSTED) + _text(f"ca-{number}") + struct.pack(">Q", 0) + _text("X.509")
        content += struct.pack(">I", len(certificate)) + certificate
    digest = hashlib.sha1(_PASSWORD.encode("utf-16-be") + _DIGESTED + content, usedforsecurity=False).digest()
    return content + digest


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def write_trust_store(path: str, files: Sequence[str]) -> None:
    """Write a trust store with the public CAs and those of ``files``. A file that cannot be used is left out."""
    private: list[bytes] = []
    for file in files:
        # A catalog with such a file reports it when it is opened. The other catalogs work.
        with contextlib.suppress(NotReadyError):
            private += authorities(file, "trust store of the JVM")
    Path(path).write_bytes(java_trust_store([*private, *public_authorities()]))


def java_options(path: str) -> str:
    """Return the options with which a JVM uses the trust store at ``path``."""
    return f"-Djavax.net.ssl.trustStore={path} -Djavax.net.ssl.trustStoreType=JKS -Djavax.net.ssl.trustStorePassword={_PASSWORD}"


if __name__ == "__main__":
    write_trust_store(TRUST_STORE, sys.argv[1:])
