"""The ingestion application of one group: ``ingest.py [SETTINGS]``, where SETTINGS is the file with `firn.model.jobs.GroupSettings`
(default: where the operator mounts it). Exit codes: `firn.model.errors.ExitCode`."""

import sys

from firn.model import names
from firn_spark.ingestion.driver import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1] if len(sys.argv) > 1 else names.GROUP_PATH))
