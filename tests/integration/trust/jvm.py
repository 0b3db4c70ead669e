"""A process with a JVM that uses catalogs with private trust: ``python -m tests.integration.trust.jvm FILE`` with the catalogs as JSON.

It writes what happened with each catalog as JSON: what it wrote and read, or the message of the error.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from firn.model.errors import FirnError
from firn.model.jobs import CatalogConnection, GroupSettings
from firn_spark import session
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.java_errors import JAVA_ERRORS, translate
from firn_spark.worker.data_files import TableFileIO, arrow_io_properties
from tests.servers.spark import spark_conf

SCHEMA = '{"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "id", "required": false, "type": "long"}]}'


def written(io: dict[str, str], place: str) -> Any:
    """Return a function for a Python worker, which writes a file with the FileIO of a table and reads it back."""

    def work(_: Iterator[int]) -> Iterator[str]:
        files = TableFileIO(arrow_io_properties(io))
        with files.new_output(place).create(overwrite=True) as stream:
            stream.write(b"from a worker")
        yield files.new_input(place).open().read().decode()

    return work


def outcome(spark: Any, catalogs: Catalogs, name: str) -> dict[str, Any]:
    """Create a table through the JVM, and write a file through a Python worker; return both, or the message of the first error."""
    try:
        catalog, iceberg = catalogs.get(name), catalogs.jvm.org.apache.iceberg
        if name.startswith("rest"):
            return {"namespaces": [str(each) for each in catalog.listNamespaces()]}
        identifier = iceberg.catalog.TableIdentifier.parse(f"jvm.{name}")
        if not catalog.namespaceExists(identifier.namespace()):
            catalog.createNamespace(identifier.namespace())
        schema = iceberg.SchemaParser.fromJson(SCHEMA)
        table = catalog.createTable(identifier, schema)
        io, place = dict(table.io().properties()), f"{table.location()}/note"
        [note] = spark.sparkContext.parallelize([0], 1).mapPartitions(written(io, place)).collect()
        return {"length": table.io().newInputFile(place).getLength(), "worker": note}
    except JAVA_ERRORS as error:
        return {"error": str(translate(error, f"catalog {name}"))}
    except FirnError as error:
        return {"error": str(error)}


def main(file: str) -> None:
    """Use every catalog in the file."""
    given = json.loads(Path(file).read_text())
    connections = {name: CatalogConnection.model_validate(each) for name, each in given.items()}
    settings = GroupSettings(group="trust", cores=1, heap="512m", catalogs=connections, spark_conf=spark_conf())
    spark = session.start_context(settings, daemon=session.MERGE_DAEMON)
    catalogs = Catalogs(spark, settings)
    found = {name: outcome(spark, catalogs, name) for name in connections}
    Path(file).with_suffix(".out").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
