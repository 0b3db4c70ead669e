"""The invariants, checked after each change of a table, and each second for the status.

The numbers are those of the list of invariants in docs/reference/tested.md. 13 belongs to upserts, which Firn does not have.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from firn.model import names
from firn.model.progress import Losses
from firn_spark.tables.commits import Landed
from tests.fakes.lake.memory import Lake, Metadata
from tests.simulation.product.log import Partition, SimulatedLog

INGEST, REPLACE = "ingest", "replace"
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
    began: dict[str, dict[int, int]] = field(default_factory=dict)
    """Topic id -> partition -> log start when the first table of the resource got its first offsets: earlier records
    never belonged to it."""
    losses: Losses = field(default_factory=Losses)


class Checker:
    """Collects what is ``wrong``."""

    def __init__(self, log: SimulatedLog, lake: Lake, table: str, *, skips: bool) -> None:
        self._log = log
        self._lake = lake
        self._table = table
        self._letters = table + names.DEAD_LETTER_SUFFIX
        self._skips = skips
        self._seen: dict[str, _Seen] = {}
        self.wrong: list[str] = []
        self.commits = 0
        self.landed = 0
        """Most records that were in both tables at once."""

    def changed(self, name: str, before: Metadata | None, after: Metadata | None) -> None:
        """Check the state after a change of a table."""
        self.commits += 1
        if after is not None:
            seen = self._seen.setdefault(after.uuid, _Seen(name))
            known = {each.id for each in before.all_snapshots} if before is not None else set()
            for snapshot in after.all_snapshots:
                if snapshot.id not in known:
                    self._files_once(name, seen, snapshot.added)
                    if snapshot.properties.get(names.SUMMARY_KIND) == INGEST:
                        self._fenced(name, seen, snapshot.properties)
                        self._forward(name, seen, after)
                    if snapshot.operation == REPLACE and before is not None:
                        self._same_rows(name, before, after)
            seen.losses = Losses.read(after.properties.get(names.TABLE_LOST))
        self._files_exist(name, after)
        self._once()

    # Each snapshot

    def _files_once(self, name: str, seen: _Seen, added: tuple[str, ...]) -> None:
        for path in added:
            if path in seen.added:
                self.wrong.append(f"10: file {path} was added to {name} twice")
            seen.added.add(path)

    def _fenced(self, name: str, seen: _Seen, summary: Mapping[str, str]) -> None:
        epoch, writer = int(summary[names.SUMMARY_EPOCH]), summary["firn.writer"]
        before, earlier = seen.epoch
        if epoch < before or (epoch == before and writer != earlier):
            self.wrong.append(f"14: {name}: {writer} committed with epoch {epoch} after {earlier} with epoch {before}")
        seen.epoch = max(seen.epoch, (epoch, writer))

    def _same_rows(self, name: str, before: Metadata, after: Metadata) -> None:
        if Counter(self._lake.rows(before.head)) != Counter(self._lake.rows(after.head)):
            self.wrong.append(f"12: maintenance changed rows of {name}")

    def _forward(self, name: str, seen: _Seen, after: Metadata) -> None:
        # An ingestion commit sets all offsets in the properties. A rollback does not change them.
        text, topic_id = after.properties[names.SUMMARY_OFFSETS], after.properties[names.SUMMARY_TOPIC_ID]
        offsets = {int(part): offset for part, offset in json.loads(text).items()}
        if topic_id not in seen.topics:
            seen.topics.append(topic_id)
            parts = self._log.partitions.get(topic_id, [])
            # A table that replaced another begins at 0: what the log deleted in between is a loss.
            tables = [other for other in self._seen.values() if other is not seen and other.name == name]
            earlier = any(topic_id in other.landed for other in tables)
            seen.began[topic_id] = {} if earlier else {number: part.start for number, part in enumerate(parts)}
        elif topic_id != seen.topics[-1]:
            self.wrong.append(f"9: {name}: went back to topic {topic_id}")
        before = seen.landed.get(topic_id, {})
        if any(offsets.get(part, -1) < offset for part, offset in before.items()):
            self.wrong.append(f"9: {name}: offsets {offsets} after {before}")
        seen.landed[topic_id] = offsets

    def _files_exist(self, name: str, after: Metadata | None) -> None:
        files = {path for snapshot in after.all_snapshots for path in snapshot.files} if after is not None else set()
        missing = files - self._lake.objects.keys()
        if missing:
            self.wrong.append(f"11: {name}: files {sorted(missing)} are missing")

    def rolled_back(self, landed: Landed | None) -> None:
        """Expect that the table's offsets are those of an earlier snapshot, because a user rolled it back."""
        live = self._lake.tables[self._table]
        seen = self._seen[live.uuid]
        while seen.topics and (landed is None or seen.topics[-1] != landed.topic_id):
            del seen.landed[seen.topics.pop()]
        if landed is not None:
            seen.landed[landed.topic_id] = dict(landed.offsets)
        seen.epoch = (0, "")
        for snapshot in live.all_snapshots:
            seen.added -= set(snapshot.added) - set(live.head.files if live.head is not None else ())

    # Both tables together

    def _once(self) -> None:
        live, letters = self._lake.tables.get(self._table), self._lake.tables.get(self._letters)
        if live is None:
            return
        places = self._log.places
        rows = Counter(places[row.serial] for row in self._lake.rows(live.head))
        found = self._lake.rows(letters.head) if letters is not None else []
        dead = Counter(places[row.serial] for row in found)
        self.landed = max(self.landed, len(rows) + len(dead))
        both = rows.keys() & dead.keys()
        if both:
            self.wrong.append(f"15: {_texts(both)} are rows and dead letters")
        twice = {place for count in (rows, dead) for place, number in count.items() if number > 1}
        if twice:
            self.wrong.append(f"8: {_texts(twice)} landed twice")
        missing = set(self._missing(live, rows.keys() | dead.keys()))
        if missing:
            self.wrong.append(f"8: {_texts(missing)} lost")

    def _missing(self, live: Metadata, there: Set[Place]) -> Iterator[Place]:
        seen = self._seen.get(live.uuid)
        if seen is None:
            return
        lost = {
            (loss.topic_id, loss.partition, offset)
            for loss in seen.losses.ranges
            for offset in range(loss.start, loss.end)
        }
        for topic_id, landed in seen.landed.items():
            for number, end in landed.items():
                began = seen.began[topic_id].get(number, 0)
                for offset, record in self._partition(topic_id, number).ever.items():
                    place = (topic_id, number, offset)
                    if offset < began or offset >= end or (self._skips and record.bad):
                        continue
                    if place not in there and place not in lost:
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


def _texts(places: Set[Place]) -> str:
    return ", ".join(f"{part}:{offset} of topic {topic_id}" for topic_id, part, offset in sorted(places)[:5])


def conditions(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the status of each condition of a resource."""
    return {item["type"]: item["status"] for item in manifest["status"].get("conditions", [])}
