"""When a change of mounted Secrets makes the driver give way to its next start."""

from pathlib import Path

import pytest

from firn.model.jobs import CatalogConnection, GroupSettings, KafkaConnection
from firn_spark import credentials
from firn_spark.credentials import Credentials


class Files:
    """Secret files in a directory, and a clock that the test moves."""

    def __init__(self, directory: Path) -> None:
        self.now = 100.0
        self.password, self.ca = directory / "password", directory / "ca"
        self.password.write_text("old")
        self.ca.write_text("ca")

    def looked_at(self, found: Credentials) -> bool:
        """Return the result of the next look."""
        self.now += credentials.LOOK_SECONDS
        return found.replaced()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    files = Files(tmp_path)
    monkeypatch.setattr("firn_spark.credentials.time.monotonic", lambda: files.now)
    return files


@pytest.fixture
def found(files: Files) -> Credentials:
    return Credentials([str(files.password), str(files.ca), str(files.ca.with_name("missing"))])


def test_the_same_content_in_a_new_file_is_no_change(files: Files, found: Credentials) -> None:
    files.password.unlink()
    files.password.write_text("old")
    assert not files.looked_at(found)
    assert not files.looked_at(found)


def test_a_change_counts_once_it_has_rested(files: Files, found: Credentials) -> None:
    files.password.write_text("new")
    assert not found.replaced(), "not time to look"
    assert not files.looked_at(found)
    files.ca.write_text("new ca")
    assert not files.looked_at(found), "the second Secret of a rotation came later"
    assert files.looked_at(found)


def test_a_change_that_is_taken_back_is_none(files: Files, found: Credentials) -> None:
    files.password.write_text("new")
    assert not files.looked_at(found)
    files.password.write_text("old")
    assert not files.looked_at(found)
    assert not files.looked_at(found)


def test_nobody_starts_anew_without_a_secret_that_was_there(files: Files, found: Credentials) -> None:
    files.ca.unlink()
    assert not files.looked_at(found)
    assert not files.looked_at(found)
    files.ca.write_text("new ca")
    assert not files.looked_at(found)
    assert files.looked_at(found)


def test_a_secret_that_was_missing_and_comes_counts(files: Files, found: Credentials) -> None:
    files.ca.with_name("missing").write_text("here")
    assert not files.looked_at(found)
    assert files.looked_at(found)


def test_every_file_of_the_settings_is_followed() -> None:
    kafka = KafkaConnection(
        bootstrap_servers="b", ca_path="a", certificate_path="b", certificate_key_path="c", sasl_password_path="d"
    )
    lake = CatalogConnection(type="rest", uri="u", warehouse="w", secret_properties={"token": "e", "again": "a"})
    settings = GroupSettings(group="g", kafka={"k": kafka}, catalogs={"l": lake})
    assert settings.secret_files == {"a", "b", "c", "d", "e"}
