"""Apache Kafka's own tools, from the published jars, against the broker. Each call starts a JVM, so a test makes
few."""

import json
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.servers.firn_broker import FirnBroker
from tests.servers.kafka import SMALL, program
from tests.servers.process import await_true, free_port, running, stop

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"


def attempt(broker: FirnBroker, tool: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = program(tool, "--bootstrap-server", broker.bootstrap, *arguments)
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=240)


def call(broker: FirnBroker, tool: str, *arguments: str, stdin: str = "") -> str:
    """Run a tool that must succeed, and return its output."""
    ended = attempt(broker, tool, *arguments, stdin=stdin)
    # Several tools print their error and exit with code 0.
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Exception" not in ended.stdout + ended.stderr, ended.stdout + ended.stderr
    return ended.stdout


def table(text: str) -> list[list[str]]:
    """Return the words of each line that is not empty."""
    return [line.split() for line in text.splitlines() if line.strip()]


def test_topics_are_created_described_grown_and_deleted(firn: FirnBroker, name: str) -> None:
    call(firn, TOPICS, "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=3600000")
    call(firn, TOPICS, "--alter", "--topic", name, "--partitions", "3")
    described = call(firn, TOPICS, "--describe", "--topic", name).splitlines()
    assert f"Topic: {name}\t" in described[0]
    assert "PartitionCount: 3\tReplicationFactor: 1\tConfigs: retention.ms=3600000" in described[0]
    assert [line.split("\t")[2:6] for line in described[1:]] == [
        [f"Partition: {number}", "Leader: 0", "Replicas: 0", "Isr: 0"] for number in range(3)
    ]
    again = attempt(firn, TOPICS, "--create", "--topic", name)
    assert again.returncode != 0
    assert "TopicExistsException" in again.stdout + again.stderr
    call(firn, TOPICS, "--delete", "--topic", name)
    assert name not in call(firn, TOPICS, "--list").split()


def test_configs_are_described_and_altered(firn: FirnBroker, name: str) -> None:
    call(firn, TOPICS, "--create", "--topic", name, "--config", "retention.ms=3600000")
    changes = ("--add-config", "segment.ms=60000", "--delete-config", "retention.ms")
    call(firn, CONFIGS, "--alter", "--topic", name, *changes)
    assert [line[0] for line in table(call(firn, CONFIGS, "--describe", "--topic", name))[1:]] == ["segment.ms=60000"]
    every = dict(
        line[0].split("=", 1) for line in table(call(firn, CONFIGS, "--describe", "--topic", name, "--all"))[1:]
    )
    assert (every["retention.ms"], every["segment.ms"], every["cleanup.policy"]) == ("604800000", "60000", "delete")
    wrong = attempt(firn, CONFIGS, "--alter", "--topic", name, "--add-config", "retention.ms=soon")
    assert "InvalidConfigurationException" in wrong.stdout + wrong.stderr


def test_records_of_every_codec_are_consumed(firn: FirnBroker, name: str) -> None:
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    call(firn, TOPICS, "--create", "--topic", name)
    for codec in codecs:
        lines = "".join(f"codec:{codec}\t{number}|{codec * number}\n" for number in range(1, 50))
        call(
            firn, PRODUCER, "--topic", name, "--compression-codec", codec, "--reader-property", "parse.key=true",
            "--reader-property", "key.separator=|", "--reader-property", "parse.headers=true",
            "--reader-property", "null.marker=NULL",
            stdin=lines + f"codec:{codec}\tNULL|NULL\n",
        )  # fmt: skip
    output = call(
        firn, CONSUMER, "--topic", name, "--from-beginning", "--max-messages", "250", "--timeout-ms", "30000",
        "--formatter-property", "print.key=true", "--formatter-property", "print.headers=true",
        "--formatter-property", "print.offset=true",
    )  # fmt: skip
    expected = []
    for codec in codecs:
        expected += [(f"codec:{codec}", str(number), codec * number) for number in range(1, 50)]
        expected.append((f"codec:{codec}", "null", "null"))
    assert [tuple(line.split("\t")) for line in output.splitlines()] == [
        (f"Offset:{offset}", *record) for offset, record in enumerate(expected)
    ]


