"""Port `ClientSecrets` in memory. It passes tests/contract/test_client_secrets.py like the adapter."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import uuid4

from firn.model.errors import ConflictError, FirnError
from firn_controllers.ports import ClientSecret, UserRef
from tests.fakes.faults import Faults, effect


@dataclass
class FakeSecret:
    owner: str
    """Uid of the owner; empty for a Secret of another client."""
    ours: dict[str, str] = field(default_factory=dict)
    revision: str = ""
    others: dict[str, str] = field(default_factory=dict)
    """Content that other clients added."""
    uid: str = field(default_factory=lambda: str(uuid4()))

    @property
    def data(self) -> dict[str, str]:
        return {**self.others, **self.ours}


class FakeClientSecrets:
    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.secrets: dict[tuple[str, str], FakeSecret] = {}
        """Secrets by namespace and name."""
        self.problem: FirnError | None = None
        """The error of every call."""
        self.calls: Counter[str] = Counter()

    async def look(self, namespace: str, name: str, owner: UserRef) -> ClientSecret | None:
        self.calls["look"] += 1
        if self.problem is not None:
            raise self.problem
        live = self.secrets.get((namespace, name))
        if live is not None and live.owner != owner.uid:
            raise ConflictError(f"Secret {namespace}/{name} exists, and TopicUser {owner.name} does not own it")
        return ClientSecret(live.uid, live.revision) if live is not None else None

    @effect
    async def write(
        self,
        namespace: str,
        name: str,
        owner: UserRef,
        data: Mapping[str, str],
        revision: str,
        expected_uid: str | None,
    ) -> str:
        self.calls["write"] += 1
        if self.problem is not None:
            raise self.problem
        live = self.secrets.get((namespace, name))
        if live is None:
            live = self.secrets[namespace, name] = FakeSecret(owner.uid)
        elif live.uid != expected_uid and live.owner != owner.uid:
            raise ConflictError(f"Secret {namespace}/{name} exists, and TopicUser {owner.name} does not own it")
        if (live.ours, live.revision) != (dict(data), revision):
            live.ours, live.revision = dict(data), revision
            self.faults.log.append(f"write secret {namespace}/{name}")
        return live.uid
