"""A maintenance run: ``maintain.py [RUN [MESSAGE]]``, where RUN is the file with `firn.model.maintenance.MaintenanceRun` and MESSAGE the
file that the report goes to (defaults: where the operator mounts the one, and where Kubernetes reads the other; FIRN_TERMINATION_LOG names
another). Exit codes: `firn_spark.maintenance.application`."""

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
