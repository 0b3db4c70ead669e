"""All contracts of a metadata store, one suite for each of its ports."""

from firn_broker.log_types import Topic
from firn_broker.ports import MetadataStore
from tests.contract.metadata_store.access import AccessContract, acl, credential, loaded
from tests.contract.metadata_store.builders import ADDRESS, TOPIC, TTL, Log, batch, produced
from tests.contract.metadata_store.groups import GroupContract
from tests.contract.metadata_store.logs.batch_ranges import BatchRangeContract
from tests.contract.metadata_store.logs.commits import CommitContract
from tests.contract.metadata_store.logs.histories import HistoryContract
from tests.contract.metadata_store.logs.merges import MergeContract
from tests.contract.metadata_store.logs.table_ranges import TableRangeContract
from tests.contract.metadata_store.nodes import NodeContract
from tests.contract.metadata_store.retention import RetentionContract
from tests.contract.metadata_store.topics import TopicContract


class MetadataStoreContract(
    NodeContract, TopicContract, CommitContract, HistoryContract, BatchRangeContract, MergeContract, TableRangeContract,
    RetentionContract, GroupContract, AccessContract,
):  # fmt: skip
    """All tests that an implementation has to pass."""


async def check_all_ports(store: MetadataStore, cluster: str) -> None:
    """Make a few calls of every port, as after a migration."""
    assert await store.cluster_id() == cluster
    assert await store.groups.groups_with_offsets() == []
    log = Log(store, await store.nodes.join(ADDRESS, TTL))
    await store.topics.create_topic(Topic(TOPIC, "t", 2, {}))
    assert [outcome.base_offset for outcome in await log.commit(batch(), batch(), produced(0))] == [0, 1, 2]
    assert await store.retention.expire(TOPIC, -1, 0, 10) == 1
    assert await store.retention.drop_ranges(10) == 1
    assert await store.retention.forget_replies(0, 10) == 0
    assert [await store.retention.mark_times(10) for _ in range(2)] == [True, False]
    await store.access.change_credentials([credential()])
    assert await store.access.create_acls([acl()], 1)
    assert (await loaded(store)).acls == {acl().principal: [acl()]}
