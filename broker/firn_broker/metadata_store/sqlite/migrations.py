"""The schema of the SQLite store: one script per version. ``user_version`` counts the scripts that have run.

Never change a released script: add another.
"""

MIGRATIONS = (
    """
    CREATE TABLE counter(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE cluster(id TEXT NOT NULL);
    CREATE TABLE node(id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, host TEXT NOT NULL, port INTEGER NOT NULL, zone TEXT NOT NULL,
      expires_ms INTEGER NOT NULL);
    CREATE TABLE lease(name TEXT PRIMARY KEY, node INTEGER NOT NULL, node_epoch INTEGER NOT NULL, epoch INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE topic(id BLOB PRIMARY KEY, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL, configs TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE log(id INTEGER PRIMARY KEY, topic_id BLOB NOT NULL, part INTEGER NOT NULL, log_start INTEGER NOT NULL DEFAULT 0,
      hw INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, deleted INTEGER NOT NULL DEFAULT 0, UNIQUE(topic_id, part));
    CREATE INDEX log_deleted ON log(deleted) WHERE deleted;
    CREATE TABLE wal(id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, node INTEGER NOT NULL, node_epoch INTEGER NOT NULL,
      state INTEGER NOT NULL, size INTEGER NOT NULL, runs INTEGER NOT NULL, made_ms INTEGER NOT NULL, dead_ms INTEGER, reply TEXT);
    CREATE INDEX wal_dead ON wal(dead_ms) WHERE state = 2;
    CREATE INDEX wal_reserved ON wal(made_ms) WHERE state = 0;
    CREATE INDEX wal_reply ON wal(made_ms) WHERE reply IS NOT NULL;
    CREATE TABLE run(log INTEGER NOT NULL, last_offset INTEGER NOT NULL, base_offset INTEGER NOT NULL, wal INTEGER NOT NULL,
      pos INTEGER NOT NULL, len INTEGER NOT NULL, max_ts INTEGER NOT NULL, append_ms INTEGER NOT NULL,
      PRIMARY KEY(log, last_offset)) WITHOUT ROWID;
    CREATE TABLE producer(log INTEGER NOT NULL, pid INTEGER NOT NULL, epoch INTEGER NOT NULL, batches TEXT NOT NULL,
      touched_ms INTEGER NOT NULL, PRIMARY KEY(log, pid)) WITHOUT ROWID;
    CREATE TABLE grp(name TEXT PRIMARY KEY, shard INTEGER NOT NULL, version INTEGER NOT NULL, state TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE grp_offset(grp TEXT NOT NULL, topic_id BLOB NOT NULL, part INTEGER NOT NULL, off INTEGER NOT NULL,
      leader_epoch INTEGER NOT NULL, metadata TEXT NOT NULL, committed_ms INTEGER NOT NULL, PRIMARY KEY(grp, topic_id, part)) WITHOUT ROWID;
    CREATE INDEX grp_offset_topic ON grp_offset(topic_id);
    """,
    """
    ALTER TABLE node ADD COLUMN external_host TEXT;
    ALTER TABLE node ADD COLUMN external_port INTEGER;
    """,
    """
    DROP INDEX wal_reply;
    CREATE INDEX wal_reply ON wal(node, node_epoch, made_ms) WHERE reply IS NOT NULL;
    """,
    """
    DELETE FROM grp_offset WHERE topic_id NOT IN (SELECT id FROM topic);
    """,
    """
    CREATE TABLE forgotten_producer(topic TEXT PRIMARY KEY, pid INTEGER NOT NULL, forgotten_ms INTEGER NOT NULL) WITHOUT ROWID;
    INSERT INTO forgotten_producer
      SELECT name, coalesce((SELECT value FROM counter WHERE counter.name = 'producer'), 0) - 1, 0 FROM topic;
    """,
    """
    ALTER TABLE node ADD COLUMN ttl_ms INTEGER;
    """,
    """
    ALTER TABLE cluster ADD COLUMN compatible_from INTEGER NOT NULL DEFAULT 1;
    """,
    """
    ALTER TABLE grp ADD COLUMN saved_ms INTEGER NOT NULL DEFAULT 0;
    UPDATE grp SET saved_ms = CAST(strftime('%s', 'now') AS INTEGER) * 1000;
    """,
    """
    ALTER TABLE cluster ADD COLUMN stopped TEXT NOT NULL DEFAULT '';
    """,
    """
    CREATE TABLE time_mark(topic_id BLOB NOT NULL, part INTEGER NOT NULL, max_ts INTEGER NOT NULL, off INTEGER NOT NULL,
      PRIMARY KEY(topic_id, part, max_ts, off)) WITHOUT ROWID;
    """,
    """
    ALTER TABLE wal ADD COLUMN retry_ms INTEGER;
    """,
    """
    ALTER TABLE grp_offset ADD COLUMN shard INTEGER;
    CREATE INDEX grp_offset_shard ON grp_offset(shard, grp);
    """,
    """
    CREATE TABLE topic_change(version INTEGER PRIMARY KEY, topic_id BLOB NOT NULL, mark TEXT NOT NULL);
    """,
    """
    ALTER TABLE wal ADD COLUMN producers INTEGER;
    """,
    """
    CREATE TABLE credential(name TEXT NOT NULL, mechanism INTEGER NOT NULL, iterations INTEGER NOT NULL, salt BLOB NOT NULL,
      stored_key BLOB NOT NULL, server_key BLOB NOT NULL, PRIMARY KEY(name, mechanism)) WITHOUT ROWID;
    CREATE TABLE acl(principal TEXT NOT NULL, host TEXT NOT NULL, resource_type INTEGER NOT NULL, name TEXT NOT NULL,
      pattern INTEGER NOT NULL, operation INTEGER NOT NULL, permission INTEGER NOT NULL,
      PRIMARY KEY(principal, host, resource_type, name, pattern, operation, permission)) WITHOUT ROWID;
    CREATE TABLE quota(entity TEXT NOT NULL, name TEXT NOT NULL, value REAL NOT NULL, PRIMARY KEY(entity, name)) WITHOUT ROWID;
    CREATE TABLE access_change(version INTEGER PRIMARY KEY, kind INTEGER NOT NULL, key TEXT NOT NULL, mark TEXT NOT NULL);
    """,
    """
    CREATE TABLE node_listener(node INTEGER NOT NULL, node_epoch INTEGER NOT NULL, name TEXT NOT NULL, host TEXT NOT NULL,
      port INTEGER NOT NULL, PRIMARY KEY(node, node_epoch, name)) WITHOUT ROWID;
    """,
    """
    CREATE TABLE access_secret(id INTEGER PRIMARY KEY CHECK(id = 1), value BLOB NOT NULL);
    """,
    """
    CREATE TABLE credential_use(name TEXT NOT NULL, mechanism INTEGER NOT NULL, used_ms INTEGER NOT NULL,
      PRIMARY KEY(name, mechanism)) WITHOUT ROWID;
    """,
    """
    ALTER TABLE run ADD COLUMN parts BLOB;
    CREATE INDEX run_wal ON run(wal);
    ALTER TABLE wal ADD COLUMN level INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE wal ADD COLUMN records_ms INTEGER;
    CREATE INDEX wal_level ON wal(level, made_ms) WHERE state = 1 AND level < 127;
    """,
    """
    ALTER TABLE run ADD COLUMN entry_len INTEGER;
    """,
)
"""`wal.made_ms` is the time of an object's reservation, and after its commit the time of the reply.

`wal.producers` is the counter of producer ids at the time of the reservation; null for reservations of versions without
the column.

`forgotten_producer.pid` is the greatest producer id whose state was deleted in a topic of that name, because it was old
or with the topic. Earlier versions did not store it, so any id that they allocated counts.

`time_mark` holds the marks of `metadata_store.time_marks`. Versions without it neither use nor damage it.

`topic_change` has the newest changes of topics. Its version is the value of the counter "topics" after the change.

`metadata_store.access_rows` explains `access_change`.

`access_secret` has one row, the secret of `AccessStore.secret`.

`credential_use` has the last use of each credential that was used. Changes of a credential delete its row.

`run.parts` has the batch ranges of a row, and `run.entry_len` is null unless they are table ranges
(`metadata_store.batch_ranges`). `wal.level` is the level of an object for
merges (`log_types.UNMERGED`). `wal.records_ms` is the time from which the age of records without a timestamp counts; null
for that of the commit.
"""
RAISE_FORGOTTEN = (
    "ON CONFLICT(topic) DO UPDATE SET pid=max(pid, excluded.pid), forgotten_ms=max(forgotten_ms, excluded.forgotten_ms)"
)
"""The end of a statement that inserts into ``forgotten_producer``."""

COMPATIBLE_FROM = 1
"""The oldest version of the schema whose programs work correctly on this one. Raise it with a script that they would
misunderstand: they refuse to start from then on."""
TABLE_RANGES = 20
"""The oldest version whose programs work correctly with table ranges. The transaction that stores such a range raises
``cluster.compatible_from`` to it, so that a coordinator without table ranges keeps its way back."""
