"""Shorter stories that fail in the same way: steps are left out as long as the story still fails (delta debugging)."""

from collections.abc import Callable
from dataclasses import replace

from tests.simulation.product.story import Outcome, Story, tell

TRIES = 250
"""Tries before shrinking ends. Each takes about 0.2 s."""


def shrunk(story: Story, fails: Callable[[Story], bool], tries: int = TRIES) -> Story:
    """Return ``story`` without the steps that ``fails`` does not need, in at most so many tries."""
    size = max(1, len(story.steps) // 2)
    while tries > 0 and story.steps:
        begin, removed = 0, False
        while begin < len(story.steps) and tries > 0:
            tries -= 1
            shorter = replace(story, steps=(*story.steps[:begin], *story.steps[begin + size :]))
            if fails(shorter):
                story, removed = shorter, True
            else:
                begin += size
        if size == 1 and not removed:
            break
        size = max(1, size // 2)
    return story


def kind(outcome: Outcome) -> str:
    """Return the invariant that a story breaks first; empty if none."""
    return outcome.wrong[0].partition(":")[0] if outcome.wrong else ""


def report(story: Story, outcome: Outcome) -> str:
    """Return the text about a failing story: what is wrong, and a short story that replays it."""
    first = kind(outcome)
    short = shrunk(story, lambda shorter: kind(tell(shorter)) == first)
    problems = "\n".join(tell(short).wrong[:5])
    return (
        f"{problems}\n\nThe {len(short.steps)} steps of {len(story.steps)} that are enough. To replay them,"
        f" save this text as tests/simulation/product/stories/NAME.txt:\n\n{short}\n"
    )
