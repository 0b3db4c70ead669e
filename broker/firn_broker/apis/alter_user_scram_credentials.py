"""AlterUserScramCredentials (51), version 0 (KIP-554): stores, replaces and deletes the SCRAM credentials of users.

The client hashes the password, and the broker derives the two keys that it stores from the hash (RFC 5802, section 3).
So no password reaches the broker. A request changes each user at most once, as with Kafka."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access.mechanisms.scram import DIGESTS, credential
from firn_broker.access_types import (
    CLUSTER_NAME,
    CredentialKey,
    Operation,
    ResourceType,
    ScramCredential,
    ScramMechanism,
)
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

KEY = 51
VERSIONS = (0, 0)

ITERATIONS = range(4096, 16384 + 1)
"""Iterations that Kafka accepts (``ScramMechanism.java``, ``ScramControlManager.java``)."""
MOST_NAME_BYTES = 1_000
MOST_SALT_BYTES = 1_000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Characters with which no user can authenticate."""

Change = ScramCredentialDeletion | ScramCredentialUpsertion
Error = tuple[ErrorCode, str | None]
TWICE: Error = ErrorCode.duplicate_resource, "A user credential cannot be altered twice in the same request"
MISSING: Error = ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"


async def handle(broker: Broker, request: AlterUserScramCredentialsRequest, call: Call) -> Fields:
    """Change the credentials of each user, in one step of the coordinator."""
    if broker.authorizer.forbids(call.client, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
        return failed(request, ErrorCode.cluster_authorization_failed)
    requested = _changes(request)
    times = Counter(each.name for each in requested)
    errors = {each.name: TWICE if times[each.name] > 1 else _error(each) for each in requested}
    put = [_credential(each) for each in request.upsertions if errors[each.name] is None]
    delete = [_key(each) for each in request.deletions if errors[each.name] is None]
    if put or delete:
        with broker.changing(call, _unrefused(errors)) as attempt:
            for key in await broker.metadata_store.access.change_credentials(put, delete):
                errors[key.user] = MISSING
            attempt.resources, attempt.made = _unrefused(errors), True
        await broker.access.refresh()
    return {"results": [_result(user, error) for user, error in errors.items()]}


def failed(request: AlterUserScramCredentialsRequest, code: ErrorCode, message: str | None = None) -> Fields:
    """Answer with an error for each user."""
    return {
        "results": [_result(user, (code, message)) for user in dict.fromkeys(each.name for each in _changes(request))]
    }


def _unrefused(errors: Mapping[str, Error | None]) -> list[tuple[ResourceType, str]]:
    return [(ResourceType.USER, user) for user, error in errors.items() if error is None]


def _changes(request: AlterUserScramCredentialsRequest) -> list[Change]:
    return [*request.deletions, *request.upsertions]


def _error(change: Change) -> Error | None:
    if not change.name:
        return ErrorCode.unacceptable_credential, "Username must not be empty"
    if len(change.name.encode()) > MOST_NAME_BYTES or _CONTROL.search(change.name):
        message = f"A username must have at most {MOST_NAME_BYTES} bytes, and no control characters"
        return ErrorCode.unacceptable_credential, message
    if change.mechanism not in tuple(ScramMechanism):
        return ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism"
    return _error_of_upsertion(change) if isinstance(change, ScramCredentialUpsertion) else None


def _error_of_upsertion(upsertion: ScramCredentialUpsertion) -> Error | None:
    size = hashlib.new(DIGESTS[ScramMechanism(upsertion.mechanism)]).digest_size
    if upsertion.iterations < ITERATIONS.start:
        return ErrorCode.unacceptable_credential, "Too few iterations"
    if upsertion.iterations >= ITERATIONS.stop:
        return ErrorCode.unacceptable_credential, "Too many iterations"
    if not 0 < len(upsertion.salt) <= MOST_SALT_BYTES:
        return ErrorCode.unacceptable_credential, f"The salt must have 1 to {MOST_SALT_BYTES} bytes"
    if len(upsertion.salted_password) != size:
        return ErrorCode.unacceptable_credential, f"The salted password must have {size} bytes"
    return None


def _credential(upsertion: ScramCredentialUpsertion) -> ScramCredential:
    return credential(_key(upsertion), upsertion.salted_password, upsertion.salt, upsertion.iterations)


def _key(change: Change) -> CredentialKey:
    return CredentialKey(change.name, ScramMechanism(change.mechanism))


def _result(user: str, error: Error | None) -> Fields:
    code, message = error or (ErrorCode.none, None)
    return {"user": user, "error_code": code, "error_message": message}
