"""Documents between processes, across versions: during an upgrade or a way back, one version reads what the other wrote.

``released/VERSION`` has documents that the version wrote, with every field set, and the JSON schemas by which it reads.
They never change. A new version adds a folder, unless it writes and reads the same documents: 0.2.0 has the documents of 0.1.0.
What this version writes has its newer fields too, in the form in which it writes them.
"""

import json
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
from pydantic import BaseModel, ValidationError

from firn.model import maintenance
from firn.model.jobs import GroupSettings, IngestJob
from firn.model.maintenance import MaintenanceRun, RunReport
from firn.model.progress import Cause, Gap, GroupProgress, Losses

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

KAFKA: dict[str, Any] = json.loads((RELEASED / "0.1.0" / "group-settings.json").read_text())["kafka"]["classic"]
TOKENS = {"url": "https://id/token", "scope": "kafka", "extensions": {"pool": "p"}, "ca_path": "/etc/firn/secrets/ca"}

TRUSTING: dict[str, Any] = {
    "type": "rest",
    "uri": "u",
    "warehouse": "w",
    "own_references": True,
    "ca_path": "/ca",
    "certificate_path": "/certificate",
    "certificate_key_path": "/key",
    "store_ca_path": "/store-ca",
}

REPLAY: dict[str, Any] = {
    "uid": "uid-9",
    "enforce": True,
    "codes": ["WrongKind"],
    "since_ms": 1_770_000_000_000,
    "generations": [3],
    "records": 1000,
}

OTHER: dict[str, Any] = json.loads((RELEASED / "0.1.0" / "ingest-job.json").read_text())["table"] | {
    "name": "refunds",
    "history": "Single",
}

