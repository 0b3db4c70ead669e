"""Applications produce and consume while a TopicUser's password is rotated three times, and while `firn-signer` replaces the CA of the brokers.

Three brokers of Apache Kafka run as the operator renders them, and two diskless brokers. The operator and the signer are processes. For
the signer, a stage is old enough after seconds instead of 15 minutes."""

import asyncio
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from confluent_kafka import KafkaError
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from firn.model import config, names
from firn.model.jobs import KafkaConnection
from firn_controllers.children import Owner
from firn_controllers.fleet import kinds
from firn_controllers.fleet.kafka.layout import KafkaFleet
from firn_operator.adapters.kafka.topics import Brokers, KafkaTopics
from firn_operator.signer import certificates
from tests import gen
from tests.apiserver import SYSTEM, ApiServer
from tests.authority import Authority
from tests.integration.kafka import fleets
from tests.integration.operator.applications import Receiver, Sender
from tests.integration.operator.mounts import Mount, mounted, secret_data
from tests.integration.operator.test_topic_users import MERGE, NAMESPACE, Account, kafka_name, produced
from tests.servers.firn_broker import FirnBroker, fleet_settings, of_fleet
from tests.servers.kafka import PASSWORD, USER
from tests.servers.process import await_true, free_port, listens, running
from tests.servers.s3 import S3

if TYPE_CHECKING:
    from tests.integration.operator.conftest import Manifest, World

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

OVERLAP = "20s"
ROTATIONS = 3
WAIT = 180
CLASSIC, WAVES = "classic", "waves"
SIGNER = """
import sys
from datetime import timedelta
from firn_controllers.trust import renewal
from firn_operator.signer import process
from firn_operator.signer.__main__ import main
renewal.STAGE_AGE, process.INTERVAL = timedelta(seconds=5), 1.0
sys.exit(main())
"""
REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass
class Servers:
    """The brokers of both profiles, and the directories with their certificates."""

    classic: fleets.Brokers
    fleet: KafkaFleet
    waves: list[FirnBroker]
    ports: list[int]
    """The secure ports of the diskless brokers."""
    authority: Path
    """File with the CAs of the brokers of Apache Kafka, as the operator has it."""
    running: dict[int, ExitStack] = field(default_factory=dict)

    @property
    def bootstrap(self) -> dict[str, str]:
        """Return the addresses for users, by profile."""
        return {CLASSIC: self.classic.bootstrap(9096, 3), WAVES: ",".join(f"127.0.0.1:{port}" for port in self.ports)}

    def addresses(self) -> list[tuple[str, int]]:
        """Return each address with TLS."""
        classic = [(self.classic.address(ordinal), port) for ordinal in range(3) for port in (9096, 9098)]
        return classic + [("127.0.0.1", port) for port in self.ports]

    def restart(self, ordinal: int) -> None:
        """Start a broker of Apache Kafka, after its end if it runs."""
        self.running.pop(ordinal, ExitStack()).close()
        self.running[ordinal] = ExitStack()
        self.running[ordinal].enter_context(self.classic.broker(self.fleet, ordinal))

    def stop(self) -> None:
        """Stop all brokers."""
        for each in self.running.values():
            each.close()
        for broker in self.waves:
            if broker.process is not None:
                broker.stop()

    def admin(self) -> AdminClient:
        """Return a client with the operator's token, at the brokers of Apache Kafka."""
        token = self.classic.issuer.token(SYSTEM, "firn-operator")
        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap[CLASSIC], "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER",
            "ssl.ca.location": str(self.authority), "oauth_cb": lambda _: (token, time.time() + 3600),
        }  # fmt: skip
        return AdminClient(settings)

    def in_sync(self) -> bool:
        """Return whether all brokers of Apache Kafka have all records."""
        metadata = self.admin().list_topics(timeout=30)
        partitions = [part for topic in metadata.topics.values() for part in topic.partitions.values()]
        return len(metadata.brokers) == 3 and all(len(part.isrs) == 3 for part in partitions)

    def signed_by(self, authority: str) -> bool:
        """Return whether the certificate at each address is of this CA, and of no other."""
        context = ssl.create_default_context(cadata=authority)
        context.check_hostname = False  # the address decides, and the test of the names is elsewhere
        for address, port in self.addresses():
            try:
                with socket.create_connection((address, port), 10) as plain:
                    context.wrap_socket(plain, server_hostname=address).close()
            except ssl.SSLCertVerificationError:
                return False
        return True


