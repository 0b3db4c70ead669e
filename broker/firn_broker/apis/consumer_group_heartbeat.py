"""ConsumerGroupHeartbeat (68), versions 0 and 1: members of KIP-848 groups join, are there, leave (`firn_broker.groups.consumer`).

Since version 1 members choose their ids, and may subscribe by a pattern, in the syntax of RE2 (as Kafka's RE2/J): its time is linear, so no
pattern holds up the broker. Online migration between the protocols is off, as with ``group.consumer.migration.policy=disabled``.
"""

from datetime import timedelta

from kio.static.primitive import i32Timedelta

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.groups.consumer import JOIN, HeartbeatReply, HeartbeatRequest, Partitions
from firn_broker.groups.coordinator import GroupError
from firn_broker.log_types import Partition
from firn_broker.network.router import Call

KEY = 68
VERSIONS = (0, 1)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    member: str = request.member_id  # type: ignore[attr-defined]
    epoch: int = request.member_epoch  # type: ignore[attr-defined]
    if not member and call.version == 0 and epoch == JOIN:
        member = str(broker.identifiers.uuid4())
    rebalance = request.rebalance_timeout.total_seconds()  # type: ignore[attr-defined]
    names = request.subscribed_topic_names  # type: ignore[attr-defined]
    owned = request.topic_partitions  # type: ignore[attr-defined]
    try:
        reply = await broker.groups.consume(
            request.group_id,  # type: ignore[attr-defined]
            HeartbeatRequest(
                member,
                epoch,
                request.instance_id,  # type: ignore[attr-defined]
                request.rack_id,  # type: ignore[attr-defined]
                None if rebalance < 0 else rebalance,
                None if names is None else frozenset(names),
                getattr(request, "subscribed_topic_regex", None),
                request.server_assignor,  # type: ignore[attr-defined]
                None if owned is None else frozenset(Partition(it.topic_id, index) for it in owned for index in it.partitions),
                call.client.id,
                "/" + call.client.peer.rpartition(":")[0],
            ),
        )  # fmt: skip
    except GroupError as error:
        reply = HeartbeatReply(error.code, member)
    assignment = None if reply.assignment is None else {"topic_partitions": by_topic(reply.assignment)}
    return {
        "error_code": reply.error, "error_message": reply.message, "member_id": reply.member, "member_epoch": reply.epoch,
        "heartbeat_interval": i32Timedelta.parse(timedelta(milliseconds=broker.settings.groups.consumer_heartbeat_ms)),
        "assignment": assignment,
    }  # fmt: skip


def by_topic(partitions: Partitions) -> list[Fields]:
    """Partitions as the messages of KIP-848 have them."""
    found: dict[object, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic, []).append(index)
    return [{"topic_id": topic, "partitions": indexes} for topic, indexes in found.items()]
