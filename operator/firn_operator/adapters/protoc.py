"""protoc, the compiler of .proto texts, as a process of its own. So a hostile text cannot stop the operator."""

import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError, NotReadyError

SECONDS = 30
"""Time for one text. protoc takes a tenth of a second for an ordinary one."""
_MODULE = "grpc_tools.protoc"
_FILE = "schema.proto"
_MOST_DETAIL = 400
_ERROR = re.compile(r"\S+\.proto:(\d+:\d+:)? (?!warning: )")
MOST_KEPT = 256
"""Texts whose results are kept."""


def descriptors(text: str, references: tuple[tuple[str, str], ...]) -> bytes:
    """Compile a .proto text into a serialized ``FileDescriptorSet``, with all files that the text imports.

    ``references`` are further texts, each after the name of its import. Raises InvalidSpecError (BadSchema) with protoc's
    first error, and NotReadyError if protoc does not end or names no error.
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
            *(sys.executable, "-P", "-m", _MODULE, f"-I{folder}"),
            *("--include_imports", f"--descriptor_set_out={out}", _FILE),
        ]
        try:
            done = subprocess.run(command, capture_output=True, cwd=directory, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise NotReadyError(
                f"protoc did not compile the text within {SECONDS} seconds; the operator tries again. Give it more CPU, or make the text smaller"
            ) from None
        if not done.returncode:
            return out.read_bytes()
        error = _first_error(done, folder)
        if error is None:
            raise NotReadyError(
                f"protoc ended with the code {done.returncode}; the operator tries again. Give it more memory, or make the text smaller"
            )
        return _bad(f"protoc rejects the text: {error}")


def _first_error(done: subprocess.CompletedProcess[bytes], folder: Path) -> str | None:
    """Return the first error of protoc, without the folder of its files. Lines of its logging library have no place."""
    lines = done.stderr.decode("utf-8", "replace").replace(f"{folder}/", "").splitlines()
    errors = [(match[1] is None, line) for line in lines if (match := _ERROR.match(line))]
    # Errors with line and column come first.
    return min(errors, key=lambda error: error[0])[1][:_MOST_DETAIL] if errors else None


def _bad(problem: str) -> InvalidSpecError:
    return InvalidSpecError(problem, reason=Reason.BAD_SCHEMA)
