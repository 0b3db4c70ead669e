"""A new database and an empty bucket: `firn-broker fsck --recover --topics` makes a log from the data files of a table."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID

from firn.kafka_clients import kafka_id
from firn.model.errors import ExitCode
from firn_broker.settings import BucketSettings
from firn_broker.storage.objects import open_objects
from tests.integration.broker.test_librdkafka import produce
from tests.integration.broker.test_lost_database import fsck, places
from tests.servers.firn_broker import fleet_settings, of_fleet
from tests.servers.postgres import Postgres
from tests.servers.s3 import S3
from tests.unit.broker.test_history_entries import FIELDS, write
from tests.unit.broker.test_logs_from_tables import some_rows

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
PARTITIONS = 3


def test_a_table_gives_a_new_cluster_its_log(tmp_path: Path, database: Postgres, storage: S3, name: str) -> None:
    settings = fleet_settings(tmp_path, database, storage, f"empty-{name}")
    lake = {**settings["objects"], "url": f"{settings['objects']['url']}-lake"}
    broker = of_fleet(tmp_path, "empty", {**settings, "leaseSeconds": 2, "history": {"stores": [lake]}})
    broker.start()
    broker.stop()

    rows = some_rows(3, partitions=PARTITIONS)
    file = write(tmp_path / "rows", [(*place, row) for place, row in rows.items()], group=100)
    asyncio.run(upload(lake, (tmp_path / "rows").read_bytes()))
    landed = {
        partition: max(offset for part, offset in rows if part == partition) + 5 for partition in range(PARTITIONS)
    }
    topic: dict[str, Any] = {"name": name, "id": kafka_id(ID), "partitions": PARTITIONS, "next": landed}
    topic["configs"] = {"retention.ms": "-1"}
    file_of_topics = tmp_path / "topics.json"

    gone = {"fields": FIELDS, "files": [(f"{lake['url']}/gone", file.size)]}
    file_of_topics.write_text(json.dumps({"topics": [{**topic, "table": gone}]}))
    refused = fsck(tmp_path / "empty.yaml", "--recover", "--topics", str(file_of_topics))
    assert refused.returncode == ExitCode.TEMPORARY, refused.stdout
    assert f"{lake['url']}/gone does not exist" in refused.stderr
    assert f"the process that makes the log of topic {name} from its table ended" in refused.stderr

    table = {"fields": FIELDS, "files": [(f"{lake['url']}/rows", file.size)]}
    file_of_topics.write_text(json.dumps({"topics": [{**topic, "table": table}]}))
    done = fsck(tmp_path / "empty.yaml", "--recover", "--topics", str(file_of_topics))
    assert done.returncode == ExitCode.DONE, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert (report["gaps"], report["unchanged"], report["recovered"]["records"]) == ({}, [], 0)
    again = fsck(tmp_path / "empty.yaml", "--recover", "--topics", str(file_of_topics))
    assert again.returncode == ExitCode.DONE, again.stderr + again.stdout

    broker.start()
    expected = {place: (row.value, row.time) for place, row in rows.items()}
    assert places(broker, name, len(rows)) == expected
    for partition in range(PARTITIONS):
        (offset,) = produce(broker, name, [{"value": b"after", "partition": partition}])
        assert offset == landed[partition]
    broker.stop()


async def upload(lake: dict[str, Any], data: bytes) -> None:
    """Put a data file into the bucket of the table."""
    objects = open_objects(BucketSettings.model_validate(lake))
    await objects.put("rows", memoryview(data))
    await objects.close()
