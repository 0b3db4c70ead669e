"""``firn recovery-topics``: prints the topics of a diskless profile for ``firn-broker fsck --recover --topics``.

A new coordinator knows no topics. IcebergTopics have their names, ids and configs, and tables have the offsets that have landed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from pyiceberg.table import Table

from firn.api.v1alpha1 import IcebergTopic, RetentionPolicy
from firn.model.config import Config
from firn.model.errors import InvalidSpecError, UnavailableError
from firn_controllers.policies.log_retention import configs_of
from firn_operator.cli.audit import landed_offsets

Manifest = dict[str, Any]

TOO_MUCH_MEMORY = "the list of topics needs more memory than the command has: run firn recovery-topics with --config on a machine with more memory"

UNLIMITED = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Configs of a topic whose retention is not known."""
_NAMED = " and ".join(f"{key}={value}" for key, value in UNLIMITED.items())


def known_topics(
    config: Config,
    profile: str,
    manifests: Sequence[Manifest],
    policy_of: Callable[[Manifest], Manifest | None],
    report: Callable[[str], None],
    look_up: Callable[[str], Table | None] | None,
) -> dict[str, Any]:
    """Return the content of the file. ``policy_of`` reads the RetentionPolicy of a topic, ``look_up`` a table unless it is None, and ``report``
    shows what is left out.

    Raises InvalidSpecError if the configuration has no such profile, and UnavailableError if a catalog cannot be read.
    """
    if profile not in config.profiles:
        raise InvalidSpecError(f"profile {profile} is not in the configuration, which has {sorted(config.profiles)}")
    topics = []
    for manifest in manifests:
        status, meta = manifest.get("status") or {}, manifest["metadata"]
        if status.get("profile") != profile or (manifest.get("spec") or {}).get("route") is not None:
            continue
        place = f"{meta['namespace']}/{meta['name']}"
        if not all(status.get(key) for key in ("topicName", "topicId", "partitions")):
            report(
                f"IcebergTopic {place} is left out: its status names no Kafka topic; repeat the command when it is Ready, or add it by hand"
            )
            continue
        topic = {"name": status["topicName"], "id": status["topicId"], "partitions": status["partitions"]}
        landed = _landed(look_up, manifest, place, report) if look_up is not None else {}
        configs = _configs(manifest, place, policy_of, report)
        topics.append({**topic, "configs": configs, "next": landed})
    return {"topics": topics}


def _configs(
    manifest: Manifest, place: str, policy_of: Callable[[Manifest], Manifest | None], report: Callable[[str], None]
) -> dict[str, str]:
    """Return the configs that the operator sets, so that brokers delete no record before it runs."""
    try:
        own = IcebergTopic.model_validate(manifest).topic_configs
    except ValidationError as error:
        [first, *_] = error.errors()
        key = ".".join(map(str, first["loc"]))
        report(
            f"IcebergTopic {place}: {key}: {first['msg']}; the list has no configs but {_NAMED}; add those of spec.config by hand"
        )
        return dict(UNLIMITED)
    name = ((manifest["status"].get("maintenance") or {}).get("retention") or {}).get("policy")
    policy = policy_of(manifest) if name else None
    if not name:
        return own
    if policy is not None:
        with suppress(ValidationError):
            read = RetentionPolicy.model_validate(policy)
            if read.spec.log is None:
                return own
            if read.enforced and not read.spec.suspend:
                return {**configs_of(read.spec.log), **own}
    # The operator lets configs stay that the policy has set before.
    report(
        f"IcebergTopic {place}: RetentionPolicy {name} sets no retention of the log now, so the list has {_NAMED}; correct this after the"
        " recovery"
    )
    return {**UNLIMITED, **own}


def _landed(
    look_up: Callable[[str], Table | None], manifest: Manifest, place: str, report: Callable[[str], None]
) -> dict[str, int]:
    """Return the greatest offset after those that have landed in any table of the topic, by partition."""
    landed: dict[int, int] = {}
    for identifier in _tables(manifest["status"]):
        table = look_up(identifier)
        if table is None:
            report(
                f"IcebergTopic {place}: table {identifier} does not exist, so the list has no landed offsets of it; check the name in the catalog"
            )
            continue
        try:
            offsets = landed_offsets(table, manifest["status"]["topicId"])
        except UnavailableError as error:
            report(f"IcebergTopic {place}: the list has no landed offsets of table {identifier}: {error}")
            continue
        for partition, offset in offsets.items():
            landed[partition] = max(offset, landed.get(partition, 0))
    return {str(partition): offset for partition, offset in sorted(landed.items())}


def _tables(status: Manifest) -> Iterator[str]:
    for table in (status.get("table"), *(status.get("tables") or ())):
        if identifier := (table or {}).get("identifier"):
            yield identifier
