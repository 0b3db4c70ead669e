"""The API server decides which IcebergTopics the CRD accepts and rejects, and shows its defaults and columns."""

import copy
import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from firn.api import crds
from firn.api.structural import VALIDATIONS
from firn.api.v1alpha1 import IcebergTopic
from tests.apiserver import ApiServer, Manifest, Refused
from tests.integration.crd.conftest import REPOSITORY

TOPICS = "/apis/firn.dev/v1alpha1/namespaces/demo/icebergtopics"
SAMPLES = sorted((REPOSITORY / "crds/samples").glob("*.yaml"))


def topic(name: str, spec: Mapping[str, Any]) -> Manifest:
    return {
        "apiVersion": "firn.dev/v1alpha1",
        "kind": "IcebergTopic",
        "metadata": {"name": name, "namespace": "demo"},
        "spec": dict(spec),
    }


def fields(*given: Mapping[str, Any]) -> Manifest:
    return {"schema": {"format": "Json", "fields": [dict(field) for field in given]}}


def many_fields(count: int) -> Manifest:
    return fields(*({"name": f"f{number}", "type": "long"} for number in range(count)))


def keyed(key: Manifest) -> Manifest:
    return {"schema": {"format": "Json", "fields": [{"name": "a", "type": "int"}], "key": key}}


FULL: Manifest = {
    "profile": "classic",
    "topicName": "flights",
    "partitions": 6,
    "config": {"cleanup.policy": "delete"},
    "schema": {
        "format": "Json",
        "fields": [{"name": "carrier", "type": "string", "required": False, "doc": "Airline"}],
        "unknownFields": "DeadLetter",
    },
    "table": {
        "catalog": "lake",
        "namespace": "demo",
        "name": "flights",
        "partitionBy": ["month(time_hour)", "bucket(8, carrier)", "origin"],
        "sortBy": ["time_hour desc nulls last"],
        "metadataColumns": "Flat",
        "formatVersion": 3,
        "properties": {"write.parquet.compression-codec": "zstd"},
    },
    "ingestion": {"group": "default", "freshness": "60s", "startFrom": "Latest", "onBadRecord": "Halt"},
    "suspend": True,
    "deletionPolicy": {"topic": "Delete", "table": "Delete"},
}

ACCEPTED: dict[str, Manifest] = {
    "nothing": {},
    "everything": FULL,
    "raw binary": {"schema": {"raw": "Binary"}},
    "raw string": {"schema": {"raw": "String"}},
    "computed columns": {
        "schema": {
            "raw": "Binary",
            "columns": [
                {"name": "a", "from": "header:trace id", "type": "int", "required": True, "doc": "d"},
                {"name": "b", "from": "$.customer.email", "with": "Sha256"},
                {"name": "c", "from": "value", "type": "timestamp", "epoch": "s"},
                {"name": "d", "constant": "x"},
            ],
            "otherFields": "Keep",
        }
    },
    "names in brackets": {
        "schema": {
            "format": "Json",
            "fields": [{"name": "order-id", "type": "long"}, {"name": "c", "type": "struct<'user.name': string>"}],
            "columns": [
                {"name": "a", "from": "$['order-id']"},
                {"name": "b", "from": r"$.c['user.name'].x['it\'s \\']"},
            ],
        },
        "routes": {"by": "$['event-type']", "tables": [{"match": "a", "name": "a"}]},
    },
    "avro": {"schema": {"format": "Avro", "text": "{}", "framing": "Registry"}},
    "protobuf of a registry": {"schema": {"format": "Protobuf", "registry": {"name": "main"}, "message": "shop.Order"}},
    "json of a registry": {"schema": {"format": "Json", "registry": {"name": "main"}}},
    "gate": {"schema": {"format": "Avro", "registry": {"name": "main"}, "gate": "Id"}},
    "gate that decodes": {"schema": {"format": "Json", "fields": [{"name": "a", "type": "int"}], "gate": "Decode"}},
    "avro of a registry": {
        "schema": {"format": "Avro", "registry": {"name": "main"}, "evolution": {"incompatible": "DeadLetter"}}
    },
    "an evolution policy": {
        "schema": {
            "format": "Avro",
            "text": "{}",
            "evolution": {"add": "Propose", "rename": "Refuse", "drop": "KeepNull"},
        }
    },
    "protobuf": {"schema": {"format": "Protobuf", "text": "x", "message": "shop.v1.Order", "framing": "Registry"}},
    "a key as bytes": {"schema": {"format": "Avro", "text": "{}", "key": {"columns": "Binary"}}},
    "a key as columns": keyed({"columns": "Flat", "fields": [{"name": "id", "type": "long"}]}),
    "keys with the bytes of a registry": keyed(
        {"columns": "Flat", "format": "Avro", "text": '"long"', "framing": "Registry"}
    ),
    "no columns of a key": {"schema": {"raw": "Binary", "key": {}}},
    "quality rules": {
        "quality": {"rules": [{"name": "a-1", "check": "a > 1"}, {"name": "b", "check": "b", "onFail": "Halt"}]}
    },
    "publishing with the defaults": {"quality": {"publish": {}}},
    "publishing": {
        "quality": {
            "publish": {"branch": "audit.1", "every": "10s", "checks": [{"name": "a", "check": "count(*) > 1"}]}
        }
    },
    "protobuf with the first message": {"schema": {"format": "Protobuf", "text": "x"}},
    "a thousand fields": many_fields(1000),
    "sixteen partition terms": {"table": {"partitionBy": [f"f{number}" for number in range(16)]}},
    "adopt another topic": {
        "ingestion": {"adopt": {"topicId": "6rV8xqZ0Q1mWn3c5dE7fGg", "offsets": [{"partition": 0, "offset": 5}]}}
    },
    "continue a table of Kafka Connect": {
        "ingestion": {"adopt": {"connect": {"group": "connect-orders", "controlTopic": "control"}}}
    },
    "start at a time": {"ingestion": {"startFrom": {"timestamp": "2024-01-01T00:00:00Z"}}},
    "start at a local time": {"ingestion": {"startFrom": {"timestamp": "2024-01-01T00:00:00.5+02:00"}}},
    "topic goes, table stays": {"deletionPolicy": {"topic": "Delete"}},
    "freshness 5s": {"ingestion": {"freshness": "5s"}},
    "freshness 5000ms": {"ingestion": {"freshness": "5000ms"}},
    "freshness 86400000ms": {"ingestion": {"freshness": "86400000ms"}},
    "freshness 86400s": {"ingestion": {"freshness": "86400s"}},
    "freshness 15m": {"ingestion": {"freshness": "15m"}},
    "freshness 24h": {"ingestion": {"freshness": "24h"}},
    "freshness 1d": {"ingestion": {"freshness": "1d"}},
    "one partition": {"partitions": 1},
    "ten thousand partitions": {"partitions": 10000},
    "Kafka's own kind of name": {"topicName": "Orders.EU_v1-2"},
    "64 configs": {"config": {f"key.{number}": "x" for number in range(64)}},
}


