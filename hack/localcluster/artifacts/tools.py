"""The Go programs of the cluster and of tests. Each is built once per content of its module."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.support.command import run
from hack.support.content import cached, content_hash, locked
from hack.support.places import REPOSITORY, cache_directory
from hack.support.progress import Failure, every, say, step

KUBERNETES = "1.34.4"


@dataclass(frozen=True)
class Module:
    """A Go module below `hack` and its programs. One run of the compiler builds several of them, so that a package that several
    programs need is compiled once."""

    directory: str
    programs: Mapping[str, str]
    """Program -> package."""
    compiler: tuple[str, ...]
    """Values of `-gcflags`. For a package, the last one whose pattern matches counts."""
    linker: str = "-s -w"


_BUSY = (
    "std",
    "k8s.io/apimachinery/...",
    "k8s.io/apiserver/...",
    "k8s.io/apiextensions-apiserver/...",
    "k8s.io/kube-openapi/...",
    "sigs.k8s.io/...",
    "go.etcd.io/...",
    "google.golang.org/...",
    "golang.org/x/...",
    "github.com/google/cel-go/...",
    "github.com/json-iterator/...",
    "github.com/modern-go/...",
)
"""Patterns of the packages in which an API server and etcd spend their time."""

CLUSTER = Module(
    "kube",
    {
        "kube": ".",
        "coredns": "./coredns",
        "helm": "helm.sh/helm/v3/cmd/helm",
        "pause": "./pause",
        "policycni": "./policycni",
    },
    # Without inlining and debugging information, the 3,000 packages need little more than half of the compiler's time. Most components of
    # a test cluster wait. The API server does not: its requests take a third less CPU time with inlining in the packages of `_BUSY`.
    compiler=("all=-l -dwarf=false", *(f"{pattern}=-dwarf=false" for pattern in _BUSY)),
    linker=" ".join(
        [
            "-s -w",
            f"-X k8s.io/component-base/version.gitVersion=v{KUBERNETES}",
            f"-X k8s.io/component-base/version.gitMajor={KUBERNETES.split('.')[0]}",
            f"-X k8s.io/component-base/version.gitMinor={KUBERNETES.split('.')[1]}",
        ]
    ),
)
# Benchmarks compare with this program, so it is compiled with all optimizations.
STORAGE = Module(
    "tools/versitygw", {"versitygw": "github.com/versity/versitygw/cmd/versitygw"}, compiler=("all=-dwarf=false",)
)
# Tests evaluate a few thousand queries with it. Without inlining the build needs a fifth less time.
ALERTS = Module("tools/alertrules", {"alertrules": "."}, compiler=("all=-l -dwarf=false",))
# Only `make test-long` builds it.
CERTIFICATES = Module("tools/certmanager", {"certmanager": "."}, compiler=("all=-l -dwarf=false",))
MODULES = {name: module for module in (CLUSTER, STORAGE, ALERTS, CERTIFICATES) for name in module.programs}
_ENVIRONMENT = {
    "CGO_ENABLED": "0",
    "GOFLAGS": os.environ.get("GOFLAGS", "") + " -mod=readonly",
    # The compiler runs once per package. Rarer garbage collection costs little memory and saves a tenth of its time.
    "GOGC": "400",
}
PROGRESS_SECONDS = 15.0
"""Seconds between two messages about a running build."""


def build(name: str) -> Path:
    """Return the path of a program. Builds it unless the cache has it. Raises `Failure` with the end of the compiler's output."""
    return build_together([name])[name]


def build_together(names: Sequence[str]) -> dict[str, Path]:
    """Return the paths of programs of one module. One run of the compiler builds those that the cache lacks. Raises `Failure`."""
    module = MODULES[names[0]]
    directory = REPOSITORY / "hack" / module.directory
    try:
        compiler = run(["go", "env", "GOVERSION", "GOARCH"], directory=directory)
    except Failure as failure:
        raise Failure(f"cannot build {', '.join(names)} without Go 1.26 or newer; install it: {failure}") from failure
    key = content_hash([directory], compiler, *module.compiler, module.linker)
    with locked(cache_directory("tools") / f".lock-{directory.name}"):
        missing = [name for name in names if not (cache_directory("tools", name) / key).is_dir()]
        if missing:
            with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=cache_directory("tools")) as scratch:
                _compile(module, directory, missing, Path(scratch))
                for name in missing:
                    cached(f"tools/{name}", key, _moving(Path(scratch) / name))
    return {name: cache_directory("tools", name) / key / name for name in names}


def run_tests(module: Module, package: str) -> None:
    """Run the Go tests of a package with the flags of its module, so that they reuse the packages of its programs. Raises `Failure`."""
    # The vet checks would analyse all dependencies of the package.
    run(
        ["go", "test", "-vet=off", *_flags(module), package],
        directory=REPOSITORY / "hack" / module.directory,
        environment=_ENVIRONMENT,
    )


def _flags(module: Module) -> list[str]:
    return ["-trimpath", *(f"-gcflags={value}" for value in module.compiler), f"-ldflags={module.linker}"]


def _moving(program: Path) -> Callable[[Path], None]:
    def fill(directory: Path) -> None:
        program.rename(directory / program.name)

    return fill


def _compile(module: Module, directory: Path, names: Sequence[str], output: Path) -> None:
    """Build programs into a directory, and print every few seconds the number of compiled packages."""
    title = ", ".join(names)
    packages = [module.programs[name] for name in names]
    flags = _flags(module)
    with step(f"building {title} (Go)"):
        listed = ["go", "list", *flags, "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}", *packages]
        package_count = len(run(listed, directory=directory, environment=_ENVIRONMENT).split())
        log = cache_directory("logs") / f"go-{directory.name}.log"

        def report() -> None:
            compiled = log.read_text(errors="replace").count("\n") if log.exists() else 0
            say(f"building {title}: {min(compiled, package_count):,} of {package_count:,} packages compiled")

        # `-v` prints the name of each package that is compiled.
        command: list[str | Path] = ["go", "build", "-v", *flags, "-o", f"{output}/", *packages]
        with every(PROGRESS_SECONDS, report):
            run(command, directory=directory, environment=_ENVIRONMENT, log=log)
