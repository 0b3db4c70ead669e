"""What a group is to the coordinator, whichever protocol its members speak."""

from enum import StrEnum
from typing import ClassVar, Protocol

from kio.schema.errors import ErrorCode


class GroupError(Exception):
    """The request cannot be answered here or now; ``code`` is the answer."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class Group(Protocol):
    """A state machine: no I/O, no clock of its own. Times are seconds of a monotonic clock."""

    kind: ClassVar[str]
    """As ListGroups names it: ``classic`` or ``consumer``."""
    name: str
    version: int
    """Of what `save` writes: it grows with each change."""
    empty_ms: int | None
    """Since when it is empty, by the wall clock, as it was last saved; None while somebody is in it."""

    @property
    def protocol_type(self) -> str | None:
        """``consumer`` for consumers; groups of other kinds of members have their own."""
        ...

    @property
    def state(self) -> StrEnum:
        """As groups of its kind are described."""
        ...

    @property
    def empty(self) -> bool:
        """Nobody is in it: it may be deleted, and become a group of the other kind."""
        ...

    @property
    def idle(self) -> bool:
        """Nobody is in it or was told to come again."""
        ...

    def may_commit(self, member: str, instance: str | None, epoch: int, now: float) -> ErrorCode:
        """Whether offsets of that member and epoch (or generation) count; -1 is anybody, while nobody is in the group."""
        ...

    def may_read(self, member: str | None, epoch: int) -> ErrorCode:
        """Whether that member may ask for offsets."""
        ...

    def tick(self, now: float) -> bool:
        """What time alone brings. True when members went."""
        ...

    def next_deadline(self) -> float:
        """When `tick` has something to do; infinity if never."""
        ...

    def disband(self, error: ErrorCode) -> None:
        """The group is somebody else's now, or no more: whoever waits is told ``error``."""
        ...

    def save(self) -> str:
        """As JSON."""
        ...

    def load(self, text: str, now: float) -> None:
        """From JSON. Members have a whole session to be heard of."""
        ...
