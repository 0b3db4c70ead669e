"""Types of the fields of Kafka's messages, as kio's classes declare them."""

from typing import Any, get_args

from kio.static.constants import EntityType


def nested_entity(hint: Any) -> Any | None:
    """Find kio's class for the parts that a field of this type holds; None for a field of numbers, strings or bytes."""
    if isinstance(hint, type) and getattr(hint, "__type__", None) is EntityType.nested:
        return hint
    return next((entity for argument in get_args(hint) if (entity := nested_entity(argument)) is not None), None)


def is_array(hint: Any) -> bool:
    """Return whether a field of this type is an array."""
    return "tuple" in str(hint)
