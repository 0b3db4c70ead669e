"""Jobs: processes that do one piece of work for a broker. They read a JSON document, and print one.

A process of its own does the work, because it reads and checks hundreds of megabytes. The event loop of the broker must not wait for
that."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn

from firn.model.errors import ExitCode, FencedError, FirnError, UnavailableError
from firn_broker.cluster.process_setup import end_with_parent, log_as_json

SECONDS = 3_600.0
"""Seconds after which a process counts as stuck."""
NICENESS = 10
"""A job must not take a core from the broker's event loop."""


async def run_job(module: str, asked: Mapping[str, Any], *, work: str, advice: str, bounded: bool = True) -> Any:
    """Run the program ``module`` on a document, and return its answer. Raises UnavailableError if it fails.

    So does a ``bounded`` process that runs for `SECONDS`. ``work`` completes "the process that" in messages, and ``advice`` is the next
    step if it has too little memory."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, stdin=PIPE, stdout=PIPE)
    try:
        async with asyncio.timeout(SECONDS if bounded else None):
            answer, _ = await process.communicate(json.dumps({**asked, "parent": os.getpid()}).encode())
    except TimeoutError as error:
        raise UnavailableError(f"the process that {work} did not end within {SECONDS:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise UnavailableError(
            f"the process that {work} ended with {process.returncode}. If the log has no reason, the pod has too little memory: {advice}"
        )
    return json.loads(answer)


def do_job(work: Callable[[Mapping[str, Any]], Coroutine[Any, Any, Mapping[str, object]]]) -> NoReturn:
    """Do the work on the document of standard input, print the answer, and end the process. The exit code is one of `ExitCode`."""
    code = _done(work)
    sys.stdout.flush()
    sys.stderr.flush()
    # Arrow reads ahead in threads of its own, which call Python. If one does so while the interpreter ends, the process aborts.
    os._exit(code)


def _done(work: Callable[[Mapping[str, Any]], Coroutine[Any, Any, Mapping[str, object]]]) -> ExitCode:
    end_with_parent(signal.SIGKILL)
    # The broker ends this process. A terminal or systemd sends these signals to all processes of the broker.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICENESS)
    log_as_json()
    try:
        asked = json.load(sys.stdin.buffer)
        if os.getppid() != asked["parent"]:
            # The broker ended before this process could ask for its end.
            return ExitCode.TEMPORARY
        answer = asyncio.run(work(asked))
    except (UnavailableError, FencedError) as error:
        print(error, file=sys.stderr)
        return ExitCode.TEMPORARY
    except FirnError as error:
        print(error, file=sys.stderr)
        return ExitCode.CONFIGURATION
    print(json.dumps(answer))
    return ExitCode.DONE
