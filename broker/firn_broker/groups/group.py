"""A group of either protocol, as the group coordinator uses it."""

import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from kio.schema.errors import ErrorCode

GROUP_BYTES = 512
MEMBER_BYTES = 1024
PENDING_BYTES = 256
PARTITION_BYTES = 64
"""Approximate bytes in memory: of a group, of a member besides its names and metadata, of the id of a member that has not
joined yet, and of a partition in an assignment."""


def as_json(head: Mapping[str, Any], members: Iterable[str]) -> str:
    """Return the JSON of a group from that of its members. A thread that writes one member after the other does not keep
    the event loop from running."""
    return f'{json.dumps(head)[:-1]}, "members": [{", ".join(members)}]}}'


class GroupError(Exception):
    """The request cannot be answered here or now; ``code`` is the answer."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class Group(Protocol):
    """A state machine without I/O and without a clock. Times are seconds of a monotonic clock."""

    kind: ClassVar[str]
    """The type in ListGroups: ``classic`` or ``consumer``."""
    name: str
    version: int
    """The version of the state that `snapshot` writes. It grows with each change."""
    empty_ms: int | None
    """When the group became empty, by the wall clock of its last save; None while it has members."""

    @property
    def protocol_type(self) -> str | None:
        """Return the protocol type: ``consumer`` for consumers, another one for Kafka Connect and others."""
        ...

    @property
    def state(self) -> StrEnum:
        """Return the state in the terms of the group's protocol."""
        ...

    @property
    def empty(self) -> bool:
        """Return whether the group has no members. Then it may be deleted, or become a group of the other protocol."""
        ...

    @property
    def idle(self) -> bool:
        """Return whether the group has no members, and no client that has to rejoin it."""
        ...

    def may_commit(self, member: str, instance: str | None, epoch: int, now: float) -> ErrorCode:
        """Check whether a member of this epoch (or generation) may commit offsets.

        Epoch -1 commits without a member, while the group is empty.
        """
        ...

    def may_read(self, member: str | None, epoch: int) -> ErrorCode:
        """Check whether a member of this epoch may read offsets."""
        ...

    def tick(self, now: float) -> bool:
        """Apply the deadlines that have passed; return whether members were removed."""
        ...

    def next_deadline(self) -> float:
        """Return the time of the next deadline; infinity if there is none."""
        ...

    def disband(self, error: ErrorCode) -> None:
        """Answer all waiting members with ``error``, because the group moved to another broker or was deleted."""
        ...

    def sizes(self) -> Mapping[str, int]:
        """Return the approximate bytes of the group in memory, by the address of its members."""
        ...

    def snapshot(self) -> Callable[[], str]:
        """Return a function that writes the present state as JSON. It may run later, and in another thread."""
        ...

    def load(self, text: str, now: float) -> None:
        """Read the state from JSON. A full session begins for each member."""
        ...
