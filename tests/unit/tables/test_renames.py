"""Renamed columns keep their field ids, and the table keeps their earlier names."""

import json
from typing import Any

import pytest

from firn.model.jobs import Column, Rename, TableTarget
from firn.tables import renames
from firn.tables.renames import FORMER_NAMES, former_names, moved, planned, read_former_names, renamed_columns


def renamed(*pairs: str) -> tuple[Rename, ...]:
    """Return renames written as ``old>new``."""
    return tuple(Rename(old=old, new=new) for old, new in (pair.split(">") for pair in pairs))


def table(*fields: tuple[int, str, Any]) -> list[dict[str, Any]]:
    return [{"id": number, "name": name, "required": False, "type": kind} for number, name, kind in fields]


def struct(*fields: tuple[int, str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": table(*fields)}


CUSTOMERS = table(
    (1, "id", "long"),
    (2, "customer", struct((3, "mail", "string"), (4, "name", "string"))),
    (5, "items", {"type": "list", "element-id": 6, "element-required": False, "element": struct((7, "no", "int"))}),
)


@pytest.mark.parametrize(
    ("pairs", "kinds"),
    [
        (["id>number"], {"number": "long", "customer": "struct<mail: string>", "items": "list<struct<no: int>>"}),
        (["customer.mail>customer.email"], {"id": "long", "customer": "struct<email: string>", "items": "list<struct<no: int>>"}),
        (["items.element.no>items.element.sku"], {"id": "long", "customer": "struct<mail: string>", "items": "list<struct<sku: int>>"}),
        (["customer>client", "client.mail>client.email"], {"id": "long", "client": "struct<email: string>", "items": "list<struct<no: int>>"}),
        (["id>a", "a>b"], {"b": "long", "customer": "struct<mail: string>", "items": "list<struct<no: int>>"}),
        (["id>items", "gone>other", "id.x>id.y"], {"id": "long", "customer": "struct<mail: string>", "items": "list<struct<no: int>>"}),
    ],
)  # fmt: skip
def test_columns_get_their_later_names(pairs: list[str], kinds: dict[str, str]) -> None:
    given = {"id": "long", "customer": "struct<mail: string>", "items": "list<struct<no: int>>"}
    columns = [Column(name=name, type=kind, doc=name) for name, kind in given.items()]
    later = renamed_columns(columns, renamed(*pairs))
    assert {column.name: column.type for column in later} == kinds
    assert [column.doc for column in later] == list(given)


def test_a_table_plans_each_column_once_with_its_last_name() -> None:
    change = planned(CUSTOMERS, {}, renamed("id>a", "a>b", "customer>client", "client.mail>client.email"))
    assert change.steps == (("id", "b"), ("customer", "client"), ("customer.mail", "email"))
    assert change.former == {1: ("id", "a"), 2: ("customer",), 3: ("mail",)}
    assert json.loads(change.properties[FORMER_NAMES]) == {"1": ["id", "a"], "2": ["customer"], "3": ["mail"]}
    assert [(each.old, each.new) for each in change.following] == [
        ("id", "b"), ("a", "b"), ("customer", "client"), ("client.mail", "client.email"),
    ]  # fmt: skip
    assert (change.collisions, change.missing) == ((), None)


def test_a_rename_that_was_made_changes_nothing() -> None:
    first = planned(CUSTOMERS, {}, renamed("id>a", "a>b"))
    again = planned(first.fields, first.former, renamed("id>a", "a>b"))
    assert (again.steps, again.former, again.missing) == ((), first.former, None)


def test_a_column_can_get_an_earlier_name_back() -> None:
    first = planned(CUSTOMERS, {}, renamed("id>a"))
    back = planned(first.fields, first.former, renamed("a>id"))
    assert back.steps == (("a", "id"),)
    assert [(each.old, each.new) for each in back.following] == [("a", "id")]


def test_an_alias_of_an_older_schema_gives_no_column_its_earlier_name_back() -> None:
    first = planned(CUSTOMERS, {}, renamed("id>a"))
    older = tuple(each.model_copy(update={"by_schema": True}) for each in renamed("a>id", "a>b"))
    change = planned(first.fields, first.former, (), older)
    assert change.steps == (("a", "b"),)
    assert change.followed == older[1:]
    assert planned(change.fields, change.former, older[:1]).steps == ()


def test_a_column_follows_its_field_from_an_earlier_name_to_a_new_one() -> None:
    first = planned(CUSTOMERS, {}, renamed("id>a"))
    aliases = tuple(each.model_copy(update={"by_schema": True}) for each in renamed("id>a", "a>id", "id>b"))
    change = planned(first.fields, first.former, (), aliases)
    assert (change.steps, change.former) == ((("a", "b"),), {1: ("id", "a")})
    assert planned(change.fields, change.former, (), aliases).steps == ()
    assert planned(change.fields, change.former, (), aliases).former == change.former


def test_a_member_follows_its_field_after_the_struct_got_an_earlier_name_back() -> None:
    first = planned(CUSTOMERS, {}, renamed("customer>buyer", "buyer>customer"))
    pairs = ("customer>buyer", "buyer.mail>buyer.email", "buyer.m>buyer.email")
    aliases = tuple(each.model_copy(update={"by_schema": True}) for each in renamed(*pairs))
    change = planned(first.fields, first.former, (), aliases)
    assert (change.steps, change.collisions) == ((("customer.mail", "email"),), ())
    assert change.former == {2: ("buyer",), 3: ("mail", "m")}
    columns = [Column(name="buyer", type="struct<email: string>")]
    following = (*change.followed, *change.following)
    assert [(each.name, each.type) for each in renamed_columns(columns, following)] == [
        ("customer", "struct<email: string>")
    ]
    again = planned(change.fields, change.former, (), aliases)
    assert (again.steps, again.former) == ((), change.former)


def test_a_table_learns_aliases_that_it_never_had() -> None:
    aliases = tuple(each.model_copy(update={"by_schema": True}) for each in renamed("no>id", "x>id", "no>customer"))
    change = planned(CUSTOMERS, {}, aliases)
    assert (change.steps, change.former) == ((), {1: ("no", "x")})
    assert json.loads(change.properties[FORMER_NAMES]) == {"1": ["no", "x"]}
    assert planned(change.fields, change.former, aliases).properties == {}


def test_no_column_gets_the_earlier_name_of_another_one() -> None:
    first = planned(CUSTOMERS, {}, renamed("id>a"))
    assert planned(first.fields, first.former, renamed("customer>id")).collisions == renamed("customer>id")


def test_a_column_of_each_name_and_a_column_of_neither_are_reported() -> None:
    change = planned(CUSTOMERS, {}, renamed("customer.mail>customer.name", "gone>other"))
    assert change.steps == ()
    assert change.collisions == renamed("customer.mail>customer.name")
    assert change.missing == Rename(old="gone", new="other")


def test_a_name_that_differs_only_in_case_belongs_to_its_column() -> None:
    assert planned(CUSTOMERS, {}, renamed("customer>ID")).collisions == renamed("customer>ID")
    assert planned(CUSTOMERS, {}, renamed("customer>Customer")).collisions == ()


def test_former_names_belong_to_a_field_unless_another_one_has_the_name() -> None:
    columns = [Column(name="b", type="long"), Column(name="client", type="struct<email: string, mail: int>")]
    former = former_names(
        columns, renamed("x>b", "customer>client", "client.mail>client.email", "client.m>client.email")
    )
    assert (former.of("b"), former.of("client")) == (("x",), ("customer",))
    assert former.at("client").of("email") == ("m",)


@pytest.mark.parametrize("value", ["", "no JSON", "[]", '{"x": ["a"]}', '{"1": 3}', "null"])
def test_a_property_that_another_client_damaged_counts_as_none(value: str) -> None:
    assert read_former_names({FORMER_NAMES: value}) == {}


def test_a_new_column_cannot_have_the_earlier_name_of_another_one() -> None:
    change = planned(CUSTOMERS, {}, renamed("customer.mail>customer.email"))

    def reused(kind: str, name: str = "customer") -> tuple[str, str] | None:
        return renames.reused(change.fields, change.former, [Column(name=name, type=kind)])

    assert reused("struct<email: string, mail: string>") == ("customer.mail", "email")
    assert reused("struct<email: string, new: string>") is None
    assert reused("struct<mail: string>", "other") is None


def test_terms_of_a_target_have_the_names_of_the_table() -> None:
    target = TableTarget(
        catalog="lake",
        namespace="shop",
        name="orders",
        partition_by=("bucket(4, carrier)", "s.code", "at"),
        sort_by=("carrier desc",),
    )
    following = [Rename(old="carrier", new="airline"), Rename(old="s.code", new="s.airport")]
    named = renames.named_target(target, following)
    assert named.partition_by == ("bucket(4, airline)", "s.airport", "at")
    assert named.sort_by == ("airline desc nulls last",)
    bare = target.model_copy(update={"partition_by": None, "sort_by": ()})
    assert renames.named_target(bare, following) == bare
    assert renames.named_target(target, ()) is target


def test_a_rename_of_a_member_is_none_of_a_field_whose_name_has_a_dot() -> None:
    columns = [Column(name="user", type="struct<name: int>"), Column(name="user.name", type="string")]
    former = former_names(columns, renamed("user.nick>user.name"))
    assert former.of("user.name") == ()
    assert former.at("user").of("name") == ("nick",)
    assert moved(("user.nick",), renamed("user.nick>user.name")) == ("user.nick",)
    assert moved(("user", "nick"), renamed("user.nick>user.name")) == ("user", "name")
