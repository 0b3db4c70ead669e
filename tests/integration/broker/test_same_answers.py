"""Kafka's own tools for users, ACLs and quotas get the same answers from Apache Kafka and from firn-broker, errors included.

The names of a story are in no other test, because Apache Kafka serves other tests, too."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.integration.broker.kafka_tools import Answer, Tools, tools
from tests.servers.firn_broker import embedded
from tests.servers.kafka import Kafka
from tests.servers.process import await_true, free_port

ACLS = """
kafka-acls --add --allow-principal User:same-a --producer --topic same-orders
    > Adding ACLs for resource `ResourcePattern(resourceType=TOPIC, name=same-orders, patternType=LITERAL)`
kafka-acls --list --topic same-orders > operation=WRITE
kafka-acls --add --allow-principal User:same-a --consumer --topic same-orders --group same-readers > already exists
kafka-acls --list --group same-readers > operation=READ
kafka-acls --add --allow-principal User:same-a --deny-principal User:same-b --deny-host 10.0.0.1 --operation Read --topic same-o
    --resource-pattern-type prefixed > (principal=User:same-b, host=10.0.0.1, operation=READ, permissionType=DENY)
kafka-acls --list --topic same-o --resource-pattern-type prefixed > permissionType=DENY
kafka-acls --add --allow-principal User:same-a --operation All --cluster > operation=ALL
kafka-acls --list --principal User:same-a --cluster > operation=ALL
kafka-acls --add --allow-principal User:same-a --operation Write --transactional-id same-tx > TRANSACTIONAL_ID
kafka-acls --list --transactional-id same-tx > operation=WRITE
kafka-acls --add --allow-principal User:same-a --operation Describe --delegation-token same-token > DELEGATION_TOKEN
kafka-acls --list --delegation-token same-token > operation=DESCRIBE

kafka-acls --add --allow-principal User:same-a --operation Write --group same-readers > GROUP only supports operations
kafka-acls --add --allow-principal User:same-a --operation Describe --topic '' > InvalidRequestException: Invalid empty resource name
kafka-acls --add --allow-principal User:same-a --operation Fly --topic same-orders > ResourceType TOPIC only supports operations
kafka-acls --add --allow-principal same-a --operation Read --topic same-orders > expected a string in format
kafka-acls --add --allow-principal User:same-a --operation Read --topic same-orders --resource-pattern-type match
    > A '--resource-pattern-type' value of 'MATCH' is not valid when adding acls.
kafka-acls --add --allow-principal User:same-a --operation Read > You must provide at least one resource
kafka-acls --add --operation Read --topic same-orders > You must specify one of

kafka-acls --list --topic same-orders-1 > -
kafka-acls --list --topic same-orders-1 --resource-pattern-type match > name=same-o,
kafka-acls --list --topic same-orders --resource-pattern-type any > name=same-orders,
kafka-acls --list --topic same-orders --resource-pattern-type match > name=same-o,
kafka-acls --list --topic same-orders --resource-pattern-type prefixed > -
kafka-acls --list --principal User:same-b > operation=READ
kafka-acls --list --principal User:same-nobody > -

kafka-acls --remove --allow-principal User:same-nobody --operation Read --topic same-orders --force > -
kafka-acls --remove --allow-principal User:same-a --operation Read --topic same-absent --force > -
kafka-acls --list --topic same-orders > operation=READ
kafka-acls --remove --allow-principal User:same-a --operation Read --topic same-orders-1 --resource-pattern-type match --force > -
kafka-acls --list --topic same-orders --resource-pattern-type match --principal User:same-b > operation=READ
kafka-acls --remove --topic same-orders --resource-pattern-type match --force > -
kafka-acls --list --topic same-orders --resource-pattern-type match > -
kafka-acls --remove --group same-readers --force > -
kafka-acls --remove --transactional-id same-tx --force > -
kafka-acls --remove --delegation-token same-token --force > -
kafka-acls --remove --allow-principal User:same-a --operation All --cluster --force > -
kafka-acls --list --principal User:same-a > -
"""
"""Commands, and after ``>`` a part of the answer. A ``-`` stands for no part."""

USERS = """
kafka-configs --describe --entity-type users --entity-name same-u > -
kafka-configs --alter --entity-type users --entity-name same-u --delete-config SCRAM-SHA-256
    > ResourceNotFoundException: Attempt to delete a user credential that does not exist
