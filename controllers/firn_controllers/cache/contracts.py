"""Cache of the job contracts in force, as far as this process has read or written them: what each ingestion group needs for them."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from firn.model.jobs import IngestJob

Section = Literal["profiles", "catalogs", "registries", "salts"]
Need = tuple[Section, str]
"""A section of the configuration, and the name of a member in it."""


@dataclass(frozen=True, slots=True)
class _Contract:
    group: str
    namespace: str
    needs: frozenset[Need]


class ContractCache:
    """The needs of job contracts by ingestion group. Use it from one event loop."""

    def __init__(self) -> None:
        self._contracts: dict[str, _Contract | None] = {}
        """Uid of a topic -> its contract; None if it has none."""
        self._needs: defaultdict[str, Counter[tuple[str, Need]]] = defaultdict(Counter)
        """Group -> number of contracts by namespace of the topic and need."""

    def put(self, uid: str, job: IngestJob | None) -> None:
        """Store the contract of a topic, or that it has none."""
        self._drop(uid)
        contract = _Contract(job.group, job.namespace, needs_of(job)) if job is not None else None
        self._contracts[uid] = contract
        if contract is not None:
            self._needs[contract.group].update((contract.namespace, need) for need in contract.needs)

    def forget(self, uid: str) -> None:
        """Forget a topic that was deleted."""
        self._drop(uid)
        self._contracts.pop(uid, None)

    def knows(self, uids: Iterable[str]) -> bool:
        """Return whether this process knows the contract of each of these topics, or that there is none."""
        return all(uid in self._contracts for uid in uids)

    def needs(self, group: str) -> frozenset[tuple[str, Need]]:
        """Return what the contracts of a group name, with the namespace of the topic."""
        return frozenset(self._needs.get(group, ()))

    def _drop(self, uid: str) -> None:
        contract = self._contracts.get(uid)
        if contract is None:
            return
        counts = self._needs[contract.group]
        counts.subtract((contract.namespace, need) for need in contract.needs)
        for need in contract.needs:
            if not counts[contract.namespace, need]:
                del counts[contract.namespace, need]


def needs_of(job: IngestJob) -> frozenset[Need]:
    """Return the members of the configuration that a job contract names."""
    needs: set[Need] = {("profiles", job.profile), ("catalogs", job.table.catalog)}
    needs |= {("registries", name) for name in job.registries}
    needs |= {("salts", name) for name in job.record_schema.salts}
    return frozenset(needs)
