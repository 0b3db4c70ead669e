"""A TCP proxy on loopback that can lose a reply: the server executes the request, and the client receives no answer.

It can also hold all traffic, or cut it."""

import socket
import threading
from contextlib import AbstractContextManager, suppress

from tests.servers.process import free_port


class Proxy(AbstractContextManager["Proxy"]):
    """Forward to 127.0.0.1:``target``. While armed, the first connection with these words in a request loses all
    replies."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._words: bytes | None = None
        self._after = 0
        self._lock = threading.Lock()
        self._flowing = threading.Event()
        self._flowing.set()
        self._cut = False
        self._ends: set[socket.socket] = set()
        self._silent: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_answer_to(self, words: bytes, after: int = 0) -> None:
        """Lose the reply to the next request with ``words``, after ``after`` others. The server executes the
        request."""
        with self._lock:
            self._words, self._after = words, after

    def hold(self) -> None:
        """Hold all traffic, and lose nothing, until `release`."""
        self._flowing.clear()

    def release(self) -> None:
        """End a `hold`."""
        self._flowing.set()

    def cut(self) -> None:
        """Break all connections, and new ones, until `mend`."""
        self._cut = True
        for end in tuple(self._ends):
            _close(end)

    def mend(self) -> None:
        """End a `cut`."""
        self._cut = False

    def lead_to(self, target: int) -> None:
        """Forward new connections to 127.0.0.1:``target``."""
        self._target = target

    def silence(self) -> None:
        """Drop all traffic of the open connections without closing them: the machine of their server is gone."""
        self._silent |= self._ends

    def __exit__(self, *_: object) -> None:
        self._flowing.set()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._cut:
                _close(client)
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except ConnectionRefusedError:
                _close(client)
                continue
            self._ends.add(client)
            mute = threading.Event()
            threading.Thread(target=self._forward, args=(client, server, mute), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client, mute), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket, mute: threading.Event) -> None:
        try:
            while data := client.recv(65536):
                with self._lock:
                    if self._words is not None and self._words in data:
                        if not self._after:
                            self._words = None
                            mute.set()
                        self._after -= 1
                self._flowing.wait()
                if client in self._silent:
                    continue
                server.sendall(data)
        except OSError:
            pass
        finally:
            self._ends.discard(client)
            _close(server)

    def _answer(self, server: socket.socket, client: socket.socket, mute: threading.Event) -> None:
        try:
            while data := server.recv(65536):
                if mute.is_set():
                    # The reply has arrived, so the server executed the request. From here on the line is silent.
                    self.lost += 1
                    break
                self._flowing.wait()
                if client in self._silent:
                    continue
                client.sendall(data)
        except OSError:
            pass
        finally:
            _close(client)
            _close(server)


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
