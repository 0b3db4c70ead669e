"""Failures of rounds: the translation of exceptions, and the backoff of a topic."""

import re
import time

import structlog
from pyspark.errors.exceptions.captured import PythonException

from firn.model import errors
from firn.model.conditions import Reason
from firn.model.errors import CommitConflictError, FirnError, UnavailableError
from firn_spark.credentials import without_secrets
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.tables.java_errors import JAVA_ERRORS, translate

log = structlog.get_logger()

EXECUTOR_KILLED = ("(SIGKILL, possible container OOM)", "(JVM OOM)")
"""Spark's words for an executor pod that ran out of memory (ExecutorPodsLifecycleManager). The pod no longer exists by then."""
RAISED_BY_TASK = re.compile(r"^firn\.model\.errors\.(\w+Error): (.*)$", re.MULTILINE)
"""An error of ours in the traceback that Spark returns of a task."""
CONFLICTS_RETRIED_AT_ONCE = 3


def fail(topic: Topic, error: Exception) -> None:
    """Log a failure and let the topic back off."""
    failure = classify(error, topic)
    # An exception of a Python worker may be a bug of ours, and only its trace shows the place.
    expected = isinstance(error, (FirnError, *JAVA_ERRORS)) and not isinstance(error, PythonException)
    log.warning(
        "topic failed",
        topic=topic.job.topic,
        namespace=topic.job.namespace,
        error=short(failure)[:800],
        kind=type(failure).__name__,
        failures=topic.attempts.failures + 1,
        exc_info=None if expected else error,
    )
    topic.failed(failure, time.monotonic())
    if isinstance(failure, CommitConflictError) and topic.attempts.failures <= CONFLICTS_RETRIED_AT_ONCE:
        topic.attempts.next_at = 0.0


def classify(error: Exception, topic: Topic) -> FirnError:
    """Translate an exception into an error that shows which party has to act on ``topic``."""
    if isinstance(error, FirnError):
        return error
    subject = f"topic {topic.job.topic}"
    if any(sign in str(error) for sign in EXECUTOR_KILLED):
        return UnavailableError(
            f"{subject}: an executor ran out of memory and was killed; raise the memory or overhead of the group's executors",
            reason=Reason.OUT_OF_MEMORY,
        )
    raised = RAISED_BY_TASK.search(str(error))
    if raised is not None:
        kind: type[FirnError] = getattr(errors, raised[1], UnavailableError)
        return kind(raised[2])
    # An exception of a Python worker is in the text; there is no Java exception behind it.
    if isinstance(error, JAVA_ERRORS) and not isinstance(error, PythonException):
        return translate(error, subject)
    return UnavailableError(f"{subject}: {short(error)}")


def short(error: Exception) -> str:
    """Return class and last lines of an exception, without stack frames and secrets."""
    text = without_secrets(str(error))
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "File "))]
    return f"{type(error).__name__}: {' '.join(lines[-3:] if len(lines) > 3 else lines)}"[:1000]
