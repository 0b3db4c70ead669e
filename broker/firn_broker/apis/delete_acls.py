"""DeleteAcls (31), versions 1 to 3 (KIP-140, KIP-290): deletes the ACLs that any of the filters matches."""

from collections.abc import Sequence
from functools import partial

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import CLUSTER_NAME, Acl, Operation, ResourceType
from firn_broker.apis.describe_acls import UnknownCodeError, acl_filter, matching, rules
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import DeleteAclsRequest

KEY = 31
VERSIONS = (1, 3)


async def handle(broker: Broker, request: DeleteAclsRequest, call: Call) -> Fields:
    """Delete the ACLs that the filters match, in one step of the coordinator."""
    if broker.authorizer.forbids(call.client, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        return failed(request, ErrorCode.cluster_authorization_failed)
    await broker.access.refresh()
    results: list[Fields] = []
    deleted: dict[Acl, None] = {}
    for requested in request.filters:
        try:
            filter = acl_filter(requested)
        except UnknownCodeError as error:
            results.append({"error_code": ErrorCode.invalid_request, "error_message": str(error), "matching_acls": ()})
            continue
        found = await matching(broker.access.acls, filter)
        deleted |= dict.fromkeys(found)
        results.append({"error_code": ErrorCode.none, "error_message": None, "matching_acls": partial(_entries, found)})
    if deleted:
        with broker.changing(call, rules(deleted)) as attempt:
            await broker.metadata_store.access.delete_acls(list(deleted))
            attempt.made = True
        await broker.access.refresh()
    return {"filter_results": results}


def failed(request: DeleteAclsRequest, code: ErrorCode, message: str | None = None) -> Fields:
    """Answer with an error for each filter."""
    return {
        "filter_results": [{"error_code": code, "error_message": message, "matching_acls": ()}] * len(request.filters)
    }


def _entries(acls: Sequence[Acl]) -> Sequence[Fields]:
    return [
        {
            "error_code": ErrorCode.none, "error_message": None, "resource_type": acl.resource_type,
            "resource_name": acl.name, "pattern_type": acl.pattern, "principal": acl.principal, "host": acl.host,
            "operation": acl.operation, "permission_type": acl.permission,
        }
        for acl in acls
    ]  # fmt: skip