NEW: dict[str, dict[str, Any]] = {
    "ingest-job": {
        "adopt": {
            "topic_id": "id-old",
            "offsets": {"0": 7},
            "connect": {"control_topic": "control-iceberg", "group": "connect-orders"},
        },
        "keep_snapshots_ms": 432_000_000,
        "first_table": "3d2f",
        "topic_created": True,
        "table": {"history": "Single"},
        "retention_ms": 86_400_000,
        "retention_bytes": 1_073_741_824,
        "publish": {
            "branch": "staging",
            "every_ms": 300_000,
            "checks": [{"name": "nulls", "check": "null_share(at) < 0.1"}],
            "on_fail": "Publish",
            "approved": 7,
        },
        "quality_rules": [{"name": "plausible", "check": "at is not null", "on_fail": "Count"}],
        "filter": "at is not null",
        "record_schema": {
            "fields": [{"name": "at", "type": "timestamptz", "epoch": "s", "default": "1"}],
            "unknown_column": "others",
            "nanoseconds": True,
            "truncate_times": True,
            "variants": True,
            "text": "{}",
            "framing": "Registry",
            "references": ["{}"],
            "names": ["money.json"],
            "subject": {"registry": "main", "name": "orders-value", "id_in": "Header"},
            "schema_id": 41,
            "incompatible": "DeadLetter",
            "gone": ["note"],
            "versions": [{"schema_id": 8, "field": "total", "column": "total_v2"}],
            "writer_renames": [{"schema_id": 8, "old": "a", "new": "b", "by_schema": True}],
            "message": "shop.v1.Order",
            "found_message": "shop.v1.Order",
            "key": {
                "columns": "Struct",
                "fields": [{"name": "at", "type": "date", "required": True, "doc": "d", "epoch": "s", "default": "2"}],
                "decoding": {"format": "Avro", "text": "{}", "framing": "Registry", "schema_id": 42},
                "truncate_times": True,
            },
            "descriptors": "Cg==",
            "renames": [{"old": "when", "new": "at"}, {"old": "then", "new": "at", "by_schema": True}],
            "projection": {
                "columns": [
                    {
                        "name": "email_hash",
                        "type": "string",
                        "source": "$.customer['e-mail']",
                        "constant": "x",
                        "function": "Sha256",
                        "cast": "string",
                        "required": True,
                        "doc": "d",
                        "epoch": "s",
                        "salt": "people",
                    }
                ],
                "keeps_others": True,
            },
            "evolution": {
                "add": "Propose",
                "widen": "Refuse",
                "optional": "Propose",
                "rename": "Refuse",
                "drop": "KeepNull",
                "partition": "Propose",
                "sort": "Refuse",
                "approved": "0123456789ab",
            },
        },
    },
    "ingest-job-raw": {},
    "group-settings": {
        "cluster": "cluster-1",
        "former_clusters": ["cluster-0"],
        "kafka": {"classic": {"sasl_tokens": TOKENS, "sasl_token_path": "/token", "previous_ca_path": "/old-ca"}},
        "catalogs": {"more": TRUSTING},
        "direct": {
            "diskless": {
                "address": "http://brokers:9095",
                "token_path": "/token",
                "url": "s3://log/diskless",
                "properties": {"aws_region": "eu-1"},
                "secret_properties": {"aws_access_key_id": "/id"},
                "ca_path": "/ca",
                "listener_ca_path": "/brokers-ca",
                "previous_listener_ca_path": "/old-brokers-ca",
            }
        },
        "registries": {
            "main": {
                "url": "https://registry:8081",
                "ca_path": "/ca",
                "username": "firn",
                "password_path": "/password",
                "token_path": "/token",
            }
        },
        "salts": {"people": "/salt"},
        "schema_directory": "/schemas",
        "history_ms": 60000,
        "executor_storage": "40Gi",
        "executor_storage_request": "2Gi",
    },
    "maintenance-run": {
        "kafka": {
            "classic": {**KAFKA, "sasl_tokens": TOKENS, "sasl_token_path": "/token", "previous_ca_path": "/old-ca"}
        },
        "catalogs": {"more": TRUSTING},
        "tables": [
            {
                "audit": {
                    "profile": "diskless",
                    "topic": "shop.orders",
                    "others": [OTHER],
                },
                "replay": REPLAY,
                "table": {"history": "Single"},
                "sharers": ["orders-us"],
            }
        ],
        "registries": {
            "main": {
                "url": "https://registry:8081",
                "ca_path": "/ca",
                "username": "firn",
                "password_path": "/password",
                "token_path": "/token",
            }
        },
        "salts": {"people": "/salt"},
        "executor_storage": "40Gi",
        "executor_storage_request": "2Gi",
    },
    "run-report": {
        "tables": [
            {
                "audit": {"topic_id": "id-1", "offsets": 9, "missing": 1, "partition": 0, "offset": 3, "filtered": 2},
                "replay": {
                    "matched": 3,
                    "landed": 2,
                    "failed": 1,
                    "remaining": 1,
                    "codes": {"WrongKind": 3},
                    "failures": {"Inexact": 1},
                    "causes": {"UnknownField": 2},
                },
            }
        ]
    },
    "group-progress": {
        "topics": [
            {
                "halted_at": {"column": "id", "rule": "plausible"},
                "failed_rules": {"plausible": 2},
                "publish": {
                    "branch": "staging",
                    "state": "Held",
                    "rows": 3,
                    "since": 5.0,
                    "snapshot": 7,
                    "checks": [{"name": "nulls", "passed": False, "values": "null_share(at) = 1"}],
                    "message": "m",
                    "failures": {"nulls": 1},
                },
                "history": {"waiting": {"0": 5}, "untagged": {"0": 3}, "problem": "no broker answers"},
                "filtered": 3,
                "lag_bytes": 512.0,
                "recent": {"records": 9, "rejected": 1, "code": "WrongKind", "path": "$.id", "new_schema": True},
                "losses": Losses()
                .plus([Gap(partition=0, start=1, end=4, cause=Cause.REPLACED)], "id-1", "3d2f", 5.0)
                .model_dump(mode="json")
                | {"cut_topic": "id-1", "cuts": [[0, 1, 4]]},
                "has_landed": True,
                "proposed": {"changes": ["add column note: string"], "approve": "0123456789ab"},
            }
        ]
    },
}
"""Values of fields that no released version has, by document. An item of a list is merged into the first one."""
FORMS: dict[str, dict[str, Any]] = {
    "ingest-job": {"exclude_none": True},
    "ingest-job-raw": {"exclude_none": True},
    "run-report": {"exclude_defaults": True},
}
"""The form in which this version writes a document, if not with all its fields."""
CONSTANT = frozenset(
    {"version", "raw_as", "unknown_fields", "fields", "cpu", "topic_id", "resume", "restart", "shared_by"}
)
"""Fields with the default value in a released document, because it has one form of several."""

