"""Batches for compacted topics are checked in a process of their own, whose end rejects none of them."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import structlog
from kio.schema.errors import ErrorCode

from firn.records.record_batch import Batch, InvalidBatchError, parse
from firn_broker.log import checks as module
from firn_broker.log.checks import Checks
from firn_broker.log.decoder import Decoder
from tests.unit.broker.test_contents import batch, record

ADDRESS, OTHER = "10.0.0.1", "10.0.0.2"
SECONDS = 20
GOOD = batch(record(0), 1)
KEYLESS = batch(record(0, key=None), 1)


@pytest.fixture
async def checks() -> AsyncIterator[Checks]:
    with ThreadPoolExecutor(1) as thread:
        checks = Checks(Decoder(thread), own_process=True)
        yield checks
        checks.close()


def parsed(data: memoryview | bytes) -> Batch:
    return parse(memoryview(data))


async def process_of(checks: Checks) -> int:
    """Start the process that checks, and return it."""
    before = set(children())
    await checks.require(parsed(GOOD), ADDRESS)
    [process] = set(children()) - before
    return process


def children() -> list[int]:
    """Return the running processes that check batches for this one."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        processes = [int(text) for text in file.read().split()]
    return [process for process in processes if b"check_process" in command(process)]


def command(process: int) -> bytes:
    """Return the command of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_a_good_batch_passes_and_a_bad_one_names_the_cause(checks: Checks) -> None:
    for _ in range(3):
        await checks.require(parsed(GOOD), ADDRESS)
        with pytest.raises(InvalidBatchError, match="accepts no record without a key") as refused:
            await checks.require(parsed(KEYLESS), ADDRESS)
        assert refused.value.code is ErrorCode.invalid_record


async def test_requests_of_many_clients_get_their_own_answers(checks: Checks) -> None:
    async def answer(number: int) -> bool:
        try:
            await checks.require(parsed(KEYLESS if number % 3 else GOOD), f"10.0.0.{number % 5}")
        except InvalidBatchError:
            return False
        return True

    answers = await asyncio.gather(*(answer(number) for number in range(60)))
    assert answers == [number % 3 == 0 for number in range(60)]


async def test_a_killed_process_is_replaced_and_rejects_no_good_batch(checks: Checks) -> None:
    os.kill(await process_of(checks), signal.SIGKILL)
    for _ in range(2):
        await checks.require(parsed(GOOD), ADDRESS)
        with pytest.raises(InvalidBatchError):
            await checks.require(parsed(KEYLESS), ADDRESS)


async def test_a_client_that_leaves_takes_no_answer_of_another(checks: Checks) -> None:
    process = await process_of(checks)
    os.kill(process, signal.SIGSTOP)
    leaving = asyncio.create_task(checks.require(parsed(KEYLESS), ADDRESS))
    await asyncio.sleep(0)
    while not leaving.done():
        leaving.cancel()
        await asyncio.sleep(0)
    async with asyncio.timeout(SECONDS):
        await checks.require(parsed(GOOD), OTHER)


async def test_a_stuck_process_is_replaced(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    os.kill(await process_of(checks), signal.SIGSTOP)
    monkeypatch.setattr(module, "SECONDS", 0.2)
    async with asyncio.timeout(SECONDS):
        await checks.require(parsed(GOOD), ADDRESS)
        monkeypatch.setattr(module, "SECONDS", SECONDS)
        with pytest.raises(InvalidBatchError):
            await checks.require(parsed(KEYLESS), ADDRESS)


async def test_without_a_process_the_decoder_checks() -> None:
    with ThreadPoolExecutor(1) as thread:
        checks = Checks(Decoder(thread), own_process=False)
        before = set(children())  # a killed process of an earlier test may not have ended
        with pytest.raises(InvalidBatchError):
            await checks.require(parsed(KEYLESS), ADDRESS)
        assert set(children()) <= before


async def test_the_end_of_the_process_with_the_broker_is_no_failure(checks: Checks) -> None:
    process = await process_of(checks)
    os.kill(process, signal.SIGSTOP)
    waiting = asyncio.create_task(checks.require(parsed(GOOD), ADDRESS))
    await asyncio.sleep(0)
    with structlog.testing.capture_logs() as logged:
        checks.close()
        await waiting
    assert logged == []