def test_offsets_are_listed_and_records_deleted(firn: FirnBroker, name: str, tmp_path: Path) -> None:
    call(firn, TOPICS, "--create", "--topic", name, "--partitions", "2")
    before = int(time.time() * 1000)
    call(firn, PRODUCER, "--topic", name, "--reader-property", "parse.key=true", stdin="k\tv\n" * 10)
    latest = call(firn, OFFSETS, "--topic", name).split()
    (partition,) = [number for number in range(2) if f"{name}:{number}:10" in latest]
    empty = 1 - partition
    assert sorted(latest) == sorted([f"{name}:{partition}:10", f"{name}:{empty}:0"])
    file = tmp_path / "offsets.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": name, "partition": partition, "offset": 4}]}))
    deleted = call(firn, "org.apache.kafka.tools.DeleteRecordsCommand", "--offset-json-file", str(file))
    assert f"partition: {name}-{partition}\tlow_watermark: 4" in deleted
    for asked, answer in (("earliest", "4"), (str(before), "4"), ("max-timestamp", None)):
        listed = call(firn, OFFSETS, "--topic-partitions", f"{name}:{partition}", "--time", asked).strip()
        assert listed.startswith(f"{name}:{partition}:"), asked
        assert answer is None or listed == f"{name}:{partition}:{answer}", asked


