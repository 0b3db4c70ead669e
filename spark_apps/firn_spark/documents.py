"""Files in which the operator passes a document to a process."""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from firn.model.errors import InvalidSpecError
from firn.model.jobs import Contract

Document = TypeVar("Document", bound=Contract)


def load(kind: type[Document], path: str) -> Document:
    """Load a document from the file at ``path``. Raises InvalidSpecError, which names file and key."""
    try:
        return kind.model_validate_json(Path(path).read_text())
    except OSError as error:
        raise InvalidSpecError(f"file {path}: {error}") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise InvalidSpecError(f"file {path}: {problems}") from error
