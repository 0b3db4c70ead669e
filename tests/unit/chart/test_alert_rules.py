"""Alerts fire on series with their fault, and on no others. Prometheus's own engine evaluates the rendered rules.

Series are in the notation of promtool: one value each minute, from minute 0. ``5x30`` is 31 times 5, ``_x9`` nine
scrapes without the series, and ``stale`` the mark that Prometheus sets when a target disappears.
"""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from hack.localcluster.artifacts import tools
from tests.chart import find_object, manifests, render

pytestmark = pytest.mark.slow

Results = list[list[dict[str, Any]]]
START, END = 90, 400
"""Minutes of the first and the last evaluation. Windows of the rules end after an hour of samples."""
INGEST = 'namespace="shop", topic="orders", pod="firn-ingest-default-0"'
TOPIC = 'namespace="shop", topic="orders", pod="firn-operator-a"'
OPERATOR = 'namespace="firn-system", pod="firn-operator-a"'
LATER_OPERATOR = 'namespace="firn-system", pod="firn-operator-b"'
BROKER = 'namespace="firn-system", profile="diskless", pod="firn-broker-diskless-0"'
LATER_BROKER = 'namespace="firn-system", profile="diskless", pod="firn-broker-diskless-1"'
SIGNER = 'namespace="firn-system", profile="diskless", pod="firn-signer-a"'
SIGNER_STORE = 'namespace="firn-system", store="postgres", pod="firn-signer-a"'
DAMAGED = f'firn_broker_damaged_ranges_total{{{BROKER}, read="second"}}'
MISSING_ROWS = f'firn_broker_unrebuilt_ranges_total{{{BROKER}, cause="rows"}}'
UNREAD = f'firn_broker_unrebuilt_ranges_total{{{BROKER}, cause="unavailable"}}'
UNMOVED = f'firn_broker_indexing_problems_total{{{BROKER}, kind="failed"}}'
QUALITY = f'firn_ingest_quality_failures_total{{{INGEST}, rule="plausible"}}'
REFUSED = 'firn_topic_set_topics{pod="firn-operator-a", namespace="shop", topic_set="events", state="refused"}'
USER_READY = 'firn_topic_user_ready{pod="firn-operator-a", namespace="shop", user="checkout"}'
RUNS = 'firn_maintenance_runs_total{pod="firn-operator-a", kind="RetentionPolicy", namespace="shop", policy="month", result="Failed"}'

HEALTHY = (
    'up{job="firn-operator", namespace="firn-system"} 1x400',
    f'firn_group_available{{{OPERATOR}, group="default"}} 1x400',
    f'firn_fleet_available{{{OPERATOR}, profile="diskless"}} 1x400',
    f'firn_fleet_degraded{{{OPERATOR}, profile="diskless"}} 0x400',
    f'firn_fleet_open{{{OPERATOR}, profile="diskless"}} 0x400',
    f'firn_fleet_rolling{{{OPERATOR}, profile="diskless"}} 0x400',
    f"firn_topic_not_ready{{{TOPIC}}} 0x400",
    f"firn_topic_incomplete{{{TOPIC}}} 0x400",
    f"firn_log_retention_seconds{{{TOPIC}}} 604800x400",
    f"firn_log_retention_bytes{{{TOPIC}}} 1e9x400",
    f"firn_audit_age_seconds{{{TOPIC}}} 60+60x400",
    f"firn_audit_wrong_offsets{{{TOPIC}}} 0x400",
    f"firn_compaction_lag_seconds{{{TOPIC}}} 300x400",
    f"firn_table_metadata_bytes{{{TOPIC}}} 100000x400",
    RUNS.replace("Failed", "Succeeded") + " 0+1x400",
    f"{RUNS} 2x400",
    f"firn_ingest_lag_seconds{{{INGEST}}} 20x400",
    f"firn_ingest_freshness_seconds{{{INGEST}}} 60x400",
    f"firn_ingest_lag_bytes{{{INGEST}}} 5e6x400",
    f"firn_ingest_lag_records{{{INGEST}}} 1000x400",
    f"firn_ingest_last_commit_age_seconds{{{INGEST}}} 30x400",
    f"firn_ingest_rows_total{{{INGEST}}} 0+1000x400",
    f"firn_ingest_dead_letters_total{{{INGEST}}} 7x400",
    f"firn_ingest_skipped_total{{{INGEST}}} 0x400",
    f"firn_ingest_audit_failures_total{{{INGEST}}} 1x400",
    f"firn_ingest_detours_total{{{INGEST}}} 3x400",
    f"{QUALITY} 5x400",
    f"firn_ingest_unpublished_seconds{{{INGEST}}} 290x400",
    f"firn_ingest_publish_every_seconds{{{INGEST}}} 300x400",
    f"{REFUSED} 0x400",
    f"firn_broker_coordinator_went_back{{{BROKER}}} 0x400",
    f"{DAMAGED} 3x400",
    DAMAGED.replace("second", "first") + " 0+1x400",
    f"firn_broker_abandoned_commits_total{{{BROKER}}} 1x400",
    f"firn_broker_upkeep_behind{{{BROKER}}} 0x400",
    f"firn_broker_dead_objects_age_seconds{{{BROKER}}} 600x400",
    f"firn_broker_dead_objects_grace_seconds{{{BROKER}}} 600x400",
    f"firn_broker_postponed_objects{{{BROKER}}} 0x400",
    f"firn_broker_orphan_objects{{{BROKER}}} 0x400",
    f"firn_broker_uncommitted_objects{{{BROKER}}} 0x400",
    f"firn_broker_certificate_expiry_seconds{{{BROKER}}} 7776000-60x400",
    f'firn_certificate_expiry_seconds{{{SIGNER}, certificate="brokers"}} 7776000-60x400',
    f'firn_certificate_expiry_seconds{{{SIGNER}, certificate="authority"}} 3e8-60x400',
    f'firn_store_certificate_expiry_seconds{{{SIGNER_STORE}, certificate="server"}} 7776000-60x400',
)
"""Series of a release without a fault. Counters have counted earlier faults."""


