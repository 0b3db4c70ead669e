"""SaslAuthenticate (36), versions 0 to 2: one message of a SASL exchange.

- The answer to the last message has the lifetime of the session since version 1 (KIP-368).
- A failed authentication is answered after `connections.failureSeconds`, and the connection is then closed. So one
  connection cannot try many passwords."""

import asyncio
from datetime import timedelta

from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn.records.cursor import MalformedError
from firn.records.message_writer import Fields
from firn_broker import metrics
from firn_broker.access.mechanisms.exchange import AuthenticationError
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import SaslAuthenticateRequest

KEY = 36
VERSIONS = (0, 2)
NO_LIMIT = timedelta(0)


async def handle(broker: Broker, request: SaslAuthenticateRequest, call: Call) -> Fields:
    """Answer the message."""
    session = call.client.session
    try:
        step = await session.authenticate(request.auth_bytes, asyncio.get_running_loop().time)
    except UnavailableError as error:
        # After an answer with an error, clients give up. After a lost connection, they try again.
        raise MalformedError(f"the credential cannot be checked now: {error}") from error
    except AuthenticationError as error:
        call.client.closing = True
        if not session.rejected:
            _note(broker, call, error.reason)
        await asyncio.sleep(broker.settings.connections.failure_seconds)
        known = session.mechanism != ""
        code = ErrorCode.sasl_authentication_failed if known else ErrorCode.illegal_sasl_state
        return {"error_code": code, "error_message": str(error), "auth_bytes": b"", "session_lifetime": NO_LIMIT}
    if step.rejected is not None:
        _note(broker, call, step.rejected)
    if step.principal is not None:
        # The last request was one of the earlier principal, if the client had a certificate before.
        call.client.forget()
        metrics.AUTHENTICATIONS.labels(session.mechanism, "succeeded").inc()
    return {
        "error_code": ErrorCode.none, "error_message": None, "auth_bytes": step.answer,
        "session_lifetime": NO_LIMIT if step.lifetime_ms is None else timedelta(milliseconds=step.lifetime_ms),
    }  # fmt: skip


def _note(broker: Broker, call: Call, reason: str) -> None:
    mechanism = call.client.session.mechanism
    metrics.AUTHENTICATIONS.labels(mechanism or "none", "failed").inc()
    broker.audit.failed(call.client.address, mechanism, reason)
