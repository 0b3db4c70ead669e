"""Requests of drivers to the internal listener of diskless brokers (`firn.driver_requests`)."""

import http.client
from typing import TypeVar
from urllib.parse import urlsplit

from firn import trust
from firn.model.errors import UnavailableError
from firn.model.jobs import Contract, DirectReads
from firn_spark.credentials import read_secret

ANSWER_SECONDS = 5.0
"""Longest wait for a part of an answer."""
Answer = TypeVar("Answer", bound=Contract)


class InternalListener:
    """The internal listener of the brokers of a profile. Any broker answers."""

    def __init__(self, reads: DirectReads) -> None:
        self.address = reads.address
        self._reads = reads

    def ask(self, path: str, question: Contract, answer: type[Answer], most_bytes: int) -> Answer:
        """Send a request, and return the answer, of at most ``most_bytes``.

        Raises UnavailableError, OSError, HTTPException and ValidationError.
        """
        address = urlsplit(self.address)
        headers = {"Authorization": f"Bearer {self._token()}", "Content-Type": "application/json"}
        connection = self._connection(address.hostname or "", address.port)
        try:
            connection.request("POST", path, question.model_dump_json().encode(), headers)
            response = connection.getresponse()
            body = response.read(most_bytes + 1)
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise UnavailableError(f"status {response.status}: {body[:200].decode(errors='replace').strip()}")
        if len(body) > most_bytes:
            raise UnavailableError(f"the answer has more than {most_bytes} bytes")
        return answer.model_validate_json(body)

    def _connection(self, host: str, port: int | None) -> http.client.HTTPConnection:
        """Return a connection that is not open yet. Raises OSError for an unreadable CA."""
        present, previous = self._reads.listener_ca_path, self._reads.previous_listener_ca_path
        if present is None:
            return http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
        # The files are read for each request, because the kubelet replaces them when a CA changes.
        context = trust.client_context([path for path in (present, previous) if path is not None])
        return http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=context)

    def _token(self) -> str:
        """Return the token. The HTTP client would name a wrong one in its error. Raises UnavailableError."""
        token = read_secret(self._reads.token_path).strip()
        if not (token.isascii() and token.isprintable()):
            raise UnavailableError(
                f"secret file {self._reads.token_path}: a token is one line of printable ASCII; correct the Secret"
            )
        return token