@dataclass(frozen=True)
class Case:
    """Series, and the minute at which the alert fires on them; None if it never does."""

    alert: str
    name: str
    fires: int | None
    series: tuple[str, ...]
    until: int | None = None
    """The last minute at which it fires, if that matters."""


def case(alert: str, name: str, fires: int | None, *series: str, until: int | None = None) -> Case:
    return Case(alert, name, fires, series, until)


def counter_cases(alert: str, counter: str, restarted: str, window: int) -> Sequence[Case]:
    """Return the cases of an alert on the increase of a counter. ``restarted`` is the counter of the next pod."""
    return (
        case(alert, "counts a fault", 100, f"{counter} 0x99 1x300", until=100 + window - 2),
        case(alert, "counts another fault", 100, f"{counter} 4x99 5x300", until=100 + window - 2),
        case(alert, "first scrape after the fault", 100, f"{counter} _x100 2x300", until=100 + window - 1),
        case(alert, "a later pod starts with a fault", 101, f"{counter} 4x99 stale", f"{restarted} _x101 1x299"),
        case(alert, "a container restarts and counts a fault", 105, f"{counter} 4x99 0x4 1x295"),
        case(alert, "a later pod without a fault", None, f"{counter} 4x99 stale", f"{restarted} _x101 0x299"),
        case(alert, "a container restarts", None, f"{counter} 4x99 0x300"),
        case(alert, "no scrape for 45 minutes", None, f"{counter} 4x99 _x45 4x255"),
        case(alert, "old faults", None, f"{counter} 9x400"),
    )


