"""The properties of tables that Firn creates."""

from firn.model.jobs import TableTarget
from firn.tables import table_properties
from firn.tables.ownership import Claimant

SPEC = {
    "write.parquet.compression-codec": "zstd",
    "write.metadata.metrics.default": "counts",
    "write.metadata.metrics.column.id": "full",
    "write.parquet.bloom-filter-enabled.column.id": "true",
    "write.parquet.bloom-filter-fpp.column.id": "0.01",
    "write.parquet.stats-enabled.column.id": "false",
    "write.orc.bloom.filter.columns": "id",
    "write.data.path": "s3://elsewhere/orders",
}


def test_dead_letters_inherit_properties_without_columns_or_paths() -> None:
    assert table_properties.dead_letter_properties(SPEC) == {
        "write.parquet.compression-codec": "zstd",
        "write.metadata.metrics.default": "counts",
    }


def test_only_properties_set_by_the_spec_are_removed() -> None:
    table = {
        **table_properties.CREATED_WITH,
        **table_properties.marks(Claimant("uid"), {"a": "1", "b": "2"}),
        "a": "1",
        "b": "2",
    }
    table["somebody.s"] = "own"
    wanted = {"b": "2", **table_properties.marks(Claimant("uid"), {"b": "2"})}
    assert table_properties.dropped_by_spec(table, wanted) == {"a"}
    nothing = table_properties.marks(Claimant("uid"), {})
    assert table_properties.dropped_by_spec(table, nothing) == {"a", "b", table_properties.MANAGED}
    assert table_properties.dropped_by_spec({"a": "1"}, nothing) == frozenset()


def test_layout_and_properties_that_another_owner_set_stay() -> None:
    target = TableTarget(catalog="c", namespace="n", name="t", partition_by=("id",))
    old = table_properties.marks(Claimant("uid-old"), {"a": "1"}, table_properties.layout_set_by(target)) | {"a": "1"}
    wanted = table_properties.marks(Claimant("uid-new"), {})
    adopted = table_properties.set_for(Claimant("uid-new"), old)
    assert table_properties.wanted_terms(table_properties.PARTITION_BY, None, adopted) is None
    assert table_properties.dropped_by_spec(adopted, wanted) == {table_properties.MANAGED, table_properties.LAYOUT}
    kept = table_properties.set_for(Claimant("uid-old"), old)
    assert table_properties.wanted_terms(table_properties.PARTITION_BY, None, kept) == ()


def test_only_a_layout_set_by_an_earlier_spec_is_removed() -> None:
    target = TableTarget(catalog="c", namespace="n", name="t", partition_by=("id",))
    marked = table_properties.marks(Claimant("uid"), {}, table_properties.layout_set_by(target))
    wanted = table_properties.wanted_terms
    assert wanted(table_properties.PARTITION_BY, None, marked) == ()
    assert wanted(table_properties.SORT_BY, None, marked) is None
    assert wanted(table_properties.PARTITION_BY, ("b",), marked) == ("b",)
    assert wanted(table_properties.SORT_BY, (), {}) == ()
    assert table_properties.LAYOUT in table_properties.dropped_by_spec(
        marked, table_properties.marks(Claimant("uid"), {})
    )
