"""Reading eight bytes at a time gives the answers of reading one byte at a time, and never those of bytes beyond a record."""

import random

import numpy as np
import pytest

from firn.model.jobs import Column
from firn_spark.worker.fetched import Places
from firn_spark.worker.formats import words
from firn_spark.worker.formats.json.blocks import BlockDecoder

FIELDS = (
    Column(name="a_name_of_more_than_a_word", type="string"),
    Column(name="at", type="timestamptz"),
    Column(name="n", type="long"),
    Column(name="d", type="double"),
    Column(name="i", type="int"),
    Column(name="s", type="double"),
)
RECORD = (
    b'{"a_name_of_more_than_a_word":"a text \xc3\xa9 \\u00e9 of some words","at":"2026-01-02T03:04:05.678901Z",'
    b'"n":123456789012345678,"d":12345678.0123456,"i":7,"s":1.5}'
)


def word(content: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(content.ljust(words.BYTES, b"x"), "little"))


def records(data: bytes, *edges: tuple[int, int]) -> Places:
    firsts, ends = np.array([first for first, _ in edges]), np.array([end for _, end in edges])
    content = np.frombuffer(data, np.uint8)
    return Places(content, firsts, ends, np.ones(len(edges), bool))


@pytest.mark.parametrize("byte", range(256))
def test_the_first_special_byte_is_found_at_each_place(byte: int) -> None:
    rest = random.Random(byte)
    for place in range(words.BYTES):
        content = bytearray(b"plain ~z")
        content[place] = byte
        content[place + 1 :] = rest.randbytes(words.BYTES - place - 1)
        first = next((n for n, sign in enumerate(content) if sign < 32 or sign > 127 or sign in b'"\\'), None)
        marks = int(words.special(word(bytes(content))))
        assert ((marks & -marks).bit_length() - 1 >> 3 if marks else None) == first


def test_leading_digits_are_counted_and_read() -> None:
    choose = random.Random(1)
    for _ in range(20_000):
        content = bytes(choose.choice(b"0123456789" if choose.random() < 0.9 else range(256)) for _ in range(8))
        digits = len(content) - len(content.lstrip(b"0123456789"))
        assert words.leading_digits(word(content)) == (digits, int(content[:digits] or b"0"))


@pytest.mark.parametrize(
    ("form", "signs", "text"),
    [(words.DATE, words.DATE_SIGNS, b"2026-12-"), (words.TIME, words.TIME_SIGNS, b"23:59:58")],
)
def test_a_form_matches_its_signs_and_digits_only(form: np.uint64, signs: np.uint64, text: bytes) -> None:
    matches, pairs = words.digits_between(word(text), form, signs)
    assert matches
    for place in range(words.BYTES - 1):
        if text[place : place + 2].isdigit():
            assert words.byte(pairs, place) == int(text[place : place + 2])
    for place in range(words.BYTES):
        for byte in range(256):
            changed = text[:place] + bytes([byte]) + text[place + 1 :]
            same_kind = byte == text[place] or (chr(byte) in "0123456789" and text[place : place + 1].isdigit())
            assert words.digits_between(word(changed), form, signs)[0] == same_kind


def test_no_byte_behind_a_record_completes_it() -> None:
    decoder = BlockDecoder(FIELDS, refuse_unknown=False)
    _, sure = decoder.decode(records(RECORD, *((0, end) for end in range(len(RECORD) + 1))))
    assert np.flatnonzero(sure).tolist() == [len(RECORD)]


@pytest.mark.parametrize("surplus", [b"", b"7", b'"', b"}", b"0123456789", b'","n":1}'])
def test_the_bytes_behind_a_record_do_not_change_it(surplus: bytes) -> None:
    decoder = BlockDecoder(FIELDS, refuse_unknown=False)
    expected = [column.to_pylist() for column in decoder.decode(records(RECORD, (0, len(RECORD))))[0]]
    for before in range(words.BYTES):
        data = b"9" * before + RECORD + surplus
        columns, sure = decoder.decode(records(data, (before, before + len(RECORD))))
        assert sure.all()
        assert [column.to_pylist() for column in columns] == expected


@pytest.mark.parametrize("length", range(40))
def test_texts_of_each_length_are_copied_whole(length: int) -> None:
    decoder = BlockDecoder([Column(name="t", type="string")], refuse_unknown=False)
    texts = [("é" if number % 3 == 0 else "") + "x" * max(0, length - number) for number in range(12)]
    values = [f'{{"t":"{text}"}}'.encode() for text in texts]
    ends = np.cumsum([len(value) for value in values]).tolist()
    columns, sure = decoder.decode(records(b"".join(values), *zip([0, *ends[:-1]], ends, strict=True)))
    assert sure.all()
    assert columns[0].to_pylist() == texts