def routed(*tables: Manifest, by: str = "$.type", **more: Any) -> Manifest:
    return {"routes": {"by": by, "tables": list(tables or [{"match": "order", "name": "orders"}]), **more}}


REST = {"unknownFields": "Keep", "unknownFieldsColumn": "rest"}

REFUSED: dict[str, tuple[Manifest, str]] = {
    "no routes": ({"routes": {"by": "key", "tables": []}}, "spec.routes.tables"),
    "51 routes": (routed(*({"match": f"a{n}", "name": f"t{n}"} for n in range(51))), "spec.routes.tables"),
    "a route without name": (routed({"match": "order"}), "spec.routes.tables[0].name"),
    "a route to a name with a dash": (routed({"match": "a", "name": "a-b"}), "spec.routes.tables[0].name"),
    "routes by a value": (routed(by="value"), "spec.routes.by"),
    "routes by the message of a path": (routed(by="message.a"), "spec.routes.by"),
    "routes by no field": (routed(by="$."), "spec.routes.by"),
    "routes that skip": (routed(otherwise="Skip"), "spec.routes.otherwise"),
    "a table of routes with routes": ({**routed(), "route": {"of": "events"}}, "set routes or route, not both"),
    "a wrong schema of a route": (
        routed({"match": "a", "name": "a", "schema": {"format": "Csv"}}),
        "spec.routes.tables[0].schema.format",
    ),
    # rules
    "raw and format": (
        {"schema": {"raw": "String", "format": "Json", "fields": [{"name": "a", "type": "int"}]}},
        "set either raw, or",
    ),
    "adopt nothing": ({"ingestion": {"adopt": {}}}, "set either topicId"),
    "adopt a topic and a connector": (
        {"ingestion": {"adopt": {"topicId": "id", "connect": {"group": "connect-orders"}}}},
        "set either topicId",
    ),
    "an empty schema": ({"schema": {}}, "set either raw, or"),
    "format without fields": ({"schema": {"format": "Json"}}, "format: Json needs fields"),
    "fields without format": ({"schema": {"fields": [{"name": "a", "type": "int"}]}}, "set either raw, or"),
    "raw and fields": (
        {"schema": {"raw": "String", "fields": [{"name": "a", "type": "int"}]}},
        "format: Json needs fields",
    ),
    "raw with unknown fields": (
        {"schema": {"raw": "String", "unknownFields": "DeadLetter"}},
        "unknownFields needs fields",
    ),
    "avro without text": ({"schema": {"format": "Avro"}}, "need text or registry"),
    "text without format": ({"schema": {"text": "{}"}}, "set either raw, or"),
    "json with text": (
        {"schema": {"format": "Json", "fields": [{"name": "a", "type": "int"}], "text": "{}"}},
        "text needs one of these formats",
    ),
    "dead letters for unknown fields of a registry": (
        {"schema": {"format": "Json", "registry": {"name": "main"}, "unknownFields": "DeadLetter"}},
        "unknownFields needs fields",
    ),
    "a column for unknown fields of avro": (
        {
            "schema": {**REST, "format": "Avro", "registry": {"name": "main"}},
            "table": {"formatVersion": 3},
        },
        "Keep needs format: Json with fields or registry",
    ),
    "avro with unknown fields": (
        {"schema": {"format": "Avro", "text": "{}", "unknownFields": "DeadLetter"}},
        "unknownFields needs fields",
    ),
    "other fields without columns": (
        {"schema": {"raw": "Binary", "otherFields": "Keep"}},
        "otherFields needs columns",
    ),
    "column with two sources": (
        {"schema": {"raw": "Binary", "columns": [{"name": "a", "from": "key", "constant": "x"}]}},
        "set either from or constant",
    ),
    "column without a source": (
        {"schema": {"raw": "Binary", "columns": [{"name": "a"}]}},
        "set either from or constant",
    ),
    "hashed constant": (
        {"schema": {"raw": "Binary", "columns": [{"name": "a", "constant": "x", "with": "Sha256"}]}},
        "with and epoch need from",
    ),
    "salted mask": (
        {"schema": {"raw": "Binary", "columns": [{"name": "a", "from": "key", "with": "Mask", "salt": "people"}]}},
        "salt needs with: Sha256",
    ),
    "column of a list": (
        {"schema": {"raw": "Binary", "columns": [{"name": "a", "from": "$.lines[0]"}]}},
        "spec.schema.columns[0].from",
    ),
    "column of a name that needs brackets": (
        {"schema": {"raw": "Binary", "columns": [{"name": "a", "from": "$['x'].order-id"}]}},
        "spec.schema.columns[0].from",
    ),
    "field that no column can be": (
        {"schema": {"format": "Json", "fields": [{"name": "order-id", "type": "int"}]}},
        "without columns, names of fields have letters, digits and _",
    ),
    "field of a key that no column can be": (
        keyed({"columns": "Flat", "fields": [{"name": "order-id", "type": "int"}]}),
        "spec.schema.key.fields[0].name",
    ),
    "unknown function": (
        {"schema": {"raw": "Binary", "columns": [{"name": "a", "from": "key", "with": "Md5"}]}},
        "spec.schema.columns[0].with",
    ),
    "json with framing": (
        {"schema": {"format": "Json", "fields": [{"name": "a", "type": "int"}], "framing": "Registry"}},
        "framing needs text",
    ),
    "text and registry": (
        {"schema": {"format": "Avro", "text": "{}", "registry": {"name": "main"}}},
        "set text or registry, not both",
    ),
    "registry with framing": (
        {"schema": {"format": "Avro", "registry": {"name": "main"}, "framing": "Registry"}},
        "framing needs text",
    ),
    "json with fields and registry": (
        {"schema": {"format": "Json", "fields": [{"name": "a", "type": "int"}], "registry": {"name": "main"}}},
        "format: Json needs fields or registry, not both",
    ),
    "protobuf without text": ({"schema": {"format": "Protobuf"}}, "need text or registry"),
    "protobuf with text and registry": (
        {"schema": {"format": "Protobuf", "text": "x", "registry": {"name": "main"}}},
        "set text or registry, not both",
    ),
    "protobuf with unknown fields": (
        {"schema": {"format": "Protobuf", "text": "x", "unknownFields": "DeadLetter"}},
        "unknownFields needs fields",
    ),
    "avro with message": (
        {"schema": {"format": "Avro", "text": "{}", "message": "R"}},
        "message needs format: Protobuf",
    ),
    "raw with message": ({"schema": {"raw": "String", "message": "R"}}, "message needs format: Protobuf"),
    "message with a space": ({"schema": {"format": "Protobuf", "text": "x", "message": "a b"}}, "spec.schema.message"),
    "message with a leading dot": (
        {"schema": {"format": "Protobuf", "text": "x", "message": ".a"}},
        "spec.schema.message",
    ),
    "a long message": ({"schema": {"format": "Protobuf", "text": "x", "message": "a" * 513}}, "Too long: may not be"),
    "raw with registry": ({"schema": {"raw": "String", "registry": {"name": "main"}}}, "registry needs a format"),
    "renames without format": (
        {"schema": {"raw": "String", "renames": [{"from": "a", "to": "b"}]}},
        "renames need format",
    ),
    "gate without registry": (
        {"schema": {"format": "Avro", "text": "{}", "gate": "Id"}},
        "gate: Id needs registry, and gate: Decode needs format",
    ),
    "gate without format": ({"schema": {"raw": "String", "gate": "Decode"}}, "gate: Decode needs format"),
    "another gate": (
        {"schema": {"format": "Avro", "registry": {"name": "main"}, "gate": "Any"}},
        "spec.schema.gate",
    ),
    "evolution without format": ({"schema": {"raw": "String", "evolution": {}}}, "evolution needs format"),
    "dead letters of schemas without registry": (
        {"schema": {"format": "Avro", "text": "{}", "evolution": {"incompatible": "DeadLetter"}}},
        "evolution.incompatible: DeadLetter and NewColumn need registry",
    ),
    "new columns beside columns": (
        {
            "schema": {
                "format": "Avro",
                "registry": {"name": "main"},
                "columns": [{"name": "a", "from": "$.a"}],
                "evolution": {"incompatible": "NewColumn"},
            }
        },
        "evolution.incompatible: NewColumn needs a schema without columns",
    ),
    "other members without a column": (
        {"schema": {"format": "Json", "fields": [{"name": "a", "type": "int"}], "unknownFields": "Keep"}},
        "unknownFields: Keep needs unknownFieldsColumn",
    ),
    "other members beside columns": (
        {
            "schema": {
                "format": "Json",
                "fields": [{"name": "a", "type": "int"}],
                "unknownFields": "Keep",
                "unknownFieldsColumn": "rest",
                "columns": [{"name": "a", "from": "$.a"}],
            }
        },
        "unknownFieldsColumn beside columns needs otherFields: Keep",
    ),
    "truncated times of Avro": (
        {"schema": {"format": "Avro", "text": "{}", "nanoseconds": "Truncate"}},
        "nanoseconds: Truncate needs format: Json",
    ),
    "nanoseconds of JSON": (
        {"schema": {"format": "Json", "fields": [{"name": "a", "type": "int"}], "nanoseconds": "Keep"}},
        "nanoseconds: Keep needs format: Avro or Protobuf",
    ),
    "another way to drop": (
        {"schema": {"format": "Avro", "text": "{}", "evolution": {"drop": "Remove"}}},
        "spec.schema.evolution.drop",
    ),
    "table deleted, topic kept": (
        {"deletionPolicy": {"table": "Delete"}},
        "table: Delete needs deletionPolicy.topic: Delete",
    ),
    "table called as dead letters": ({"table": {"name": "a__dlq"}}, "must not end in __dlq"),
    "topic .": ({"topicName": "."}, "must not be . or .."),
    "topic ..": ({"topicName": ".."}, "must not be . or .."),
    "Kafka's own topic": ({"topicName": "__consumer_offsets"}, "must not be . or .."),
    "config key": ({"config": {"Cleanup_Policy": "x"}}, "names of topic configs must have"),
    "config key too long": ({"config": {"a" * 129: "x"}}, "names of topic configs must have"),
    "our property": ({"table": {"properties": {"firn.offsets": "{}"}}}, "must not start with firn."),
    "property name too long": ({"table": {"properties": {"a" * 257: "x"}}}, "must not start with firn."),
    "freshness 4s": ({"ingestion": {"freshness": "4s"}}, "freshness must be between 5s and 1d"),
    "freshness in words": (
        {"ingestion": {"freshness": "1 minute"}},
        "write a number and a unit of ms, s, m, h or d, such as 30d",
    ),
    "freshness 4999ms": ({"ingestion": {"freshness": "4999ms"}}, "freshness must be between 5s and 1d"),
    "freshness 2d": ({"ingestion": {"freshness": "2d"}}, "freshness must be between 5s and 1d"),
    "freshness 25h": ({"ingestion": {"freshness": "25h"}}, "freshness must be between 5s and 1d"),
    "freshness 86400001ms": ({"ingestion": {"freshness": "86400001ms"}}, "freshness must be between 5s and 1d"),
    "freshness 999999999h": ({"ingestion": {"freshness": "999999999h"}}, "freshness must be between 5s and 1d"),
    # shapes and bounds
    "freshness 60": ({"ingestion": {"freshness": "60"}}, "spec.ingestion.freshness"),
    "freshness 1.5m": ({"ingestion": {"freshness": "1.5m"}}, "spec.ingestion.freshness"),
    "freshness as number": ({"ingestion": {"freshness": 60}}, "spec.ingestion.freshness"),
    "freshness too long": ({"ingestion": {"freshness": "10000000000s"}}, "spec.ingestion.freshness"),
    "partitions 0": ({"partitions": 0}, "spec.partitions"),
    "partitions 10001": ({"partitions": 10001}, "spec.partitions"),
    "partitions as text": ({"partitions": "6"}, "spec.partitions"),
    "partitions as fraction": ({"partitions": 1.5}, "spec.partitions"),
    "config as number": ({"config": {"retention.ms": 1000}}, "spec.config.retention.ms"),
    "config value too long": ({"config": {"a": "x" * 4097}}, "spec.config.a"),
    "65 configs": ({"config": {f"key.{number}": "x" for number in range(65)}}, "spec.config"),
    "65 properties": (
        {"table": {"properties": {f"key.{number}": "x" for number in range(65)}}},
        "spec.table.properties",
    ),
    "config as list": ({"config": ["a"]}, "spec.config"),
    "topic name with blank": ({"topicName": "a b"}, "spec.topicName"),
    "topic name too long": ({"topicName": "a" * 250}, "spec.topicName"),
    "profile with capitals": ({"profile": "Classic"}, "spec.profile"),
    "catalog with dot": ({"table": {"catalog": "a.b"}}, "spec.table.catalog"),
    "group too long": ({"ingestion": {"group": "g" * 41}}, "spec.ingestion.group"),
    "table name with dash": ({"table": {"name": "a-b"}}, "spec.table.name"),
    "table namespace with dot": ({"table": {"namespace": "a.b"}}, "spec.table.namespace"),
    "1001 fields": (many_fields(1001), "spec.schema.fields"),
    "no fields": ({"schema": {"format": "Json", "fields": []}}, "spec.schema.fields"),
    "field without type": (fields({"name": "a"}), "spec.schema.fields[0].type"),
    "field without name": (fields({"type": "int"}), "spec.schema.fields[0].name"),
    "field with a bad name": (fields({"name": "a\tb", "type": "int"}), "spec.schema.fields[0].name"),
    "field with an empty type": (fields({"name": "a", "type": ""}), "spec.schema.fields[0].type"),
    "field type too long": (fields({"name": "a", "type": "x" * 4097}), "spec.schema.fields[0].type"),
    "field twice": (fields({"name": "a", "type": "int"}, {"name": "a", "type": "long"}), "Duplicate value"),
    "field required as text": (
        fields({"name": "a", "type": "int", "required": "no"}),
        "spec.schema.fields[0].required",
    ),
    "17 partition terms": ({"table": {"partitionBy": ["a"] * 17}}, "spec.table.partitionBy"),
    "17 sort terms": ({"table": {"sortBy": ["a"] * 17}}, "spec.table.sortBy"),
    "partition term as text": ({"table": {"partitionBy": "a"}}, "spec.table.partitionBy"),
    "an empty term": ({"table": {"partitionBy": [""]}}, "spec.table.partitionBy[0]"),
    "a long term": ({"table": {"sortBy": ["a" * 257]}}, "spec.table.sortBy[0]"),
    "suspend as text": ({"suspend": "true"}, "spec.suspend"),
    "table as text": ({"table": "flights"}, "spec.table"),
    "key without fields": (keyed({"columns": "Struct"}), "columns: Flat and Struct need fields, text or registry"),
    "fields of a key as bytes": (
        keyed({"columns": "Binary", "fields": [{"name": "a", "type": "int"}]}),
        "columns: Flat and Struct need fields, text or registry",
    ),
    "columns of a raw key": ({"schema": {"raw": "Binary", "key": {"columns": "Binary"}}}, "key needs format"),
    "key with fields and text": (
        keyed({"columns": "Flat", "format": "Avro", "fields": [{"name": "a", "type": "int"}], "text": "{}"}),
        "set one of fields, text and registry",
    ),
    "fields of an Avro key": (
        keyed({"columns": "Flat", "format": "Avro", "fields": [{"name": "a", "type": "int"}]}),
        "fields need format: Json",
    ),
    "framing of a JSON key": (
        keyed({"columns": "Flat", "fields": [{"name": "a", "type": "int"}], "framing": "Registry"}),
        "framing needs text",
    ),
    "text of a JSON key": (keyed({"columns": "Flat", "text": "{}"}), "text needs format: Avro or Protobuf"),
    "message of an Avro key": (
        keyed({"columns": "Flat", "format": "Avro", "text": "{}", "message": "R"}),
        "message needs format: Protobuf",
    ),
    "strategy of keys without message": (
        keyed({"columns": "Flat", "format": "Avro", "registry": {"name": "main", "subjectStrategy": "RecordName"}}),
        "need message, the name of the record",
    ),
    "subject and strategy": (
        {"schema": {"format": "Avro", "registry": {"name": "main", "subject": "s", "subjectStrategy": "TopicName"}}},
        "set subject or subjectStrategy, not both",
    ),
    "strategy without message": (
        {"schema": {"format": "Json", "registry": {"name": "main", "subjectStrategy": "TopicRecordName"}}},
        "need message, the name of the record",
    ),
    "message by topic": (
        {
            "schema": {
                "format": "Avro",
                "message": "R",
                "registry": {"name": "main", "subjectStrategy": "TopicName"},
            }
        },
        "message needs format: Protobuf",
    ),
    "gate of headers": (
        {"schema": {"format": "Avro", "gate": "Id", "registry": {"name": "main", "idIn": "Header"}}},
        "gate needs registry.idIn: Payload",
    ),
    "another place of the id": (
        {"schema": {"format": "Avro", "registry": {"name": "main", "idIn": "Key"}}},
        "spec.schema.registry.idIn",
    ),
    "two rules of one name": (
        {"quality": {"rules": [{"name": "a", "check": "a"}, {"name": "a", "check": "b"}]}},
        "Duplicate value",
    ),
    "rule without check": ({"quality": {"rules": [{"name": "a"}]}}, "spec.quality.rules[0].check"),
    "rule with capitals": ({"quality": {"rules": [{"name": "A", "check": "a"}]}}, "spec.quality.rules[0].name"),
    "rule that skips": (
        {"quality": {"rules": [{"name": "a", "check": "a", "onFail": "Skip"}]}},
        "spec.quality.rules[0].onFail",
    ),
    "rows on main": ({"quality": {"publish": {"branch": "main"}}}, "branch must not be main"),
    "publishing all the time": ({"quality": {"publish": {"every": "1s"}}}, "every must be between 10s and 1d"),
    "publishing that halts": ({"quality": {"publish": {"onFail": "Halt"}}}, "spec.quality.publish.onFail"),
    # enums
    "unknown format": ({"schema": {"format": "Csv", "fields": [{"name": "a", "type": "int"}]}}, "spec.schema.format"),
    "unknown raw": ({"schema": {"raw": "Text"}}, "spec.schema.raw"),
    "unknown unknownFields": ({"schema": {"raw": "String", "unknownFields": "Drop"}}, "spec.schema.unknownFields"),
    "unknown metadataColumns": ({"table": {"metadataColumns": "None"}}, "spec.table.metadataColumns"),
    "format version 1": ({"table": {"formatVersion": 1}}, "spec.table.formatVersion"),
    "format version as text": ({"table": {"formatVersion": "2"}}, "spec.table.formatVersion"),
    "unknown onBadRecord": ({"ingestion": {"onBadRecord": "Drop"}}, "spec.ingestion.onBadRecord"),
    "unknown deletion policy": ({"deletionPolicy": {"topic": "Orphan"}}, "spec.deletionPolicy.topic"),
    # startFrom: a name, or an object with a time
    "start from an unknown word": ({"ingestion": {"startFrom": "earliest"}}, "spec.ingestion.startFrom"),
    "start from nothing": ({"ingestion": {"startFrom": {}}}, "spec.ingestion.startFrom.timestamp"),
    "start from a bad time": (
        {"ingestion": {"startFrom": {"timestamp": "yesterday"}}},
        "spec.ingestion.startFrom.timestamp",
    ),
    "start from a time without zone": (
        {"ingestion": {"startFrom": {"timestamp": "2024-01-01T00:00:00"}}},
        "spec.ingestion.startFrom.timestamp",
    ),
    "start from a number": ({"ingestion": {"startFrom": 5}}, "spec.ingestion.startFrom"),
    "start from a fraction": ({"ingestion": {"startFrom": 0.5}}, "spec.ingestion.startFrom"),
    "start from a list": ({"ingestion": {"startFrom": ["Earliest"]}}, "spec.ingestion.startFrom"),
    "start from an empty list": ({"ingestion": {"startFrom": []}}, "spec.ingestion.startFrom"),
    "start from true": ({"ingestion": {"startFrom": True}}, "spec.ingestion.startFrom"),
    "start from false": ({"ingestion": {"startFrom": False}}, "spec.ingestion.startFrom"),
    "start from an offset": ({"ingestion": {"startFrom": {"offset": 5}}}, "spec.ingestion.startFrom.timestamp"),
    "start from a time and more": (
        {"ingestion": {"startFrom": {"timestamp": "2024-01-01T00:00:00Z", "offset": 5}}},
        "spec.ingestion.startFrom",
    ),
    # unknown fields under strict validation, as kubectl requests it
    "an unknown field": ({"replicas": 3}, 'unknown field "spec.replicas"'),
    "an unknown field inside": ({"table": {"sorted": True}}, 'unknown field "spec.table.sorted"'),
}

