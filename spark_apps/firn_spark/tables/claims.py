"""Claims: a driver takes a table's next epoch before it works on the table.

A claim is a table property, not a snapshot. So a driver that restarts adds nothing to the table's history. The newest
claim counts: its writer continues, and every older writer is fenced at its next commit.

A claim only prevents wasted work. A REST catalog accepts two claims of the same metadata, of which the later one
stays. Commits are exactly once without claims, because each one is refused after another ingestion commit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from firn.model import names
from firn_spark.failpoints import Failpoints
from firn_spark.tables.commits import CLAIM, Claim, Committer, newest, read_claim
from firn_spark.tables.swaps import swap


def take(committer: Committer, table: Any, epoch: int | None, least: int, cluster: Callable[[], str]) -> int:
    """Claim ``table`` for this writer and return its epoch.

    ``epoch`` is what this writer has already taken. If it is None, the writer takes the next epoch, above ``least``.
    The claim also records the Kafka cluster, whose id ``cluster`` returns.
    Raises FencedError if another writer has claimed the table since, and the errors of `swap`.
    """
    change = _Take(committer, epoch, least, cluster)
    swap(table, change, Failpoints())
    assert change.claim is not None
    return change.claim.epoch


@dataclass(slots=True)
class _Take:
    """Sets the claim. Another writer's claim comes first if it was made in between."""

    committer: Committer
    epoch: int | None
    least: int
    cluster: Callable[[], str]
    claim: Claim | None = None
    """The claim that this writer asked the catalog for."""

    def done(self, table: Any) -> bool:
        """Implement `Change.done`: look for the claim of this writer."""
        present = read_claim(table)
        mine = self.claim or (Claim(self.epoch, self.committer.writer) if self.epoch is not None else None)
        if mine is not None and present == mine:
            self.claim = mine
            return True
        if self.epoch is not None:
            self.committer.check_claim(table, self.epoch)
            self.claim = mine
        else:
            landed = newest(table)
            taken = (self.least, landed.epoch if landed is not None else 0, present.epoch if present is not None else 0)
            self.claim = Claim(max(taken) + 1, self.committer.writer)
        return False

    def build(self, table: Any) -> tuple[Any, Any]:
        """Implement `Change.build`."""
        assert self.claim is not None
        base = table.operations().current()
        cluster = self.cluster()
        known = {names.TABLE_KAFKA_CLUSTER: cluster} if cluster else {}
        return base, self.committer.replaced(base, None, {CLAIM: str(self.claim), **known})
