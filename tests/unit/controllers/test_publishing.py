"""The operator passes publishing to the driver, and reports how far main is behind the branch."""

from typing import Any

import pytest

from firn.model import names
from firn.model.jobs import Publish, PublishCheck
from firn.model.progress import CheckResult, PublishProgress
from firn_controllers.preview.topics import preview
from tests import gen
from tests.fakes.world import World

SCHEMA = {"format": "Json", "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}]}
CHECK = {"name": "nulls", "check": "null_share(note) < 0.5"}
FAILED = CheckResult(name="nulls", passed=False, values="null_share(note) = 0.7")
PASSED = CheckResult(name="nulls", passed=True, values="null_share(note) = 0")


async def created(**publish: Any) -> World:
    live = World()
    live.cluster.create(gen.topic("flights", schema=SCHEMA, quality={"publish": {"checks": [CHECK], **publish}}))
    await live.settle()
    return live


async def report(live: World, state: str, *checks: CheckResult, **more: Any) -> None:
    progress = PublishProgress.model_validate({"branch": "staging", "state": state, "checks": checks, **more})
    live.driver.report_fields["uid-demo-flights"] = {"publish": progress}
    await live.settle()


def status(live: World) -> dict[str, Any]:
    found: dict[str, Any] = live.cluster.resource("IcebergTopic", "flights")["status"]
    return found


async def test_the_contract_has_the_branch_the_checks_and_the_approval() -> None:
    live = await created(every="1m")
    checks = (PublishCheck(name="nulls", check="null_share(note) < 0.5"),)
    assert live.job().publish == Publish(branch="staging", every_ms=60_000, checks=checks)
    live.cluster.edit("flights", gen.annotated(names.PUBLISH, "6329823111111111111"))
    await live.settle()
    assert live.job().publish == Publish(branch="staging", every_ms=60_000, checks=checks, approved=6329823111111111111)


async def test_a_contract_without_publishing_does_not_mention_it() -> None:
    live = World()
    live.cluster.create(gen.topic("flights"))
    await live.settle()
    assert "publish" not in live.job().model_dump_json()
    assert "Published" not in live.conditions()


async def test_a_held_table_names_the_check_and_the_way_out() -> None:
    live = await created()
    assert live.conditions()["Published"] == ("Unknown", "Pending")
    await report(live, "Held", FAILED, rows=30, since=1e9, snapshot=77, failures={"nulls": 2})
    assert live.conditions()["Published"] == ("False", "ChecksFailed")
    assert live.conditions()["Ready"] == ("True", "AllReady")
    assert "check nulls: null_share(note) = 0.7" in live.message("Published")
    assert "kubectl -n demo annotate --overwrite itopic flights firn.dev/publish=77" in live.message("Published")
    assert status(live)["publish"] == {
        "branch": "staging",
        "waitingRows": 30,
        "waitingSince": "2001-09-09T01:46:40Z",
        "heldSnapshot": "77",
        "checks": [{"check": "nulls", "passed": False, "values": "null_share(note) = 0.7", "failed": 2}],
    }
    await report(live, "Published", PASSED)
    assert live.conditions()["Published"] == ("True", "ChecksPassed")
    assert "heldSnapshot" not in status(live)["publish"]


async def test_checks_without_a_result_hold_the_rows_although_failures_are_published() -> None:
    live = await created(onFail="Publish")
    cause = "the rows that main lacks cannot be read: Connection refused; the driver reads them again within a minute"
    await report(live, "Held", FAILED, rows=30, since=1e9, snapshot=77, message=cause)
    assert live.conditions()["Published"] == ("False", "ChecksFailed")
    assert live.message("Published") == (
        f"main stays, and rows land on branch staging, because the checks have no result: {cause}; or publish the rows without checks:"
        " kubectl -n demo annotate --overwrite itopic flights firn.dev/publish=SNAPSHOT, where SNAPSHOT is status.publish.heldSnapshot"
    )


async def test_each_attempt_to_read_the_rows_leaves_the_message_and_updates_the_snapshot_later() -> None:
    live = await created()

    async def attempt(number: int) -> None:
        cause = (
            f"the rows that main lacks cannot be read: Py4JJavaError: Job aborted due to stage failure: Task 0 in stage {number}.0 failed 4"
            f" times, most recent failure: Lost task 0.3 in stage {number}.0 (TID {7 * number}) (10.0.0.7 executor {number}): NotFoundException"
            f" (Service: S3, Status Code: 404, Request ID: 17C{number}, Extended Request ID: dd9+{number}=); the driver reads them again"
        )
        await report(live, "Held", FAILED, rows=number, since=1e9, snapshot=70 + number, message=cause)

    await attempt(1)
    message, written = live.message("Published"), status(live)
    assert "Lost task … in stage … (TID …) (10.0.0.7 executor …): NotFoundException" in message
    assert "(Service: S3, Status Code: 404, Request ID: …, Extended Request ID: …)" in message
    await attempt(2)
    assert status(live) == written
    live.clock.advance(60)
    await attempt(3)
    assert live.message("Published") == message
    assert status(live)["publish"]["heldSnapshot"] == "73"


@pytest.mark.parametrize(
    ("state", "check", "condition"),
    [
        ("Waiting", PASSED, ("True", "ChecksPassed")),
        ("Published", FAILED, ("True", "PublishedUnchecked")),
        ("MainMoved", FAILED, ("False", "MainMoved")),
    ],
)
async def test_each_state_has_its_reason(state: str, check: CheckResult, condition: tuple[str, str]) -> None:
    live = await created(onFail="Publish")
    await report(live, state, check)
    assert live.conditions()["Published"] == condition


async def test_a_refused_branch_stops_ingestion_and_says_so() -> None:
    live = await created()
    message = (
        "table lake.demo.flights: the catalog refuses branch staging: it ignores branches of tables; remove spec.quality.publish, or use a"
        " catalog with branches"
    )
    refusal: dict[str, object] = {"state": "BackingOff", "reason": "BranchRefused", "message": message}
    live.driver.report_fields["uid-demo-flights"] = refusal
    await live.settle()
    for kind in ("Published", "IngestionReady", "Ready"):
        assert live.conditions()[kind] == ("False", "BranchRefused")


@pytest.mark.parametrize(
    ("checks", "reason", "text"),
    [
        ([{"name": "a", "check": "note is null"}], "BadRule", "the check has no aggregate"),
        ([{"name": "a", "check": "max(x) > 1"}], "UnknownColumn", "'x' is not a column of the table"),
        ([CHECK, CHECK], "BadRule", "two checks have the name nulls"),
    ],
)
async def test_a_wrong_check_is_refused(checks: list[dict[str, str]], reason: str, text: str) -> None:
    live = await created(checks=checks)
    assert live.conditions()["SpecValid"] == ("False", reason)
    assert text in live.message("SpecValid")


@pytest.mark.parametrize("value", ["yes", "9" * 5000])
async def test_an_approval_that_is_no_snapshot_has_a_remark(value: str) -> None:
    live = await created()
    live.cluster.edit("flights", gen.annotated(names.PUBLISH, value))
    await live.settle()
    assert "annotation firn.dev/publish has an invalid value" in live.message("SpecValid")


async def test_a_plan_says_how_rows_reach_readers() -> None:
    plain = gen.observed(gen.topic("flights", schema=SCHEMA))
    checked = gen.observed(gen.topic("flights", schema=SCHEMA, quality={"publish": {"checks": [CHECK]}}))
    texts = {effect.field: effect.text for effect in preview(plain, checked) if "quality" in effect.field}
    assert "spec.quality.rules" not in texts
    assert set(texts.values()) == {
        "rows land on branch staging of table lake.demo.flights, and are held there if a check fails"
    }
    back = [effect.text for effect in preview(checked, plain) if "quality" in effect.field]
    assert set(back) == {"rows land on main of table lake.demo.flights, which gets all rows of the branch at once"}
