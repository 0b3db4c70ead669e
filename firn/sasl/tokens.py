"""Access tokens for SASL OAUTHBEARER (RFC 7628): those that an identity provider issues for client credentials (RFC 6749,
section 4.4), and those that a file has."""

import base64
import http.client
import json
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, NotReadyError, UnavailableError

ANSWER_SECONDS = 10.0
ANSWER_BYTES = 1 << 20
USED_PART = 0.8
"""Part of its lifetime for which a process uses a token. The same part as in Kafka's Java client
(``sasl.login.refresh.window.factor``)."""
KEPT = 16
"""Tokens that a process keeps."""


@dataclass(frozen=True, slots=True)
class GivenToken:
    """A token that the caller has; picklable. Its text does not show it."""

    token: str = field(repr=False)

    def first_message(self) -> bytes:
        """Return the message that authenticates a connection (RFC 7628, section 3.1)."""
        return _first_message((("auth", f"Bearer {self.token}"),))

    def forget(self) -> None:
        """Do nothing: the next reader of the file gets another token."""


def expiry(token: str) -> float:
    """Return the second since 1970 at which a JWT expires (RFC 7519, section 4.1.4). Raises NotReadyError if it does not say it."""
    try:
        return float(str(_claims(token)["exp"]))
    except (KeyError, ValueError) as error:
        raise NotReadyError(
            "the file of a token has no JWT with the claim exp; check that the volume with the token is mounted"
        ) from error


def issuer(token: str) -> str:
    """Return the issuer of a JWT; "" if it names none."""
    return str(_claims(token).get("iss", ""))


def _claims(token: str) -> Mapping[str, object]:
    """Return the claims of a JWT, without a check of its signature, which is the task of the brokers."""
    payload = token.partition(".")[2].partition(".")[0]
    try:
        return _document(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except ValueError:
        return {}


@dataclass(frozen=True, slots=True)
class TokenClient:
    """An OAuth client and its endpoint; picklable. Its text shows no secret."""

    url: str
    name: str
    secret: str = field(repr=False)
    scope: str = ""
    extensions: tuple[tuple[str, str], ...] = ()
    authority: str | None = None
    """CA certificates of the endpoint; None for those of the system."""

    def first_message(self) -> bytes:
        """Return the message that authenticates a connection (RFC 7628, section 3.1).

        Raises AccessDeniedError if the endpoint rejects the client, and UnavailableError while it does not answer.
        """
        return _first_message((("auth", f"Bearer {self._token()}"), *self.extensions))

    def forget(self) -> None:
        """Request another token next time, because the broker rejected this one."""
        _kept.pop(self, None)

    def _token(self) -> str:
        token, end = _kept.get(self, ("", 0.0))
        now = time.monotonic()
        if now < end:
            return token
        token, seconds = self._request()
        while len(_kept) >= KEPT:
            del _kept[next(iter(_kept))]
        _kept[self] = token, now + seconds * USED_PART
        return token

    def _request(self) -> tuple[str, float]:
        """Return a new token and its lifetime in seconds, which is 0 if the endpoint does not say it."""
        body = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        # Like Kafka's clients, without the URL encoding of RFC 6749, section 2.3.1.
        login = base64.b64encode(f"{self.name}:{self.secret}".encode()).decode()
        headers = {
            "Authorization": f"Basic {login}",
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        try:
            status, answer = self._post(urlencode(body), headers)
        except ssl.SSLCertVerificationError as error:
            raise AccessDeniedError(f"token endpoint {self.url}: {error}; correct the CA of its profile") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(f"{type(error).__name__}: {error}") from error
        if 400 <= status < 500 and status not in (408, 429):
            raise AccessDeniedError(
                f"token endpoint {self.url} rejects the client {self.name}: {_cause(answer) or f'HTTP status {status}'}; "
                "correct the client's ID, its secret or its scope"
            )
        token, seconds = _issued(answer)
        if status != 200 or not token:
            raise self._unavailable(f"HTTP status {status} without a token")
        return token, seconds

    def _post(self, body: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Return the status and the body of the answer. A redirect is not followed, because it could take the secret
        elsewhere."""
        url = urlsplit(self.url)
        host, port = url.hostname or "", url.port
        connection: http.client.HTTPConnection
        if url.scheme == "https":
            context = ssl.create_default_context(cadata=self.authority)
            connection = http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
        try:
            path = (url.path or "/") + (f"?{url.query}" if url.query else "")
            connection.request("POST", path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_BYTES)
        finally:
            connection.close()

    def _unavailable(self, cause: str) -> UnavailableError:
        return UnavailableError(
            f"token endpoint {self.url}: {cause}; check that the operator and the ingestion groups can reach it",
            reason=Reason.BROKER_UNREACHABLE,
        )


_kept: dict[TokenClient, tuple[str, float]] = {}
"""Token and monotonic second until which it is used. Tasks of one process follow each other."""


def _first_message(pairs: Iterable[tuple[str, str]]) -> bytes:
    return ("n,,\x01" + "".join(f"{key}={value}\x01" for key, value in pairs) + "\x01").encode()


def _issued(answer: bytes) -> tuple[str, float]:
    """Return the token and its lifetime in seconds (RFC 6749, section 5.1); "" if there is no token."""
    document = _document(answer)
    token, seconds = document.get("access_token"), document.get("expires_in")
    # A token of other characters would end the message early.
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        return "", 0.0
    try:
        return token, max(0.0, float(str(seconds)))
    except ValueError:
        return token, 0.0


def _cause(answer: bytes) -> str:
    """Return the error of an answer (RFC 6749, section 5.2)."""
    document = _document(answer)
    return " ".join(str(document[key])[:200] for key in ("error", "error_description") if key in document)


def _document(answer: bytes) -> Mapping[str, object]:
    try:
        document = json.loads(answer)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
