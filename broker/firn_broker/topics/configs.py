"""Configs of topics: all that Kafka has, with their defaults and valid values (``TopicConfig.java``,
``LogConfig.java``), and Firn's own, which begin with ``firn.``.

Diskless topics store and describe also the configs that have no effect on them, because tools set and compare them.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from firn.decoders import checks
from firn.model.names import COPY, HISTORY, SCHEMA_CONTRACT, SCHEMA_GATE, SCHEMA_REGISTRY, SCHEMA_SUBJECT, SINGLE
from firn_broker.log_types import Topic


class ConfigType(IntEnum):
    """Types as DescribeConfigs numbers them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(IntEnum):
    """Source of a value, with the numbers of DescribeConfigs."""

    TOPIC = 1
    BROKER = 4
    DEFAULT = 5


class InvalidConfigError(Exception):
    """A config that cannot be set; the message names it and the reason."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A topic config."""

    default: str
    type: ConfigType
    check: Callable[[str], bool]
    valid: str
    """The valid values, for messages."""


_INT_MAX = (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1


def _number(type: ConfigType, default: int, low: int, high: int) -> Definition:
    def fits(text: str) -> bool:
        try:
            return low <= int(text) <= high
        except ValueError:
            return False

    return Definition(str(default), type, fits, f"a whole number from {low} to {high}")


def _int(default: int, low: int = 0, high: int = _INT_MAX) -> Definition:
    return _number(ConfigType.INT, default, low, high)


def _long(default: int, low: int = 0, high: int = _LONG_MAX) -> Definition:
    return _number(ConfigType.LONG, default, low, high)


def _flag(default: bool) -> Definition:
    return Definition(
        str(default).lower(), ConfigType.BOOLEAN, lambda text: text.lower() in ("true", "false"), "true or false"
    )


def _ratio(default: str) -> Definition:
    def fits(text: str) -> bool:
        try:
            return 0 <= float(text) <= 1
        except ValueError:
            return False

    return Definition(default, ConfigType.DOUBLE, fits, "a number from 0 to 1")


def _one_of(default: str, *names: str) -> Definition:
    return Definition(default, ConfigType.STRING, lambda text: text in names, f"one of {', '.join(names)}")


def _list(default: str, *names: str) -> Definition:
    return Definition(
        default,
        ConfigType.LIST,
        lambda text: all(not names or part.strip() in names for part in text.split(",") if text),
        f"a list of {', '.join(names)}" if names else "a list",
    )


def _matching(pattern: str, valid: str) -> Definition:
    return Definition("", ConfigType.STRING, lambda text: re.fullmatch(pattern, text) is not None, valid)


def _is_contract(text: str) -> bool:
    try:
        return not text or (len(text) <= checks.MOST_PACKED and bool(checks.unpacked(text)))
    except ValueError:
        return False


CLEANUP_POLICY = "cleanup.policy"
MAX_MESSAGE_BYTES = "max.message.bytes"
TIMESTAMP_TYPE = "message.timestamp.type"
RETENTION_MS = "retention.ms"
RETENTION_BYTES = "retention.bytes"
APPEND_TIME = "LogAppendTime"
TIMESTAMP_BEFORE_MAX_MS = "message.timestamp.before.max.ms"
TIMESTAMP_AFTER_MAX_MS = "message.timestamp.after.max.ms"
MIN_DIRTY_RATIO = "min.cleanable.dirty.ratio"
MIN_COMPACTION_LAG_MS = "min.compaction.lag.ms"
DELETE_RETENTION_MS = "delete.retention.ms"
GATES = NO_GATE, GATE_ID, GATE_DECODE = "None", "Id", "Decode"

DEFINITIONS: Mapping[str, Definition] = {
    CLEANUP_POLICY: _list("delete", "delete", "compact"),
    "compression.gzip.level": _int(-1, -1, 9),
    "compression.lz4.level": _int(9, 1, 17),
    "compression.type": _one_of("producer", "uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    "compression.zstd.level": _int(3, -131072, 22),
    DELETE_RETENTION_MS: _long(86_400_000),
    "file.delete.delay.ms": _long(60_000),
    HISTORY: _one_of(COPY, COPY, SINGLE),
    SCHEMA_CONTRACT: Definition("", ConfigType.STRING, _is_contract, "a schema as the operator writes it"),
    SCHEMA_GATE: _one_of(NO_GATE, *GATES),
    SCHEMA_REGISTRY: _matching(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?)?", "the name of a schema registry"),
    SCHEMA_SUBJECT: _matching(r"[^\x00-\x1f]{0,512}", "the name of a subject, of at most 512 characters"),
    "flush.messages": _long(_LONG_MAX, 1),
    "flush.ms": _long(_LONG_MAX),
    "follower.replication.throttled.replicas": _list(""),
    "index.interval.bytes": _int(4096),
    "leader.replication.throttled.replicas": _list(""),
    "local.retention.bytes": _long(-2, -2),
    "local.retention.ms": _long(-2, -2),
    "max.compaction.lag.ms": _long(_LONG_MAX, 1),
    MAX_MESSAGE_BYTES: _int(1_048_588),
    TIMESTAMP_AFTER_MAX_MS: _long(3_600_000),
    TIMESTAMP_BEFORE_MAX_MS: _long(_LONG_MAX),
    TIMESTAMP_TYPE: _one_of("CreateTime", "CreateTime", APPEND_TIME),
    MIN_DIRTY_RATIO: _ratio("0.5"),
    MIN_COMPACTION_LAG_MS: _long(0),
    "min.insync.replicas": _int(1, 1),
    "preallocate": _flag(False),
    "remote.storage.enable": _flag(False),
    RETENTION_BYTES: _long(-1, -1),
    RETENTION_MS: _long(604_800_000, -1),
    "segment.bytes": _int(1_073_741_824, 14),
    "segment.index.bytes": _int(10_485_760, 4),
    "segment.jitter.ms": _long(0),
    "segment.ms": _long(604_800_000, 1),
    "unclean.leader.election.enable": _flag(False),
}

LISTS = frozenset(name for name, definition in DEFINITIONS.items() if definition.type is ConfigType.LIST)


def check(configs: Mapping[str, str | None]) -> dict[str, str]:
    """Return the configs, which all have a value then. Raises InvalidConfigError for the first invalid one."""
    checked = {}
    for name, value in configs.items():
        definition = DEFINITIONS.get(name)
        if definition is None:
            raise InvalidConfigError(f"Unknown topic config name: {name}")
        if value is None:
            raise InvalidConfigError(f"Null value not supported for topic configs: {name}")
        if "\0" in value or not definition.check(value.strip()):
            raise InvalidConfigError(f"Invalid value {value} for configuration {name}: it has to be {definition.valid}")
        checked[name] = value
    return checked


class Gate(NamedTuple):
    """The check of a topic's records at produce."""

    registry: str
    """The schema registry; empty if the topic has a schema itself."""
    subject: str
    decodes: bool = False
    """True if values are decoded."""
    contract: str = ""
    """The schema of the topic (`firn.decoders.checks.packed`). With a registry, it has the format only, and may be empty."""


class TopicConfigs:
    """Effective configs of topics, with the defaults of this cluster."""

    def __init__(self, defaults: Mapping[str, str]) -> None:
        self._defaults = check(defaults)

    def get(self, topic: Topic, name: str) -> str:
        """Return the effective value."""
        return topic.configs.get(name, self._defaults.get(name, DEFINITIONS[name].default))

    def described(self, topic: Topic) -> list[tuple[str, str, Source, list[tuple[str, Source]]]]:
        """List (name, effective value, its source, all values with their sources from the strongest on) for each
        config."""
        entries = []
        for name, definition in DEFINITIONS.items():
            values = [(definition.default, Source.DEFAULT)]
            if name in self._defaults:
                values.insert(0, (self._defaults[name], Source.BROKER))
            if name in topic.configs:
                values.insert(0, (topic.configs[name], Source.TOPIC))
            entries.append((name, *values[0], values))
        return entries

    def compacted(self, topic: Topic) -> bool:
        """Return whether the topic is compacted by key."""
        return "compact" in self.get(topic, CLEANUP_POLICY)

    def single(self, topic: Topic) -> bool:
        """Return whether the log keeps no copy of the records that the topic's table gives back."""
        return self.get(topic, HISTORY) == SINGLE and not self.compacted(topic)

    def gated_by(self, topic: Topic) -> Gate | None:
        """Return the gate of a topic; None for a topic without one."""
        kind = self.get(topic, SCHEMA_GATE)
        if kind == NO_GATE:
            return None
        registry, contract = self.get(topic, SCHEMA_REGISTRY), self.get(topic, SCHEMA_CONTRACT)
        subject = (self.get(topic, SCHEMA_SUBJECT) or f"{topic.name}-value") if registry else ""
        decodes = kind == GATE_DECODE
        return Gate(registry, subject, decodes, contract if decodes else "")

    def max_message_bytes(self, topic: Topic) -> int:
        """Return the size of the largest record batch."""
        return int(self.get(topic, MAX_MESSAGE_BYTES))

    def timestamps(self, topic: Topic, now_ms: int) -> tuple[int, int] | None:
        """Return the oldest and the newest valid timestamp of producers, in ms; None for a topic with append times."""
        if self.append_time(topic):
            return None
        before, after = (int(self.get(topic, name)) for name in (TIMESTAMP_BEFORE_MAX_MS, TIMESTAMP_AFTER_MAX_MS))
        return now_ms - before, now_ms + after

    def append_time(self, topic: Topic) -> bool:
        """Return whether records get the time of their append."""
        return self.get(topic, TIMESTAMP_TYPE) == APPEND_TIME
