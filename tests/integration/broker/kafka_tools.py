"""Apache Kafka's own tools in one JVM, which runs each command on several clusters."""

import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.servers.kafka import program
from tests.servers.process import stop

TOOLS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
}
"""Tools by the names of Kafka's scripts."""
_PROGRAM = Path(__file__).parents[2] / "clients" / "tools" / "Tools.java"


class Answer(NamedTuple):
    """The result of a tool."""

    code: int
    lines: Sequence[str]
    """The lines of both outputs without addresses and frames of stack traces, in the order of the alphabet: Kafka lists
    ACLs and quotas in the order of its hash tables."""
    exceptions: frozenset[str]
    """The names of the exceptions in both outputs."""

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


class Tools:
    """A JVM that runs tools one after the other."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def run(self, bootstrap: str, tool: str, *arguments: str, stdin: str = "") -> Answer:
        """Run a tool, by the name of its script, against the brokers at an address."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        words = ["--bootstrap-server", bootstrap, *arguments]
        request = json.dumps({"tool": TOOLS[tool], "arguments": words, "input": stdin})
        self._process.stdin.write(request.encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        text = (answer["output"] + "\n" + answer["errors"]).replace(bootstrap, "BROKERS")
        return Answer(answer["code"], _lines(text), frozenset(re.findall(r"\b\w+Exception\b", text)))


@contextmanager
def tools(log: Path) -> Iterator[Tools]:
    """Run a JVM for tools until the end of the with block. What its runtime prints is in ``log``."""
    with log.open("w") as errors:
        pipe = subprocess.PIPE
        process = subprocess.Popen(program(str(_PROGRAM)), stdin=pipe, stdout=pipe, stderr=errors)
        try:
            yield Tools(process)
        finally:
            stop(process)
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()


def _lines(text: str) -> Sequence[str]:
    found = []
    for line in text.splitlines():
        if not line.strip() or re.match(r"\s+(at |\.\.\. \d+ more)", line):
            continue
        head, are, quotas = line.partition(" are ")
        found.append(f"{head}{are}{', '.join(sorted(quotas.split(', ')))}" if are else line.strip())
    return sorted(found)
