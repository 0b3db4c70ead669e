"""Iceberg tables through the Java API: loaded, created, evolved to a contract, described for writers.

The operator creates and evolves tables of format 1 and 2 before the driver needs them. The driver does the same for a
table that is missing or behind its contract, and for tables of format 3, whose metadata only Java can write. Only
changes without loss are made: renames, new optional columns, wider types, required to optional, docs.
"""

import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import structlog
from py4j.protocol import Py4JJavaError

from firn.decoders import defaults
from firn.model.conditions import Reason
from firn.model.errors import ConflictError
from firn.model.jobs import Column, Evolution, IngestJob, RecordSchema, Rename, TableTarget
from firn.schemas import changes, other_clients, versions
from firn.schemas.other_clients import Followed
from firn.tables import evolution, renames, rows, table_properties, transforms, types
from firn.tables.ownership import Claimant, Ownership
from firn.tables.renames import Fields, FormerNames, Renaming
from firn_spark.jvm import elements, json_node, texts
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.columns import fields, followed, needed_ids
from firn_spark.tables.java_errors import JAVA_ERRORS, causes, java_class, translate, translate_change
from firn_spark.tables.vended import io_properties
from firn_spark.worker.data_files import TableSpec

log = structlog.get_logger()

Properties = Callable[[Mapping[str, str], Fields], Mapping[str, str]]
"""Returns the properties of a table that change, from its present ones and the fields that it gets."""
TOKEN_SECONDS = 30.0
"""Shortest time between two attempts to get another token from a catalog that does not accept the last one."""


def _no_more(properties: Mapping[str, str], fields: Fields) -> Mapping[str, str]:
    return {}


def _marks(claimant: Claimant, target: TableTarget) -> dict[str, str]:
    layout = table_properties.layout_set_by(target)
    return table_properties.marks(claimant, target.properties, layout, target.history)


def schema_json(columns: Sequence[Column]) -> str:
    """Return Iceberg's schema JSON of ``columns``, with field ids level by level (Iceberg spec, appendix C)."""
    ids = itertools.count(1)
    tops = [next(ids) for _ in columns]
    made = [
        {
            "id": number,
            "name": column.name,
            "required": column.required,
            "type": type_json(types.parse(column.type), ids),
            **({"doc": column.doc} if column.doc else {}),
            **_defaults(column),
        }
        for number, column in zip(tops, columns, strict=True)
    ]
    return json.dumps({"type": "struct", "schema-id": 0, "fields": made})


def _defaults(column: Column) -> dict[str, Any]:
    if column.default is None:
        return {}
    value = defaults.json_value(types.parse(column.type), column.default)
    return {"initial-default": value, "write-default": value}


def type_json(kind: types.Type, ids: Iterator[int]) -> Any:
    """Return Iceberg's JSON of a type; nested fields take their ids from ``ids``."""
    match kind:
        case types.ListOf(element):
            number = next(ids)
            return {"type": "list", "element-id": number, "element-required": False, "element": type_json(element, ids)}
        case types.MapOf(key, value):
            first, second = next(ids), next(ids)
            return {
                "type": "map",
                "key-id": first,
                "key": type_json(key, ids),
                "value-id": second,
                "value-required": False,
                "value": type_json(value, ids),
            }
        case types.Struct(fields):
            numbers = [next(ids) for _ in fields]
            return {
                "type": "struct",
                "fields": [
                    {"id": number, "name": name, "required": False, "type": type_json(member, ids)}
                    for number, (name, member) in zip(numbers, fields, strict=True)
                ],
            }
        case other:
            return str(other)


def table_spec(jvm: Any, table: Any) -> TableSpec:
    """Describe the current table for writers."""
    iceberg = jvm.org.apache.iceberg
    return TableSpec(
        schema=iceberg.SchemaParser.toJson(table.schema()),
        partition_spec=iceberg.PartitionSpecParser.toJson(table.spec()),
        sort_order=iceberg.SortOrderParser.toJson(table.sortOrder()),
        location=table.location(),
        properties=texts(table.properties()),
        io=io_properties(jvm, table.io(), str(table.location())),
    )


def data_file(jvm: Any, table: Any, descriptor: str) -> Any:
    """Return the Java data file of a writer's descriptor."""
    return jvm.org.apache.iceberg.ContentFileParser.fromJson(json_node(table, descriptor), table.specs())