def put_password(admin: AdminClient) -> None:
    """Create the operator's own user."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    put: list[UserScramCredentialAlteration] = [UserScramCredentialUpsertion(USER, info, PASSWORD.encode())]
    for future in admin.alter_user_scram_credentials(put).values():
        future.result(60)


class Signer:
    """The process `firn-signer`, which starts again with each change of the configuration."""

    def __init__(self, world: "World", directory: Path, names_of: dict[str, list[str]]) -> None:
        self._world, self._directory, self._names = world, directory, names_of
        self._stack = ExitStack()
        self.file = directory / "signer.yaml"

    def configured(self, generation: int, stage: str) -> config.Config:
        """Write the configuration with a stage of the CA."""

        def access(profile: str) -> "Manifest":
            own = {"selfSigned": {"generation": generation, "stage": stage}, "names": self._names[profile]}
            return {"certificate": own, "issuer": fleets.ISSUER, "superUsers": [f"User:{USER}"]}

        brokers = {"replicas": 3, "heap": "512m", "config": {"connections.max.reauth.ms": "10000"}}
        profiles = {CLASSIC: {**brokers, "access": access(CLASSIC)}, WAVES: gen.diskless(access=access(WAVES))}
        images = {name: {"image": f"example.com/{name}:1"} for name in ("spark", "kafka", "broker")}
        self.file.write_text(yaml.safe_dump(self._world.configuration(profiles=profiles, images=images)))
        return config.load(str(self.file))

    def start(self) -> None:
        """Start the process with the configuration."""
        self.stop()
        port, log = free_port(), self._directory / "signer.log"
        environment = {
            "KUBECONFIG": str(self._world.api.kubeconfig),
            "FIRN_CONFIG": str(self.file),
            "FIRN_METRICS_LISTEN": f"127.0.0.1:{port}",
            "PYTHONPATH": os.pathsep.join(str(REPOSITORY / part) for part in (".", "operator", "controllers")),
        }
        command = [sys.executable, "-c", SIGNER]
        self._stack.enter_context(running(command, lambda: listens(port), log, environment=environment))

    def stage(self, generation: int, stage: str) -> None:
        """Let the signer make a stage, as an upgrade of the release does."""
        self.configured(generation, stage)
        self.start()

    def stop(self) -> None:
        """Stop the process."""
        self._stack.close()
        self._stack = ExitStack()


def authorities(api: ApiServer, profile: str) -> str:
    """Return what clients trust, as the signer has written it."""
    return secret_data(api, SYSTEM, names.brokers_certificate(profile)).get("ca.crt", "")


def current(api: ApiServer, profile: str) -> str:
    """Return the CA that signs certificates."""
    return secret_data(api, SYSTEM, names.authority(profile))["ca.crt"]


@pytest.fixture
def servers(world: "World", storage: S3, tmp_path: Path) -> Iterator[tuple[Servers, Signer]]:
    """Run both kinds of brokers with certificates of the signer."""
    classic = fleets.Brokers(tmp_path, Authority(tmp_path, "unused"))
    ports = [free_port(), free_port()]
    hosts = {CLASSIC: [classic.address(ordinal) for ordinal in range(3)], WAVES: ["127.0.0.1"]}
    signer = Signer(world, tmp_path, hosts)
    managed = kinds.managed_fleet(signer.configured(1, "Finish"), CLASSIC, Owner(SYSTEM, "u"), None)
    assert isinstance(managed, KafkaFleet)
    secrets, waves = world.directory / "secrets", tmp_path / "waves"
    of_operator = {profile: secrets / names.brokers_certificate(profile) for profile in (CLASSIC, WAVES)}
    mounts = [
        Mount(SYSTEM, names.brokers_certificate(CLASSIC), classic.files / "tls"),
        Mount(SYSTEM, names.brokers_certificate(WAVES), waves / "tls"),
        *(Mount(SYSTEM, path.name, path, ("ca.crt",)) for path in of_operator.values()),
    ]
    brokers = [diskless(world, storage, waves, node, port) for node, port in enumerate(ports)]
    found = Servers(classic, managed, brokers, ports, of_operator[CLASSIC] / "ca.crt")
    with ExitStack() as stack:
        stack.callback(signer.stop)
        signer.start()
        stack.enter_context(mounted(world.api, *mounts))
        for mount in mounts:
            await_true(f"{mount.directory} has files", (mount.directory / "..data" / "ca.crt").exists)
        stack.callback(found.stop)
        for broker in brokers:
            broker.start()
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(found.restart, range(3)))
        await_true("all brokers have joined", found.in_sync, WAIT)
        put_password(found.admin())
        put_password(AdminClient({"bootstrap.servers": brokers[0].bootstrap}))
        yield found, signer


def diskless(world: "World", storage: S3, directory: Path, node: int, port: int) -> FirnBroker:
    """Return a diskless broker that has not started."""
    directory.mkdir(exist_ok=True)
    tls = {"certFile": str(directory / "tls" / "tls.crt"), "keyFile": str(directory / "tls" / "tls.key")}
    secure = {"bind": f"127.0.0.1:{port}", "tls": tls, "authentication": ["ScramSha512"]}
    settings = {
        **fleet_settings(directory, world.database, storage, "rotations"),
        "nodeId": node,
        "leaseSeconds": 2,
        "listeners": {"secure": secure},
        "authorization": {"type": "Acl", "superUsers": ["User:ANONYMOUS"], "operators": [f"User:{USER}"]},
        "groups": {"initialRebalanceMs": 100},
        "writer": {"flushSeconds": 0.05},
    }
    return of_fleet(directory, f"broker-{node}", settings)


class Team:
    """The applications of one TopicUser."""

    def __init__(self, account: Account, directory: Path, topic: str) -> None:
        self.account = account
        self.sender = Sender(directory, topic)
        self.receiver = Receiver(directory, topic, f"demo.{account.name}.readers")

    @property
    def secret(self) -> str:
        return f"{self.account.name}-kafka"

    def follow(self) -> bool:
        """Return whether both applications use the present content of the Secret."""
        return all(each.uses(self.account.world.api, self.secret) for each in (self.sender, self.receiver))

    def overlaps(self) -> bool:
        """Return whether the previous password still works."""
        return "previousUntil" in self.account.status()["credentials"]

    def refused(self, settings: dict[str, Any]) -> bool:
        """Return whether a client with these settings cannot connect."""
        error = produced(settings, self.sender.topic, "late")
        return error is not None and error.code() == KafkaError._AUTHENTICATION

    def check(self) -> None:
        """Check that no application has met a problem."""
        assert self.sender.problems + self.receiver.problems == []

    def progresses(self) -> None:
        """Wait until both applications go on."""
        sent, received = self.sender.acknowledged, self.receiver.count

        def more() -> bool:
            self.check()
            return self.sender.acknowledged > sent + 50 and self.receiver.count > received + 50

        await_true("records flow", more, WAIT)

    def end(self) -> int:
        """Stop both, and check that each record came once and in order. Return the number of records."""
        self.sender.stop()
        await_true("all records came", lambda: self.receiver.count >= self.sender.sent, WAIT)
        self.receiver.stop()
        assert self.sender.acknowledged == self.sender.sent
        assert self.receiver.commits > 100
        assert self.receiver.values() == list(range(self.sender.sent))
        return self.sender.sent


@contextmanager
def teams(world: "World", found: Servers, directory: Path) -> Iterator[list[Team]]:
    """Run an operator that knows both kinds of brokers, and applications of a TopicUser of each."""

    def brokers(profile: str) -> "Manifest":
        mount = world.directory / "secrets" / f"login-{profile}"
        mount.mkdir()
        (mount / "password").write_text(PASSWORD)
        sasl = {"mechanism": "SCRAM-SHA-512", "username": USER, "password": {"secret": mount.name, "key": "password"}}
        security = {"tls": True, "ca": {"secret": names.brokers_certificate(profile), "key": "ca.crt"}, "sasl": sasl}
        bootstrap = found.bootstrap[profile]
        return {
            "bootstrapServers": bootstrap,
            "security": security,
            "users": {"namespaces": ["demo"]},
            "defaultPartitions": 2,
        }

    profiles = {profile: brokers(profile) for profile in (CLASSIC, WAVES)}
    with ExitStack() as stack:
        stack.enter_context(world.operator(profiles=profiles, users={"enabled": True}, resync="3s"))
        accounts = [Account(world, profile, "", number) for number, profile in enumerate(profiles, 9000)]
        for account in accounts:
            world.apply(account.topic, {"profile": account.profile, "table": {"name": account.topic}})
            world.await_condition(account.topic, "TopicReady", "True")
            account.apply(authentication={"rotation": {"overlap": OVERLAP}})
            account.await_ready()
        places = {account.name: directory / account.name for account in accounts}
        stack.enter_context(
            mounted(world.api, *(Mount("demo", f"{name}-kafka", place) for name, place in places.items()))
        )
        for place in places.values():
            await_true("the Secret is mounted", (place / "librdkafka.json").exists)
        yield [Team(account, places[account.name], kafka_name(world, account.topic)) for account in accounts]
        for account in accounts:
            world.api.call("DELETE", account.place)
            world.api.call("DELETE", f"{NAMESPACE}/icebergtopics/{account.topic}")
        await_true("the users are gone", lambda: not any(world.find(account.place) for account in accounts), WAIT)


def await_all(description: str, found: list[Team], check: Callable[[Team], bool]) -> None:
    def all_of_them() -> bool:
        for team in found:
            team.check()
        return all(check(team) for team in found)

    await_true(description, all_of_them, WAIT)


def rotate(world: "World", found: list[Team], number: int) -> None:
    """Rotate each password, and wait until the previous one is refused."""
    before = {team.secret: team.account.librdkafka() for team in found}
    for team in found:
        world.api.call(
            "PATCH", team.account.place, {"metadata": {"annotations": {names.ROTATE: f"number {number}"}}}, MERGE
        )
    await_all("the Secret has another password", found, lambda team: team.account.librdkafka() != before[team.secret])
    await_all("the applications use it", found, Team.follow)
    await_all("the overlap is over", found, lambda team: not team.overlaps())
    await_all("the previous password is refused", found, lambda team: team.refused(before[team.secret]))
    for team in found:
        team.progresses()


def replace_authority(world: "World", found: Servers, signer: Signer, users: list[Team]) -> None:
    """Replace the CA in three stages, with the steps of docs/operations/certificates.md between them."""
    api, profiles = world.api, (CLASSIC, WAVES)
    old = {profile: current(api, profile) for profile in profiles}

    def trusted(number: int) -> None:
        """Wait until everything that mounts the CAs has this number of them."""
        await_true(
            f"{number} CAs", lambda: all(authorities(api, each).count("BEGIN") == number for each in profiles), WAIT
        )
        await_all(
            "the Secret of the user has them", users,
            lambda team: team.account.secret()["ca.crt"].strip() == authorities(api, team.account.profile).strip(),
        )  # fmt: skip
        await_all("the applications use it", users, Team.follow)

    signer.stage(2, "Trust")
    trusted(2)
    for ordinal in range(3):
        found.restart(ordinal)
        await_true("all replicas are in sync", found.in_sync, WAIT)
    assert all(current(api, profile) == old[profile] for profile in profiles)

    signer.stage(2, "Issue")
    await_true("the next CA signs", lambda: all(current(api, profile) != old[profile] for profile in profiles), WAIT)
    certificate = secret_data(api, SYSTEM, names.brokers_certificate(CLASSIC))["tls.crt"]
    assert certificates.signed_by(certificate, current(api, CLASSIC))
    stores = [found.classic.files.parent / f"broker-{ordinal}" / "keystore" / "keystore.pem" for ordinal in range(3)]
    await_true("the keystores are new", lambda: all(certificate.strip() in store.read_text() for store in stores), WAIT)
    asyncio.run(reload(found))
    both = "".join(current(api, profile) for profile in profiles)
    await_true("each broker has a certificate of the next CA", lambda: found.signed_by(both), WAIT)
    for team in users:
        team.progresses()

    signer.stage(2, "Finish")
    trusted(1)
    assert all(authorities(api, profile).strip() == current(api, profile).strip() for profile in profiles)


async def reload(found: Servers) -> None:
    """Let the brokers of Apache Kafka read their keystores, as the operator does."""
    password = found.classic.files / "operator-password"
    password.write_text(PASSWORD)
    connection = KafkaConnection(
        bootstrap_servers=found.bootstrap[CLASSIC], protocol="SASL_SSL", ca_path=str(found.authority),
        sasl_mechanism="SCRAM-SHA-512", sasl_username=USER, sasl_password_path=str(password),
    )  # fmt: skip
    topics = KafkaTopics({CLASSIC: Brokers(connection)})
    try:
        await topics.reload_certificates(CLASSIC)
    finally:
        topics.close()


def test_no_application_notices_rotations_and_another_ca(
    world: "World", servers: tuple[Servers, Signer], tmp_path: Path
) -> None:
    found, signer = servers
    with teams(world, found, tmp_path / "applications") as users:
        for team in users:
            team.progresses()
        for number in range(ROTATIONS):
            rotate(world, users, number)
        replace_authority(world, found, signer, users)
        for team in users:
            team.progresses()
            assert len(set(team.sender.clients[: ROTATIONS + 1])) == 2, "rotations alternate between two principals"
            # Each stage that changes the CAs rotates the password, too.
            assert len(team.sender.clients) == len(team.receiver.clients) == 1 + ROTATIONS + 2
            assert team.end() > 1000