CASES = (
    case("FirnOperatorDown", "no target", START + 10),
    case("FirnOperatorDown", "no answer", START + 10, 'up{job="firn-operator", namespace="firn-system"} 0x400'),
    case("FirnOperatorDown", "only another release", START + 10, 'up{job="firn-operator", namespace="other"} 1x400'),
    case("FirnOperatorDown", "pod goes away", 110, 'up{job="firn-operator", namespace="firn-system"} 1x99 stale'),
    case("FirnOperatorDown", "restart", None, 'up{job="firn-operator", namespace="firn-system"} 1x99 0x4 1x295'),
    case("FirnIngestionDown", "no answer", 110, f'firn_group_available{{{OPERATOR}, group="a"}} 1x99 0x300'),
    case(
        "FirnIngestionDown",
        "one of two groups",
        110,
        f'firn_group_available{{{OPERATOR}, group="a"}} 1x99 0x300',
        f'firn_group_available{{{OPERATOR}, group="b"}} 1x400',
    ),
    case("FirnIngestionDown", "restart", None, f'firn_group_available{{{OPERATOR}, group="a"}} 1x99 0x8 1x290'),
    case(
        "FirnIngestionDown",
        "the operator restarts meanwhile",
        110,
        f'firn_group_available{{{OPERATOR}, group="a"}} 1x99 0x4 stale',
        f'firn_group_available{{{LATER_OPERATOR}, group="a"}} _x105 0x300',
    ),
    case("FirnTopicsNotReady", "a topic", 115, f"firn_topic_not_ready{{{TOPIC}}} 0x99 1x300"),
    case(
        "FirnTopicsNotReady",
        "always another topic",
        None,
        *(
            f'firn_topic_not_ready{{namespace="shop", topic="t{turn}", pod="firn-operator-a"}} '
            + " ".join(f"{int(step % 3 == turn)}x9" for step in range(40))
            for turn in range(3)
        ),
    ),
    case("FirnTopicsNotReady", "ten minutes", None, f"firn_topic_not_ready{{{TOPIC}}} 0x99 1x10 0x290"),
    case("FirnBrokersDegraded", "a broker", 110, f'firn_fleet_degraded{{{OPERATOR}, profile="a"}} 0x99 1x300'),
    case("FirnBrokersDegraded", "a restart", None, f'firn_fleet_degraded{{{OPERATOR}, profile="a"}} 0x99 1x8 0x300'),
    case("FirnBrokersRolling", "stuck", 169, f'firn_fleet_rolling{{{OPERATOR}, profile="a"}} 0x99 1x300'),
    case("FirnBrokersRolling", "half an hour", None, f'firn_fleet_rolling{{{OPERATOR}, profile="a"}} 0x99 1x30 0x260'),
    case(
        "FirnBrokersRolling",
        "the operator restarts and replaces brokers for half an hour",
        None,
        f'firn_fleet_rolling{{{OPERATOR}, profile="a"}} 0x99 stale',
        f'firn_fleet_rolling{{{LATER_OPERATOR}, profile="a"}} _x101 1x30 0x260',
    ),
    case(
        "FirnBrokersRolling",
        "the first roll-out of a profile takes half an hour",
        None,
        f'firn_fleet_rolling{{{OPERATOR}, profile="a"}} _x100 1x30 0x260',
    ),
    case(
        "FirnBrokersRolling",
        "the first roll-out of a profile is stuck",
        160,
        f'firn_fleet_rolling{{{OPERATOR}, profile="a"}} _x100 1x290',
    ),
    case(
        "FirnBrokersRolling",
        "stuck while the operator restarts",
        169,
        f'firn_fleet_rolling{{{OPERATOR}, profile="a"}} 0x99 1x20 stale',
        f'firn_fleet_rolling{{{LATER_OPERATOR}, profile="a"}} _x122 1x270',
    ),
    case("FirnCoordinatorWentBack", "a broker", 101, f"firn_broker_coordinator_went_back{{{BROKER}}} 0x99 1x300"),
    case("FirnCoordinatorWentBack", "never", None, f"firn_broker_coordinator_went_back{{{BROKER}}} 0x400"),
    *counter_cases("FirnObjectsDamaged", DAMAGED, DAMAGED.replace(BROKER, LATER_BROKER), 60),
    case("FirnObjectsDamaged", "the broker read again", None, DAMAGED.replace("second", "first") + " 0+1x400"),
    *counter_cases(
        "FirnCommitsAbandoned",
        f"firn_broker_abandoned_commits_total{{{BROKER}}}",
        f"firn_broker_abandoned_commits_total{{{LATER_BROKER}}}",
        60,
    ),
    case("FirnBrokerMaintenanceBehind", "behind", 160, f"firn_broker_upkeep_behind{{{BROKER}}} 0x99 1x300"),
    case(
        "FirnBrokerMaintenanceBehind",
        "old objects",
        191,
        f"firn_broker_dead_objects_age_seconds{{{BROKER}}} 0+60x400",
        f"firn_broker_dead_objects_grace_seconds{{{BROKER}}} 600x400",
    ),
    case(
        "FirnBrokerMaintenanceBehind",
        "a grace of a week",
        None,
        f"firn_broker_dead_objects_age_seconds{{{BROKER}}} 600000x400",
        f"firn_broker_dead_objects_grace_seconds{{{BROKER}}} 604800x400",
    ),
    case(
        "FirnBrokerMaintenanceBehind",
        "another broker takes over",
        160,
        f"firn_broker_upkeep_behind{{{BROKER}}} 0x99 1x20 stale",
        f"firn_broker_upkeep_behind{{{LATER_BROKER}}} 0x119 1x280",
    ),
    case("FirnBrokerMaintenanceBehind", "half an hour", None, f"firn_broker_upkeep_behind{{{BROKER}}} 0x99 1x30 0x270"),
    case("FirnBrokerMergesBehind", "behind", 222, f"firn_broker_unmerged_seconds{{{BROKER}}} 0x40 0+60x400"),
    case("FirnBrokerMergesBehind", "an hour", None, f"firn_broker_unmerged_seconds{{{BROKER}}} 3600x400"),
    *counter_cases("FirnHistoryUnreadable", MISSING_ROWS, MISSING_ROWS.replace(BROKER, LATER_BROKER), 60),
    case("FirnHistoryUnavailable", "files cannot be read", 121, f"{UNREAD} 0x99 0+1x300"),
    case("FirnHistoryUnavailable", "a first failure, and more", 120, f"{UNREAD} _x100 1+1x300"),
    case("FirnHistoryUnavailable", "an outage of three minutes", None, f"{UNREAD} 0x99 0+1x3 3x297"),
    case("FirnHistoryNotMoved", "two comparisons fail", 160, f"{UNMOVED} 0x99 1x59 2x240"),
    case(
        "FirnHistoryNotMoved", "two files cannot be read", 100, f"{UNMOVED.replace('failed', 'unreadable')} _x100 2x300"
    ),
    case("FirnHistoryNotMoved", "a comparison failed", None, f"{UNMOVED} 0x99 1x300"),
    case(
        "FirnTopicBehind",
        "behind",
        121,
        f"firn_ingest_lag_seconds{{{INGEST}}} 60x99 60+60x300",
        f"firn_ingest_freshness_seconds{{{INGEST}}} 60x400",
    ),
    case(
        "FirnTopicBehind",
        "within a long freshness",
        None,
        f"firn_ingest_lag_seconds{{{INGEST}}} 3000x400",
        f"firn_ingest_freshness_seconds{{{INGEST}}} 3600x400",
    ),
    case(
        "FirnTopicBehind",
        "suspended",
        None,
        f"firn_ingest_lag_seconds{{{INGEST}}} 60x99 60+60x300",
        f"firn_ingest_freshness_seconds{{{INGEST}}} 60x400",
        f"firn_ingest_suspended{{{INGEST}}} 1x400",
    ),
    case(
        "FirnTopicBehind",
        "resumed and still behind",
        210,
        f"firn_ingest_lag_seconds{{{INGEST}}} 60x99 60+60x300",
        f"firn_ingest_freshness_seconds{{{INGEST}}} 60x400",
        f"firn_ingest_suspended{{{INGEST}}} 1x199 0x200",
    ),
    case("FirnRecordsLost", "a loss", 100, f"firn_topic_incomplete{{{TOPIC}}} 0x99 1x20 0x280", until=120),
    case("FirnRecordsLost", "a loss before the first scrape", 100, f"firn_topic_incomplete{{{TOPIC}}} _x100 1x300"),
    case("FirnRecordsLost", "none", None, f"firn_topic_incomplete{{{TOPIC}}} 0x400"),
    case(
        "FirnLogRetentionNear",
        "by time",
        132,
        f"firn_ingest_lag_seconds{{{INGEST}}} 0x99 0+60x300",
        f"firn_log_retention_seconds{{{TOPIC}}} 3600x400",
    ),
    case(
        "FirnLogRetentionNear",
        "by bytes",
        101,
        f"firn_ingest_lag_bytes{{{INGEST}}} 0x99 6e8x300",
        f"firn_log_retention_bytes{{{TOPIC}}} 1e9x400",
    ),
    case(
        "FirnLogRetentionNear",
        "by time while suspended, because the log deletes the records all the same",
        132,
        f"firn_ingest_lag_seconds{{{INGEST}}} 0x99 0+60x300",
        f"firn_log_retention_seconds{{{TOPIC}}} 3600x400",
        f"firn_ingest_suspended{{{INGEST}}} 1x400",
    ),
    case(
        "FirnLogRetentionNear",
        "no limit",
        None,
        f"firn_ingest_lag_seconds{{{INGEST}}} 0+6000x400",
        f"firn_ingest_lag_bytes{{{INGEST}}} 0+1e9x400",
    ),
    case("FirnAuditFailed", "a full audit", 100, f"firn_audit_wrong_offsets{{{TOPIC}}} 0x99 3x50 0x250", until=150),
    case(
        "FirnAuditFailed",
        "a full audit before the first scrape",
        100,
        f"firn_audit_wrong_offsets{{{TOPIC}}} _x100 3x300",
    ),
    case("FirnAuditFailed", "exact", None, f"firn_audit_wrong_offsets{{{TOPIC}}} 0x400"),
    *counter_cases(
        "FirnAuditFailed",
        f"firn_ingest_audit_failures_total{{{INGEST}}}",
        f"firn_ingest_audit_failures_total{{{INGEST}, instance='b'}}",
        60,
    ),
    case("FirnAuditOld", "no audit", 136, f"firn_audit_age_seconds{{{TOPIC}}} 180000+60x400"),
    case("FirnAuditOld", "each night", None, f"firn_audit_age_seconds{{{TOPIC}}} 86000+60x100 0+60x300"),
    case("FirnAuditOld", "before records land", None),
    case(
        "FirnAuditOld",
        "suspended",
        None,
        f"firn_audit_age_seconds{{{TOPIC}}} 180000+60x400",
        f"firn_ingest_suspended{{{INGEST}}} 1x400",
    ),
    case(
        "FirnAuditOld",
        "suspended until later",
        215,
        f"firn_audit_age_seconds{{{TOPIC}}} 180000+60x400",
        f"firn_ingest_suspended{{{INGEST}}} 1x199 0x200",
    ),
    case("FirnAuditOld", "deleted before the alert", None, f"firn_audit_age_seconds{{{TOPIC}}} 180000+60x130 stale"),
    case(
        "FirnAuditOld",
        "deleted after the alert",
        136,
        f"firn_audit_age_seconds{{{TOPIC}}} 180000+60x199 stale",
        until=199,
    ),
    case(
        "FirnAuditOld",
        "another topic is suspended",
        136,
        f"firn_audit_age_seconds{{{TOPIC}}} 180000+60x400",
        f"firn_ingest_suspended{{{INGEST.replace('orders', 'refunds')}}} 1x400",
    ),
    case("FirnDirectReadsFail", "each round", 160, f"firn_ingest_detours_total{{{INGEST}}} 0x99 1+2x300"),
    case("FirnDirectReadsFail", "a restart", None, f"firn_ingest_detours_total{{{INGEST}}} 0x99 1+2x10 21x289"),
    case(
        "FirnDirectReadsFail",
        "another driver takes over",
        160,
        f"firn_ingest_detours_total{{{INGEST}}} 0x99 1+2x20 stale",
        f"firn_ingest_detours_total{{{INGEST.replace('default-0', 'other-0')}}} _x120 1+2x280",
    ),
    case(
        "FirnCommitsStopped",
        "no commit",
        122,
        f"firn_ingest_last_commit_age_seconds{{{INGEST}}} 0x99 0+60x300",
        f"firn_ingest_freshness_seconds{{{INGEST}}} 60x400",
        f"firn_ingest_lag_records{{{INGEST}}} 5x400",
    ),
    case(
        "FirnCommitsStopped",
        "no records",
        None,
        f"firn_ingest_last_commit_age_seconds{{{INGEST}}} 0+60x400",
        f"firn_ingest_freshness_seconds{{{INGEST}}} 60x400",
        f"firn_ingest_lag_records{{{INGEST}}} 0x400",
    ),
    case(
        "FirnCommitsStopped",
        "suspended",
        None,
        f"firn_ingest_last_commit_age_seconds{{{INGEST}}} 0x99 0+60x300",
        f"firn_ingest_freshness_seconds{{{INGEST}}} 60x400",
        f"firn_ingest_lag_records{{{INGEST}}} 5x400",
        f"firn_ingest_suspended{{{INGEST}}} 1x400",
    ),
    *counter_cases(
        "FirnDeadLetters",
        f"firn_ingest_dead_letters_total{{{INGEST}}}",
        f"firn_ingest_dead_letters_total{{{INGEST}, instance='b'}}",
        15,
    ),
    case(
        "FirnMostRecordsRejected",
        "most are dead letters",
        100,
        f"firn_ingest_rows_total{{{INGEST}}} 9000x99 9001x300",
        f"firn_ingest_dead_letters_total{{{INGEST}}} 0x99 5x300",
        f"firn_ingest_skipped_total{{{INGEST}}} 0x400",
    ),
    case(
        "FirnMostRecordsRejected",
        "all of a new topic are skipped",
        100,
        f"firn_ingest_rows_total{{{INGEST}}} _x100 0x300",
        f"firn_ingest_dead_letters_total{{{INGEST}}} _x100 0x300",
        f"firn_ingest_skipped_total{{{INGEST}}} _x100 40x300",
        until=114,
    ),
    case(
        "FirnMostRecordsRejected",
        "most fit",
        None,
        f"firn_ingest_rows_total{{{INGEST}}} 0+10x400",
        f"firn_ingest_dead_letters_total{{{INGEST}}} 0+4x400",
        f"firn_ingest_skipped_total{{{INGEST}}} 0+4x400",
    ),
    case(
        "FirnMostRecordsRejected",
        "no records",
        None,
        f"firn_ingest_rows_total{{{INGEST}}} 10x400",
        f"firn_ingest_dead_letters_total{{{INGEST}}} 400x400",
        f"firn_ingest_skipped_total{{{INGEST}}} 0x400",
    ),
    *counter_cases("FirnQualityRuleFails", QUALITY, QUALITY.replace("default-0", "default-1"), 15),
    case(
        "FirnRowsUnpublished",
        "held",
        126,
        f"firn_ingest_unpublished_seconds{{{INGEST}}} 0x99 0+60x300",
        f"firn_ingest_publish_every_seconds{{{INGEST}}} 300x400",
    ),
    case(
        "FirnRowsUnpublished",
        "every is long",
        None,
        f"firn_ingest_unpublished_seconds{{{INGEST}}} 3000x400",
        f"firn_ingest_publish_every_seconds{{{INGEST}}} 3600x400",
    ),
    case(
        "FirnRowsUnpublished",
        "suspended",
        None,
        f"firn_ingest_unpublished_seconds{{{INGEST}}} 0x99 0+60x300",
        f"firn_ingest_publish_every_seconds{{{INGEST}}} 300x400",
        f"firn_ingest_suspended{{{INGEST}}} 1x400",
    ),
    case("FirnTopicsRefused", "refused", 115, f"{REFUSED} 0x99 3x300"),
    case("FirnTopicsRefused", "made", None, REFUSED.replace("refused", "made") + " 1000x400", f"{REFUSED} 0x400"),
    case(
        "FirnCertificateExpires",
        "not renewed",
        161,
        f"firn_broker_certificate_expiry_seconds{{{BROKER}}} 1215600-60x400",
        f'firn_certificate_expiry_seconds{{{SIGNER}, certificate="brokers"}} 7776000-60x400',
    ),
    case(
        "FirnCertificateExpires",
        "the CA",
        161,
        f'firn_certificate_expiry_seconds{{{SIGNER}, certificate="authority"}} 1215600-60x400',
    ),
    case(
        "FirnCertificateExpires",
        "renewed within the hour",
        None,
        f"firn_broker_certificate_expiry_seconds{{{BROKER}}} 1215600-60x130 7776000-60x270",
    ),
    case(
        "FirnCertificateExpires",
        "of another release",
        None,
        'firn_certificate_expiry_seconds{namespace="other", profile="diskless", certificate="brokers"} 60x400',
    ),
    case("FirnBrokersOpen", "open", 161, f'firn_fleet_open{{{OPERATOR}, profile="diskless"}} 0x100 1x299'),
    case("FirnBrokersOpen", "closed", None, f'firn_fleet_open{{{OPERATOR}, profile="diskless"}} 0x400'),
    case(
        "FirnStoreCertificateExpires",
        "not renewed",
        161,
        f'firn_store_certificate_expiry_seconds{{{SIGNER_STORE}, certificate="server"}} 1215600-60x400',
        f'firn_store_certificate_expiry_seconds{{{SIGNER_STORE}, certificate="authority"}} 7776000-60x400',
    ),
    case(
        "FirnStoreCertificateExpires",
        "of another release",
        None,
        'firn_store_certificate_expiry_seconds{namespace="other", store="postgres", certificate="server"} 60x400',
    ),
    case("FirnUserNotReady", "not ready", 115, f"{USER_READY} 1x99 0x300"),
    case("FirnUserNotReady", "ready", None, f"{USER_READY} 1x400"),
    case("FirnCompactionBehind", "behind", 115, f"firn_compaction_lag_seconds{{{TOPIC}}} 0x99 30000x300"),
    case("FirnCompactionBehind", "in time", None, f"firn_compaction_lag_seconds{{{TOPIC}}} 20000x400"),
    *counter_cases("FirnMaintenanceFails", RUNS, RUNS.replace("operator-a", "operator-b"), 60),
    case("FirnMaintenanceFails", "runs succeed", None, RUNS.replace("Failed", "Succeeded") + " 0+1x400"),
    case(
        "FirnBrokerObjectsStay",
        "both kinds",
        220,
        f"firn_broker_postponed_objects{{{BROKER}}} 0x99 1x300",
        f"firn_broker_orphan_objects{{{BROKER}}} 0x99 2x300",
        f"firn_broker_postponed_objects{{{LATER_BROKER}}} 0x400",
    ),
    case(
        "FirnBrokerObjectsStay",
        "deleted an hour later",
        None,
        f"firn_broker_postponed_objects{{{BROKER}}} 0x99 1x60 0x240",
        f"firn_broker_orphan_objects{{{BROKER}}} 0x400",
    ),
    case("FirnBrokerObjectsUncommitted", "an object", 100, f"firn_broker_uncommitted_objects{{{BROKER}}} 0x99 1x300"),
    case("FirnBrokerObjectsUncommitted", "none", None, f"firn_broker_uncommitted_objects{{{BROKER}}} 0x400"),
    case("FirnTableMetadataLarge", "large", 160, f"firn_table_metadata_bytes{{{TOPIC}}} 0x99 6e7x300"),
    case("FirnTableMetadataLarge", "small", None, f"firn_table_metadata_bytes{{{TOPIC}}} 4e7x400"),
)


