from pathlib import Path
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError

from firn.model.config import Executors
from firn.model.errors import InvalidSpecError, NotReadyError
from firn.model.jobs import CatalogConnection, GroupSettings, KafkaConnection
from firn_spark import documents, session
from firn_spark.credentials import read_secret, without_secrets
from firn_spark.kafka import clients
from firn_spark.tables.catalogs import Catalogs, catalog_conf, catalog_properties
from firn_spark.worker.fetching.access import access

POD = {"POD_NAME": "firn-ingest-default-0", "POD_IP": "10.0.0.7"}


def settings(**changes: object) -> GroupSettings:
    return GroupSettings(**{"group": "default", "namespace": "firn-system", "cores": 2, "heap": "1g", **changes})


def test_one_process_serves_a_small_group() -> None:
    conf = session.spark_conf(settings(spark_conf={"spark.x": "1"}), {}, "a1")
    assert conf["spark.master"] == "local[2,2]"
    assert conf["spark.driver.memory"] == "1g"
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.x"] == "1"


def test_the_driver_maps_the_images_class_archive() -> None:
    conf = session.spark_conf(settings(), {"FIRN_CLASS_ARCHIVE": "/opt/firn/classes.jsa"}, "a1")
    options = conf["spark.driver.extraJavaOptions"].split()
    assert "-XX:SharedArchiveFile=/opt/firn/classes.jsa" in options
    # A JVM that relocates the archive has a copy of its own of each page.
    assert options.index("-XX:+UnlockDiagnosticVMOptions") < options.index("-XX:ArchiveRelocationMode=0")
    assert "SharedArchiveFile" not in session.spark_conf(settings(), {}, "a1")["spark.driver.extraJavaOptions"]


def test_a_jvm_without_rows_starts_fast_and_small() -> None:
    conf = session.spark_conf(settings(heap="384m"), {}, "a1")
    assert "-XX:TieredStopAtLevel=1" in conf["spark.driver.extraJavaOptions"].split()
    assert "spark.sql.extensions" not in conf
    # Spark refuses a heap of less than one and a half times the bytes that it keeps free.
    assert 1.5 * int(conf["spark.testing.reservedMemory"]) < 384 << 20


def test_the_sql_session_starts_at_its_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    sql = SimpleNamespace(read="reader", conf=SimpleNamespace(set=lambda key, _: started.append(key)))
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=SimpleNamespace(getOrCreate=lambda: sql)))
    spark = session.Spark(SimpleNamespace(_jvm="jvm", _jsc="context"), {"spark.sql.catalog.lake": "x"})  # type: ignore[arg-type]
    assert not started
    assert (spark.read, spark.read) == ("reader", "reader")
    assert started == ["spark.sql.catalog.lake"]


def test_executors_are_pods_of_their_own_attempt() -> None:
    group = settings(
        executors=Executors(instances=3, cores=2, memory="4g"),
        executor_image="firn-spark:1",
        service_account="firn-ingest",
    )
    conf = session.spark_conf(group, POD, "abc123")
    assert conf["spark.master"].startswith("k8s://")
    assert conf["spark.driver.host"] == "firn-ingest-default.firn-system.svc"
    assert conf["spark.driver.bindAddress"] == POD["POD_IP"]
    assert conf["spark.kubernetes.driver.pod.name"] == POD["POD_NAME"]
    assert conf["spark.kubernetes.executor.podNamePrefix"].endswith("abc123")
    assert conf["spark.executor.instances"] == "3"
    assert conf[f"spark.kubernetes.executor.label.{session.EXECUTOR_LABEL}"] == "abc123"


def test_executors_and_driver_authenticate_and_encrypt() -> None:
    group = settings(executors=Executors(instances=1), executor_image="firn-spark:1")
    conf = session.spark_conf(group, POD, "abc123")
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == "true"
    # A connection must not fall back to another protocol.
    assert conf["spark.network.crypto.saslFallback"] == "false"
    # Spark creates its own secret if none is set. A secret in the configuration would be on the JVM's command line.
    assert "spark.authenticate.secret" not in conf
    assert "spark.authenticate" not in session.spark_conf(settings(), {}, "a1")


@pytest.mark.parametrize(("image", "environment"), [(None, POD), ("firn-spark:1", {})])
def test_executors_require_an_image_and_the_name_of_the_pod(image: str | None, environment: dict[str, str]) -> None:
    with pytest.raises(InvalidSpecError):
        session.spark_conf(settings(executors=Executors(instances=1), executor_image=image), environment, "a")


