"""Quality rules judge rows before they land."""

from firn.model.jobs import QualityRule
from tests.integration.ingestion.world import World, exactly, places, value


def test_records_that_fail_rules_are_dead_letters_or_counted_or_stop_the_topic(world: World) -> None:
    topic = world.topic()
    rules = (
        QualityRule(name="small", check="id between 0 and 79"),
        QualityRule(name="even", check="id / 2 in (0, 1, 2)", on_fail="Count"),
        QualityRule(name="known", check="id < 1000", on_fail="Halt"),
    )
    job = world.job(topic, quality_rules=rules)
    records = [value(n) for n in range(100)]
    world.produce(topic, [*records, value(1000), value(1)])
    world.apply(job)
    world.start()
    halted = world.await_state(job, "Halted", failed_rules={"small": 21, "even": 98, "known": 1}).halted_at
    assert halted is not None
    assert (halted.offset, halted.code, halted.rule) == (100, "QualityRule", "known")
    dead = world.dead(job)
    assert places([*world.rows(job), *dead]) == exactly({0: 100})
    assert [row["value"] for row in dead] == records[80:]
    assert {(row["error_code"], row["error_path"], row["error_detail"]) for row in dead} == {
        ("QualityRule", "$.id", "rule small: id between 0 and 79")
    }
    # Without the rule that stops the topic, the record is a dead letter of another rule.
    world.apply(job.model_copy(update={"generation": 2, "quality_rules": rules[:2]}))
    world.await_state(job, "CaughtUp", generation=2, rows=81, dead_letters=21)
    assert places([*world.rows(job), *world.dead(job)]) == exactly({0: 102})