_PROFILE, _OTHER = {"profile": "classic"}, {"profile": "other"}
UPDATES_REFUSED: dict[str, tuple[Manifest, Manifest, str]] = {
    **{
        f"{path} {change}": (before, after, f"{path} is immutable: it cannot be set, changed or removed later")
        for path, first, other in (
            ("profile", {"profile": "a"}, {"profile": "b"}),
            ("topicName", {"topicName": "a"}, {"topicName": "b"}),
            ("table.catalog", {"table": {"catalog": "a"}}, {"table": {"catalog": "b"}}),
            ("table.namespace", {"table": {"namespace": "a"}}, {"table": {"namespace": "b"}}),
            ("table.name", {"table": {"name": "a"}}, {"table": {"name": "b"}}),
        )
        for change, before, after in (("changed", first, other), ("set", {}, first), ("unset", first, {}))
    },
    "table shared later": ({}, {"table": {"shared": True}}, "shared is immutable"),
    "route set": ({}, {"route": {"of": "a"}}, "route.of is immutable"),
    "routes set": ({}, routed(), "routes is immutable: it cannot be set or removed later"),
    "routes unset": (routed(), {}, "routes is immutable: it cannot be set or removed later"),
    "routes by another value": (routed(), routed(by="key"), "by, otherwise, and the order, names"),
    "other records of routes": (routed(), routed(otherwise="Table"), "by, otherwise, and the order, names"),
    "a route more": (
        routed(),
        routed({"match": "order", "name": "orders"}, {"match": "b", "name": "b"}),
        "by, otherwise, and the order, names",
    ),
    "another expression": (routed(), routed({"match": "x", "name": "orders"}), "by, otherwise, and the order, names"),
    "partitions lowered": ({"partitions": 6}, {"partitions": 3}, "partitions can only be increased"),
    "metadataColumns changed": ({}, {"table": {"metadataColumns": "Flat"}}, "metadataColumns is immutable"),
    "metadataColumns unset": ({"table": {"metadataColumns": "Flat"}}, {}, "metadataColumns is immutable"),
    "format version lowered": (
        {"table": {"formatVersion": 3}},
        {"table": {"formatVersion": 2}},
        "formatVersion can only be increased",
    ),
}

