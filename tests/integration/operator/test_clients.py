"""HTTP clients against a server on loopback that misbehaves: retries, denials and silence."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from aiohttp import web
from kubernetes.aio.client import Configuration

from firn.model.errors import AccessDeniedError, UnavailableError
from firn_operator.adapters.kube import api_client
from firn_operator.adapters.kube.api_client import Api, ApiError, RateLimit
from firn_operator.adapters.progress import HttpProgress
from tests.servers.process import free_port

Answer = Callable[[], web.Response]


@dataclass
class Server:
    """Return the answers in turn, and the last one for ever."""

    port: int
    answers: list[Answer] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append(request.method)
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])()


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    made = Server(free_port())
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", made.port).start()
    yield made
    await runner.cleanup()


@pytest_asyncio.fixture
async def api(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Api]:
    async def at_once(seconds: float) -> None:
        assert seconds <= api_client.LONGEST_PAUSE

    monkeypatch.setattr(api_client, "asyncio", type("asyncio", (), {"sleep": staticmethod(at_once)}))
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{server.port}"
    client = Api(configuration, RateLimit(1000, 1000))
    yield client
    await client.close()


def response(status: int, message: str = "because", **headers: str) -> Answer:
    return lambda: web.json_response({"message": message, "reason": "Word"}, status=status, headers=headers)


FINE: Answer = response(200)


@pytest.mark.parametrize("status", [429, 500, 503, 504])
async def test_failed_reads_are_retried(api: Api, server: Server, status: int) -> None:
    server.answers = [response(status), response(status), FINE]
    await api.call("GET", "/thing")
    assert len(server.asked) == 3


@pytest.mark.parametrize("status", [429, 503])
async def test_writes_are_retried_if_the_server_did_nothing(api: Api, server: Server, status: int) -> None:
    server.answers = [response(status, **{"Retry-After": "3"}), FINE]
    await api.call("POST", "/thing", body={})
    assert len(server.asked) == 2


async def test_a_write_with_an_unknown_outcome_is_not_retried(api: Api, server: Server) -> None:
    server.answers = [response(500, "etcdserver: request timed out")]
    with pytest.raises(UnavailableError, match="etcdserver"):
        await api.call("PATCH", "/thing", body={})
    assert len(server.asked) == 1


async def test_a_server_that_stays_busy_is_unavailable(api: Api, server: Server) -> None:
    server.answers = [response(429, "too many requests")]
    with pytest.raises(UnavailableError, match="too many requests"):
        await api.call("GET", "/thing")
    assert len(server.asked) > 1


@pytest.mark.parametrize("status", [401, 403])
async def test_a_denied_request_fails_at_once(api: Api, server: Server, status: int) -> None:
    server.answers = [response(status, "you may not")]
    with pytest.raises(AccessDeniedError, match="you may not"):
        await api.call("GET", "/thing")
    assert len(server.asked) == 1


async def test_an_error_has_status_reason_and_message(api: Api, server: Server) -> None:
    server.answers = [response(409, "it moved")]
    with pytest.raises(ApiError) as refusal:
        await api.call("PUT", "/thing", body={})
    assert (refusal.value.status, refusal.value.reason, refusal.value.message) == (409, "Word", "it moved")


async def test_writes_respect_the_rate_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("firn_operator.adapters.kube.api_client.time.monotonic", lambda: now[0])
    monkeypatch.setattr(api_client, "asyncio", type("asyncio", (), {"sleep": staticmethod(sleep)}))
    limit = RateLimit(rate=10, burst=3)
    for _ in range(5):
        await limit.wait()
    assert slept == pytest.approx([0.1, 0.2])
    now[0] = 10
    for _ in range(3):
        await limit.wait()
    assert len(slept) == 2


def progress(group: str = "default") -> Answer:
    return lambda: web.Response(text=json.dumps({"group": group, "started": 1.0, "topics": []}))


async def test_progress_is_read_once_for_all_callers_and_kept_on_errors(server: Server) -> None:
    http_progress = HttpProgress(lambda group: f"http://127.0.0.1:{server.port}/{group}")
    server.answers = [progress()]
    answers = await asyncio.gather(*(http_progress.read("default", max_age=1000) for _ in range(20)))
    assert len(server.asked) == 1
    assert all(answer is not None and answer[0].group == "default" for answer in answers)
    server.answers = [response(503)]
    assert await http_progress.read("default", max_age=0) == answers[0]
    assert len(server.asked) == 2
    await http_progress.close()


@pytest.mark.parametrize("answer", [lambda: web.Response(text="<html>"), response(404)])
async def test_an_invalid_answer_is_no_progress(server: Server, answer: Answer) -> None:
    http_progress = HttpProgress(lambda group: f"http://127.0.0.1:{server.port}/{group}")
    server.answers = [answer]
    assert await http_progress.read("default", max_age=5) is None
    await http_progress.close()


async def test_a_closed_port_is_no_progress() -> None:
    port = free_port()
    http_progress = HttpProgress(lambda group: f"http://127.0.0.1:{port}/{group}")
    assert await http_progress.read("default", max_age=5) is None
    await http_progress.close()
