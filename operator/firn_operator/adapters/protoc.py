"""protoc, the compiler of .proto texts, as a process of its own. So a hostile text cannot stop the operator."""

import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError

SECONDS = 30
"""Time for one text. protoc takes a tenth of a second for an ordinary one."""
_FILE = "schema.proto"
_MOST_DETAIL = 400
_PLACE = re.compile(r"\S+:\d+:\d+: ")
MOST_KEPT = 256
"""Texts whose results are kept."""


def descriptors(text: str, references: tuple[tuple[str, str], ...]) -> bytes:
    """Compile a .proto text into a serialized ``FileDescriptorSet``, with all files that the text imports.

    ``references`` are further texts, each after the name of its import. Raises InvalidSpecError (BadSchema) with protoc's
    first error.
    """
    answer = _compiled(text, references)
    if isinstance(answer, InvalidSpecError):
        raise answer.with_traceback(None)
    return answer


@functools.lru_cache(MOST_KEPT)
def _compiled(text: str, references: tuple[tuple[str, str], ...]) -> bytes | InvalidSpecError:
    with tempfile.TemporaryDirectory(prefix="firn-protoc-") as directory:
        folder, out = Path(directory, "in"), Path(directory, "out")
        folder.mkdir()
        for name, content in (*references, (_FILE, text)):
            path = (folder / name).resolve()
            if not path.is_relative_to(folder.resolve()):
                return _bad(f"the import {name} is outside the schema; choose another name")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, "utf-8")
        command = [
            *(sys.executable, "-P", "-m", "grpc_tools.protoc", f"-I{folder}"),
            *("--include_imports", f"--descriptor_set_out={out}", _FILE),
        ]
        try:
            done = subprocess.run(command, capture_output=True, cwd=directory, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return _bad(f"protoc did not compile the text within {SECONDS} seconds; make the text smaller")
        if done.returncode or not out.exists():
            return _bad(f"protoc rejects the text: {_first_error(done, folder)}")
        return out.read_bytes()


def _first_error(done: subprocess.CompletedProcess[bytes], folder: Path) -> str:
    """Return the first error of protoc, without the folder of its files. Lines of its logging library have no place."""
    lines = done.stderr.decode("utf-8", "replace").replace(f"{folder}/", "").splitlines()
    placed = (line for line in lines if _PLACE.match(line) and ": warning: " not in line)
    return next(placed, f"exit code {done.returncode}")[:_MOST_DETAIL]


def _bad(problem: str) -> InvalidSpecError:
    return InvalidSpecError(problem, reason=Reason.BAD_SCHEMA)