UPDATES_ACCEPTED: dict[str, tuple[Manifest, Manifest]] = {
    "nothing": (FULL, FULL),
    "partitions raised": ({"partitions": 3}, {"partitions": 6}),
    "partitions set": ({}, {"partitions": 6}),
    "partitions unset": ({"partitions": 6}, {}),
    "format version raised": ({}, {"table": {"formatVersion": 3}}),
    "partitioning and order": ({"table": {"partitionBy": ["a"]}}, {"table": {"partitionBy": ["b"], "sortBy": ["a"]}}),
    "group": ({"ingestion": {"group": "a"}}, {"ingestion": {"group": "b"}}),
    "group unset": ({"ingestion": {"group": "a"}}, {}),
    "freshness": ({}, {"ingestion": {"freshness": "5s"}}),
    "start from a time": ({}, {"ingestion": {"startFrom": {"timestamp": "2024-01-01T00:00:00Z"}}}),
    "start from a word again": ({"ingestion": {"startFrom": {"timestamp": "2024-01-01T00:00:00Z"}}}, {}),
    "suspended": ({}, {"suspend": True}),
    "deletion policy": ({}, {"deletionPolicy": {"topic": "Delete", "table": "Delete"}}),
    "a field more": (
        fields({"name": "a", "type": "int"}),
        fields({"name": "a", "type": "long"}, {"name": "b", "type": "int"}),
    ),
    "an empty table": ({}, {"table": {}}),
    "the schema of a message": (
        routed(by="message"),
        routed({"match": "order", "name": "orders", "schema": {"raw": "Binary"}}, by="message"),
    ),
    "the schema and layout of a route": (
        routed(),
        routed(
            {
                "match": "order",
                "name": "orders",
                "partitionBy": ["a"],
                "schema": {"format": "Json", "fields": [{"name": "a", "type": "int"}]},
            }
        ),
    ),
}


