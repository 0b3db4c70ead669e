"""Iceberg's Java API and PySpark's session as the driver uses them, on a `tests.fakes.lake.memory.Lake`.

Only what `firn_spark.tables` calls is here. `Gateway` makes every request of a process, so that a test can fail it.
"""

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar

from py4j.protocol import Py4JJavaError

from firn.model.names import HISTORY_TAG
from firn_spark.jvm import JSON, Json
from firn_spark.tables.dead_letters import IDENTITY
from tests.fakes.lake.memory import MAIN, SKEW_MS, Lake, Metadata, RefusedError, Snapshot

T = TypeVar("T")


class JavaError(Py4JJavaError):  # type: ignore[misc]
    """An exception of Java's side."""

    def __init__(self, name: str, message: str) -> None:
        thrown = SimpleNamespace(
            _target_id="o0",
            getClass=lambda: SimpleNamespace(getName=lambda: name),
            getMessage=lambda: message,
            getCause=lambda: None,
            getSQLState=lambda: "",
        )
        super().__init__("An error occurred while calling a method", thrown)
        self._text = f"{name}: {message}"

    def __str__(self) -> str:
        return self._text


def error(name: str, message: str) -> JavaError:
    """Return an exception of Iceberg; ``name`` without its package."""
    package = "" if "." in name else "org.apache.iceberg.exceptions."
    return JavaError(package + name, message)


class _Client:
    """The client of a gateway to a JVM."""


CLIENT = _Client()


class JavaMap(dict[str, str]):
    """``java.util.Map``."""

    _gateway_client = CLIENT


JSON[CLIENT] = Json(
    SimpleNamespace(
        readTree=json.loads, writeValueAsString=json.dumps, readValue=lambda text, _: JavaMap(json.loads(text))
    ),
    JavaMap,
)


class Gateway(Protocol):
    """The connection of a process to catalog and store."""

    def request(self, name: str, effect: Callable[[], T]) -> T:
        """Make a request: return the result of ``effect``, or fail in any way before or after it."""
        ...

    def now_ms(self) -> int:
        """Return the wall clock of the process in milliseconds."""
        ...


class DirectGateway:
    """Requests that always work."""

    def request(self, name: str, effect: Callable[[], T]) -> T:
        return effect()

    def now_ms(self) -> int:
        return int(time.time() * 1000)


@dataclass(frozen=True)
class DataFile:
    """A data file of a writer's descriptor."""

    path: str

    def location(self) -> str:
        return self.path

    def specId(self) -> int:
        return 0


