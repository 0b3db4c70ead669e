"""Headers of requests and responses (KIP-511, KIP-482)."""

import struct
from dataclasses import dataclass

from firn.records.cursor import Cursor

API_VERSIONS = 18
_FIXED = struct.Struct(">hhi")

FLEXIBLE_SINCE = {
    0: 9, 1: 12, 2: 6, 3: 9, 8: 8, 9: 6, 10: 3, 11: 6, 12: 4, 13: 4, 14: 4, 15: 5, 16: 3, 18: 3, 19: 5, 20: 4, 21: 2, 22: 2, 23: 4,
    29: 2, 30: 2, 31: 2, 32: 4, 33: 2, 35: 2, 36: 2, 37: 2, 42: 2, 44: 1, 46: 0, 48: 1, 49: 1, 50: 0, 51: 0, 60: 0, 68: 0, 69: 0,
}  # fmt: skip
"""API key -> first flexible version; an API without an entry has none (``flexibleVersions`` of Kafka's message
definitions)."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    """The header of a request; ``body`` is the position of the message in the frame."""

    api: int
    version: int
    correlation: int
    client: str | None
    body: int


def is_flexible(api: int, version: int) -> bool:
    """Return whether messages of this version have compact lengths and tagged fields."""
    since = FLEXIBLE_SINCE.get(api)
    return since is not None and version >= since


def read(frame: memoryview) -> RequestHeader:
    """Read the header of ``frame``. Raises `MalformedError`. The client id has the old length field in all versions."""
    cursor = Cursor(frame, 0, flexible=False)
    api, version, correlation = cursor.i16(), cursor.i16(), cursor.i32()
    client = cursor.string()
    if is_flexible(api, version):
        cursor.flexible = True
        cursor.tags()
    return RequestHeader(api, version, correlation, client, cursor.place)


def response(header: RequestHeader) -> bytes:
    """Write the header of the answer. ApiVersions never has tagged fields: its client does not know the broker's
    versions yet."""
    correlation = header.correlation.to_bytes(4, "big", signed=True)
    flexible = header.api != API_VERSIONS and is_flexible(header.api, header.version)
    return correlation + b"\0" if flexible else correlation