def create(api: ApiServer, manifest: Manifest, *, dry: bool = False) -> Manifest:
    return api.call("POST", f"{TOPICS}?fieldValidation=Strict{'&dryRun=All' if dry else ''}", manifest)


def _name(prefix: str, case: str) -> str:
    """Return a unique name for the object of a case."""
    return f"{prefix}-{re.sub('[^a-z0-9]+', '-', case.lower())}".strip("-")


@pytest.mark.parametrize("case", ACCEPTED)
def test_the_api_server_accepts_a_valid_spec(api: ApiServer, case: str) -> None:
    created = create(api, topic("accepted", ACCEPTED[case]), dry=True)
    parsed = IcebergTopic.parse(created)
    given = IcebergTopic.parse(topic("accepted", ACCEPTED[case]))
    assert parsed.spec == given.spec, "the API server's defaults differ from those of the models"


@pytest.mark.parametrize("case", REFUSED)
def test_the_api_server_names_the_wrong_field_or_the_broken_rule(api: ApiServer, case: str) -> None:
    spec, message = REFUSED[case]
    with pytest.raises(Refused) as refused:
        create(api, topic("refused", spec), dry=True)
    assert message in str(refused.value)
    assert refused.value.code in (400, 422)


@pytest.mark.parametrize("case", UPDATES_REFUSED)
def test_the_api_server_rejects_an_invalid_update(api: ApiServer, case: str) -> None:
    before, after, message = UPDATES_REFUSED[case]
    live = create(api, topic(_name("ur", case), before))
    with pytest.raises(Refused) as refused:
        api.call("PUT", f"{TOPICS}/{live['metadata']['name']}", {**live, "spec": after})
    assert message in str(refused.value)
    assert refused.value.code == 422


