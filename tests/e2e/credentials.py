"""Search logs, Events, objects and argument lists for the credentials that the tests have created."""

import base64
import glob
import itertools
import json
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hack import quickstart
from hack.localcluster.layout import Layout
from hack.localcluster.node.footprint import processes_of

SECRET_KEYS = ("password", "secret-key", "token", "tls.key", "ca.key", "client-secret")
"""Keys of Secrets whose values are secret. The other keys contain names, addresses, certificates, or these values."""
SHORTEST = 12
"""Characters of a credential. Shorter ones could be in a text by accident."""
KINDS = (
    "/api/v1/configmaps", "/api/v1/events", "/api/v1/pods", "/api/v1/services", "/apis/apps/v1/deployments",
    "/apis/apps/v1/statefulsets", "/apis/batch/v1/jobs", "/apis/coordination.k8s.io/v1/leases",
    *(f"/apis/firn.dev/v1alpha1/{kind}" for kind in (
        "icebergtopics", "topicusers", "topicgrants", "topicsets", "deadletterreplays", "compactionpolicies",
        "retentionpolicies",
    )),
)  # fmt: skip


LAYOUT = Layout(quickstart.STATE.resolve())
LOGS = LAYOUT.logs / "pods"
"""The log files of all containers of the local cluster."""
SHAPES = re.compile(r"eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{40,}|-----BEGIN [A-Z ]*PRIVATE KEY")
"""The shapes of a token of a ServiceAccount and of a private key, which need not be in a Secret."""


class Collector:
    """Collects credentials, and what may contain them, while tests run.

    Tests delete their Secrets, pods and namespaces, so one look at the end would miss most of them. A log file gets a
    second name, so that it stays after its pod."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self.texts: dict[str, str] = {}
        """Place -> its latest text, of objects, Events and argument lists."""
        self._logs: Path | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="credentials", daemon=True)

    def start(self) -> None:
        # A second name needs the file system of the first one.
        self._logs = Path(tempfile.mkdtemp(prefix="logs-", dir=LOGS.parent))
        self._thread.start()

    def stop(self) -> None:
        """End the collection. Nothing happens if it has ended before."""
        self._end.set()
        self._thread.join(60)
        if self._logs is not None:
            shutil.rmtree(self._logs)
            self._logs = None

    def look(self) -> None:
        """Add the credentials, logs, argument lists, Events and objects that exist now."""
        self._look_at_short_lives()
        self._look_at_objects()

    def _look_at_short_lives(self) -> None:
        self._look_at_secrets()
        self._look_at_logs()
        self._look_at_processes()

    def _look_at_objects(self) -> None:
        for path in KINDS:
            for item in _items(path):
                metadata = item["metadata"]
                place = f"{path.rpartition('/')[2]} {metadata['namespace']}/{metadata['name']}"
                self.texts[place] = json.dumps(item)

    def places_with(self, *values: str) -> set[str]:
        """Return the places whose text contains one of the values, also in base64."""
        wanted = [form for value in values for form in _forms(value)]
        return {place for place, text in self._all() if any(form in text for form in wanted)}

    def places_with_shapes(self) -> set[str]:
        """Return the places whose text contains a token or a private key."""
        return {place for place, text in self._all() if SHAPES.search(text)}

    def _all(self) -> Iterator[tuple[str, str]]:
        yield from list(self.texts.items())
        assert self._logs is not None
        for file in self._logs.iterdir():
            namespace, pod, _ = file.name.split("_", 2)
            yield f"log {namespace}/{pod}", file.read_text(errors="replace")

    def _look_at_logs(self) -> None:
        """Give each log file a second name. The kubelet names it NAMESPACE_POD_UID/CONTAINER/NUMBER.log."""
        assert self._logs is not None
        # Unlike `Path.glob`, it accepts that the kubelet removes the directory of a deleted pod meanwhile.
        for path in glob.glob("*/*/*.log*", root_dir=LOGS):
            file, (directory, container, name) = LOGS / path, Path(path).parts
            # The kubelet renames a full log, so the inode tells files apart.
            with suppress(FileNotFoundError, FileExistsError):
                os.link(file, self._logs / f"{directory}_{container}_{name}_{file.stat().st_ino}")

    def _look_at_processes(self) -> None:
        # Other tests of this machine have processes, too, and may pass credentials of their own servers.
        for pid, text in processes_of(LAYOUT.control_group, str(LAYOUT.directory)).items():
            self.texts[f"process {text[:200]} {pid}"] = text

    def _look_at_secrets(self) -> None:
        for secret in _items("/api/v1/secrets"):
            if secret["type"] not in ("Opaque", "kubernetes.io/tls"):
                continue
            for key, value in (secret.get("data") or {}).items():
                text = base64.b64decode(value).decode(errors="replace").strip()
                if key.endswith(SECRET_KEYS) and len(text) >= SHORTEST:
                    self.found.add(text)

    def _run(self) -> None:
        for number in itertools.count():
            self._look_at_short_lives()
            if number % 5 == 0:
                self._look_at_objects()
            if self._end.wait(2):
                return


COLLECTOR = Collector()


def _forms(value: str) -> Iterator[str]:
    """Yield a value as it is, in JSON, and in base64. A key in PEM is searched by a line of its body."""
    if value.startswith("-----BEGIN"):
        value = value.splitlines()[1]
    yield value
    yield json.dumps(value)[1:-1]
    yield base64.b64encode(value.encode()).decode().rstrip("=")[:-1]


def _items(path: str) -> list[dict[str, Any]]:
    code, body = quickstart.read(path)
    assert code == 200, f"GET {path}: {code}"
    items: list[dict[str, Any]] = json.loads(body)["items"]
    return items
