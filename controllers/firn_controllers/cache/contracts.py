"""Cache of the job contracts in force, as far as this process has read or written them: what each ingestion group needs for them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from firn.model import names
from firn.model.jobs import IngestJob
from firn_controllers.ports import AclRule

Section = Literal["profiles", "catalogs", "registries", "salts"]
Need = tuple[Section, str]
"""A section of the configuration, and the name of a member in it."""


@dataclass(frozen=True, slots=True)
class _Contract:
    group: str
    namespace: str
    needs: frozenset[Need]
    profile: str
    rules: frozenset[AclRule]

    @property
    def access(self) -> tuple[str, str, frozenset[AclRule]]:
        """Group, profile and rights that the driver needs."""
        return self.group, self.profile, self.rules


class ContractCache:
    """The needs of job contracts by ingestion group. Use it from one event loop."""

    def __init__(self) -> None:
        self._contracts: dict[str, _Contract | None] = {}
        """Uid of a topic -> its contract; None if it has none."""
        self._needs: defaultdict[str, Counter[tuple[str, Need]]] = defaultdict(Counter)
        """Group -> number of contracts by namespace of the topic and need."""
        self._leaving: dict[tuple[str, str], tuple[_Contract, float]] = {}
        """Uid and group -> an earlier contract that the driver may still follow, and the monotonic time of its end."""

    def put(self, uid: str, job: IngestJob | None, now: float) -> None:
        """Store the contract of a topic, or that it has none. ``now`` is in monotonic seconds."""
        before = self._contracts.get(uid)
        self._drop(uid)
        contract = None
        if job is not None:
            contract = _Contract(job.group, job.namespace, needs_of(job), job.profile, rules_of(job))
            self._needs[contract.group].update((contract.namespace, need) for need in contract.needs)
        self._contracts[uid] = contract
        if before is not None and (contract is None or contract.access != before.access):
            kept = self._leaving.get((uid, before.group))
            if kept is not None and kept[0].profile == before.profile:
                # The driver may still follow the contract before this one.
                before = replace(before, rules=before.rules | kept[0].rules)
            self._leaving[uid, before.group] = (before, now)

    def has(self, uid: str, group: str) -> bool:
        """Return whether the topic has a contract in this group."""
        contract = self._contracts.get(uid)
        return contract is not None and contract.group == group

    def leaving(self, group: str) -> Mapping[str, float]:
        """Return the topics whose contract the driver of ``group`` may still follow, with the monotonic time of its end."""
        return {uid: since for (uid, named), (_, since) in self._leaving.items() if named == group}

    def leave(self, uid: str, group: str) -> None:
        """Note that the driver of ``group`` no longer follows an earlier contract of the topic."""
        self._leaving.pop((uid, group), None)

    def rules(self, profile: str) -> Mapping[str, frozenset[AclRule]]:
        """Return the rights on the brokers of a profile that the driver of each group needs."""
        found: defaultdict[str, set[AclRule]] = defaultdict(set)
        present = [contract for contract in self._contracts.values() if contract is not None]
        for contract in (*present, *(contract for contract, _ in self._leaving.values())):
            if contract.profile == profile:
                found[contract.group] |= contract.rules
        return {group: frozenset(rules) for group, rules in found.items()}

    def forget(self, uid: str) -> None:
        """Forget a topic that was deleted, and whose contract was removed."""
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


def rules_of(job: IngestJob) -> frozenset[AclRule]:
    """Return the rights that the driver of a job contract needs. Read includes Describe.

    Alter is the right to name data files that take the place of the log. A topic that continues a table of Kafka Connect needs the
    connector's control topic and consumer group, too.
    """
    rules = {AclRule("Topic", job.topic, "Literal", "Read")}
    if job.table.history == names.SINGLE:
        rules.add(AclRule("Topic", job.topic, "Literal", "Alter"))
    sink = job.adopt.connect if job.adopt is not None else None
    if sink is not None:
        rules |= {
            AclRule("Topic", sink.control_topic, "Literal", "Read"),
            AclRule("Group", sink.group, "Literal", "Describe"),
        }
    return frozenset(rules)


def is_of_contract(rule: AclRule, *, names_files: bool = False) -> bool:
    """Return whether the rule has the form of those for job contracts. ``names_files``: the brokers rebuild logs from data files."""
    forms = {("Topic", "Read"), ("Group", "Describe"), *([("Topic", "Alter")] if names_files else [])}
    return rule.pattern == "Literal" and (rule.resource, rule.operation) in forms
