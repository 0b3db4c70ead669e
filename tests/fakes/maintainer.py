"""Maintenance runs without Spark. Each Job ends with a report that follows from its ConfigMap or from the test."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from firn.model import names
from firn.model.maintenance import MaintenanceRun, RunReport, TableReport, TableWork, pack
from firn_operator.adapters.kube.workloads import job_state
from tests.fakes.cluster import FakeCluster


class FakeMaintainer:
    """``hold``: runs start and do not end. ``report_fields``: fields of the table report, by uid.
    ``failure``: the failure of Jobs without a report."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.hold = False
        self.failure = ""
        self.last_words = ""
        self.report_fields: dict[str, dict[str, Any]] = {}
        self.done: list[MaintenanceRun] = []
        """The ended runs in order."""
        self.ended: Callable[[MaintenanceRun], None] = lambda run: None

    def run(self) -> None:
        """End every active run. Remove runs that ended longer ago than their time to live."""
        for manifest in self._cluster.all("Job"):
            if names.LABEL_RUN not in manifest["metadata"]["labels"]:
                continue
            ended = job_state(manifest).finished
            if ended is not None:
                kept = timedelta(seconds=manifest["spec"]["ttlSecondsAfterFinished"])
                if self._cluster.clock.now() > ended + kept:
                    self._cluster.drop_job(manifest)
            elif not self.hold:
                self.end(manifest["metadata"]["name"])

    def end(self, name: str) -> None:
        """End one run with its report."""
        run = self.contract(name)
        if self.failure:
            self._cluster.end_job(name, self.last_words, failure=self.failure, exit_code=1)
        else:
            report = RunReport(name=name, tables=tuple(self._report(table) for table in run.tables))
            self._cluster.end_job(name, pack(report))
        self.done.append(run)
        self.ended(run)

    def contract(self, name: str) -> MaintenanceRun:
        """Return the contract of a run."""
        (contract,) = (
            config_map for config_map in self._cluster.all("ConfigMap") if config_map["metadata"]["name"] == name
        )
        return MaintenanceRun.model_validate_json(contract["data"]["run.json"])

    def _report(self, table: TableWork) -> TableReport:
        fields: dict[str, Any] = {"uid": table.uid, "outcome": "Done", **self.report_fields.get(table.uid, {})}
        return TableReport.model_validate(fields)
