"""Measure the time of publish on topics of a diskless broker whose gate checks the values, against a topic without a gate.

The client is librdkafka. Each load has small batches. In each of many short rounds, its topics take turns in another order, so that
other work of the machine hits all of them. A figure is the median over the rounds. The 99th percentile also has the median of its ratio
to that of the topic without a gate in the same round, with the interval of this median. JSON with a map is a schema whose values only
the strict decoder decides.
"""

from __future__ import annotations

import json
import random
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from firn.decoders.checks import packed
from firn.model.jobs import Column, RecordSchema
from hack.bench.measuring.commits import percentile
from hack.bench.measuring.figures import Figure
from hack.bench.measuring.process_tree import cpu_by_part
from hack.bench.options import Options
from hack.bench.records import avro, measurements, protobuf
from hack.support.progress import say
from tests.servers.firn_broker import FirnBroker, embedded

LOADS = (2_000, 10_000)
"""Records a second."""
BATCH_RECORDS, TICK_SECONDS = 50, 0.005
"""Most records of a batch, and the seconds after which the client sends the records that are due."""
PARTITIONS = 4
ROUNDS, SECONDS, WARM_SECONDS = 20, 2.0, 0.5
INTERVAL = slice(5, 15)
"""The sixth to fifteenth of the 20 sorted ratios: a confidence interval of 95.9 % for their median."""
SCHEMA_ID = 1
FRAMING = b"\0" + SCHEMA_ID.to_bytes(4, "big")
PEER = "a topic without a gate"


class Round(NamedTuple):
    """Milliseconds of publish, and the CPU microseconds of the broker for a record."""

    p50: float
    p99: float
    cpu: float


_WITH_MAP = RecordSchema(
    format="Json", fields=(*measurements.COLUMNS, Column(name="labels", type="map<string, string>"))
)
_OF_TOPIC = {
    "decode": measurements.SCHEMA,
    "decode_map": _WITH_MAP,
    "decode_avro": RecordSchema(format="Avro", text=json.dumps(avro.SCHEMA), framing="Registry"),
    "decode_protobuf": RecordSchema(format="Protobuf", text=protobuf.TEXT, framing="Registry"),
}


def measure(options: Options) -> Iterator[Figure]:
    """Yield median and 99th percentile of the time of publish, and the broker's CPU time, for each gate and load."""
    with (
        registry() as url,
        embedded(options.directory / "gate", FIRN_BROKER_REGISTRIES=json.dumps({"main": {"url": url}})) as broker,
    ):
        topics = create(broker.bootstrap)
        order, pick = list(topics), random.Random(0)
        for rate in LOADS:
            rounds: dict[str, list[Round]] = {kind: [] for kind in topics}
            for turn in range(ROUNDS + 1):
                say(f"{rate} records a second, round {turn} of {ROUNDS}")
                pick.shuffle(order)
                for kind in order:
                    found = publish(broker, kind, topics[kind], rate)
                    if turn:  # The first round starts processes and compiles schemas.
                        rounds[kind].append(found)
            medians = {kind: Round(*map(statistics.median, zip(*each, strict=True))) for kind, each in rounds.items()}
            yield from figures(rate, medians)
            yield from ratios(rate, rounds)


def figures(rate: int, medians: Mapping[str, Round]) -> Iterator[Figure]:
    """Yield the figures of a load."""
    units = (("p50", "ms of publish"), ("p99", "ms of publish"), ("cpu", "CPU us of the broker for a record"))
    for place, (name, unit) in enumerate(units):
        for kind, found in medians.items():
            peer, theirs = (None, None) if kind == "none" else (PEER, medians["none"][place])
            yield Figure(f"gate_{rate}_{kind}_{name}", found[place], f"{unit}, {rate} records/s", "lower", peer, theirs)


def ratios(rate: int, rounds: Mapping[str, Sequence[Round]]) -> Iterator[Figure]:
    """Yield the median of the rounds' ratios of 99th percentiles to those without a gate, and the ends of its interval."""
    for kind, each in rounds.items():
        if kind == "none":
            continue
        found = sorted(own.p99 / other.p99 for own, other in zip(each, rounds["none"], strict=True))
        middle = found[INTERVAL]
        for name, value in (("", statistics.median(found)), ("_least", middle[0]), ("_most", middle[-1])):
            yield Figure(
                f"gate_{rate}_{kind}_p99_ratio{name}", value, f"of {PEER} in the same round, {rate} records/s", "lower"
            )


def create(bootstrap: str) -> Mapping[str, Sequence[bytes]]:
    """Create a topic for each gate. Return the values for it."""
    count = LOADS[-1]
    of_json = [FRAMING + value for value in measurements.Generator().generate(count)]
    values: dict[str, Sequence[bytes]] = {
        "none": of_json,
        "id": of_json,
        "decode": of_json,
        "decode_map": [
            value[:-1] + b',"labels":{"line-%d":"a"}}' % (number % 100) for number, value in enumerate(of_json)
        ],
        "decode_avro": avro.Encoder(SCHEMA_ID).generate(count),
        "decode_protobuf": protobuf.Encoder(SCHEMA_ID).generate(count),
    }
    configs = {"none": {}, "id": {"firn.schema.gate": "Id", "firn.schema.registry": "main"}}
    for kind, schema in _OF_TOPIC.items():
        configs[kind] = {"firn.schema.gate": "Decode", "firn.schema.contract": packed(schema)}
    topics = [NewTopic(name, PARTITIONS, 1, config=configs[name]) for name in values]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics(topics).values():
        future.result(30)
    return values


def publish(broker: FirnBroker, topic: str, values: Sequence[bytes], rate: int) -> Round:
    """Publish at a constant rate. The time is that from send to acknowledgement of one record of each tick.

    Callbacks of all records would take most of a core. Those of the first `WARM_SECONDS` do not count.
    """
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 5,
            "batch.num.messages": BATCH_RECORDS,
            "acks": "all",
            "log_level": 3,
        }
    )
    took: list[float] = []
    size = int(rate * TICK_SECONDS)
    messages = [{"value": value} for value in values]
    parts = cycle(messages[start : start + size] for start in range(0, len(messages) - size + 1, size))
    ticks = int((WARM_SECONDS + SECONDS) / TICK_SECONDS)
    spent, begun = cpu(broker), time.perf_counter()
    for tick in range(ticks):
        due = begun + tick * TICK_SECONDS
        while (left := due - time.perf_counter()) > 0:
            producer.poll(left)
        part, place = next(parts), tick % PARTITIONS
        assert producer.produce_batch(topic, part[:-1], partition=place) == size - 1
        counted = tick * TICK_SECONDS >= WARM_SECONDS
        producer.produce(
            topic, part[-1]["value"], partition=place, on_delivery=partial(_note, took if counted else [], due)
        )
    assert producer.flush(60) == 0
    return Round(percentile(took, 0.5), percentile(took, 0.99), (cpu(broker) - spent) / (ticks * size) * 1e6)


def cpu(broker: FirnBroker) -> float:
    """Return the CPU seconds of the broker with its processes."""
    assert broker.process is not None
    return sum(cpu_by_part(broker.process.pid).values())


def _note(took: list[float], due: float, error: KafkaError | None, _: Message) -> None:
    assert error is None, error
    took.append((time.perf_counter() - due) * 1000)


@contextmanager
def registry() -> Iterator[str]:
    """Serve the answer that the subject of the topic ``id`` has the only schema."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps([{"subject": "id-value", "version": 1}]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
