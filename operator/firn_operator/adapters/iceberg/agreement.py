"""Make a table agree with its spec: create it, or change it in one commit. Runs in a catalog's threads."""

import contextlib
import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyiceberg import exceptions as iceberg_errors
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, UNSORTED_SORT_ORDER_ID
from pyiceberg.table.update import (
    AddSortOrderUpdate,
    AssertDefaultSortOrderId,
    SetDefaultSortOrderUpdate,
    UpdatesAndRequirements,
)
from pyiceberg.table.update.sorting import UpdateSortOrder
from sqlalchemy import exc as sql_errors

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError, NotReadyError, UnavailableError, table_is_ahead
from firn.model.jobs import RecordSchema, TableTarget
from firn.model.progress import Proposal
from firn.schemas import changes, other_clients
from firn.tables import table_properties
from firn.tables.ownership import Claimant, Ownership
from firn_controllers.ports import TableState
from firn_operator.adapters import foreign_types
from firn_operator.adapters.iceberg import evolution, file_io
from firn_operator.adapters.iceberg.catalogs import LeanSqlCatalog, TableKey, places, read_document
from firn_operator.adapters.iceberg.connections import Agreed, Connection
from firn_operator.adapters.iceberg.evolution import Layout

OWNER = names.TABLE_OWNER
SKEW_MS = 30_000
"""How far a table may be ahead of the operator's clock. Iceberg's Java cannot read a table whose newest change is over a
minute older than the one before (constructor of TableMetadata), and PyIceberg gives each change the time of the clock."""
_ATTEMPTS = 5
_DIGESTED = (
    "format-version",
    "table-uuid",
    "location",
    "schemas",
    "current-schema-id",
    "partition-specs",
    "default-spec-id",
    "sort-orders",
    "default-sort-order-id",
    "properties",
)
_MOVES = frozenset(
    {
        names.SUMMARY_TOPIC_ID, names.SUMMARY_EPOCH, names.SUMMARY_OFFSETS, names.SUMMARY_COMMIT_ID, names.TABLE_WRITER,
        names.SUMMARY_LANDED_AT,
        names.TABLE_CLAIM, names.TABLE_KAFKA_CLUSTER, names.TABLE_LOST, names.TABLE_LEADER_EPOCHS, names.TABLE_AUDIT_FROM,
        names.TABLE_FILTERED, names.TABLE_REFUSED_SCHEMAS,
    }
)  # fmt: skip


def now_ms() -> int:
    """Return the operator's wall-clock time in milliseconds since 1970."""
    return int(time.time() * 1000)


