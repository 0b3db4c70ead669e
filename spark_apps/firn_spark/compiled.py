"""numba, set up so that compiled code is kept and found again.

Machine code is made for the plainest processor of the architecture, so that what an image build compiled runs on every node.
The image keeps it in the directory that ``FIRN_COMPILED`` names; as that is read-only at run time, and numba wants to be able to
write, it is copied once to the temporary directory. Import `njit` from here, never from numba: the settings have to come first.

``python -m firn_spark.compiled DIRECTORY`` is what the image build runs, after everything else about the package's files is final:
numba knows a source file by its place, size and time.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

_PREBUILT = "FIRN_COMPILED"


def _prepare() -> None:
    os.environ.setdefault("NUMBA_CPU_NAME", "generic")
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    kept = Path(tempfile.gettempdir()) / f"firn-compiled-{os.getuid()}"
    os.environ["NUMBA_CACHE_DIR"] = str(kept)
    prebuilt = os.environ.get(_PREBUILT)
    if prebuilt and not kept.exists() and Path(prebuilt).is_dir():
        copy = Path(tempfile.mkdtemp(prefix="firn-compiled-"))
        shutil.copytree(prebuilt, copy, dirs_exist_ok=True)
        try:
            copy.rename(kept)
        except OSError:  # another process was first
            shutil.rmtree(copy, ignore_errors=True)


_prepare()

import numba  # noqa: E402  after the settings

Function = TypeVar("Function", bound=Callable[..., Any])


def njit(function: Function) -> Function:
    """Compiles ``function`` at its first call and keeps the result. It runs without the interpreter's lock, and may make no arrays:
    those it is given are not counted, as that takes longer than short functions do."""
    options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}
    compiled: Function = numba.njit(**options)(function)
    return compiled


def main(directory: str) -> None:
    """Compiles everything into ``directory``."""
    os.environ["NUMBA_CACHE_DIR"] = directory
    numba.config.reload_config()  # type: ignore[no-untyped-call]
    for source in Path(__file__).parent.glob("*.py"):  # image layers keep whole seconds
        seconds = int(source.stat().st_mtime)
        os.utime(source, (seconds, seconds))
    from firn_spark import json_blocks

    json_blocks.warm()


if __name__ == "__main__":
    main(sys.argv[1])
