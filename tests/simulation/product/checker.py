"""The invariants, checked after each change of a table, and each second for the status.

The numbers are those of the list of invariants in docs/reference/tested.md. 13 belongs to upserts, which Firn does not have.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from firn.model import names
from firn.model.progress import Losses, decode_leader_epochs
from firn_spark.tables.commits import Landed
from tests.fakes.lake.memory import MAIN, Lake, Metadata, Snapshot
from tests.simulation.product.log import Partition, SimulatedLog

INGEST, REPLACE = "ingest", "replace"
LEAST = 30
"""Rows that the check of publishing wants at least."""
CHECKS = frozenset(("8", "9", "10", "11", "12", "14", "15", "16", "17", "liveness"))
"""Numbers of the invariants, and the recovery after the last fault."""
Place = tuple[str, int, int]
"""Topic id, partition and offset."""


@dataclass
class _Seen:
    """The checker's memory of a table with one UUID."""

    name: str
    added: set[str] = field(default_factory=set)
    epoch: tuple[int, str] = (0, "")
    topics: list[str] = field(default_factory=list)
    """Topic ids in the order of their first commits."""
    landed: dict[str, dict[int, int]] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    replaced: set[Place] = field(default_factory=set)
    """Landed places that the log had given to other records at the last ingestion commit, without a recorded loss."""
    hidden: set[Place] = field(default_factory=set)
    """Replaced places that no driver can find, because a rollback left leader epochs of another commit."""
    relands: bool = False
    """True after a rollback: records that other records had kept from landing may land then."""
    rolled_back: bool = False
    """True after a rollback, until a commit writes leader epochs again."""

    @property
    def lost(self) -> set[Place]:
        """Every place that the table records as lost."""
        return {
            (loss.topic_id, loss.partition, offset)
            for loss in self.losses.ranges
            for offset in range(loss.start, loss.end)
        }


