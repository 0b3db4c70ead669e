"""The client's side of SCRAM (RFC 5802), as Kafka speaks it: names and passwords are UTF-8 without SASLprep.

Source: ``ScramFormatter.java``, where ``normalize`` returns the bytes of the text.
"""

import base64
import hashlib
import hmac
import secrets

from firn.model.errors import AccessDeniedError

_HEADER = "n,,"
MIN_ITERATIONS = 4096
MAX_ITERATIONS = 1_000_000
"""Bounds of the iterations that a broker may ask for. Kafka's own bounds are 4,096 and 16,384."""

LAST_USE_TAG = 10_000
"""The tagged field of a credential's description that has its last use in milliseconds (int64), 0 if it was never used.
Kafka's brokers do not have it, and all its own tags are far smaller."""


class Scram:
    """Authenticates once: `first`, then `final` with the answer of the broker, then `check` with the next one."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str | None = None) -> None:
        """Use ``mechanism``, which is SCRAM-SHA-256 or SCRAM-SHA-512."""
        self._hash = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
        self._password = password.encode()
        self._nonce = nonce or secrets.token_urlsafe(24)
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._first = f"n={name},r={self._nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return (_HEADER + self._first).encode()

    def final(self, answer: bytes) -> bytes:
        """Return the second message. Raises AccessDeniedError if the answer does not belong to the first one."""
        fields = _fields(answer)
        nonce, iterations = fields.get("r", ""), int(fields.get("i", "0") or 0)
        if not nonce.startswith(self._nonce) or not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise AccessDeniedError(
                f"the answer of the broker is no SCRAM challenge for this client: {iterations} iterations"
            )
        salted = self._salted(base64.b64decode(fields.get("s", "")), iterations)
        client_key = self._hmac(salted, b"Client Key")
        bare = f"c={base64.b64encode(_HEADER.encode()).decode()},r={nonce}"
        signed = ",".join((self._first, answer.decode(), bare)).encode()
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), signed)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        self._signature = self._hmac(self._hmac(salted, b"Server Key"), signed)
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def _salted(self, salt: bytes, iterations: int) -> bytes:
        return hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)

    def check(self, answer: bytes) -> None:
        """Check the signature of the broker. Raises AccessDeniedError if the broker does not know the password."""
        fields = _fields(answer)
        if not hmac.compare_digest(base64.b64decode(fields.get("v", "")), self._signature):
            raise AccessDeniedError(
                f"the broker does not prove that it knows the password: {fields.get('e', 'wrong signature')}"
            )

    def _hmac(self, key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, self._hash).digest()


def _fields(answer: bytes) -> dict[str, str]:
    """Return the fields of a message. Raises AccessDeniedError if it is not text."""
    try:
        return dict(part.split("=", 1) for part in answer.decode().split(",") if "=" in part)
    except UnicodeDecodeError as error:
        raise AccessDeniedError("the answer of the broker is no SCRAM message") from error
