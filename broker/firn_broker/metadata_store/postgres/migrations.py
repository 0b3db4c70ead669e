"""The schema of the PostgreSQL store: scripts for the tables, and functions.

Each version has one script, and replaces all functions. Never change a released script: add another, and one that
changes nothing when only a function changes.

Every transaction locks in this order: objects (``wal``), logs by (topic, partition), then the rest. ``now_ms`` is the
only clock. The table ``run`` holds batch ranges.

The rule of idempotence stands once here, in ``commit_wal``, and once in Python (`metadata_store.idempotence`), for
SQLite. Change both together: the contract suite runs against both.
"""

SCRIPTS = (
    """
    CREATE FUNCTION now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
      $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;
    CREATE TABLE counter(name text PRIMARY KEY, value bigint NOT NULL);
    CREATE TABLE cluster(id text NOT NULL);
    CREATE UNIQUE INDEX cluster_one ON cluster((true));
    CREATE TABLE node(id int PRIMARY KEY, epoch int NOT NULL, host text NOT NULL, port int NOT NULL, zone text NOT NULL,
      expires_ms bigint NOT NULL);
    CREATE TABLE lease(name text PRIMARY KEY, node int NOT NULL, node_epoch int NOT NULL, epoch bigint NOT NULL);
    CREATE TABLE topic(id uuid PRIMARY KEY, name text NOT NULL UNIQUE, partitions int NOT NULL, configs jsonb NOT NULL);
    CREATE TABLE log(id bigserial PRIMARY KEY, topic_id uuid NOT NULL, part int NOT NULL, log_start bigint NOT NULL DEFAULT 0,
      hw bigint NOT NULL DEFAULT 0, bytes bigint NOT NULL DEFAULT 0, deleted boolean NOT NULL DEFAULT false,
      UNIQUE(topic_id, part)) WITH (fillfactor = 70);
    CREATE INDEX log_deleted ON log(id) WHERE deleted;
    CREATE TABLE wal(id bigserial PRIMARY KEY, key text NOT NULL UNIQUE, node int NOT NULL, node_epoch int NOT NULL,
      state smallint NOT NULL, size bigint NOT NULL, runs int NOT NULL, made_ms bigint NOT NULL, dead_ms bigint, reply jsonb)
      WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
    CREATE INDEX wal_dead ON wal(dead_ms) WHERE state = 2;
    CREATE INDEX wal_reserved ON wal(made_ms) WHERE state = 0;
    CREATE INDEX wal_reply ON wal(made_ms) WHERE reply IS NOT NULL;
    CREATE TABLE run(log bigint NOT NULL, last_offset bigint NOT NULL, base_offset bigint NOT NULL, wal bigint NOT NULL,
      pos bigint NOT NULL, len int NOT NULL, max_ts bigint NOT NULL, append_ms bigint NOT NULL, PRIMARY KEY(log, last_offset))
      WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.05);
    CREATE TABLE producer(log bigint NOT NULL, pid bigint NOT NULL, epoch int NOT NULL, ring bigint[] NOT NULL,
      touched_ms bigint NOT NULL, PRIMARY KEY(log, pid)) WITH (fillfactor = 70);
    CREATE TABLE grp(name text PRIMARY KEY, shard int NOT NULL, version bigint NOT NULL, state text NOT NULL);
    CREATE INDEX grp_shard ON grp(shard);
    CREATE TABLE grp_offset(grp text NOT NULL, topic_id uuid NOT NULL, part int NOT NULL, off bigint NOT NULL,
      leader_epoch int NOT NULL, metadata text NOT NULL, committed_ms bigint NOT NULL, PRIMARY KEY(grp, topic_id, part))
      WITH (fillfactor = 70);
    CREATE INDEX grp_offset_topic ON grp_offset(topic_id);
    """,
    """
    ALTER TABLE node ADD COLUMN external_host text, ADD COLUMN external_port int;
    """,
    """
    DROP INDEX wal_reply;
    CREATE INDEX wal_reply ON wal(node, node_epoch, made_ms) WHERE reply IS NOT NULL;
    """,
    """
    DELETE FROM grp_offset WHERE topic_id NOT IN (SELECT id FROM topic);
    """,
    """
    CREATE TABLE forgotten_producer(topic text PRIMARY KEY, pid bigint NOT NULL, forgotten_ms bigint NOT NULL);
    INSERT INTO forgotten_producer
      SELECT name, coalesce((SELECT value FROM counter WHERE counter.name = 'producer'), 0) - 1, 0 FROM topic;
    """,
    """
    ALTER TABLE node ADD COLUMN ttl_ms bigint;
    """,
    """
    ALTER TABLE cluster ADD COLUMN compatible_from int NOT NULL DEFAULT 1;
    """,
    """
    ALTER TABLE grp ADD COLUMN saved_ms bigint NOT NULL DEFAULT now_ms();
    """,
    """
    ALTER TABLE cluster ADD COLUMN stopped text NOT NULL DEFAULT '';
    """,
    """
    CREATE TABLE time_mark(topic_id uuid NOT NULL, part int NOT NULL, max_ts bigint NOT NULL, off bigint NOT NULL,
      PRIMARY KEY(topic_id, part, max_ts, off));
    """,
    """
    ALTER TABLE wal ADD COLUMN retry_ms bigint;
    """,
    """
    ALTER TABLE grp_offset ADD COLUMN shard int;
    CREATE INDEX grp_offset_shard ON grp_offset(shard, grp);
    """,
    """
    CREATE TABLE topic_change(version bigint PRIMARY KEY, topic_id uuid NOT NULL, mark text NOT NULL);
    CREATE FUNCTION note_topic_change() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
      v_version bigint := raise_counter('topics', 1) + 1;
    BEGIN
      INSERT INTO topic_change VALUES (v_version, coalesce(NEW.id, OLD.id), md5(random()::text || clock_timestamp()::text));
      DELETE FROM topic_change WHERE version <= v_version - 10000;
      RETURN NULL;
    END $$;
    CREATE CONSTRAINT TRIGGER topic_changed AFTER INSERT OR UPDATE OR DELETE ON topic DEFERRABLE INITIALLY DEFERRED
      FOR EACH ROW EXECUTE FUNCTION note_topic_change();
    """,
    """
    ALTER TABLE wal ADD COLUMN producers bigint;
    """,
    """
    CREATE FUNCTION note_forgotten_producers() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      -- The producers of a deleted topic have no row here: they were noted when it was deleted.
      INSERT INTO forgotten_producer AS f
        SELECT name, max(pid), now_ms() FROM gone JOIN log ON log.id = gone.log JOIN topic ON topic.id = topic_id
        GROUP BY name ORDER BY name
        ON CONFLICT (topic) DO UPDATE SET pid = greatest(f.pid, excluded.pid),
          forgotten_ms = greatest(f.forgotten_ms, excluded.forgotten_ms);
      RETURN NULL;
    END $$;
    CREATE TRIGGER note_forgotten_producers AFTER DELETE ON producer REFERENCING OLD TABLE AS gone
      FOR EACH STATEMENT EXECUTE FUNCTION note_forgotten_producers();
    CREATE FUNCTION note_producers_of_topic() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      PERFORM 1 FROM log WHERE topic_id = OLD.id ORDER BY topic_id, part FOR UPDATE;
      INSERT INTO forgotten_producer AS f
        SELECT OLD.name, coalesce(max(pid), -1), now_ms() FROM log JOIN producer ON producer.log = log.id
        WHERE topic_id = OLD.id
        ON CONFLICT (topic) DO UPDATE SET pid = greatest(f.pid, excluded.pid),
          forgotten_ms = greatest(f.forgotten_ms, excluded.forgotten_ms);
      RETURN NULL;
    END $$;
    CREATE TRIGGER note_producers_of_topic AFTER DELETE ON topic FOR EACH ROW EXECUTE FUNCTION note_producers_of_topic();
    """,
    # Only functions have changed: `commit_in_order` and those that it calls.
    "SELECT 1",
    """
    CREATE TABLE credential(name text COLLATE "C" NOT NULL, mechanism int NOT NULL, iterations int NOT NULL, salt bytea NOT NULL,
      stored_key bytea NOT NULL, server_key bytea NOT NULL, PRIMARY KEY(name, mechanism));
    CREATE TABLE acl(principal text COLLATE "C" NOT NULL, host text COLLATE "C" NOT NULL, resource_type int NOT NULL,
      name text COLLATE "C" NOT NULL, pattern int NOT NULL, operation int NOT NULL, permission int NOT NULL,
      PRIMARY KEY(principal, host, resource_type, name, pattern, operation, permission));
    CREATE TABLE quota(entity text COLLATE "C" NOT NULL, name text NOT NULL, value float8 NOT NULL, PRIMARY KEY(entity, name));
    CREATE TABLE access_change(version bigint PRIMARY KEY, kind int NOT NULL, key text NOT NULL, mark text NOT NULL);
    """,
    """
    CREATE TABLE node_listener(node int NOT NULL, node_epoch bigint NOT NULL, name text COLLATE "C" NOT NULL, host text NOT NULL,
      port int NOT NULL, PRIMARY KEY(node, node_epoch, name));
    """,
    """
    CREATE TABLE access_secret(id int PRIMARY KEY CHECK (id = 1), value bytea NOT NULL);
    """,
    """
    CREATE TABLE credential_use(name text COLLATE "C" NOT NULL, mechanism int NOT NULL, used_ms bigint NOT NULL,
      PRIMARY KEY(name, mechanism));
    """,
    """
    -- The index first: it takes the longest, and until the changes of the tables, readers wait for nothing.
    CREATE INDEX run_wal ON run(wal);
    ALTER TABLE wal ADD COLUMN level smallint NOT NULL DEFAULT 0, ADD COLUMN records_ms bigint;
    CREATE INDEX wal_level ON wal(level, made_ms) WHERE state = 1 AND level < 127;
    ALTER TABLE run ADD COLUMN parts bytea;
    """,
    """
    ALTER TABLE run ADD COLUMN entry_len int;
    CREATE FUNCTION refuse_earlier_programs() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF coalesce(current_setting('firn_broker.schema', true), '') = '' AND (SELECT compatible_from FROM cluster) >= 22 THEN
        RAISE EXCEPTION 'the coordinator has batch ranges in tables, so this version of firn-broker would not read the log. Use the'
          ' version that the other brokers run' USING ERRCODE = 'FN001';
      END IF;
      RETURN NEW;
    END $$;
    CREATE TRIGGER refuse_earlier_programs BEFORE INSERT OR UPDATE ON node FOR EACH ROW WHEN (NEW.expires_ms > 0)
      EXECUTE FUNCTION refuse_earlier_programs();
    """,
)
"""`wal.made_ms` is the time of an object's reservation, and after its commit the time of the reply.

`wal.producers` is the counter of producer ids at the time of the reservation; null for reservations of versions without
the column.

`forgotten_producer.pid` is the greatest producer id whose state was deleted in a topic of that name, because it was old
or with the topic. Triggers note it, because version 0.1.0 deletes states without a note. Before the triggers, any id that
it allocated counts.

`time_mark` holds the marks of `metadata_store.time_marks`. Versions without it neither use nor damage it.

`topic_change` has the newest changes of topics. Its version is the value of the counter "topics" after the change. The
trigger runs when a transaction commits, and locks the counter until the commit is visible. So a transaction that sees a
version sees all earlier ones. The trigger also notes the changes of earlier versions of the program.

`metadata_store.access_rows` explains `access_change`.

`access_secret` has one row, the secret of `AccessStore.secret`.

`credential_use` has the last use of each credential that was used. Changes of a credential delete its row.

`run.parts` has the batch ranges of a row, and `run.entry_len` is null unless they are table ranges
(`metadata_store.batch_ranges`). `wal.level` is the level of an object for merges (`log_types.UNMERGED`). `wal.records_ms`
is the time from which the age of records without a timestamp counts; null for that of the commit.

``refuse_earlier_programs`` lets a program before version 22 neither join the cluster nor renew its node lease while there
may be table ranges. Later programs set `firn_broker.schema` for their connections. Versions 0.1.0 and 0.2.0 do not look at
`cluster.compatible_from`, and a broker that already runs does not look again.
"""

