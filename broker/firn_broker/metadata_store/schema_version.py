"""The message for a schema of another version, which both stores use."""


def mismatch(where: str, version: int, wanted: int) -> str:
    """Explain why a process that may not migrate cannot use this schema. Version 0 is a missing or empty one."""
    found = f"has version {version}" if version else "is not there, or empty"
    return (
        f"coordinator: {where} {found}, and this program needs version {wanted}: correct the configuration, or use the program of the"
        " version that brokers run"
    )
