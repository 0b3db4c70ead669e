"""DescribeAcls (29), versions 1 to 3 (KIP-140, KIP-290): the ACLs that a filter matches, by resource pattern."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import DeleteAclsFilter, DescribeAclsRequest

KEY = 29
VERSIONS = (1, 3)

COMPARED = 5_000
"""ACLs that are compared before other requests are served."""


class UnknownCodeError(Exception):
    """A field has a code that this broker does not know."""


class _Resource(NamedTuple):
    type: ResourceType
    name: str
    pattern: PatternType


async def handle(broker: Broker, request: DescribeAclsRequest, call: Call) -> Fields:
    """Describe the ACLs that the filter matches."""
    if broker.authorizer.forbids(call.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return failed(request, ErrorCode.cluster_authorization_failed)
    try:
        filter = acl_filter(request)
    except UnknownCodeError as error:
        return failed(request, ErrorCode.invalid_request, str(error))
    await broker.access.refresh()
    by_resource: dict[_Resource, list[Acl]] = {}
    for acl in await matching(broker.access.acls, filter):
        by_resource.setdefault(_Resource(acl.resource_type, acl.name, acl.pattern), []).append(acl)
    resources = [
        {
            "resource_type": resource.type, "resource_name": resource.name, "pattern_type": resource.pattern,
            "acls": partial(_entries, acls),
        }
        for resource, acls in by_resource.items()
    ]  # fmt: skip
    return {"error_code": ErrorCode.none, "error_message": None, "resources": resources}


def failed(request: DescribeAclsRequest, code: ErrorCode, message: str | None = None) -> Fields:
    """Answer with an error."""
    return {"error_code": code, "error_message": message, "resources": ()}


def _entries(acls: Sequence[Acl]) -> Sequence[Fields]:
    return [
        {"principal": acl.principal, "host": acl.host, "operation": acl.operation, "permission_type": acl.permission}
        for acl in acls
    ]


def acl_filter(fields: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Read the filter of a request. Raises UnknownCodeError."""
    try:
        return AclFilter(
            fields.principal_filter,
            fields.host_filter,
            ResourceType(fields.resource_type_filter),
            fields.resource_name_filter,
            PatternType(fields.pattern_type_filter),
            Operation(fields.operation),
            Permission(fields.permission_type),
        )
    except ValueError as error:
        raise UnknownCodeError(f"The filter has an unknown code: {error}") from error


def rules(acls: Iterable[Acl]) -> Iterator[tuple[ResourceType, str]]:
    """Return each ACL as the audit log names it."""
    for acl in acls:
        rule = f"{acl.permission.name} {acl.operation.name} for {acl.principal} from {acl.host}"
        yield acl.resource_type, f"{acl.name} ({acl.pattern.name}): {rule}"


async def matching(acls: Mapping[str, Sequence[Acl]], filter: AclFilter) -> list[Acl]:
    """Return the ACLs that the filter matches. Other requests are served between two steps of a long search."""
    found, compared = [], 0
    for principal in acls if filter.principal is None else (filter.principal,):
        for acl in acls.get(principal, ()):
            if filter.matches(acl):
                found.append(acl)
            compared += 1
            if compared % COMPARED == 0:
                await asyncio.sleep(0)
    return found