class Agreement:
    """Brings one table into agreement with its spec, in a thread."""

    def __init__(
        self, connection: Connection, target: TableTarget, schema: RecordSchema, claimant: Claimant, request: bytes
    ) -> None:
        self._connection = connection
        self._catalog = connection.catalog()
        self._target = target
        self._key = (target.namespace, target.name)
        self._layout = evolution.layout(target, schema)
        self._schema = schema
        self._policy = schema.evolution
        self._claimant = claimant
        self._request = request
        for key in self._layout.properties:
            if key.startswith(table_properties.RESERVED):
                raise InvalidSpecError(
                    f"table {target.identifier}: property {key!r} is reserved for Firn; remove it from spec.table.properties"
                )

    def run(self, place: str | None) -> TableState | None:
        """Create or change the table, and return its state.

        ``place`` is the location of the metadata; None if that is unknown or there is no table.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self._once(place)
            except (
                iceberg_errors.CommitFailedException,
                iceberg_errors.TableAlreadyExistsError,
                iceberg_errors.NoSuchNamespaceError,
                sql_errors.IntegrityError,
            ):
                # Another writer was faster: read the table again.
                self._connection.namespaces.pop(self._target.namespace, None)
                time.sleep(0.05 * 2**attempt)
                place = None
                if isinstance(self._catalog, SqlCatalog):
                    (place,) = places(self._catalog, [self._key])
        raise UnavailableError(
            f"table {self._target.identifier} was changed by other writers during {_ATTEMPTS} attempts; the next reconcile retries",
            reason=Reason.CATALOG_UNREACHABLE,
        )

    def _once(self, place: str | None) -> TableState | None:
        digest = b""
        if isinstance(self._catalog, SqlCatalog):
            if place is None:
                return self._create()
            document = read_document(file_io.ObjectFileIO(self._catalog.properties), place)
            digest = _digest(document)
            seen = self._connection.seen.get(self._key)
            if seen is not None and seen.request == self._request and seen.digest == digest:
                seen.place = place
                return seen.state
            table = _table(self._catalog, self._key, foreign_types.metadata_of(document), place)
        else:
            try:
                table = self._catalog.load_table(self._key)
            except iceberg_errors.NoSuchTableError:
                return self._create()
        state = self._agree(table)
        if state.changed or state.owner != self._claimant.owner:
            return state  # a new version of the metadata: cache the state after the next read
        self._connection.note(self._key, Agreed(self._request, place or "", digest, state))
        return state

    def _create(self) -> TableState | None:
        schema = evolution.new_schema(self._layout.columns)
        partitioning = evolution.new_partition_spec(schema, self._layout)
        order = evolution.sort_order(schema, self._layout)
        if self._target.format_version == 3:
            return None
        namespace = self._target.namespace
        location = self._connection.namespaces.get(namespace)
        if location is None:
            location = self._connection.namespaces[namespace] = self._make_namespace()
        properties = {
            "format-version": str(self._target.format_version),
            **table_properties.created_with(self._layout.columns, self._connection.settings.has_own_references),
            **self._layout.properties,
            **self._marks(),
            other_clients.SCHEMA_ID: "0",
        }
        if isinstance(self._catalog, LeanSqlCatalog):
            place = f"{location}/{self._target.name}"
            metadata = self._catalog.insert_table(self._key, schema, partitioning, order, properties, place)
        else:
            metadata = self._catalog.create_table(
                self._key, schema, partition_spec=partitioning, sort_order=order, properties=properties
            ).metadata
        return replace(_state(metadata), owner=None, created=True)

    def _make_namespace(self) -> str:
        """Create the namespace if it does not exist; return the location of its tables."""
        namespace = self._target.namespace
        if not self._catalog.namespace_exists(namespace):
            # Another thread or process may create it at the same moment.
            with contextlib.suppress(iceberg_errors.NamespaceAlreadyExistsError, sql_errors.IntegrityError):
                try:
                    self._catalog.create_namespace(namespace)
                except iceberg_errors.ServerError:
                    # The JDBC catalog of Apache Iceberg answers the loser of such a race with status 500.
                    if not self._catalog.namespace_exists(namespace):
                        raise
        return self._catalog.namespace_location(namespace) if isinstance(self._catalog, LeanSqlCatalog) else ""

    def _marks(self) -> dict[str, str]:
        return table_properties.marks(
            self._claimant,
            self._layout.properties,
            table_properties.layout_set_by(self._target),
            self._target.history,
        )

    def _agree(self, table: Table) -> TableState:
        """Change the parts of the table that differ from the layout, in one commit."""
        metadata = table.metadata
        state = _state(metadata)
        self._claimant.check(self._target.identifier, Ownership.of(metadata.properties))
        reason = Reason.INCOMPATIBLE_SCHEMA if state.owner == self._claimant.uid else Reason.SCHEMA_INCOMPATIBLE
        known = evolution.followed(metadata, self._layout, reason)
        state = replace(state, dropped=known.paths)
        names_change = evolution.planned_renames(
            metadata.schema(), known, metadata.specs().values(), self._layout, reason
        )
        named = evolution.layout_named(self._layout, names_change.following)
        named = evolution.layout_without(named, names_change.fields, known.dropped)
        renamed = evolution.renamed_schema(metadata.schema(), names_change)
        steps = evolution.schema_steps(renamed, named, reason, names_change.former)
        ours = table_properties.set_for(self._claimant, metadata.properties)
        layout = evolution.layout_over(named, ours)
        found = changes.of_table(names_change, named.columns) + evolution.layout_changes(metadata, renamed, layout)
        judgement = changes.judged(found, self._policy, state.uuid, metadata.current_schema_id)
        if judgement.refused:
            refusal = changes.refusal(judgement.refused)
            raise InvalidSpecError(f"table {self._target.identifier}: {refusal}", reason=reason)
        if judgement.proposed:
            texts = tuple(each.text for each in judgement.proposed)
            return replace(state, proposed=Proposal(changes=texts, approve=judgement.approve))
        state = self._with_drops(state, metadata, settled=not names_change.steps and not steps)
        if metadata.format_version > 2 or self._target.format_version > 2:
            return state
        transaction = table.transaction()
        changed = list(known.texts)
        if metadata.format_version < self._target.format_version:
            transaction.upgrade_table_version(self._target.format_version)
            changed.append(f"format version {self._target.format_version}")
        if names_change.steps:
            with transaction.update_schema() as update:
                for path, name in names_change.steps:
                    update.rename_column(path, name)
            changed += names_change.texts
        kept = {**known.properties(metadata.properties), **names_change.properties}
        if kept:
            transaction.set_properties(kept)
        if steps:
            with transaction.update_schema() as update:
                for step in steps:
                    step.act(update)
            changed += [step.text for step in steps]
        if known.texts or names_change.steps or steps:
            transaction.set_properties({other_clients.SCHEMA_ID: str(transaction.table_metadata.current_schema_id)})
        changed += _repartition(transaction, layout)
        changed += _resort(transaction, layout)
        changed += self._set_properties(transaction)
        if changed or transaction.table_metadata.properties != metadata.properties:
            self._check_clock(metadata)
            transaction.commit_transaction()
        return replace(state, format_version=max(metadata.format_version, 2), changed=tuple(changed))

    def _with_drops(self, state: TableState, metadata: TableMetadata, *, settled: bool) -> TableState:
        """Return the state with the columns that the driver drops after an approval. It drops none before other changes are made."""
        if self._target.shared:
            return state  # Other topics may write the columns.
        fields = evolution.schema_fields(metadata.schema())
        gone = changes.drops(self._schema, fields, evolution.needed_ids(metadata))
        drop = changes.proposed_drops(gone, self._policy, state.uuid, metadata.current_schema_id)
        if not settled or not drop.proposed:
            return replace(state, gone=gone)
        texts = tuple(each.text for each in drop.proposed)
        return replace(state, gone=gone, droppable=Proposal(changes=texts, approve=drop.approve))

    def _check_clock(self, metadata: TableMetadata) -> None:
        """Raise NotReadyError if the table is ahead of this clock: a process with a wrong clock has changed it.

        A REST catalog gives changes the time of its own clock, and rejects those that do not fit.
        """
        newest = max([metadata.last_updated_ms, *(entry.timestamp_ms for entry in metadata.snapshot_log)])
        if isinstance(self._catalog, SqlCatalog) and newest - now_ms() > SKEW_MS:
            raise NotReadyError(table_is_ahead(f"table {self._target.identifier}"))

    def _set_properties(self, transaction: Transaction) -> list[str]:
        current = transaction.table_metadata.properties
        properties = {**self._layout.properties, **self._marks()}
        put = {key: value for key, value in properties.items() if current.get(key) != value}
        ours = table_properties.set_for(self._claimant, current)
        gone = table_properties.dropped_by_spec(ours, properties) | self._claimant.spent(current)
        if put:
            transaction.set_properties(put)
        if gone:
            transaction.remove_properties(*gone)
        return [f"property {key} set" for key in sorted(put) if not key.startswith("firn.")] + [
            f"property {key} removed" for key in sorted(gone) if not key.startswith("firn.")
        ]


def _repartition(transaction: Transaction, layout: Layout) -> list[str]:
    if layout.partition is None:
        return []
    metadata = transaction.table_metadata
    change = evolution.partition_change(metadata.schema(), metadata.spec(), metadata.specs().values(), layout)
    if not change:
        return []
    with transaction.update_spec() as update:
        for name in change.remove:
            update.remove_field(name)
        for column, transform, name in change.add:
            update.add_field(column, transform, name)
    return [f"partition field {name} removed" for name in change.remove] + [
        f"partition field {name} added" for _, _, name in change.add
    ]


def _resort(transaction: Transaction, layout: Layout) -> list[str]:
    if layout.sort is None:
        return []
    metadata = transaction.table_metadata
    order = evolution.sort_order(metadata.schema(), layout)
    current = metadata.sort_order_by_id(metadata.default_sort_order_id)
    if (current.fields if current is not None else []) == order.fields:
        return []
    change = transaction.update_sort_order() if order.fields else _Unsort(transaction)
    with change as update:
        for field in order.fields:
            column = metadata.schema().find_column_name(field.source_id)
            add = update.asc if field.direction.value == "asc" else update.desc
            add(str(column), field.transform, field.null_order)
    return [f"sort order {', '.join(str(item.term) for item in layout.sort) or 'none'}"]


class _Unsort(UpdateSortOrder):
    """Removes the sort order. PyIceberg cannot do that for a table that was created with one, and never was unsorted."""

    def _commit(self) -> UpdatesAndRequirements:
        metadata = self._transaction.table_metadata
        known = metadata.sort_order_by_id(UNSORTED_SORT_ORDER_ID) is not None
        add = () if known else (AddSortOrderUpdate(sort_order=UNSORTED_SORT_ORDER),)
        unchanged = AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id)
        return (*add, SetDefaultSortOrderUpdate(sort_order_id=UNSORTED_SORT_ORDER_ID)), (unchanged,)


def _state(metadata: TableMetadata) -> TableState:
    return TableState(
        uuid=str(metadata.table_uuid),
        location=metadata.location,
        format_version=metadata.format_version,
        owner=metadata.properties.get(OWNER),
    )


def _digest(document: Mapping[str, Any]) -> bytes:
    """Return a digest of the metadata that `ensure` checks. Snapshots and offsets do not change it."""
    judged = {key: document.get(key) for key in _DIGESTED}
    judged["properties"] = {key: value for key, value in (judged["properties"] or {}).items() if not _moves(key)}
    return hashlib.blake2b(json.dumps(judged, sort_keys=True).encode(), digest_size=16).digest()


def _moves(key: str) -> bool:
    """Return whether ingestion changes a property with its commits. In a shared table, each topic has properties of its own."""
    return key in _MOVES or key.rpartition(".")[0] in _MOVES


def _table(catalog: SqlCatalog, key: TableKey, metadata: TableMetadata, place: str) -> Table:
    io = file_io.ObjectFileIO({**catalog.properties, **metadata.properties})
    return Table(identifier=key, metadata=metadata, metadata_location=place, io=io, catalog=catalog)
