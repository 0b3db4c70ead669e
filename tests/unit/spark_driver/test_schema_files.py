"""A directory keeps the schemas that were used last, within a number of files and bytes."""

import os
from pathlib import Path

import pytest

from firn_spark.schemas import files
from firn_spark.schemas.files import SchemaFiles


def names(directory: Path) -> set[str]:
    return {file.stem for file in directory.iterdir()}


def test_the_files_that_were_not_used_for_the_longest_time_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_FILES", 3)
    kept = SchemaFiles(tmp_path / "registry")
    for name in "abc":
        kept.write(name, name * 2)
    assert kept.read("a") == "aa"
    kept.write("d", "dd")
    assert names(tmp_path / "registry") == {"a", "c", "d"}
    assert [kept.read(name) for name in "abcd"] == ["aa", "", "cc", "dd"]


def test_the_next_process_knows_the_order_of_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_FILES", 3)
    earlier = SchemaFiles(tmp_path)
    for age, name in enumerate("abc"):
        earlier.write(name, name)
        os.utime(tmp_path / f"{name}.json", (1000 + age, 1000 + age))
    assert SchemaFiles(tmp_path).read("a") == "a"
    SchemaFiles(tmp_path).write("d", "d")
    assert names(tmp_path) == {"a", "c", "d"}


def test_an_answer_in_memory_counts_as_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_FILES", 2)
    kept = SchemaFiles(tmp_path)
    for age, name in enumerate("ab"):
        kept.write(name, name)
        os.utime(tmp_path / f"{name}.json", (1000 + age, 1000 + age))
    kept.used("a")
    kept.used("unknown")
    SchemaFiles(tmp_path).write("c", "c")
    assert names(tmp_path) == {"a", "c"}


def test_the_files_have_a_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 10)
    kept = SchemaFiles(tmp_path)
    for name in "ab":
        kept.write(name, "xxxx")
    kept.write("a", "xxxxxx")
    assert names(tmp_path) == {"a", "b"}
    kept.write("c", "x")
    assert names(tmp_path) == {"a", "c"}
    kept.write("d", "x" * 20)
    assert names(tmp_path) == {"d"}, "the newest schema stays, whatever its size"


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Path, data: bytes) -> int:
        file.touch()
        raise OSError(28, "No space left on device")

    kept = SchemaFiles(tmp_path)
    kept.write("a", "a")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        kept.write("b", "b" * 100)
    assert names(tmp_path) == {"a"}
    monkeypatch.setattr(files, "MOST_FILES", 2)
    kept.write("c", "c")
    assert names(tmp_path) == {"a", "c"}, "the failed file does not count"


def test_an_unfinished_file_of_an_earlier_process_goes(tmp_path: Path) -> None:
    (tmp_path / ".a.json.1").touch()
    SchemaFiles(tmp_path).write("b", "b")
    assert names(tmp_path) == {"b"}


def test_a_directory_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    kept = SchemaFiles(tmp_path / "file" / "below")
    kept.write("a", "a")
    assert kept.read("a") == ""
