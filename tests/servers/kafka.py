"""Run Apache Kafka (KRaft, one node) on loopback from the published server jars, with or without TLS and SASL."""

import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from firn.model.jobs import KafkaConnection, TokenEndpoint
from tests.servers.process import cache, free_port, listens, running

USER, PASSWORD = "firn", "firn-secret"
STRANGER, STRANGER_PASSWORD = "stranger", "stranger-secret"
"""A user that may log in and has no rights."""


@dataclass(frozen=True)
class Kafka:
    """A broker and its listeners: plain, and if started so with TLS and SASL or with client certificates."""

    bootstrap: str
    secure: str | None = None
    mutual: str | None = None
    directory: Path = field(default_factory=Path)

    @property
    def connection(self) -> KafkaConnection:
        """Return the connection to the plain listener."""
        return KafkaConnection(bootstrap_servers=self.bootstrap)

    def secure_connection(
        self, username: str = USER, password: str = PASSWORD, mechanism: str = "SCRAM-SHA-512", ca: Path | None = None
    ) -> KafkaConnection:
        """Return the connection to the listener with TLS and SASL. The password is in a file, as in a mounted
        Secret."""
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

    def token_connection(
        self, tokens: str, username: str = USER, password: str = PASSWORD, ca: Path | None = None
    ) -> KafkaConnection:
        """Return the connection to the same listener with access tokens of the provider at a URL."""
        endpoint = TokenEndpoint(url=tokens, ca_path=str(ca or self.directory / "tls" / "ca.crt"))
        return self.secure_connection(username, password, "OAUTHBEARER").model_copy(update={"sasl_tokens": endpoint})

    def mutual_connection(self, certificate: str | None = "client") -> KafkaConnection:
        """Return the connection to the listener with client certificates. ``certificate`` names the one of the
        client."""
        assert self.mutual is not None
        tls = self.directory / "tls"
        return KafkaConnection(
            bootstrap_servers=self.mutual,
            protocol="SSL",
            ca_path=str(tls / "ca.crt"),
            certificate_path=certificate and str(tls / f"{certificate}.crt"),
            certificate_key_path=certificate and str(tls / f"{certificate}.key"),
        )


ARCHIVE = Path(sys.prefix) / "kafka.jsa"
"""The archive of Kafka's classes that `make setup` writes with this module. Small JVMs start slower without it."""
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
"""The JVM flags of Kafka's own start script, for benchmarks."""

LOG_SETTINGS = Path(__file__).parents[2] / "hack" / "images" / "kafka" / "config" / "log4j2.yaml"


def program(main: str, *arguments: str, flags: Sequence[str] = SMALL, jars: str = "kafka") -> list[str]:
    """Return the command of a program in the published jars: those of the server, or those that ``jars`` names."""
    directory = cache() / "jars" / jars
    assert directory.is_dir(), f"{directory} is missing: run make setup"
    # The archive fits only these jars and flags.
    if jars == "kafka" and flags == SMALL and ARCHIVE.exists():
        flags = (*flags, f"-XX:SharedArchiveFile={ARCHIVE}")
    # A broker logs as in the image. Tools print their results only.
    logging = [f"-Dlog4j2.configurationFile={LOG_SETTINGS}"] if main == "kafka.Kafka" else []
    return ["java", *flags, *logging, "-cp", f"{directory}/*", main, *arguments]


def tool(bootstrap: str, name: str, *arguments: str) -> str:
    """Run a tool from the published jars, such as ``ConsumerPerformance``, and return its output."""
    flags = "-Xmx512m", "-XX:+UseParallelGC"
    command = program(f"org.apache.kafka.tools.{name}", "--bootstrap-server", bootstrap, *arguments, flags=flags)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.strip()


@contextmanager
def kafka(
    directory: Path, *, secure: bool = False, port: int | None = None, java: Sequence[str] = SMALL, **settings: str
) -> Iterator[Kafka]:
    """Run a broker with its log in ``directory``, new or existing.

    ``java`` are flags of its JVM. ``settings`` are server properties, with ``__`` for dots."""
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
        # Some records of tests have timestamps years ago, and the first round of retention must not delete them.
        "log.retention.ms": "-1",
        "transaction.state.log.num.partitions": "1",
        **({} if not secure else _security(directory)),
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    file = directory / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    log = directory / "log"
    if not log.exists():
        log.mkdir()
        for name, content in _formatted(secure).items():
            (log / name).write_bytes(content)
    with running(program("kafka.Kafka", str(file), flags=java), lambda: listens(plain), directory / "server.log"):
        reached = (f"localhost:{tls}", f"localhost:{mutual}") if secure else (None, None)
        yield Kafka(f"127.0.0.1:{plain}", secure=reached[0], mutual=reached[1], directory=directory)


@functools.cache
def _formatted(secure: bool) -> dict[str, bytes]:
    """Return the files of a formatted log directory of node 1 by name, with SCRAM users if ``secure``.

    The tool runs once per process. It checks the addresses and opens no port."""
    with tempfile.TemporaryDirectory() as directory:
        file, log = Path(directory) / "server.properties", Path(directory) / "log"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": "1@127.0.0.1:1",
            "controller.listener.names": "CONTROLLER",
            "listeners": "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:1",
            "log.dirs": str(log),
        }
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        users = [(USER, PASSWORD), (STRANGER, STRANGER_PASSWORD)] if secure else []
        hashes = ("SHA-256", "SHA-512")
        scram = [f"SCRAM-{each}=[name={name},password={word}]" for name, word in users for each in hashes]
        options = ["-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(file), *(part for user in scram for part in ("-S", user))]
        subprocess.run(program("kafka.tools.StorageTool", "format", *options), check=True, stdout=subprocess.DEVNULL)
        return {each.name: each.read_bytes() for each in log.iterdir()}


def write_archive(file: str) -> None:
    """Write the archive of the classes that a broker loads until it stops. Source: JDK 17, AppCDS (JEP 350)."""
    with tempfile.TemporaryDirectory() as directory:
        with kafka(Path(directory) / "kafka", secure=True, java=(*SMALL, f"-XX:ArchiveClassesAtExit={file}")):
            pass
        log = (Path(directory) / "kafka" / "server.log").read_text()
    assert Path(file).exists(), log


def _security(directory: Path) -> dict[str, str]:
    tls = directory / "tls"
    if not tls.exists():
        certificates(tls, "localhost")
    login = "org.apache.kafka.common.security.{}.{}LoginModule required"
    plain = login.format("plain", "Plain") + f' user_{USER}="{PASSWORD}" user_{STRANGER}="{STRANGER_PASSWORD}";'
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": login.format("scram", "Scram") + ";",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": login.format("scram", "Scram") + ";",
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

    ``ca.crt`` is a CA. ``server.pem`` has key and certificate of ``host``. The client `USER` has a key and a
    certificate. ``other-ca.crt`` is a CA that signed neither of them. Its client certificate is trusted by no
    server."""
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


if __name__ == "__main__":
    write_archive(sys.argv[1])