class JavaSnapshot:
    """``org.apache.iceberg.Snapshot``."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def snapshotId(self) -> int:
        return self.snapshot.id

    def parentId(self) -> int | None:
        return self.snapshot.parent

    def timestampMillis(self) -> int:
        return self.snapshot.at_ms

    def operation(self) -> str:
        return self.snapshot.operation

    def summary(self) -> JavaMap:
        return JavaMap(self.snapshot.properties)


class JavaMetadata:
    """``org.apache.iceberg.TableMetadata``."""

    _gateway_client = CLIENT

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata

    def properties(self) -> JavaMap:
        return JavaMap(self.metadata.properties)

    def currentSchemaId(self) -> int:
        return self.metadata.schema_id

    def defaultSpecId(self) -> int:
        return 0

    defaultSortOrderId = defaultSpecId

    def snapshots(self) -> list[JavaSnapshot]:
        return [JavaSnapshot(each) for each in self.metadata.all_snapshots]

    def snapshot(self, id: int) -> JavaSnapshot | None:
        found = self.metadata.find(id)
        return None if found is None else JavaSnapshot(found)

    def currentSnapshot(self) -> JavaSnapshot | None:
        head = self.metadata.head
        return None if head is None else JavaSnapshot(head)

    def refs(self) -> dict[str, Any]:
        return {
            name: SimpleNamespace(snapshotId=lambda id=id: id, isBranch=lambda name=name: name != HISTORY_TAG)
            for name, id in self.metadata.references.items()
        }

    def ref(self, name: str) -> Any | None:
        return self.refs().get(name)

    def statisticsFiles(self) -> list[Any]:
        return []

    partitionStatisticsFiles = statisticsFiles

    def formatVersion(self) -> int:
        return self.metadata.format

    def location(self) -> str:
        return self.metadata.location

    def metadataFileLocation(self) -> str:
        return f"{self.metadata.location}/metadata"

    def lastUpdatedMillis(self) -> int:
        return max((each.at_ms for each in self.metadata.all_snapshots), default=0)


class _Builder:
    """``org.apache.iceberg.TableMetadata.Builder``."""

    def __init__(self, base: JavaMetadata, gateway: Gateway) -> None:
        self._metadata = base.metadata
        self._base = base
        self._time_ms = gateway.now_ms()
        self._moved: set[str] = set()

    def withMetadataLocation(self, location: None) -> "_Builder":
        self._time_ms = self._base.lastUpdatedMillis()
        return self

    def setPreviousFileLocation(self, location: str) -> "_Builder":
        return self

    def setBranchSnapshot(self, snapshot: JavaSnapshot | int, branch: str) -> "_Builder":
        if isinstance(snapshot, int):
            return self.setRef(branch, snapshot)
        self._metadata = _checked(lambda: self._metadata.with_snapshot(snapshot.snapshot, branch))
        self._moved.add(branch)
        return self

    def removeRef(self, name: str) -> "_Builder":
        references = {other: id for other, id in self._metadata.references.items() if other != name}
        self._metadata = replace(self._metadata, references=references)
        return self

    def removeProperties(self, gone: Iterable[str]) -> "_Builder":
        left = {key: value for key, value in self._metadata.properties.items() if key not in gone}
        self._metadata = replace(self._metadata, properties=left)
        return self

    def setProperties(self, properties: Mapping[str, str]) -> "_Builder":
        self._metadata = replace(self._metadata, properties={**self._metadata.properties, **properties})
        return self

    def removeSnapshots(self, gone: Iterable[JavaSnapshot]) -> "_Builder":
        ids = [each.snapshot.id for each in gone]
        # Iceberg removes references to removed snapshots with them.
        references = {name: id for name, id in self._metadata.references.items() if id not in ids}
        self._metadata = _checked(lambda: replace(self._metadata, references=references).without(ids))
        return self

    def setRef(self, name: str, id: int) -> "_Builder":
        if self._metadata.references.get(name) != id:
            self._moved.add(name)
        self._metadata = replace(self._metadata, references={**self._metadata.references, name: id})
        return self

    def build(self) -> JavaMetadata:
        head = self._metadata.head
        if head is not None and self._time_ms < head.at_ms - SKEW_MS:
            raise error(
                "java.lang.IllegalArgumentException", "Invalid update timestamp: before last snapshot log entry"
            )
        return JavaMetadata(replace(self._metadata, moved=frozenset(self._moved)))


class _SnapshotParser:
    """``org.apache.iceberg.SnapshotParser``."""

    @staticmethod
    def toJson(snapshot: JavaSnapshot) -> str:
        fields = asdict(snapshot.snapshot)
        moved = {"timestamp-ms": fields.pop("at_ms"), "summary": fields.pop("properties")}
        return json.dumps({**fields, **moved})

    @staticmethod
    def fromJson(text: str) -> JavaSnapshot:
        fields = json.loads(text)
        at_ms, files, added = fields.pop("timestamp-ms"), fields.pop("files"), fields.pop("added")
        properties = fields.pop("summary")
        return JavaSnapshot(
            Snapshot(**fields, at_ms=at_ms, properties=properties, files=tuple(files), added=tuple(added))
        )


class _Operations:
    """``org.apache.iceberg.TableOperations``: the metadata that the process has in memory."""

    def __init__(self, session: "Session", name: str, metadata: Metadata) -> None:
        self._session = session
        self._name = name
        self._java = JavaMetadata(metadata)
        self._outdated = False

    def current(self) -> JavaMetadata:
        return self.refresh() if self._outdated else self._java

    def refresh(self) -> JavaMetadata:
        metadata = self._session.read(self._name)
        if metadata.uuid != self._java.metadata.uuid:
            raise error("java.lang.IllegalStateException", f"Table UUID does not match: {metadata.uuid}")
        if metadata is not self._java.metadata:
            self._java = JavaMetadata(metadata)
        self._outdated = False
        return self._java

    def commit(self, base: JavaMetadata, updated: JavaMetadata) -> None:
        if base is not self._java and self._session.lake.kind == "sql":
            raise error("CommitFailedException", "Cannot commit: stale table metadata")
        self._session.commit(self._name, base.metadata, updated.metadata)
        self._outdated = True


class _Append:
    """``org.apache.iceberg.AppendFiles``."""

    def __init__(self, table: "JavaTable") -> None:
        self._table = table
        self._files: list[str] = []
        self._values: dict[str, str] = {}
        self._branch = MAIN

    def toBranch(self, branch: str) -> "_Append":
        self._branch = branch
        return self

    def appendFile(self, file: DataFile) -> None:
        self._files.append(file.path)

    def set(self, key: str, value: str) -> "_Append":
        self._values[key] = value
        return self

    def apply(self) -> JavaSnapshot:
        session = self._table.session
        metadata = self._table.operations().refresh().metadata
        head = metadata.find(metadata.references.get(self._branch)) or metadata.head
        before = head.files if head is not None else ()
        files = (*before, *self._files)
        session.gateway.request("store.manifests", lambda: None)
        # A reader of metadata counts records without the files.
        added, total = (sum(len(session.lake.objects.get(path, ())) for path in some) for some in (self._files, files))
        return JavaSnapshot(
            Snapshot(
                session.lake.number(),
                head.id if head is not None else None,
                session.gateway.now_ms(),
                "append",
                {**self._values, "added-records": str(added), "total-records": str(total)},
                files,
                tuple(self._files),
            )
        )

    def commit(self) -> None:
        snapshot = self.apply()
        base = self._table.operations().current()
        builder = _Builder(base, self._table.session.gateway).setBranchSnapshot(snapshot, MAIN)
        self._table.operations().commit(base, builder.build())


class JavaTable:
    """``org.apache.iceberg.Table``."""

    _gateway_client = CLIENT

    def __init__(self, session: "Session", name: str, metadata: Metadata) -> None:
        self.session = session
        self._name = name
        self._operations = _Operations(session, name, metadata)

    def _metadata(self) -> Metadata:
        return self._operations.current().metadata

    def name(self) -> str:
        return f"{self.session.catalog}.{self._name}"

    def uuid(self) -> str:
        return self._metadata().uuid

    def location(self) -> str:
        return self._metadata().location

    def refresh(self) -> None:
        self._operations.refresh()

    def operations(self) -> _Operations:
        return self._operations

    def properties(self) -> JavaMap:
        return self._operations.current().properties()

    def snapshots(self) -> list[JavaSnapshot]:
        return self._operations.current().snapshots()

    def snapshot(self, id: int | str) -> JavaSnapshot | None:
        metadata = self._metadata()
        found = metadata.find(metadata.references.get(id) if isinstance(id, str) else id)
        return None if found is None else JavaSnapshot(found)

    def currentSnapshot(self) -> JavaSnapshot | None:
        return self._operations.current().currentSnapshot()

    def isAncestor(self, id: int, ancestor: int) -> bool:
        found = self._metadata().find(id)
        while found is not None and found.id != ancestor:
            found = self._metadata().find(found.parent)
        return found is not None

    def newAppend(self) -> _Append:
        return _Append(self)

    def schema(self) -> Any:
        metadata = self._metadata()
        return SimpleNamespace(schemaId=lambda: metadata.schema_id, json=metadata.schema)

    def schemas(self) -> Any:
        metadata = self._metadata()
        return {metadata.schema_id: self.schema()}

    def spec(self) -> Any:
        return SimpleNamespace(specId=lambda: 0, fields=list, json="{}")

    def specs(self) -> Any:
        return {}

    def sortOrder(self) -> Any:
        return SimpleNamespace(orderId=lambda: 0, fields=list, json="{}")

    def io(self) -> Any:
        def delete(path: str) -> None:
            self.session.gateway.request("store.delete", lambda: self.session.lake.objects.pop(path, None))

        return SimpleNamespace(properties=JavaMap, deleteFile=delete)

    def newTransaction(self) -> "_Transaction":
        return _Transaction(self)


class _Transaction:
    """``org.apache.iceberg.Transaction``: changes of schema and properties in one commit."""

    def __init__(self, table: JavaTable) -> None:
        self._table = table
        self._base = table.operations().current()
        self._metadata = self._base.metadata

    def updateSchema(self) -> Any:
        added: list[Any] = []

        def commit() -> None:
            for schema in added:
                self._union(schema.json)

        return SimpleNamespace(unionByNameWith=added.append, commit=commit)

    def updateProperties(self) -> Any:
        properties = dict(self._metadata.properties)

        def commit() -> None:
            self._metadata = replace(self._metadata, properties=properties)

        return SimpleNamespace(set=properties.__setitem__, commit=commit)

    def table(self) -> Any:
        metadata = self._metadata
        schema = SimpleNamespace(schemaId=lambda: metadata.schema_id, json=metadata.schema)
        return SimpleNamespace(schema=lambda: schema)

    def commitTransaction(self) -> None:
        self._table.operations().commit(self._base, JavaMetadata(self._metadata))

    def _union(self, text: str) -> None:
        known = self._metadata
        present, added = json.loads(known.schema), json.loads(text)
        fields = {item["name"]: item for item in present["fields"]}
        for item in added["fields"]:
            same = fields.get(item["name"])
            fresh = {"id": 1000 * (known.schema_id + 1) + item["id"]}
            fields[item["name"]] = {**item, **({"id": same["id"]} if same is not None else fresh)}
        schema = json.dumps({**present, "fields": list(fields.values())})
        self._metadata = replace(known, schema=schema, schema_id=known.schema_id + 1)


class Session:
    """An open ``org.apache.iceberg.catalog.Catalog``."""

    def __init__(self, lake: Lake, gateway: Gateway, catalog: str) -> None:
        self.lake = lake
        self.gateway = gateway
        self.catalog = catalog
        self.token = 0
        """Set by the gateway's owner: a catalog may stop to accept it."""

    def read(self, name: str) -> Metadata:
        """Read the newest metadata of a table."""
        return self._call("catalog.load", lambda: self._present(name))

    def commit(self, name: str, base: Metadata, updated: Metadata) -> None:
        """Replace metadata."""
        self._call("catalog.commit", lambda: self.lake.commit(name, base, updated))

    def loadTable(self, name: str) -> JavaTable:
        return JavaTable(self, name, self.read(name))

    def tableExists(self, name: str) -> bool:
        return self._call("catalog.load", lambda: name in self.lake.tables)

    def namespaceExists(self, name: str) -> bool:
        return True

    def buildTable(self, name: str, schema: Any) -> Any:
        properties: dict[str, str] = {}

        def create() -> JavaTable:
            version = int(properties.pop("format-version", 2))
            made = self._call("catalog.create", lambda: self.lake.create(name, schema.json, properties, version))
            return JavaTable(self, name, made)

        builder = SimpleNamespace(create=create, withProperty=properties.__setitem__)
        builder.withPartitionSpec = builder.withSortOrder = lambda _: builder
        return builder

    def close(self) -> None:
        """Close the catalog."""

    def _present(self, name: str) -> Metadata:
        if name not in self.lake.tables:
            raise error("NoSuchTableException", f"Table does not exist: {name}")
        return self.lake.tables[name]

    def _call(self, name: str, effect: Callable[[], T]) -> T:
        return self.gateway.request(name, lambda: _checked(effect))


