"""A maintenance run: ``maintain.py [RUN [MESSAGE]]``.

RUN is the file with `firn.model.maintenance.MaintenanceRun`; by default the one that the operator mounts. The report goes to
the file MESSAGE; by default to the one that FIRN_TERMINATION_LOG names, or the termination message of the container. Exit
codes: `firn_spark.maintenance.application`.
"""

import os
import sys

from firn.model import names
from firn_spark.maintenance.application import MESSAGE_PATH, MESSAGE_VARIABLE, main

if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    sys.exit(
        main(
            arguments.get(1, names.RUN_PATH),
            arguments.get(2, os.environ.get(MESSAGE_VARIABLE, MESSAGE_PATH)),
        )
    )
