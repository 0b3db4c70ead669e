"""A story: options and an explicit list of steps. Its text replays it, with fewer steps if steps are removed.

In the first part, clients write while faults happen. Then all faults end, and within `PEACE_SECONDS` everything has
to be landed and every condition right.
"""

import ast
import traceback
from collections.abc import Callable, Set
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

from tests.simulation.product import actions, driver, faults
from tests.simulation.product.checker import CHECKS
from tests.simulation.product.threads import Scheduler, virtual
from tests.simulation.product.world import Options, World, quiet

FEW_BYTES = 256
"""`Options.bytes_per_commit` for rounds of a few records."""
PUBLISHING = 3
"""Every so many stories, rows reach main after checks."""
CHAOS_SECONDS = 60.0
PEACE_SECONDS = 150.0
"""Longest time for recovery. A fenced topic is taken back within 60 s; a backoff, or records that halt the topic one
after another, take longer."""
QUIET_SECONDS = 12.0
"""Time in which a record lands in peace, and the status shows it."""
CALLS = {
    "driver": (
        "catalog.commit", "catalog.commit", "catalog.commit", "catalog.load", "catalog.load", "catalog.create", "catalog.open",
        "store.put", "store.manifests", "store.delete", "spark.query", "task.read", "kafka.topics", "kafka.ends", "kafka.starts",
    ),
    "operator": (
        "topics.describe", "topics.create", "tables.ensure", "cluster.patch_status", "cluster.apply", "cluster.get",
    ),
}  # fmt: skip
"""Calls at which faults happen, by process."""
EFFECTS = ("catalog.commit", "catalog.create", "store.put")
"""Calls that may also take effect late or twice."""
KINDS = (faults.LOST, faults.UNANSWERED, faults.SLOW, faults.KILL_BEFORE, faults.KILL_AFTER)
OF_CATALOGS = (faults.EXPIRED, faults.TIMED_OUT)


THEMES = (
    ("compact", "expire"), ("compact", "expire"), ("compact", "roll_back"), ("kill", "retention"), ("outage", "cut_back"),
    ("second_driver", "freeze"), ("second_driver", "kill"), ("recreate_topic", "kill"), ("recreate_topic", "outage"),
    ("outage", "outage"), ("drop_table", "kill"), ("replace_table", "second_driver"), ("clock", "compact"), ("kill", "kill"),
)  # fmt: skip
"""Actions that are dangerous together. A story has those of one theme, and two others."""


@dataclass(frozen=True)
class Step:
    """An action of `actions` at a time, with its arguments."""

    at: float
    action: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Story:
    """Options, and steps in the order of their times."""

    options: Options
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"    ({step.at!r}, {step.action!r}, {step.values!r})," for step in self.steps]
        return "\n".join(["(", f"  {asdict(self.options)!r},", "  [", *lines, "  ],", ")"])

    @classmethod
    def parse(cls, text: str) -> "Story":
        """Read the text of a story."""
        options, steps = ast.literal_eval(text.strip())
        return cls(Options(**options), tuple(Step(*step) for step in steps))


@dataclass
class Outcome:
    """The outcome of a story."""

    wrong: list[str]
    faults: dict[str, int]
    commits: int
    landed: int
    calls: int


def story_of(seed: int) -> Story:
    """Return the story of a seed."""
    chance = Random(seed)
    options = Options(
        seed=seed,
        catalog=chance.choice(("sql", "rest")),
        partitions=chance.choice((1, 2, 3)),
        on_bad_record=chance.choice(("DeadLetter", "DeadLetter", "DeadLetter", "Skip", "Halt")),
    )
    bad = chance.choice((0.0, 0.1, 0.3))
    steps = [
        Step(at, "produce", (chance.randrange(3), chance.randint(1, 5), chance.random() < bad))
        for at in _times(chance, 1.2)
    ]
    steps += [Step(at, "arm", _armed(chance)) for at in _times(chance, chance.choice((3.0, 6.0, 12.0, 60.0)))]
    kinds = (*chance.choice(THEMES), *chance.sample(sorted(actions.ARGUMENTS), 2))
    for at in _times(chance, chance.choice((4.0, 8.0, 12.0))):
        name = chance.choice(kinds)
        steps.append(Step(at, name, actions.ARGUMENTS[name](chance)))
    options = replace(options, bytes_per_commit=chance.choice((options.bytes_per_commit, FEW_BYTES)))
    if seed % PUBLISHING == 0:
        options, steps = _publishing(options, steps)
    return Story(options, tuple(sorted(steps, key=lambda step: step.at)))


