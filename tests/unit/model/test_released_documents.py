"""Documents between processes, across versions: during an upgrade or a way back, one version reads what the other wrote.

``released/VERSION`` has documents that the version wrote, with every field set, and the JSON schemas by which it reads.
They never change. A new version adds a folder.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel

from firn.model import maintenance
from firn.model.jobs import GroupSettings, IngestJob
from firn.model.maintenance import MaintenanceRun, RunReport
from firn.model.progress import GroupProgress

RELEASED = Path(__file__).parent / "released"
VERSIONS = sorted(path.name for path in RELEASED.iterdir())
DOCUMENTS: dict[str, tuple[str, type[BaseModel]]] = {
    "ingest-job": ("ingest-job", IngestJob),
    "ingest-job-raw": ("ingest-job", IngestJob),
    "group-settings": ("group-settings", GroupSettings),
    "maintenance-run": ("maintenance-run", MaintenanceRun),
    "run-report": ("run-report", RunReport),
    "group-progress": ("group-progress", GroupProgress),
}

IGNORED = frozenset({"detail"})
"""Keys of earlier versions that this version leaves out on purpose: ``halted_at.detail`` had parts of a record."""

each = pytest.mark.parametrize(("version", "name"), [(version, name) for version in VERSIONS for name in DOCUMENTS])


def written(version: str, name: str) -> Any:
    return json.loads((RELEASED / version / f"{name}.json").read_text())


def within(part: Any, whole: Any) -> bool:
    """Return whether ``whole`` has every value of ``part``; objects may have more keys."""
    if isinstance(part, dict) and isinstance(whole, dict):
        kept = {key: value for key, value in part.items() if key not in IGNORED}
        return all(key in whole and within(value, whole[key]) for key, value in kept.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(within, part, whole))
    return bool(part == whole)


@each
def test_a_released_document_is_read_with_all_its_values(version: str, name: str) -> None:
    document = written(version, name)
    read = DOCUMENTS[name][1].model_validate(document)
    assert within(document, json.loads(read.model_dump_json()))


@each
def test_a_released_version_reads_the_document_of_this_version(version: str, name: str) -> None:
    schema_name, model = DOCUMENTS[name]
    document = json.loads(model.model_validate(written(version, name)).model_dump_json())
    schema = json.loads((RELEASED / version / f"{schema_name}.schema.json").read_text())
    jsonschema.validate(document, schema)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_released_termination_message_is_read(version: str) -> None:
    packed = (RELEASED / version / "run-report.packed").read_text()
    assert within(written(version, "run-report"), json.loads(maintenance.unpack(packed).model_dump_json()))


def test_a_document_without_a_value_is_not_taken_for_whole() -> None:
    assert within({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}], "d": 3})
    assert not within({"a": [{"b": 1}]}, {"a": [{"b": 2}]})
    assert not within({"a": [1, 2]}, {"a": [1]})
    assert not within({"a": 1}, {})