@pytest.mark.parametrize("case", UPDATES_ACCEPTED)
def test_the_api_server_accepts_a_valid_update(api: ApiServer, case: str) -> None:
    before, after = UPDATES_ACCEPTED[case]
    live = create(api, topic(_name("ua", case), before))
    updated = api.call("PUT", f"{TOPICS}/{live['metadata']['name']}?fieldValidation=Strict", {**live, "spec": after})
    assert IcebergTopic.parse(updated).spec == IcebergTopic.parse(topic("x", after)).spec


def test_a_rejected_number_of_partitions_is_shown_with_its_field_and_a_way_out(api: ApiServer) -> None:
    live = create(api, topic("fewer-partitions", {"partitions": 6}))
    with pytest.raises(Refused) as refused:
        api.call("PUT", f"{TOPICS}/{live['metadata']['name']}", {**live, "spec": {"partitions": 3}})
    assert "spec.partitions: " in str(refused.value)
    assert "; for fewer, create an IcebergTopic with another topicName" in str(refused.value)


def test_each_rule_of_the_crd_rejects_a_case() -> None:
    def rules(schema: Any) -> list[str]:
        if isinstance(schema, list):
            return [message for item in schema for message in rules(item)]
        if not isinstance(schema, dict):
            return []
        own = [rule["message"] for rule in schema.get(VALIDATIONS, ())]
        return own + [message for value in schema.values() for message in rules(value)]

    expected = {message for _, message in REFUSED.values()} | {message for *_, message in UPDATES_REFUSED.values()}
    # test_a_resource_name_above_52_characters_is_rejected
    expected.add("metadata.name must have at most 52 characters")
    messages = rules(crds.iceberg_topics()["spec"]["versions"][0]["schema"])
    assert len(messages) >= 15
    assert [message for message in messages if not any(part in message for part in expected)] == []