kafka-configs --alter --entity-type users --entity-name same-u --add-config SCRAM-SHA-256=[iterations=1,password=x]
    > Iterations 1 is less than the minimum 4096
kafka-configs --alter --entity-type users --entity-name same-u --add-config SCRAM-SHA-256=[iterations=100000,password=x]
    > UnacceptableCredentialException: Too many iterations
kafka-configs --alter --entity-type users --entity-name same-u --add-config SCRAM-SHA-256=[password=]
    > UnacceptableCredentialException: Password must not be empty
kafka-configs --alter --entity-type users --entity-name same-u --add-config SCRAM-SHA-1=[password=x] > SCRAM-SHA-1
kafka-configs --alter --entity-type users --entity-name same-u
    --add-config 'SCRAM-SHA-256=[password=x],SCRAM-SHA-512=[iterations=8192,password=x]'
    > DuplicateResourceException: A user credential cannot be altered twice in the same request
kafka-configs --alter --entity-type users --entity-name same-u --add-config SCRAM-SHA-512=[iterations=8192,password=x] > Completed
kafka-configs --describe --entity-type users --entity-name same-u > SCRAM-SHA-512=iterations=8192
kafka-configs --alter --entity-type users --entity-name same-u --add-config SCRAM-SHA-256=[password=x] > Completed
kafka-configs --describe --entity-type users --entity-name same-u > SCRAM-SHA-256=iterations=4096
kafka-configs --alter --entity-type users --entity-name same-u --delete-config SCRAM-SHA-512 > Completed
kafka-configs --describe --entity-type users --entity-name same-u > are SCRAM-SHA-256=iterations=4096
kafka-configs --alter --entity-type users --entity-name same-u --delete-config SCRAM-SHA-256 > Completed
kafka-configs --describe --entity-type users --entity-name same-u > -
"""

QUOTAS = """
kafka-configs --alter --entity-type users --entity-name same-u --delete-config producer_byte_rate > Invalid config(s): producer_byte_rate
kafka-configs --alter --entity-type users --entity-name same-u --add-config producer_byte_rate=1024,request_percentage=50.5 > Completed
kafka-configs --describe --entity-type users --entity-name same-u > are producer_byte_rate=1024.0, request_percentage=50.5
kafka-configs --alter --entity-type users --entity-name same-u --add-config producer_byte_rate=much > Cannot parse quota configuration value
kafka-configs --alter --entity-type users --entity-name same-u --add-config producer_byte_rate=-1 > must be greater than 0
kafka-configs --alter --entity-type users --entity-name same-u --add-config producer_byte_rate=0 > must be greater than 0
kafka-configs --alter --entity-type users --entity-name same-u --add-config producer_byte_rate=1.5 > cannot be a fractional value
kafka-configs --alter --entity-type users --entity-name same-u --add-config no_such=1 > no_such
kafka-configs --alter --entity-type users --entity-name same-u --add-config producer_byte_rate=1,SCRAM-SHA-256=[password=x]
    > Cannot alter both quota and SCRAM credential configs simultaneously
kafka-configs --alter --entity-type users --entity-name same-u --entity-type clients --entity-name same-c
    --add-config consumer_byte_rate=2048 > Completed
kafka-configs --describe --entity-type users --entity-name same-u --entity-type clients > client-id 'same-c' are consumer_byte_rate=2048.0
kafka-configs --describe --entity-type users --entity-name same-u --entity-type clients --entity-name same-c > consumer_byte_rate=2048.0
kafka-configs --alter --entity-type clients --entity-name same-c --add-config controller_mutation_rate=3 > Completed
kafka-configs --describe --entity-type clients --entity-name same-c > controller_mutation_rate=3.0
kafka-configs --alter --entity-type users --entity-default --add-config consumer_byte_rate=1000000000000 > default config for users
kafka-configs --describe --entity-type users --entity-default > default user-principal are consumer_byte_rate
kafka-configs --alter --entity-type clients --entity-default --add-config producer_byte_rate=1000000000000 > default config for clients
kafka-configs --describe --entity-type clients --entity-default > default client-id are producer_byte_rate
kafka-configs --alter --entity-type users --entity-default --entity-type clients --entity-default
    --add-config producer_byte_rate=1000000000001 > Completed
