"""protoc, the compiler of .proto texts, as a process of its own. So a hostile text cannot stop the operator or a driver."""

import base64
import errno
import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from firn import protobuf_imports
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError, NotReadyError
from firn.texts import without_surrogates

SECONDS = 30
"""Time for one text. protoc takes a tenth of a second for an ordinary one."""
MOST_BYTES = 2 << 20
"""Most bytes of descriptors. protoc writes the full name of a type at each use, so a small text can have large ones."""
_MOST_MEMORY = 1 << 30
_MOST_ERRORS = 64 << 10
_MODULE = "grpc_tools.protoc"
# A pod has one limit of memory for all its processes.
_RUN = """
import resource, runpy, sys
module, memory, size = sys.argv.pop(1), int(sys.argv.pop(1)), int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
_FILE, _OTHER_FILE = "schema.proto", "schema-of-the-topic.proto"
"""The file of the text, and that of a text which imports a file of the first name."""
_MOST_DETAIL = 400
_LONGEST_NAME = 100
_OF_NAMES = frozenset({errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST})
"""Errors of the file system for names that are too long, or that are also a folder of another name."""
_ERROR = re.compile(r"\S+\.proto:(\d+:\d+:)? (?!warning: )")
_SERIALIZED = "serialized.pb"
_DAMAGED = f"{_SERIALIZED}: Unable to parse."
"""The error of protoc for bytes that are no descriptors."""
MOST_KEPT = 16
"""Texts whose results are kept, because topics may share a text."""


def descriptors(text: str, references: tuple[tuple[str, str], ...]) -> bytes:
    """Compile a .proto text into a serialized ``FileDescriptorSet``, with all files that the text imports.

    ``references`` are further texts, each after the name of its import. Each text may also be the base64 of a serialized
    ``FileDescriptorProto``, as Confluent's serializer for Python registers it. Raises InvalidSpecError
    (BadSchema) with protoc's first error, and NotReadyError if protoc does not end or names no error.
    """
    answer = _compiled(text, references)
    if isinstance(answer, InvalidSpecError):
        raise answer.with_traceback(None)
    return answer


@functools.lru_cache(MOST_KEPT)
def _compiled(text: str, references: tuple[tuple[str, str], ...]) -> bytes | InvalidSpecError:
    file = _FILE if all(name != _FILE for name, _ in references) else _OTHER_FILE
    texts = {**protobuf_imports.TEXTS, **dict(references), file: text}
    serialized = {name: found for name, each in texts.items() if (found := _serialized(each)) is not None}
    with tempfile.TemporaryDirectory(prefix="firn-protoc-") as directory:
        folder = Path(directory, "in")
        folder.mkdir()
        for name, content in texts.items():
            problem = None if name in serialized else _write(folder, name, content)
            if problem is not None:
                return problem
        options = [f"-I{folder}"]
        if serialized:
            path = Path(directory, _SERIALIZED)
            path.write_bytes(b"".join(_in_set(name, content) for name, content in serialized.items()))
            # protoc looks for an import in the folders first, and then in this set.
            options.append(f"--descriptor_set_in={path}")
        return _run(directory, folder, options, file)


def _run(directory: str, folder: Path, options: list[str], file: str) -> bytes | InvalidSpecError:
    """Let protoc compile a file of a folder."""
    out, errors = Path(directory, "out"), Path(directory, "errors")
    command = [
        *(sys.executable, "-P", "-c", _RUN, _MODULE, str(_MOST_MEMORY), str(MOST_BYTES), *options),
        *("--include_imports", f"--descriptor_set_out={out}", file),
    ]
    try:
        with errors.open("wb") as output:
            done = subprocess.run(command, stdout=output, stderr=output, cwd=directory, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise NotReadyError(
            f"protoc did not compile the text within {SECONDS} seconds; Firn tries again. Give it more CPU, or make the text smaller"
        ) from None
    too_large = any(each.exists() and each.stat().st_size >= MOST_BYTES for each in (out, errors))
    if too_large:
        return _bad(f"the text has more than {MOST_BYTES >> 20} MiB of descriptors or errors; make it smaller")
    if not done.returncode:
        return out.read_bytes()
    with errors.open("rb") as output:
        found = output.read(_MOST_ERRORS)
    if _DAMAGED.encode() in found:
        return _bad(
            "the text, or a text that it imports, is neither a .proto text nor the base64 of a serialized FileDescriptorProto;"
            " register one of these forms"
        )
    error = _first_error(found, folder)
    if error is None and done.returncode == 1 and b"Traceback" not in found:
        # protoc gives no place for some errors of descriptors. Without memory, a signal or an exception ends the process.
        last = found.decode("utf-8", "replace").replace(f"{folder}/", "").strip().rpartition("\n")[2]
        error = (last.rpartition("] ")[2] or "it gives no reason")[:_MOST_DETAIL]
    if error is None:
        raise NotReadyError(
            f"protoc ended with the code {done.returncode}; Firn tries again. Give it more memory, or make the text smaller"
        )
    return _bad(f"protoc rejects the text: {error}")


def _serialized(text: str) -> bytes | None:
    """Return the bytes of a text in base64. Return None for a .proto text.

    A .proto text with a declaration has characters that base64 does not have.
    """
    try:
        return base64.b64decode("".join(text.split()), validate=True) or None
    except ValueError:
        return None


def _in_set(name: str, content: bytes) -> bytes:
    """Return a serialized ``FileDescriptorProto`` as a member of a ``FileDescriptorSet``, with the name of its import.

    The last value of a field counts, so the name of the producer's own file does not.
    """
    return _member(content + _member(without_surrogates(name).encode()))


def _member(content: bytes) -> bytes:
    """Encode the field 1 of a message: the tag, the length and the content."""
    size, length = len(content), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([0x0A, *length, size]) + content


def _write(folder: Path, name: str, content: str) -> InvalidSpecError | None:
    """Write a text to the file of its name. Return the error in the name."""
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            return _bad(f"the import {name} is outside the schema; choose another name")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, "utf-8")
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in _OF_NAMES:
            raise
        return _bad(f"the import {name[:_LONGEST_NAME]!r} cannot be the name of a file; choose another name")
    return None


def _first_error(output: bytes, folder: Path) -> str | None:
    """Return the first error of protoc, without the folder of its files. Lines of its logging library have no place."""
    lines = output.decode("utf-8", "replace").replace(f"{folder}/", "").splitlines()
    errors = [(match[1] is None, line) for line in lines if (match := _ERROR.match(line))]
    # Errors with line and column come first.
    return min(errors, key=lambda error: error[0])[1][:_MOST_DETAIL] if errors else None


def _bad(problem: str) -> InvalidSpecError:
    return InvalidSpecError(problem, reason=Reason.BAD_SCHEMA)