def test_a_resource_name_above_52_characters_is_rejected(api: ApiServer) -> None:
    create(api, topic("n" * 52, {}), dry=True)
    with pytest.raises(Refused, match=r"metadata\.name must have at most 52 characters"):
        create(api, topic("n" * 53, {}), dry=True)


def test_spec_is_required(api: ApiServer) -> None:
    manifest = topic("no-spec", {})
    del manifest["spec"]
    with pytest.raises(Refused, match="spec: Required value"):
        create(api, manifest, dry=True)


def test_the_api_server_sets_defaults_and_the_first_status(api: ApiServer) -> None:
    created = create(api, topic("defaults", {}), dry=True)
    assert created["spec"] == {
        "deletionPolicy": {"table": "Retain", "topic": "Retain"},
        "ingestion": {"freshness": "60s", "onBadRecord": "DeadLetter", "startFrom": "Earliest"},
        "suspend": False,
        "table": {"formatVersion": 2, "metadataColumns": "Struct", "shared": False},
    }
    assert created["status"] == crds.DEFAULT_STATUS
    ready = created["status"]["conditions"][0]
    assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "Unknown", "Pending")
    assert created["status"]["observedGeneration"] < created["metadata"]["generation"], "kstatus: not yet Current"


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_api_server_accepts_the_samples(api: ApiServer, path: Any) -> None:
    for manifest in yaml.safe_load_all(path.read_text()):
        stored = create(api, manifest, dry=True)
        assert IcebergTopic.parse(stored).spec == IcebergTopic.parse(manifest).spec


def test_server_side_apply_changes_start_from_to_a_time_and_back(api: ApiServer) -> None:
    path = f"{TOPICS}/applied?fieldManager=someone&fieldValidation=Strict"
    for start in ("Latest", {"timestamp": "2024-01-01T00:00:00Z"}, "Earliest"):
        manifest = topic("applied", {"ingestion": {"startFrom": start}, **fields({"name": "a", "type": "int"})})
        applied = api.call("PATCH", path, manifest, "application/apply-patch+yaml")
        assert applied["spec"]["ingestion"]["startFrom"] == start


STATUS: Manifest = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": name,
            "status": status,
            "reason": reason,
            "message": "for people",
            "lastTransitionTime": "2024-01-01T00:00:00Z",
            "observedGeneration": 1,
        }
        for name, status, reason in (
            ("Ready", "True", "AllReady"),
            ("Fresh", "True", "WithinTarget"),
            ("Complete", "False", "RecordsLost"),
            ("RecordsAccepted", "False", "MostRejected"),
        )
    ],
    "profile": "classic",
    "topicName": "status",
    "topicId": "3LsnXJaYQWGOZVMqYjbBfQ",
    "partitions": 6,
    "bootstrapServers": "firn-broker-classic-bootstrap.firn-system.svc:9092",
    "tables": [
        {
            "name": "orders",
            "topic": "status-orders",
            "identifier": "lake.demo.orders",
            "uuid": "u",
            "ready": "True",
            "reason": "AllReady",
            "fresh": "Unknown",
            "lastCommitTime": "2024-01-01T00:00:00Z",
            "deadLetters": 2**40,
        }
    ],
    "table": {
        "identifier": "lake.demo.status",
        "uuid": "u",
        "location": "s3://a/b",
        "deadLetters": "lake.demo.status__dlq",
    },
    "ingestion": {
        "group": "default",
        "lastCommitTime": "2024-01-01T00:00:00Z",
        "deadLetters": 2**40,
        "lag": {"records": 2**53 + 1, "seconds": 2**40, "time": "2024-01-01T00:00:00Z"},
        "haltedAt": {"partition": 2, "offset": 2**53 + 1},
    },
    "maintenance": {
        "dataFiles": 2**40,
        "dataBytes": 2**50,
        "smallFiles": 120,
        "dueFiles": 100,
        "deleteFiles": 3,
        "manifests": 12,
        "snapshots": 40,
        "metadataBytes": 2**33,
        "oldestUncompactedTime": "2024-01-01T00:00:00Z",
        "compaction": {
            "policy": "nightly",
            "because": "NamedByTopic",
            "lastRun": {
                "name": "firn-run-nightly-0123456789",
                "startTime": "2024-01-01T00:00:00Z",
                "finishTime": "2024-01-01T00:10:00Z",
                "result": "Succeeded",
                "commits": 1,
                "filesBefore": 200,
                "filesAfter": 1,
                "bytesRewritten": 2**40,
                "deleteFilesRemoved": 0,
                "manifestsBefore": 0,
                "manifestsAfter": 0,
            },
            "policyUid": "0b4a1d9e-7f5c-4c0e-9f43-2b1d3c8e5a77",
            "failures": 2,
            "failedGeneration": 2**40,
            "schedule": "0 3 * * * Europe/Berlin",
            "lastScheduleTime": "2024-01-01T00:00:00Z",
            "nextRunTime": "2024-01-02T00:00:00Z",
            "lastRequest": {"topic": "1", "policy": "2024-01-01"},
            "failedRequest": {"topic": "2"},
        },
        "retention": {
            "policy": "legal",
            "because": "Selected",
            "lastRun": {
                "name": "firn-run-legal-0123456789",
                "mode": "DryRun",
                "result": "Failed",
                "message": "for people",
                "rows": {"items": 1, "files": 2, "bytes": 3, "sample": ["s3://a/b"]},
            },
        },
    },
    "audit": {
        "time": "2024-01-01T01:10:00Z",
        "result": "Failed",
        "topicId": "3LsnXJaYQWGOZVMqYjbBfQ",
        "offsets": 2**40,
        "missing": 2**33,
        "doubled": 2,
        "stray": 3,
        "unproved": 4,
        "failed": {
            "run": "firn-run-audit-0123456789",
            "time": "2024-01-01T01:10:00Z",
            "topicId": "3LsnXJaYQWGOZVMqYjbBfQ",
            "missing": 2**33,
            "doubled": 2,
            "stray": 3,
            "partition": 1,
            "offset": 2**53 + 1,
        },
        "lastRun": {
            "name": "firn-run-audit-0123456789",
            "startTime": "2024-01-01T01:00:00Z",
            "finishTime": "2024-01-01T01:10:00Z",
            "result": "Failed",
            "message": "for people",
        },
        "policyUid": "audit",
        "failures": 2,
        "failedGeneration": 1,
        "schedule": "0 1 * * * Etc/UTC",
        "lastScheduleTime": "2024-01-01T01:00:00Z",
        "nextRunTime": "2024-01-02T01:00:00Z",
        "excluded": "for people",
    },
    "losses": [{"name": "2-3fa9c1d2", "offsets": 2**53 + 1, "ranges": "for people"}],
}