each = pytest.mark.parametrize(("version", "name"), [(version, name) for version in VERSIONS for name in DOCUMENTS])


def written(version: str, name: str) -> Any:
    return json.loads((RELEASED / version / f"{name}.json").read_text())


def merged(old: Any, new: Any) -> Any:
    """Return ``old`` with the values of ``new``."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: merged(old.get(key), value) for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list) and old and isinstance(new[0], dict):
        return [merged(old[0], new[0]), *old[1:]]
    return new


_values = merged(written(VERSIONS[-1], "ingest-job")["record_schema"], NEW["ingest-job"]["record_schema"])
NEW["ingest-job"]["route"] = {"values": _values, "match": "order", "before": ["refund"], "otherwise": "Table"}
REPLAY["job"] = merged(written(VERSIONS[-1], "ingest-job"), NEW["ingest-job"])


def unset(document: Any) -> set[str]:
    """Return the optional fields of a document and its parts that have their default."""
    found: set[str] = set()
    if isinstance(document, BaseModel):
        for name, field in type(document).model_fields.items():
            value = getattr(document, name)
            if not field.is_required() and value == field.get_default(call_default_factory=True):
                found.add(name)
            if name != "decoding":  # It is a RecordSchema again.
                found |= unset(value)
    elif isinstance(document, dict | list | tuple):
        parts = [unset(part) for part in (document.values() if isinstance(document, dict) else document)]
        found |= set.intersection(*parts) if parts else set()
    return found


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


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "ingest-job-raw"])
def test_the_documents_of_this_version_have_every_field(name: str) -> None:
    """A field that is missing here is not tested against released versions: add it to `NEW`."""
    present = DOCUMENTS[name][1].model_validate(merged(written(VERSIONS[-1], name), NEW[name]))
    assert unset(present) <= CONSTANT | {"times", "doubled", "stray", "unproved", "dropped", "dropped_id"}


@each
def test_a_released_version_reads_the_document_of_this_version(version: str, name: str) -> None:
    schema_name, model = DOCUMENTS[name]
    present = model.model_validate(merged(written(version, name), NEW[name]))
    document = json.loads(present.model_dump_json(**FORMS.get(name, {})))
    schema = json.loads((RELEASED / version / f"{schema_name}.schema.json").read_text())
    jsonschema.validate(document, schema)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_released_version_rejects_the_contract_of_a_shared_table(version: str) -> None:
    """It would take the offsets of other topics for those of an earlier topic, and land everything again."""
    shared = {"version": 2, "topic_id": "id-1", "table": {"shared_by": "orders"}}
    document = merged(written(version, "ingest-job"), shared)
    assert IngestJob.model_validate(document).table.shared
    schema = json.loads((RELEASED / version / "ingest-job.schema.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)
    with pytest.raises(ValidationError):
        IngestJob.model_validate(merged(document, {"version": 1}))


REFUSED = frozenset(
    {
        *("record_schema.projection", "record_schema.key", "record_schema.renames", "record_schema.unknown_column"),
        "record_schema.truncate_times",
        *("record_schema.subject", "record_schema.fields.default", "record_schema.fields.epoch"),
        *("route", "publish", "filter", "adopt", "table.shared_by"),
    }
)
"""Fields without which a driver would land other records or values, or in another table or branch."""
FORMATS = frozenset(
    {
        "text",
        "references",
        "names",
        "framing",
        "message",
        "found_message",
        "descriptors",
        "schema_id",
        "versions",
        "writer_renames",
        "nanoseconds",
        "variants",
    }
)
"""Fields of a `RecordSchema` that only other formats have, or schemas of a registry. The format or the subject is refused."""
HARMLESS = {
    "table.history": "no driver names data files, so the log keeps its copy",
    "quality_rules": "rows land without rules, as docs/operations/upgrade.md says",
    "record_schema.evolution": "the operator has decided about the fields of the contract",
    "record_schema.gone": "a column stays",
    "record_schema.incompatible": "only schemas of a registry can be incompatible",
    "retention_ms": "the topic is due later",
    "retention_bytes": "the topic is due later",
    "keep_snapshots_ms": "old snapshots stay",
    "first_table": "no losses are recorded",
    "topic_created": "no losses are recorded",
}
"""Other fields, and what happens without them."""


def fields_of(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the members of an object, or of the items of an array, in a JSON schema of pydantic."""
    while (name := schema.get("$ref", "").rpartition("/")[2]) or "items" in schema:
        schema = definitions[name] if name else schema["items"]
    parts = [fields_of(each, definitions) for each in schema.get("anyOf", ())]
    return {name: field for part in (schema.get("properties", {}), *parts) for name, field in part.items()}