@contextmanager
def staged(spark: Any, table: Any, tasks: Any) -> Iterator[Any]:
    """Give the rows of scan tasks as a frame of Spark. ``tasks`` is a list, of Java or of Python."""
    group = uuid.uuid4().hex
    iceberg = spark._jvm.org.apache.iceberg
    cache, task_sets = iceberg.spark.SparkTableCache.get(), iceberg.spark.ScanTaskSetManager.get()
    try:
        cache.add(group, table)
        task_sets.stageTasks(table, group, tasks)
        yield spark.read.format("iceberg").load(group)
    finally:
        cache.remove(group)
        task_sets.removeTasks(table, group)


class Tables:
    """The tables of an application's catalogs. Every method raises AccessDeniedError, UnavailableError, or what it
    names."""

    def __init__(self, catalogs: Catalogs, cluster: str = "", former_clusters: Sequence[str] = ()) -> None:
        """Use ``catalogs`` for an installation in the Kubernetes cluster ``cluster``, which may take tables of
        ``former_clusters``."""
        self._catalogs = catalogs
        self._cluster, self._former_clusters = cluster, tuple(former_clusters)
        self.jvm = catalogs.jvm
        self._namespaces: dict[str, Any] = {}

    def load(self, catalog: str, namespace: str, name: str, *, rare: bool = False) -> Any | None:
        """Return the Java table; None if it does not exist.

        ``rare``: the table is usually missing. The catalog is asked for its existence first, because a Java exception takes
        sixty requests to the JVM.
        """
        for attempt in range(2):
            opened = None
            try:
                opened = self._catalogs.get(catalog)
                identifier = self._identifier(namespace, name)
                return opened.loadTable(identifier) if not rare or opened.tableExists(identifier) else None
            except JAVA_ERRORS as error:
                if java_class(error).endswith(("NoSuchTableException", "NoSuchNamespaceException")):
                    return None
                if opened is not None and self._lacks(opened, namespace, name):
                    return None
                chain = causes(error)
                expired = any(cause.token_expired for cause in chain)
                if opened is not None and (expired or any(cause.disconnected for cause in chain)):
                    # Iceberg keeps a connection that it could not reopen, and a token that it could not renew. A new catalog gets new ones.
                    reopens = self._catalogs.forget(catalog, opened, TOKEN_SECONDS if expired else 0.0)
                    if attempt == 0 and expired and reopens:
                        continue
                raise translate(error, f"table {catalog}.{namespace}.{name}") from error
        raise AssertionError("the last attempt returns or raises")

    def _lacks(self, catalog: Any, namespace: str, name: str) -> bool:
        """Return whether a table with the name of a metadata table, such as ``history``, is known to be missing.

        For a missing ``shop.history``, Iceberg's REST client asks for the history of a table ``shop`` without namespace
        (RESTSessionCatalog.loadTable). Servers reject that request in different ways.
        """
        iceberg = self.jvm.org.apache.iceberg
        try:
            if getattr(iceberg.MetadataTableType, "from")(name) is None:
                return False
            place = self._namespace(namespace)
            if not catalog.namespaceExists(place):
                return True
            return all(str(table.name()) != name for table in catalog.listTables(place))
        except JAVA_ERRORS:
            return False

    def ensure(self, job: IngestJob, more: Properties | None = None) -> Any:
        """Return the topic's table, created or evolved to its contract if needed, and with ``more`` properties.

        Raises ConflictError: SchemaIncompatible if a column's type cannot become the contract's, ResourceConflict if the
        table belongs to another control plane.
        """
        target = job.table
        table = self.load(target.catalog, target.namespace, target.name)
        columns = rows.columns_of_table(job.record_schema, target)
        of_fields = {each.column: each.field for each in job.record_schema.versions}
        if table is None:
            terms = (target.partition_by or (), target.sort_by or ())
            first = [column for column in columns if column.name not in of_fields]
            table = self.create(target, target.name, first, *terms, self.claimant(job))
            policy = job.record_schema.evolution
            if not of_fields and more is None and "Propose" not in (policy.partition, policy.sort):
                return table
        known = self.follow(table, job)
        try:
            wanted = rows.column_renames(job.record_schema, job.record_schema.renames)
            change = self._rename(table, known, wanted)
            columns = renames.renamed_columns(columns, change.following)
            columns = other_clients.without(columns, change.fields, known.dropped)
            self._evolve(table, columns, target, of_fields, more or _no_more)
            if max(target.format_version, table.operations().current().formatVersion()) == 3:
                named = renames.named_target(target, change.following)
                self._evolve_v3(table, named, self.claimant(job), job.record_schema.evolution)
        except JAVA_ERRORS as error:
            raise translate_change(error, target) from error
        return table

    def follow(self, table: Any, job: IngestJob) -> Followed:
        """Keep the earlier names of columns that other clients have renamed, and the names of those that they have dropped.

        Returns the names of the table. Raises ConflictError: SchemaIncompatible if they are ambiguous, ResourceConflict if the
        table belongs to another control plane.
        """
        try:
            properties = texts(table.properties())
            self.claimant(job).check(job.table.identifier, Ownership.of(properties))
            known = self.followed(table, job)
            changed = known.properties(properties)
            if known.texts:
                changed[other_clients.SCHEMA_ID] = str(table.schema().schemaId())
                log.warning("another client changed columns", table=job.table.identifier, changes=known.texts)
            if changed:
                _set(table, changed)
            # Before the columns of earlier schemas of a registry count as wanted. Other topics may write those of a shared table.
            if not job.table.shared and self._drop(table, job.record_schema):
                known = self.followed(table, job)
        except JAVA_ERRORS as error:
            raise translate(error, f"table {job.table.identifier}") from error
        return known

    def followed(self, table: Any, job: IngestJob) -> Followed:
        """Return the names of the table after changes of other clients, without a change. Raises as `follow`."""
        return followed(self.jvm, table, job)

    def create(
        self,
        target: TableTarget,
        name: str,
        columns: Sequence[Column],
        partition_by: Sequence[str],
        sort_by: Sequence[str],
        claimant: Claimant,
    ) -> Any:
        """Create the table ``name`` beside ``target`` for the resource ``claimant``.

        Returns the existing table if another writer created it first.
        """
        iceberg = self.jvm.org.apache.iceberg
        try:
            catalog = self._catalogs.get(target.catalog)
            namespace = self._namespace(target.namespace)
            if not catalog.namespaceExists(namespace):
                try:
                    catalog.createNamespace(namespace)
                except Py4JJavaError:
                    # Several tables are created at once. If another one created the namespace first, each database reports that differently.
                    if not catalog.namespaceExists(namespace):
                        raise
            schema = iceberg.SchemaParser.fromJson(schema_json(columns))
            spec = iceberg.PartitionSpec.builderFor(schema)
            for text in partition_by:
                _partition(spec, transforms.parse(text))
            order = iceberg.SortOrder.builderFor(schema)
            for text in sort_by:
                self._sort(order, transforms.parse_sort(text))
            builder = (
                catalog.buildTable(self._identifier(target.namespace, name), schema)
                .withPartitionSpec(spec.build())
                .withSortOrder(order.build())
            )
            properties = {
                "format-version": str(target.format_version),
                **table_properties.created_with(columns, self._catalogs.has_own_references(target.catalog)),
                **target.properties,
                **_marks(claimant, target),
                other_clients.SCHEMA_ID: "0",
            }
            for key, value in properties.items():
                builder.withProperty(key, value)
            return builder.create()
        except JAVA_ERRORS as error:
            if java_class(error).endswith("AlreadyExistsException"):
                existing = self.load(target.catalog, target.namespace, name)
                if existing is not None:
                    return existing
            raise translate_change(error, target, name) from error

    def claimant(self, job: IngestJob) -> Claimant:
        """Return the resource of a contract, as the owner of its tables."""
        return Claimant(job.uid, job.namespace, job.name, self._cluster, self._former_clusters, shared=job.table.shared)

    def columns(self, table: Any) -> dict[str, str]:
        """Return the types of the table's columns, in the notation of `firn.tables.types`."""
        return {field["name"]: types.of_json(field["type"]) for field in fields(self.jvm, table.schema())}

    def names(self, table: Any) -> tuple[Fields, FormerNames]:
        """Return the columns of the table in Iceberg's JSON, and their earlier names by field id."""
        return fields(self.jvm, table.schema()), renames.read_former_names(texts(table.properties()))

    def following(self, table: Any) -> tuple[Rename, ...]:
        """Return the renames from all earlier names of the table's columns to the present ones."""
        if renames.FORMER_NAMES not in texts(table.properties()):
            return ()
        return renames.planned(*self.names(table), ()).following

    def spec(self, table: Any) -> TableSpec:
        """Describe the current table for writers."""
        return table_spec(self.jvm, table)

    def data_file(self, table: Any, descriptor: str) -> Any:
        """Return the Java data file of a writer's descriptor."""
        return data_file(self.jvm, table, descriptor)

    def _rename(self, table: Any, known: Followed, wanted: Sequence[Rename]) -> Renaming:
        """Rename columns in one commit with the property that keeps their earlier names. Return all names that records may have."""
        wanted = [each for each in wanted if not other_clients.is_dropped(each.new_path, known.fields, known.dropped)]
        change = renames.planned(known.fields, known.former, wanted)
        if change.steps:
            transaction = table.newTransaction()
            columns = transaction.updateSchema()
            for path, name in change.steps:
                columns.renameColumn(path, name)
            columns.commit()
            number = str(transaction.table().schema().schemaId())
            _set(transaction, {**change.properties, other_clients.SCHEMA_ID: number})
            transaction.commitTransaction()
            table.refresh()
        elif change.properties:
            _set(table, change.properties)
        return change

    def _evolve(
        self,
        table: Any,
        columns: Sequence[Column],
        target: TableTarget,
        of_fields: Mapping[str, str],
        more: Properties,
    ) -> None:
        """Add and change columns, and set ``more`` properties. ``of_fields`` has the fields of columns that are versions."""
        present = {field["name"]: field for field in fields(self.jvm, table.schema())}
        if table.operations().current().formatVersion() < target.format_version == 3:
            # The earlier format version has neither the types nor the defaults of new columns.
            _set(table, {"format-version": "3"})
        changed = _changed(columns, present, target)
        if changed:
            # Existing rows have no value for a new column, so it cannot be required.
            wanted_columns = [
                column if column.name in present else column.model_copy(update={"required": False})
                for column in changed
            ]
            made = {column.name: of_fields[column.name] for column in changed if column.name in of_fields}
            # In one commit, because another client may rename a new column at once, and a driver that finds the column without its
            # field would make another one.
            transaction = table.newTransaction()
            self._change(transaction.updateSchema(), wanted_columns, present)
            after = transaction.table().schema()
            marks = {other_clients.SCHEMA_ID: str(after.schemaId())}
            if made:
                marks |= versions.properties(texts(table.properties()), fields(self.jvm, after), made)
            _set(transaction, {**marks, **more(texts(table.properties()), fields(self.jvm, after))})
            transaction.commitTransaction()
            table.refresh()
            return
        others = dict(more(texts(table.properties()), tuple(present.values())))
        if self._adopts(table, present, columns):
            # Rows get values in these columns from now on. Without the new id, a later rename would not be followed.
            others[other_clients.SCHEMA_ID] = str(table.schema().schemaId())
        if others:
            _set(table, others)

    def _adopts(self, table: Any, present: Mapping[str, Any], columns: Sequence[Column]) -> bool:
        """Return whether another client has added one of these columns, or a part of it, since Firn last knew the schema."""
        known = texts(table.properties()).get(other_clients.SCHEMA_ID, "")
        if not known.isdecimal() or int(known) == int(table.schema().schemaId()):
            return False
        earlier = table.schemas().get(int(known))
        if earlier is None:
            return False
        ids = {number for field in fields(self.jvm, earlier) for number in renames.ids(field)}
        wanted = (present[column.name] for column in columns if column.name in present)
        return any(not ids.issuperset(renames.ids(field)) for field in wanted)

    def _change(self, update: Any, columns: Sequence[Column], present: Mapping[str, Any]) -> None:
        """Add columns, with their defaults, or make them wider, optional or give them another default. Commit it."""
        parser = self.jvm.org.apache.iceberg.SchemaParser
        others = [column for column in columns if column.default is None or column.name in present]
        if others:
            update.unionByNameWith(parser.fromJson(schema_json([_without_default(each) for each in others])))
        for column in columns:
            if column.default is None:
                continue
            field = parser.fromJson(schema_json([column])).findField(1)
            if column.name not in present:
                update.addColumn(column.name, field.type(), column.doc, field.initialDefaultLiteral())
            else:
                update.updateColumnDefault(column.name, field.writeDefaultLiteral())
        update.commit()

    def _drop(self, table: Any, schema: RecordSchema) -> bool:
        """Drop the columns that the contract no longer has, if they are approved. Data files keep them. Return whether there were any."""
        if not schema.gone or not schema.evolution.approved:
            return False
        present = fields(self.jvm, table.schema())
        names = changes.drops(schema, present, needed_ids(table))
        number = table.operations().current().currentSchemaId()
        if not names or changes.proposed_drops(names, schema.evolution, str(table.uuid()), number).blocked:
            return False
        transaction = table.newTransaction()
        columns = transaction.updateSchema()
        for name in names:
            columns.deleteColumn(name)
        columns.commit()
        properties = texts(table.properties())
        # Records of earlier schemas may have the field under an earlier name.
        former = renames.read_former_names(properties)
        earlier = [name for each in present if each["name"] in names for name in former.get(each["id"], ())]
        removed = dict.fromkeys((*other_clients.read_removed(properties), *names, *earlier))
        number = transaction.table().schema().schemaId()
        marks = {other_clients.REMOVED: json.dumps(list(removed)), other_clients.SCHEMA_ID: str(number)}
        _set(transaction, marks)
        transaction.commitTransaction()
        table.refresh()
        log.info("dropped columns", table=str(table.name()), columns=names)
        return True

    def _evolve_v3(self, table: Any, target: TableTarget, claimant: Claimant, policy: Evolution) -> None:
        """Evolve partitioning, sorting, properties and format of a table that the operator's library cannot write."""
        properties = texts(table.properties())
        set_by_us = table_properties.set_for(claimant, properties)
        # The operator writes no contract with a change that waits for an approval. If the contract is the same as before, another
        # client has changed the table.
        applied = json.dumps([target.partition_by, target.sort_by, policy.approved])
        held = {"Refuse", "Propose"} if properties.get(table_properties.APPLIED) == applied else {"Refuse"}
        kept = {"partition_by": None} if policy.partition in held else {}
        kept |= {"sort_by": None} if policy.sort in held else {}
        self._lay_out(table, target.model_copy(update=kept), {} if kept else set_by_us)
        ours = {
            **target.properties,
            **_marks(claimant, target),
        }
        if "Propose" in (policy.partition, policy.sort) and not claimant.shared:
            ours[table_properties.APPLIED] = applied
        put = {key: value for key, value in ours.items() if properties.get(key) != value}
        gone = table_properties.dropped_by_spec(set_by_us, ours) | claimant.spent(properties)
        if table.operations().current().formatVersion() < target.format_version:
            put["format-version"] = str(target.format_version)
        if put or gone:
            update = table.updateProperties()
            for key, value in put.items():
                update.set(key, value)
            for key in gone:
                update.remove(key)
            update.commit()

    def _lay_out(self, table: Any, target: TableTarget, properties: Mapping[str, str]) -> None:
        """Evolve partitioning and sort order, before the properties that list what the spec sets.

        ``properties``: `table_properties.set_for` the resource.
        """
        partition_by = table_properties.wanted_terms(table_properties.PARTITION_BY, target.partition_by, properties)
        wanted = None if partition_by is None else [str(transforms.parse(text)) for text in partition_by]
        current = partition_terms(table)
        if wanted is not None and current != wanted:
            update = table.updateSpec()
            for text in current:
                if text not in wanted:
                    update.removeField(self._term(transforms.parse(text)))
            for text in wanted:
                if text not in current:
                    update.addField(self._term(transforms.parse(text)))
            update.commit()
        sort_by = table_properties.wanted_terms(table_properties.SORT_BY, target.sort_by, properties)
        if sort_by is not None and sort_terms(table) != [str(transforms.parse_sort(text)) for text in sort_by]:
            order = table.replaceSortOrder()
            for text in sort_by:
                self._sort(order, transforms.parse_sort(text))
            order.commit()

    def _type(self, column: Column) -> Any:
        text = schema_json([column])
        return self.jvm.org.apache.iceberg.SchemaParser.fromJson(text).findField(1).type()

    def _term(self, term: transforms.PartitionTerm) -> Any:
        expressions = self.jvm.org.apache.iceberg.expressions.Expressions
        match term.transform:
            case "identity":
                return expressions.ref(term.column)
            case "bucket":
                return expressions.bucket(term.column, term.argument)
            case "truncate":
                return expressions.truncate(term.column, term.argument)
            case other:
                return getattr(expressions, other)(term.column)

    def _sort(self, order: Any, term: transforms.SortTerm) -> None:
        nulls = self.jvm.org.apache.iceberg.NullOrder.valueOf("NULLS_FIRST" if term.nulls_first else "NULLS_LAST")
        (order.desc if term.descending else order.asc)(self._term(term.term), nulls)

    def _identifier(self, namespace: str, name: str) -> Any:
        return self.jvm.org.apache.iceberg.catalog.TableIdentifier.of(self._namespace(namespace), name)

    def _namespace(self, name: str) -> Any:
        if name not in self._namespaces:
            array = self.jvm.java.lang.reflect.Array.newInstance(
                self.jvm.java.lang.Class.forName("java.lang.String"), 1
            )
            array[0] = name
            self._namespaces[name] = self.jvm.org.apache.iceberg.catalog.Namespace.of(array)
        return self._namespaces[name]


