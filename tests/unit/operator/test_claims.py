"""Two releases that watch one namespace: only one of them manages its resources."""

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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


@asynccontextmanager
async def renewing(release: Claims, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Let a release renew its claims without pauses."""
    monkeypatch.setattr(claims, "RENEWAL", 0.0)
    task = asyncio.create_task(release.run())
    yield
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def renewed(leases: Leases) -> None:
    """Wait for a renewal that begins now."""
    before = leases.writes
    for _ in range(1000):
        if leases.writes >= before + 2:
            return
        await asyncio.sleep(0)
    raise AssertionError("no renewal")


async def test_a_running_release_keeps_its_claim(
    leases: Leases, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = release(leases, "firn-a"), release(leases, "firn-b")
    assert await first.rival("team") is None
    async with renewing(first, monkeypatch):
        for _ in range(5):
            assert await second.rival("team") == "firn-a"
            clock[0] += claims.SECONDS - 1
            await renewed(leases)
    assert await first.rival("team") is None


async def test_renewals_continue_after_an_error(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> None:
    first = release(leases, "firn-a")
    assert await first.rival("team") is None
    async with renewing(first, monkeypatch):
        leases.refusal = ApiError(500, "InternalError", "etcd has no leader")
        for _ in range(20):
            await asyncio.sleep(0)
        leases.refusal = None
        await renewed(leases)


async def test_a_claim_that_cannot_be_renewed_is_asked_for_again(leases: Leases, clock: list[float]) -> None:
    first = release(leases, "firn-a")
    assert await first.rival("team") is None
    leases.refusal = ApiError(500, "InternalError", "etcd has no leader")
    clock[0] += claims.TRUSTED - 1
    assert await first.rival("team") is None
    clock[0] += 1
    with pytest.raises(ApiError):
        await first.rival("team")
    leases.refusal = None
    assert await first.rival("team") is None


async def test_an_operator_that_is_down_for_a_while_keeps_its_claim(leases: Leases, clock: list[float]) -> None:
    """Its drivers still land records meanwhile."""
    first, second = release(leases, "firn-a"), release(leases, "firn-b")
    assert await first.rival("team") is None
    for _ in range(5):
        assert await second.rival("team") == "firn-a"
        clock[0] += 3600
    assert await second.rival("team") == "firn-a"
    assert await release(leases, "firn-a").rival("team") is None


async def test_a_deleted_claim_is_free_at_once(leases: Leases, clock: list[float]) -> None:
    first, second = release(leases, "firn-a"), release(leases, "firn-b")
    assert await first.rival("team") is None
    assert await second.rival("team") == "firn-a"
    leases.live.clear()
    clock[0] += 15
    assert await second.rival("team") is None


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
