"""Reads values of many files (Java) with one call for each value, instead of one for each file and value.

A call through py4j takes about 0.1 ms, so that a table of 100,000 files would need minutes.
"""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

SEPARATOR = "\0"
"""Stands between values. Neither paths nor numbers contain it."""
_ICEBERG = "org.apache.iceberg."
_STRUCT = f"{_ICEBERG}StructLike"
_FILE = f"{_ICEBERG}ContentFile"
_OBJECT = "java.lang.Object"
_FILE_VALUES = {
    "location": "java.lang.String",
    "fileSizeInBytes": "long",
    "recordCount": "long",
    "specId": "int",
    "dataSequenceNumber": "java.lang.Long",
    "fileSequenceNumber": "java.lang.Long",
    "firstRowId": "java.lang.Long",
    "content": f"{_ICEBERG}FileContent",
    "format": f"{_ICEBERG}FileFormat",
    "keyMetadata": "java.nio.ByteBuffer",
}
"""Getter of ``ContentFile`` -> the class that it returns."""


def read_snapshot(spark: Any, table: Any, snapshot: Any) -> DataFrame:
    """Return the rows of a table (Java) in one of its snapshots."""
    # Not by name: the catalog of Spark's session keeps a token that it could not renew.
    utilities = spark._jvm.org.apache.iceberg.spark.SparkTableUtil
    return DataFrame(utilities.loadTable(spark._jsparkSession, table, int(snapshot.snapshotId())), spark)


