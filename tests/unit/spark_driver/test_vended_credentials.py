"""Credentials that a catalog hands out with a table: they are renewed before a round if they expire soon."""

import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model.errors import NotReadyError
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.jvm import JavaNames
from firn_spark.tables.java_errors import Cause
from firn_spark.tables.java_tables import Tables
from firn_spark.tables.vended import RENEW_MS, expires_ms, io_properties
from firn_spark.worker.data_files import TableSpec
from tests.fakes.lake.java import JavaMap
from tests.unit.spark_driver.topic import topic

S3, GCS, ADLS = "s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at", "adls.sas-token-expires-at-ms.account"


@pytest.mark.parametrize(
    ("properties", "expected"),
    [({}, None), ({S3: "7"}, 7), ({S3: "7", GCS: "5"}, 5), ({ADLS: "3"}, 3), ({S3: "soon"}, None)],
)
def test_the_first_credential_to_expire_counts(properties: dict[str, str], expected: int | None) -> None:
    assert expires_ms(properties) == expected


@dataclass
class FileIO:
    """Iceberg's FileIO with storage credentials: prefix -> properties."""

    by_prefix: dict[str, dict[str, str]]

    def properties(self) -> JavaMap:
        return JavaMap({"s3.endpoint": "e", "s3.access-key-id": "of all"})

    def credentials(self) -> list[Any]:
        def credential(prefix: str, config: dict[str, str]) -> Any:
            return SimpleNamespace(prefix=lambda: prefix, config=lambda: JavaMap(config))

        return [credential(prefix, config) for prefix, config in self.by_prefix.items()]


def jvm(supports: bool) -> Any:
    loader = SimpleNamespace(loadClass=lambda name: SimpleNamespace(isInstance=lambda io: supports))
    thread = SimpleNamespace(getContextClassLoader=lambda: loader)
    lang = SimpleNamespace(Thread=SimpleNamespace(currentThread=lambda: thread))
    return JavaNames(SimpleNamespace(java=SimpleNamespace(lang=lang)))


def test_the_credentials_of_the_longest_prefix_count() -> None:
    keys = {"s3://b": {"s3.access-key-id": "short"}, "s3://b/wh": {"s3.access-key-id": "long"}, "s3://c": {}}
    assert io_properties(jvm(supports=True), FileIO(keys), "s3://b/wh/t") == {
        "s3.endpoint": "e",
        "s3.access-key-id": "long",
    }
    for supports, location in ((True, "s3://elsewhere/t"), (False, "s3://b/wh/t")):
        assert io_properties(jvm(supports), FileIO(keys), location)["s3.access-key-id"] == "of all"


@dataclass
class Catalog:
    """The tables of an application; each load has new credentials."""

    uuid: str = "u"
    loads: int = 0
    life_ms: int = RENEW_MS // 2
    made: list[Any] = field(default_factory=list)

    def load(self, *_: str) -> Any:
        self.loads += 1
        return SimpleNamespace(uuid=lambda: self.uuid, number=self.loads)

    def spec(self, table: Any) -> TableSpec:
        expires = {S3: str(int(time.time() * 1000) + self.life_ms)}
        return TableSpec("", "", "", "", {}, {**expires, "number": str(table.number)})


@pytest.mark.parametrize(("life_ms", "loads"), [(RENEW_MS // 2, 3), (RENEW_MS * 2, 1)], ids=["short", "long"])
def test_credentials_that_expire_soon_are_renewed_before_each_round(life_ms: int, loads: int) -> None:
    catalog = Catalog(life_ms=life_ms)
    landing = topic(claimed=True, table_uuid="u")
    landing.table.java = catalog.load()
    landing.table.spec = catalog.spec(landing.table.java)
    preparation = Preparation(None, cast(Tables, catalog), cast(Any, None), cast(Any, None), Failpoints())
    for _ in range(2):
        preparation.begin(landing)
    assert catalog.loads == loads
    assert landing.table.java.number == loads
    assert landing.table.spec is not None
    assert landing.table.spec.io["number"] == str(loads)


def test_a_replaced_table_is_prepared_again() -> None:
    catalog = Catalog()
    landing = topic(claimed=True, table_uuid="u")
    landing.table.java = catalog.load()
    landing.table.spec = catalog.spec(landing.table.java)
    catalog.uuid = "another"
    with pytest.raises(NotReadyError, match="was replaced or dropped"):
        Preparation(None, cast(Tables, catalog), cast(Any, None), cast(Any, None), Failpoints()).begin(landing)


@pytest.mark.parametrize(
    ("name", "message", "expired"),
    [
        ("org.apache.iceberg.exceptions.NotAuthorizedException", "Not authorized", True),
        ("org.apache.iceberg.exceptions.RESTException", "Unable to process (code: 419, type: x)", True),
        ("org.apache.iceberg.exceptions.RESTException", "Unable to process (code: 500, type: x)", False),
        ("org.apache.iceberg.exceptions.ForbiddenException", "Forbidden", False),
    ],
)
def test_an_expired_token_differs_from_a_missing_right(name: str, message: str, expired: bool) -> None:
    assert Cause(name, message).token_expired == expired
