"""Record headers whose names are not UTF-8.

Kafka and its Java clients accept any bytes as names. librdkafka's Python client raises on them and drops the headers.
So they are read a second time, through the C functions of the same library.
"""

import ctypes
import functools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import confluent_kafka.cimpl  # noqa: F401  loads librdkafka

from firn.model.conditions import Reason
from firn.model.errors import UnavailableError

_CONSUMER = 1
_NO_ERROR = 0
_POLL_MILLISECONDS = 1_000
_SETTINGS: Mapping[str, Any] = {
    "group.id": "firn",
    "enable.auto.commit": "false",
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "message.max.bytes": 100_000_000,
    "log_level": 0,
}

Headers = list[tuple[str, bytes | None]]


class _Message(ctypes.Structure):
    """``rd_kafka_message_t``, up to the last member that is read here."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
    )


class HeaderReader:
    """Reads headers a second time. It creates its consumer on first use and reads on from record to record. Not
    thread-safe."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Read with librdkafka's settings ``config``."""
        self._config = config
        self._consumer: int | None = None
        self._next: tuple[str, int, int] | None = None

    def read(self, topic: str, partition: int, offset: int, seconds: float) -> Headers:
        """Return the headers of an existing record; invalid bytes in names become U+FFFD, as in Java's client.

        Raises UnavailableError if the record does not arrive within ``seconds``.
        """
        library = _library()
        if self._consumer is None:
            self._consumer = _consumer(library, self._config)
        if self._next is None or self._next[:2] != (topic, partition) or self._next[2] > offset:
            self._go_to(topic, partition, offset)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            message = library.rd_kafka_consumer_poll(self._consumer, _POLL_MILLISECONDS)
            if not message:
                continue
            try:
                record = message.contents
                if record.err == _NO_ERROR and record.offset == offset:
                    self._next = (topic, partition, offset + 1)
                    return _headers(library, message)
            finally:
                library.rd_kafka_message_destroy(message)
        self._next = None
        raise UnavailableError(
            f"topic {topic}, partition {partition}: the headers at offset {offset} did not arrive within {seconds:.0f} s",
            reason=Reason.BROKER_UNREACHABLE,
        )

    def close(self) -> None:
        """Close the consumer."""
        if self._consumer is not None:
            _library().rd_kafka_consumer_close(self._consumer)
            _library().rd_kafka_destroy(self._consumer)
            self._consumer = None

    def _go_to(self, topic: str, partition: int, offset: int) -> None:
        library = _library()
        places = library.rd_kafka_topic_partition_list_new(1)
        library.rd_kafka_topic_partition_list_add(places, topic.encode(), partition)
        library.rd_kafka_topic_partition_list_set_offset(places, topic.encode(), partition, offset)
        library.rd_kafka_assign(self._consumer, places)
        library.rd_kafka_topic_partition_list_destroy(places)


def _consumer(library: Any, config: Mapping[str, Any]) -> int:
    conf = library.rd_kafka_conf_new()
    why = ctypes.create_string_buffer(512)
    for key, value in {**config, **_SETTINGS}.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if library.rd_kafka_conf_set(conf, key.encode(), text.encode(), why, len(why)) != _NO_ERROR:
            raise ValueError(f"librdkafka refuses {key}: {why.value.decode(errors='replace')}")
    consumer: int | None = library.rd_kafka_new(_CONSUMER, conf, why, len(why))
    if consumer is None:
        raise ValueError(f"librdkafka cannot create a consumer: {why.value.decode(errors='replace')}")
    return consumer


def _headers(library: Any, message: Any) -> Headers:
    headers = ctypes.c_void_p()
    if library.rd_kafka_message_headers(message, ctypes.byref(headers)) != _NO_ERROR:
        return []
    name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    decoded: Headers = []
    where = (ctypes.byref(name), ctypes.byref(value), ctypes.byref(size))
    while library.rd_kafka_header_get_all(headers, len(decoded), *where) == _NO_ERROR:
        data = None if value.value is None else ctypes.string_at(value.value, size.value)
        decoded.append(((name.value or b"").decode(errors="replace"), data))
    return decoded


@functools.cache
def _library() -> Any:
    """Return the librdkafka that ``confluent_kafka`` has loaded into this process."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    path = next(line.split(maxsplit=5)[5] for line in maps if "/librdkafka" in line)
    library = ctypes.CDLL(path)
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    message = ctypes.POINTER(_Message)
    for name, result, *arguments in (
        ("conf_new", pointer),
        ("conf_set", number, pointer, text, text, text, ctypes.c_size_t),
        ("new", pointer, number, pointer, text, ctypes.c_size_t),
        ("topic_partition_list_new", pointer, number),
        ("topic_partition_list_add", pointer, pointer, text, ctypes.c_int32),
        ("topic_partition_list_set_offset", number, pointer, text, ctypes.c_int32, ctypes.c_int64),
        ("topic_partition_list_destroy", None, pointer),
        ("assign", number, pointer, pointer),
        ("consumer_poll", message, pointer, number),
        ("message_headers", number, message, pointer),
        ("header_get_all", number, pointer, ctypes.c_size_t, pointer, pointer, pointer),
        ("message_destroy", None, message),
        ("consumer_close", number, pointer),
        ("destroy", None, pointer),
    ):
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library
