"""The messages for programs and schemas of different versions, which both stores use."""


def mismatch(where: str, version: int, wanted: int) -> str:
    """Explain why a process that may not migrate cannot use this schema. Version 0 is a missing or empty one."""
    actual = f"has schema version {version}" if version else "does not exist, or is empty"
    return (
        f"coordinator: {where} {actual}; this program needs schema version {wanted}. Correct the configuration, or use the version of"
        " firn-broker that the brokers run."
    )


def too_new(where: str, version: int, compatible_from: int, ours: int) -> str:
    """Explain why this program is too old for a schema that a newer program has migrated."""
    return (
        f"coordinator: {where} has schema version {version}, which needs a program of schema version {compatible_from} or later; this"
        f" program has version {ours}. Use the version of firn-broker that migrated the schema, or a later one."
    )


def in_tables(where: str, release: str) -> str:
    """Explain why a release cannot use a coordinator with table ranges."""
    return (
        f"coordinator: {where} has batch ranges whose records lie only in Iceberg tables, and version {release} cannot read them there. Let"
        " the brokers copy these records back into WAL objects, or let them expire, and repeat the command."
    )
