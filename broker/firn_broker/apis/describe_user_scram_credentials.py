"""DescribeUserScramCredentials (50), version 0 (KIP-554): the mechanisms and iterations of users, without secrets.

Each credential has its last use, to the minute, as a tagged field that Kafka does not have. Clients skip tagged fields
that they do not know (KIP-482)."""

from collections import Counter
from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from firn.records.message_writer import LAST_USE, Fields
from firn_broker.access_types import CLUSTER_NAME, CredentialKey, Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import DescribeUserScramCredentialsRequest

KEY = 50
VERSIONS = (0, 0)
NEVER = 0
"""The last use of a credential without any."""

TWICE = "Cannot describe SCRAM credentials for the same user twice in a single request: "
MISSING = "Attempt to describe a user credential that does not exist: "


async def handle(broker: Broker, request: DescribeUserScramCredentialsRequest, call: Call) -> Fields:
    """Describe each named user; without names, all users."""
    if broker.authorizer.forbids(call.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return failed(request, ErrorCode.cluster_authorization_failed)
    await broker.access.refresh()
    named = Counter(user.name for user in request.users or ()) or dict.fromkeys(broker.access.credentials, 1)
    uses = await broker.metadata_store.access.last_uses(list(named))
    results = [_result(broker, user, times, uses) for user, times in named.items()]
    return {"error_code": ErrorCode.none, "error_message": None, "results": results}


def failed(request: DescribeUserScramCredentialsRequest, code: ErrorCode, message: str | None = None) -> Fields:
    """Answer with an error for all users."""
    return {"error_code": code, "error_message": message, "results": ()}


def _result(broker: Broker, user: str, times: int, uses: Mapping[CredentialKey, int]) -> Fields:
    error, message = ErrorCode.none, None
    credentials = broker.access.credentials.get(user, ()) if times == 1 else ()
    if times > 1:
        error, message = ErrorCode.duplicate_resource, TWICE + user
    elif not credentials:
        error, message = ErrorCode.resource_not_found, MISSING + user
    return {
        "user": user, "error_code": error, "error_message": message,
        "credential_infos": [
            {"mechanism": each.key.mechanism, "iterations": each.iterations, LAST_USE: uses.get(each.key, NEVER)}
            for each in sorted(credentials, key=lambda each: each.key)
        ],
    }  # fmt: skip