kafka-configs --describe --entity-type users --entity-default --entity-type clients --entity-default > producer_byte_rate=1.000000000001E12
kafka-configs --alter --entity-type users --entity-name 'same ü,=' --add-config producer_byte_rate=1 > Completed
kafka-configs --describe --entity-type users --entity-name 'same ü,=' > producer_byte_rate=1.0

kafka-configs --alter --entity-type users --entity-name 'same ü,=' --delete-config producer_byte_rate > Completed
kafka-configs --alter --entity-type users --entity-name same-u --delete-config consumer_byte_rate > Invalid config(s): consumer_byte_rate
kafka-configs --alter --entity-type users --entity-name same-u --delete-config producer_byte_rate,request_percentage > Completed
kafka-configs --alter --entity-type users --entity-name same-u --entity-type clients --entity-name same-c
    --delete-config consumer_byte_rate > Completed
kafka-configs --alter --entity-type clients --entity-name same-c --delete-config controller_mutation_rate > Completed
kafka-configs --alter --entity-type users --entity-default --delete-config consumer_byte_rate > Completed
kafka-configs --alter --entity-type clients --entity-default --delete-config producer_byte_rate > Completed
kafka-configs --alter --entity-type users --entity-default --entity-type clients --entity-default --delete-config producer_byte_rate
    > Completed
kafka-configs --describe --entity-type users --entity-name same-u --entity-type clients --entity-name same-c > -
kafka-configs --describe --entity-type clients --entity-name same-c > -
kafka-configs --describe --entity-type users --entity-default > -
"""

READS = "--list", "--describe"


@dataclass(frozen=True)
class Both:
    """Both brokers, and the tools that run each command on them."""

    tools: Tools
    plain: tuple[str, str]
    """Addresses of the listeners without TLS, whose clients are super users: of Kafka, and of firn-broker."""
    secure: tuple[str, str]
    """Addresses of the listeners with SCRAM."""
    directory: Path

    def play(self, story: str) -> None:
        """Run the commands one after the other, and compare the answers."""
        for command, expected in _steps(story):
            tool, *words = shlex.split(command)
            # Brokers describe a change a moment after it.
            seconds = 30.0 if set(words) & set(READS) else 0.0
            self.agree(tool, words, expected, seconds)

    def agree(self, tool: str, words: list[str], expected: str, seconds: float) -> None:
        """Run a command until both answers are equal and have the expected part, or until the time has passed."""
        answers: list[Answer] = []

        def agreed() -> bool:
            answers[:] = [self.tools.run(address, tool, *words) for address in self.plain]
            first, second = answers
            return (first.code, first.lines) == (second.code, second.lines) and _fits(words, first, expected)

        try:
            await_true(shlex.join([tool, *words]), agreed, seconds)
        except AssertionError as error:
            kafka, firn = answers
            raise AssertionError(f"{error}\nexpected: {expected}\nKafka: {kafka}\nfirn-broker: {firn}") from None

    def clients(self, tool: str, user: str, password: str, *words: str, stdin: str = "") -> list[Answer]:
        """Run a console client as a user on both brokers."""
        login = (
            f'org.apache.kafka.common.security.scram.ScramLoginModule required username="{user}" password="{password}";'
        )
        file = self.directory / f"{user}-{password}.properties"
        file.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={login}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.directory / 'tls' / 'ca.crt'}\n"
        )
        return [
            self.tools.run(address, tool, "--command-config", str(file), *words, stdin=stdin) for address in self.secure
        ]


def _fits(words: list[str], answer: Answer, expected: str) -> bool:
    """Return whether the answer has the expected part; without one, whether the command has succeeded and read nothing."""
    if expected:
        return expected in answer.text
    found = [line for line in answer.lines if line.startswith(("(", "Quota", "SCRAM"))]
    return answer.code == 0 and not (found and set(words) & set(READS))


def _steps(story: str) -> Iterator[tuple[str, str]]:
    """Return each command, and the part of its answer."""
    lines = [line for line in story.replace("\n    ", " ").splitlines() if line]
    for line in lines:
        command, _, expected = line.partition(" > ")
        yield command, "" if expected == "-" else expected


@pytest.fixture(scope="module")
def both(broker: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    directory, port = tmp_path_factory.mktemp("same"), free_port()
    tls = broker.directory / "tls"
    pair = {"certFile": str(tls / "server.crt"), "keyFile": str(tls / "server.key")}
    settings = {
        "LISTENERS": {"secure": {"bind": f"127.0.0.1:{port}", "advertised": f"localhost:{port}", "tls": pair,
                                 "authentication": ["ScramSha512"]}},
        "AUTHORIZATION": {"type": "Acl", "superUsers": ["User:ANONYMOUS"]},
        "GROUPS__INITIAL_REBALANCE_MS": 0,
    }  # fmt: skip
    environment = {f"FIRN_BROKER_{name}": json.dumps(value) for name, value in settings.items()}
    assert broker.secure is not None
    with embedded(directory / "data", **environment) as firn, tools(directory / "tools.log") as running:
        (directory / "tls").symlink_to(tls)
        yield Both(running, (broker.bootstrap, firn.bootstrap), (broker.secure, f"localhost:{port}"), directory)


@pytest.mark.parametrize("story", [ACLS, USERS, QUOTAS], ids=["acls", "users", "quotas"])
def test_each_command_has_the_same_answer(both: Both, story: str) -> None:
    both.play(story)


def test_a_quota_of_an_address_is_refused_by_firn_broker_only(both: Both) -> None:
    words = "--alter", "--entity-type", "ips", "--entity-name", "10.0.0.7"
    for change in (("--add-config", "connection_creation_rate=5"), ("--delete-config", "connection_creation_rate")):
        kafka, firn = (both.tools.run(address, "kafka-configs", *words, *change) for address in both.plain)
        assert (kafka.code, firn.code) == (0, 1)
        if change[0] == "--add-config":
            assert "This broker has no quotas of addresses (ip)" in firn.text


def test_console_clients_may_do_the_same(both: Both) -> None:
    both.play("""
