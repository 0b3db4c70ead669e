"""The parts of an image: packages of Debian and Python, jars, and Go modules, found in the files of its layers."""

from __future__ import annotations

import email
import hashlib
import io
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import quote

from hack.support.command import run

_GO = b"\xff Go buildinf:"
"""Bytes that each program of Go has (debug/buildinfo)."""
_GO_LARGEST = 512 * 2**20
_JAR_NAME = re.compile(r"(?P<name>.+?)-(?P<version>[0-9][^/]*)\.jar")
_PROGRAMS = ("bin/", "usr/bin/", "usr/local/bin/", "opt/")


@dataclass(frozen=True, order=True)
class Part:
    """A package in an image. ``purl`` is its package URL, which identifies it."""

    purl: str
    name: str
    version: str
    group: str = ""
    license: str = ""
    """Expression of SPDX, or the text that the package states."""
    sha256: str = ""
    """Hash of the file, for a jar."""


def of_layers(layers: Iterable[Path]) -> dict[str, list[Part]]:
    """Return the parts by the file that names them, from the layers of an image, base first.

    A later layer replaces and deletes files of earlier ones (OCI image specification, layer.md).
    """
    found: dict[str, list[Part]] = {}
    for layer in layers:
        with tarfile.open(layer) as archive:
            for path, parts in _read(archive):
                place = PurePosixPath(path)
                if place.name == ".wh..wh..opq":
                    _delete(found, place.parent)
                elif place.name.startswith(".wh."):
                    _delete(found, place.with_name(place.name.removeprefix(".wh.")))
                else:
                    found[path] = parts
    return {path: parts for path, parts in found.items() if parts}


def of_file_system(stream: IO[bytes]) -> dict[str, list[Part]]:
    """Return the parts by the file that names them, from the whole file system of an image as a tar archive."""
    with tarfile.open(fileobj=stream, mode="r|") as archive:
        return {path: parts for path, parts in _read(archive) if parts}


def _delete(found: dict[str, list[Part]], place: PurePosixPath) -> None:
    for path in [each for each in found if each == str(place) or each.startswith(f"{place}/")]:
        del found[path]


def _read(archive: tarfile.TarFile) -> Iterator[tuple[str, list[Part]]]:
    for member in archive:
        path = member.name.removeprefix("./").lstrip("/")
        if PurePosixPath(path).name.startswith(".wh."):
            yield path, []
        elif member.isfile() and _names_parts(path, member):
            file = archive.extractfile(member)
            assert file is not None
            yield path, list(_parts(path, file.read()))


def _names_parts(path: str, member: tarfile.TarInfo) -> bool:
    if path == "var/lib/dpkg/status" or path.endswith((".dist-info/METADATA", ".jar")):
        return True
    return bool(member.mode & 0o100) and path.startswith(_PROGRAMS) and member.size <= _GO_LARGEST


def _parts(path: str, content: bytes) -> Iterator[Part]:
    if path == "var/lib/dpkg/status":
        yield from _debian(content.decode())
    elif path.endswith(".dist-info/METADATA"):
        yield _python(content)
    elif path.endswith(".jar"):
        yield from _jar(PurePosixPath(path).name, content)
    elif _GO in content:
        yield from _go(content)


def _debian(status: str) -> Iterator[Part]:
    for paragraph in status.split("\n\n"):
        fields = email.message_from_string(paragraph.strip("\n") + "\n\n")
        if fields.get("Status", "").endswith(" installed"):
            name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
            yield Part(f"pkg:deb/debian/{_quoted(name)}@{_quoted(version)}?arch={architecture}", name, version)


def _python(metadata: bytes) -> Part:
    fields = email.message_from_bytes(metadata)
    name, version = fields["Name"], fields["Version"]
    normal = re.sub(r"[-_.]+", "-", name).lower()
    return Part(f"pkg:pypi/{normal}@{_quoted(version)}", name, version, license=fields.get("License-Expression", ""))


def _jar(file: str, content: bytes) -> Iterator[Part]:
    """Yield the jar itself, and the artifacts that it bundles and names."""
    digest = hashlib.sha256(content).hexdigest()
    coordinates = sorted(_coordinates(content))
    own = [each for each in coordinates if file.startswith(f"{each[1]}-{each[2]}")]
    for group, name, version in coordinates:
        purl = f"pkg:maven/{_quoted(group)}/{_quoted(name)}@{_quoted(version)}"
        yield Part(purl, name, version, group, sha256=digest if (group, name, version) in own[:1] else "")
    if not own:
        match = _JAR_NAME.fullmatch(file)
        name, version = (match["name"], match["version"]) if match else (file.removesuffix(".jar"), "")
        purl = f"pkg:generic/{_quoted(name)}" + (f"@{_quoted(version)}" if version else "")
        yield Part(f"{purl}?checksum=sha256:{digest}", name, version, sha256=digest)


def _coordinates(content: bytes) -> Iterator[tuple[str, str, str]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.namelist():
            if entry.startswith("META-INF/maven/") and entry.endswith("/pom.properties"):
                lines = archive.read(entry).decode("utf-8", "replace").splitlines()
                values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
                if {"groupId", "artifactId", "version"} <= values.keys():
                    yield values["groupId"].strip(), values["artifactId"].strip(), values["version"].strip()


def _go(program: bytes) -> Iterator[Part]:
    """Yield the modules of a program. Raises `Failure` without Go."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "program"
        path.write_bytes(program)
        path.chmod(0o755)
        lines = run(["go", "version", "-m", path]).splitlines()
    toolchain = lines[0].rpartition(": ")[2].split()[0].removeprefix("go")
    yield Part(f"pkg:golang/stdlib@{_quoted(toolchain)}", "stdlib", toolchain)
    modules: list[tuple[str, str]] = []
    for line in lines[1:]:
        kind, *words = line.strip().split("\t")
        if kind in ("mod", "dep"):
            modules.append((words[0], words[1]))
        elif kind == "=>":
            modules[-1] = (words[0], words[1])
    for name, version in modules:
        yield Part(f"pkg:golang/{quote(name, safe='/')}@{_quoted(version)}", name, version)


def _quoted(text: str) -> str:
    return quote(text, safe="")
