"""Clients of several kinds that authenticate. Each produces records over TLS, and reads them back with a group."""

import asyncio
import atexit
import os
import shutil
import ssl
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider

from tests.authority import Pair
from tests.servers.kafka import SMALL, program

FRANZ = Path(__file__).parents[2] / "clients" / "franz"
RECORDS = 10
SASL, CERTIFICATE = "SASL_SSL", "SSL"
OAUTH = "OAUTHBEARER"
BEARER = "org.apache.kafka.common.security.oauthbearer"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@dataclass(frozen=True)
class Login:
    """How a client reaches the listener, and who it is."""

    bootstrap: str
    authority: Path
    mechanism: str = ""
    """A SASL mechanism; empty for a client with a certificate."""
    user: str = ""
    password: str = ""
    pair: Pair | None = None

    @property
    def protocol(self) -> str:
        return SASL if self.mechanism else CERTIFICATE

    def librdkafka(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap, "security.protocol": self.protocol, "ssl.ca.location": str(self.authority),
        }  # fmt: skip
        if self.mechanism == OAUTH:
            config |= {"sasl.mechanism": OAUTH, "oauth_cb": lambda _: (self.password, time.time() + 3600)}
        elif self.mechanism:
            config |= {"sasl.mechanism": self.mechanism, "sasl.username": self.user, "sasl.password": self.password}
        elif self.pair is not None:
            config |= {
                "ssl.certificate.location": str(self.pair.certificate),
                "ssl.key.location": str(self.pair.key),
            }
        return config

    def java(self, directory: Path) -> Path:
        """Write the properties of a Java client."""
        lines = {
            "security.protocol": self.protocol, "ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority),
        }  # fmt: skip
        if self.mechanism == OAUTH:
            token = directory / "token"
            token.write_text(self.password)
            # A Java client reads the token of a ServiceAccount from its file in this way.
            lines |= {
                "sasl.mechanism": OAUTH,
                "sasl.login.callback.handler.class": f"{BEARER}.OAuthBearerLoginCallbackHandler",
                "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
                "sasl.jaas.config": f"{BEARER}.OAuthBearerLoginModule required;",
            }
        elif self.mechanism:
            module = "plain.Plain" if self.mechanism == "PLAIN" else "scram.Scram"
            lines |= {
                "sasl.mechanism": self.mechanism,
                "sasl.jaas.config": f"org.apache.kafka.common.security.{module}LoginModule required"
                f' username="{self.user}" password="{self.password}";',
            }
        elif self.pair is not None:
            store = directory / "client.pem"
            store.write_bytes(self.pair.key.read_bytes() + self.pair.certificate.read_bytes())
            lines |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
        file = directory / "client.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return file

    def flags(self, directory: Path) -> tuple[str, ...]:
        """Return the flags of a Java client. Since Kafka 4.0, it reads tokens only from places that a system property names."""
        if self.mechanism != OAUTH:
            return SMALL
        return (*SMALL, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={(directory / 'token').as_uri()}")

    def python(self, tokens: object) -> dict[str, Any]:
        """Return the options of a client in Python, which gets its token from ``tokens``."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap, "security_protocol": self.protocol, "ssl_context": self.context(),
        }  # fmt: skip
        if self.mechanism == OAUTH:
            options |= {"sasl_mechanism": OAUTH, "sasl_oauth_token_provider": tokens}
        elif self.mechanism:
            options |= {
                "sasl_mechanism": self.mechanism, "sasl_plain_username": self.user, "sasl_plain_password": self.password,
            }  # fmt: skip
        return options

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority))
        if self.pair is not None:
            context.load_cert_chain(self.pair.certificate, self.pair.key)
        return context


class _AioToken(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


class _PythonToken(KafkaPythonTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


Run = Callable[[Login, str, Path], None]
"""Produces `RECORDS` records to a topic, and reads them with a group of the topic's name."""


def librdkafka(login: Login, topic: str, directory: Path) -> None:
    producer = Producer(login.librdkafka())
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(30) == 0
    consumer = Consumer(login.librdkafka() | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        read: list[bytes] = []
        while len(read) < RECORDS:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None, message.error()
            value = message.value()
            assert value is not None
            read.append(value)
    finally:
        consumer.close()
    assert sorted(read) == [b"%d" % number for number in range(RECORDS)]


def aiokafka(login: Login, topic: str, directory: Path) -> None:
    options = login.python(_AioToken(login.password))

    async def story() -> None:
        async with AIOKafkaProducer(**options) as producer:
            for number in range(RECORDS):
                await producer.send_and_wait(topic, b"%d" % number)
        async with AIOKafkaConsumer(topic, **options, group_id=topic, auto_offset_reset="earliest") as consumer:
            for _ in range(RECORDS):
                await asyncio.wait_for(anext(consumer), 30)

    asyncio.run(story())


def kafka_python(login: Login, topic: str, directory: Path) -> None:
    options = login.python(_PythonToken(login.password))
    with closing(KafkaProducer(**options)) as producer:
        for number in range(RECORDS):
            producer.send(topic, b"%d" % number).get(30)
    with closing(
        KafkaConsumer(topic, **options, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000)
    ) as consumer:
        for _ in range(RECORDS):
            next(consumer)


def java(login: Login, topic: str, directory: Path) -> None:
    properties = str(login.java(directory))
    common = ("--bootstrap-server", login.bootstrap, "--topic", topic, "--command-config", properties)
    lines = "".join(f"{number}\n" for number in range(RECORDS))
    ended = subprocess.run(
        program(CONSOLE_PRODUCER, *common, flags=login.flags(directory)),
        input=lines,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "Exception" not in ended.stdout + ended.stderr, ended.stdout + ended.stderr
    reading = (*common, "--group", topic, "--from-beginning", "--max-messages", str(RECORDS), "--timeout-ms", "60000")
    ended = subprocess.run(
        program(CONSOLE_CONSUMER, *reading, flags=login.flags(directory)), capture_output=True, text=True, timeout=120
    )
    assert sorted(ended.stdout.split()) == [str(number) for number in range(RECORDS)], ended.stderr


@cache
def built_franz_go() -> Path:
    """Build the program of franz-go."""
    program = Path(tempfile.mkdtemp(prefix="franz-")) / "franz"
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": os.environ.get("GOFLAGS", "") + " -mod=readonly"}
    ended = subprocess.run(
        ["go", "build", "-o", program, "."], cwd=FRANZ, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    atexit.register(shutil.rmtree, program.parent, ignore_errors=True)
    return program


def franz_go(login: Login, topic: str, directory: Path) -> None:
    environment = {
        **os.environ, "FIRN_CA": str(login.authority), "FIRN_MECHANISM": login.mechanism, "FIRN_USER": login.user,
        "FIRN_PASSWORD": login.password,
    }  # fmt: skip
    if login.pair is not None:
        environment |= {"FIRN_CERT": str(login.pair.certificate), "FIRN_KEY": str(login.pair.key)}
    ended = subprocess.run(
        [built_franz_go(), login.bootstrap, topic], env=environment, capture_output=True, text=True, timeout=90
    )
    assert (ended.returncode, ended.stdout) == (0, "proven\n"), ended.stderr


CLIENTS: dict[str, Run] = {
    "librdkafka": librdkafka,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
    "java": java,
    "franz-go": franz_go,
}
