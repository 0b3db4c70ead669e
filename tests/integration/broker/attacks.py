"""Requests of a Kafka client for a topic and a group on which it has no rights, their results, and their traces in logs."""

import json
import re

KAFKA = """
import json, sys, time
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding, AclBindingFilter, AclOperation, AclPermissionType, AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource,
    NewPartitions, NewTopic, ResourcePatternType, ResourceType, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion,
)
settings = json.loads(sys.stdin.read()) | {"log_level": 0}
topic, group, own = sys.argv[1:4]
admin = AdminClient(settings)
results = {}
def attempt(name, action):
    try:
        results[name] = f"succeeded: {action()}"
    except KafkaException as error:
        results[name] = error.args[0].name()
def wait(futures):
    if not isinstance(futures, dict):
        return futures.result(30)
    return [future.result(30) for future in futures.values()]
def write():
    failed = []
    producer = Producer(settings | {"message.timeout.ms": 30000})
    producer.produce(topic, b"{}", on_delivery=lambda error, _: failed.append(error))
    producer.flush(40)
    if failed[0] is not None:
        raise KafkaException(failed[0])
def polled(consumer):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        message = consumer.poll(1)
        if message is not None:
            consumer.close()
            if message.error():
                raise KafkaException(message.error())
            return message.value()
def read():
    consumer = Consumer(settings | {"group.id": own, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    return polled(consumer)
def join():
    consumer = Consumer(settings | {"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    return polled(consumer)
one = TopicPartition(topic, 0, 0)
acl = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{own}", "*", AclOperation.ALL, AclPermissionType.ALLOW)
scram = UserScramCredentialUpsertion(own, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096), b"another password")
config = ConfigResource(ConfigResource.Type.TOPIC, topic)
entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
changed = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
attempt("write", write)
attempt("read", read)
attempt("join group", join)
attempt("delete topic", lambda: wait(admin.delete_topics([topic])))
attempt("delete records", lambda: wait(admin.delete_records([TopicPartition(topic, 0, 1)])))
attempt("add partitions", lambda: wait(admin.create_partitions([NewPartitions(topic, 9)])))
attempt("create topic", lambda: wait(admin.create_topics([NewTopic("another-" + topic, 1)])))
attempt("describe configs", lambda: wait(admin.describe_configs([config])))
attempt("alter configs", lambda: wait(admin.incremental_alter_configs([changed])))
attempt("describe group", lambda: wait(admin.describe_consumer_groups([group])))
attempt("delete group", lambda: wait(admin.delete_consumer_groups([group])))
attempt("read offsets", lambda: wait(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])])))
attempt("alter offsets", lambda: wait(admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [one])])))
attempt("describe ACLs", lambda: wait(admin.describe_acls(AclBindingFilter(*[
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY]))))
attempt("create ACL", lambda: wait(admin.create_acls([AclBinding(*acl)])))
attempt("set password", lambda: wait(admin.alter_user_scram_credentials([scram])))
results["topics"] = sorted(admin.list_topics(timeout=30).topics)
results["groups"] = sorted(found.group_id for found in wait(admin.list_consumer_groups()).valid)
print(json.dumps(results))
"""
"""Tries each request and prints its result. Reads the settings of the client as JSON."""

TOPIC, GROUP, CLUSTER = "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"
REFUSED = {
    "write": TOPIC,
    "read": TOPIC,
    "join group": GROUP,
    "delete topic": TOPIC,
    "delete records": "_NOENT",  # The client finds no such topic.
    "add partitions": TOPIC,
    "create topic": TOPIC,
    "describe configs": TOPIC,
    "alter configs": TOPIC,
    "describe group": GROUP,
    "delete group": GROUP,
    "read offsets": GROUP,
    "alter offsets": GROUP,
    "describe ACLs": "succeeded: []",  # librdkafka ignores the error of the answer.
    "create ACL": CLUSTER,
    "set password": CLUSTER,
}
"""Attempt -> its result."""

DENIED_BY_KAFKA = re.compile(
    r"Principal = (?P<principal>\S+) is Denied operation = (?P<operation>\w+) from host = \S+ "
    r"on resource = (?P<type>\w+):LITERAL:(?P<name>\S+) "
)
"""A line of the log of Apache Kafka, from ``kafka.authorizer.logger``."""


def audited(log: str, principal: str) -> set[tuple[str, str]]:
    """Return the operations and resources that the log of a broker of either kind says were denied to a principal."""
    found: set[tuple[str, str]] = set()
    for line in log.splitlines():
        if kafka := DENIED_BY_KAFKA.search(line):
            if kafka["principal"] == principal:
                operation = "".join(word.capitalize() for word in kafka["operation"].split("_"))
                found.add((operation, f"{kafka['type']}:{kafka['name']}"))
        elif line.startswith("{"):
            entry = json.loads(line)
            if entry.get("audit") and entry["event"] == "access denied" and entry["principal"] == principal:
                found.add((entry["operation"], entry["resource"]))
    return found


def denials(topic: str, group: str) -> set[tuple[str, str]]:
    """Return the operations and resources that the log of a broker must have after all attempts.

    librdkafka looks for a topic and for the coordinator of a group first, so many attempts end with Describe."""
    return {
        *((operation, f"Topic:{topic}") for operation in ("Describe", "Alter", "DescribeConfigs", "AlterConfigs")),
        ("Create", f"Topic:another-{topic}"),
        ("Describe", f"Group:{group}"),
        *((operation, "Cluster:kafka-cluster") for operation in ("Describe", "Alter")),
    }
