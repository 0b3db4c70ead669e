"""The access of Kafka's users (port `Access`): credentials, ACLs and quotas over Kafka's protocol, which any cluster speaks."""

import asyncio
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from firn.model.errors import AccessDeniedError, FirnError, InvalidSpecError
from firn.model.jobs import KafkaConnection
from firn_controllers.ports import AclRule, PrincipalState
from firn_operator.adapters.batches import Batch
from firn_operator.adapters.kafka import acls, credentials, quotas
from firn_operator.adapters.kafka.admin import DENIALS, REQUEST_TIMEOUT, ProfileAdmin
from firn_operator.adapters.kafka.connection import BrokerConnection

ITERATIONS = 8192
"""Iterations of a credential. Kafka's default is 4,096, and its largest number 16,384."""
_BATCH = 1000
_EACH = 16
"""Users of a batch with a request each. For more of them, one request for all users costs the brokers less."""
_CHANGES = 1000
"""ACLs of a request. Kafka refuses a request that would write more than 10,000 records (KIP-868)."""
_MISSING = frozenset({KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE})
_REFUSED = frozenset(
    {
        KafkaError.INVALID_REQUEST,
        KafkaError.INVALID_PRINCIPAL_TYPE,
        KafkaError.UNACCEPTABLE_CREDENTIAL,
        KafkaError._INVALID_ARG,
    }
)


class KafkaAccess:
    """Port `Access` over real brokers. Made and used on one event loop."""

    def __init__(self, profiles: Mapping[str, KafkaConnection]) -> None:
        self._profiles = {name: ProfileAccess(name, connection) for name, connection in profiles.items()}

    async def describe(self, profile: str, users: Sequence[str]) -> Mapping[str, PrincipalState]:
        """Return the state of each user."""
        describes = self._profiles[profile].describes
        states = await asyncio.gather(*(describes.submit(user) for user in users))
        return dict(zip(users, states, strict=True))

    async def describe_acls(self, profile: str, users: Sequence[str]) -> Mapping[str, frozenset[AclRule]]:
        """Return the ACLs of each user."""
        return await self._profiles[profile].describe_acls(users)

    async def put_credential(self, profile: str, user: str, password: str) -> None:
        """Create or replace the credential of a user."""
        await self._profiles[profile].put_credential(user, password)

    async def remove_credential(self, profile: str, user: str) -> None:
        """Delete the credential of a user."""
        await self._profiles[profile].remove_credential(user)

    async def change_acls(self, profile: str, user: str, add: frozenset[AclRule], remove: frozenset[AclRule]) -> None:
        """Create ACLs, then delete ACLs."""
        await self._profiles[profile].change_acls(user, add, remove)

    async def change_quotas(self, profile: str, user: str, quotas: Mapping[str, float | None]) -> None:
        """Set and remove quotas of a user."""
        if quotas:
            await self._profiles[profile].quota_changes.submit((user, quotas))

    def close(self) -> None:
        """Close the clients of all profiles."""
        for profile in self._profiles.values():
            profile.close()