class Columns:
    """Values of data files and delete files, in the order of Java lists."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        relocated = jvm.org.apache.iceberg.relocated.com.google.common
        self._lists, self._iterables = relocated.collect.Lists, relocated.collect.Iterables
        self._joiner = relocated.base.Joiner
        # Only the session's class loader may know Iceberg's classes.
        self._loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        self._function = self._class(f"{_ICEBERG}relocated.com.google.common.base.Function")
        self._predicate = self._class(f"{_ICEBERG}relocated.com.google.common.base.Predicate")
        self._handles = jvm.java.lang.invoke.MethodHandles
        self._partition = self._method(_FILE, "partition", _STRUCT)
        self._deletes = self._method(f"{_ICEBERG}FileScanTask", "deletes", "java.util.List")

    def tasks(self, scan: Any) -> Any:
        """Return the scan tasks of a table scan as a Java list."""
        planned = scan.planFiles()
        try:
            return self._lists.newArrayList(planned)
        finally:
            planned.close()

    def files(self, tasks: Any) -> Any:
        """Return the data files of scan tasks."""
        return self._mapped(tasks, self._method(f"{_ICEBERG}ContentScanTask", "file", _FILE))

    def delete_counts(self, tasks: Any) -> list[int]:
        """Return the number of delete files of each scan task."""
        size = self._method("java.util.List", "size", "int")
        return [int(count) for count in self._joined(tasks, self._then(self._deletes, size))]

    def delete_files(self, tasks: Any) -> Any:
        """Return the delete files of scan tasks, in the order of the tasks."""
        return self._lists.newArrayList(self._iterables.concat(self._mapped(tasks, self._deletes)))

    def values(self, files: Any, name: str) -> list[str]:
        """Return a value of each file by the name of its getter, empty for null."""
        return self._joined(files, self._method(_FILE, name, _FILE_VALUES[name]))

    def numbers(self, files: Any, name: str) -> list[int]:
        """Return a number of each file by the name of its getter, 0 for null."""
        return [int(text or 0) for text in self.values(files, name)]

    def keys(self, deletes: Any) -> list[tuple[str, int]]:
        """Return path and offset of each delete file."""
        offset = self._method(f"{_ICEBERG}DeleteFile", "contentOffset", "java.lang.Long")
        offsets = (int(text or 0) for text in self._joined(deletes, offset))
        return list(zip(self.values(deletes, "location"), offsets, strict=True))

    def targets(self, deletes: Any) -> list[str | None]:
        """Return the only data file to which each delete file applies; None if there may be others."""
        referenced = self._handles.publicLookup().findStatic(
            self._class(f"{_ICEBERG}util.ContentFileUtil"),
            "referencedDataFileLocation",
            self._type("java.lang.String", f"{_ICEBERG}DeleteFile"),
        )
        return [path or None for path in self._joined(deletes, referenced)]

    def of_spec(self, files: Any, spec_id: int) -> Any:
        """Return the files of a partition spec."""
        number = self._method(_FILE, "specId", "int")
        boxed = number.asType(number.type().changeReturnType(self._class(_OBJECT)))
        equals = self._method(_OBJECT, "equals", "boolean", _OBJECT).bindTo(self._jvm.java.lang.Integer(spec_id))
        predicate = self._proxy(self._predicate, self._then(boxed, equals))
        return self._lists.newArrayList(self._iterables.filter(files, predicate))

    def partitions(self, files: Any, specs: Mapping[int, Any]) -> list[str]:
        """Return the partition of each file as a text that is unique in its spec; empty without partitions."""
        spec_ids = self.numbers(files, "specId")
        texts = [""] * len(spec_ids)
        for spec_id in set(spec_ids):
            if specs[spec_id].isUnpartitioned():
                continue
            places = [place for place, other in enumerate(spec_ids) if other == spec_id]
            chosen = files if len(places) == len(spec_ids) else self.of_spec(files, spec_id)
            for place, text in zip(places, self._texts(chosen, specs[spec_id]), strict=True):
                texts[place] = text
        return texts

    def _texts(self, files: Any, spec: Any) -> list[str]:
        to_path = self._method(f"{_ICEBERG}PartitionSpec", "partitionToPath", "java.lang.String", _STRUCT)
        texts = self._joined(files, self._then(self._partition, to_path.bindTo(spec)))
        if not any("null" in text for text in texts):
            return texts
        # Iceberg's own text is the same for null and for the text "null".
        nulls = zip(*(self._nulls(files, place) for place in range(int(spec.fields().size()))), strict=True)
        return [f"{text} {flags}" if "null" in text else text for text, flags in zip(texts, nulls, strict=True)]

    def _nulls(self, files: Any, place: int) -> list[bool]:
        """Return for each file whether a partition value is null."""
        value = self._method(_STRUCT, "get", _OBJECT, "int", "java.lang.Class")
        chosen = self._handles.insertArguments(value, 1, self._array(_OBJECT, place, self._class(_OBJECT)))
        is_null = self._handles.publicLookup().findStatic(
            self._class("java.util.Objects"), "isNull", self._type("boolean", _OBJECT)
        )
        return [
            text == "true" for text in self._joined(files, self._then(self._then(self._partition, chosen), is_null))
        ]

    def _mapped(self, items: Any, handle: Any) -> Any:
        return self._lists.transform(items, self._proxy(self._function, handle))

    def _joined(self, items: Any, handle: Any) -> list[str]:
        """Return the results of a method handle for the items of a list, as texts."""
        if not items.size():
            return []
        text = self._joiner.on(SEPARATOR).useForNull("").join(self._mapped(items, handle))
        return str(text).split(SEPARATOR)

    def _proxy(self, interface: Any, handle: Any) -> Any:
        return self._jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance(interface, handle)

    def _then(self, first: Any, second: Any) -> Any:
        return self._handles.filterReturnValue(first, second)

    def _method(self, owner: str, name: str, result: str, *arguments: str) -> Any:
        return self._handles.publicLookup().findVirtual(self._class(owner), name, self._type(result, *arguments))

    def _type(self, result: str, *arguments: str) -> Any:
        parameters = self._array("java.lang.Class", *map(self._class, arguments))
        return self._jvm.java.lang.invoke.MethodType.methodType(self._class(result), parameters)

    def _array(self, kind: str, *values: Any) -> Any:
        array = self._jvm.java.lang.reflect.Array.newInstance(self._class(kind), len(values))
        for place, value in enumerate(values):
            array[place] = value
        return array

    def _class(self, name: str) -> Any:
        match name:
            case "int":
                return self._jvm.java.lang.Integer.TYPE
            case "long":
                return self._jvm.java.lang.Long.TYPE
            case "boolean":
                return self._jvm.java.lang.Boolean.TYPE
            case _:
                return self._loader.loadClass(name)
