"""numba, set up so that compiled code is kept and found again.

Machine code is made for the plainest processor of the architecture, so that what an image build compiled runs on every node.
The image keeps it in the directory that ``FIRN_COMPILED`` names; as that is read-only at run time, and numba wants to be able to
write, it is copied once to the temporary directory. It is found by the content of its source file, wherever that lies. Import
`njit` from here, never from numba: the settings have to come first.

The build of the Spark image compiles the kernels ahead of time; see `firn_spark.worker.formats.json.build`.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("NUMBA_CPU_NAME", "generic")

import numba
from numba.core import caching

_PREBUILT = "FIRN_COMPILED"
DIRECTORY = Path(tempfile.gettempdir()) / f"firn-compiled-{os.getuid()}"
"""The directory in which numba keeps compiled code."""


class Locator(caching._SourceFileBackedLocatorMixin, caching._CacheLocator):
    """Where numba keeps the code of a function, and that it is told from others by the content of its file."""

    def __init__(self, _function: object, file: str) -> None:
        self._py_file = file
        self._lineno = _function.__code__.co_firstlineno  # type: ignore[attr-defined]

    def get_cache_path(self) -> str:
        """One directory for all."""
        return str(DIRECTORY)


def _prepare() -> None:
    prebuilt = os.environ.get(_PREBUILT)
    if not prebuilt or DIRECTORY.exists() or not Path(prebuilt).is_dir():
        return
    copy = Path(tempfile.mkdtemp(prefix="firn-compiled-"))
    shutil.copytree(prebuilt, copy, dirs_exist_ok=True)
    try:
        copy.rename(DIRECTORY)
    except OSError:  # another process was first
        shutil.rmtree(copy, ignore_errors=True)


_prepare()
numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.{Locator.__name__}"  # type: ignore[attr-defined]
Function = TypeVar("Function", bound=Callable[..., Any])


def njit(function: Function) -> Function:
    """Compiles ``function`` at its first call and keeps the result. It runs without the interpreter's lock, and may make no arrays:
    those it is given are not counted, as that takes longer than short functions do."""
    options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}
    compiled: Function = numba.njit(**options)(function)
    return compiled
