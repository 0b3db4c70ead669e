"""The five bytes that serializers of a schema registry put in front of a value: a byte 0, and the id of the schema.

Source: "Wire format" of Confluent Schema Registry. Karapace writes the same. Apicurio does so with ids of four bytes
(``Legacy4ByteIdHandler``).
"""

import numpy as np

from firn_spark.worker.fetched import Numbers, Places

BYTES = 5
"""Length of the framing."""


def schema_ids(values: Places) -> Numbers:
    """Return the schema id of each value, -1 for a value without framing."""
    framed = _framed(values)
    ids = np.full(len(values), -1, np.int64)
    digits = values.data[values.firsts[framed][:, None] + np.arange(1, BYTES)]
    ids[framed] = np.ascontiguousarray(digits).view(">u4")[:, 0]
    return ids


def _framed(values: Places) -> Numbers:
    framed = values.present & (values.ends - values.firsts >= BYTES)
    framed[framed] = values.data[values.firsts[framed]] == 0
    return framed


def unframed(values: Places) -> tuple[Places, Numbers]:
    """Return the values without their framing, and which of them have one. Other values stay as they are."""
    framed = _framed(values)
    if not framed.any():
        return values, framed
    return Places(values.data, values.firsts + BYTES * framed, values.ends, values.present), framed
