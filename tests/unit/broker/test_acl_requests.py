"""DescribeAcls, CreateAcls and DeleteAcls answer as Kafka's do (KIP-140, KIP-290)."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from firn_broker.access_types import Acl, Operation, PatternType, Permission, ResourceType
from firn_broker.apis import describe_acls
from tests.fakes.virtual_time import run
from tests.unit.broker.whole import Asked, Shared, broker, counting_turns

DESCRIBE, CREATE, DELETE = 29, 30, 31
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER = 2, 3, 4
ANA, BEN = "User:shop.ana", "User:shop.ben"


def acl(
    principal: str = ANA, name: str = "orders", pattern: int = LITERAL, *, type: int = TOPIC, host: str = "*",
    operation: int = Operation.READ, permission: int = Permission.ALLOW,
) -> Acl:  # fmt: skip
    return Acl(
        principal, host, ResourceType(type), name, PatternType(pattern), Operation(operation), Permission(permission)
    )


def creation(acl: Acl, **other: Any) -> dict[str, Any]:
    return {
        "resource_type": acl.resource_type, "resource_name": acl.name, "resource_pattern_type": acl.pattern,
        "principal": acl.principal, "host": acl.host, "operation": acl.operation, "permission_type": acl.permission, **other,
    }  # fmt: skip


def filtering(**fields: Any) -> dict[str, Any]:
    return {
        "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY, "principal_filter": None,
        "host_filter": None, "operation": ANY, "permission_type": ANY, **fields,
    }  # fmt: skip


async def create(asked: Asked, *acls: Acl, version: int = 3) -> list[ErrorCode]:
    answer = await asked.ask(CREATE, version, creations=[creation(each) for each in acls])
    return [each.error_code for each in answer.results]


async def describe(asked: Asked, version: int = 3, **fields: Any) -> list[Acl]:
    answer = await asked.ask(DESCRIBE, version, **filtering(**fields))
    assert not answer.error_code, answer.error_message
    patterns = [(each.resource_type, each.resource_name, each.pattern_type) for each in answer.resources]
    assert len(set(patterns)) == len(patterns)
    return sorted(
        acl(
            each.principal, resource.resource_name, resource.pattern_type, type=resource.resource_type, host=each.host,
            operation=each.operation, permission=each.permission_type,
        )
        for resource in answer.resources
        for each in resource.acls
    )  # fmt: skip


ALL = [
    acl(),
    acl(operation=Operation.WRITE, permission=Permission.DENY, host="10.0.0.1"),
    acl(BEN, "or", PREFIXED),
    acl(BEN, "orders", PREFIXED),
    acl(BEN, "ordersx", PREFIXED),
    acl("User:*", "*"),
    acl(BEN, "orders", type=GROUP),
    acl(ANA, "kafka-cluster", type=CLUSTER, operation=Operation.IDEMPOTENT_WRITE),
]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_created_acls_are_described(version: int) -> None:
    async def story() -> None:
        async with broker() as asked:
            assert await create(asked, *ALL, ALL[0], version=version) == [ErrorCode.none] * (len(ALL) + 1)
            assert await describe(asked, version) == sorted(ALL)

    run(story())


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"principal_filter": ANA}, {0, 1, 7}),
        ({"principal_filter": "User:nobody"}, set()),
        ({"host_filter": "*"}, {0, 2, 3, 4, 5, 6, 7}),
        ({"operation": Operation.READ}, {0, 2, 3, 4, 5, 6}),
        ({"permission_type": Permission.DENY}, {1}),
        ({"resource_type_filter": TOPIC}, {0, 1, 2, 3, 4, 5}),
        ({"resource_name_filter": "orders"}, {0, 1, 3, 6}),
        ({"pattern_type_filter": LITERAL, "resource_name_filter": "orders"}, {0, 1, 6}),
        ({"pattern_type_filter": PREFIXED, "resource_name_filter": "orders"}, {3}),
        ({"pattern_type_filter": PREFIXED}, {2, 3, 4}),
        ({"pattern_type_filter": LITERAL, "resource_name_filter": "*"}, {5}),
        ({"pattern_type_filter": MATCH, "resource_name_filter": "orders"}, {0, 1, 2, 3, 5, 6}),
        ({"pattern_type_filter": MATCH, "resource_name_filter": "other"}, {5}),
        ({"pattern_type_filter": MATCH}, set(range(8))),
        ({"pattern_type_filter": MATCH, "resource_name_filter": "orders", "resource_type_filter": GROUP}, {6}),
        ({"principal_filter": BEN, "resource_name_filter": "orders", "operation": Operation.READ}, {3, 6}),
    ],
)
def test_filters_match_as_in_kafka(fields: dict[str, Any], found: set[int]) -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, *ALL)
            assert await describe(asked, **fields) == sorted(ALL[index] for index in found)
            answer = await asked.ask(DELETE, 3, filters=[filtering(**fields)])
            (result,) = answer.filter_results
            assert len(result.matching_acls) == len(found)
            assert await describe(asked) == sorted(ALL[index] for index in set(range(8)) - found)

    run(story())


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": ANY},
        {"resource_type": 0},
        {"resource_type": 99},
        {"resource_pattern_type": ANY},
        {"resource_pattern_type": MATCH},
        {"resource_pattern_type": 9},
        {"operation": ANY},
        {"operation": 99},
        {"permission_type": ANY},
        {"permission_type": 0},
        {"resource_name": ""},
        {"resource_type": CLUSTER},
        {"principal": "ana"},
        {"principal": ""},
        {"host": ""},
        {"resource_name": "a\0b"},
        {"principal": "User:" + "a" * 2000},
    ],
)
def test_an_invalid_acl_is_not_created(wrong: dict[str, Any]) -> None:
    async def story() -> None:
        async with broker() as asked:
            answer = await asked.ask(CREATE, 3, creations=[creation(acl(), **wrong), creation(acl(BEN))])
            first, second = answer.results
            assert (first.error_code, bool(first.error_message)) == (ErrorCode.invalid_request, True)
            assert (second.error_code, second.error_message) == (ErrorCode.none, None)
            assert await describe(asked) == [acl(BEN)]

    run(story())


def test_a_cluster_has_at_most_as_many_acls_as_the_setting_says() -> None:
    async def story() -> None:
        async with broker(authorization={"max_acls": 2}) as asked:
            assert await create(asked, acl(), acl(BEN)) == [ErrorCode.none] * 2
            answer = await asked.ask(
                CREATE, 3, creations=[creation(acl(name="third")), creation(acl(), host=""), creation(acl())]
            )
            assert [each.error_code for each in answer.results] == [
                ErrorCode.policy_violation, ErrorCode.invalid_request, ErrorCode.policy_violation,
            ]  # fmt: skip
            assert "authorization.maxAcls" in answer.results[0].error_message
            assert await describe(asked) == [acl(), acl(BEN)]
            assert await create(asked, acl(BEN)) == [ErrorCode.none], "it exists"

    run(story())


@pytest.mark.parametrize("unknown", ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"])
def test_a_filter_with_an_unknown_code_is_rejected(unknown: str) -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, acl(), acl(BEN))
            answer = await asked.ask(DESCRIBE, 3, **filtering(**{unknown: 99}))
            assert (answer.error_code, answer.resources) == (ErrorCode.invalid_request, ())
            answer = await asked.ask(DELETE, 3, filters=[filtering(**{unknown: 0}), filtering(principal_filter=BEN)])
            assert [each.error_code for each in answer.filter_results] == [ErrorCode.invalid_request, ErrorCode.none]
            assert await describe(asked) == [acl()]

    run(story())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_each_filter_of_a_deletion_lists_its_acls(version: int) -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, *ALL)
            answer = await asked.ask(
                DELETE, version, filters=[filtering(principal_filter=ANA), filtering(resource_type_filter=CLUSTER)]
            )
            both, one = answer.filter_results
            assert (len(both.matching_acls), len(one.matching_acls)) == (3, 1)
            (cluster,) = one.matching_acls
            assert cluster in both.matching_acls
            assert (cluster.principal, cluster.resource_name, cluster.operation) == (
                ANA, "kafka-cluster", Operation.IDEMPOTENT_WRITE,
            )  # fmt: skip
            assert len(await describe(asked)) == 5

    run(story())


def test_another_broker_finds_acls_at_once() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, seed=1) as first, broker(shared, seed=2) as second:
            await create(first, acl())
            assert await describe(second) == [acl()]
            await create(first, acl(BEN))
            await second.ask(DELETE, 3, filters=[filtering()])
            assert await describe(first) == []

    run(story())


def test_other_requests_are_served_during_a_long_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe_acls, "COMPARED", 10)

    async def story() -> None:
        async with broker() as asked:
            await create(asked, *(acl(name=f"t{number}") for number in range(500)))
            found, turns = await counting_turns(describe(asked, resource_name_filter="t7"))
            assert found == [acl(name="t7")]
            assert turns >= 50

    run(story())
