"""Secrets as files: each referenced Secret is mounted, and the kubelet replaces the files when it changes."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from firn.model.errors import NotReadyError

Signature = tuple[tuple[str, int, int], ...]


def read(path: str, purpose: str) -> str:
    """Return the secret in the file, without a trailing line end. Raises NotReadyError that names file and ``purpose``."""
    try:
        return Path(path).read_text().rstrip("\r\n")
    except OSError as error:
        raise NotReadyError(
            f"{purpose}: cannot read {path}: {error.strerror}; create the Secret and key that the configuration names"
        ) from error


def signature(paths: Iterable[str]) -> Signature:
    """Return a value that changes when one of the files is replaced. Missing files count as empty."""
    return tuple(_stamp(path) for path in sorted(set(paths)))


def _stamp(path: str) -> tuple[str, int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (path, 0, 0)
    return (path, status.st_mtime_ns, status.st_ino)


def merged(properties: Mapping[str, str], secret_properties: Mapping[str, str], purpose: str) -> dict[str, str]:
    """Return ``properties`` with the values of ``secret_properties`` (property -> file). Raises NotReadyError."""
    return {
        **properties,
        **{key: read(path, f"{purpose}, property {key}") for key, path in secret_properties.items()},
    }