def _checked(effect: Callable[[], T]) -> T:
    try:
        return effect()
    except RefusedError as refusal:
        raise JavaError(refusal.kind, str(refusal)) from refusal


class _Changes:
    """``org.apache.iceberg.SnapshotChanges`` and its builder."""

    def snapshot(self, snapshot: JavaSnapshot) -> "_Changes":
        self._added = snapshot.snapshot.added
        return self

    def build(self) -> "_Changes":
        return self

    def addedDataFiles(self) -> Any:
        return SimpleNamespace(iterator=lambda: map(DataFile, self._added))


class _List(list[Any]):
    """``java.util.ArrayList``."""

    def add(self, item: Any) -> None:
        self.append(item)


class _Set(set[Any]):
    """``java.util.HashSet``."""


def spark(lake: Lake, gateway: Gateway) -> Any:
    """Return a Spark session whose JVM has Iceberg's classes."""

    def open_catalog(name: str, properties: Mapping[str, str], hadoop: object) -> Session:
        return gateway.request("catalog.open", lambda: Session(lake, gateway, name))

    def schema(text: str) -> Any:
        return SimpleNamespace(json=text)

    def no_terms(_: object) -> Any:
        return SimpleNamespace(build=lambda: None, partition=None)

    def loaded(_: str) -> Any:
        return SimpleNamespace(isInstance=lambda io: False)

    as_json = SimpleNamespace(toJson=lambda item: item.json, fromJson=schema)
    thread = SimpleNamespace(getContextClassLoader=lambda: SimpleNamespace(loadClass=loaded))
    iceberg = SimpleNamespace(
        TableMetadata=SimpleNamespace(buildFrom=lambda base: _Builder(base, gateway)),
        SnapshotParser=_SnapshotParser,
        SnapshotRef=SimpleNamespace(tagBuilder=lambda id: SimpleNamespace(build=lambda: id)),
        util=SimpleNamespace(SnapshotUtil=SimpleNamespace(isAncestorOf=JavaTable.isAncestor)),
        CatalogUtil=SimpleNamespace(buildIcebergCatalog=open_catalog),
        SchemaParser=as_json,
        PartitionSpecParser=as_json,
        SortOrderParser=as_json,
        PartitionSpec=SimpleNamespace(builderFor=lambda _: SimpleNamespace(build=lambda: None, day=lambda _: None)),
        SortOrder=SimpleNamespace(builderFor=no_terms),
        ContentFileParser=SimpleNamespace(
            fromJson=lambda node, specs: DataFile(node["path"]),
            toJson=lambda file, spec: json.dumps({"record-count": len(lake.objects.get(file.path, ()))}),
        ),
        SnapshotChanges=SimpleNamespace(builderFor=lambda _: _Changes()),
        catalog=SimpleNamespace(
            TableIdentifier=SimpleNamespace(of=lambda *parts: ".".join(parts)), Namespace=SimpleNamespace(of=".".join)
        ),
    )
    java = SimpleNamespace(
        util=SimpleNamespace(ArrayList=_List, HashSet=_Set),
        lang=SimpleNamespace(
            Class=SimpleNamespace(forName=lambda name: name),
            Thread=SimpleNamespace(currentThread=lambda: thread),
            reflect=SimpleNamespace(Array=SimpleNamespace(newInstance=lambda kind, size: [""] * size)),
        ),
    )
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(iceberg=iceberg)), java=java)
    session = SimpleNamespace(catalogManager=lambda: SimpleNamespace(reset=lambda: None))
    return SimpleNamespace(
        _jvm=jvm,
        _jsparkSession=SimpleNamespace(sessionState=lambda: session),
        _jsc=SimpleNamespace(hadoopConfiguration=lambda: None),
        read=SimpleNamespace(format=lambda _: _Reader(lake, gateway)),
    )


