"""The command line tool ``firn``."""

import sys


def main() -> int:
    """Entry of ``firn``; the exit code."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["quickstart-secrets"]:
        from firn_operator import quickstart_secrets

        return quickstart_secrets.main(arguments[1:])
    print("usage: firn quickstart-secrets ...", file=sys.stderr)
    return 2
