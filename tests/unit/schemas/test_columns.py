"""The columns of Avro schemas that a process keeps are those of their texts, and large texts are not kept."""

import json
from typing import Any

import pytest

from firn.model.errors import InvalidSpecError
from firn.model.jobs import RecordSchema, Rename
from firn.schemas import avro, columns
from firn.schemas.columns import columns_of


def schema(*names: str, **changes: object) -> RecordSchema:
    fields = [{"name": name, "type": "int"} for name in names]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    return RecordSchema.model_validate({"format": "Avro", "text": text, **changes})


def names_of(each: RecordSchema) -> list[str]:
    return [column.name for column in columns_of(each, "s")]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the texts that are parsed."""
    texts: list[str] = []
    parse = avro.parse

    def counted(text: str, references: tuple[str, ...] = (), **options: Any) -> avro.Record:
        texts.append(text)
        return parse(text, references, **options)

    monkeypatch.setattr(avro, "parse", counted)
    return texts


def test_a_text_that_a_parser_cannot_read_is_a_bad_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise ValueError("no number")

    monkeypatch.setattr(avro, "columns", failing)
    with pytest.raises(InvalidSpecError, match="schema 7: the schema cannot be read: no number; correct the schema"):
        columns_of(schema("a"), "schema 7", keep=False)


def test_a_small_text_is_parsed_once(parsed: list[str]) -> None:
    for renames in ((), (Rename(old="kept", new="later"),), ()):
        assert names_of(schema("kept", renames=renames)) == ["later" if renames else "kept"]
    assert len(parsed) == 1


def test_a_large_text_is_not_kept(parsed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "SMALL_TEXT", 10)
    assert names_of(schema("large")) == names_of(schema("large")) == ["large"]
    assert len(parsed) == 2
