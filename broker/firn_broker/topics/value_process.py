"""The process that decodes the values of produced batches (`firn_broker.topics.value_checks`)."""

import resource
from functools import partial

from firn_broker.log import check_process
from firn_broker.topics.value_checks import Judge, answer

MOST_MEMORY = 160 << 20
"""Bytes of data. The pod has one limit of memory for all its processes, and a hostile value must not exceed it."""

NICENESS = 0
"""Produce requests wait for this process. With a lower priority, they wait several times longer on a busy machine."""


def main() -> None:
    """Answer until standard input ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    check_process.serve(partial(answer, Judge()), NICENESS)


if __name__ == "__main__":
    main()
