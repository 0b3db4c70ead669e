"""Write the files that are generated from the models (firn/api/files.py). With --check, name those that differ and exit 1."""

import sys
from pathlib import Path

from firn.api.files import generated

REPOSITORY = Path(__file__).resolve().parents[1]


def main() -> int:
    arguments = sys.argv[1:]
    if arguments not in ([], ["--check"]):
        print("usage: hack/generate [--check]", file=sys.stderr)
        return 2
    contents = {REPOSITORY / name: content for name, content in generated().items()}
    stale = [path for path, content in contents.items() if not path.is_file() or path.read_text() != content]
    if arguments:
        for path in stale:
            print(f"{path.relative_to(REPOSITORY)} differs from the models: run make generate", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(contents[path])
        print(f"wrote {path.relative_to(REPOSITORY)}")
    return 0
