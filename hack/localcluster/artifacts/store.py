"""The store of built images: an OCI image layout in the cache, in which images share blobs.

Source: OCI image specification, image-layout.md.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from hack.support.content import locked
from hack.support.places import cache_directory

_REFERENCE = "org.opencontainers.image.ref.name"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"


class Store:
    """An OCI image layout. Its images have full references, `localhost/NAME:TAG`."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or cache_directory("images")
        self.blobs = self.directory / "blobs" / "sha256"
        self.blobs.mkdir(parents=True, exist_ok=True)
        (self.directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')

    def locked(self) -> Any:
        """Lock the store for a change."""
        return locked(self.directory / ".lock")

    def images(self) -> dict[str, dict[str, Any]]:
        """Return reference -> descriptor of the manifest."""
        return {
            entry["annotations"][_REFERENCE]: entry
            for entry in self._entries()
            if _REFERENCE in entry.get("annotations", {})
        }

    def blobs_of(self, reference: str) -> list[str]:
        """Return the digests (hex) of an image's layers, configuration and manifest. Raises `KeyError` without the image."""
        descriptor = self.images()[reference]
        manifest = json.loads(self._blob(descriptor).read_text())
        return [each["digest"].partition(":")[2] for each in [*manifest["layers"], manifest["config"], descriptor]]

    def layers(self, reference: str) -> list[Path]:
        """Return the archives of an image's layers, base first. Raises `KeyError` without the image."""
        return [self.blobs / digest for digest in self.blobs_of(reference)[:-2]]

    def stream(self, reference: str, output: IO[bytes], present: Callable[[str], bool]) -> int:
        """Write an image as a tar archive for `ctr images import`, without the blobs that are already `present`. Returns its size in bytes."""
        descriptor = self.images()[reference]
        entry = {
            **descriptor,
            "annotations": {"io.containerd.image.name": reference, _REFERENCE: reference.rpartition(":")[2]},
        }
        written = 0
        with tarfile.open(fileobj=output, mode="w|") as archive:
            for name, content in (
                ("oci-layout", b'{"imageLayoutVersion": "1.0.0"}'),
                ("index.json", json.dumps({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]}).encode()),
            ):
                _add(archive, name, content)
            for digest in dict.fromkeys(self.blobs_of(reference)):
                blob = self.blobs / digest
                if not present(digest):
                    archive.add(blob, f"blobs/sha256/{digest}")
                    written += blob.stat().st_size
        return written

    def add_program(self, reference: str, program: Path) -> None:
        """Add an image with one static program as its only file and entry point, unless the store has it."""
        with self.locked():
            if reference in self.images():
                return
            layer = io.BytesIO()
            with tarfile.open(fileobj=layer, mode="w") as archive:
                _add(archive, program.name, program.read_bytes(), 0o755)
            content = layer.getvalue()
            configuration = {
                "architecture": _architecture(program),
                "os": "linux",
                "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
            }
            manifest = {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": self._put("application/vnd.oci.image.config.v1+json", json.dumps(configuration).encode()),
                "layers": [self._put("application/vnd.oci.image.layer.v1.tar", content)],
            }
            descriptor = {**self._put(_MANIFEST, json.dumps(manifest).encode()), "annotations": {_REFERENCE: reference}}
            self._write_entries([*self._entries(), descriptor])

    def append(self, reference: str, onto: str, directory: Path, place: str) -> None:
        """Add an image that has the layers of `onto` and one more: the files of `directory` at `place`, owned by root."""
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as archive:
            # Not files_below: it leaves out __pycache__, and the layer needs the bytecode.
            for file in sorted(each for each in directory.rglob("*") if each.is_file()):
                mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
                _add(archive, f"{place.strip('/')}/{file.relative_to(directory)}", file.read_bytes(), mode)
        content = layer.getvalue()
        with self.locked():
            manifest = json.loads(self._blob(self.images()[onto]).read_text())
            configuration = json.loads(self._blob(manifest["config"]).read_text())
            configuration["rootfs"]["diff_ids"].append(f"sha256:{hashlib.sha256(content).hexdigest()}")
            configuration.setdefault("history", []).append({"created_by": f"COPY {directory.name} {place}"})
            manifest["layers"].append(self._put("application/vnd.oci.image.layer.v1.tar", content))
            manifest["config"] = self._put(
                "application/vnd.oci.image.config.v1+json", json.dumps(configuration).encode()
            )
            descriptor = {**self._put(_MANIFEST, json.dumps(manifest).encode()), "annotations": {_REFERENCE: reference}}
            others = [each for each in self._entries() if each.get("annotations", {}).get(_REFERENCE) != reference]
            self._write_entries([*others, descriptor])

    def prune(self, keep: int, name: str) -> None:
        """Remove all but the `keep` last images of a name, and the blobs that no image needs any more."""
        with self.locked():
            ours = [reference for reference in self.images() if reference.rpartition(":")[0] == name]
            self._write_entries([entry for reference, entry in self.images().items() if reference not in ours[:-keep]])
            needed = {digest for reference in self.images() for digest in self.blobs_of(reference)}
            for blob in self.blobs.iterdir():
                if blob.name not in needed:
                    blob.unlink()

    def _entries(self) -> list[dict[str, Any]]:
        try:
            entries: list[dict[str, Any]] = json.loads((self.directory / "index.json").read_text())["manifests"]
        except FileNotFoundError:
            return []
        return entries

    def _write_entries(self, entries: list[dict[str, Any]]) -> None:
        unfinished = self.directory / "index.json.unfinished"
        unfinished.write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
        unfinished.rename(self.directory / "index.json")

    def _blob(self, descriptor: dict[str, Any]) -> Path:
        return self.blobs / str(descriptor["digest"]).partition(":")[2]

    def _put(self, media_type: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (self.blobs / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    header = tarfile.TarInfo(name)
    header.size, header.mode = len(content), mode
    archive.addfile(header, io.BytesIO(content))


def _architecture(program: Path) -> str:
    """Return the program's architecture by Go's name, from its ELF header."""
    machine = int.from_bytes(program.read_bytes()[18:20], "little")
    return {62: "amd64", 183: "arm64"}[machine]
