"""Certificates that brokers present."""

import socket
import ssl
from datetime import datetime

from cryptography import x509

from firn.model.errors import UnavailableError


def end(host: str, port: int, seconds: float) -> datetime:
    """Return the end of the certificate that a broker presents. Raises UnavailableError, also after ``seconds`` without an answer.

    The function verifies no certificate, because the operator also reports certificates that have ended or have another CA. It sends no
    request to the broker.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), seconds) as plain,
            context.wrap_socket(plain, server_hostname=host) as connected,
        ):
            presented = connected.getpeercert(binary_form=True)
        if presented is None:
            raise ValueError("the broker has presented none")
        return x509.load_der_x509_certificate(presented).not_valid_after_utc
    except (OSError, ValueError, x509.InvalidVersion) as error:
        raise UnavailableError(f"cannot read the certificate of {host}:{port}: {error}") from error
