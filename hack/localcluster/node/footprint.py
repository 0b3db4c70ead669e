"""Traces of a cluster on the machine, as the kernel reports them. They prove that `down` leaves nothing."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hack.localcluster.node.init import MACHINE_SETTINGS, hierarchies


@dataclass(frozen=True)
class Footprint:
    """Traces outside of the namespaces of clusters. `beyond` compares two footprints."""

    mounts: frozenset[str]
    interfaces: frozenset[str]
    network_namespaces: frozenset[str]
    filter_rules: frozenset[str]
    routes: frozenset[str]
    control_groups: frozenset[str]
    settings: frozenset[str]

    @classmethod
    def now(cls) -> Footprint:
        """Return the current footprint of the machine."""
        mounts = (line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines())
        settings = [Path("/proc/sys") / name for name in [*MACHINE_SETTINGS, "net/ipv4/ip_forward"]]
        return cls(
            mounts=frozenset(mounts),
            interfaces=frozenset(os.listdir("/sys/class/net")),
            network_namespaces=_lines("ip", "netns", "list"),
            filter_rules=frozenset(rule for rule in _lines("iptables-save") if rule.startswith("-")),
            routes=_lines("ip", "route", "show", "table", "all"),
            control_groups=frozenset(str(each) for root in hierarchies() for each in root.iterdir() if each.is_dir()),
            settings=frozenset(f"{path}={path.read_text().strip()}" for path in settings if path.exists()),
        )

    def beyond(self, earlier: Footprint) -> dict[str, list[str]]:
        """Return the traces that did not exist ``earlier``, by kind. Empty if nothing was left."""
        kinds = {kind: sorted(getattr(self, kind) - getattr(earlier, kind)) for kind in self.__dataclass_fields__}
        return {kind: traces for kind, traces in kinds.items() if traces}


def processes_of(control_group: str, words: str) -> dict[int, str]:
    """Return the processes of a cluster: in its control group, or with `words` (its directory) in their command line; pid -> command line."""
    processes = {}
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                groups = (process / "cgroup").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if control_group in groups or words in command:
                processes[int(process.name)] = command
    return processes


def _lines(*command: str) -> frozenset[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return frozenset()
    return frozenset(line.strip() for line in done.stdout.splitlines() if line.strip())
