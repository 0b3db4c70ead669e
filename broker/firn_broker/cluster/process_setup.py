"""The first steps of a process: its logs, and its end together with its parent."""

import ctypes
import logging
import signal
import sys

import structlog

_PR_SET_PDEATHSIG = 1


def log_as_json() -> None:
    """Write every log line as a JSON object with time, level and event."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Let the kernel send this process a signal when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
