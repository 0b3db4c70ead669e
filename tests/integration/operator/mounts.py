"""Directories with the content of Secrets, which follow each change as in a pod. No kubelet runs in these tests."""

import base64
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.apiserver import ApiServer, Refused

LOOKS = 0.5
"""Seconds between two looks at the Secrets. A kubelet looks about once a minute."""


def secret_data(api: ApiServer, namespace: str, name: str) -> dict[str, str]:
    """Return the content of a Secret; empty if it does not exist."""
    try:
        found = api.call("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}").get("data") or {}
    except Refused as refused:
        if refused.code != 404:
            raise
        return {}
    return {key: base64.b64decode(value).decode() for key, value in found.items()}


@dataclass
class Mount:
    """A directory with the keys of a Secret; without ``keys`` all of them."""

    namespace: str
    secret: str
    directory: Path
    keys: tuple[str, ...] = ()
    version: int = 0
    present: dict[str, str] | None = None

    def follow(self, api: ApiServer) -> None:
        """Replace all files at once if the Secret has changed, as the kubelet's AtomicWriter does."""
        found = secret_data(api, self.namespace, self.secret)
        content = {key: found[key] for key in self.keys or found if key in found}
        if not content or content == self.present:
            return
        self.version += 1
        target = self.directory / f"..{self.version}"
        target.mkdir(parents=True)
        for key, text in content.items():
            (target / key).write_text(text)
        self._link("..data", target.name)
        for key in content:
            self._link(key, f"..data/{key}")
        self.present = content

    def _link(self, name: str, target: str) -> None:
        new = self.directory / f"{name}.new"
        new.symlink_to(target)
        os.replace(new, self.directory / name)


@contextmanager
def mounted(api: ApiServer, *mounts: Mount) -> Iterator[None]:
    """Let the directories follow their Secrets until the end of the with block."""
    end, failures = threading.Event(), list[Exception]()

    def follow() -> None:
        while not end.wait(LOOKS):
            try:
                for mount in mounts:
                    mount.follow(api)
            except Exception as error:  # It would end the thread unseen.
                failures.append(error)
                return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(60)
        assert failures == []
