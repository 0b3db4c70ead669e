"""Port `Tables` in memory. It passes tests/contract/suites.py like the adapter."""

import dataclasses
from dataclasses import dataclass, replace
from typing import Any

from firn.model.conditions import Reason
from firn.model.errors import FirnError, InvalidSpecError
from firn.model.jobs import RecordSchema, TableTarget
from firn.model.progress import Proposal
from firn.schemas import changes
from firn.tables import evolution, renames, types
from firn.tables.ownership import Claimant, Ownership
from firn_controllers.ports import Dropped, FoundTable, TableState
from tests.fakes.faults import Faults, effect


@dataclass
class Stored:
    """A table."""

    uuid: str
    target: TableTarget
    schema: RecordSchema
    ownership: Ownership = dataclasses.field(default_factory=Ownership)
    topic_id: str = ""
    schema_id: int = 0
    dropped: tuple[str, ...] = ()
    """Columns that another client has dropped."""

    @property
    def owner(self) -> str:
        return self.ownership.owner

    @owner.setter
    def owner(self, uid: str) -> None:
        self.ownership = replace(self.ownership, owner=uid)


class FakeTables:
    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.tables: dict[str, Stored] = {}
        self.problem: dict[str, FirnError] = {}
        """Catalog -> the error of every call."""
        self.store_problem: FirnError | None = None
        """The error of every call for a table, while the catalog itself works."""
        self.drop_problems: tuple[str, ...] = ()
        """Why files of a dropped table may stay."""
        self._ids = 0

    @effect
    async def ensure(self, target: TableTarget, schema: RecordSchema, claimant: Claimant) -> TableState | None:
        self._answer(target.catalog)
        if self.store_problem is not None:
            raise self.store_problem
        live = self.tables.get(target.identifier)
        if live is None and target.format_version == 3:
            return None
        created = live is None
        found_owner = (live.owner or None) if live else None
        owner = Ownership(claimant.owner, claimant.namespace, claimant.cluster)
        changed: tuple[str, ...] = ()
        if live is None:
            live = self.put(target, schema)
            live.ownership = owner
            self.faults.log.append(f"create table {target.identifier}")
        else:
            claimant.check(target.identifier, live.ownership)
            state = TableState(live.uuid, _location(target), live.target.format_version, found_owner)
            differences = changes.between(live.schema, schema) + changes.of_layout(live.target, target)
            found = changes.judged(differences, schema.evolution, live.uuid, live.schema_id)
            if found.refused:
                raise InvalidSpecError(changes.refusal(found.refused), reason=Reason.INCOMPATIBLE_SCHEMA)
            if found.proposed:
                texts = tuple(each.text for each in found.proposed)
                return replace(state, proposed=Proposal(changes=texts, approve=found.approve))
            known = renames.renamed_columns(live.schema.fields, schema.renames)
            live.schema = live.schema.model_copy(update={"fields": known})
            if schema.subject is not None:
                fields = evolution.merged_columns(live.schema.fields, schema.fields, schema.format)
                schema = schema.model_copy(update={"fields": fields})
            self._compare(live, schema, claimant.uid)
            wanted = _merged(live.schema, schema)
            if wanted != live.schema:
                changed = ("columns",)
                live.schema_id += 1
                live.schema = wanted
                self.faults.log.append(f"change table {target.identifier}")
            layout = {"partition_by": target.partition_by, "sort_by": target.sort_by}
            live.target = live.target.model_copy(update=layout)
            if live.owner != claimant.owner and live.target.format_version < 3:
                self.faults.log.append(f"adopt table {target.identifier}")
            if live.target.format_version == 3:
                owner = live.ownership  # the driver marks the table
            consent = "" if claimant.has_consent(live.ownership) else live.ownership.consent
            live.ownership = replace(owner, consent=consent)
        return TableState(
            uuid=live.uuid,
            location=_location(target),
            format_version=live.target.format_version,
            owner=found_owner,
            created=created,
            changed=changed,
            dropped=live.dropped,
            **_drops(live, schema),
        )

    async def found(self, target: TableTarget) -> FoundTable | None:
        self._answer(target.catalog)
        live = self.tables.get(target.identifier)
        return FoundTable(live.ownership, live.topic_id) if live is not None else None

    @effect
    async def drop(self, target: TableTarget, owner: str) -> Dropped | None:
        self._answer(target.catalog)
        live = self.tables.get(target.identifier)
        if live is None or live.owner != owner:
            return None
        del self.tables[target.identifier]
        self.faults.log.append(f"drop table {target.identifier}")
        return Dropped(problems=self.drop_problems)

    async def check(self, catalog: str) -> None:
        self._answer(catalog)

    def put(self, target: TableTarget, schema: RecordSchema, owner: str = "") -> Stored:
        """Add a table that an earlier release, or another tool without an owner, created."""
        self._ids += 1
        self.tables[target.identifier] = Stored(f"table-{self._ids}", target, schema, Ownership(owner))
        return self.tables[target.identifier]

    def _answer(self, catalog: str) -> None:
        if catalog in self.problem:
            raise self.problem[catalog]

    def _compare(self, live: Stored, schema: RecordSchema, owner: str) -> None:
        fields = {field.name: field for field in schema.fields}
        for field in live.schema.fields:
            wanted = fields.get(field.name)
            if wanted and not evolution.can_become(types.parse(field.type), types.parse(wanted.type)):
                reason = Reason.INCOMPATIBLE_SCHEMA if live.owner == owner else Reason.SCHEMA_INCOMPATIBLE
                message = f"table {live.target.identifier}: column {field.name} cannot change from {field.type} to {wanted.type}"
                raise InvalidSpecError(message, reason=reason)


def _location(target: TableTarget) -> str:
    return f"s3://firn/{target.namespace}/{target.name}"


def _drops(live: Stored, schema: RecordSchema) -> dict[str, Any]:
    gone = tuple(name for name in schema.gone if name in {field.name for field in live.schema.fields})
    found = changes.proposed_drops(gone, schema.evolution, live.uuid, live.schema_id)
    texts = tuple(each.text for each in found.proposed)
    return {"gone": gone, "droppable": Proposal(changes=texts, approve=found.approve) if texts else None}


def _merged(old: RecordSchema, new: RecordSchema) -> RecordSchema:
    wanted = {field.name: field for field in new.fields}
    kept = [wanted.pop(field.name, field) for field in old.fields]
    return old.model_copy(update={"fields": (*kept, *wanted.values())})
