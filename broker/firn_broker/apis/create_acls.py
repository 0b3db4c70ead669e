"""CreateAcls (30), versions 1 to 3 (KIP-140, KIP-290).

An ACL that exists already counts as created. With ``authorization.type: Open``, the broker stores ACLs and does not
apply them, so that they can exist before the type becomes ``Acl``. Kafka answers SECURITY_DISABLED then."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import (
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from firn_broker.apis.describe_acls import rules
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import AclCreation, CreateAclsRequest

KEY = 30
VERSIONS = (1, 3)

MOST_BYTES = 2_000
"""Bytes of the texts of an ACL. PostgreSQL can index no more than 2,700."""


class _InvalidError(Exception):
    """The ACL of a request is not valid."""


async def handle(broker: Broker, request: CreateAclsRequest, call: Call) -> Fields:
    """Create the valid ACLs of the request: all or none."""
    if broker.authorizer.forbids(call.client, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        return failed(request, ErrorCode.cluster_authorization_failed)
    outcomes: list[Acl | str] = []
    for creation in request.creations:
        try:
            outcomes.append(_acl(creation))
        except _InvalidError as error:
            outcomes.append(str(error))
    acls = [outcome for outcome in outcomes if isinstance(outcome, Acl)]
    code, message = ErrorCode.none, None
    most = broker.settings.authorization.max_acls
    if acls:
        with broker.changing(call, rules(acls)) as attempt:
            attempt.made = await broker.metadata_store.access.create_acls(acls, most)
        if attempt.made:
            await broker.access.refresh()
        else:
            code = ErrorCode.policy_violation
            message = f"The cluster may have at most {most} ACLs (authorization.maxAcls)."
    return {
        "results": [
            {"error_code": code, "error_message": message}
            if isinstance(outcome, Acl)
            else {"error_code": ErrorCode.invalid_request, "error_message": outcome}
            for outcome in outcomes
        ]
    }


def failed(request: CreateAclsRequest, code: ErrorCode, message: str | None = None) -> Fields:
    """Answer with an error for each ACL."""
    return {"results": [{"error_code": code, "error_message": message}] * len(request.creations)}


def _acl(creation: AclCreation) -> Acl:
    try:
        acl = Acl(
            creation.principal,
            creation.host,
            ResourceType(creation.resource_type),
            creation.resource_name,
            PatternType(creation.resource_pattern_type),
            Operation(creation.operation),
            Permission(creation.permission_type),
        )
    except ValueError as error:
        raise _InvalidError(f"The ACL has an unknown code: {error}") from error
    _check_codes(acl)
    _check_texts(acl)
    return acl


def _check_codes(acl: Acl) -> None:
    if acl.resource_type is ResourceType.ANY:
        raise _InvalidError("Invalid resourceType ANY")
    if acl.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _InvalidError(f"Invalid patternType {acl.pattern.name}")
    if acl.operation is Operation.ANY:
        raise _InvalidError("Invalid operation ANY")
    if acl.permission is Permission.ANY:
        raise _InvalidError("Invalid permissionType ANY")


def _check_texts(acl: Acl) -> None:
    if not acl.name:
        raise _InvalidError("Invalid empty resource name")
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        raise _InvalidError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if ":" not in acl.principal:
        raise _InvalidError(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type from the principal name)"
        )
    if not acl.host:
        raise _InvalidError("Invalid empty host")
    texts = acl.principal + acl.host + acl.name
    if len(texts.encode()) > MOST_BYTES or "\0" in texts:
        raise _InvalidError(
            f"Principal, host and resource name must have at most {MOST_BYTES} bytes together, and no zero byte"
        )
