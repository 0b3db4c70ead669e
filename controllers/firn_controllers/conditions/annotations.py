"""Remarks about annotations of ``firn.dev`` that have no effect, because of their name or their value."""

import difflib
import re
from collections.abc import Collection, Mapping

from firn.model import names
from firn.model.jobs import RESUME
from firn.schemas.changes import APPROVAL_DIGITS

ON_POLICIES = (names.PAUSE, names.RUN_NOW)
ON_TOPIC_SETS = (names.PAUSE,)
ON_TOPIC_USERS = (names.PAUSE, names.FORCE_DELETION, names.ROTATE)
ON_TOPICS = (
    *ON_POLICIES,
    names.FORCE_DELETION,
    names.RESUME,
    names.RESTART,
    names.ACKNOWLEDGE_LOSS,
    names.ACKNOWLEDGE_AUDIT,
    names.APPROVE,
    names.PUBLISH,
)
_SWITCH = (re.compile(r"true|false"), '"true", or remove it')
_FORMS = {
    names.PAUSE: _SWITCH,
    names.FORCE_DELETION: _SWITCH,
    names.RESUME: (re.compile(f"skip|{RESUME}"), "skip or skip:PARTITION:OFFSET"),
    names.APPROVE: (re.compile(f"[0-9a-f]{{{APPROVAL_DIGITS}}}"), "the value in the message of SchemaCompatible"),
    names.PUBLISH: (re.compile(r"[0-9]{1,19}"), "the value in the message of Published"),
    names.ACKNOWLEDGE_LOSS: (re.compile(r"[0-9]+-\S*"), "the name of a loss, which the message of Complete has"),
}
"""Annotation -> the values that it takes, and their description. Others take any value."""


def ours(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations of ``firn.dev``."""
    return {key: value for key, value in annotations.items() if key.startswith(f"{names.GROUP}/")}


def misread(annotations: Mapping[str, str], key: str) -> bool:
    """Return whether the annotation has a value that the operator does not understand."""
    value = annotations.get(key)
    return value is not None and key in _FORMS and not _FORMS[key][0].fullmatch(value)


def remarks(annotations: Mapping[str, str], known: Collection[str]) -> str:
    """Return a text that starts with a semicolon and has a remark on each annotation without effect, or an empty text.

    ``known`` has the annotations of this kind of resource.
    """
    notes: list[str] = []
    notes += [
        f"annotation {key} has an invalid value: write {_FORMS[key][1]}" for key in known if misread(annotations, key)
    ]
    # The operator writes the hash of the template into the IcebergTopics of a TopicSet.
    others = [key for key in ours(annotations) if key not in known and key != names.TEMPLATE_HASH]
    notes += [f"annotation {key} has no effect; {_advice(key, known)}" for key in others]
    return "".join(f"; {note}" for note in sorted(notes))


def _advice(key: str, known: Collection[str]) -> str:
    prefix = f"{names.GROUP}/"
    similar = difflib.get_close_matches(key.removeprefix(prefix), [name.removeprefix(prefix) for name in known], n=1)
    if similar:
        return f"did you mean {prefix}{similar[0]}?"
    return f"known are {', '.join(sorted(known))}"