@contextmanager
def console_consumers(
    broker: FirnBroker, name: str, directory: Path, *properties: str
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Run two consumers in a group of a new topic of that name. Their output is in consumer-N.log."""
    call(broker, TOPICS, "--create", "--topic", name, "--partitions", "4")
    with ExitStack() as stack:
        yield [
            stack.enter_context(console_consumer(broker, name, directory / f"consumer-{number}.log", *properties))
            for number in range(2)
        ]


@contextmanager
def console_consumer(
    broker: FirnBroker, name: str, log: Path, *properties: str, flags: Sequence[str] = SMALL
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a consumer of the topic in the group of that name. Its output is in ``log``."""
    chosen = [part for text in ("auto.commit.interval.ms=200", *properties) for part in ("--command-property", text)]
    command = program(
        CONSUMER, "--bootstrap-server", broker.bootstrap, "--topic", name, "--group", name, "--from-beginning", *chosen,
        flags=flags,
    )  # fmt: skip
    with running(command, log.exists, log) as process:
        yield process


@pytest.fixture
def members(firn: FirnBroker, name: str, tmp_path: Path) -> Iterator[list["subprocess.Popen[bytes]"]]:
    with console_consumers(firn, name, tmp_path) as processes:
        yield processes


def test_groups_are_shared_described_reset_and_deleted(
    firn: FirnBroker, name: str, members: list["subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    describe = ("--describe", "--group", name)

    def shared() -> bool:
        output = attempt(firn, GROUPS, *describe, "--members").stdout
        return sorted(line[-1] for line in table(output)[1:]) == ["2", "2"]

    await_true("two members with two partitions each", shared)
    call(firn, PRODUCER, "--topic", name, "--command-property", "batch.size=1",
         stdin="".join(f"{number}\n" for number in range(200)))  # fmt: skip
    logs = [tmp_path / f"consumer-{number}.log" for number in range(2)]
    await_true("all records consumed", lambda: sum(len(log.read_text().split()) for log in logs) >= 200)
    assert sorted(int(word) for log in logs for word in log.read_text().split()) == list(range(200))
    for process in members:
        stop(process)
    state = table(call(firn, GROUPS, "--list", "--state"))
    assert [name, "Empty"] in state
    rows = table(call(firn, GROUPS, *describe))[1:]
    assert sorted(int(row[2]) for row in rows) == list(range(4))
    assert (sum(int(row[3]) for row in rows), [row[5] for row in rows]) == (200, ["0"] * 4)
    reset = call(firn, GROUPS, "--group", name, "--topic", name, "--reset-offsets", "--to-earliest", "--execute")
    assert [row[3] for row in table(reset)[1:]] == ["0"] * 4
    assert sum(int(row[5]) for row in table(call(firn, GROUPS, *describe))[1:]) == 200
    gone = call(firn, GROUPS, "--delete-offsets", "--group", name, "--topic", name)
    assert [row[2] for row in table(gone)[2:]] == ["Successful"] * 4
    call(firn, GROUPS, "--delete", "--group", name)
    assert name not in call(firn, GROUPS, "--list").split()


def test_a_restarted_static_member_causes_no_rebalance(firn: FirnBroker, name: str, tmp_path: Path) -> None:
    call(firn, TOPICS, "--create", "--topic", name, "--partitions", "4")
    logs = {life: tmp_path / f"{life}.log" for life in ("one", "two", "one-again")}
    flags = (*SMALL, "-Dorg.apache.logging.log4j.level=INFO")

    def living(life: str) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        return console_consumer(firn, name, logs[life], f"group.instance.id={life.split('-')[0]}", flags=flags)

    def generations(life: str) -> list[int]:
        text = logs[life].read_text() if logs[life].exists() else ""
        return [
            int(digits) for digits in re.findall(r"synced group in generation Generation\{generationId=(\d+)", text)
        ]

    def read(*lives: str) -> list[int]:
        return sorted(int(line) for life in lives for line in logs[life].read_text().splitlines() if line.isdigit())

    def send(numbers: range) -> None:
        lines = "".join(f"{number}\n" for number in numbers)
        call(firn, PRODUCER, "--topic", name, "--command-property", "batch.size=1", stdin=lines)

    with ExitStack() as stack:
        first = stack.enter_context(living("one"))
        await_true("the assignment of the first member", lambda: generations("one") != [])
        stack.enter_context(living("two"))
        # The cooperative assignor puts the generation into the metadata of the second join.
        await_true(
            "both members are in one generation", lambda: generations("one")[-1:] == generations("two")[-1:] != []
        )
        shared = generations("two")
        send(range(100))
        await_true("records of both members", lambda: len(read("one", "two")) >= 100)
        stop(first)
        stack.enter_context(living("one-again"))
        await_true("the assignment of the member", lambda: generations("one-again") != [])
        send(range(100, 200))
        await_true("the other records", lambda: len(read(*logs)) >= 200)
        assert read(*logs) == list(range(200))
        assert (generations("one-again"), generations("two")) == (shared[-1:], shared)
        assert read("one-again")


def test_the_performance_tools_produce_and_consume(firn: FirnBroker, name: str) -> None:
    call(firn, TOPICS, "--create", "--topic", name, "--config", "max.message.bytes=2000000")
    common = ("--topic", name, "--throughput", "-1")
    zstd = ("--command-property", "compression.type=zstd")
    assert "5000 records sent" in call(
        firn, PRODUCER_PERFORMANCE, *common, "--num-records", "5000", "--record-size", "1000", *zstd
    )
    large = ("--command-property", "max.request.size=2000000")
    assert "20 records sent" in call(
        firn, PRODUCER_PERFORMANCE, *common, "--num-records", "20", "--record-size", "1048576", *large
    )
    output = call(firn, CONSUMER_PERFORMANCE, "--topic", name, "--num-records", "5020", "--timeout", "30000")
    assert output.splitlines()[-1].split(", ")[4] == "5020"


def test_a_transaction_is_rejected_at_once(firn: FirnBroker, name: str) -> None:
    call(firn, TOPICS, "--create", "--topic", name)
    # After a retriable error the client would try again until the time limit of `attempt`.
    refused = attempt(
        firn, PRODUCER_PERFORMANCE, "--topic", name, "--throughput", "-1", "--num-records", "10", "--record-size", "100",
        "--transactional-id", "t", "--command-property", "max.block.ms=3600000",
    )  # fmt: skip
    assert refused.returncode != 0
    assert "TransactionalIdAuthorizationException" in refused.stderr
    assert call(firn, OFFSETS, "--topic", name).split() == [f"{name}:0:0"]


def test_connect_copies_a_file_through_a_topic(firn: FirnBroker, name: str, tmp_path: Path) -> None:
    source, sink, port = tmp_path / "source.txt", tmp_path / "sink.txt", free_port()
    lines = [f"line {number}" for number in range(500)]
    source.write_text("".join(f"{line}\n" for line in lines))

    def properties(file: str, /, **values: str) -> str:
        path = tmp_path / file
        path.write_text("".join(f"{key.replace('_', '.')}={value}\n" for key, value in values.items()))
        return str(path)

    strings = "org.apache.kafka.connect.storage.StringConverter"
    files = [
        properties(
            "worker.properties", bootstrap_servers=firn.bootstrap, key_converter=strings, value_converter=strings,
            offset_storage_file_filename=str(tmp_path / "offsets"), offset_flush_interval_ms="500",
            listeners=f"http://127.0.0.1:{port}", plugin_discovery="service_load",
        ),
        properties("source.properties", name="source", connector_class="FileStreamSource", file=str(source), topic=name),
        properties("sink.properties", name="sink", connector_class="FileStreamSink", file=str(sink), topics=name),
    ]  # fmt: skip
    command = program("org.apache.kafka.connect.cli.ConnectStandalone", *files, jars="connect")

    def copied(count: int) -> bool:
        return sink.exists() and len(sink.read_text().splitlines()) >= count

    with running(command, lambda: copied(500), tmp_path / "connect.log"):
        assert sink.read_text().splitlines() == lines
        with source.open("a") as file:
            file.write("one more\n")
        await_true("the later line", lambda: copied(501))
    assert sink.read_text().splitlines() == [*lines, "one more"]