def test_secrets_reach_catalogs_and_never_the_spark_configuration(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hush hush\n")
    catalog = CatalogConnection(
        type="sql",
        uri="postgresql://db:5432/lake",
        warehouse="s3://bucket/lake",
        properties={"user": "firn", "s3.endpoint": "http://s3"},
        secret_properties={"password": str(tmp_path / "password"), "s3.secret-access-key": str(tmp_path / "password")},
    )
    group = settings(catalogs={"lake": catalog})
    assert "hush" not in str(session.spark_conf(group, {}, "a"))
    properties = catalog_properties("lake", catalog)
    assert properties["uri"].startswith("jdbc:postgresql://db:5432/lake?")
    assert (properties["jdbc.user"], properties["jdbc.password"], properties["s3.secret-access-key"]) == (
        "firn",
        "hush hush",
        "hush hush",
    )
    assert properties["jdbc.schema-version"] == "V1"
    assert properties["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert "hush" not in without_secrets("password=hush user; s3.secret-access-key: hush, jdbc://u:hush@db")


def test_each_catalog_type_has_its_properties() -> None:
    rest = CatalogConnection(type="rest", uri="http://nessie/iceberg", warehouse="w")
    assert catalog_properties("r", rest) == {
        "type": "rest",
        "uri": "http://nessie/iceberg",
        "warehouse": "w",
        "cache-enabled": "false",
    }
    sqlite = CatalogConnection(type="sql", uri="sqlite:////var/lake.db", warehouse="/var/lake")
    assert catalog_properties("s", sqlite)["uri"] == "jdbc:sqlite:/var/lake.db"
    with pytest.raises(InvalidSpecError, match="catalog odd"):
        catalog_properties("odd", CatalogConnection(type="sql", uri="oracle://x", warehouse="w"))


def test_a_password_may_begin_and_end_with_a_space(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(" a b \r\n")
    assert read_secret(str(tmp_path / "password")) == " a b "


def test_a_catalog_without_its_secrets_blocks_no_other() -> None:
    well = CatalogConnection(type="rest", uri="http://nessie/iceberg", warehouse="w")
    lost = well.model_copy(update={"secret_properties": {"token": "/nowhere/token"}})
    conf = catalog_conf(settings(catalogs={"well": well, "lost": lost}))
    assert {key.split(".")[3] for key in conf} == {"well"}


def test_an_error_names_the_file_of_a_missing_secret() -> None:
    with pytest.raises(NotReadyError, match="/nowhere/password"):
        read_secret("/nowhere/password")


def test_both_clients_get_the_same_connection(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key", "password"):
        (tmp_path / name).write_text(f'the "{name}"\n')
    connection = KafkaConnection(
        bootstrap_servers="b:9093",
        protocol="SASL_SSL",
        ca_path=str(tmp_path / "ca"),
        certificate_path=str(tmp_path / "cert"),
        certificate_key_path=str(tmp_path / "key"),
        verify_hostname=False,
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="firn",
        sasl_password_path=str(tmp_path / "password"),
    )
    client = clients.client_config(connection)
    assert (client["ssl.ca.pem"], client["sasl.password"]) == ('the "ca"', 'the "password"')
    assert client["ssl.endpoint.identification.algorithm"] == "none"
    fetching = access(connection)
    assert (fetching.authority, fetching.password) == ('the "ca"', 'the "password"')
    assert (fetching.certificate, fetching.certificate_key) == ('the "cert"', 'the "key"')
    assert 'the "password"' not in repr(fetching)
    assert 'the "key"' not in repr(fetching)
    java = clients.spark_options(connection)
    assert java["kafka.ssl.truststore.certificates"] == 'the "ca"'
    assert java["kafka.ssl.keystore.key"] == 'the "key"'
    assert java["kafka.ssl.endpoint.identification.algorithm"] == ""
    assert java["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="firn" password="the \\"password\\"";'
    )
    assert java["kafka.isolation.level"] == "read_committed"


@pytest.mark.parametrize("text", ["", "{}", '{"group": "g", "cores": "many"}'])
def test_an_error_names_the_file_of_unreadable_settings(tmp_path: Path, text: str) -> None:
    file = tmp_path / "group.json"
    file.write_text(text)
    with pytest.raises(InvalidSpecError, match=r"group\.json"):
        documents.load(GroupSettings, str(file))


class Refusal(Py4JJavaError):  # type: ignore[misc]
    """A Java exception without a JVM."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def catalogs(answers: list[object]) -> Catalogs:
    """Return a catalog ``lake`` that opens with these answers of Iceberg, one for each attempt."""

    def build(*_: object) -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    iceberg = SimpleNamespace(CatalogUtil=SimpleNamespace(buildIcebergCatalog=build))
    spark = SimpleNamespace(
        _jvm=SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(iceberg=iceberg))),
        _jsc=SimpleNamespace(hadoopConfiguration=lambda: None),
    )
    lake = CatalogConnection(type="sql", uri="postgresql://db:5432/lake", warehouse="file:///lake")
    return Catalogs(spark, settings(catalogs={"lake": lake}))


def test_two_processes_may_open_a_new_catalog_concurrently() -> None:
    assert (
        catalogs([Refusal('column "iceberg_type" of relation "iceberg_tables" already exists'), "open"]).get("lake")
        == "open"
    )


def test_a_catalog_that_cannot_be_opened_is_not_retried() -> None:
    with pytest.raises(Refusal, match="refused"):
        catalogs([Refusal("connection refused"), "open"]).get("lake")


def test_a_catalog_that_lost_its_connection_is_reopened_once() -> None:
    opened = catalogs(["first", "second"])
    first = opened.get("lake")
    assert opened.get("lake") is first
    opened.forget("lake", first)
    opened.forget("lake", first)
    second = opened.get("lake")
    assert second == "second"
    # Another thread that still has the first one reports the same error later.
    opened.forget("lake", first)
    assert opened.get("lake") is second


def test_a_catalog_is_not_reopened_for_another_token_all_the_time() -> None:
    opened = catalogs(["first", "second"])
    assert opened.forget("lake", opened.get("lake"), 60)
    second = opened.get("lake")
    assert not opened.forget("lake", second, 60)
    assert opened.get("lake") is second


def test_a_failed_close_is_neither_raised_nor_repeated() -> None:
    class Opened:
        closed = 0

        def close(self) -> None:
            self.closed += 1
            raise Refusal("the connection is gone")

    opened = Opened()
    lake = catalogs([opened])
    lake.get("lake")
    lake.close()
    lake.close()
    assert opened.closed == 1