class ProfileAccess(ProfileAdmin):
    """The admin client of a profile and its requests about users."""

    def __init__(self, name: str, connection: KafkaConnection) -> None:
        super().__init__(name, connection)
        self.describes: Batch[str, PrincipalState] = Batch(self._describe, _BATCH)
        self.quota_changes: Batch[tuple[str, quotas.Changes], None] = Batch(self._change_quotas, _BATCH)

    def kind(self, code: int, text: str) -> FirnError:
        """Return the error for one of Kafka's codes, with ``text`` as its first part."""
        if code in DENIALS:
            return AccessDeniedError(
                f"{text}; grant the operator's user Alter and Describe on the cluster, and for TopicUsers also AlterConfigs and"
                " DescribeConfigs, or correct the profile's credentials"
            )
        if code == KafkaError.SECURITY_DISABLED:
            return InvalidSpecError(
                f"{text}; set authorizer.class.name in the settings of the brokers, or choose a profile whose brokers have an authorizer"
            )
        if code in _MISSING:
            return InvalidSpecError(f"{text}; choose a profile whose brokers have users, ACLs and quotas")
        if code in _REFUSED:
            return InvalidSpecError(text)
        return super().kind(code, text)

    async def describe_acls(self, users: Sequence[str]) -> dict[str, frozenset[AclRule]]:
        """Return the ACLs of each user."""
        self.check_rest()
        answer = await self._answer("describe ACLs", asyncio.to_thread(self._read_acls, users))
        if isinstance(answer, BaseException):
            raise answer
        return {user: frozenset(rules) for user, rules in answer.items()}

    async def put_credential(self, user: str, password: str) -> None:
        """Create or replace the credential of a user, with a random salt of librdkafka."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
        wanted = UserScramCredentialUpsertion(user, info, password.encode())
        changed = self.admin().alter_user_scram_credentials([wanted], request_timeout=REQUEST_TIMEOUT)
        await self._all(f"set the password of user {user}", changed.values())

    async def remove_credential(self, user: str) -> None:
        """Delete the credential of a user."""
        unwanted = UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)
        changed = self.admin().alter_user_scram_credentials([unwanted], request_timeout=REQUEST_TIMEOUT)
        action, removed = f"delete the password of user {user}", asyncio.wrap_future(changed[user])
        answer = await self._answer(action, removed, KafkaError.RESOURCE_NOT_FOUND)
        if isinstance(answer, BaseException):
            raise answer

    async def change_acls(self, user: str, add: frozenset[AclRule], remove: frozenset[AclRule]) -> None:
        """Create ACLs, then delete ACLs, so that an operation that both allow stays allowed."""
        for rules in _parts(add):
            created = self.admin().create_acls(
                [acls.binding(user, rule) for rule in rules], request_timeout=REQUEST_TIMEOUT
            )
            await self._all(f"create ACLs of user {user}", created.values())
        for rules in _parts(remove):
            exact = [acls.only(user, rule) for rule in rules]
            deleted = self.admin().delete_acls(exact, request_timeout=REQUEST_TIMEOUT)
            await self._all(f"delete ACLs of user {user}", deleted.values())

    async def _describe(self, users: Sequence[str]) -> Sequence[PrincipalState | BaseException]:
        names = sorted(set(users))
        self.check_rest()
        answer = await self._answer("describe users", asyncio.to_thread(self._read, names))
        if isinstance(answer, BaseException):
            raise answer
        states: dict[str, PrincipalState] = answer
        return [states[user] for user in users]

    def _read_acls(self, users: Sequence[str]) -> dict[str, set[AclRule]]:
        with BrokerConnection(self._connection, REQUEST_TIMEOUT) as broker:
            return acls.describe(broker, users, _EACH)

    def _read(self, users: Sequence[str]) -> dict[str, PrincipalState]:
        with BrokerConnection(self._connection, REQUEST_TIMEOUT) as broker:
            known = credentials.describe(broker, users)
            rules = acls.describe(broker, users, _EACH)
            limits = quotas.describe(broker, users, _EACH)
        return {
            user: PrincipalState(frozenset(rules[user]), limits.get(user, {}), user in known, known.get(user))
            for user in users
        }

    def _alter(self, changes: Mapping[str, quotas.Changes]) -> dict[str, KafkaException | None]:
        with BrokerConnection(self._connection, REQUEST_TIMEOUT) as broker:
            return quotas.alter(broker, changes)

    async def _change_quotas(self, changes: Sequence[tuple[str, quotas.Changes]]) -> Sequence[BaseException | None]:
        wanted: dict[str, quotas.Changes] = {}
        for user, change in changes:
            wanted[user] = {**wanted.get(user, {}), **change}
        self.check_rest()
        answer = await self._answer("set quotas", asyncio.to_thread(self._alter, wanted))
        if isinstance(answer, BaseException):
            return [answer] * len(changes)
        outcome: dict[str, KafkaException | None] = answer
        return [self._outcome(user, outcome.get(user)) for user, _ in changes]

    def _outcome(self, user: str, error: KafkaException | None) -> FirnError | None:
        return None if error is None else self._translated(f"set quotas of user {user}", error)


def _parts(rules: frozenset[AclRule]) -> list[list[AclRule]]:
    """Return the rules in an order that does not depend on hashes, in parts for one request each."""
    ordered = sorted(rules, key=lambda rule: (rule.resource, rule.name, rule.pattern, rule.operation))
    return [ordered[start : start + _CHANGES] for start in range(0, len(ordered), _CHANGES)]
