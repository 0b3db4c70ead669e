"""Certificate authority, certificates and kubeconfigs of the cluster, created with openssl."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from hack.support.command import run

_DAYS = "3650"


class Authority:
    """A certificate authority in one directory. Existing files stay, so an interrupted run can be repeated."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.certificate = directory / "ca.crt"
        self.key = directory / "ca.key"
        if not self.certificate.exists():
            self._make(
                "ca",
                "/CN=firn-test-cluster",
                ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,digitalSignature,cRLSign"],
            )

    def client(self, name: str, common_name: str, organization: str = "") -> tuple[Path, Path]:
        """Issue the certificate and key of a client with the user `common_name` and the group `organization`."""
        subject = (f"/O={organization}" if organization else "") + f"/CN={common_name}"
        return self._issue(name, subject, ["extendedKeyUsage=clientAuth"])

    def server(self, name: str, common_name: str, names: list[str], addresses: list[str]) -> tuple[Path, Path]:
        """Issue the certificate and key of a server with DNS names and IP addresses."""
        alternatives = ",".join([*(f"DNS:{each}" for each in names), *(f"IP:{each}" for each in addresses)])
        return self._issue(
            name, f"/CN={common_name}", ["extendedKeyUsage=serverAuth", f"subjectAltName={alternatives}"]
        )

    def kubeconfig(self, path: Path, server: str, certificate: Path, key: Path) -> None:
        """Write a kubeconfig with all keys and certificates in it."""

        def inline(file: Path) -> str:
            return base64.b64encode(file.read_bytes()).decode()

        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "firn", "cluster": {"server": server, "certificate-authority-data": inline(self.certificate)}}
            ],
            "users": [
                {
                    "name": "firn",
                    "user": {"client-certificate-data": inline(certificate), "client-key-data": inline(key)},
                }
            ],
            "contexts": [{"name": "firn", "context": {"cluster": "firn", "user": "firn"}}],
            "current-context": "firn",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(document, indent=2))  # JSON is YAML

    def _issue(self, name: str, subject: str, extensions: list[str]) -> tuple[Path, Path]:
        if not (self.directory / f"{name}.crt").exists():
            self._make(
                name,
                subject,
                ["basicConstraints=critical,CA:FALSE", *extensions],
                ["-CA", self.certificate, "-CAkey", self.key],
            )
        return self.directory / f"{name}.crt", self.directory / f"{name}.key"

    def _make(self, name: str, subject: str, extensions: list[str], issuer: list[str | Path] | None = None) -> None:
        # The certificate is renamed into place last: if it exists, the pair is complete.
        unfinished = self.directory / f"{name}.crt.unfinished"
        words: list[str | Path] = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-noenc",
        ]
        words += [
            "-days",
            _DAYS,
            "-subj",
            subject,
            "-keyout",
            self.directory / f"{name}.key",
            "-out",
            unfinished,
            *(issuer or []),
        ]
        for extension in extensions:
            words += ["-addext", extension]
        run([*words, "-config", self._empty_configuration()])
        unfinished.rename(self.directory / f"{name}.crt")

    def _empty_configuration(self) -> Path:
        # The machine's own openssl.cnf would add extensions that the certificate already has.
        path = self.directory / "openssl.cnf"
        path.write_text("[req]\ndistinguished_name = subject\n[subject]\n")
        return path
