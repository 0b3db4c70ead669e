"""numba, set up so that compiled code is cached and found again. Import its names from here, never from numba.

numba reads its settings when it is imported, so this module sets them before.

The code is compiled for the generic processor of the architecture, so that the code of an image build runs on every
node. The image holds it in the directory that ``FIRN_COMPILED`` names. That is read-only at run time, and numba
writes to its cache, so the code is copied once to the temporary directory. numba finds code by the content of its
source file, in any directory. The Spark image's build compiles ahead of time
(`firn_spark.worker.build`).
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("NUMBA_CPU_NAME", "generic")

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import caching, cgutils
from numba.extending import intrinsic

__all__ = ["DIRECTORY", "Locator", "cgutils", "inlined", "intrinsic", "ir", "njit", "types"]

_PREBUILT = "FIRN_COMPILED"
DIRECTORY = Path(tempfile.gettempdir()) / f"firn-compiled-{os.getuid()}"
"""The directory in which numba keeps compiled code."""


class Locator(caching._SourceFileBackedLocatorMixin, caching._CacheLocator):
    """Tells numba where to cache a function's code, and to identify it by the content of its file."""

    def __init__(self, _function: object, file: str) -> None:
        self._py_file = file
        self._lineno = _function.__code__.co_firstlineno  # type: ignore[attr-defined]

    def get_cache_path(self) -> str:
        """Return the one directory for all functions."""
        return str(DIRECTORY)


def _prepare() -> None:
    prebuilt = os.environ.get(_PREBUILT)
    if not prebuilt or DIRECTORY.exists() or not Path(prebuilt).is_dir():
        return
    copy = Path(tempfile.mkdtemp(prefix="firn-compiled-"))
    shutil.copytree(prebuilt, copy, dirs_exist_ok=True)
    try:
        copy.rename(DIRECTORY)
    except OSError:  # another process copied it first
        shutil.rmtree(copy, ignore_errors=True)


_prepare()
numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.{Locator.__name__}"  # type: ignore[attr-defined]
_OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}
Function = TypeVar("Function", bound=Callable[..., Any])


def njit(function: Function) -> Function:
    """Compile ``function`` at its first call, and cache the code.

    It runs without the interpreter's lock. It must not allocate arrays, and its arguments are not reference-counted:
    counting takes longer than a short function.
    """
    compiled: Function = numba.njit(**_OPTIONS)(function)
    return compiled


def inlined(function: Function) -> Function:
    """Compile ``function`` as `njit` does, and copy its code to each place that calls it.

    A call costs more than a short function: each array is passed as seven numbers.
    """
    compiled: Function = numba.njit(forceinline=True, **_OPTIONS)(function)
    return compiled