def test_status_is_a_subresource(api: ApiServer) -> None:
    live = create(api, topic("status", {}))
    ignored = api.call("PUT", f"{TOPICS}/status", {**live, "status": STATUS})
    assert ignored["status"] == crds.DEFAULT_STATUS
    written = api.call("PUT", f"{TOPICS}/status/status", {**ignored, "status": STATUS, "spec": {"suspend": True}})
    assert written["status"] == STATUS, "nothing of the documented status may be pruned"
    assert written["spec"]["suspend"] is False
    assert written["metadata"]["generation"] == 1, "a change of status keeps the generation"
    owned = [entry for entry in written["metadata"]["managedFields"] if entry.get("subresource") == "status"]
    assert [entry["fieldsV1"] for entry in owned] == [{"f:status": {}}], "one entry, and not one for each field"
    twice = copy.deepcopy(written)
    twice["status"]["conditions"].append(twice["status"]["conditions"][0])
    with pytest.raises(Refused, match="Duplicate value"):
        api.call("PUT", f"{TOPICS}/status/status", twice)

    columns = {}
    table = api.call("GET", f"{TOPICS}/status", accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    for column, cell in zip(table["columnDefinitions"], table["rows"][0]["cells"], strict=True):
        columns[column["name"]] = (column["priority"], cell)
    assert [name for name, (priority, _) in columns.items() if priority == 0] == [
        *("Name", "Ready", "Reason", "Profile", "Partitions", "Table", "Fresh", "Age")
    ]
    shown = {name: cell for name, (_, cell) in columns.items()}
    assert shown.pop("Age")
    assert shown.pop("Last-Commit")
    assert shown.pop("Lag")
    assert shown.pop("Audited")
    assert shown == {
        "Name": "status",
        "Ready": "True",
        "Reason": "AllReady",
        "Profile": "classic",
        "Partitions": 6,
        "Table": "lake.demo.status",
        "Fresh": "True",
        "Accepted": "MostRejected",
        "Complete": "False",
        "Audit": "Failed",
        "Letters": 1099511627776,
        "Compaction": "nightly",
        "Retention": "legal",
        "Small-Files": 120,
        "Due-Files": 100,
        "Snapshots": 40,
        "Message": "for people",
    }


def test_the_crd_has_short_names_a_category_and_selectable_fields(api: ApiServer) -> None:
    resources = api.call("GET", "/apis/firn.dev/v1alpha1")["resources"]
    served = next(each for each in resources if each["name"] == "icebergtopics")
    assert (served["singularName"], served["shortNames"], served["categories"]) == (
        "icebergtopic",
        ["itopic"],
        ["lakehouse"],
    )
    assert served["namespaced"]
    spec = {"profile": "selected", "topicName": "selected-topic", "ingestion": {"group": "selected-group"}}
    create(api, topic("selected", spec))
    for selector in ("spec.profile=selected", "spec.topicName=selected-topic", "spec.ingestion.group=selected-group"):
        items = api.call("GET", f"{TOPICS}?fieldSelector={selector}")["items"]
        assert [item["metadata"]["name"] for item in items] == ["selected"]


def test_the_crd_of_the_chart_replaces_the_plain_one(api: ApiServer) -> None:
    """The copy in the chart and the plain CRD differ in metadata only, so each can replace the other."""
    text = (REPOSITORY / "charts/firn/templates/crd-icebergtopics.yaml").read_text()
    chart = yaml.safe_load("\n".join(line for line in text.splitlines() if "{{" not in line))
    assert chart["spec"] == crds.iceberg_topics()["spec"]
    api.install(chart)
    api.install(crds.iceberg_topics())
