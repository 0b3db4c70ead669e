"""An identity provider on loopback: it issues access tokens for client credentials (RFC 6749, section 4.4).

Tokens are JSON Web Tokens (RFC 7519) that a Kafka broker checks with the provider's public key."""

import base64
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs


@dataclass
class Tokens:
    """The clients of the provider, and the requests that it got."""

    clients: Mapping[str, str]
    directory: Path
    """Directory with the provider's key."""
    seconds: int = 300
    """Lifetime of a token."""
    status: int = 200
    """Status of all answers. Another one than 200 issues no token."""
    url: str = ""
    scopes: list[str] = field(default_factory=list)
    """Scope of each token that was issued."""

    def answer(self, authorization: str, body: str) -> tuple[int, dict[str, Any]]:
        """Return the status and the document for a request."""
        name, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        form = parse_qs(body)
        if self.status != 200:
            return self.status, {}
        if self.clients.get(name) != secret or form["grant_type"] != ["client_credentials"]:
            return 401, {"error": "invalid_client", "error_description": "wrong ID or secret"}
        self.scopes.append(form.get("scope", [""])[0])
        return 200, {"access_token": self._token(name), "token_type": "Bearer", "expires_in": self.seconds}

    def _token(self, name: str) -> str:
        now = int(time.time())
        claims = {"sub": name, "iat": now, "exp": now + self.seconds, "scope": "kafka"}
        text = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": "firn"}, claims))
        signature = _openssl("dgst", "-sha256", "-sign", str(self.directory / "key.pem"), given=text.encode())
        return f"{text}.{_encoded(signature)}"

    @property
    def _keys(self) -> Path:
        return self.directory / "keys.json"

    @property
    def java_flag(self) -> str:
        """Return the flag with which a broker's JVM may read the keys of the provider and request tokens."""
        return f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._keys.as_uri()},{self.url}"

    @property
    def broker_settings(self) -> dict[str, Any]:
        """Return the properties with which a broker accepts the tokens, with ``__`` for dots."""
        package, listener = "org.apache.kafka.common.security.oauthbearer", "listener__name__sasl_ssl__oauthbearer"
        return {
            "sasl__enabled__mechanisms": "OAUTHBEARER,SCRAM-SHA-512",
            f"{listener}__sasl__jaas__config": f"{package}.OAuthBearerLoginModule required;",
            f"{listener}__sasl__server__callback__handler__class": f"{package}.OAuthBearerValidatorCallbackHandler",
            f"{listener}__sasl__oauthbearer__jwks__endpoint__url": self._keys.as_uri(),
            f"{listener}__connections__max__reauth__ms": "3600000",
        }


def _encoded(data: bytes) -> str:
    """Return bytes in the alphabet of JSON Web Tokens (RFC 7515, section 2)."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _openssl(*arguments: str, given: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], check=True, input=given, capture_output=True).stdout


@contextmanager
def provider(directory: Path, clients: Mapping[str, str], certificate: Path | None = None) -> Iterator[Tokens]:
    """Run a provider for the clients' names and secrets, with TLS if there is a ``certificate`` with its key.

    Its own key is in ``directory``."""
    directory.mkdir()
    key = str(directory / "key.pem")
    _openssl("genrsa", "-out", key, "2048")
    modulus = _openssl("rsa", "-in", key, "-noout", "-modulus").decode().strip().removeprefix("Modulus=")
    public = {"kty": "RSA", "kid": "firn", "alg": "RS256", "n": _encoded(bytes.fromhex(modulus)), "e": "AQAB"}
    (directory / "keys.json").write_text(json.dumps({"keys": [public]}))
    tokens = Tokens(clients, directory)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, document = tokens.answer(self.headers["Authorization"], body)
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    tokens.url = f"{'http' if certificate is None else 'https'}://localhost:{server.server_port}/token"
    try:
        yield tokens
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
