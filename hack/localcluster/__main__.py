"""`hack/cluster`: the test cluster of this checkout."""

from __future__ import annotations

import argparse
import json
import sys

from hack.localcluster.layout import Layout
from hack.localcluster.node.local import Local
from hack.localcluster.provider import choose
from hack.support.places import cluster_directory
from hack.support.progress import Failure


def main() -> int:
    """Run one command. Exit code 1, with one message, for an error that the user can correct."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--provider", choices=["auto", "kind", "local"], default="auto")
    parser = argparse.ArgumentParser(prog="hack/cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", parents=[common], help="start the cluster and wait until its node is Ready")
    commands.add_parser("down", parents=[common], help="delete the cluster and all of its files")
    commands.add_parser(
        "status", parents=[common], help="print the status as JSON; exit code 1 if the cluster does not run"
    )
    load = commands.add_parser("load", parents=[common], help="copy a built image into the cluster")
    load.add_argument("image", metavar="IMAGE", nargs="+")
    enter = commands.add_parser(
        "enter", help="run a command in the namespaces of the local node: network, mounts and processes"
    )
    enter.add_argument("words", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    layout = Layout(cluster_directory())
    try:
        if arguments.command == "enter":
            return Local(layout).enter(arguments.words)
        provider = choose(arguments.provider, layout)
        if arguments.command == "status":
            report = provider.status()
            print(json.dumps(report, indent=2))
            return 0 if report["running"] else 1
        if arguments.command == "load":
            for image in arguments.image:
                provider.load(image)
        else:
            provider.up() if arguments.command == "up" else provider.down()
    except Failure as failure:
        print(f"hack/cluster: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
