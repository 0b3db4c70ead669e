"""Several brokers in one pod or on one host: one process for each, and their supervisor.

A broker has one event loop, so it uses little more than one core. Each process is a node of its own, with its own id,
ports and caches. Rendezvous hashing spreads partitions over processes as over pods.

The supervisor restarts a process that ends, as Kubernetes would restart its container. The other processes continue to
serve. A wrong configuration ends all processes, because a restart cannot help."""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import structlog

from firn.model.errors import ExitCode, InvalidSpecError
from firn_broker.cluster.process_setup import end_with_parent
from firn_broker.settings import ENVIRONMENT, BrokerSettings, SqliteSettings

log = structlog.get_logger()

MOST = 64
"""Largest number of processes."""
RESTART_SECONDS = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before each restart of a process that ends again and again."""
HEALTHY_SECONDS = 60.0
"""Seconds of service after which a process that ends starts again at once."""


def environments(settings: BrokerSettings, count: int) -> list[dict[str, str]]:
    """Return the environment variables of each process. Raises InvalidSpecError.

    Process ``n`` adds ``n`` to each port of ``settings``. If ``nodeId`` is set, its node id is ``nodeId * count + n``.
    """
    if not 1 <= count <= MOST:
        raise InvalidSpecError(f"--processes {count}: the number of processes must be 1 to {MOST}")
    if count > 1 and isinstance(settings.coordinator, SqliteSettings):
        raise InvalidSpecError(
            f"--processes {count}: a broker with a directory and SQLite is a single process. Use --config with a coordinator of"
            " type postgres, or omit --processes"
        )
    places = {"LISTENER__BIND": settings.listener.bind, "LISTENER__ADVERTISED": settings.listener.advertised}
    if settings.external is not None:
        places |= {"EXTERNAL__BIND": settings.external.bind, "EXTERNAL__ADVERTISED": settings.external.advertised}
    for name, listener in settings.listeners.items():
        places[f"LISTENERS__{name}__BIND"] = listener.bind
        places[f"LISTENERS__{name}__ADVERTISED"] = listener.advertised
    if settings.internal is not None:
        places["INTERNAL__BIND"] = settings.internal.bind
    places["METRICS_LISTEN"] = settings.metrics_listen
    listens = [place for name, place in places.items() if place and not name.endswith("ADVERTISED")]
    ports = Counter(port for place in listens for number in range(count) if (port := _port(place, number)))
    # A single process may use a port at two addresses.
    if count > 1 and (clashes := [port for port, times in ports.items() if times > 1]):
        raise InvalidSpecError(
            f"--processes {count}: two listeners would use port {clashes[0]}. Choose ports of listener.bind, external.bind,"
            f" internal.bind and metricsListen that are at least {count} apart"
        )
    made = []
    for number in range(count):
        # The broker reads each value as YAML, to which a bare [::]:9092 is a list.
        values = {name: json.dumps(_shifted(place, number)) for name, place in places.items() if place}
        if settings.node_id is not None:
            values["NODE_ID"] = str(settings.node_id * count + number)
        made.append({f"{ENVIRONMENT}{name}": value for name, value in values.items()})
    return made


def _port(place: str, number: int) -> int:
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit() or int(port) + number > 0xFFFF:
        raise InvalidSpecError(
            f"{place!r} is not HOST:PORT with a port to which {number} can be added; correct it, or choose a lower port"
        )
    # The kernel chooses a port for 0.
    return int(port) and int(port) + number


def _shifted(place: str, number: int) -> str:
    return f"{place.rpartition(':')[0]}:{_port(place, number)}"


class Supervisor:
    """Runs a process for each environment until SIGTERM or SIGINT."""

    def __init__(self, command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> None:
        self._command = command
        self._environments = environments
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    async def run(self) -> int:
        """Run the processes until a signal or a wrong configuration. Return the first exit code that is not 0, if any."""
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self._stop)
        keeping = [asyncio.create_task(self._keep(number)) for number in range(len(self._environments))]
        await asyncio.wait(keeping, return_when=asyncio.FIRST_COMPLETED)
        self._stop()
        codes = await asyncio.gather(*keeping)
        return next((code for code in codes if code), ExitCode.DONE)

    def _stop(self) -> None:
        if self._stopping.is_set():
            # A second signal could kill a process that has already removed its handler.
            return
        self._stopping.set()
        for process in self._running.values():
            with suppress(ProcessLookupError):
                process.terminate()

    async def _keep(self, number: int) -> int:
        """Run one process and restart it whenever it ends. Return its exit code if a restart is not due."""
        loop, failures = asyncio.get_running_loop().time, 0
        while True:
            started = loop()
            code = await self._once(number)
            if self._stopping.is_set() or code == ExitCode.CONFIGURATION:
                return code
            failures = 0 if loop() - started > HEALTHY_SECONDS else failures
            seconds = RESTART_SECONDS[min(failures, len(RESTART_SECONDS) - 1)]
            log.warning(
                "a broker process ended; the supervisor restarts it", process=number, exit_code=code, seconds=seconds
            )
            failures += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stopping.wait()
                return ExitCode.DONE

    async def _once(self, number: int) -> int:
        environment = {**os.environ, **self._environments[number]}
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, env=environment, stdin=asyncio.subprocess.DEVNULL, preexec_fn=end_with_parent
            )
        except OSError as error:
            log.warning("cannot start a broker process", process=number, error=str(error))
            return ExitCode.TEMPORARY
        self._running[number] = process
        if self._stopping.is_set():
            process.terminate()
        code = await process.wait()
        del self._running[number]
        if code == -signal.SIGTERM and self._stopping.is_set():
            # The supervisor stopped a process that had no handler for the signal yet.
            return ExitCode.DONE
        # A signal from outside the supervisor, such as that of the OOM killer, is a temporary failure.
        return code if code >= 0 else ExitCode.TEMPORARY
