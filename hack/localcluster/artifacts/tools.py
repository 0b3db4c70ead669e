"""The Go programs that the cluster is made of, built once per content of their modules."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hack.support.command import run
from hack.support.content import cached, content_hash
from hack.support.places import REPOSITORY, cache_directory
from hack.support.progress import Failure, step

KUBERNETES = "1.34.4"


@dataclass(frozen=True)
class Tool:
    """A Go program: its module's directory below `hack`, its package, and the values that the linker stamps into it."""

    module: str
    package: str = "."
    stamps: tuple[str, ...] = ()


TOOLS = {
    "kube": Tool(
        "kube",
        stamps=(
            f"k8s.io/component-base/version.gitVersion=v{KUBERNETES}",
            f"k8s.io/component-base/version.gitMajor={KUBERNETES.split('.')[0]}",
            f"k8s.io/component-base/version.gitMinor={KUBERNETES.split('.')[1]}",
        ),
    ),
    "coredns": Tool("tools/coredns"),
    "helm": Tool("tools/helm", "helm.sh/helm/v3/cmd/helm"),
    "versitygw": Tool("tools/versitygw", "github.com/versity/versitygw/cmd/versitygw"),
    "pause": Tool("tools/pause"),
}


def build(name: str) -> Path:
    """The path of the built program, from the cache when nothing changed. Raises `Failure` with the end of the compiler's words."""
    tool = TOOLS[name]
    module = REPOSITORY / "hack" / tool.module
    flags = " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in tool.stamps)])
    try:
        compiler = run(["go", "env", "GOVERSION", "GOARCH"], directory=module)
    except Failure as failure:
        raise Failure(f"building {name} needs Go 1.25 or newer: {failure}") from failure

    def compile_into(directory: Path) -> None:
        with step(f"building {name} (Go)"):
            run(
                ["go", "build", "-trimpath", "-ldflags", flags, "-o", directory / name, tool.package],
                directory=module,
                environment={"CGO_ENABLED": "0", "GOFLAGS": os.environ.get("GOFLAGS", "") + " -mod=readonly"},
                log=cache_directory("logs") / f"go-{name}.log",
            )

    return cached(f"tools/{name}", content_hash([module], compiler, flags, tool.package), compile_into) / name
