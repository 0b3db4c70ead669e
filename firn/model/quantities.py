"""Sizes in the form of Kubernetes (``128Mi``, ``2Gi``, ``1G``) and of the JVM (``768m``, ``1g``)."""

import re

_KUBERNETES = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50,
}  # fmt: skip
_JVM = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def size(text: str) -> int:
    """Return the bytes of a Kubernetes quantity. Raises ValueError that names the text and the valid form."""
    match = re.fullmatch(r"([0-9]+)([A-Za-z]*)", text)
    if match is None or match[2] not in _KUBERNETES:
        raise ValueError(f"{text!r} is not a size: write a whole number and a unit such as Mi or Gi")
    return int(match[1]) * _KUBERNETES[match[2]]


def heap(text: str) -> int:
    """Return the bytes of a JVM heap size. Raises ValueError that names the text and the valid form."""
    match = re.fullmatch(r"([0-9]+)([A-Za-z]?)", text)
    if match is None or match[2].lower() not in _JVM:
        raise ValueError(f"{text!r} is not a heap size: write a whole number and m or g, such as 768m")
    return int(match[1]) * _JVM[match[2].lower()]
