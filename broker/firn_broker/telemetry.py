"""Metrics and probes over HTTP."""

import asyncio
from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from firn_broker.broker import Broker

REQUEST_LIMIT = 8192


async def serve(place: str, parse: Callable[[str], tuple[str, int]], broker: Broker) -> asyncio.Server:
    """Serve /metrics, /livez (all background tasks run) and /readyz (the broker serves clients) on
    HOST:PORT."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = _page(head.split(b" ", 2)[1].split(b"?")[0], broker)
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError, IndexError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, *parse(place), limit=REQUEST_LIMIT)


def _page(path: bytes, broker: Broker) -> tuple[str, str, bytes]:
    if path == b"/metrics":
        broker.observe()
        return "200 OK", CONTENT_TYPE_LATEST, generate_latest()
    if path == b"/livez":
        return ("200 OK" if broker.healthy else "503 Service Unavailable"), "text/plain", b"\n"
    if path == b"/readyz":
        reason = broker.not_ready
        status = "200 OK" if reason is None else "503 Service Unavailable"
        return status, "text/plain", f"{reason or ''}\n".encode()
    return "404 Not Found", "text/plain", b"\n"
