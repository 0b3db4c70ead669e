"""DescribeClientQuotas (48), versions 0 and 1 (KIP-546): the quotas of the entities that a filter matches.

Each part of a filter names a type of an entity: with a name, with the default of the type, or with either. A strict
filter matches entities of exactly these types."""

from collections.abc import Sequence
from enum import IntEnum

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import CLUSTER_NAME, Entity, Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import DescribeClientQuotasRequest, QuotaFilterComponent

KEY = 48
VERSIONS = (0, 1)

USER, CLIENT_ID, IP = "user", "client-id", "ip"
"""The types of entities, as Kafka names them."""


class _Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class _InvalidError(Exception):
    """The filter of a request is not valid."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.invalid_request) -> None:
        super().__init__(message)
        self.code = code


async def handle(broker: Broker, request: DescribeClientQuotasRequest, call: Call) -> Fields:
    """Describe the quotas of the entities that the filter matches."""
    if broker.authorizer.forbids(call.client, Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, CLUSTER_NAME):
        return failed(request, ErrorCode.cluster_authorization_failed)
    try:
        _check(request.components)
    except _InvalidError as error:
        return failed(request, error.code, str(error))
    await broker.access.refresh()
    entries = [
        {
            "entity": [{"entity_type": type, "entity_name": name} for type, name in entity],
            "values": [{"key": key, "value": value} for key, value in quotas.items()],
        }
        for entity, quotas in broker.access.quotas.items()
        if _matches(entity, request)
    ]
    return {"error_code": ErrorCode.none, "error_message": None, "entries": entries}


def failed(request: DescribeClientQuotasRequest, code: ErrorCode, message: str | None = None) -> Fields:
    """Answer with an error."""
    return {"error_code": code, "error_message": message, "entries": None}


def _check(components: Sequence[QuotaFilterComponent]) -> None:
    """Check the filter as Kafka does (``ClientQuotasImage.java``). Raises _InvalidError."""
    types = [component.entity_type for component in components]
    for component in components:
        if not component.entity_type:
            raise _InvalidError("Invalid empty entity type.")
        if component.entity_type not in (USER, CLIENT_ID, IP):
            raise _InvalidError(f"Unsupported entity type {component.entity_type}", ErrorCode.unsupported_version)
        if types.count(component.entity_type) > 1:
            raise _InvalidError(f"Entity type {component.entity_type} cannot appear more than once in the filter.")
        if component.match_type not in tuple(_Match):
            raise _InvalidError(f"Unknown match type {component.match_type}")
        if component.match_type == _Match.EXACT and component.match is None:
            raise _InvalidError("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        if component.match_type != _Match.EXACT and component.match is not None:
            name = _Match(component.match_type).name
            raise _InvalidError(f"Request specified MATCH_TYPE_{name}, but also specified a match string.")
    if IP in types and len(types) > 1:
        raise _InvalidError(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId filter component."
        )


def _matches(entity: Entity, request: DescribeClientQuotasRequest) -> bool:
    names = dict(entity)
    if request.strict and len(names) != len(request.components):
        return False
    return all(
        component.entity_type in names
        # The default has no name, and neither has the component that asks for it.
        and (component.match_type == _Match.SPECIFIED or names[component.entity_type] == component.match)
        for component in request.components
    )
