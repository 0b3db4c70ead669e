"""Debian packages that the local provider and image builds need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hack.support.command import run
from hack.support.content import locked
from hack.support.places import cache_directory
from hack.support.progress import Failure, step

LOCAL_CLUSTER = {
    "containerd": "/usr/bin/containerd",
    "runc": "/usr/sbin/runc",
    "containernetworking-plugins": "/usr/lib/cni/ptp",
    "iptables": "/usr/sbin/iptables",
    "conntrack": "/usr/sbin/conntrack",
    "socat": "/usr/bin/socat",
    "iproute2": "/usr/sbin/ip",
    "openssl": "/usr/bin/openssl",
}
"""Package -> a file of it, which exists if the package is installed."""

IMAGE_BUILD = {"buildah": "/usr/bin/buildah", "debootstrap": "/usr/sbin/debootstrap"}


def _present(file: str) -> bool:
    # Debian 12 has two names for one directory. Other distributions may have the program elsewhere on PATH.
    return (
        Path(file).exists()
        or shutil.which(Path(file).name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None
    )


def ensure(packages: dict[str, str]) -> None:
    """Install the missing packages. Raises `Failure` without root or on another system than Debian."""
    missing = [name for name, file in packages.items() if not _present(file)]
    if not missing:
        return
    names = " ".join(missing)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Failure(
            f"the Debian packages {names} are missing, and this process may not install them; run `apt-get install {names}` as root"
        )
    with locked(cache_directory() / "apt.lock"), step(f"installing Debian packages {names}"):
        log = cache_directory("logs") / "apt.log"
        quiet = {"DEBIAN_FRONTEND": "noninteractive"}
        run(["apt-get", "update"], environment=quiet, log=log)
        with _no_services():
            run(["apt-get", "install", "-y", "--no-install-recommends", *missing], environment=quiet, log=log)


@contextmanager
def _no_services() -> Iterator[None]:
    """Keep packages from starting their services: the cluster runs containerd itself, in its own namespaces."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()
