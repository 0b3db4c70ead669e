"""Two releases that watch one namespace: only one of them manages its resources."""

import copy
from typing import Any

import pytest

from firn.model.errors import AccessDeniedError
from firn_operator.adapters.kube import claims
from firn_operator.adapters.kube.api_client import ApiError
from firn_operator.adapters.kube.claims import Claims


class Leases:
    """The Leases of an API server."""

    def __init__(self) -> None:
        self.live: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.writes = 0
        self.refusal: Exception | None = None

    async def call(self, method: str, path: str, _query: Any = None, body: Any = None, *_: Any) -> dict[str, Any]:
        if method == "GET":
            if path not in self.live:
                raise ApiError(404, "NotFound", path)
            return copy.deepcopy(self.live[path])
        if self.refusal is not None:
            raise self.refusal
        place = path if method == "PUT" else f"{path}/firn-operator"
        known = self.live.get(place)
        if (known["metadata"]["resourceVersion"] if known else None) != body["metadata"].get("resourceVersion"):
            raise ApiError(409, "Conflict", path)
        self.version += 1
        self.writes += 1
        self.live[place] = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.live[place]


@pytest.fixture
def leases() -> Leases:
    return Leases()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("firn_operator.adapters.kube.claims.time.monotonic", lambda: now[0])
    return now


def release(leases: Leases, namespace: str) -> Claims:
    return Claims(leases, namespace)  # type: ignore[arg-type]


async def test_the_first_release_manages_a_namespace(leases: Leases) -> None:
    first, second = release(leases, "firn-a"), release(leases, "firn-b")
    assert await first.rival("team") is None
    assert await second.rival("team") == "firn-a"
    assert await second.rival("other") is None
    assert await first.rival("other") == "firn-b"


async def test_a_restarted_operator_keeps_its_claim(leases: Leases) -> None:
    assert await release(leases, "firn-a").rival("team") is None
    assert await release(leases, "firn-a").rival("team") is None


async def test_a_claim_is_read_once_while_it_is_held(leases: Leases) -> None:
    first = release(leases, "firn-a")
    for _ in range(100):
        assert await first.rival("team") is None
    assert leases.writes == 1


@pytest.mark.parametrize(
    "error",
    [
        ApiError(404, "NotFound", 'namespaces "team" not found'),
        AccessDeniedError("unable to create new content in namespace team because it is being terminated"),
    ],
    ids=["missing", "being deleted"],
)
async def test_resources_of_a_namespace_that_ends_can_be_deleted(leases: Leases, error: Exception) -> None:
    leases.refusal = error
    first = release(leases, "firn-a")
    assert await first.rival("team") is None
    leases.refusal = None
    assert await first.rival("team") is None
    assert leases.writes == 1


async def test_a_denied_claim_is_an_error(leases: Leases) -> None:
    leases.refusal = AccessDeniedError("leases is forbidden; check the operator's RBAC")
    with pytest.raises(AccessDeniedError):
        await release(leases, "firn-a").rival("team")


async def test_a_claim_without_renewals_is_taken_over(leases: Leases, clock: list[float]) -> None:
    first, second = release(leases, "firn-a"), release(leases, "firn-b")
    assert await first.rival("team") is None
    assert await second.rival("team") == "firn-a"
    clock[0] += claims.SECONDS - 1
    assert await second.rival("team") == "firn-a"
    await first._look("team")  # a renewal
    clock[0] += claims.SECONDS - 1
    assert await second.rival("team") == "firn-a"
    clock[0] += claims.SECONDS
    assert await second.rival("team") is None
    # The first release learns at its next renewal that it lost the claim.
    await first._look("team")
    assert await first.rival("team") == "firn-b"
