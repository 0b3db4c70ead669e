"""`without_surrogates`: texts of JSON that can be stored as UTF-8."""

import json

from firn.texts import without_surrogates


def test_half_of_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert without_surrogates(json.loads(r'"a\ud83d b\udc00"')) == "a? b?"


def test_a_whole_pair_and_other_characters_stay() -> None:
    assert without_surrogates(json.loads(r'"\ud83d\ude00 é\u0000"')) == "😀 é\0"
