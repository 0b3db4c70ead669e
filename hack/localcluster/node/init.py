"""The node: one process tree in PID, network and mount namespaces of its own.

When its first process ends, all its processes end, and the kernel removes its mounts, interfaces, routes and packet filter rules.
Nothing has to be undone. Outside of it are only files below the cluster's directory, one control group, and listening loopback
sockets, which are opened before the process enters the namespaces.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from hack.localcluster.layout import NODE_ADDRESS, POD_RANGE, SERVICE_RANGE, Layout
from hack.localcluster.node.components import Component, components
from hack.support.process import Process

_CLONE_NEWNS = 0x00020000
_CLONE_NEWPID = 0x20000000
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1

MACHINE_SETTINGS = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Kernel settings of the whole machine that a kubelet sets. In the node, other files are mounted over them."""


# By default, all pods together weigh as much as one process beside them. On a busy machine, their probes would time out.
_CPU_WEIGHTS = {"cpu.shares": 8 * 1024, "cpu.weight": 8 * 100}
"""File of a control group -> 8 times the default CPU weight: of version 1, and of version 2. With 16 times, pods of three Kafka brokers
held up the tests beside them for minutes."""


def main() -> None:
    """Run the process that `up` starts: `init.py DIRECTORY KUBE COREDNS SOCKETS`. SOCKETS is JSON, port -> descriptor."""
    layout = Layout(Path(sys.argv[1]))
    sockets = {int(port): descriptor for port, descriptor in json.loads(sys.argv[4]).items()}
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWNET):
        sys.exit(
            f"the kernel refused new namespaces ({os.strerror(ctypes.get_errno())}): run the local provider as root with CAP_SYS_ADMIN"
        )
    child = os.fork()
    if child == 0:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _first_process(layout, components(layout, Path(sys.argv[2]), Path(sys.argv[3]), sockets))
    Process.write(layout.process, Process.running(os.getpid()), Process.running(child))
    os.waitpid(child, 0)


def _first_process(layout: Layout, programs: list[Component]) -> None:
    # The first process of a PID namespace ignores signals without a handler.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    _mount(layout)
    _network()
    _control_group(layout.control_group)
    _supervise(layout, programs)


def _shell(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)


def _mount(layout: Layout) -> None:
    _shell("mount --make-rprivate /", "mount -t proc proc /proc", "mount -t tmpfs -o mode=755 tmpfs /run")
    _shell(f"mount --bind {layout.logs} /var/log", f"mount --bind {layout.node / 'lib'} /var/lib")
    copies = layout.node / "machine-settings"
    copies.mkdir(exist_ok=True)
    for setting in MACHINE_SETTINGS:
        file = Path("/proc/sys") / setting
        if file.exists():
            copy = copies / setting.replace("/", ".")
            copy.write_text(file.read_text())
            _shell(f"mount --bind {copy} {file}")


def _network() -> None:
    # A bridge, because not every kernel has dummy interfaces; the `kubernetes` Service may not point at a loopback address.
    _shell(
        "ip link set lo up",
        "ip link add node0 type bridge",
        f"ip address add {NODE_ADDRESS}/32 dev node0",
        "ip link set node0 up",
    )
    # Without a route, the packet filter does not see packets to Service addresses. No other address exists.
    _shell(
        f"ip route add {SERVICE_RANGE} dev node0 src {NODE_ADDRESS}",
        f"ip route add unreachable {POD_RANGE}",
        "ip route add unreachable default",
    )
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def hierarchies() -> list[Path]:
    """Return the roots of the control group hierarchies: one with version 2, one per controller with version 1."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    return [each for each in sorted(root.iterdir()) if (each / "cgroup.procs").exists() and not each.is_symlink()]


def _control_group(name: str) -> None:
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        if (hierarchy / "cgroup.controllers").exists():
            controllers = " ".join(f"+{each}" for each in (hierarchy / "cgroup.controllers").read_text().split())
            if controllers and hierarchy.name != "unified":
                (hierarchy / "cgroup.subtree_control").write_text(controllers)
                (group / "cgroup.subtree_control").write_text(controllers)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (group / file).exists() and not (group / file).read_text().strip():
                (group / file).write_text((hierarchy / file).read_text())
        for file, weight in _CPU_WEIGHTS.items():
            if (group / file).exists():
                (group / file).write_text(str(weight))


def _supervise(layout: Layout, programs: list[Component]) -> None:
    """Start every program, restart it a second after it has ended, and reap orphans, until the process ends."""
    running: dict[int, Component] = {}
    due: list[tuple[float, Component]] = [(0.0, program) for program in programs]
    environment = {
        "PATH": f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin",
        "HOME": "/root",
        # With Go's default of 100, garbage collection takes a fifth of the API server's CPU time.
        "GOGC": "300",
    }
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        now = time.monotonic()
        for start, program in [entry for entry in due if entry[0] <= now]:
            due.remove((start, program))
            running[_start(layout, program, environment)] = program
        while pid := _reap():
            if ended := running.pop(pid, None):
                due.append((time.monotonic() + 1.0, ended))
        wait = max(0.0, min(start for start, _ in due) - time.monotonic()) if due else None
        if select.select([woken], [], [], wait)[0]:
            os.read(woken, 4096)


def _reap() -> int:
    """Reap a child that has ended and return its number, 0 without one."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0]
    except ChildProcessError:
        return 0


def _start(layout: Layout, program: Component, environment: dict[str, str]) -> int:
    with (layout.logs / "components" / f"{program.name}.log").open("ab") as log:
        return subprocess.Popen(
            program.arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=program.descriptors,
            env=environment,
            start_new_session=True,
            executable=shutil.which(program.arguments[0], path=environment["PATH"]),
        ).pid


if __name__ == "__main__":
    main()