@cache
def rules() -> list[dict[str, Any]]:
    values = {
        "images": {"registry": "registry.example.com/data"},
        "metrics": {"prometheusRule": {"enabled": True}},
        "quickStart": {"diskless": {"enabled": True}},
    }
    rule = find_object(manifests(render(values)), "PrometheusRule", "firn")
    return [alert for group in rule["spec"]["groups"] for alert in group["rules"]]


@pytest.fixture(scope="module")
def evaluated() -> Results:
    """Return the firing alerts of all cases, of the healthy release, and without any series.

    The program is built once. The limit of time for a test does not include a fixture.
    """
    cases = [{"alerts": [own.alert], "series": own.series, "start": START, "end": END} for own in CASES]
    cases += [{"alerts": [], "series": series, "start": START, "end": END} for series in (HEALTHY, ())]
    document = json.dumps({"rules": rules(), "cases": cases})
    done = subprocess.run([tools.build("alertrules")], input=document, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results: Results = json.loads(done.stdout)
    return results


def test_each_alert_has_a_case_that_fires_and_a_silent_one() -> None:
    names = {rule["alert"] for rule in rules()}
    assert {own.alert for own in CASES if own.fires is not None} == names
    assert {own.alert for own in CASES if own.fires is None} == names


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{own.alert}: {own.name}" for own in CASES])
def test_an_alert_fires_on_its_fault_only(number: int, evaluated: Results) -> None:
    own, found = CASES[number], evaluated[number]
    if own.fires is None:
        assert found == []
        return
    assert [(alert["alert"], alert["from"]) for alert in found] == [(own.alert, own.fires)]
    assert own.until is None or found[0]["until"] == own.until
    assert ". Next: kubectl " in found[0]["summary"]
    assert "<no value>" not in found[0]["summary"]


def test_a_release_without_a_fault_has_no_alert(evaluated: Results) -> None:
    assert evaluated[len(CASES)] == []


def test_without_any_series_the_operator_is_down(evaluated: Results) -> None:
    assert [alert["alert"] for alert in evaluated[len(CASES) + 1]] == ["FirnOperatorDown"]
