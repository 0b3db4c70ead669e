"""Hashes identify the inputs. The cache builds once for a hash and never shows a partial result."""

from pathlib import Path

import pytest

from hack.support.content import cached, content_hash


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRN_CACHE", str(tmp_path / "cache"))


def test_the_hash_covers_names_bytes_modes_and_strings(tmp_path: Path) -> None:
    directory = tmp_path / "context"
    directory.mkdir()
    file = directory / "file"
    file.write_text("a")
    seen = {content_hash([directory])}
    file.write_text("b")
    seen.add(content_hash([directory]))
    file.chmod(0o755)
    seen.add(content_hash([directory]))
    file.rename(directory / "other")
    seen.add(content_hash([directory]))
    seen.add(content_hash([directory], "word"))
    seen.add(content_hash([directory], "wo", "rd"))
    assert len(seen) == 6


def test_the_hash_ignores_times_and_caches(tmp_path: Path) -> None:
    directory = tmp_path / "context"
    (directory / "__pycache__").mkdir(parents=True)
    (directory / "file").write_text("a")
    before = content_hash([directory])
    (directory / "__pycache__" / "file.pyc").write_text("compiled")
    (directory / "file").touch()
    assert content_hash([directory]) == before


def test_a_result_is_built_once() -> None:
    built = []

    def build(directory: Path) -> None:
        built.append(directory)
        (directory / "result").write_text("x")

    first, second = cached("kind", "key", build), cached("kind", "key", build)
    assert first == second
    assert (first / "result").read_text() == "x"
    assert len(built) == 1


def test_a_failed_build_leaves_nothing() -> None:
    def fail(directory: Path) -> None:
        (directory / "half").write_text("x")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        cached("kind", "key", fail)
    result = cached("kind", "key", lambda directory: None)
    assert list(result.iterdir()) == []


def test_only_the_newest_results_are_kept() -> None:
    results = [cached("kind", str(number), lambda directory: None, keep=2) for number in range(4)]
    assert [result.exists() for result in results] == [False, False, True, True]
