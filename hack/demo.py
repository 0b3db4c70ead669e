"""`make demo`: start a cluster, ingest the flights and query the table. Exit 0 only if each record arrived exactly once."""

import json

from hack import quickstart
from hack.quickstart import await_until, firn, get, is_ready, kubectl, say

AVERAGE_DELAY = """
select carrier, cast(month(time_hour) as integer) as month, count(*) as flights, round(avg(dep_delay), 1) as average_delay
from lake.demo.flights where carrier in ('UA', 'DL', 'AA', 'HA') group by all order by all
"""


def landed(uid: str, produced: quickstart.Produced) -> bool:
    """Return True if all produced records have landed, by the table's own offsets. Prints the progress."""
    now = quickstart.topic_progress(uid)
    if now is None:
        return False
    say(
        f"landed {now['rows']:,} rows, {now['dead_letters']} dead letters, {now['lag_records']} records behind ({now['state']})"
    )
    if now["lag_records"] != 0 or now["state"] != "CaughtUp":
        return False
    answer = firn("audit", "demo/flights", "--output", "json", check=False)
    if not answer:
        say("firn audit has no result yet")
        return False
    outstanding = produced.outstanding(json.loads(answer))
    if outstanding:
        say(f"{outstanding:,} acknowledged flights are not in the table yet")
    return not outstanding


def main() -> int:
    """Run the demo."""
    say("cluster and images")
    quickstart.cluster_up()
    say("helm upgrade --install firn charts/firn --set networkPolicy.enabled=true,networkPolicy.strict=true")
    closed = {"quickStart.profile.access.plaintext": "Close"}
    quickstart.install(overrides={"networkPolicy.enabled": "true", "networkPolicy.strict": "true", **closed})
    say("kubectl apply -f crds/samples/flights.yaml")
    quickstart.apply_sample("flights")
    topic = await_until("IcebergTopic demo/flights is Ready", lambda: ready(), timeout=420, every=2)
    bootstrap = topic["status"]["bootstrapServers"]
    say("kubectl apply -f crds/samples/users/flights.yaml")
    quickstart.apply_sample("users/flights")
    kubectl("-n", "demo", "wait", "--for=condition=Ready", "topicuser/flights-producer", "--timeout=120s")
    say(f"Ready: topic {topic['status']['topicName']} at {bootstrap}, table {topic['status']['table']['identifier']}")
    produced = quickstart.produce_flights("flights", bootstrap, user="flights-producer")
    say(f"{produced.count:,} flights acknowledged by the brokers; waiting until the table has them")
    await_until(
        "every flight is in the table", lambda: landed(topic["metadata"]["uid"], produced), timeout=420, every=3
    )
    show("kubectl get icebergtopics -A", kubectl("get", "icebergtopics", "-A"))
    show("conditions", kubectl("-n", "demo", "get", "icebergtopic", "flights", "-o", CONDITIONS))
    show(
        "firn sql (DuckDB): average departure delay by carrier and month", firn("sql", " ".join(AVERAGE_DELAY.split()))
    )
    audit = kubectl(
        "-n", quickstart.SYSTEM, "exec", "deploy/firn-operator", "--", "firn", "audit", "demo/flights", check=False
    )
    show("firn audit demo/flights", audit)
    firn("audit", "demo/flights")
    say("the table has every offset of every partition exactly once")
    return 0


CONDITIONS = (
    'jsonpath={range .status.conditions[*]}{.type}{"\\t"}{.status}{"\\t"}{.reason}{"\\t"}{.message}{"\\n"}{end}'
)


def ready() -> quickstart.Manifest | None:
    """Return the topic if it is Ready. Otherwise print the conditions for which it waits, and return None."""
    topic = get("icebergtopic", "flights", "demo")
    if is_ready(topic):
        return topic
    waiting = [
        f"{kind}: {item['reason']}" for kind, item in quickstart.conditions(topic).items() if item["status"] != "True"
    ]
    say("waiting for " + (", ".join(waiting) or "the status of the IcebergTopic"))
    return None


def show(title: str, text: str) -> None:
    """Print a block of output with a title."""
    print(f"\n== {title}\n{text.rstrip()}\n", flush=True)
