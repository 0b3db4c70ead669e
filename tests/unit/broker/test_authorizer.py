"""Decisions by ACLs: the rules of Kafka's StandardAuthorizer, against an implementation that looks at every ACL."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from random import Random

import pytest

from firn_broker.access import authorizer
from firn_broker.access.audit import Audit
from firn_broker.access.authorizer import SUPPORTED, Authorizer
from firn_broker.access_types import ANY, ANY_USER, Acl, Caller, Operation, PatternType, Permission, ResourceType
from firn_broker.settings import AuthorizationSettings
from tests.fakes.clock import FakeClock

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALICE, BOB = Caller("User:alice", "10.0.0.1"), Caller("User:bob", "10.0.0.2")


class Mappings:
    """ACLs in plain mappings."""

    def __init__(self, *acls: Acl) -> None:
        self.version = 0
        self.acls: Mapping[str, Sequence[Acl]] = {}
        self.put(*acls)

    def put(self, *acls: Acl) -> None:
        ordered = sorted(acls)
        self.acls = {principal: list(of) for principal, of in groupby(ordered, lambda acl: acl.principal)}
        self.version += 1


class Known:
    """A client with a caller."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller


def deciding(directory: Mappings, **settings: object) -> Authorizer:
    checked = AuthorizationSettings.model_validate({"type": "Acl", **settings})
    return Authorizer(directory, checked, Audit(FakeClock()))


def acl(
    operation: Operation,
    name: str = "orders",
    *,
    principal: str = ALICE.principal,
    host: str = ANY,
    type: ResourceType = TOPIC,
    pattern: PatternType = LITERAL,
    permission: Permission = Permission.ALLOW,
) -> Acl:
    return Acl(principal, host, type, name, pattern, operation, permission)


READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
DENY = Permission.DENY
CASES: dict[str, tuple[list[Acl], Operation, str, bool]] = {
    "no ACL": ([], READ, "orders", False),
    "the operation": ([acl(READ)], READ, "orders", True),
    "another operation": ([acl(READ)], WRITE, "orders", False),
    "another topic": ([acl(READ)], READ, "orders2", False),
    "another principal": ([acl(READ, principal="User:bob")], READ, "orders", False),
    "all users": ([acl(READ, principal=ANY_USER)], READ, "orders", True),
    "the host": ([acl(READ, host="10.0.0.1")], READ, "orders", True),
    "another host": ([acl(READ, host="10.0.0.9")], READ, "orders", False),
    "any name": ([acl(READ, ANY)], READ, "orders", True),
    "a prefix": ([acl(READ, "ord", pattern=PREFIXED)], READ, "orders", True),
    "the whole name as a prefix": ([acl(READ, pattern=PREFIXED)], READ, "orders", True),
    "a longer prefix": ([acl(READ, "orders2", pattern=PREFIXED)], READ, "orders", False),
    "a star as a prefix is no wildcard": ([acl(READ, ANY, pattern=PREFIXED)], READ, "orders", False),
    "a literal name is no prefix": ([acl(READ, "ord")], READ, "orders", False),
    "a group of that name": ([acl(READ, type=GROUP)], READ, "orders", False),
    "every operation": ([acl(Operation.ALL)], Operation.ALTER_CONFIGS, "orders", True),
    "reading includes describing": ([acl(READ)], DESCRIBE, "orders", True),
    "writing includes describing": ([acl(WRITE)], DESCRIBE, "orders", True),
    "deleting includes describing": ([acl(Operation.DELETE)], DESCRIBE, "orders", True),
    "altering includes describing": ([acl(Operation.ALTER)], DESCRIBE, "orders", True),
    "creating does not include describing": ([acl(Operation.CREATE)], DESCRIBE, "orders", False),
    "describing does not include reading": ([acl(DESCRIBE)], READ, "orders", False),
    "altering configs includes describing them": (
        [acl(Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS, "orders", True,
    ),
    "altering does not include configs": ([acl(Operation.ALTER)], Operation.DESCRIBE_CONFIGS, "orders", False),
    "a denial wins": ([acl(READ), acl(READ, permission=DENY)], READ, "orders", False),
    "a denial for all users wins": ([acl(READ), acl(READ, principal=ANY_USER, permission=DENY)], READ, "orders", False),
    "a denial by prefix wins": ([acl(READ), acl(READ, "o", pattern=PREFIXED, permission=DENY)], READ, "orders", False),
    "a denial of any name wins": ([acl(READ), acl(READ, ANY, permission=DENY)], READ, "orders", False),
    "a denial at another host": ([acl(READ), acl(READ, host="10.0.0.9", permission=DENY)], READ, "orders", True),
    "a denial of every operation wins": ([acl(READ), acl(Operation.ALL, permission=DENY)], READ, "orders", False),
    "a denial of reading leaves describing": (
        [acl(DESCRIBE), acl(READ, permission=DENY)], DESCRIBE, "orders", True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_acls_decide(case: str) -> None:
    acls, operation, name, allowed = CASES[case]
    assert deciding(Mappings(*acls)).allows(ALICE, operation, TOPIC, name) is allowed


def test_open_authorization_allows_everything_and_reports_every_operation() -> None:
    open_to_all = Authorizer(Mappings(acl(READ, ANY, permission=DENY)), AuthorizationSettings(), Audit(FakeClock()))
    assert open_to_all.allows(ALICE, READ, TOPIC, "orders")
    assert not open_to_all.forbids(Known(ALICE), READ, TOPIC, "orders")
    assert not open_to_all.forbidden(Known(ALICE), READ, TOPIC, ["orders"])
    assert open_to_all.operations(Known(ALICE), GROUP, "g") == SUPPORTED[GROUP]
    assert open_to_all.version == 0


def test_a_super_user_may_do_what_acls_deny() -> None:
    decides = deciding(Mappings(acl(Operation.ALL, ANY, permission=DENY)), super_users=["User:alice"])
    assert decides.allows(ALICE, READ, TOPIC, "orders")
    assert decides.allows_any(ALICE, WRITE, TOPIC)
    assert not decides.allows(BOB, READ, TOPIC, "orders")


def test_an_operator_manages_everything_and_uses_no_records() -> None:
    decides = deciding(Mappings(acl(Operation.ALL, ANY, permission=DENY)), operators=["User:alice"])
    every = {operation for operation in Operation if operation > Operation.ALL}
    refused = {
        type: {operation for operation in every if not decides.allows(ALICE, operation, type, "orders")}
        for type in (TOPIC, GROUP, ResourceType.CLUSTER)
    }
    assert refused == {TOPIC: {READ, WRITE}, GROUP: {READ}, ResourceType.CLUSTER: set()}
    assert not decides.allows_any(ALICE, WRITE, TOPIC)
    assert not decides.allows(BOB, DESCRIBE, TOPIC, "orders")


def test_an_operator_may_read_what_an_acl_allows() -> None:
    decides = deciding(Mappings(acl(READ)), operators=["User:alice"])
    assert decides.allows(ALICE, READ, TOPIC, "orders")
    assert not decides.allows(ALICE, READ, TOPIC, "payments")


def test_only_resources_without_any_acl_are_open_by_default() -> None:
    decides = deciding(Mappings(acl(READ), acl(READ, "own", pattern=PREFIXED)), default="Allow")
    assert decides.allows(BOB, WRITE, TOPIC, "free")
    assert not decides.allows(BOB, READ, TOPIC, "orders")
    assert not decides.allows(BOB, READ, TOPIC, "owned")
    assert decides.allows(BOB, READ, GROUP, "orders")


def test_reported_operations_are_those_of_the_type() -> None:
    decides = deciding(Mappings(acl(Operation.ALL), acl(READ, "g", type=GROUP)))
    assert decides.operations(Known(ALICE), TOPIC, "orders") == SUPPORTED[TOPIC]
    assert decides.operations(Known(ALICE), GROUP, "g") == 1 << READ | 1 << DESCRIBE
    assert decides.operations(Known(BOB), TOPIC, "orders") == 0


def test_a_change_of_acls_changes_decisions() -> None:
    directory = Mappings()
    decides = deciding(directory)
    before = decides.version
    assert decides.forbidden(Known(ALICE), READ, TOPIC, ["orders", "other"]) == {"orders", "other"}
    directory.put(acl(READ))
    assert decides.version > before
    assert decides.forbidden(Known(ALICE), READ, TOPIC, ["orders", "other"]) == {"other"}
    directory.put()
    assert not decides.allows(ALICE, READ, TOPIC, "orders")


def test_kept_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorizer, "DECISIONS", 10)
    monkeypatch.setattr(authorizer, "CALLERS", 3)
    decides = deciding(Mappings(acl(READ, "7"), acl(READ, "x" * 300)))
    for round in range(3):
        for number in range(25):
            for caller in (ALICE, BOB, Caller("User:alice", str(round)), Caller("User:alice", str(number))):
                allowed = caller.principal == ALICE.principal and number == 7
                assert decides.allows(caller, READ, TOPIC, str(number)) is allowed
                assert decides._kept == sum(len(known.operations) for known in decides._callers.values()) <= 10
                assert len(decides._callers) <= 3
    assert decides.allows(ALICE, READ, TOPIC, "x" * 300)
    assert not decides._callers[ALICE].operations


def any_resource(acls: Sequence[Acl], caller: Caller, operation: Operation, type: ResourceType) -> bool:
    """Follow the default implementation of ``Authorizer.authorizeByResourceType``, with implied operations."""
    if one_resource(acls, caller, operation, type, "hardcode"):
        return True
    matching = [
        each for each in acls if each.resource_type is type and applies(each, caller) and covers(each, operation)
    ]
    denied = {(each.pattern, each.name) for each in matching if each.permission is DENY}
    if (LITERAL, ANY) in denied:
        return False
    for each in matching:
        if each.permission is DENY:
            continue
        if (each.pattern, each.name) == (LITERAL, ANY):
            return True
        prefixes = {(PREFIXED, each.name[:length]) for length in range(1, len(each.name) + 1)}
        if not denied & prefixes and (each.pattern is PREFIXED or (LITERAL, each.name) not in denied):
            return True
    return False


IMPLIED = {
    DESCRIBE: {READ, WRITE, Operation.DELETE, Operation.ALTER, DESCRIBE},
    Operation.DESCRIBE_CONFIGS: {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS},
}


def applies(each: Acl, caller: Caller) -> bool:
    return each.principal in (caller.principal, ANY_USER) and each.host in (ANY, caller.host)


def covers(each: Acl, operation: Operation) -> bool:
    if each.operation in (Operation.ALL, operation):
        return True
    return each.permission is Permission.ALLOW and each.operation in IMPLIED.get(operation, ())


def matches(each: Acl, type: ResourceType, name: str) -> bool:
    if each.resource_type is not type:
        return False
    return name.startswith(each.name) if each.pattern is PREFIXED else each.name in (ANY, name)


def one_resource(
    acls: Sequence[Acl], caller: Caller, operation: Operation, type: ResourceType, name: str, *, default: bool = False
) -> bool:
    """Look at every ACL."""
    about = [each for each in acls if matches(each, type, name)]
    if not about:
        return default
    found = {each.permission for each in about if applies(each, caller) and covers(each, operation)}
    return found == {Permission.ALLOW}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("default", ["Deny", "Allow"])
def test_decisions_are_those_of_a_look_at_every_acl(seed: int, default: str) -> None:
    random = Random(seed)
    callers = [Caller(f"User:{name}", host) for name in "ab" for host in ("1", "2")]
    operations = [operation for operation in Operation if operation > Operation.ANY]
    names = ["a", "ab", "abc", "b", "ba", "hardcode", "har", ANY, "*a"]
    directory = Mappings()
    decides = deciding(directory, default=default)
    for _ in range(60):
        acls = [
            Acl(
                random.choice(["User:a", "User:b", ANY_USER]), random.choice([ANY, "1"]), random.choice([TOPIC, GROUP]),
                random.choice(names), random.choice([LITERAL, PREFIXED]), random.choice(operations[:8]),
                random.choices([Permission.ALLOW, DENY], [3, 1])[0],
            )
            for _ in range(random.randrange(12))
        ]  # fmt: skip
        directory.put(*acls)
        for _ in range(150):
            caller, operation = random.choice(callers), random.choice(operations[1:])
            type, name = random.choice([TOPIC, GROUP]), random.choice([*names, "abcd", "c"])
            expected = one_resource(acls, caller, operation, type, name, default=default == "Allow")
            asked = (acls, caller, operation, type, name)
            assert decides.allows(caller, operation, type, name) is expected, asked
            if default == "Deny":
                assert decides.allows_any(caller, operation, type) is any_resource(acls, caller, operation, type), asked