def added(old: dict[str, Any], new: dict[str, Any], released: dict[str, Any], present: dict[str, Any]) -> set[str]:
    """Return the fields of ``new`` that ``old`` lacks. Both are parts of the JSON schemas ``released`` and ``present``."""
    before, found = fields_of(old, released["$defs"]), set()
    for name, field in fields_of(new, present["$defs"]).items():
        inner = added(before[name], field, released, present) if name in before else None
        found |= {name} if inner is None else {f"{name}.{each}" for each in inner}
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_each_new_field_of_a_contract_is_refused_or_harmless(version: str) -> None:
    """A released driver ignores a field that it does not know. Without this list, a new field could change its rows."""
    released = json.loads((RELEASED / version / "ingest-job.schema.json").read_text())
    present = IngestJob.model_json_schema()
    formats = {f"record_schema.{name}" for name in FORMATS}
    assert added(released, present, released, present) == REFUSED | formats | HARMLESS.keys()


def changed(document: dict[str, Any], field: str) -> dict[str, Any]:
    """Return a contract with a value of ``field`` that this version writes."""
    *place, name = field.split(".")
    column = {"name": "at", "type": "timestamptz", "epoch": "s", "default": "1"}
    match place:
        case ["record_schema", "fields"]:
            change: Any = {"record_schema": {"fields": [{key: column[key] for key in ("name", "type", name)}]}}
            document["record_schema"]["fields"] = [{}]
        case ["record_schema"]:
            change = {"record_schema": {name: NEW["ingest-job"]["record_schema"][name]}}
        case ["table"]:
            change = {"version": 2, "table": {name: "orders"}}
        case _:
            change = {name: NEW["ingest-job"][name]}
    return cast("dict[str, Any]", merged(document, change))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("field", sorted(REFUSED | {"quality_rules", "record_schema.evolution"}))
def test_a_released_driver_refuses_a_contract_that_it_would_follow_wrongly(version: str, field: str) -> None:
    """It ignores fields that it does not know. So it would land other records or values, or in another table or branch."""
    job = IngestJob.model_validate(changed(written(version, "ingest-job"), field))
    released = json.loads((RELEASED / version / "ingest-job.schema.json").read_text())
    job = job.model_copy(update={"version": job.needed_version})
    problems = list(
        jsonschema.Draft202012Validator(released).iter_errors(json.loads(job.model_dump_json(exclude_none=True)))
    )
    assert [list(problem.path) for problem in problems] == ([["version"]] if field in REFUSED else [])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_released_termination_message_is_read(version: str) -> None:
    packed = (RELEASED / version / "run-report.packed").read_text()
    assert within(written(version, "run-report"), json.loads(maintenance.unpack(packed).model_dump_json()))


def test_a_document_without_a_value_is_not_taken_for_whole() -> None:
    assert within({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}], "d": 3})
    assert not within({"a": [{"b": 1}]}, {"a": [{"b": 2}]})
    assert not within({"a": [1, 2]}, {"a": [1]})
    assert not within({"a": 1}, {})