class Checker:
    """Collects what is ``wrong``. Only the invariants of ``checks`` count."""

    def __init__(self, log: SimulatedLog, lake: Lake, table: str, *, skips: bool, checks: Set[str] = CHECKS) -> None:
        self._checks = checks
        self._log = log
        self._lake = lake
        self._table = table
        self._letters = table + names.DEAD_LETTER_SUFFIX
        self._skips = skips
        self._seen: dict[str, _Seen] = {}
        self._rolling = False
        """True while a user rolls the table back."""
        self.by_user = False
        """True if a user makes the next change of main."""
        self.approved: set[int] = set()
        """Snapshots that users have approved."""
        self.least = LEAST
        """Rows that main gets at once at least, without an approval."""
        self.wrong: list[str] = []
        self.commits = 0
        self.landed = 0
        """Most records that were in both tables at once."""

    def report(self, number: str, problem: str) -> None:
        """Record that the invariant with this number is broken."""
        if number in self._checks:
            self.wrong.append(f"{number}: {problem}")

    def changed(self, name: str, before: Metadata | None, after: Metadata | None) -> None:
        """Check the state after a change of a table."""
        self.commits += 1
        if after is not None:
            seen = self._seen.setdefault(after.uuid, _Seen(name))
            for snapshot in _new(before, after):
                self._files_once(name, seen, snapshot.added)
                if _is_ingest(snapshot):
                    self._fenced(name, seen, snapshot.properties)
                    self._forward(name, seen, after)
            seen.losses = Losses.read(after.properties.get(names.TABLE_LOST))
            if before is not None:
                if name == self._table:
                    self._publishes(before, after)
                self._keeps_rows(name, before, after)
        self._files_exist(name, after)
        self._once()
        if after is not None and name == self._table and any(map(_is_ingest, _new(before, after))):
            self._replaced_again(seen, after)

    # Each snapshot

    def _files_once(self, name: str, seen: _Seen, added: tuple[str, ...]) -> None:
        for path in added:
            if path in seen.added:
                self.report("10", f"file {path} was added to {name} twice")
            seen.added.add(path)

    def _fenced(self, name: str, seen: _Seen, summary: Mapping[str, str]) -> None:
        epoch, writer = int(summary[names.SUMMARY_EPOCH]), summary["firn.writer"]
        before, earlier = seen.epoch
        if epoch < before or (epoch == before and writer != earlier):
            self.report("14", f"{name}: {writer} committed with epoch {epoch} after {earlier} with epoch {before}")
        seen.epoch = max(seen.epoch, (epoch, writer))

    def _keeps_rows(self, name: str, before: Metadata, after: Metadata) -> None:
        rows, rows_after = Counter(self._lake.rows(before.landing)), Counter(self._lake.rows(after.landing))
        replaces = any(snapshot.operation == REPLACE for snapshot in _new(before, after))
        if (name != self._table or not self._rolling) and (rows - rows_after or (replaces and rows != rows_after)):
            self.report("12", f"a commit changed or removed rows of {name}")
        if name == self._table:
            self._rolling = False

    def _publishes(self, before: Metadata, after: Metadata) -> None:
        """Check a change of main, while rows land on a branch."""
        by_user, self.by_user = self.by_user or self._rolling, False
        main, head = before.head, after.head
        if by_user or head is main or before.branch == after.branch == MAIN:
            return
        if head is None or head not in after.history(after.landing):
            self.report("17", "main has a snapshot that the branch lacks")
            return
        if main is not None and main not in after.history(head):
            self.report("17", f"main lost snapshot {main.id}")
        rows = Counter(self._lake.rows(head)) - Counter(self._lake.rows(main))
        if after.branch != MAIN and 0 < rows.total() < self.least and head.id not in self.approved:
            self.report("17", f"main got {rows.total()} rows, although the check wants {self.least}")

    def _forward(self, name: str, seen: _Seen, after: Metadata) -> None:
        # An ingestion commit sets all offsets in the properties. A rollback does not change them.
        text, topic_id = after.properties[names.SUMMARY_OFFSETS], after.properties[names.SUMMARY_TOPIC_ID]
        offsets = {int(part): offset for part, offset in json.loads(text).items()}
        if topic_id not in seen.topics:
            seen.topics.append(topic_id)
        elif topic_id != seen.topics[-1]:
            self.report("9", f"{name}: went back to topic {topic_id}")
        before = seen.landed.get(topic_id, {})
        if any(offsets.get(part, -1) < offset for part, offset in before.items()):
            self.report("9", f"{name}: offsets {offsets} after {before}")
        seen.landed[topic_id] = offsets

    def _files_exist(self, name: str, after: Metadata | None) -> None:
        files = {path for snapshot in after.all_snapshots for path in snapshot.files} if after is not None else set()
        missing = files - self._lake.objects.keys()
        if missing:
            self.report("11", f"{name}: files {sorted(missing)} are missing")

    def rolled_back(self, landed: Landed | None) -> None:
        """Expect that the table's offsets are those of an earlier snapshot, because a user rolled it back."""
        live = self._lake.tables[self._table]
        seen = self._seen[live.uuid]
        self._rolling = seen.rolled_back = seen.relands = True
        seen.replaced = set()
        while seen.topics and (landed is None or seen.topics[-1] != landed.topic_id):
            del seen.landed[seen.topics.pop()]
        if landed is not None:
            seen.landed[landed.topic_id] = dict(landed.offsets)
        seen.epoch = (0, "")
        for snapshot in live.all_snapshots:
            seen.added -= set(snapshot.added) - set(live.landing.files if live.landing is not None else ())

    # Both tables together

    def _once(self) -> None:
        live, letters = self._lake.tables.get(self._table), self._lake.tables.get(self._letters)
        if live is None:
            return
        places = self._log.places
        found = self._lake.rows(letters.head) if letters is not None else []
        rows = {places[row.serial]: row.serial for row in self._lake.rows(live.landing)}
        dead = {row.serial: places[row.serial] for row in found}
        self.landed = max(self.landed, len(rows) + len(dead))
        # The dead letter of a record that the brokers lost stays beside the next record with its offset.
        both = {place for serial, place in dead.items() if serial >= rows.get(place, serial + 1)}
        if both:
            self.report("15", f"{_texts(both)} are rows and dead letters")
        counts = (
            Counter(places[row.serial] for row in self._lake.rows(live.landing)),
            Counter(row.serial for row in found),
        )
        twice = {place for place, number in counts[0].items() if number > 1}
        twice |= {dead[serial] for serial, number in counts[1].items() if number > 1}
        if twice:
            self.report("8", f"{_texts(twice)} landed twice")
        missing = set(self._missing(live, rows.keys() | set(dead.values())))
        if missing:
            self.report("8", f"{_texts(missing)} lost")
        if invented := set(self._invented(live, {row.serial for row in self._lake.rows(live.landing)} | dead.keys())):
            self.report("8", f"{_texts(invented)} recorded as lost, and landed")

    def _replaced_again(self, seen: _Seen, live: Metadata) -> None:
        """Check that landed offsets which the log has given to other records are recorded as lost.

        The round of this commit may have begun before the log did so. The round of the next commit begins after it.
        """
        replaced = set(self._replaced(seen, live))
        if seen.rolled_back:
            seen.hidden |= replaced
            commit = live.properties.get(names.SUMMARY_COMMIT_ID, "")
            seen.rolled_back = not decode_leader_epochs(live.properties.get(names.TABLE_LEADER_EPOCHS), commit)
        if missed := (replaced & seen.replaced) - seen.hidden:
            self.report("8", f"{_texts(missed)} replaced by another record, and not recorded as lost")
        seen.replaced = replaced

    def _replaced(self, seen: _Seen, live: Metadata) -> Iterator[Place]:
        """Yield the places of records of the log that do not land, because another record has, and that are not lost."""
        topic_id = seen.topics[-1] if seen.topics else ""
        if not self._log.exists(topic_id):
            return
        letters = self._lake.tables.get(self._letters)
        dead = self._lake.rows(letters.head) if letters is not None else []
        serials = {row.serial for row in (*self._lake.rows(live.landing), *dead)}
        lost = seen.lost
        for number, end in seen.landed[topic_id].items():
            for offset, record in self._partition(topic_id, number).records.items():
                place = (topic_id, number, offset)
                if offset >= end or (self._skips and record.bad):
                    continue
                if record.serial not in serials and place not in lost:
                    yield place

    def replaced(self) -> list[Place]:
        """Return the landed offsets that the log has given to other records, and that are not recorded as lost."""
        live = self._lake.tables.get(self._table)
        seen = self._seen.get(live.uuid) if live is not None else None
        return [] if live is None or seen is None else sorted(set(self._replaced(seen, live)) - seen.hidden)

    def _missing(self, live: Metadata, there: Set[Place]) -> Iterator[Place]:
        seen = self._seen.get(live.uuid)
        if seen is None:
            return
        lost = seen.lost
        for topic_id, landed in seen.landed.items():
            for number, end in landed.items():
                for offset, record in self._partition(topic_id, number).ever.items():
                    place = (topic_id, number, offset)
                    if offset >= end or (self._skips and record.bad):
                        continue
                    if place not in there and place not in lost:
                        yield place

    def _invented(self, live: Metadata, landed: Set[int]) -> Iterator[Place]:
        """Yield the places that the table records as lost, and whose present record of the log has landed."""
        seen = self._seen.get(live.uuid)
        if seen is None or seen.relands:
            return
        for place in seen.lost:
            topic_id, number, offset = place
            record = self._partition(topic_id, number).records.get(offset)
            if record is not None and record.serial in landed:
                yield place

    def _partition(self, topic_id: str, number: int) -> Partition:
        parts = self._log.partitions.get(topic_id, [])
        return parts[number] if number < len(parts) else Partition()

    # For the end of a story

    def losses(self) -> Losses | None:
        """Return the losses that the live table records; None without a table."""
        live = self._lake.tables.get(self._table)
        return None if live is None else Losses.read(live.properties.get(names.TABLE_LOST))

    def unlanded(self, topic: str) -> list[tuple[int, int, float]]:
        """Return partition, offset and time of the records of a topic that have not landed, oldest first."""
        found, live = self._log.of(topic), self._lake.tables.get(self._table)
        if found is None:
            return []
        seen = self._seen.get(live.uuid) if live is not None else None
        landed = seen.landed.get(found[0], {}) if seen is not None else {}
        return sorted(
            (
                (number, offset, record.at)
                for number, part in enumerate(found[1])
                for offset, record in part.records.items()
                if offset >= landed.get(number, 0)
            ),
            key=lambda item: item[2],
        )


def _new(before: Metadata | None, after: Metadata) -> list[Snapshot]:
    known = {each.id for each in before.all_snapshots} if before is not None else set()
    return [snapshot for snapshot in after.all_snapshots if snapshot.id not in known]


def _is_ingest(snapshot: Snapshot) -> bool:
    return snapshot.properties.get(names.SUMMARY_KIND) == INGEST


def _texts(places: Set[Place]) -> str:
    return ", ".join(f"{part}:{offset} of topic {topic_id}" for topic_id, part, offset in sorted(places)[:5])


def conditions(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the status of each condition of a resource."""
    return {item["type"]: item["status"] for item in manifest["status"].get("conditions", [])}
