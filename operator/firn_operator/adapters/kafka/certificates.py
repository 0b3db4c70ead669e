"""Certificates that brokers present."""

import socket
import ssl
from datetime import datetime

from cryptography import x509

from firn.model.errors import UnavailableError


def end(host: str, port: int, seconds: float) -> datetime:
    """Return when the certificate ends that a broker presents, within ``seconds``. Raises UnavailableError.

    The certificate is not verified, because one that has ended or has another CA must be reported too. No request is sent."""
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
    except (OSError, ValueError) as error:
        raise UnavailableError(f"cannot read the certificate of {host}:{port}: {error}") from error