def _changed(columns: Sequence[Column], present: Mapping[str, Mapping[str, Any]], target: TableTarget) -> list[Column]:
    """Return the columns that a table lacks or has to change. ``present`` has its fields by name.

    Raises ConflictError: SchemaIncompatible if a column cannot change, or if values would lack a required one.
    """
    changed: list[Column] = []
    for column in columns:
        field = present.get(column.name)
        if field is None:
            changed.append(column)
            continue
        current, wanted = types.of_table(types.of_json(field["type"])), types.parse(column.type)
        if not evolution.can_become(wanted, current):
            if not evolution.can_become(current, wanted):
                raise ConflictError(
                    f"table {target.identifier}: column {column.name} is {current}, the schema wants {wanted}; "
                    "set the table's type in the schema, or create this IcebergTopic again with another table.name",
                    reason=Reason.SCHEMA_INCOMPATIBLE,
                )
            changed.append(column)
        elif (field["required"] and not column.required) or (
            column.default is not None
            and not defaults.is_stored(types.parse(column.type), column.default, field.get("write-default"))
        ):
            changed.append(column)
    missing = {name for name, field in present.items() if field["required"] and field.get("write-default") is None}
    missing -= {column.name for column in columns}
    for column in columns:
        if column.name in present:
            missing |= set(_unfilled(column.name, present[column.name]["type"], types.parse(column.type)))
    if missing:
        raise ConflictError(
            f"table {target.identifier}: required column {', '.join(sorted(missing))} is not in the schema; "
            "add it to the schema, or create this IcebergTopic again with another table.name",
            reason=Reason.SCHEMA_INCOMPATIBLE,
        )
    return changed


