"""Check the promises of `JobSource` with a directory of files and with ConfigMaps of a real API server."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from kubernetes import client
from kubernetes import config as kube

from firn.model import names
from firn.model.jobs import IngestJob, RecordSchema, TableTarget
from firn_spark.ingestion.jobs import JOB_KEY, DirectoryJobs, JobSource, KubernetesJobs
from tests.apiserver import ApiServer
from tests.servers.process import await_true

_numbers = itertools.count()


def job(uid: str, **changes: object) -> IngestJob:
    return IngestJob(
        **{
            "uid": uid,
            "namespace": "shop",
            "name": uid,
            "generation": 1,
            "group": "default",
            "profile": "classic",
            "topic": uid,
            "record_schema": RecordSchema(format="Raw"),
            "table": TableTarget(catalog="lake", namespace="shop", name=uid),
            "freshness_ms": 5000,
            **changes,
        }
    )


class Writer(Protocol):
    """Changes contracts as the operator does."""

    def write(self, uid: str, text: str, group: str) -> None: ...

    def remove(self, uid: str) -> None: ...

    def source(self, group: str) -> JobSource: ...


class JobSourcesContract:
    """The suite. A class that inherits it has a fixture for the writer."""

    @pytest.fixture
    def source(self, writer: Writer) -> Iterator[JobSource]:
        source = writer.source("default")
        yield source
        source.stop()

    def test_the_source_has_no_jobs_before_the_first_list(self, source: JobSource) -> None:
        assert source.current() is None

    def test_an_empty_list_is_an_answer(self, source: JobSource) -> None:
        source.start()
        await_true("the first list", lambda: source.current() == {})

    def test_jobs_are_added_changed_and_removed(self, writer: Writer, source: JobSource) -> None:
        first, second = job("one"), job("two")
        writer.write("one", first.model_dump_json(), "default")
        source.start()
        await_true("one", lambda: source.current() == {"one": first})
        writer.write("two", second.model_dump_json(), "default")
        await_true("two", lambda: source.current() == {"one": first, "two": second})
        changed = first.model_copy(update={"generation": 2, "suspended": True})
        writer.write("one", changed.model_dump_json(), "default")
        await_true("the change", lambda: source.current() == {"one": changed, "two": second})
        writer.remove("one")
        await_true("job one is removed", lambda: source.current() == {"two": second})

    def test_jobs_of_other_groups_are_ignored(self, writer: Writer, source: JobSource) -> None:
        writer.write("mine", job("mine").model_dump_json(), "default")
        writer.write("theirs", job("theirs", group="other").model_dump_json(), "other")
        source.start()
        await_true("job mine", lambda: set(source.current() or ()) == {"mine"})
        writer.write("mine", job("mine", group="other").model_dump_json(), "other")
        await_true("job mine moves to another group", lambda: source.current() == {})

    def test_an_invalid_document_keeps_the_last_valid_one(self, writer: Writer, source: JobSource) -> None:
        first, second = job("one"), job("two")
        writer.write("one", first.model_dump_json(), "default")
        writer.write("never", '{"uid": ', "default")
        source.start()
        await_true("one", lambda: source.current() == {"one": first})
        writer.write("one", "nonsense", "default")
        writer.write("two", second.model_dump_json(), "default")
        await_true("two", lambda: "two" in (source.current() or {}))
        assert source.current() == {"one": first, "two": second}

    def test_keys_of_a_newer_operator_are_ignored(self, writer: Writer, source: JobSource) -> None:
        written = job("one")
        writer.write("one", written.model_dump_json().replace("{", '{"invented": 1, ', 1), "default")
        source.start()
        await_true("one", lambda: source.current() == {"one": written})


class DirectoryWriter:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, uid: str, text: str, group: str) -> None:
        (self.directory / "draft").write_text(text)
        os.replace(self.directory / "draft", self.directory / f"{uid}.json")

    def remove(self, uid: str) -> None:
        (self.directory / f"{uid}.json").unlink()

    def source(self, group: str) -> JobSource:
        return DirectoryJobs(str(self.directory), group, interval=0.05)


class TestDirectoryJobs(JobSourcesContract):
    @pytest.fixture
    def writer(self, tmp_path: Path) -> DirectoryWriter:
        return DirectoryWriter(tmp_path)

    def test_contracts_are_the_same_object_until_one_changes(self, writer: DirectoryWriter) -> None:
        writer.write("one", job("one").model_dump_json(), "default")
        source = DirectoryJobs(str(writer.directory), "default")
        source._jobs = first = source._read()
        assert source._read() is first
        writer.write("one", job("one", freshness_ms=6000).model_dump_json(), "default")
        assert source._read()["one"].freshness_ms == 6000


class KubernetesWriter:
    def __init__(self, server: ApiServer, resync: float = 300.0) -> None:
        self.server = server
        self.resync = resync
        self.namespace = f"jobs-{next(_numbers)}"
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self.path = f"/api/v1/namespaces/{self.namespace}/configmaps"

    def write(self, uid: str, text: str, group: str) -> None:
        labels = {names.LABEL_GROUP: group, names.LABEL_MANAGED_BY: names.MANAGED_BY}
        document = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": names.job(uid), "labels": labels},
            "data": {JOB_KEY: text},
        }
        apply = f"{self.path}/{names.job(uid)}?fieldManager={names.FIELD_MANAGER}&force=true"
        self.server.call("PATCH", apply, document, "application/apply-patch+yaml")

    def remove(self, uid: str) -> None:
        self.server.call("DELETE", f"{self.path}/{names.job(uid)}")

    def source(self, group: str) -> JobSource:
        configuration = client.Configuration()
        kube.load_kube_config(str(self.server.kubeconfig), client_configuration=configuration)
        return KubernetesJobs(client.CoreV1Api(client.ApiClient(configuration)), self.namespace, group, self.resync)


class TestKubernetesJobs(JobSourcesContract):
    @pytest.fixture
    def writer(self, api_server: ApiServer) -> KubernetesWriter:
        return KubernetesWriter(api_server)

    def test_a_closed_watch_restarts_with_a_new_list(self, api_server: ApiServer) -> None:
        writer = KubernetesWriter(api_server, resync=1.0)
        source = writer.source("default")
        source.start()
        try:
            for number in range(4):
                writer.write(f"uid-{number}", job(f"uid-{number}").model_dump_json(), "default")
                await_true(f"uid-{number}", lambda number=number: f"uid-{number}" in (source.current() or {}))  # type: ignore[misc]
                writer.remove(f"uid-{number}")
                await_true("the job disappears", lambda: source.current() == {})
        finally:
            source.stop()
