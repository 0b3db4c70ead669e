"""Preparation of a topic: load or create its table, read the position from the table, and claim the table."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import structlog

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import CommitConflictError, ConflictError, FirnError, NotReadyError
from firn.model.jobs import IngestJob, SinkCommits
from firn.model.progress import Cause, Gap, Offsets
from firn.schemas.other_clients import followed_schema
from firn.schemas.versions import read_versions
from firn.tables.table_properties import MAIN
from firn_spark.credentials import read_salts
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion import takeover, writer_schemas
from firn_spark.ingestion.ended_topics import EndedTopics
from firn_spark.ingestion.publishing.switching import land_on, lands_on
from firn_spark.ingestion.rounds import adoption
from firn_spark.ingestion.rounds.failures import fail
from firn_spark.ingestion.topics.routing import Routing
from firn_spark.ingestion.topics.state import FENCED_LOOK
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.ingestion.writer_schemas import TableColumns
from firn_spark.jvm import texts
from firn_spark.kafka.admin import Kafka, TopicInfo, offsets_of
from firn_spark.schemas.field_numbers import NUMBERS
from firn_spark.schemas.registries import Registries
from firn_spark.tables import claims, dead_letters
from firn_spark.tables.commits import Committer, Extras, Landed, key_of, read_claim, read_landed, read_losses
from firn_spark.tables.java_errors import JAVA_ERRORS, translate
from firn_spark.tables.java_tables import Properties, Tables
from firn_spark.tables.vended import needs_renewal

log = structlog.get_logger()

LOOK_SECONDS = 5.0
"""Seconds between two looks for the table or the brokers of a suspended topic."""


class Preparation:
    """Prepares topics for their rounds. A topic has one worker at a time."""

    def __init__(
        self,
        spark: Any,
        tables: Tables,
        kafkas: Callable[[str], Kafka],
        committer: Committer,
        failpoints: Failpoints,
        registries: Registries = writer_schemas.NO_REGISTRIES,
        salts: Mapping[str, str] = MappingProxyType({}),
        contracts: Callable[[], Mapping[str, IngestJob] | None] = lambda: None,
    ) -> None:
        """``salts`` are the files of salts by name. ``contracts`` as in `EndedTopics`."""
        self._salts = salts
        self._routing = Routing(tables, committer, registries)
        self._ended = EndedTopics(kafkas, contracts)
        self._registries = registries
        self._spark = spark
        self._tables = tables
        self._kafkas = kafkas
        self._committer = committer
        self._failpoints = failpoints

    def prepare(self, topic: Topic) -> None:
        """Load or create the table and read what landed. Never raises: a failure is recorded on the topic.

        A topic that another driver has fenced is only looked at until that driver is quiet. Of a suspended topic, the
        driver only reads what it reports.
        """
        try:
            self._routing.share(topic)
            if topic.job.suspended:
                self._look(topic)
                return
            if topic.fenced and not self._take_back(topic):
                return
            topic.was_prepared(complete=self._prepare(topic))
        except Exception as error:
            fail(topic, error)

    def _look(self, topic: Topic) -> None:
        """Read what landed and what was lost, without a change of the table."""
        target = topic.job.table
        _, landed = self._read(topic, lambda: self._tables.load(target.catalog, target.namespace, target.name))
        self._routing.learn(topic)
        if topic.log.live is None or topic.table.uuid is None:
            topic.was_prepared(complete=False)
            topic.attempts.next_at = time.monotonic() + LOOK_SECONDS
            return
        topic.table.landed = landed
        position(topic, topic.log.live)
        topic.was_prepared()

    def _prepare(self, topic: Topic) -> bool:
        """Return False if the brokers have not described the topic: only the table is ready then."""
        table, landed = self._table(topic)
        self._routing.learn(topic)
        if topic.log.live is None:
            return False
        topic.table.java, topic.letters.claimed = table, False
        dead = dead_letters.load(self._tables, topic.job)
        if dead is not None and topic.totals.dead == 0:
            topic.totals.dead = dead_letters.count(dead)
        dead_landed = read_landed(dead) if dead is not None else None
        topic.letters.java, topic.letters.landed = dead, dead_landed
        if topic.epoch is not None:
            self._committer.check(landed, topic.table.landed, topic.epoch, topic.job.table.identifier)
        live = _live(topic)
        topic.table.landed = landed
        topic.table.look = self._ended.look(topic, table) or topic.table.look
        of_ended = adoption.check_resource(topic.job, table, landed, replaced=topic.replaced_table)
        connector = self._last_writer(topic, table, landed)
        if connector is None and landed is None and not topic.replaced_table:
            takeover.check_named(topic.job, table)
        if connector is not None:
            self._take_over(topic, connector, live)
        elif of_ended:
            kafka = self._kafkas(topic.job.profile)
            self._continue_at(topic, None, live, adoption.adopted_offsets(topic.job, live, kafka))
        elif landed is None and topic.job.start_from.kind != "Earliest":
            self.begin_table(topic, live)
        elif landed is not None and landed.topic_id != live.topic_id:
            self._adopt(topic, landed, live)
        elif landed is not None and not table.properties().get(key_of(names.TABLE_KAFKA_CLUSTER, topic.view)):
            # The claim records the cluster, so that the table of an idle topic is safe from another cluster too.
            self._claim(topic, live.topic_id)
        self._choose_branch(topic, live)
        position(topic, live)
        if landed is None and topic.reading.older is None:
            topic.reading.older = self._first_ends(topic, live)
        topic.table.spec, topic.table.ids = self._tables.spec(table), None
        topic.table.following = self._tables.following(table)
        self.follow_table(topic)
        return True

    def _choose_branch(self, topic: Topic, live: TopicInfo) -> None:
        """Let rows land on the branch of the contract. If they land on main again, main gets all rows of the branch."""
        table, publish = topic.table.java, topic.job.publish
        branch = publish.branch if publish is not None else MAIN
        if lands_on(table, branch):
            return
        epoch = self._claim(topic, live.topic_id)
        topic.table.landed = land_on(self._committer, table, branch, topic.table.landed, live.topic_id, epoch)
        log.info("rows land on another branch", topic=topic.job.topic, namespace=topic.job.namespace, branch=branch)

    def _first_ends(self, topic: Topic, live: TopicInfo) -> Offsets:
        """Return the ends that the driver knows, without a request if they are current."""
        known = topic.log.error is None and topic.log.ends.keys() >= set(live.partitions)
        return topic.log.ends if known else self._ends(topic, live)

    def _ends(self, topic: Topic, live: TopicInfo) -> Offsets:
        ends = self._kafkas(topic.job.profile).ends({topic.job.topic: live.partitions})
        return offsets_of(ends[topic.job.topic])

    def _table(self, topic: Topic) -> tuple[Any, Landed | None]:
        if not topic.job.record_schema.subjects:
            found = self._read(topic, lambda: self._ensure(topic))
            # The table may have other names than the contract, because the operator renames columns before it writes the contract.
            schema, known = topic.job.record_schema, self._tables.followed(found[0], topic.job)
            kept = followed_schema(schema, known)
            topic.reading.schema = None if kept is schema else kept
            return found
        writer_schemas.learn(topic, self._registries)
        return self._read(topic, lambda: self._ensure_adapted(topic))

    def _ensure(self, topic: Topic, more: Properties | None = None) -> Any:
        """Return the table with the columns of the topic, and with properties as `Tables.ensure` describes them."""
        table = self._tables.ensure(topic.adapted_job, more)
        topic.table.schema_id = int(table.schema().schemaId())
        return table

    def _ensure_adapted(self, topic: Topic) -> Any:
        """Return the table, with columns for all schemas that the driver keeps for the topic."""
        reading, target = topic.reading, topic.job.table
        table = self._tables.load(target.catalog, target.namespace, target.name, rare=topic.table.uuid is None)
        present: Mapping[str, str] = {}
        columns = writer_schemas.NO_TABLE
        if table is not None:
            known = self._tables.follow(table, topic.job)
            present = self._tables.columns(table)
            schema_id = table.operations().current().currentSchemaId()
            properties = texts(table.properties())
            made, numbers = read_versions(properties), "" if topic.job.table.shared else properties.get(NUMBERS, "")
            columns = TableColumns(
                known.fields, known.former, str(table.uuid()), schema_id, known.dropped, made, numbers
            )
        reading.schema, of_values, of_keys = writer_schemas.allowed(topic, present, columns)
        reading.writers.incompatible, reading.key_writers.incompatible = of_values, of_keys
        belonging = writer_schemas.numbered(topic, reading.schema)
        return self._ensure(topic, belonging.properties if belonging is not None else None)

    def _read(self, topic: Topic, load: Callable[[], Any | None]) -> tuple[Any, Landed | None]:
        """Load the table, and store what the topic reports of it. Returns the table and the newest ingestion commit.

        Both are None if the table does not exist. Raises FirnError.
        """
        try:
            table = load()
            if table is None:
                topic.table.uuid = topic.table.location = None
                topic.log.forget_cuts()
                return None, None
            landed = read_landed(table, topic.view)
            uuid = str(table.uuid())
            if topic.table.uuid not in (None, uuid):
                topic.log.forget_cuts()
            topic.table.uuid, topic.table.location, topic.table.error = uuid, str(table.location()), None
            # Those of another driver count, too: a fenced topic still reports on its table.
            topic.table.losses = read_losses(table, topic.view)
        except JAVA_ERRORS as error:
            topic.table.error = translate(error, f"table {topic.job.table.identifier}")
            raise topic.table.error from error
        except FirnError as error:
            topic.table.error = error
            raise
        if topic.totals.last_commit is None and landed is not None:
            known = landed.committed_ms if landed.landed_ms is None else landed.landed_ms
            topic.totals.last_commit = known / 1000 if known else None
        return table, landed

    def _take_back(self, topic: Topic) -> bool:
        """Return True if the driver that fenced the topic has stopped, and the topic is this driver's again."""
        table, landed = self._table(topic)
        live = _live(topic)
        topic.table.landed = landed
        position(topic, live)
        if landed is not None and landed.topic_id != live.topic_id:
            try:
                adoption.first_offsets(topic.job, table, landed, live, self._kafkas(topic.job.profile))
            except (ConflictError, NotReadyError):
                # The other driver lands another topic, which this one may not continue.
                topic.attempts.next_at = time.monotonic() + FENCED_LOOK
                return False
        newest = (landed.commit_id if landed is not None else None, read_claim(table, topic.view))
        lifted = topic.lift_fence(time.monotonic(), newest)
        if lifted:
            log.info(
                "the other driver is quiet: taking the topic back", topic=topic.job.topic, namespace=topic.job.namespace
            )
        return lifted

    def _claim(self, topic: Topic, topic_id: str) -> int:
        """Claim the table before work, so that an older driver stops. Returns the epoch. Raises FirnError."""
        dead = topic.letters.landed
        topic.epoch = claims.take(
            self._committer,
            topic.table.java,
            topic.epoch,
            dead.epoch if dead is not None else 0,
            claims.Work(
                topic_id,
                topic.table.landed,
                self._kafkas(topic.job.profile).cluster_id,
                topic.table.schema_id,
                topic.view,
            ),
        )
        self._failpoints.reach("after-claim")
        return topic.epoch

    def begin_table(self, topic: Topic, live: TopicInfo) -> None:
        """Commit the offsets at which a new table begins, if not at the log's start, so that a restart begins there too."""
        kafka, name, start = self._kafkas(topic.job.profile), topic.job.topic, topic.job.start_from
        offsets = self._ends(topic, live)
        if start.kind == "Timestamp":
            since = offsets_of(kafka.since({name: live.partitions}, start.timestamp_ms or 0)[name])
            offsets = {part: since[part] if since.get(part, -1) >= 0 else end for part, end in offsets.items()}
        gaps = self._passed_over(topic, offsets) if topic.replaced_table else []
        epoch = self._claim(topic, live.topic_id)
        extras = Extras.of(topic.job, gaps=gaps, begins=True)
        topic.table.landed = self._committer.commit(topic.table.java, (), None, live.topic_id, epoch, offsets, extras)
        if gaps:
            topic.table.losses = read_losses(topic.table.java, topic.view)

    def _passed_over(self, topic: Topic, offsets: Offsets) -> list[Gap]:
        """Return the offsets before the first ones of a table that replaced another, if that one may have had them.

        Records before ``startFrom.timestamp`` do not belong to the table, unless the log deleted them: then it is not known.
        """
        kafka, name = self._kafkas(topic.job.profile), topic.job.topic
        latest = topic.job.start_from.kind == "Latest"
        starts = offsets if latest else offsets_of(kafka.starts({name: tuple(offsets)})[name])
        return [
            Gap(partition=part, start=0, end=offset, cause=Cause.REPLACED)
            for part, offset in offsets.items()
            if 0 < offset <= starts[part]
        ]

    def _adopt(self, topic: Topic, landed: Landed, live: TopicInfo) -> None:
        """Commit the offsets at which the topic continues a table of another topic, unless it begins at its start."""
        table = topic.table.java
        offsets = adoption.first_offsets(topic.job, table, landed, live, self._kafkas(topic.job.profile))
        if offsets is not None:
            self._continue_at(topic, landed, live, offsets)

    def _continue_at(self, topic: Topic, landed: Landed | None, live: TopicInfo, offsets: Offsets) -> None:
        """Commit the adopted offsets. The topic and its cluster change in one commit."""
        epoch, table = self._claim(topic, live.topic_id), topic.table.java
        cluster = self._kafkas(topic.job.profile).cluster_id()
        extras = Extras.of(topic.job, cluster=cluster, begins=True)
        topic.table.landed = self._committer.commit(table, (), landed, live.topic_id, epoch, offsets, extras)

    def _last_writer(self, topic: Topic, table: Any, landed: Landed | None) -> SinkCommits | None:
        """Return the connector that wrote the table last, if any."""
        connector = topic.job.adopt.connect if topic.job.adopt is not None else None
        if connector is None or topic.replaced_table:
            return None
        is_due = takeover.is_due(topic.job, connector, table, landed, self._kafkas(topic.job.profile))
        return connector if is_due else None

    def _take_over(self, topic: Topic, connector: SinkCommits, live: TopicInfo) -> None:
        """Commit the offsets at which the topic continues a table of Kafka Connect."""
        table, landed = topic.table.java, topic.table.landed
        kafka = self._kafkas(topic.job.profile)
        found = takeover.find(topic.job, connector, table, landed, live, kafka)
        epoch = self._claim(topic, live.topic_id)
        # The claim may have taken a while, in which the connector can have started again.
        takeover.check_stopped(connector, kafka)
        # An audit cannot find rows of the connector, which have no offsets. The records before may be of another topic: it and its
        # cluster change in one commit.
        extras = Extras(other=found.sink, skipped=found.offsets, begins=True, cluster=kafka.cluster_id())
        topic.table.landed = self._committer.commit(table, (), landed, live.topic_id, epoch, found.offsets, extras)
        log.info(
            "took the table over from Kafka Connect",
            topic=topic.job.topic,
            namespace=topic.job.namespace,
            table=topic.job.table.identifier,
            group=connector.group,
            offsets=found.offsets,
        )

    def begin(self, topic: Topic) -> None:
        """Claim the table and the dead letters before the first round of a preparation.

        From here on no older driver can commit. Records whose dead letters landed and whose table commit did not are left
        out of the next round. Raises FirnError, also for a salt that cannot be read.
        """
        reading = _live(topic)
        if reading != topic.reading.topic:
            raise NotReadyError(
                f"topic {topic.job.topic}: it was re-created or has new partitions; reloading its offsets"
            )
        # Before the job of the round, so that a missing salt fails this topic only.
        read_salts(self._salts, topic.job.record_schema.salts)
        self._renew_credentials(topic)
        self._routing.search(topic)
        if topic.letters.claimed:
            return
        epoch = self._claim(topic, reading.topic_id)
        topic.letters.exclude = {}
        if topic.letters.java is not None:
            dead = dead_letters.claim(
                self._committer, topic.letters.java, topic.topic_id, epoch, commit_again=topic.letters.unsettled
            )
            topic.letters.unsettled = False
            landed = read_landed(topic.table.java, topic.view)
            self._committer.check(landed, topic.table.landed, epoch, topic.job.table.identifier)
            if landed is not None and (topic.table.landed is None or landed.topic_id != topic.table.landed.topic_id):
                raise CommitConflictError(
                    f"table {topic.job.table.identifier}: a commit of topic {landed.topic_id} came first; the driver reloads the offsets"
                )
            topic.table.landed, topic.letters.landed = landed, dead
            # Not the live topic, which may be another one by now: the claim was made for this one.
            position(topic, reading)
            topic.letters.spec = self._tables.spec(topic.letters.java)
            self._exclude_dead(topic, dead)
        topic.letters.claimed = True

    def _renew_credentials(self, topic: Topic) -> None:
        """Load the tables again if the catalog's credentials for their files expire soon."""
        spec = topic.table.spec
        if spec is None or not needs_renewal(spec.io, int(time.time() * 1000)):
            return
        target = topic.job.table
        table = self._tables.load(target.catalog, target.namespace, target.name)
        if table is None or str(table.uuid()) != topic.table.uuid:
            raise NotReadyError(f"table {target.identifier}: it was replaced or dropped; reloading it")
        letters = dead_letters.load(self._tables, topic.job) if topic.letters.java is not None else None
        topic.table.java, topic.table.spec = table, self._tables.spec(table)
        if letters is not None:
            topic.letters.java, topic.letters.spec = letters, self._tables.spec(letters)

    def _exclude_dead(self, topic: Topic, dead: Landed) -> None:
        offsets = topic.landed_offsets
        beyond = dead_letters.ahead(dead, topic.topic_id, offsets)
        if not beyond:
            return
        topic.letters.exclude = dead_letters.records_between(
            self._spark, topic.job, topic.letters.java, dead, offsets, beyond
        )
        log.info(
            "dead letters are ahead of the table: leaving out their records",
            topic=topic.job.topic,
            namespace=topic.job.namespace,
            records=sum(map(len, topic.letters.exclude.values())),
        )

    def follow_table(self, topic: Topic) -> None:
        """Reload the writers' view of the table if the operator changed its schema, partitioning or order."""
        table = topic.table.java
        metadata = table.operations().current()
        ids = (metadata.currentSchemaId(), metadata.defaultSpecId(), metadata.defaultSortOrderId())
        if topic.table.ids is not None and topic.table.ids != ids:
            if self._tables.following(table) != topic.table.following or self._tables.followed(table, topic.job).texts:
                raise NotReadyError(
                    f"table {topic.job.table.identifier}: columns were renamed or dropped; the driver reloads the table"
                )
            topic.table.spec = self._tables.spec(table)
        topic.table.ids = ids


