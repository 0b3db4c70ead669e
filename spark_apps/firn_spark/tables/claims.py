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
from firn.model.errors import CommitConflictError
from firn.model.progress import View
from firn.schemas.other_clients import SCHEMA_ID
from firn_spark.failpoints import Failpoints
from firn_spark.tables.commits import CLAIM, Claim, Committer, Landed, key_of, newest, read_claim
from firn_spark.tables.swaps import swap


@dataclass(frozen=True, slots=True)
class Work:
    """The work that a writer claims a table for."""

    topic_id: str
    base: Landed | None
    """The newest ingestion commit that the writer has read."""
    cluster: Callable[[], str]
    """Return the id of the Kafka cluster."""
    schema_id: int | None = None
    """Id of the table's schema that the writer's columns agree with."""
    view: View | None = None
    """The topic, if the table is shared."""


def take(committer: Committer, table: Any, epoch: int | None, least: int, work: Work) -> int:
    """Claim ``table`` for this writer and return its epoch.

    ``epoch`` is the epoch that this writer has already taken. If it is None, the writer takes the next epoch, above ``least``.
    The claim also records the schema of the table, and the Kafka cluster, unless the table is of one topic and its records are of another.
    Raises FencedError if another writer has claimed the table since, CommitConflictError if a commit of another topic
    has come since, and the errors of `swap`.
    """
    change = _Take(committer, epoch, least, work)
    swap(table, change, Failpoints())
    assert change.claim is not None
    return change.claim.epoch


@dataclass(slots=True)
class _Take:
    """Sets the claim. Another writer's claim comes first if it was made in between."""

    committer: Committer
    epoch: int | None
    least: int
    work: Work
    claim: Claim | None = None
    """The claim that this writer asked the catalog for."""
    landed: Landed | None = None

    def done(self, table: Any) -> bool:
        """Implement `Change.done`: look for the claim of this writer."""
        view, base = self.work.view, self.work.base
        present, landed = read_claim(table, view), newest(table, view=view)
        if landed is not None and (base is None or landed.topic_id != base.topic_id):
            raise CommitConflictError(
                f"table {table.name()}: a commit of topic {landed.topic_id} came first; the driver reloads the offsets"
            )
        self.landed = landed
        mine = self.claim or (Claim(self.epoch, self.committer.writer) if self.epoch is not None else None)
        if mine is not None and present == mine:
            self.claim = mine
            return True
        if self.epoch is not None:
            self.committer.check_claim(table, self.epoch, view)
            self.claim = mine
        else:
            taken = (self.least, landed.epoch if landed is not None else 0, present.epoch if present is not None else 0)
            self.claim = Claim(max(taken) + 1, self.committer.writer)
        return False

    def build(self, table: Any) -> tuple[Any, Any]:
        """Implement `Change.build`."""
        assert self.claim is not None
        base = table.operations().current()
        view = self.work.view
        # In a shared table, each topic names its own cluster.
        ours = view is not None or self.landed is None or self.landed.topic_id == self.work.topic_id
        cluster = self.work.cluster() if ours else ""
        known = {key_of(names.TABLE_KAFKA_CLUSTER, view): cluster} if cluster else {}
        if self.work.schema_id is not None:
            known[SCHEMA_ID] = str(self.work.schema_id)
        return base, self.committer.replaced(base, None, {key_of(CLAIM, view): str(self.claim), **known})
