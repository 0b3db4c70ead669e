"""The story of a wrong schema: records become dead letters, the schema is corrected, and a replay gives them their rows."""

import json
import subprocess
import sys

from hack import quickstart
from hack.quickstart import apply, await_until, get
from tests.e2e.commands import firn
from tests.e2e.topics import Produce, await_ready, await_rows, numbered, rows, topic_manifest

LARGE = 2**40
PROGRAM = "import sys; sys.argv[0] = 'firn'; from firn_operator.cli.main import main; sys.exit(main())"


def on_this_machine(*arguments: str, code: int = 0) -> str:
    """Run ``firn`` as a person does, without a configuration of the operator, and return its output."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=quickstart.environment())
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_dead_letters_become_rows_after_the_schema_is_corrected(namespace: str, produce: Produce) -> None:
    narrow = topic_manifest("mended", namespace, partitions=1)
    narrow["spec"]["schema"]["fields"][0]["type"] = "int"
    apply(narrow)
    topic = await_ready("mended", namespace)
    produce(topic, [*numbered(0, 10), *numbered(LARGE, 5), {"key": "bad", "value": "garbage"}])
    table, name = topic["status"]["table"]["identifier"], f"{namespace}/mended"
    await_rows(table, 10)
    await_rows(f"{table}__dlq", 6)
    firn("audit", name)

    apply(topic_manifest("mended", namespace, partitions=1))
    await_ready("mended", namespace)
    counts = json.loads(quickstart.firn("dlq", "list", "--output", "json", name))
    assert {each["code"]: each["letters"] for each in counts} == {"OutOfRange": 5, "InvalidJson": 1}
    assert json.loads(on_this_machine("dlq", "list", "mended", "-n", namespace, "-o", "json")) == counts
    shown = on_this_machine(
        "dlq", "show", f"{namespace}/mended", "--code", "InvalidJson", "--values", "--output", "csv"
    )
    assert shown.count("InvalidJson") == 1
    assert "garbage" in shown
    on_this_machine("dlq", "list", "absent", "-n", namespace, code=2)
    apply(
        {
            "apiVersion": "firn.dev/v1alpha1",
            "kind": "DeadLetterReplay",
            "metadata": {"name": "mend", "namespace": namespace},
            "spec": {"topicRef": {"name": "mended"}, "mode": "Enforce"},
        }
    )

    def finished() -> quickstart.Manifest | None:
        status = (get("deadletterreplay", "mend", namespace) or {}).get("status") or {}
        conditions = {item["type"]: item for item in status.get("conditions", ())}
        return status if conditions.get("Finished", {}).get("status") == "True" else None

    status = await_until("the end of the replay", finished, timeout=300, every=2)
    assert [status.get(key) for key in ("matched", "landed", "failed", "remaining")] == [6, 5, 1, 1], status
    await_rows(table, 15)
    await_rows(f"{table}__dlq", 1)
    assert rows(f'select max(id) as top, count(distinct _kafka."offset") as places from {table}') == [
        {"top": LARGE + 4, "places": 15}
    ]
    firn("audit", name)
