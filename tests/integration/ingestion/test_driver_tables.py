"""Iceberg's Java keeps the contract that the lake in memory keeps (tests/contract/test_driver_tables.py)."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.clientserver import ClientServerConnection

from firn.model.jobs import Column, Evolution, GroupSettings, IngestJob, RecordSchema, Rename, TableTarget
from firn.schemas import changes
from firn.schemas.other_clients import without
from firn.tables import types
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.java_tables import Tables, partition_terms, sort_terms
from tests.contract.driver_tables import DriverTablesContract, commit_ahead
from tests.unit.spark_driver.topic import job as job_of

_numbers = itertools.count()


class TestIceberg(DriverTablesContract):
    @pytest.fixture
    def job(self) -> IngestJob:
        name = f"contract{next(_numbers)}"
        return job_of(name, table=TableTarget(catalog="lake", namespace="contract", name=name))

    @pytest.fixture
    def tables(self, spark: object, settings: GroupSettings) -> Iterator[Tables]:
        self._catalogs = Catalogs(spark, settings)
        yield Tables(self._catalogs)
        self._catalogs.close()

    def test_an_adopted_table_keeps_what_the_spec_of_an_earlier_owner_set(self, tables: Tables, job: IngestJob) -> None:
        def kept() -> tuple[list[str], int, str | None]:
            table = self.load(tables, job)
            return partition_terms(table), len(table.sortOrder().fields()), table.properties().get("a")

        target = job.table.model_copy(update={"format_version": 3})
        old = target.model_copy(
            update={"partition_by": ("bucket(2, id)",), "sort_by": ("id",), "properties": {"a": "1"}}
        )
        tables.ensure(job.model_copy(update={"uid": "uid-old", "table": old}))
        for _ in range(2):
            tables.ensure(job.model_copy(update={"table": target}))
            assert kept() == (["bucket(2, id)"], 1, "1")
        tables.ensure(job.model_copy(update={"table": old}))
        tables.ensure(job.model_copy(update={"table": target}))
        assert kept() == ([], 0, None)

    def test_another_partitioning_stays_until_its_change_is_approved(self, tables: Tables, job: IngestJob) -> None:
        def ensured(approved: str = "") -> list[str]:
            policy = Evolution(partition="Propose", approved=approved)
            schema = job.record_schema.model_copy(update={"evolution": policy})
            tables.ensure(job.model_copy(update={"table": target, "record_schema": schema}))
            return partition_terms(self.load(tables, job))

        target = job.table.model_copy(update={"format_version": 3, "partition_by": ("bucket(2, id)",)})
        assert ensured() == ["bucket(2, id)"]
        table = self.load(tables, job)
        table.updateSpec().removeField(table.spec().fields()[0].name()).commit()
        assert ensured() == []
        # The operator writes the contract with the approval only if it belongs to this change.
        assert ensured(approved="3f1c9a0b72de") == ["bucket(2, id)"]

    @pytest.mark.parametrize("version", [2, 3])
    def test_columns_are_renamed_by_field_id(self, tables: Tables, job: IngestJob, version: int) -> None:
        """A driver with the earlier contract finds the column under its later name, and adds none."""

        def contract(*fields: tuple[str, str], **renames: str) -> IngestJob:
            columns = tuple(Column(name=name, type=type_) for name, type_ in fields)
            made = tuple(Rename(old=old, new=new) for old, new in renames.items())
            schema = RecordSchema(format="Json", fields=columns, renames=made)
            table = job.table.model_copy(update={"format_version": version})
            return job.model_copy(update={"record_schema": schema, "table": table})

        old = contract(("a", "int"), ("s", "struct<x: int>"))
        before = tables.names(tables.ensure(old))[0]
        struct = before[1]["type"]["fields"][0]["id"]
        new = contract(("b", "long"), ("s", "struct<y: int, z: int>"), a="b")
        renames = (*new.record_schema.renames, Rename(old="s.x", new="s.y"))
        new = new.model_copy(update={"record_schema": new.record_schema.model_copy(update={"renames": renames})})
        for _ in range(2):
            fields, former = tables.names(tables.ensure(new))
            assert [(each["id"], each["name"]) for each in fields[:2]] == [
                (before[0]["id"], "b"),
                (before[1]["id"], "s"),
            ]
            assert types.of_json(fields[1]["type"]) == "struct<y: int, z: int>"
            assert former == {before[0]["id"]: ("a",), struct: ("x",)}
        assert tables.names(tables.ensure(old)) == (fields, former)

    @pytest.mark.parametrize("version", [2, 3])
    def test_a_column_that_came_later_is_followed_too(self, tables: Tables, job: IngestJob, version: int) -> None:
        """Another engine renames and drops columns that the driver has added, and none of them comes again."""

        def contract(*names: str) -> IngestJob:
            schema = RecordSchema(format="Json", fields=tuple(Column(name=name, type="int") for name in names))
            table = job.table.model_copy(update={"format_version": version})
            return job.model_copy(update={"record_schema": schema, "table": table})

        tables.ensure(contract("a"))
        later = contract("a", "b", "c")
        table = tables.ensure(later)
        number = next(each["id"] for each in tables.names(table)[0] if each["name"] == "b")
        table.updateSchema().renameColumn("b", "other").deleteColumn("c").commit()
        for _ in range(2):
            fields, former = tables.names(tables.ensure(later))
            assert {each["name"] for each in fields} == {"a", "other", "_kafka"}
            assert former == {number: ("b",)}

    def test_members_that_no_schema_can_have_stay(self, tables: Tables, job: IngestJob) -> None:
        def contract(kind: str) -> IngestJob:
            schema = RecordSchema(format="Json", fields=(Column(name="s", type=kind),))
            table = job.table.model_copy(update={"format_version": 3})
            return job.model_copy(update={"record_schema": schema, "table": table})

        types_ = tables.jvm.org.apache.iceberg.types.Types
        table = tables.ensure(contract("struct<a: int>"))
        for name, kind in (("shape", "geometry"), ("my-field", "string")):
            table.updateSchema().addColumn("s", name, types_.fromPrimitiveString(kind)).commit()
        for _ in range(2):
            fields, _former = tables.names(tables.ensure(contract("struct<a: int, b: int>")))
            assert [each["name"] for each in fields[0]["type"]["fields"]] == ["a", "shape", "my-field", "b"]

    @pytest.mark.parametrize("version", [2, 3])
    def test_terms_follow_a_column_that_another_engine_renames(
        self, tables: Tables, job: IngestJob, version: int
    ) -> None:
        schema = RecordSchema(format="Json", fields=(Column(name="a", type="int"), Column(name="b", type="int")))
        terms = {"partition_by": ("bucket(4, a)",), "sort_by": ("b",), "format_version": version}
        job = job.model_copy(update={"record_schema": schema, "table": job.table.model_copy(update=terms)})
        table = tables.ensure(job)
        table.updateSchema().renameColumn("a", "c").renameColumn("b", "d").commit()
        for _ in range(2):
            table = tables.ensure(job)
            assert (partition_terms(table), sort_terms(table)) == (["bucket(4, c)"], ["d asc nulls first"])
            assert (len(table.specs()), len(table.sortOrders())) == (1, 1)

    def test_a_dropped_column_does_not_come_again_under_an_earlier_name(self, tables: Tables, job: IngestJob) -> None:
        def contract(*names: str, **update: Any) -> IngestJob:
            schema = RecordSchema(format="Json", fields=tuple(Column(name=name, type="int") for name in names))
            return job.model_copy(update={"record_schema": schema.model_copy(update=update)})

        first = contract("a", "b")
        tables.ensure(first)
        table = tables.ensure(contract("a", "c", renames=(Rename(old="b", new="c"),)))
        policy = Evolution(drop="DropColumn")
        approve = changes.proposed_drops(("c",), policy, str(table.uuid()), int(table.schema().schemaId())).approve
        policy = policy.model_copy(update={"approved": approve})
        table = tables.ensure(contract("a", evolution=policy, gone=("c",)))
        assert {each["name"] for each in tables.names(table)[0]} == {"a", "_kafka"}
        known = tables.followed(table, contract("a", evolution=policy))
        for name in ("b", "c"):
            assert without((Column(name=name, type="int"),), known.fields, known.dropped) == ()

    def commit_ahead(self, tables: Tables, table: Any, time_ms: int, branch: str) -> None:
        commit_ahead(tables.jvm, table, time_ms, branch)

    def drop(self, tables: Tables, job: IngestJob) -> None:
        identifier = tables.jvm.org.apache.iceberg.catalog.TableIdentifier.parse(
            f"{job.table.namespace}.{job.table.name}"
        )
        self._catalogs.get(job.table.catalog).dropTable(identifier)

    def test_a_known_name_is_looked_up_once_and_a_table_is_described_in_few_requests(
        self, tables: Tables, job: IngestJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def describe() -> None:
            assert tables.load(job.table.catalog, job.table.namespace, "missing", rare=True) is None
            assert tables.spec(tables.ensure(job)).properties["firn.owner"] == job.uid

        tables.ensure(job)
        describe()
        requests: list[str] = []
        send = ClientServerConnection.send_command

        def counted(connection: ClientServerConnection, command: str) -> Any:
            requests.append(command)
            return send(connection, command)

        monkeypatch.setattr(ClientServerConnection, "send_command", counted)
        describe()
        assert [command for command in requests if command.startswith("r\n")] == []
        # Requests that free an object come when Python collects it.
        assert len([command for command in requests if not command.startswith("m\n")]) < 60
