"""Changes of mounted Secrets that make the driver exit for a restart."""

from pathlib import Path

import pytest

from firn.model.errors import NotReadyError
from firn.model.jobs import CatalogConnection, GroupSettings, KafkaConnection
from firn_spark import credentials
from firn_spark.credentials import Credentials, read_salts


class Files:
    """Secret files in a directory, and a clock that the test moves."""

    def __init__(self, directory: Path) -> None:
        self.now = 100.0
        self.password, self.ca = directory / "password", directory / "ca"
        self.password.write_text("old")
        self.ca.write_text("ca")

    def looked_at(self, watched: Credentials) -> bool:
        """Return the result of the next check."""
        self.now += credentials.LOOK_SECONDS
        return watched.replaced()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    files = Files(tmp_path)
    monkeypatch.setattr("firn_spark.credentials.time.monotonic", lambda: files.now)
    return files


@pytest.fixture
def watched(files: Files) -> Credentials:
    return Credentials([str(files.password), str(files.ca), str(files.ca.with_name("missing"))])


def test_the_same_content_in_a_new_file_is_no_change(files: Files, watched: Credentials) -> None:
    files.password.unlink()
    files.password.write_text("old")
    assert not files.looked_at(watched)
    assert not files.looked_at(watched)


def test_a_change_counts_after_it_was_stable(files: Files, watched: Credentials) -> None:
    files.password.write_text("new")
    assert not watched.replaced(), "not time for a check"
    assert not files.looked_at(watched)
    files.ca.write_text("new ca")
    assert not files.looked_at(watched), "the second Secret of a rotation changed later"
    assert files.looked_at(watched)


def test_a_reverted_change_does_not_count(files: Files, watched: Credentials) -> None:
    files.password.write_text("new")
    assert not files.looked_at(watched)
    files.password.write_text("old")
    assert not files.looked_at(watched)
    assert not files.looked_at(watched)


def test_a_missing_secret_delays_the_restart(files: Files, watched: Credentials) -> None:
    files.ca.unlink()
    assert not files.looked_at(watched)
    assert not files.looked_at(watched)
    files.ca.write_text("new ca")
    assert not files.looked_at(watched)
    assert files.looked_at(watched)


def test_a_secret_that_appears_counts_as_a_change(files: Files, watched: Credentials) -> None:
    files.ca.with_name("missing").write_text("here")
    assert not files.looked_at(watched)
    assert files.looked_at(watched)


def test_every_file_of_the_settings_is_watched() -> None:
    kafka = KafkaConnection(
        bootstrap_servers="b", ca_path="a", certificate_path="b", certificate_key_path="c", sasl_password_path="d"
    )
    lake = CatalogConnection(type="rest", uri="u", warehouse="w", secret_properties={"token": "e", "again": "a"})
    settings = GroupSettings(group="g", kafka={"k": kafka}, catalogs={"l": lake})
    assert settings.secret_files == {"a", "b", "c", "d", "e"}


def salt_file(directory: Path, content: bytes) -> dict[str, str]:
    file = directory / "salt"
    file.write_bytes(content)
    return {"people": str(file)}


def test_a_salt_is_the_value_without_its_line_break(tmp_path: Path) -> None:
    paths = salt_file(tmp_path, b"\xff" * 16 + b"\r\n")
    assert read_salts(paths, {"people"}) == {"people": b"\xff" * 16}
    assert read_salts(paths, ()) == {}
    salt_file(tmp_path, b"n" * 16)
    assert read_salts(paths, {"people"}) == {"people": b"n" * 16}, "the next round has the new value"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"s3cret-of-15-by\n", "has 15 bytes, and a salt has at least 16; put a longer value into the Secret"),
        (b"", "has 0 bytes"),
        (None, r"cannot be read \(FileNotFoundError\): check that the Secret exists and has this key"),
    ],
)
def test_a_salt_that_is_missing_or_short_names_the_file_only(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    paths = salt_file(tmp_path, content or b"")
    if content is None:
        (tmp_path / "salt").unlink()
    with pytest.raises(NotReadyError, match=f"salt people: secret file {tmp_path}/salt {problem}") as raised:
        read_salts(paths, {"people"})
    assert "s3cret" not in str(raised.value)


def test_a_salt_that_the_settings_do_not_have_is_named() -> None:
    with pytest.raises(
        NotReadyError, match="salt people is not in the settings of this process; wait for the operator"
    ):
        read_salts({}, {"people"})
