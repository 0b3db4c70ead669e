"""The ingestion application of one group: ``ingest.py [SETTINGS]``.

SETTINGS is the file with `firn.model.jobs.GroupSettings`; by default the one that the operator mounts. Exit codes:
`firn.model.errors.ExitCode`.
"""

import sys

from firn.model import names
from firn_spark.ingestion.driver import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1] if len(sys.argv) > 1 else names.GROUP_PATH))
