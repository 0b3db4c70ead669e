"""SaslHandshake (17), version 1: the client names a SASL mechanism.

- Version 0 is not served. After it, clients send messages without a header of Kafka (KIP-152). Clients that are older than
  Kafka 1.0 need it.
- After an error the connection is closed, as by Kafka."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access.mechanisms.exchange import AuthenticationError
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import SaslHandshakeRequest

KEY = 17
VERSIONS = (1, 1)


async def handle(broker: Broker, request: SaslHandshakeRequest, call: Call) -> Fields:
    """Begin the exchange of the mechanism, or answer with the mechanisms of the listener."""
    session = call.client.session
    try:
        known = session.handshake(request.mechanism)
        error = ErrorCode.none if known else ErrorCode.unsupported_sasl_mechanism
    except AuthenticationError:
        error = ErrorCode.illegal_sasl_state
    if error is not ErrorCode.none:
        call.client.closing = True
    return {"error_code": error, "mechanisms": session.mechanisms}
