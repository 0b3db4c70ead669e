"""Parsed JSON. Numbers stay texts, so that nothing is rounded, and objects keep all members, so that none is lost."""

from typing import Any


class Integer(str):
    """The text of a JSON number without fraction and exponent."""

    __slots__ = ()


class Fraction(str):
    """The text of a JSON number with a fraction or an exponent."""

    __slots__ = ()


class Object(list[tuple[str, Any]]):
    """The members of a JSON object, in order."""

    __slots__ = ()
