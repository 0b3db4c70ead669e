"""The effects of a manifest, as `firn plan` lists them."""

from dataclasses import dataclass
from enum import StrEnum


class EffectKind(StrEnum):
    """Kinds of effects."""

    CREATED = "created"
    CHANGED = "changed"
    REWRITTEN = "rewritten"
    """Runs write data files of the table again."""
    RESTARTED = "restarted"
    """A driver starts its work on the topic again. No pod restarts."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect on one field. ``before`` and ``after`` are empty for a value that is not set."""

    kind: EffectKind
    field: str
    text: str = ""
    """The effect in plain words; for a refusal the cause with the next step."""
    before: str = ""
    after: str = ""
    reason: str = ""
    """Reason of a refusal: that of the condition, or that of the API server."""


def changed(field: str, text: str, before: str = "", after: str = "") -> Effect:
    """Return the effect of a changed field."""
    return Effect(EffectKind.CHANGED, field, text, before, after)


def created(field: str, text: str) -> Effect:
    """Return the effect that an object is created."""
    return Effect(EffectKind.CREATED, field, text)


def refused(field: str, text: str, reason: str) -> Effect:
    """Return the refusal of a field."""
    return Effect(EffectKind.REFUSED, field, text, reason=reason)
