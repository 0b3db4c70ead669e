"""Any sequence of rotations, crashes, faults and losses: the credential of the Secret works."""

import random

import pytest

from firn.model import names
from firn.model.errors import UnavailableError
from tests import gen
from tests.fakes.faults import Killed
from tests.fakes.world import World
from tests.unit.topic_users.test_users import acls

SEEDS = range(40)
METHODS = ("put_credential", "change_acls", "change_quotas", "remove_credential", "describe")


class History:
    """A world with one user, and what may happen to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(gen.with_users())
        self.lost = False
        """True after another client destroyed the Secret or the credential, until the next settled state."""
        self.world.cluster.create(gen.topic("flights", profile="outside"))

    async def begin(self) -> None:
        await self.world.settle()
        rotation = {"every": "30d", "overlap": "1d"}
        manifest = gen.user(authentication={"rotation": rotation}, quotas={"requestPercent": 50})
        self.world.cluster.create(manifest)

    async def step(self) -> None:
        chance, faults = self.random, self.world.faults
        match chance.choice(("run", "run", "kill", "kill", "kill", "rotate", "age", "outage", "loss")):
            case "kill":
                faults.kill_at = faults.calls + chance.randint(1, 8)
                faults.after_effect = chance.random() < 0.5
            case "rotate":
                value = str(chance.random())
                change = lambda live: live["metadata"].setdefault("annotations", {}).update({names.ROTATE: value})  # noqa: E731
                self.world.cluster.edit("checkout", change, spec=False, kind="TopicUser")
            case "age":
                self.world.clock.advance(chance.choice((10, 3600, 86400, 31 * 86400)))
            case "outage":
                self.world.access.problem = {chance.choice(METHODS): UnavailableError("no broker answers")}
            case "loss" if chance.random() < 0.3:
                self.lost = True
                if chance.random() < 0.5:
                    self.world.secrets.secrets.clear()
                else:
                    self.world.access.forget()
        for _ in range(chance.randint(1, 4)):
            try:
                await self.world.operator_only()
            except Killed:
                faults.kill_at = None
                self.world.start()
            self.check()
            self.world.clock.advance(chance.choice((0.1, 1.0, 5.0)))
        if chance.random() < 0.5:
            self.world.access.problem = {}

    def check(self) -> None:
        """Check what holds at each moment, unless another client has destroyed the Secret or the credential."""
        found = self.world.secrets.secrets.get(("demo", "checkout-kafka"))
        live = {user for (_, user), state in self.world.access.states.items() if state.credential}
        assert live <= {"demo.checkout.a", "demo.checkout.b"}
        if found is not None and not self.lost:
            user = found.data["username"]
            assert self.world.access.accepts("outside", user, found.data["password"]), (
                "the Secret has a dead credential"
            )
            assert len(acls(self.world, user)) == 2, "the credential in the Secret has no rights"

    async def end(self) -> None:
        """Let everything recover, and check the result."""
        self.world.access.problem, self.world.faults.kill_at = {}, None
        for _ in range(3):
            self.world.clock.advance(3600)
            await self.world.settle()
        self.lost = False
        self.check()
        found = self.world.secrets.secrets["demo", "checkout-kafka"]
        shown = self.world.cluster.resource("TopicUser", "checkout")["status"]
        assert found.data["username"] == f"demo.checkout.{shown['credentials']['current']}"
        assert self.world.conditions("checkout", kind="TopicUser")["Ready"] == ("True", "AllReady")
        for _ in range(2):  # a request during an overlap is followed after it
            self.world.clock.advance(2 * 86400)
            await self.world.settle()
        self.check()
        [live] = [user for (_, user), state in self.world.access.states.items() if state.credential]
        assert live == self.world.secrets.secrets["demo", "checkout-kafka"].data["username"]
        self.world.cluster.remove("checkout", kind="TopicUser")
        await self.world.settle()
        assert self.world.access.states == {}


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_credential_of_the_secret_works_after_any_sequence(seed: int) -> None:
    history = History(seed)
    await history.begin()
    for _ in range(25):
        await history.step()
    await history.end()


@pytest.mark.parametrize("after_effect", [False, True])
async def test_a_crash_at_each_step_of_a_rotation_is_continued(after_effect: bool) -> None:
    finished = False
    call = 0
    while not finished:
        call += 1
        history = History(0)
        await history.begin()
        await history.world.settle()
        change = lambda live: live["metadata"].setdefault("annotations", {}).update({names.ROTATE: "1"})  # noqa: E731
        history.world.cluster.edit("checkout", change, spec=False, kind="TopicUser")
        faults = history.world.faults
        faults.kill_at, faults.after_effect = faults.calls + call, after_effect
        for _ in range(10):
            try:
                await history.world.operator_only()
            except Killed:
                faults.kill_at = None
                history.world.start()
            history.check()
            history.world.clock.advance(1.0)
        finished = faults.kill_at is not None
        await history.end()
    assert call > 5
