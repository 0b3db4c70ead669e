"""Commands run in the process of the tests."""

import signal
from collections.abc import Iterator

import pytest

from firn_operator.cli import memory


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Restore the handler of Ctrl-C, which ``firn sql`` replaces."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def unbounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no command watch the memory of this process. The watch would end it with all its later tests."""
    monkeypatch.setattr(memory, "bound", lambda *_: None)
