"""Equivalent paths are one file, and different paths are different files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn_spark.maintenance.steps.orphans import hidden
from firn_spark.maintenance.steps.reachable import Places, place


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("s3://bucket/a/b.parquet", "s3a://bucket/a/b.parquet"),
        ("s3://bucket/a/b.parquet", "s3n://elsewhere/a/b.parquet"),
        ("file:/tmp/a", "file:///tmp/a"),
        ("file:///tmp/a", "/tmp/a"),
        ("s3://bucket/a%20b", "s3://bucket/a b"),
        ("hdfs://name:8020/x=%3D/f", "hdfs:/x==/f"),
    ],
)
def test_equivalent_paths_are_one_place(path: str, other: str) -> None:
    assert place(path) == place(other)
    assert path in Places([other])


@pytest.mark.parametrize("other", ["s3://b/a/B", "s3://b/a/b ", "s3://b/a/b/c", "s3://b/a//b", "s3://b/aa/b"])
def test_different_paths_are_different_places(other: str) -> None:
    assert "s3://b/a/b" not in Places([other])


@given(st.sets(st.text(min_size=1)), st.sets(st.text(min_size=1)))
def test_a_set_of_places_contains_its_paths(inside: set[str], outside: set[str]) -> None:
    places = Places(f"s3://b/{path}" for path in inside)
    assert all(f"s3://b/{path}" in places for path in inside)
    places_inside = {place(f"s3://b/{path}") for path in inside}
    assert all((f"s3://b/{path}" in places) == (place(f"s3://b/{path}") in places_inside) for path in outside)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://b/_odd/t/data/f.parquet", False),
        ("s3://b/_odd/t/data/_part=1/f.parquet", False),
        ("s3://b/_odd/t/_temporary/f.parquet", True),
        ("s3://b/_odd/t/data/.f.crc", True),
        ("s3://b/_odd/t/data/_SUCCESS", True),
    ],
)
def test_hidden_files_are_recognised(path: str, expected: bool) -> None:
    assert hidden(path, "s3://b/_odd/t") is expected
