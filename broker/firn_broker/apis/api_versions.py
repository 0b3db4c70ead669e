"""ApiVersions (18), versions 0 to 4: the APIs and versions that this broker serves, as in `api_table`.

- The answer always has the old header. A request in an unknown version gets version 0 with UNSUPPORTED_VERSION and the
  list, because the client knows no version of the broker yet (``ApiVersionsResponse``).
- No features are finalized: with ``transaction.version`` Java clients would use KIP-890's protocol.
- Produce is advertised from 0, although versions below 3 are rejected: librdkafka chooses its message format by that
  range (KAFKA-18659)."""

import re

from kio.schema.errors import ErrorCode

from firn.records.message_reader import decode
from firn.records.message_writer import Fields, encode
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import ApiVersionsRequest

KEY = 18
VERSIONS = (0, 4)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def handle(broker: Broker, call: Call) -> list[bytes | memoryview]:
    """List the served APIs, and remember the client's software."""
    fields: dict[str, object] = {"error_code": ErrorCode.none, "api_keys": _keys(broker)}
    if not VERSIONS[0] <= call.version <= VERSIONS[1]:
        return [encode(KEY, 0, {**fields, "error_code": ErrorCode.unsupported_version})]
    request = decode(ApiVersionsRequest, KEY, call.version, call.frame, call.header.body)
    if call.version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            fields["error_code"] = ErrorCode.invalid_request
        else:
            call.client.software = f"{name} {version}"
    return [encode(KEY, call.version, fields)]


def _keys(broker: Broker) -> list[Fields]:
    return [
        {"api_key": route.key, "min_version": route.versions[0], "max_version": route.versions[1]}
        for route in broker.routes
    ]
