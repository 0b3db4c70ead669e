"""The collector of messages finds whole texts, however many functions build them."""

import re
import textwrap
from pathlib import Path

import pytest

from hack.vocabulary.messages import messages
from tests.markdown import ROOT

SOURCES = (
    pytest.param('raise NotReadyError(f"no broker of {fleet.service} is ready")', "no broker of {service} is ready"),
    pytest.param(
        """
        def check(name):
            subject = f"pod {name}"
            if bad:
                raise NotReadyError(f"{subject} is ill" + ("; see its log" if known else ""))
        """,
        "pod {name} is ill; see its log",
        id="a local variable and a choice",
    ),
    pytest.param(
        """
        def error(problem):
            return InvalidSpecError(f"type {text!r}: {problem}")

        def parse():
            raise error("ends too early")
        """,
        "type {text}: ends too early",
        id="the argument of a helper",
    ),
    pytest.param(
        """
        def cause():
            return "no heap"

        def report():
            return Verdict("False", Reason.STARTING, f"waiting: {cause()}")
        """,
        "waiting: no heap",
        id="the result of a helper",
    ),
    pytest.param(
        """
        def outcome():
            return "Gone", f"table {name} does not exist"

        def report():
            result, message = outcome()
            return TableReport(result, message=message)
        """,
        "table {name} does not exist",
        id="one of several results",
    ),
    pytest.param(
        """
        def report(run):
            parts = []
            parts.append(f"{run['filesBefore']} files rewritten")
            return Announcement("Normal", COMPACTED, f"run {run['name']}: {'; '.join(parts)}")
        """,
        "run {name}: {files_before} files rewritten",
        id="the elements of a list",
    ),
    pytest.param('STATUS = {"message": "not read yet"}', "not read yet", id="a value of a dictionary"),
    pytest.param('def problems():\n    return [f"{field} is new"]', "{field} is new", id="a returned list"),
    pytest.param(
        """
        async def source_problem(name) -> str | None:
            text = f"Secret {name} has no ca.crt"
            return None if known else f"{text}; add it"
        """,
        "Secret {name} has no ca.crt; add it",
        id="the result of a function that finds a problem",
    ),
    pytest.param('reasons += [f"{name} is new" for name in names]', "{name} is new", id="more elements of a list"),
    pytest.param('print(f"{path} is in use", file=sys.stderr)', "{path} is in use", id="a line on standard error"),
)


@pytest.mark.parametrize(("code", "text"), SOURCES)
def test_a_message_is_one_whole_text(tmp_path: Path, code: str, text: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(textwrap.dedent(code))
    assert [message for _, message in messages(path)] == [text]


def test_bugs_logs_and_bare_values_are_no_messages(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        'raise AssertionError("cannot be")\nlog.warning("no answer yet")\nraise NotReadyError(str(error))\n'
    )
    assert not list(messages(path))


IMMUTABLE = re.compile(
    r"(spec\.)?(profile|topicName|table\.(catalog|namespace|name)) ?[:,;]|\b(profile|catalog)\b.*choose another"
)
CHANGE = re.compile(
    r"\b(choose|set|change|correct) (one|another|it|spec\.profile|spec\.table\.(catalog|namespace|name))\b"
)


def test_no_message_advises_to_change_a_field_that_the_api_keeps() -> None:
    page = (ROOT / "docs/reference/messages.md").read_text().splitlines()
    advice = [line for line in page if IMMUTABLE.search(line) and CHANGE.search(line)]
    assert not [line for line in advice if "create this IcebergTopic again" not in line]
