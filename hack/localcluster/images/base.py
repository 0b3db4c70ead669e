"""The base image on a machine without access to an image registry: debian:bookworm-slim from the machine's own Debian mirror.

It has the machine's certificates and its pip and apt settings, so image builds reach the same hosts as the machine. Every machine builds
its own base image, and never pushes it.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hack.support.command import run
from hack.support.content import content_hash
from hack.support.places import cache_directory
from hack.support.progress import Failure, step

NAME = "docker.io/library/debian:bookworm-slim"
_RELEASE = "bookworm"

_SLIM = """\
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/lintian/*
"""


@dataclass(frozen=True)
class Source:
    """An apt source of the machine."""

    uri: str
    suite: str
    components: str


def apt_sources(directory: Path = Path("/etc/apt")) -> list[Source]:
    """Return the machine's sources of this Debian release, in either format, without those of other releases and vendors."""
    sources: list[Source] = []
    for path in [directory / "sources.list", *sorted(directory.glob("sources.list.d/*"))]:
        if not path.is_file():
            continue
        text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
        if path.suffix == ".sources":
            sources += _stanzas(text)
        else:
            matches = re.finditer(r"^\s*deb\s+(?:\[[^]]*]\s+)?(\S+)\s+(\S+)[ \t]+(.+?)\s*$", text, re.MULTILINE)
            sources += [Source(*match.groups()) for match in matches]
    return [each for each in sources if each.suite.split("-")[0] == _RELEASE and "main" in each.components.split()]


def _stanzas(text: str) -> list[Source]:
    sources = []
    for stanza in re.split(r"\n\s*\n", text):
        fields = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in stanza.splitlines())
        }
        if "deb" in fields.get("types", "").split() and fields.get("enabled", "yes") != "no":
            for uri in fields.get("uris", "").split():
                sources += [
                    Source(uri, suite, fields.get("components", "")) for suite in fields.get("suites", "").split()
                ]
    return sources


def ensure(buildah: list[str]) -> None:
    """Build the base image, unless buildah's store has it for the machine's current settings."""
    sources = apt_sources()
    if not sources:
        raise Failure(
            f"cannot build the base image: the machine's apt configuration has no source of Debian {_RELEASE}; add one to /etc/apt"
        )
    settings = [path for path in _machine_settings() if path.exists()]
    digest = content_hash(settings, _SLIM, *(f"{each.uri} {each.suite} {each.components}" for each in sources))
    mark = cache_directory() / "base-image"
    if (
        mark.exists()
        and mark.read_text() == digest
        and NAME.partition("/")[2] in run([*buildah, "images", "--format", "{{.Name}}:{{.Tag}}"])
    ):
        return
    for abandoned in cache_directory().glob(
        "base-*/"
    ):  # Another process may have built it before this one held the lock.
        shutil.rmtree(abandoned)
    with (
        step("building the base image (debootstrap)"),
        tempfile.TemporaryDirectory(prefix="base-", dir=cache_directory()) as scratch,
    ):
        root = Path(scratch) / "root"
        log = cache_directory("logs") / "debootstrap.log"
        main = next((each for each in sources if each.suite == _RELEASE), sources[0])
        run(["debootstrap", "--variant=minbase", "--include=ca-certificates", _RELEASE, root, main.uri], log=log)
        _slim_down(root)
        _carry_settings(root, settings, sources)
        container = run([*buildah, "from", "scratch"]).strip()
        try:
            run([*buildah, "add", "--quiet", container, root, "/"])
            run(
                [
                    *buildah,
                    "config",
                    "--cmd",
                    "bash",
                    "--env",
                    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                    container,
                ]
            )
            run([*buildah, "commit", "--quiet", "--format", "oci", container, NAME])
        finally:
            run([*buildah, "rm", container])
    mark.write_text(digest)


def _machine_settings() -> list[Path]:
    """Return the configuration files by which the machine reaches package registries."""
    apt = [
        path
        for path in sorted(Path("/etc/apt/apt.conf.d").glob("*"))
        if "Acquire::" in path.read_text(errors="replace")
    ]
    return [Path("/usr/local/share/ca-certificates"), Path("/etc/pip.conf"), *apt]


def _slim_down(root: Path) -> None:
    for pattern in (
        "usr/share/man/*",
        "usr/share/info/*",
        "usr/share/locale/*",
        "var/lib/apt/lists/*",
        "var/cache/apt/*",
        "usr/share/doc/*/[!c]*",
    ):
        for path in root.glob(pattern):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(_SLIM)
    (root / "etc/apt/apt.conf.d/clean").write_text(
        'APT::Install-Recommends "false";\nAcquire::Languages "none";\nDir::Cache::pkgcache "";\nDir::Cache::srcpkgcache "";\n'
    )


def _carry_settings(root: Path, settings: list[Path], sources: list[Source]) -> None:
    for path in settings:
        target = root / path.relative_to("/")
        if path.is_dir():
            shutil.copytree(path, target, dirs_exist_ok=True)
        else:
            shutil.copy(path, target)
    lines = [f"deb {each.uri} {each.suite} {each.components}\n" for each in sources]
    (root / "etc/apt/sources.list").write_text("".join(lines))
    run(["chroot", root, "update-ca-certificates"], environment={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
