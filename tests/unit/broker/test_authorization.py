"""Authorisation of every API: without ACLs a client learns nothing and changes nothing, and exactly the ACLs of the table
let its request pass."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from firn_broker import api_table
from firn_broker.access_types import (
    ANONYMOUS,
    ANY,
    CLUSTER_NAME,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_outages import codes, outage
from tests.unit.broker.test_whole_brokers import COMMON
from tests.unit.broker.whole import Asked, Shared, broker, create

TOPIC, GROUP, MEMBERS = "topic-1", "group-1", "group-2"
"""A topic with a record; a group with an offset; a group of KIP-848 with a member that reads the topic."""
NEW = "topic-2"
NO_TOPIC, NO_GROUP, NO_CLUSTER = (
    ErrorCode.topic_authorization_failed,
    ErrorCode.group_authorization_failed,
    ErrorCode.cluster_authorization_failed,
)
DENIALS = {NO_TOPIC, NO_GROUP, NO_CLUSTER}
Grant = tuple[Operation, ResourceType, str]


def on_topic(operation: Operation, name: str = TOPIC) -> Grant:
    return operation, ResourceType.TOPIC, name


def on_group(operation: Operation, name: str = GROUP) -> Grant:
    return operation, ResourceType.GROUP, name


def on_cluster(operation: Operation) -> Grant:
    return operation, ResourceType.CLUSTER, CLUSTER_NAME


@dataclass(frozen=True)
class Row:
    """How the requests of an API are authorised."""

    fields: dict[str, Any]
    needs: Sequence[Sequence[Grant]] = ()
    """Alternatives: all ACLs of one of them are needed. None if every client may send the request."""
    denied: frozenset[ErrorCode] = frozenset()
    """Errors of a client without ACLs; none if the answer only has less."""
    works: frozenset[ErrorCode] = frozenset()
    """Errors of an authorised request, which belong to the state of the group."""
    versions: tuple[int, int] = (0, 99)


def row(
    *needs: Sequence[Grant], denied: Iterable[ErrorCode] = (), works: Iterable[ErrorCode] = (), first: int = 0, last: int = 99,
    **fields: Any,
) -> Row:  # fmt: skip
    return Row(fields, needs, frozenset(denied), frozenset(works), (first, last))


READ, WRITE, DESCRIBE, DELETE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DELETE
PARTITION = {"partition_index": 0}
CONFIGS = [{"resource_type": 2, "resource_name": TOPIC, "configs": [], "configuration_keys": None}]
WANTED = [{"name": TOPIC, "partition_indexes": (0,)}]
FETCHED = {
    "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1,
    "partition_max_bytes": 1 << 20,
}  # fmt: skip
CREATION = {
    "resource_type": 2, "resource_name": TOPIC, "resource_pattern_type": 3, "principal": "User:a", "host": "*",
    "operation": 3, "permission_type": 3,
}  # fmt: skip
FILTER = {
    "resource_type_filter": 2, "resource_name_filter": "nothing", "pattern_type_filter": 3, "operation": 1,
    "permission_type": 1,
}  # fmt: skip
QUOTA = {
    "entity": [{"entity_type": "user", "entity_name": "a"}],
    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
}
CREDENTIAL = {"name": "a", "mechanism": 2, "iterations": 4096, "salt": b"salt", "salted_password": b"p" * 64}
TABLE: dict[str, Row] = {
    "Produce": row(
        [on_topic(WRITE)], denied=[NO_TOPIC], first=3,
        topic_data=[{"name": TOPIC, "partition_data": [{"index": 0, "records": bytes(raw())}]}],
    ),
    "Fetch": row(
        [on_topic(READ)], denied=[NO_TOPIC], last=12, max_bytes=1 << 20, min_bytes=1, session_epoch=-1, rack_id="",
        topics=[{"topic": TOPIC, "partitions": [FETCHED]}], forgotten_topics_data=[],
    ),
    "ListOffsets": row(
        [on_topic(DESCRIBE)], denied=[NO_TOPIC],
        topics=[{"name": TOPIC, "partitions": [{**PARTITION, "timestamp": -1, "current_leader_epoch": -1}]}],
    ),
    "Metadata": row(
        [on_topic(DESCRIBE)], denied=[NO_TOPIC], topics=[{"name": TOPIC}], allow_auto_topic_creation=True,
        include_topic_authorized_operations=True, include_cluster_authorized_operations=True,
    ),
    "OffsetCommit": row(
        [on_group(READ), on_topic(READ)], denied=[NO_GROUP], group_id=GROUP, generation_id_or_member_epoch=-1,
        topics=[{"name": TOPIC, "partitions": [{**PARTITION, "committed_offset": 1, "committed_metadata": ""}]}],
    ),
    "OffsetFetch": row(
        [on_group(DESCRIBE), on_topic(DESCRIBE)], denied=[NO_GROUP], group_id=GROUP, topics=WANTED, require_stable=True,
        groups=[{"group_id": GROUP, "topics": WANTED}],
    ),
    "FindCoordinator": row([on_group(DESCRIBE)], denied=[NO_GROUP], key=GROUP, key_type=0, coordinator_keys=(GROUP,)),
    "JoinGroup": row(
        [on_group(READ)], denied=[NO_GROUP], works=[ErrorCode.member_id_required], group_id=GROUP,
        protocols=[{"name": "range", "metadata": b""}],
    ),
    "Heartbeat": row(
        [on_group(READ)], denied=[NO_GROUP], works=[ErrorCode.unknown_member_id], group_id=GROUP, generation_id=1,
    ),
    "LeaveGroup": row(
        [on_group(READ)], denied=[NO_GROUP], works=[ErrorCode.unknown_member_id], group_id=GROUP,
        members=[{"member_id": "m", "group_instance_id": None}],
    ),
    "SyncGroup": row(
        [on_group(READ)], denied=[NO_GROUP], works=[ErrorCode.unknown_member_id], group_id=GROUP, generation_id=1,
        assignments=[],
    ),
    "DescribeGroups": row([on_group(DESCRIBE)], denied=[NO_GROUP], groups=(GROUP,), include_authorized_operations=True),
    "ListGroups": row([on_group(DESCRIBE)], [on_cluster(DESCRIBE)]),
    "ApiVersions": row(client_software_name="test", client_software_version="1"),
    "SaslHandshake": row(denied=[ErrorCode.illegal_sasl_state], mechanism="PLAIN"),
    "SaslAuthenticate": row(denied=[ErrorCode.illegal_sasl_state], auth_bytes=b"x"),
    "CreateTopics": row(
        [on_topic(Operation.CREATE, NEW)], [on_cluster(Operation.CREATE)], denied=[NO_TOPIC], validate_only=False,
        topics=[{"name": NEW, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}],
    ),
    "DeleteTopics": row(
        [on_topic(DELETE)], denied=[NO_TOPIC], topics=[{"name": TOPIC, "topic_id": None}], topic_names=(TOPIC,)
    ),
    "DeleteRecords": row(
        [on_topic(DELETE)], denied=[NO_TOPIC], topics=[{"name": TOPIC, "partitions": [{**PARTITION, "offset": -1}]}]
    ),
    "InitProducerId": row(
        [on_cluster(Operation.IDEMPOTENT_WRITE)], [on_topic(WRITE)], denied=[NO_CLUSTER], transactional_id=None,
        producer_id=-1, producer_epoch=-1,
    ),
    "OffsetForLeaderEpoch": row(
        [on_topic(DESCRIBE)], denied=[NO_TOPIC],
        topics=[{"topic": TOPIC, "partitions": [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}]}],
    ),
    "DescribeAcls": row(
        [on_cluster(DESCRIBE)], denied=[NO_CLUSTER], resource_type_filter=1, pattern_type_filter=1, operation=1,
        permission_type=1,
    ),
    "CreateAcls": row([on_cluster(Operation.ALTER)], denied=[NO_CLUSTER], creations=[CREATION]),
    "DeleteAcls": row([on_cluster(Operation.ALTER)], denied=[NO_CLUSTER], filters=[FILTER]),
    "DescribeConfigs": row([on_topic(Operation.DESCRIBE_CONFIGS)], denied=[NO_TOPIC], resources=CONFIGS),
    "AlterConfigs": row(
        [on_topic(Operation.ALTER_CONFIGS)], denied=[NO_TOPIC], resources=CONFIGS, validate_only=False
    ),
    "DescribeLogDirs": row([on_cluster(DESCRIBE)], denied=[NO_CLUSTER], topics=None),
    "CreatePartitions": row(
        [on_topic(Operation.ALTER)], denied=[NO_TOPIC], topics=[{"name": TOPIC, "count": 3, "assignments": None}],
        validate_only=False,
    ),
    "DeleteGroups": row([on_group(DELETE)], denied=[NO_GROUP], groups_names=(GROUP,)),
    "IncrementalAlterConfigs": row(
        [on_topic(Operation.ALTER_CONFIGS)], denied=[NO_TOPIC], resources=CONFIGS, validate_only=False
    ),
    "ListPartitionReassignments": row([on_cluster(DESCRIBE)], denied=[NO_CLUSTER], topics=None),
    "OffsetDelete": row(
        [on_group(DELETE), on_topic(READ)], denied=[NO_GROUP], group_id=GROUP,
        topics=[{"name": TOPIC, "partitions": [PARTITION]}],
    ),
    "DescribeClientQuotas": row(
        [on_cluster(Operation.DESCRIBE_CONFIGS)], denied=[NO_CLUSTER], components=(), strict=False
    ),
    "AlterClientQuotas": row(
        [on_cluster(Operation.ALTER_CONFIGS)], denied=[NO_CLUSTER], entries=[QUOTA], validate_only=False
    ),
    "DescribeUserScramCredentials": row([on_cluster(DESCRIBE)], denied=[NO_CLUSTER], users=None),
    "AlterUserScramCredentials": row(
        [on_cluster(Operation.ALTER)], denied=[NO_CLUSTER], upsertions=[CREDENTIAL], deletions=()
    ),
    "DescribeCluster": row(include_cluster_authorized_operations=True, endpoint_type=1),
    "ConsumerGroupHeartbeat": row(
        [on_group(READ), on_topic(DESCRIBE)], denied=[NO_GROUP], group_id=GROUP, member_id="m", member_epoch=0,
        subscribed_topic_names=(TOPIC,), topic_partitions=(),
    ),
    "ConsumerGroupDescribe": row(
        [on_group(DESCRIBE, MEMBERS), on_topic(DESCRIBE)], denied=[NO_GROUP], group_ids=(MEMBERS,),
        include_authorized_operations=True,
    ),
}  # fmt: skip
WITHOUT_CODES = {("DescribeLogDirs", 1), ("DescribeLogDirs", 2)}
"""Versions whose answers have no error code."""


def allow(asked: Asked, *grants: Grant) -> None:
    """Let the clients of a broker do exactly this."""
    directory: Any = asked.broker.access
    directory.acls = {
        ANONYMOUS: [
            Acl(ANONYMOUS, ANY, type, name, PatternType.LITERAL, operation, Permission.ALLOW)
            for operation, type, name in grants
        ]
    }
    directory.version += 1


EVERYTHING = [(Operation.ALL, type, ANY) for type in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)]


@asynccontextmanager
async def closed(shared: Shared | None = None, **settings: Any) -> AsyncIterator[Asked]:
    """Run a broker without ACLs."""
    async with broker(shared, authorization={"type": "Acl"}, **settings) as asked:
        yield asked


@asynccontextmanager
async def filled(shared: Shared | None = None, **settings: Any) -> AsyncIterator[Asked]:
    """Run a broker with a topic and groups, and without ACLs."""
    async with closed(shared, **settings) as asked:
        allow(asked, *EVERYTHING)
        await create(asked, TOPIC)
        for name in ("Produce", "OffsetCommit"):
            assert codes(await ask(asked, name)) == {ErrorCode.none}
        joined = await ask(asked, "ConsumerGroupHeartbeat", group_id=MEMBERS)
        assert joined.error_code is ErrorCode.none
        allow(asked)
        yield asked


async def ask(asked: Asked, name: str, version: int | None = None, **more: Any) -> Any:
    # A request of SASL that fails closes its connection, and each request here is one of a new connection.
    asked.client.closing = False
    api = next(api for api in api_table.APIS if api.name == name)
    highest = min(api.versions[1], TABLE[name].versions[1])
    return await asked.ask(api.key, highest if version is None else version, **{**COMMON, **TABLE[name].fields, **more})


def versions(name: str) -> range:
    low, high = next(api.versions for api in api_table.APIS if api.name == name)
    return range(max(low, TABLE[name].versions[0]), min(high, TABLE[name].versions[1]) + 1)


def stored(shared: Shared) -> list[str]:
    """Return the contents of the coordinator, without the nodes and their leases."""
    return [
        line
        for line in shared.store.database.connection.iterdump()
        if not any(f'INTO "{table}' in line for table in ("node", "lease"))
    ]


def test_every_api_has_a_row() -> None:
    assert {api.name for api in api_table.APIS} == set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_client_without_acls_learns_nothing_and_changes_nothing(name: str) -> None:
    async def answers(asked: Asked) -> list[Any]:
        return [await ask(asked, name, version) for version in versions(name)]

    async def story() -> None:
        shared = Shared()
        async with filled(shared) as asked:
            before = stored(shared)
            existing = await answers(asked)
            assert stored(shared) == before
            if TABLE[name].denied:
                with outage(shared):
                    assert await answers(asked) == existing
        async with closed() as asked:
            assert await answers(asked) == existing
        for version, answer in zip(versions(name), existing, strict=True):
            expected = set() if (name, version) in WITHOUT_CODES else TABLE[name].denied
            assert codes(answer) - {ErrorCode.none} == expected, version

    run(story())


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.needs])
def test_exactly_the_acls_of_the_table_let_a_request_pass(name: str) -> None:
    async def story() -> None:
        for grants in TABLE[name].needs:
            async with filled() as asked:
                nothing = await ask(asked, name)
                for missing in grants:
                    allow(asked, *(grant for grant in grants if grant != missing))
                    answer = await ask(asked, name)
                    assert codes(answer) & DENIALS if TABLE[name].denied else answer == nothing, missing
                allow(asked, *grants)
                answer = await ask(asked, name)
                assert codes(answer) <= {ErrorCode.none, *TABLE[name].works}, answer
                assert answer != nothing

    run(story())
