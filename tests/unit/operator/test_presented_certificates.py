"""The operator reads the certificate that a broker presents, and reports one that it cannot read."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from firn.model.errors import UnavailableError
from firn_operator.adapters.kafka import certificates

END = datetime(2031, 5, 1, tzinfo=UTC)


def identity(directory: Path, version: int) -> Path:
    """Write a key and a certificate with this number of its version."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "broker")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, datetime(2021, 5, 1, tzinfo=UTC), END)
    third = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    # The field of the version: an explicit tag with an integer that is one less.
    changed = third.replace(bytes([0xA0, 3, 2, 1, 2]), bytes([0xA0, 3, 2, 1, version - 1]), 1)
    found = directory / "broker.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    found.write_text(private.decode() + ssl.DER_cert_to_PEM_cert(changed))
    return found


@contextmanager
def broker(pem: Path) -> Iterator[int]:
    """Accept one connection with TLS. Yields the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)

    def serve() -> None:
        # The client closes the connection without a word, and may not have read all bytes.
        with (
            suppress(OSError),
            listener.accept()[0] as plain,
            context.wrap_socket(plain, server_side=True) as connected,
        ):
            connected.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_the_end_of_a_certificate_is_read_without_trust(tmp_path: Path) -> None:
    with broker(identity(tmp_path, 3)) as port:
        assert certificates.end("127.0.0.1", port, 10.0) == END


def test_a_certificate_of_an_unsupported_version_is_reported(tmp_path: Path) -> None:
    with broker(identity(tmp_path, 2)) as port, pytest.raises(UnavailableError, match=f"127.0.0.1:{port}: .*version"):
        certificates.end("127.0.0.1", port, 10.0)
