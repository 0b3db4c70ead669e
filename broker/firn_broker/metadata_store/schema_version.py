"""The message for a schema of another version, which both stores use."""


def mismatch(where: str, version: int, wanted: int) -> str:
    """Explain why a process that may not migrate cannot use this schema. Version 0 is a missing or empty one."""
    actual = f"has schema version {version}" if version else "does not exist, or is empty"
    return (
        f"coordinator: {where} {actual}; this program needs schema version {wanted}. Correct the configuration, or use the version of"
        " firn-broker that the brokers run."
    )
