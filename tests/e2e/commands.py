"""Run commands of ``firn`` in the operator's pod, and statements in the pod of queries, each in a fork of one process there.

Arrow, DuckDB and SQLAlchemy take seconds to import, and the tests run some hundred queries and audits. Each fork has the
state of a new process of ``firn``, with the configuration that the pod has at this time."""

import json
import subprocess
import threading
from typing import IO

from hack import quickstart

FORKS = """
import json, os, sys, traceback
import firn_operator.cli.audit, firn_operator.cli.lake, firn_operator.cli.query, firn_operator.cli.resources.connection
import psycopg, pyiceberg.avro.decoder_fast, sqlalchemy.dialects.postgresql
from firn_operator.cli.main import main
for line in sys.stdin:
    streams = [os.memfd_create(name) for name in ("stdout", "stderr")]
    child = os.fork()
    if child == 0:
        for number, stream in enumerate(streams, 1):
            os.dup2(stream, number)
        sys.argv = ["firn", *json.loads(line)]
        try:
            code = main()
        except SystemExit as end:
            code = end.code
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code or 0)  # a usual exit would end threads that this process does not have
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    texts = []
    for stream in streams:
        with open(stream, "rb") as file:
            file.seek(0)
            texts.append(file.read().decode())
    print(json.dumps([code, *texts]), flush=True)
"""


class Commands:
    """The process in a pod. It starts with the first command, and again after the pod was replaced."""

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def run(self, *arguments: str) -> str:
        """Run a command that changes nothing, and return its output. Raises RuntimeError with its errors if it fails."""
        with self._lock:
            answer = self._ask(arguments)
            if not answer:  # the pod ended: another one answers
                self.close()
                answer = self._ask(arguments)
        assert answer, f"no process of firn answers in {self._pod}: the message of kubectl is above"
        code, output, errors = json.loads(answer)
        if code != 0:
            raise RuntimeError(f"firn {' '.join(arguments)[:300]} failed with exit code {code}: {errors[-3000:]}")
        return str(output)

    def _ask(self, arguments: tuple[str, ...]) -> str:
        """Return a line with exit code, output and errors, or nothing if the process has ended."""
        requests, answers = self._streams()
        try:
            requests.write(json.dumps(arguments) + "\n")
            requests.flush()
        except BrokenPipeError:
            return ""
        return answers.readline()

    def _streams(self) -> tuple[IO[str], IO[str]]:
        if self._process is None:
            command = [
                "kubectl",
                "-n",
                quickstart.SYSTEM,
                "exec",
                "-i",
                self._pod,
                "--",
                "python",
                "-c",
                FORKS,
            ]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=quickstart.environment()
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


COMMANDS = Commands("deploy/firn-operator")
STATEMENTS = Commands("firn-query-0")


def firn(*arguments: str) -> str:
    """Run a command of ``firn`` that changes nothing, and return its output."""
    return (STATEMENTS if arguments[0] == "sql" else COMMANDS).run(*arguments)
