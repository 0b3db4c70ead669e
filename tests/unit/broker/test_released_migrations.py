"""A script of a release never changes: databases that have run it do not run it again."""

import hashlib

from firn_broker.metadata_store.postgres.migrations import SCRIPTS
from firn_broker.metadata_store.sqlite.migrations import MIGRATIONS

RELEASED = {
    "0.1.0": {
        "postgres": ["867bab42d2505a8f", "579d4dcb7dd3eb4a", "f7be8139c57799e7", "cc78e43d35263c11"],
        "sqlite": ["0faa5406ce379048", "ce1c11bb2d9b596c", "f7be8139c57799e7", "cc78e43d35263c11"],
    }
}
"""Digests of the scripts without blanks at the ends of words, by version."""


def digests(scripts: tuple[str, ...]) -> list[str]:
    return [hashlib.sha256(" ".join(script.split()).encode()).hexdigest()[:16] for script in scripts]


def test_released_scripts_have_not_changed() -> None:
    now = {"postgres": digests(tuple(SCRIPTS)), "sqlite": digests(tuple(MIGRATIONS))}
    for released in RELEASED.values():
        for store, scripts in released.items():
            assert now[store][: len(scripts)] == scripts
