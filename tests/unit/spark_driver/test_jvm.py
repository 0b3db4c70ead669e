"""Names of the JVM: each part is looked up once."""

from typing import Any

from py4j.java_gateway import JavaPackage

from firn_spark.jvm import JavaNames


class Package(JavaPackage):  # type: ignore[misc]
    """A package of packages, whose names in capital letters are fields with changing values."""

    def __init__(self, lookups: list[str]) -> None:
        self.lookups = lookups

    def __getattr__(self, name: str) -> Any:
        self.lookups.append(name)
        return len(self.lookups) if name.isupper() else Package(self.lookups)


def test_the_parts_of_a_name_are_looked_up_once() -> None:
    lookups: list[str] = []
    names = JavaNames(Package(lookups))
    assert names.org.apache.iceberg is names.org.apache.iceberg
    assert names.org.apache is not names.java
    assert lookups == ["org", "apache", "iceberg", "java"]


def test_the_value_of_a_field_is_read_each_time() -> None:
    names = JavaNames(Package([]))
    assert names.org.COUNT < names.org.COUNT
