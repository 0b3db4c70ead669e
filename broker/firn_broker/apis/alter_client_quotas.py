"""AlterClientQuotas (49), versions 0 and 1 (KIP-546): sets and deletes quotas of users and client ids.

Brokers do not limit new connections by address, so they store no quotas of addresses."""

from collections import Counter
from collections.abc import Mapping
from math import isfinite

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import CLUSTER_NAME, Entity, Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import AlterClientQuotasRequest, QuotaChange, QuotaOperation

KEY = 49
VERSIONS = (0, 1)

TYPES = ("user", "client-id")
IP = "ip"
INTEGER: Mapping[str, bool] = {
    "producer_byte_rate": True,
    "consumer_byte_rate": True,
    "request_percentage": False,
    "controller_mutation_rate": False,
}
"""Quotas by name: whether the value is an integer (``QuotaConfig.java``)."""
MOST_NAME_BYTES = 1_000
MOST_INTEGER = (1 << 63) - 1


class _InvalidError(Exception):
    """The change of an entity is not valid."""


async def handle(broker: Broker, request: AlterClientQuotasRequest, call: Call) -> Fields:
    """Change the quotas of each valid entity, in one step of the coordinator."""
    if broker.authorizer.forbids(call.client, Operation.ALTER_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME):
        return failed(request, ErrorCode.cluster_authorization_failed)
    entities = [_entity(change) for change in request.entries]
    times = Counter(entities)
    messages: dict[Entity, str | None] = {}
    changes: dict[Entity, Mapping[str, float | None]] = {}
    for entity, requested in zip(entities, request.entries, strict=True):
        try:
            if times[entity] > 1:
                raise _InvalidError("The request changes this entity more than once")
            _check_entity(requested)
            changes[entity] = _quotas(requested)
            messages[entity] = None
        except _InvalidError as error:
            messages[entity] = str(error)
    if changes and not request.validate_only:
        with broker.changing(call, ((ResourceType.CLUSTER, _named(entity)) for entity in changes)) as attempt:
            await broker.metadata_store.access.change_quotas(changes)
            attempt.made = True
        await broker.access.refresh()
    return {
        "entries": [
            _result(entity, ErrorCode.none if message is None else ErrorCode.invalid_request, message)
            for entity, message in messages.items()
        ]
    }


def failed(request: AlterClientQuotasRequest, code: ErrorCode, message: str | None = None) -> Fields:
    """Answer with an error for each entity."""
    return {"entries": [_result(entity, code, message) for entity in dict.fromkeys(map(_entity, request.entries))]}


def _named(entity: Entity) -> str:
    return ",".join(f"{type}={name or '<default>'}" for type, name in entity)


def _entity(change: QuotaChange) -> Entity:
    return tuple(sorted(((part.entity_type, part.entity_name) for part in change.entity), key=_order))


def _order(part: tuple[str, str | None]) -> tuple[str, bool, str]:
    type, name = part
    return type, name is not None, name or ""


def _check_entity(change: QuotaChange) -> None:
    """Check the entity as Kafka does (``ClientQuotaControlManager.java``)."""
    if not change.entity:
        raise _InvalidError("Invalid empty client quota entity")
    types = [part.entity_type for part in change.entity]
    for part in change.entity:
        if part.entity_type == IP:
            raise _InvalidError("This broker has no quotas of addresses (ip)")
        if part.entity_type not in TYPES:
            raise _InvalidError(f"Unhandled client quota entity type: {part.entity_type}")
        if types.count(part.entity_type) > 1:
            raise _InvalidError(f"Invalid client quota entity, duplicate entity entry {part.entity_type}")
        if part.entity_name == "":
            raise _InvalidError(f"Empty {part.entity_type} not supported")
        if part.entity_name is not None and len(part.entity_name.encode()) > MOST_NAME_BYTES:
            raise _InvalidError(f"The name of a {part.entity_type} has at most {MOST_NAME_BYTES} bytes")


def _quotas(change: QuotaChange) -> Mapping[str, float | None]:
    quotas: dict[str, float | None] = {}
    for operation in change.ops:
        if operation.key in quotas:
            raise _InvalidError(f"Duplicate quota key {operation.key}")
        if operation.key not in INTEGER:
            raise _InvalidError(f"Invalid configuration key {operation.key}")
        quotas[operation.key] = None if operation.remove else _value(operation)
    return quotas


def _value(operation: QuotaOperation) -> float:
    if not operation.value > 0:
        raise _InvalidError(f"Quota {operation.key} must be greater than 0")
    if not isfinite(operation.value):
        raise _InvalidError(f"Quota {operation.key} must be finite")
    if INTEGER[operation.key]:
        if operation.value > MOST_INTEGER:
            raise _InvalidError(f"Proposed value for {operation.key} is too large for a LONG.")
        if operation.value % 1 > 1e-6:
            raise _InvalidError(f"{operation.key} cannot be a fractional value.")
    return operation.value


def _result(entity: Entity, code: ErrorCode, message: str | None) -> Fields:
    return {
        "error_code": code,
        "error_message": message,
        "entity": [{"entity_type": type, "entity_name": name} for type, name in entity],
    }
