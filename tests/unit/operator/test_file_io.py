"""PyIceberg's FileIO over obstore, on local files. The contract tests of tables cover object stores."""

from pathlib import Path

import pytest

from firn_operator.adapters.iceberg.file_io import ObjectFileIO, UnknownSchemeError, s3_settings


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_file_reads_back_as_it_was_written(tmp_path: Path, prefix: str) -> None:
    io = ObjectFileIO({})
    location = f"{prefix}{tmp_path}/new folder/v1.metadata.json"
    output = io.new_output(location)
    assert not output.exists()
    with output.create() as stream:
        stream.write(b"one")
        stream.write(b"two")
    assert (len(output), output.exists(), output.location) == (6, True, location)
    with output.to_input_file().open() as content:
        assert content.read() == b"onetwo"
    io.delete(location)
    assert not io.new_input(location).exists()
    io.delete(location)


def test_a_file_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    output = ObjectFileIO({}).new_output(f"{tmp_path}/file")
    for overwrite in (False, True):
        with output.create(overwrite=overwrite) as stream:
            stream.write(b"x")
    with pytest.raises(FileExistsError):
        output.create()


def test_a_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    output = ObjectFileIO({}).new_output(f"{tmp_path}/file")

    def write() -> None:
        with output.create() as stream:
            stream.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert not output.exists()


def test_an_error_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ObjectFileIO({}).new_input(f"{tmp_path}/nothing").open()


def test_an_error_about_an_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(UnknownSchemeError, match="s3, gs, abfs or file"):
        ObjectFileIO({}).new_input("hdfs://somewhere/file")


def test_s3_properties_of_java_are_accepted() -> None:
    settings = s3_settings(
        {
            "s3.endpoint": "http://127.0.0.1:7070",
            "s3.path-style-access": "true",
            "client.region": "eu-west-1",
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
        }
    )
    assert settings == {
        "endpoint": "http://127.0.0.1:7070",
        "access_key_id": "key",
        "secret_access_key": "secret",
        "region": "eu-west-1",
        "virtual_hosted_style_request": False,
    }
    assert s3_settings({}) == {"virtual_hosted_style_request": True}  # the rest through workload identity
