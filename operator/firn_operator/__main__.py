"""Entry of the operator: ``firn-operator``, or ``python -m firn_operator``."""

import asyncio
import logging
import os
import sys

from firn.model import config, names
from firn.model.errors import ExitCode, FirnError, InvalidSpecError
from firn_operator.process import telemetry, wiring


def main() -> int:
    """Run the operator until SIGTERM, and return the exit code.

    The environment names the configuration file (FIRN_CONFIG) and the addresses (FIRN_METRICS_LISTEN, FIRN_PROBES_LISTEN).
    """
    try:
        configuration = config.load(os.environ.get("FIRN_CONFIG", names.CONFIG_PATH))
    except InvalidSpecError as error:
        print(f"firn-operator: {error}", file=sys.stderr)
        return ExitCode.CONFIGURATION
    telemetry.configure_logs(configuration.log_level)
    metrics = telemetry.address("FIRN_METRICS_LISTEN", telemetry.METRICS_PORT)
    probes = telemetry.address("FIRN_PROBES_LISTEN", telemetry.PROBES_PORT)
    try:
        asyncio.run(wiring.run(configuration, metrics, probes))
    except FirnError as error:
        logging.getLogger("firn_operator").error("the operator ends, and Kubernetes starts it again: %s", error)
        return ExitCode.TEMPORARY
    except Exception:
        logging.getLogger("firn_operator").exception("the operator ended with an unexpected error")
        return ExitCode.BUG
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
