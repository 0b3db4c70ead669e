"""The reference of conditions: types and reasons, and the reasons of Events, with their meanings."""

from firn.model.conditions import ConditionType
from hack.support.places import REPOSITORY
from hack.vocabulary.sources import cell, documented_members

_CONDITIONS = REPOSITORY / "firn" / "model" / "conditions.py"
_EVENTS = REPOSITORY / "controllers" / "firn_controllers" / "conditions" / "announcements.py"
_PREFACE = """\
# Conditions and Events

`make generate` writes this page from the code. Types and reasons are a closed list: a new one is a change of the public
interface. The message of a condition names the object, the cause and the next step; [Messages](messages.md) lists the
texts. [When something is wrong](../operations/troubleshooting.md) says what to do for each reason.
"""

_BORROWED = """If a condition stops `Ready`, `Ready` has the reason of that condition. The table names `Ready` only for reasons that
no other condition explains.
"""


def markdown() -> str:
    """Return the whole page."""
    parts = [_PREFACE, "## Condition types\n", "| type | meaning |", "|---|---|"]
    parts += [f"| `{kind}` | {cell(text)} |" for kind, text in documented_members(_CONDITIONS, "ConditionType").items()]
    parts += ["", "## Reasons\n", _BORROWED, "| reason | conditions | meaning |", "|---|---|---|"]
    for reason, text in documented_members(_CONDITIONS, "Reason").items():
        kinds, _, meaning = text.partition(": ")
        types = {str(kind) for kind in ConditionType}
        assert set(kinds.split(", ")) <= types, f"{reason}: start its docstring with the conditions that use it"
        parts.append(f"| `{reason}` | {', '.join(f'`{kind}`' for kind in kinds.split(', '))} | {cell(meaning)} |")
    parts += ["", "## Events\n", "| reason | meaning |", "|---|---|"]
    parts += [f"| `{reason}` | {cell(text)} |" for reason, text in documented_members(_EVENTS, "EventReason").items()]
    return "\n".join(parts) + "\n"