def _live(topic: Topic) -> TopicInfo:
    if topic.log.live is None:
        raise topic.log.error or NotReadyError(
            f"topic {topic.job.topic}: waiting for the brokers to describe it", reason=Reason.STARTING
        )
    if topic.job.topic_id is not None and topic.log.live.topic_id != topic.job.topic_id:
        raise NotReadyError(
            f"topic {topic.job.topic}: the topic has id {topic.log.live.topic_id}, but the job contract has id {topic.job.topic_id}, "
            "because the topic was re-created; waiting for the operator to update the job contract"
        )
    return topic.log.live


def position(topic: Topic, live: TopicInfo) -> None:
    """Let ``topic`` continue after the newest ingestion commit, if that was of ``live``, else from its start."""
    landed = topic.table.landed
    if landed is not None and landed.topic_id != live.topic_id:
        landed = None
    # A partition without an offset is new, or its topic is: it begins at the log's start, which the round looks up.
    topic.reading.position = {part: landed.offsets.get(part, 0) if landed else 0 for part in live.partitions}
    topic.log.limit_cuts(topic.reading.position)
    topic.reading.leader_epochs = dict(landed.leader_epochs) if landed else {}
    if topic.reading.topic is not None and topic.reading.topic.topic_id != live.topic_id:
        topic.reading.older = None
    topic.reading.topic = live
    topic.reading.empty_since, topic.reading.empty_records = None, 0
    topic.reading.deleted = {}
