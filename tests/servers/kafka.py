"""Apache Kafka (KRaft, one node) on loopback, from the published server jars; plain, or with TLS and SASL."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from firn.model.jobs import KafkaConnection
from tests.servers.process import cache, free_port, listens, running

USER, PASSWORD = "firn", "firn-secret"
STRANGER, STRANGER_PASSWORD = "stranger", "stranger-secret"
"""A user that may log in and may do nothing."""


@dataclass(frozen=True)
class Kafka:
    """A broker: how to reach it plainly, and with TLS and SASL or a certificate where it was started so."""

    bootstrap: str
    secure: str | None = None
    mutual: str | None = None
    directory: Path = field(default_factory=Path)

    @property
    def connection(self) -> KafkaConnection:
        """The plain listener."""
        return KafkaConnection(bootstrap_servers=self.bootstrap)

    def secure_connection(
        self, username: str = USER, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-512", ca: Path | None = None
    ) -> KafkaConnection:
        """The listener with TLS and SASL; the password goes through a file, as a mounted Secret does."""
        assert self.secure is not None
        file = self.directory / f"password-{username}-{mechanism}"
        file.write_text(password + "\n")
        return KafkaConnection(
            bootstrap_servers=self.secure,
            protocol="SASL_SSL",
            ca_path=str(ca or self.directory / "tls" / "ca.crt"),
            sasl_mechanism=mechanism,
            sasl_username=username,
            sasl_password_path=str(file),
        )

    def mutual_connection(self, certificate: str | None = "client") -> KafkaConnection:
        """The listener that asks for a certificate; ``certificate`` names the one that is shown."""
        assert self.mutual is not None
        tls = self.directory / "tls"
        return KafkaConnection(
            bootstrap_servers=self.mutual,
            protocol="SSL",
            ca_path=str(tls / "ca.crt"),
            certificate_path=certificate and str(tls / f"{certificate}.crt"),
            certificate_key_path=certificate and str(tls / f"{certificate}.key"),
        )


SMALL = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Flags of a JVM that starts fast and stays small."""
STOCK = (
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""Flags as Kafka's own start script sets them: for what is measured."""


def program(main: str, *arguments: str, flags: Sequence[str] = SMALL, jars: str = "kafka") -> list[str]:
    """The command of a program in the published jars: the server's own, or those that ``jars`` names."""
    directory = cache() / "jars" / jars
    assert directory.is_dir(), f"{directory} is missing: run make setup"
    return ["java", *flags, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{directory}/*", main, *arguments]


@contextmanager
def kafka(
    directory: Path, *, secure: bool = False, port: int | None = None, java: Sequence[str] = SMALL, **settings: str
) -> Iterator[Kafka]:
    """A broker with its log in ``directory`` (made, or gone on with). ``java``: flags of its JVM; ``settings``: server properties,
    dots written as ``__``."""
    directory.mkdir(parents=True, exist_ok=True)
    ports = directory / "ports"
    if ports.exists():
        plain, controller, tls, mutual = (int(text) for text in ports.read_text().split())
    else:
        plain, controller, tls, mutual = port or free_port(), free_port(), free_port(), free_port()
        ports.write_text(f"{plain} {controller} {tls} {mutual}")
    listeners = {"PLAINTEXT": plain, "CONTROLLER": controller} | ({"SASL_SSL": tls, "SSL": mutual} if secure else {})
    properties = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": ",".join(f"{name}://127.0.0.1:{number}" for name, number in listeners.items()),
        "advertised.listeners": ",".join(
            f"{name}://{'localhost' if 'SSL' in name else '127.0.0.1'}:{number}"
            for name, number in listeners.items()
            if name != "CONTROLLER"
        ),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL",
        "log.dirs": str(directory / "log"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.cleaner.dedupe.buffer.size": "10485760",
        "offsets.topic.num.partitions": "1",
        # Tests give records any timestamp: those of years ago are not to go at the first look of retention.
        "log.retention.ms": "-1",
        "transaction.state.log.num.partitions": "1",
        **({} if not secure else _security(directory)),
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    file = directory / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    if not (directory / "log").exists():
        users = [f"SCRAM-SHA-512=[name={name},password={word}]" for name, word in
                 ((USER, PASSWORD), (STRANGER, STRANGER_PASSWORD))] if secure else []  # fmt: skip
        subprocess.run(
            program("kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(file),
                  *(part for user in users for part in ("-S", user))),
            check=True,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
    with running(program("kafka.Kafka", str(file), flags=java), lambda: listens(plain), directory / "server.log"):
        reached = (f"localhost:{tls}", f"localhost:{mutual}") if secure else (None, None)
        yield Kafka(f"127.0.0.1:{plain}", secure=reached[0], mutual=reached[1], directory=directory)


def _security(directory: Path) -> dict[str, str]:
    tls = directory / "tls"
    if not tls.exists():
        certificates(tls, "localhost")
    login = "org.apache.kafka.common.security.{}.{}LoginModule required"
    plain = login.format("plain", "Plain") + f' user_{USER}="{PASSWORD}" user_{STRANGER}="{STRANGER_PASSWORD}";'
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": login.format("scram", "Scram") + ";",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tls / "server.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.truststore.type": "PEM",
        "listener.name.ssl.ssl.truststore.location": str(tls / "ca.crt"),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:ANONYMOUS;User:{USER};User:CN={USER}",
    }


def certificates(directory: Path, host: str) -> None:
    """Write certificates for tests into a directory.

    ``ca.crt`` is a CA. ``server.pem`` has key and certificate of ``host``. The client `USER` has a key and a certificate.
    ``other-ca.crt`` is a CA that signed neither of them, with a client certificate of its own that no server trusts."""
    openssl = shutil.which("openssl")
    assert openssl, "openssl is missing"
    directory.mkdir()

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], check=True, capture_output=True, cwd=directory)

    for name in ("ca", "other-ca"):
        run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.crt")  # fmt: skip
    for name, subject in (("server", host), ("client", USER)):
        run("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={subject}",
            "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
    run("x509", "-req", "-in", "client.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30",
        "-out", "client.crt")  # fmt: skip
    (directory / "names").write_text(f"subjectAltName=DNS:{host}\n")
    run("x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30",
        "-extfile", "names", "-out", "server.crt")  # fmt: skip
    run("pkcs8", "-topk8", "-nocrypt", "-in", "server.key", "-out", "server.p8")
    (directory / "server.pem").write_text(
        (directory / "server.p8").read_text() + (directory / "server.crt").read_text()
    )
