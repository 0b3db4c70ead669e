"""The published samples work unchanged."""

from pathlib import Path
from typing import Any

import pytest

from hack import quickstart
from hack.quickstart import ROOT, kubectl
from tests.e2e.topics import await_ready
from tests.servers.apicurio import Apicurio

SAMPLES = sorted(path.stem for path in (ROOT / "crds" / "samples").glob("*.yaml"))
NEEDS_A_TOPIC = {"existing-topic"}
"""Samples for a topic that exists already. Here the operator creates that topic."""


SHIPMENT: dict[str, Any] = {
    "type": "record",
    "name": "Shipment",
    "fields": [{"name": "shipped_at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
}

REVIEW = {"type": "object", "properties": {"written_at": {"type": "string", "format": "date-time"}}}
RETURN = (
    'syntax = "proto3"; package shop.v1; import "google/protobuf/timestamp.proto";'
    " message Return { google.protobuf.Timestamp returned_at = 1; }"
)
BOOKING = {
    "type": "record",
    "name": "Booking",
    "namespace": "shop.v1",
    "fields": [{"name": "booked_at", "type": {"type": "long", "logicalType": "timestamp-millis"}}],
}
BOOKING_KEY = {"type": "record", "name": "Key", "fields": [{"name": "customer", "type": "string"}]}
SALE = {**SHIPMENT, "name": "Sale", "namespace": "shop.v1", "fields": [{**SHIPMENT["fields"][0], "name": "sold_at"}]}
CANCELLATION = {
    "type": "record",
    "name": "Cancellation",
    "namespace": "shop.v1",
    "fields": [{"name": "id", "type": "string"}],
}
OF_A_REGISTRY: dict[str, list[tuple[str, Any, str]]] = {
    "registry": [("shipments-value", SHIPMENT, "AVRO")],
    "gate": [("vouchers-value", {**SHIPMENT, "name": "Voucher"}, "AVRO")],
    "registry-headers": [("shop.v1.Booking", BOOKING, "AVRO"), ("bookings-key", BOOKING_KEY, "AVRO")],
    "registry-json": [("reviews-value", REVIEW, "JSON")],
    "registry-protobuf": [("returns-value", RETURN, "PROTOBUF")],
    "registry-routes": [("tickets-shop.v1.Sale", SALE, "AVRO"), ("tickets-shop.v1.Cancellation", CANCELLATION, "AVRO")],
}
"""Samples whose schemas are in a schema registry: subject, schema and type of each."""

NEEDS_A_TABLE = {"kafka-connect"}
"""Samples for a table that a connector has filled."""


@pytest.mark.parametrize("name", [name for name in SAMPLES if name not in {*OF_A_REGISTRY, *NEEDS_A_TABLE}])
def test_a_sample_becomes_ready(release: None, name: str) -> None:
    apply_and_await(name)


def test_samples_with_a_schema_registry_become_ready(schemas: Apicurio) -> None:
    for name, registered in OF_A_REGISTRY.items():
        for each in registered:
            schemas.register(*each)
        apply_and_await(name)


def apply_and_await(name: str) -> None:
    quickstart.apply_sample(name)
    text = kubectl("get", "-f", str(Path(ROOT / "crds" / "samples" / f"{name}.yaml")), "-o", "name")
    for resource in text.split():
        await_ready(resource.partition("/")[2], "demo")