def _publishing(options: Options, steps: list[Step]) -> tuple[Options, list[Step]]:
    """Let rows reach main after checks. The other stories stay as they are, because this has its own random numbers."""
    chance = Random(f"publishing {options.seed}")
    found = []
    for at in _times(chance, 12.0):
        name = chance.choice(sorted(actions.OF_PUBLISHING))
        found.append(Step(at, name, actions.OF_PUBLISHING[name](chance)))
    return replace(options, publish=True), [*steps, *found]


def _times(chance: Random, pause: float) -> list[float]:
    times, at = [], chance.expovariate(1 / pause)
    while at < CHAOS_SECONDS:
        times.append(round(at, 2))
        at += chance.expovariate(1 / pause)
    return times


def _armed(chance: Random) -> tuple[Any, ...]:
    process = chance.choice(("driver", "driver", "driver", "rival", "operator"))
    call = chance.choice(CALLS["operator" if process == "operator" else "driver"])
    kinds: tuple[str, ...] = KINDS
    if call in EFFECTS:
        kinds += (faults.LATE, faults.TWICE)
    if call == "catalog.commit":
        kinds += (faults.REFUSED, faults.LATE, faults.UNANSWERED)
    if call.startswith("catalog."):
        kinds += OF_CATALOGS
    if call == "store.put":
        kinds += (faults.FULL,)
    seconds = round(chance.random() * faults.UNKNOWN_SECONDS, 2)
    return process, call, chance.choice(kinds), chance.choice((0, 0, 1, 2)), seconds


def tell(story: Story, checks: Set[str] = CHECKS) -> Outcome:
    """Tell a story, which always ends in the same way. Only the invariants of ``checks`` count."""
    scheduler, errors = Scheduler(), list[str]()
    with quiet(errors), virtual(scheduler, driver.MODULES, Random(story.options.seed)), driver.in_memory():
        world = World(story.options, scheduler, checks)
        try:
            _tell(world, story.steps)
        except Exception as error:
            errors.append("".join(traceback.format_exception(error)[-5:]))
        finally:
            scheduler.end()
    errors += ["".join(traceback.format_exception(error)[-8:]) for error in scheduler.errors]
    checker = world.checker
    calls = sum(host.calls for host in world.every_host)
    return Outcome(
        [*dict.fromkeys(checker.wrong), *(f"unexpected: {error}" for error in errors)],
        dict(world.happened), checker.commits, checker.landed, calls,
    )  # fmt: skip


def _tell(world: World, steps: tuple[Step, ...]) -> None:
    for step in steps:
        world.scheduler.sleep(step.at - world.scheduler.now)
        if world.checker.wrong:
            return
        action: Callable[..., None] = getattr(actions, step.action)
        action(world, *step.values)
    world.scheduler.sleep(CHAOS_SECONDS - world.scheduler.now)
    actions.heal(world)
    _await_peace(world)


def _await_peace(world: World) -> None:
    """Wait until every record has landed and every condition is right, while clients write a little."""
    scheduler = world.scheduler
    until = scheduler.now + PEACE_SECONDS
    while scheduler.now < until and not world.checker.wrong:
        # A driver that was fenced takes a topic back only while records wait.
        actions.produce(world, 0, 1, bad=False)
        scheduler.sleep(QUIET_SECONDS)
        if not world.unsettled():
            # It stays so.
            scheduler.sleep(QUIET_SECONDS)
            if not world.unsettled():
                return
    for problem in world.unsettled():
        world.checker.report("liveness", problem)