kafka-configs --alter --entity-type users --entity-name same-client --add-config SCRAM-SHA-512=[password=right] > Completed
kafka-configs --describe --entity-type users --entity-name same-client > SCRAM-SHA-512=iterations=4096
kafka-acls --add --allow-principal User:same-client --producer --topic same-mine > operation=CREATE
kafka-acls --list --topic same-mine > operation=CREATE
kafka-acls --add --allow-principal User:same-client --consumer --topic same-mine --group same-group > operation=READ
kafka-acls --list --group same-group > operation=READ
""")
    for bootstrap in both.plain:
        admin = AdminClient(
            {"bootstrap.servers": bootstrap}
        )  # referenced, because a collected client fails its futures
        for future in admin.create_topics([NewTopic("same-mine", 1), NewTopic("same-other", 1)]).values():
            future.result(30)
    producer, consumer = "kafka-console-producer", "kafka-console-consumer"
    mine, other = ("--topic", "same-mine"), ("--topic", "same-other")
    read = "--from-beginning", "--max-messages", "2", "--timeout-ms", "20000"

    def answers(tool: str, *words: str, password: str = "right", stdin: str = "") -> tuple[Answer, Answer]:
        first, second = both.clients(tool, "same-client", password, *words, stdin=stdin)
        assert first.exceptions == second.exceptions, (first, second)
        assert first.code == second.code, (first, second)
        return first, second

    for answer in answers(producer, *mine, stdin="one\ntwo\n"):
        assert (answer.code, answer.lines) == (0, []), answer
    for answer in answers(consumer, *mine, "--group", "same-group", *read):
        assert [line for line in answer.lines if line in ("one", "two")] == ["one", "two"], answer
    for answer in answers(producer, *other, stdin="no\n"):
        assert "TopicAuthorizationException" in answer.exceptions, answer
    for answer in answers(consumer, *other, "--group", "same-group", *read):
        assert "TopicAuthorizationException" in answer.exceptions, answer
    for answer in answers(consumer, *mine, "--group", "foreign", *read):
        assert "GroupAuthorizationException" in answer.exceptions, answer
    for answer in answers(consumer, *mine, "--group", "same-group", *read, password="wrong"):
        assert "SaslAuthenticationException" in answer.exceptions, answer
