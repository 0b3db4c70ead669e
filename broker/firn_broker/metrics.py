"""The broker's Prometheus metrics."""

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

REQUEST_SECONDS = Histogram(
    "firn_broker_request_seconds", "Seconds from request to response", ["api"], buckets=_SECONDS
)
REQUEST_ERRORS = Counter("firn_broker_request_errors_total", "Requests that ended in an unexpected error", ["api"])
MALFORMED = Counter(
    "firn_broker_malformed_total",
    "Connections that the broker closed, by reason: size, malformed, slow (the request did not arrive), stuck (the client does not read),"
    " credential (its password changed)",
    ["reason"],
)
LOOP_STALL_SECONDS = Histogram(
    "firn_broker_loop_stall_seconds",
    "Delay of a timer in the event loop, measured 50 times a second: no request advances meanwhile. Time without a CPU does not count",
    buckets=_SECONDS,
)
LOOP_CPU_WAIT = Counter(
    "firn_broker_loop_cpu_wait_seconds_total",
    "Seconds in which the broker's event loop was ready to run and waited for a CPU",
)
CONNECTIONS = Gauge("firn_broker_connections", "Connections that are open, or closed with a request still running")
LISTENER_CONNECTIONS = Gauge(
    "firn_broker_listener_connections", "The connections of each listener. The first listener is main", ["listener"]
)
DENIALS = Counter(
    "firn_broker_authorization_denials_total",
    "Operations on resources that ACLs denied to clients that named the resource, by operation, such as Write",
    ["operation"],
)
AUDIT_OMITTED = Counter(
    "firn_broker_audit_omitted_total",
    "Events without a line in the audit log, because it had as many lines as it may have within a minute",
)
UNAUTHENTICATED = Gauge(
    "firn_broker_unauthenticated_connections", "Open connections whose clients have not authenticated yet"
)
REFUSED_HANDSHAKES = Counter(
    "firn_broker_refused_handshakes_total",
    "Connections that the broker closed because their clients had not authenticated, by reason: address (too many from one), oldest"
    " (too many in all), slow (connections.authenticationSeconds)",
    ["reason"],
)
FAILED_HANDSHAKES = Counter("firn_broker_failed_tls_handshakes_total", "Connections that ended in their TLS handshake")
AUTHENTICATIONS = Counter(
    "firn_broker_authentications_total",
    "Completed SASL exchanges, by mechanism and result: succeeded or failed",
    ["mechanism", "result"],
)
CERTIFICATE_EXPIRY = Gauge(
    "firn_broker_certificate_expiry_seconds", "Seconds until the certificate of a listener expires", ["listener"]
)
BYTES_IN = Counter("firn_broker_received_bytes_total", "Bytes of requests")
BYTES_OUT = Counter("firn_broker_sent_bytes_total", "Bytes of responses")
PRODUCED_RECORDS = Counter("firn_broker_produced_records_total", "Records that were assigned an offset")
GATED_RECORDS = Counter(
    "firn_broker_gated_records_total",
    "Records that the gate of their topic checked. Topics beyond the first 1,000 have an empty name",
    ["topic"],
)
REFUSED_RECORDS = Counter(
    "firn_broker_refused_records_total",
    "Records without a schema id of the topic's subject, or that do not fit their schema. The broker rejected their batches",
    ["topic"],
)
GATE_SECONDS = Histogram(
    "firn_broker_gate_decode_seconds",
    "Duration of the check of a batch whose values are decoded, with the time of waiting for other batches",
    buckets=_SECONDS,
)
GATE_LOOKUPS = Counter(
    "firn_broker_gate_lookups_total",
    "Requests to schema registries, by result: found, absent (the subject does not have the id) or failed",
    ["result"],
)
SESSION_PARTITIONS = Gauge("firn_broker_fetch_session_partitions", "Partitions of all incremental fetch sessions")
GROUP_BYTES = Gauge("firn_broker_group_bytes", "Approximate memory of all consumer groups of the broker")
BUFFERED = Gauge("firn_broker_buffered_bytes", "Bytes of unanswered requests")
BUFFER_WAITING = Gauge(
    "firn_broker_buffer_waiting", "Connections that the broker does not read because its buffer is full"
)
THROTTLED = Counter(
    "firn_broker_throttled_requests_total",
    "Produce requests whose response asked the client to pause, because it fills the memory for requests",
)
QUOTA_THROTTLE = Histogram(
    "firn_broker_quota_throttle_seconds",
    "Time for which the broker reads no requests of a client that exceeds a quota, by Kafka's name of the quota",
    ["quota"],
    buckets=_SECONDS,
)
MUTED = Gauge(
    "firn_broker_muted_connections", "Connections from which the broker reads no requests, because of a quota"
)
ANSWERING = Gauge("firn_broker_answer_bytes", "Bytes of records in unsent responses")
PUT_SECONDS = Histogram("firn_broker_put_seconds", "Duration of an upload", buckets=_SECONDS)
PUT_BYTES = Counter("firn_broker_put_bytes_total", "Bytes uploaded to the object store")
GET_SECONDS = Histogram(
    "firn_broker_get_seconds",
    "Duration of a ranged read from the object store, by lane: tail (recent batches) or backfill (older batches)",
    ["lane"],
    buckets=_SECONDS,
)
GET_BYTES = Counter(
    "firn_broker_get_bytes_total",
    "Bytes read from the object store, by lane: tail (recent batches) or backfill (older batches)",
    ["lane"],
)
DAMAGED_RANGES = Counter(
    "firn_broker_damaged_ranges_total",
    "Batch ranges that did not match their checksums, by read: first (the broker reads them again) or second (they are damaged in the store)",
    ["read"],
)
COMMIT_SECONDS = Histogram("firn_broker_commit_seconds", "Duration of a commit at the coordinator", buckets=_SECONDS)
COMMIT_BATCHES = Counter("firn_broker_commit_batches_total", "Batches committed")
ASYNCHRONOUS_STANDBYS = Gauge(
    "firn_broker_coordinator_asynchronous_standbys",
    "Standbys of the coordinator's PostgreSQL at the start of this broker, if none of them is synchronous; otherwise 0",
)
WENT_BACK = Gauge(
    "firn_broker_coordinator_went_back",
    "1 while this broker serves no client because the coordinator lost commits that it had acknowledged",
)
ABANDONED_COMMITS = Counter(
    "firn_broker_abandoned_commits_total",
    "Commits that the broker gave up because the coordinator answered several times with an unexpected error",
)
FIND_SECONDS = Histogram(
    "firn_broker_find_seconds", "Duration of a lookup of batches in the coordinator", buckets=_SECONDS
)
INTERNAL_REQUESTS = Counter(
    "firn_broker_internal_requests_total",
    "Requests of ingestion drivers at the internal listener, by HTTP status",
    ["status"],
)
CACHE_HITS = Gauge("firn_broker_cache_hits", "Batch ranges found in the cache")
CACHE_MISSES = Gauge("firn_broker_cache_misses", "Batch ranges that were not in the cache")
CACHE_BYTES = Gauge("firn_broker_cache_bytes", "Bytes of batches in the cache, by part: tail or history", ["part"])
NOT_COMPACTED = Gauge(
    "firn_broker_not_compacted_partitions",
    "Partitions of compacted topics that were not compacted: outgrown, undecodable, or behind (left for the next pass)",
    ["why"],
)
GROUPS = Gauge("firn_broker_groups", "Groups that this broker coordinates", ["state"])
GROUP_LAG = Gauge(
    "firn_broker_group_lag",
    "Records between a group's committed offsets and the ends of their partitions",
    ["group", "topic"],
)
MAINTENANCE = Counter("firn_broker_upkeep_total", "Items that maintenance has processed, by kind of work", ["what"])
MAINTENANCE_BEHIND = Gauge(
    "firn_broker_upkeep_behind",
    "1 while this broker does maintenance and its last pass left batch ranges that must expire or be dropped, or objects"
    " that must be deleted",
)
INDEXED_BYTES = Counter(
    "firn_broker_indexed_bytes_total",
    "Bytes of batches that this broker has compared with tables. Data files give them back (table), or they moved to history objects"
    " (kept), or they stay where they are (left, counted at each comparison)",
    ["found"],
)
INDEXING_PROBLEMS = Counter(
    "firn_broker_indexing_problems_total",
    "Comparisons of batches with tables that failed (failed), and data files and objects that a comparison could not read (unreadable)",
    ["kind"],
)
REBUILT_BYTES = Counter(
    "firn_broker_rebuilt_bytes_total", "Bytes of batches that this broker rebuilt from tables for consumers"
)
UNREBUILT_RANGES = Counter(
    "firn_broker_unrebuilt_ranges_total",
    "Reads of batch ranges in tables that failed, by cause. rows: rows are missing or have changed. unavailable: the data files or the"
    " process that reads them did not answer",
    ["cause"],
)
REDIRECTED_PARTITIONS = Counter(
    "firn_broker_redirected_partitions_total",
    "Partitions of fetches for which this broker named another one. history: a history broker, for old records. newest: the broker of the"
    " partition, because the consumer has read the old records. Partitions that have a replica in the rack of the consumer do not count",
    ["to"],
)
UNMERGED_SECONDS = Gauge(
    "firn_broker_unmerged_seconds",
    "Seconds for which the oldest unmerged object has been due. Objects are due upkeep.mergeSeconds after their commit. As many"
    " seconds more are normal, and an hour more for a single object",
)
DEAD_OBJECTS = Gauge("firn_broker_dead_objects", "Objects without batch ranges that are not deleted yet")
DEAD_OBJECTS_AGE = Gauge(
    "firn_broker_dead_objects_age_seconds",
    "Seconds since the oldest of these objects lost its last batch range. upkeep.graceSeconds is normal",
)
DEAD_OBJECTS_GRACE = Gauge(
    "firn_broker_dead_objects_grace_seconds",
    "upkeep.graceSeconds of this broker: the time for which it keeps objects without batch ranges",
)
ORPHANS = Gauge(
    "firn_broker_orphan_objects",
    "Objects in the bucket that the coordinator does not know, as far as this broker has searched. A search of the whole"
    " bucket takes a week",
)
POSTPONED_OBJECTS = Gauge(
    "firn_broker_postponed_objects",
    "Objects without batch ranges that the object store did not delete at the last attempt. The next attempt waits as long"
    " as the object has had no batch range, at most an hour",
)
UNCOMMITTED_OBJECTS = Gauge(
    "firn_broker_uncommitted_objects",
    "Objects of stopped brokers without a commit, damaged or with records that are not known to be in the log. They may be"
    " acknowledged, so the objects stay until firn-broker fsck --accept or --recover",
)
