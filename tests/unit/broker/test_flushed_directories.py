"""An object in a directory survives a power cut when `put` has returned: its directory entries are on the disk too."""

from pathlib import Path

import pytest

from firn_broker.storage import objects
from firn_broker.storage.objects import DirectoryObjects


async def test_a_writer_flushes_the_entry_of_a_directory_that_another_writer_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(objects, "flush_directory", lambda path: flushed.append(Path(path)))
    store = DirectoryObjects(tmp_path)
    # Another writer has made the directory, and has not flushed its entry yet.
    (tmp_path / "wal" / "00").mkdir(parents=True)
    await store.put("wal/00/a", memoryview(b"x"))
    assert flushed == [tmp_path / "wal" / "00", tmp_path / "wal", tmp_path]
    await store.put("wal/00/b", memoryview(b"x"))
    assert flushed[3:] == [tmp_path / "wal" / "00"], "the entries of directories are flushed once"
    await store.close()
