"""New ids from an injected clock and an injected random generator."""

from random import Random
from uuid import UUID

from firn.model.clock import Clock


class Identifiers:
    """Generates ids; with a seeded `Random` and a virtual clock always the same ones."""

    def __init__(self, clock: Clock, random: Random) -> None:
        self._clock = clock
        self._random = random

    def now_ms(self) -> int:
        """Return the time that new ids have."""
        return int(self._clock.now().timestamp() * 1000)

    def uuid7(self) -> UUID:
        """Generate an id that sorts by time (RFC 9562)."""
        now = self.now_ms()
        bits = self._random.getrandbits(74)
        return UUID(int=now << 80 | 7 << 76 | (bits >> 62) << 64 | 2 << 62 | bits & (1 << 62) - 1)

    def uuid4(self) -> UUID:
        """Generate a random id."""
        return UUID(int=self._random.getrandbits(128), version=4)