COMPATIBLE_FROM = 1
"""The oldest version of the schema whose programs work correctly on this one. Raise it with a script that they would
misunderstand: they refuse to start from then on."""
TABLE_RANGES = 22
"""The oldest version whose programs work correctly with table ranges. The transaction that stores such a range raises
``cluster.compatible_from`` to it, so that a coordinator without table ranges keeps its way back."""

FUNCTIONS = """
    CREATE OR REPLACE FUNCTION raise_counter(p_name text, p_step bigint) RETURNS bigint LANGUAGE sql AS $$
      INSERT INTO counter AS c VALUES (p_name, p_step)
      ON CONFLICT (name) DO UPDATE SET value = c.value + p_step RETURNING value - p_step
    $$;

    -- A separate call before commit_wal, in the same statement.
    CREATE OR REPLACE FUNCTION check_progress(p_counter text, p_after bigint) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
    DECLARE
      v_stopped text;
      v_known bigint;
    BEGIN
      -- A standby may lag behind, so it proves no loss. The code is that of a write to a standby.
      IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'this PostgreSQL server is a standby' USING ERRCODE = '25006';
      END IF;
      SELECT stopped INTO v_stopped FROM cluster;
      IF v_stopped <> '' THEN
        RAISE EXCEPTION '%', v_stopped USING ERRCODE = 'FN002';
      END IF;
      SELECT coalesce((SELECT value FROM counter WHERE name = p_counter), 0) INTO v_known;
      IF v_known < p_after THEN
        RAISE EXCEPTION 'counter % is %, and was %: the last commits are lost', p_counter, v_known, p_after USING ERRCODE = 'FN002';
      END IF;
      RETURN true;
    END $$;

    -- The ring of a producer for batches whose offsets count from a high watermark.
    CREATE OR REPLACE FUNCTION ring_of(p_hw bigint, p_now bigint, p_first bigint[], p_last bigint[], p_offset bigint[], p_append bigint[])
      RETURNS bigint[] LANGUAGE sql IMMUTABLE AS $$
      SELECT array_agg(field ORDER BY n, i) FROM unnest(p_first, p_last, p_offset, p_append) WITH ORDINALITY AS it(first, last, off, append, n),
        LATERAL (VALUES (1, first), (2, last), (3, p_hw + off), (4, CASE append WHEN 1 THEN p_now ELSE -1 END)) fields(i, field)
    $$;

    -- Locks an object that a lease may commit. With a stored reply, the object is committed already.
    CREATE OR REPLACE FUNCTION lock_wal(p_key text, p_node int, p_epoch int) RETURNS wal LANGUAGE plpgsql AS $$
    DECLARE
      w wal;
    BEGIN
      SELECT * INTO w FROM wal WHERE key = p_key FOR UPDATE;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'object % is not reserved', p_key USING ERRCODE = 'FN001';
      END IF;
      IF w.reply IS NOT NULL THEN
        RETURN w;
      END IF;
      IF w.state <> 0 THEN
        RAISE EXCEPTION 'the reservation of object % was withdrawn', p_key USING ERRCODE = 'FN001';
      END IF;
      IF w.node <> p_node OR w.node_epoch <> p_epoch OR NOT EXISTS (SELECT 1 FROM node WHERE id = p_node AND epoch = p_epoch) THEN
        RAISE EXCEPTION 'node % has a newer holder', p_node USING ERRCODE = 'FN001';
      END IF;
      RETURN w;
    END $$;

    -- A column of a plan: the values of all rows as an array, one value for all rows, or nothing for the numbers of the rows.
    CREATE OR REPLACE FUNCTION column_of(p_values text, p_rows int) RETURNS bigint[] LANGUAGE plpgsql IMMUTABLE AS $$
    BEGIN
      IF left(p_values, 1) = '{' THEN
        RETURN p_values::bigint[];
      ELSIF p_values <> '' THEN
        RETURN array_fill(p_values::bigint, ARRAY[p_rows]);
      END IF;
      RETURN ARRAY(SELECT generate_series(1::bigint, p_rows));
    END $$;

    -- Commits a plan (metadata_store.commit_plan). Fails if a batch is not the next one of its producer. The columns are those
    -- of partitions (l_), batch ranges (r_), producers (q_), and their newest batches (b_), of which the last one of each
    -- producer has the number q_upto.
    CREATE OR REPLACE FUNCTION commit_in_order(
      p_key text, p_node int, p_epoch int, p_size bigint, p_topics uuid[], p_rows int[], p_columns text[]
    ) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
      w wal := lock_wal(p_key, p_node, p_epoch);
      now_at bigint;
      l_topic bigint[] := column_of(p_columns[1], p_rows[1]);
      l_part bigint[] := column_of(p_columns[2], p_rows[1]);
      l_records bigint[] := column_of(p_columns[3], p_rows[1]);
      l_bytes bigint[] := column_of(p_columns[4], p_rows[1]);
      r_log bigint[] := column_of(p_columns[5], p_rows[2]);
      r_offset bigint[] := column_of(p_columns[6], p_rows[2]);
      r_records bigint[] := column_of(p_columns[7], p_rows[2]);
      r_pos bigint[] := column_of(p_columns[8], p_rows[2]);
      r_len bigint[] := column_of(p_columns[9], p_rows[2]);
      r_max_ts bigint[] := column_of(p_columns[10], p_rows[2]);
      r_append bigint[] := column_of(p_columns[11], p_rows[2]);
      q_log bigint[] := column_of(p_columns[12], p_rows[3]);
      q_pid bigint[] := column_of(p_columns[13], p_rows[3]);
      q_epoch bigint[] := column_of(p_columns[14], p_rows[3]);
      q_seq bigint[] := column_of(p_columns[15], p_rows[3]);
      q_upto bigint[] := column_of(p_columns[16], p_rows[3]);
      b_first bigint[] := column_of(p_columns[17], p_rows[4]);
      b_last bigint[] := column_of(p_columns[18], p_rows[4]);
      b_offset bigint[] := column_of(p_columns[19], p_rows[4]);
      b_append bigint[] := column_of(p_columns[20], p_rows[4]);
      l_id bigint[]; l_hw bigint[]; l_start bigint[];
      known int; begun int := 0;
      v_reply jsonb;
    BEGIN
      IF w.reply IS NOT NULL THEN
        RETURN w.reply;
      END IF;
      SELECT array_agg(id ORDER BY n), array_agg(hw ORDER BY n), array_agg(log_start ORDER BY n) INTO l_id, l_hw, l_start FROM (
        SELECT it.n, log.id, hw, log_start FROM unnest(l_topic, l_part) WITH ORDINALITY AS it(topic, part, n)
        JOIN log ON log.topic_id = p_topics[it.topic] AND log.part = it.part::int AND NOT deleted
        ORDER BY topic_id, log.part FOR UPDATE OF log) locked;
      IF cardinality(l_id) IS DISTINCT FROM p_rows[1] THEN
        RAISE EXCEPTION 'a partition does not exist' USING ERRCODE = 'FN003';
      END IF;
      -- Read after the locks, so that append times rise with offsets.
      now_at := now_ms();
      UPDATE producer p SET epoch = it.epoch, touched_ms = now_at,
          ring = CASE WHEN p.epoch = it.epoch THEN p.ring[cardinality(p.ring) - 19 + 4 * (it.upto - it.since) :] ELSE '{}' END || CASE
            WHEN it.since + 1 = it.upto THEN
              ARRAY[b_first[it.upto], b_last[it.upto], l_hw[it.log] + b_offset[it.upto], CASE b_append[it.upto] WHEN 1 THEN now_at ELSE -1 END]
            ELSE ring_of(l_hw[it.log], now_at, b_first[it.since + 1 : it.upto], b_last[it.since + 1 : it.upto],
              b_offset[it.since + 1 : it.upto], b_append[it.since + 1 : it.upto]) END
        FROM (SELECT *, coalesce(q_upto[n - 1], 0) AS since FROM unnest(q_log, q_pid, q_epoch, q_seq, q_upto) WITH ORDINALITY
          AS u(log, pid, epoch, seq, upto, n)) it
        WHERE p.log = l_id[it.log] AND p.pid = it.pid AND CASE WHEN p.epoch = it.epoch
          THEN p.ring[3] >= 0 AND (p.ring[cardinality(p.ring) - 2] + 1) & 2147483647 = it.seq
          ELSE p.epoch < it.epoch AND it.seq = 0 END;
      GET DIAGNOSTICS known = ROW_COUNT;
      IF known < p_rows[3] THEN
        INSERT INTO producer SELECT l_id[it.log], it.pid, it.epoch, ring_of(l_hw[it.log], now_at, b_first[it.since + 1 : it.upto],
            b_last[it.since + 1 : it.upto], b_offset[it.since + 1 : it.upto], b_append[it.since + 1 : it.upto]), now_at
          FROM (SELECT *, coalesce(q_upto[n - 1], 0) AS since FROM unnest(q_log, q_pid, q_epoch, q_seq, q_upto) WITH ORDINALITY
            AS u(log, pid, epoch, seq, upto, n)) it WHERE it.seq = 0
          ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS begun = ROW_COUNT;
        IF known + begun < p_rows[3] THEN
          RAISE EXCEPTION 'a batch is not the next one of its producer' USING ERRCODE = 'FN003';
        END IF;
      END IF;
      UPDATE log SET hw = hw + it.records, bytes = log.bytes + it.bytes FROM unnest(l_id, l_records, l_bytes) AS it(id, records, bytes)
        WHERE log.id = it.id;
      INSERT INTO run SELECT l_id[it.log], l_hw[it.log] + it.off + it.records - 1, l_hw[it.log] + it.off, w.id, it.pos, it.len,
          CASE it.append WHEN 1 THEN now_at ELSE it.max_ts END, CASE it.append WHEN 1 THEN now_at ELSE -1 END
        FROM unnest(r_log, r_offset, r_records, r_pos, r_len, r_max_ts, r_append) AS it(log, off, records, pos, len, max_ts, append);
      v_reply := jsonb_build_object('at', now_at, 'high', to_jsonb(l_hw), 'start', to_jsonb(l_start));
      UPDATE wal SET state = 1, size = p_size, runs = p_rows[2], dead_ms = NULL, made_ms = now_at, reply = v_reply WHERE id = w.id;
      PERFORM raise_counter('commits/' || p_node || '/' || p_epoch, 1);
      RETURN v_reply;
    END $$;

    -- Error codes are Kafka's: 3 unknown topic or partition, 45 out of order sequence number, 47 invalid producer epoch,
    -- 56 storage error for a batch of a forgotten producer that has to be sent again. A ring of one batch at offset -1 has
    -- the sequence at which such a producer may begin. A repair, whose batches no client sends again, sets firn_broker.repair.
    CREATE OR REPLACE FUNCTION commit_wal(
      p_key text, p_node int, p_epoch int, p_size bigint, p_topic uuid[], p_part int[], p_pos bigint[], p_len int[],
      p_records int[], p_max_ts bigint[], p_append boolean[], p_pid bigint[], p_pepoch int[], p_seq int[], p_run_bytes int
    ) RETURNS jsonb LANGUAGE plpgsql AS $$
    DECLARE
      w wal := lock_wal(p_key, p_node, p_epoch);
      repair boolean := coalesce(current_setting('firn_broker.repair', true), '') = 'on';
      now_at bigint;
      replies jsonb[] := '{}';
      r_log bigint[] := '{}'; r_base bigint[] := '{}'; r_last bigint[] := '{}'; r_pos bigint[] := '{}'; r_len int[] := '{}';
      r_ts bigint[] := '{}'; r_at bigint[] := '{}';
      l_id bigint[] := '{}'; l_hw bigint[] := '{}'; l_added bigint[] := '{}';
      n int := 0;
      at_topic uuid; at_part int;
      log_id bigint; log_start bigint; log_hw bigint; added bigint;
      pid bigint; pid_log bigint; pid_known boolean; pid_epoch int; ring bigint[]; pid_changed boolean := false;
      append_at bigint; last_seq bigint; newest bigint; error int; hit int; held boolean := false;
    BEGIN
      IF w.reply IS NOT NULL THEN
        RETURN w.reply;
      END IF;
      PERFORM 1 FROM log WHERE (topic_id, part) IN (SELECT DISTINCT * FROM unnest(p_topic, p_part)) AND NOT deleted
        ORDER BY topic_id, part FOR UPDATE;
      -- Read after the locks, so that append times rise with offsets.
      now_at := now_ms();
      FOR i IN 1 .. coalesce(array_length(p_topic, 1), 0) LOOP
        IF at_topic IS DISTINCT FROM p_topic[i] OR at_part IS DISTINCT FROM p_part[i] THEN
          IF added > 0 THEN
            l_id := l_id || log_id; l_hw := l_hw || log_hw; l_added := l_added || added;
          END IF;
          at_topic := p_topic[i]; at_part := p_part[i]; added := 0;
          SELECT id, log.log_start, hw INTO log_id, log_start, log_hw FROM log
            WHERE topic_id = at_topic AND part = at_part AND NOT deleted;
        END IF;
        IF log_id IS NULL THEN
          replies := replies || jsonb_build_array(3, -1, -1, -1, false);
          CONTINUE;
        END IF;
        append_at := CASE WHEN p_append[i] THEN now_at ELSE -1 END;
        newest := CASE WHEN p_append[i] THEN now_at ELSE p_max_ts[i] END;
        IF p_pid[i] >= 0 THEN
          IF pid_log IS DISTINCT FROM log_id OR pid IS DISTINCT FROM p_pid[i] THEN
            IF pid_changed THEN
              INSERT INTO producer VALUES (pid_log, pid, pid_epoch, ring, now_at)
                ON CONFLICT ON CONSTRAINT producer_pkey DO UPDATE SET epoch = excluded.epoch, ring = excluded.ring,
                  touched_ms = excluded.touched_ms;
              pid_changed := false;
            END IF;
            pid := p_pid[i]; pid_log := log_id;
            SELECT epoch, producer.ring INTO pid_epoch, ring FROM producer WHERE producer.log = log_id AND producer.pid = p_pid[i];
            pid_known := FOUND;
          END IF;
          error := 0; hit := -1;
          last_seq := (p_seq[i]::bigint + p_records[i] - 1) & 2147483647;
          IF pid_known THEN
            IF p_pepoch[i] < pid_epoch THEN
              error := 47;
            ELSIF p_pepoch[i] > pid_epoch THEN
              error := CASE WHEN p_seq[i] = 0 THEN 0 ELSE 45 END;
            ELSIF ring[3] < 0 THEN
              IF p_seq[i] = 0 OR p_seq[i] = ring[1] OR repair THEN
                ring := '{}';
              ELSE
                error := 56;
                IF (ring[1] - p_seq[i]) & 2147483647 < 1073741824 THEN
                  ring := ARRAY[p_seq[i]::bigint, (p_seq[i] - 1) & 2147483647, -1, -1];
                END IF;
              END IF;
            ELSE
              FOR j IN 0 .. coalesce(array_length(ring, 1), 0) / 4 - 1 LOOP
                IF ring[4 * j + 1] = p_seq[i] AND ring[4 * j + 2] = last_seq THEN
                  hit := j;
                END IF;
              END LOOP;
              IF hit < 0 AND array_length(ring, 1) > 0
                AND (ring[array_length(ring, 1) - 2] + 1) & 2147483647 <> p_seq[i] THEN
                error := 45;
              END IF;
            END IF;
          ELSIF p_seq[i] <> 0 AND NOT repair THEN
            IF NOT EXISTS (
              SELECT 1 FROM topic JOIN forgotten_producer f ON f.topic = topic.name WHERE topic.id = at_topic AND f.pid >= p_pid[i]
            ) THEN
              error := 45;
            ELSE
              error := 56; pid_known := true; pid_epoch := p_pepoch[i];
              ring := ARRAY[p_seq[i]::bigint, (p_seq[i] - 1) & 2147483647, -1, -1];
            END IF;
          END IF;
          IF error = 56 THEN
            pid_changed := true; held := true;
          END IF;
          IF error <> 0 AND NOT repair THEN
            replies := replies || jsonb_build_array(error, -1, -1, log_start, false);
            CONTINUE;
          END IF;
          IF hit >= 0 THEN
            replies := replies || jsonb_build_array(0, ring[4 * hit + 3], ring[4 * hit + 4], log_start, true);
            CONTINUE;
          END IF;
          -- A repair appends a batch with a wrong sequence or epoch as if it had no producer.
          IF error = 0 THEN
            IF NOT pid_known OR pid_epoch <> p_pepoch[i] THEN
              ring := '{}';
            END IF;
            pid_known := true; pid_changed := true; pid_epoch := p_pepoch[i];
            ring := ring || ARRAY[p_seq[i]::bigint, last_seq, log_hw, append_at];
            IF array_length(ring, 1) > 20 THEN
              ring := ring[array_length(ring, 1) - 19 :];
            END IF;
          END IF;
        END IF;
        replies := replies || jsonb_build_array(0, log_hw, append_at, log_start, false);
        IF n > 0 AND r_log[n] = log_id AND r_pos[n] + r_len[n] = p_pos[i] AND r_at[n] = append_at
          AND r_len[n] + p_len[i] <= p_run_bytes THEN
          r_last[n] := log_hw + p_records[i] - 1; r_len[n] := r_len[n] + p_len[i]; r_ts[n] := greatest(r_ts[n], newest);
        ELSE
          n := n + 1;
          r_log[n] := log_id; r_base[n] := log_hw; r_last[n] := log_hw + p_records[i] - 1; r_pos[n] := p_pos[i]; r_len[n] := p_len[i];
          r_ts[n] := newest; r_at[n] := append_at;
        END IF;
        log_hw := log_hw + p_records[i];
        added := added + p_len[i];
      END LOOP;
      IF added > 0 THEN
        l_id := l_id || log_id; l_hw := l_hw || log_hw; l_added := l_added || added;
      END IF;
      IF pid_changed THEN
        INSERT INTO producer VALUES (pid_log, pid, pid_epoch, ring, now_at)
          ON CONFLICT ON CONSTRAINT producer_pkey DO UPDATE SET epoch = excluded.epoch, ring = excluded.ring,
            touched_ms = excluded.touched_ms;
      END IF;
      UPDATE log SET hw = it.hw, bytes = bytes + it.added FROM unnest(l_id, l_hw, l_added) AS it(id, hw, added) WHERE log.id = it.id;
      INSERT INTO run SELECT it.log, it.last, it.base, w.id, it.pos, it.len, it.ts, it.at
        FROM unnest(r_log, r_last, r_base, r_pos, r_len, r_ts, r_at) AS it(log, last, base, pos, len, ts, at);
      UPDATE wal SET state = CASE WHEN n > 0 THEN 1 ELSE 2 END, size = p_size, runs = n,
        dead_ms = CASE WHEN n > 0 THEN NULL ELSE now_at END, made_ms = now_at, reply = to_jsonb(replies) WHERE id = w.id;
      IF n > 0 OR held THEN
        PERFORM raise_counter('commits/' || p_node || '/' || p_epoch, 1);
      END IF;
      RETURN to_jsonb(replies);
    END $$;

    CREATE OR REPLACE FUNCTION expire_logs(p_topic uuid, p_age bigint, p_bytes bigint, p_limit int) RETURNS int LANGUAGE plpgsql AS $$
    DECLARE
      it record;
      one record;
      excess bigint;
      upto bigint;
      v_below bigint; v_runs int;
      v_waiting int := 0;
      v_passed int := 0;
      v_log bigint[] := '{}'; v_upto bigint[] := '{}';
    BEGIN
      -- Reads candidates without locks. Only the short update at the end locks their logs.
      FOR it IN SELECT id, log_start, bytes FROM log WHERE topic_id = p_topic AND NOT deleted AND hw > log_start ORDER BY part LOOP
        EXIT WHEN v_passed >= p_limit;
        upto := it.log_start;
        excess := 0;
        IF p_bytes >= 0 AND v_waiting < p_limit THEN
          -- log.bytes counts ranges below the log start until they are dropped, so they are subtracted here.
          -- While p_limit of them wait, size expires no more.
          SELECT coalesce(sum(len), 0), count(*) INTO v_below, v_runs
            FROM (SELECT len FROM run WHERE log = it.id AND last_offset < it.log_start LIMIT p_limit - v_waiting) below;
          v_waiting := v_waiting + v_runs;
          excess := CASE WHEN v_waiting < p_limit THEN it.bytes - p_bytes - v_below ELSE 0 END;
        END IF;
        -- Records without a timestamp have the age of their object.
        FOR one IN SELECT last_offset, len,
            CASE WHEN max_ts < 0 THEN (SELECT coalesce(records_ms, made_ms) FROM wal WHERE id = run.wal) ELSE max_ts END AS max_ts
          FROM run WHERE log = it.id AND last_offset >= it.log_start ORDER BY last_offset LIMIT p_limit - v_passed LOOP
          EXIT WHEN NOT (p_age >= 0 AND one.max_ts < now_ms() - p_age) AND excess < one.len;
          excess := excess - one.len;
          upto := one.last_offset + 1;
          v_passed := v_passed + 1;
        END LOOP;
        IF upto > it.log_start THEN
          v_log := v_log || it.id; v_upto := v_upto || upto;
        END IF;
      END LOOP;
      PERFORM 1 FROM log WHERE id = ANY(v_log) ORDER BY topic_id, part FOR UPDATE;
      UPDATE log SET log_start = greatest(log_start, moved.upto) FROM unnest(v_log, v_upto) AS moved(id, upto)
        WHERE log.id = moved.id;
      RETURN v_passed;
    END $$;

    CREATE OR REPLACE FUNCTION drop_runs(p_log bigint[], p_last bigint[]) RETURNS int LANGUAGE plpgsql AS $$
    DECLARE
      v_wal bigint[];
      v_count int := 0;
    BEGIN
      SELECT array_agg(DISTINCT run.wal) INTO v_wal FROM run JOIN unnest(p_log, p_last) AS it(log, last_offset)
        ON run.log = it.log AND run.last_offset = it.last_offset;
      IF v_wal IS NOT NULL THEN
        PERFORM 1 FROM wal WHERE id = ANY(v_wal) ORDER BY id FOR UPDATE;
        PERFORM 1 FROM log WHERE id = ANY(p_log) ORDER BY topic_id, part FOR UPDATE;
        -- One broker at a time holds the lease for this. If two run nevertheless, each counts only what it deletes itself.
        -- A compaction may have moved a range to an object that is not locked here: the next step deletes it.
        WITH gone AS (
          DELETE FROM run USING unnest(p_log, p_last) AS it(log, last_offset)
          WHERE run.log = it.log AND run.last_offset = it.last_offset AND run.wal = ANY(v_wal) RETURNING run.log, run.wal, run.len
        ), by_log AS (
          UPDATE log SET bytes = bytes - it.len FROM (SELECT gone.log, sum(len) AS len FROM gone GROUP BY gone.log) it WHERE log.id = it.log
        ), by_wal AS (
          UPDATE wal SET runs = wal.runs - it.runs, state = CASE WHEN wal.runs = it.runs THEN 2 ELSE state END,
            dead_ms = CASE WHEN wal.runs = it.runs THEN now_ms() ELSE dead_ms END
            FROM (SELECT gone.wal, count(*)::int AS runs FROM gone GROUP BY gone.wal) it WHERE wal.id = it.wal
        )
        SELECT count(*) INTO v_count FROM gone;
      END IF;
      DELETE FROM producer USING log WHERE producer.log = log.id AND log.deleted
        AND NOT EXISTS (SELECT 1 FROM run WHERE run.log = log.id);
      DELETE FROM time_mark USING log WHERE time_mark.topic_id = log.topic_id AND time_mark.part = log.part AND log.deleted
        AND NOT EXISTS (SELECT 1 FROM run WHERE run.log = log.id);
      DELETE FROM log WHERE deleted AND NOT EXISTS (SELECT 1 FROM run WHERE run.log = log.id);
      RETURN v_count;
    END $$;

    -- Versions 0.1.0 and 0.2.0 call this one: during an upgrade, and after a way back.
    CREATE OR REPLACE FUNCTION drop_runs(p_limit int) RETURNS int LANGUAGE sql AS $$
      SELECT drop_runs(array_agg(it.log), array_agg(it.last_offset)) FROM (
        SELECT run.log, run.last_offset FROM log CROSS JOIN LATERAL (
          SELECT * FROM run WHERE run.log = log.id AND run.last_offset < CASE WHEN deleted THEN 9223372036854775807 ELSE log_start END
            ORDER BY run.last_offset LIMIT p_limit) run
        WHERE deleted OR log_start > 0 LIMIT p_limit) it
    $$;
"""
