"""Compaction of real tables: the same rows in fewer files, whatever else is in the table."""

from firn.model.maintenance import CompactionWork
from tests.integration.maintenance.lake import Lake

NOW = CompactionWork(open_grace_ms=0)


def test_small_files_become_one_and_every_row_stays(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(6)
    report = lake.run(topic.work(compaction=NOW))
    assert (report.outcome, report.files_before, report.files_after, report.commits) == ("Done", 6, 1, 1)
    assert report.bytes_rewritten > 0
    assert topic.kinds() == ["ingest"] * 6 + ["compact"]
    topic.check()
    again = lake.run(topic.work(compaction=NOW))
    assert (again.outcome, again.commits) == ("Nothing", 0)
    topic.ingest(2)
    topic.check()
