"""Entry of the signer: ``firn-signer``, or ``python -m firn_operator.signer``."""

import asyncio
import logging
import os
import sys

from firn.model import config, names
from firn.model.errors import ExitCode, InvalidSpecError
from firn_operator.process import telemetry
from firn_operator.signer import process


def main() -> int:
    """Keep certificates until SIGTERM, and return the exit code.

    The environment names the configuration file (FIRN_CONFIG) and the address of metrics and probe (FIRN_METRICS_LISTEN).
    """
    try:
        configuration = config.load(os.environ.get("FIRN_CONFIG", names.CONFIG_PATH))
        subjects = process.subjects(configuration)
    except InvalidSpecError as error:
        print(f"firn-signer: {error}", file=sys.stderr)
        return ExitCode.CONFIGURATION
    telemetry.configure_logs(configuration.log_level)
    metrics = telemetry.address("FIRN_METRICS_LISTEN", telemetry.METRICS_PORT)
    try:
        asyncio.run(process.run(configuration.namespace, subjects, metrics))
    except Exception:
        logging.getLogger("firn_operator.signer").exception("the signer ended with an unexpected error")
        return ExitCode.BUG
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
