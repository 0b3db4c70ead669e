"""Offsets in snapshot summaries."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn.model import progress


@given(st.dictionaries(st.integers(0, 9999), st.integers(0, 2**63 - 1)))
def test_offsets_read_back_from_the_summary(offsets: dict[int, int]) -> None:
    text = progress.encode_offsets(offsets)
    assert progress.decode_offsets(text) == offsets
    assert list(json.loads(text)) == [str(partition) for partition in sorted(offsets)]


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "[]", "3", "null"),
        *('{"1": null}', '{"1": "2"}', '{"1": 1.0}', '{"1": true}', '{"1": -1}'),
        *('{"a": 1}', '{"-1": 1}', '{"01": 1}', '{" 1": 1}', '{"1_0": 1}', '{"\\u0661": 1}'),
    ],
)
def test_invalid_offsets_are_rejected(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (json's own message, or ours)
        progress.decode_offsets(text)