def _unfilled(path: str, current: Any, wanted: types.Type) -> Iterator[str]:
    """Yield the paths of required members without a default that values of the type ``wanted`` lack. ``current`` is Iceberg's JSON."""
    match wanted:
        case types.Struct(members):
            kinds = dict(members)
            for member in current["fields"]:
                name = member["name"]
                if name in kinds:
                    yield from _unfilled(f"{path}.{name}", member["type"], kinds[name])
                elif member["required"] and member.get("write-default") is None:
                    yield f"{path}.{name}"
        case types.ListOf(element):
            yield from _unfilled(f"{path}.element", current["element"], element)
        case types.MapOf(_, value):
            yield from _unfilled(f"{path}.value", current["value"], value)


def _without_default(column: Column) -> Column:
    return column.model_copy(update={"default": None})


def _set(table: Any, properties: Mapping[str, str]) -> None:
    """Set properties of a table or a transaction in one commit."""
    update = table.updateProperties()
    for key, value in properties.items():
        update.set(key, value)
    update.commit()


def _partition(spec: Any, term: transforms.PartitionTerm) -> None:
    match term.transform:
        case "identity":
            spec.identity(term.column)
        case "bucket" | "truncate":
            getattr(spec, term.transform)(term.column, term.argument)
        case "void":
            spec.alwaysNull(term.column)
        case other:
            getattr(spec, other)(term.column)


def partition_terms(table: Any) -> list[str]:
    """Return the table's current partition fields as users write them, without dropped fields (void)."""
    schema = table.schema()
    terms = []
    for field in elements(table.spec().fields().iterator()):
        text, column = field.transform().toString(), schema.findColumnName(field.sourceId())
        if text != "void":
            terms.append(str(transforms.parse(_term_text(text, column))))
    return terms


def sort_terms(table: Any) -> list[str]:
    """Return the table's sort order, each term in full."""
    schema = table.schema()
    return [
        f"{transforms.parse(_term_text(field.transform().toString(), schema.findColumnName(field.sourceId())))} "
        f"{field.direction().toString().lower()} {field.nullOrder().toString().lower()}"
        for field in elements(table.sortOrder().fields().iterator())
    ]


def _term_text(transform: str, column: str) -> str:
    name, _, argument = transform.partition("[")
    return f"{name}({argument.rstrip(']')}, {column})" if argument else f"{name}({column})"


def quoted(*parts: str) -> str:
    """Quote an identifier for Spark's parser, which rejects unquoted names with hyphens or only digits."""
    return ".".join(f"`{part.replace('`', '``')}`" for part in parts)