_RANGE = re.compile(r"_kafka\.partition = (\d+) and _kafka\.offset >= (\d+) and _kafka\.offset < (\d+)")
_SINCE = re.compile(r"timestamp_micros\((-?\d+)\)")


def identity(serial: int) -> bytes:
    """Return what stands for `Fetched.identity` of the record with this serial number."""
    return str(serial).encode()


class _Reader:
    """Spark's reader of an Iceberg table, for the query of `firn_spark.tables.dead_letters`."""

    def __init__(self, lake: Lake, gateway: Gateway) -> None:
        self._lake = lake
        self._gateway = gateway
        self._options: dict[str, int] = {}
        self._name = ""
        self._condition = ""

    def option(self, key: str, value: str) -> "_Reader":
        self._options[key] = int(value)
        return self

    def load(self, name: str) -> "_Reader":
        self._name = name.replace("`", "").partition(".")[2]
        return self

    def where(self, condition: str) -> "_Reader":
        self._condition = condition
        return self

    def selectExpr(self, *columns: str) -> "_Reader":
        assert columns == ("_kafka.partition", "_kafka.offset", IDENTITY)
        return self

    def collect(self) -> list[tuple[int, int, bytes]]:
        return self._gateway.request("spark.query", lambda: list(self._found()))

    def _found(self) -> Iterator[tuple[int, int, bytes]]:
        metadata = self._lake.tables.get(self._name)
        if metadata is None:
            raise error("NoSuchTableException", f"Table does not exist: {self._name}")
        since = _SINCE.search(self._condition)
        assert since is not None
        ranges = [tuple(map(int, each)) for each in _RANGE.findall(self._condition)]
        for path in self._files(metadata):
            if path not in self._lake.objects:
                raise error("NotFoundException", f"File does not exist: {path}")
            for row in self._lake.objects[path]:
                fits = any(row.partition == part and low <= row.offset < high for part, low, high in ranges)
                if fits and row.ingested_at >= int(since[1]):
                    yield row.partition, row.offset, identity(row.serial)

    def _files(self, metadata: Metadata) -> Iterable[str]:
        head = metadata.head
        if not self._options:
            return head.files if head is not None else ()
        start, end = self._options["start-snapshot-id"], self._options["end-snapshot-id"]
        snapshot, found = metadata.find(end), False
        files: list[str] = []
        while snapshot is not None:
            if snapshot.id == start:
                found = True
                break
            if snapshot.operation == "append":
                files += snapshot.added
            snapshot = metadata.find(snapshot.parent)
        if not found:
            raise error("java.lang.IllegalArgumentException", "Starting snapshot is not an ancestor of end snapshot")
        return files
