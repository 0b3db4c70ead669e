"""Entry of the signer: ``firn-signer``, or ``python -m firn_operator.signer``."""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence

from firn.model import config, names
from firn.model.errors import ExitCode, FirnError, InvalidSpecError
from firn_operator.process import telemetry
from firn_operator.signer import process


def main(arguments: Sequence[str] | None = None) -> int:
    """Keep certificates until SIGTERM, or create those of new stores, and return the exit code.

    The environment names the configuration file (FIRN_CONFIG) and the address of metrics and probe (FIRN_METRICS_LISTEN).
    """
    given = _parser().parse_args(arguments)
    if given.create is not None:
        return _create(given.create, given.store, also_existing=given.also_existing, closing=dict(given.closes))
    try:
        configuration = config.load(os.environ.get("FIRN_CONFIG", names.CONFIG_PATH))
        subjects = process.subjects(configuration)
    except InvalidSpecError as error:
        print(f"firn-signer: {error}", file=sys.stderr)
        return ExitCode.CONFIGURATION
    telemetry.configure_logs(configuration.log_level)
    metrics = telemetry.address("FIRN_METRICS_LISTEN", telemetry.METRICS_PORT)
    stores = process.store_subjects(configuration.namespace, given.store)
    try:
        asyncio.run(process.run(configuration.namespace, subjects, stores, metrics))
    except Exception:
        logging.getLogger("firn_operator.signer").exception("the signer ended with an unexpected error")
        return ExitCode.BUG
    return ExitCode.DONE


def _create(namespace: str, stores: Sequence[str], *, also_existing: bool, closing: Mapping[str, str]) -> int:
    """Create certificates of stores. Only a decision that the user must make is an error of the configuration."""
    try:
        asyncio.run(process.create(namespace, stores, also_existing=also_existing, closing=closing))
    except InvalidSpecError as error:
        print(f"firn-signer: {error}", file=sys.stderr)
        return ExitCode.CONFIGURATION
    except FirnError as error:
        print(f"firn-signer: {error}", file=sys.stderr)
        return ExitCode.TEMPORARY
    return ExitCode.DONE


def _named(text: str) -> tuple[str, str]:
    profile, separator, key = text.partition("=")
    if not (profile and separator and key):
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form PROFILE=KEY")
    return profile, key


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="firn-signer", description="Issue and renew certificates.")
    parser.add_argument(
        "--store", action="append", default=[], metavar="NAME", help="a store of the quick start; may be repeated"
    )
    parser.add_argument(
        "--create", metavar="NAMESPACE", help="create the certificates of the stores in this namespace, and end"
    )
    parser.add_argument(
        "--closes",
        action="append",
        default=[],
        type=_named,
        metavar="PROFILE=KEY",
        help="fail if brokers of this profile are open; KEY is its key in the values; may be repeated",
    )
    parser.add_argument("--also-existing", action="store_true", help="also of stores that run without TLS")
    return parser


if __name__ == "__main__":
    sys.exit(main())
