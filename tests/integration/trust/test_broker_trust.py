"""Brokers and direct reads trust the CA that the configuration names, and no other certificate."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from firn.model.errors import UnavailableError
from firn.model.jobs import DirectReads
from firn_broker.metadata_store.postgres.database import Database
from firn_broker.settings import PostgresSettings
from firn_broker.storage import objects
from firn_broker.storage.objects import BucketObjects
from firn_spark.worker.fetching.access import bucket
from firn_spark.worker.fetching.objects import open_bucket
from tests.integration.trust.conftest import Private
from tests.servers.postgres import CERTIFIED
from tests.servers.s3 import S3


def options(store: S3) -> dict[str, str]:
    return {
        "aws_endpoint": store.endpoint,
        "aws_region": "us-east-1",
        "aws_access_key_id": store.access_key,
        "aws_secret_access_key": store.secret_key,
        "aws_virtual_hosted_style_request": "false",
    }


def stored(store: S3, ca: Path) -> BucketObjects:
    return BucketObjects(f"s3://{store.bucket}/log", options(store), timeout_seconds=10, ca_file=str(ca))


async def reach(private: Private, **changes: Any) -> str:
    """Return the users' name of a coordinator's connection."""
    settings = PostgresSettings(
        uri=private.uri,
        user=CERTIFIED,
        ca_file=str(private.ca),
        cert_file=str(private.connection.certificate_path),
        key_file=str(private.connection.certificate_key_path),
    )
    database = Database(settings.model_copy(update=changes))
    await database.start()
    try:
        return str(await database.value("SELECT current_user || ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"))
    finally:
        await database.close()


async def test_a_broker_reaches_its_coordinator_with_a_certificate(private: Private) -> None:
    assert await reach(private) == f"{CERTIFIED}true"


async def test_a_broker_rejects_the_certificate_of_another_coordinator(private: Private) -> None:
    with pytest.raises(UnavailableError, match=r"^coordinator: .*put the CA of the server into tls.ca"):
        await reach(private, ca_file=str(private.foreign))
    with pytest.raises(UnavailableError, match="the name of the server is not in its certificate"):
        await reach(private, uri=private.uri.replace("localhost", "127.0.0.1"))
    with pytest.raises(UnavailableError, match=r"check the files .*, which coordinator.tls names"):
        await reach(private, ca_file="/nothing")


async def test_brokers_and_direct_reads_use_a_store_with_a_private_ca(private: Private) -> None:
    await stored(private.store, private.ca).put("a", memoryview(b"batch"))
    reads = DirectReads(
        address="http://localhost",
        token_path="/token",
        url=f"s3://{private.store.bucket}/log",
        properties=options(private.store),
        ca_path=str(private.ca),
    )
    client = open_bucket(bucket(reads))
    assert bytes(client.get("a").bytes()) == b"batch"
    foreign = open_bucket(bucket(reads.model_copy(update={"ca_path": str(private.foreign)})))
    with pytest.raises(Exception, match="UnknownIssuer"):
        foreign.get("a")


async def test_a_broker_rejects_a_store_for_its_ca_its_name_or_its_age(private: Private) -> None:
    causes = (
        (private.store, private.foreign, "put the CA of the server into tls.ca"),
        (private.odd, private.ca, "the name of the server is not in its certificate"),
        (private.old, private.ca, "the certificate of the server has expired"),
    )
    for store, ca, cause in causes:
        with pytest.raises(UnavailableError, match=f"(?s)^object store: .*{cause}"):
            await stored(store, ca).put("a", memoryview(b"batch"))


async def test_a_broker_uses_changed_certificates_of_its_store(
    private: Private, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "LOOK_SECONDS", 0.0)
    file = tmp_path / "ca.crt"
    file.write_bytes(private.foreign.read_bytes())
    store = stored(private.store, file)
    with pytest.raises(UnavailableError):
        await store.put("b", memoryview(b"batch"))
    for content in (b"no certificate", private.ca.read_bytes()):
        file.unlink()
        file.write_bytes(content)
        with_content = asyncio.create_task(store.put("b", memoryview(b"batch")))
        await asyncio.wait([with_content])
        assert (with_content.exception() is None) == (content == private.ca.read_bytes())
