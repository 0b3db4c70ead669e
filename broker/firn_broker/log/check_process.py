"""The process that checks produced batches: frames on standard input, answers on standard output.

A frame is a length of 4 bytes and a batch. The answer is a length of 4 bytes, and for a rejected batch the error code (2 bytes) and
the message.
"""

import os
import signal
import sys
from collections.abc import Callable

from firn.records import keys
from firn.records.record_batch import InvalidBatchError, rewritten

NICENESS = 10
"""The check must not take a core from the broker's event loop."""


def answer(data: bytes) -> bytes:
    """Return the answer for a batch: nothing if a compacted topic may take it."""
    try:
        keys.require(rewritten(memoryview(data)))
    except InvalidBatchError as error:
        return error.code.value.to_bytes(2, "big", signed=True) + str(error).encode()
    return b""


def serve(answer: Callable[[bytes], bytes], niceness: int = NICENESS) -> None:
    """Answer frames until standard input ends. ``niceness`` lowers the priority."""
    # The broker ends this process. A terminal or systemd sends these signals to all processes while the broker still answers requests.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.nice(niceness)
    while size := sys.stdin.buffer.read(4):
        answered = answer(sys.stdin.buffer.read(int.from_bytes(size, "big")))
        sys.stdout.buffer.write(len(answered).to_bytes(4, "big") + answered)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    serve(answer)
