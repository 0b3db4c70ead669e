"""From commits to measured debt to a run, and the log retention of a policy on a real broker."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource, ResourceType
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from firn.model import names
from firn.model.jobs import CatalogConnection
from firn_operator.adapters.iceberg.catalogs import open_catalog
from tests.servers.process import await_true

if TYPE_CHECKING:
    from tests.integration.operator.conftest import Running, World

SYSTEM = "firn-system"
SCHEMA = {"format": "Json", "fields": [{"name": "carrier", "type": "string"}]}
PLURALS = {"CompactionPolicy": "compactionpolicies", "RetentionPolicy": "retentionpolicies"}
MIB = 1024 * 1024
Manifest = dict[str, Any]
OFTEN = """
from firn_controllers.reconcilers import context
context.REFRESH = 1.0
"""
"""Write a status in which only figures differ each second, and not each minute as the operator does by itself."""


@pytest.fixture(scope="module")
def operator(world: "World") -> Iterator["Running"]:
    option, program, *arguments = world.program
    often = replace(world, program=(option, OFTEN + program, *arguments))
    with often.operator(maintenance={"debtInterval": "1s"}) as running:
        yield running


@pytest.fixture
def policies(world: "World") -> Iterator[list[str]]:
    """Return paths of policies, which are deleted at the end."""
    made: list[str] = []
    yield made
    for path in made:
        world.api.call("DELETE", path)


def policy(world: "World", made: list[str], kind: str, name: str, **spec: Any) -> str:
    path = f"/apis/{names.API_VERSION}/namespaces/demo/{PLURALS[kind]}/{name}"
    body = {"apiVersion": names.API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
    world.api.call("PATCH", f"{path}?fieldManager=user&force=true", body, "application/apply-patch+yaml")
    if path not in made:
        made.append(path)
    return path


def commit(world: "World", name: str, files: int, size: int = MIB) -> None:
    """Commit files that exist by name only. This test reads no data file."""
    properties = {"user": world.database.user, "password": world.database.password}
    connection = CatalogConnection(
        type="sql", uri=world.database.uri, warehouse=f"file://{world.directory}/warehouse", properties=properties
    )
    table = open_catalog("lake", connection).load_table(("demo", name.replace("-", "_")))
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        for number in range(files):
            file = DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=f"{table.location()}/data/{len(table.metadata.snapshots)}-{number}.parquet",
                file_format=FileFormat.PARQUET,
                partition=Record(),
                record_count=10,
                file_size_in_bytes=size,
                column_sizes={},
                value_counts={},
                null_value_counts={},
                nan_value_counts={},
                lower_bounds={},
                upper_bounds={},
                key_metadata=None,
                split_offsets=None,
                equality_ids=None,
                sort_order_id=None,
            )
            file.spec_id = table.spec().spec_id
            update.append_data_file(file)


def test_a_commit_is_measured_and_starts_a_run(
    world: "World", operator: "Running", name: str, policies: list[str]
) -> None:
    world.apply(name, {"schema": SCHEMA})
    world.await_made(name)
    commit(world, name, 6)
    await_true("small files are counted", lambda: operator.metric("firn_table_small_files") == 6)
    assert operator.metric("firn_table_snapshots") == 1
    assert operator.metric("firn_compaction_lag_seconds") == 0
    policy(
        world, policies, "CompactionPolicy", "tidy", selector={}, openGrace="1s", triggers={"smallFiles": 10}
    )  # fmt: skip
    await_true("the table is due", lambda: operator.metric("firn_compaction_lag_seconds") > 0)
    assert operator.metric("firn_compaction_due_files") == 6
    place = f"/apis/batch/v1/namespaces/{SYSTEM}/jobs?labelSelector={names.LABEL_POLICY}%3Dtidy"
    assert world.api.call("GET", place)["items"] == []
    commit(world, name, 6)
    await_true("a run for ten files and more", lambda: bool(world.api.call("GET", place)["items"]))

    def reported() -> bool:
        topic = world.topic(name)
        assert topic is not None
        return topic["status"].get("maintenance", {}).get("smallFiles") == 12

    await_true("the status of the topic reports the run", reported, 150)


def retention(world: "World", topic: str) -> str | None:
    """Return ``retention.ms`` as set on the topic itself."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": world.broker.bootstrap})  # kept alive until it has answered
    configs = admin.describe_configs([resource])[resource].result()
    entry = configs["retention.ms"]
    return entry.value if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value else None


def test_the_spec_overrides_the_log_retention_of_a_policy(
    world: "World", operator: "Running", name: str, policies: list[str]
) -> None:
    path = policy(world, policies, "RetentionPolicy", "log", selector={}, mode="DryRun", log={"maxAge": "7d"})
    world.apply(name, {"schema": SCHEMA})
    world.await_made(name)
    await_true(
        "the report of the dry run", lambda: "would set retention.ms" in world.condition(name, "PoliciesResolved")[2]
    )  # fmt: skip
    assert retention(world, name) is None
    policy(world, policies, "RetentionPolicy", "log", selector={}, mode="Enforce", log={"maxAge": "7d"})
    await_true("the policy is enforced", lambda: retention(world, name) == str(7 * 86_400_000))
    world.apply(name, {"schema": SCHEMA, "config": {"retention.ms": "1000000"}})
    await_true("the spec overrides the policy", lambda: retention(world, name) == "1000000")
    world.apply(name, {"schema": SCHEMA})
    await_true("the policy applies again", lambda: retention(world, name) == str(7 * 86_400_000))
    world.api.call("DELETE", path)
    policies.remove(path)
    await_true("the broker's default applies again", lambda: retention(world, name) is None)
