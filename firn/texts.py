"""Texts that every other program can read."""


def without_surrogates(text: str) -> str:
    """Return a text with ? in place of lone surrogates. JSON can have them, and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()
