"""``firn dlq replay`` creates a DeadLetterReplay and follows it to its end."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from firn.model.errors import InvalidSpecError, UnavailableError
from firn_operator.cli.resources import replay as replays
from firn_operator.cli.resources.connection import Collection, Connection, Login, Manifest, RefusedError
from firn_operator.cli.resources.replay import Order, ReplayCode

NOW = datetime(2026, 3, 3, 12, 0, tzinfo=UTC)
LANDED = {"matched": 3, "landed": 2, "failed": 1, "remaining": 1, "codes": {"WrongKind": 3}, "failures": {"Inexact": 1}}


def conditions(**verdicts: str) -> list[Manifest]:
    return [
        {"type": kind, "status": status, "reason": "Succeeded", "message": f"{kind} is {status}"}
        for kind, status in verdicts.items()
    ]


class Api:
    """The API server with a topic, and with an operator that answers with these statuses, one for each poll."""

    namespace = "shop"
    login = Login(cast(Any, None), "shop", "context test")

    def __init__(self, *statuses: Manifest | None, refusal: str = "") -> None:
        self.created: list[Manifest] = []
        self._statuses = list(statuses)
        self._refusal = refusal

    def read(self, collection: Collection, name: str) -> Manifest | None:
        if collection.plural == "icebergtopics":
            return {"metadata": {"name": name}} if name == "orders" else None
        status = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
        return None if status is None else {**self.created[0], "status": status}

    def list(self, collection: Collection) -> list[Manifest]:
        return [{"metadata": {"name": "orders"}}]

    def create(self, collection: Collection, body: Manifest) -> Manifest:
        if self._refusal:
            raise RefusedError(422, {"message": self._refusal})
        self.created.append(body)
        return body


def follow(
    api: Api, topic: str = "orders", sleep: Callable[[float], None] = lambda _: None, **order: Any
) -> ReplayCode:
    return replays.run(cast(Connection, api), Order(topic, **order), as_json=False, timeout=5.0, sleep=sleep)


def test_the_command_follows_a_replay_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = {"conditions": conditions(Finished="False", Ready="False")}
    done = {"conditions": conditions(Finished="True", Ready="True"), **LANDED}
    api = Api({}, waiting, waiting, done)
    assert follow(api, codes=("WrongKind",), since="2026-03-01T00:00:00Z", limit=9) is ReplayCode.DONE
    assert api.created[0]["spec"] == {
        "topicRef": {"name": "orders"},
        "mode": "Enforce",
        "ttlAfterFinished": "7d",
        "where": {"codes": ["WrongKind"], "since": "2026-03-01T00:00:00Z"},
        "limit": {"records": 9},
    }
    output = capsys.readouterr()
    assert output.err.count("Finished is False") == 1
    assert "WrongKind" in output.out
    assert output.out.rstrip().endswith("Finished is True")


@pytest.mark.parametrize(
    ("order", "status", "code"),
    [
        ({"dry_run": True}, {"conditions": conditions(Finished="True", Ready="True"), **LANDED}, ReplayCode.WOULD_LAND),
        ({"dry_run": True}, {"conditions": conditions(Finished="True", Ready="True"), "landed": 0}, ReplayCode.DONE),
        ({}, {"conditions": conditions(Finished="True", Ready="False", Stalled="True")}, ReplayCode.REFUSED),
        ({}, {"conditions": conditions(Finished="False", Ready="False", Stalled="True")}, ReplayCode.REFUSED),
    ],
    ids=["letters would land", "no letter would land", "failed", "cannot start"],
)
def test_the_exit_code_says_how_the_replay_ended(order: dict[str, Any], status: Manifest, code: ReplayCode) -> None:
    assert follow(Api(status), **order) is code


def test_an_unknown_topic_has_a_hint_and_creates_nothing() -> None:
    api = Api({})
    with pytest.raises(InvalidSpecError, match="did you mean orders"):
        follow(api, "order")
    assert not api.created


def test_a_replay_that_takes_too_long_goes_on() -> None:
    waiting = {"conditions": conditions(Finished="False")}
    with pytest.raises(UnavailableError, match="goes on: Finished is False; kubectl wait"):
        replays.run(cast(Connection, Api(waiting)), Order("orders"), as_json=False, timeout=0.0, sleep=lambda _: None)


def test_a_replay_that_is_deleted_or_refused_is_an_error() -> None:
    with pytest.raises(InvalidSpecError, match="was deleted before its end"):
        follow(Api(None))
    with pytest.raises(InvalidSpecError, match="refuses the replay: no right"):
        follow(Api(refusal="no right"))


@pytest.mark.parametrize(
    ("since", "moment"),
    [
        ("2d", "2026-03-01T12:00:00Z"),
        ("1500ms", "2026-03-03T11:59:58Z"),
        ("700000d", "0109-08-20T12:00:00Z"),
        ("2026-03-01T01:00:00+01:00", "2026-03-01T00:00:00Z"),
        ("2026-03-01T00:00:00.5Z", "2026-03-01T00:00:00Z"),
        ("2026-01-01", "2026-01-01T00:00:00Z"),
        ("20260101", "2026-01-01T00:00:00Z"),
        ("0001-01-01", "0001-01-01T00:00:00Z"),
        ("0900-01-01T00:00:00Z", "0900-01-01T00:00:00Z"),
    ],
)
def test_since_is_a_time_or_a_duration_before_now(since: str, moment: str) -> None:
    assert Order("orders", since=since).manifest("shop", "orders", NOW)["spec"]["where"] == {"since": moment}


YEARS = "the time is before the year 1 or after the year 9999 in UTC; write a time of these years"


@pytest.mark.parametrize(
    ("since", "words"),
    [
        ("yesterday", "write a time such as"),
        ("2026-02-30", "write a time such as"),
        ("2026-01-01Z", "write a time such as"),
        ("9" * 5000 + "d", "write a time such as"),
        ("2026-03-01T00:00:00", "has no zone; write 2026-03-01T00:00:00Z for UTC"),
        ("2026-03-01T00", "has no zone; write 2026-03-01T00:00:00Z for UTC"),
        *[(since, YEARS) for since in ("1000000d", "99999999d", "99999999999d", "9" * 400 + "ms")],
        *[(since, YEARS) for since in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-10:00")],
    ],
)
def test_a_wrong_since_is_named(since: str, words: str) -> None:
    api = Api({})
    with pytest.raises(InvalidSpecError, match=f"^--since {re.escape(since)}: .*{words}"):
        follow(api, since=since)
    assert not api.created


def test_the_name_of_a_replay_fits_a_label() -> None:
    name = Order("o").manifest("shop", "a" * 80, NOW)["metadata"]["name"]
    assert name == "a" * 36 + "-20260303-120000"


def test_a_cause_that_does_not_exist_creates_no_replay() -> None:
    api = Api({})
    with pytest.raises(InvalidSpecError, match="--code WrongKnd is no cause of dead letters; did you mean WrongKind"):
        follow(api, codes=("WrongKnd",))
    assert not api.created


def test_a_topic_of_another_namespace_than_the_chosen_one_is_refused() -> None:
    api = Api({})
    api.login = Login(cast(Any, None), "shop", "context test", chosen=True)
    with pytest.raises(InvalidSpecError, match="demo/orders is in namespace demo, and --namespace is shop"):
        follow(api, "demo/orders")
    assert not api.created
