"""Images: tags follow content, layers are shared, an archive holds what the node lacks."""

import io
import json
import marshal
import sys
import tarfile
from pathlib import Path

import pytest

from hack.localcluster.artifacts.store import Store
from hack.localcluster.images import build as images
from hack.localcluster.images.base import apt_sources
from hack.localcluster.images.build import Engine, image
from hack.support.progress import Failure


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "images")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return enough of an ELF header to show the architecture."""
    path = tmp_path / "pause"
    path.write_bytes(b"\x7fELF" + bytes(14) + (62).to_bytes(2, "little") + b"program")
    return path


def archive(store: Store, reference: str, present: set[str]) -> dict[str, bytes]:
    output = io.BytesIO()
    store.stream(reference, output, present.__contains__)
    output.seek(0)
    with tarfile.open(fileobj=output) as opened:
        return {member.name: file.read() for member in opened if (file := opened.extractfile(member)) is not None}


def test_a_program_becomes_an_image(store: Store, program: Path) -> None:
    store.add_program("localhost/pause:1", program)
    store.add_program("localhost/pause:1", program)
    assert list(store.images()) == ["localhost/pause:1"]
    files = archive(store, "localhost/pause:1", set())
    [entry] = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "localhost/pause:1"
    manifest = json.loads(files["blobs/sha256/" + entry["digest"].partition(":")[2]])
    configuration = json.loads(files["blobs/sha256/" + manifest["config"]["digest"].partition(":")[2]])
    assert configuration["architecture"] == "amd64"
    layer = files["blobs/sha256/" + manifest["layers"][0]["digest"].partition(":")[2]]
    with tarfile.open(fileobj=io.BytesIO(layer)) as opened:
        assert opened.getmember("pause").mode == 0o755


def test_code_is_a_layer_of_its_own_and_only_that_is_copied(store: Store, program: Path, tmp_path: Path) -> None:
    store.add_program("localhost/runtime:1", program)
    code = tmp_path / "app"
    (code / "firn").mkdir(parents=True)
    (code / "firn" / "a.py").write_text("one")
    store.append("localhost/firn:1", "localhost/runtime:1", code, "/opt/firn/app")
    (code / "firn" / "a.py").write_text("two")
    store.append("localhost/firn:2", "localhost/runtime:1", code, "/opt/firn/app")
    on_the_node = set(store.blobs_of("localhost/firn:1"))
    assert store.blobs_of("localhost/firn:2")[0] in on_the_node
    copied = [name for name in archive(store, "localhost/firn:2", on_the_node) if name.startswith("blobs/")]
    assert len(copied) == 3, "the new layer, the configuration and the manifest"


def test_old_images_and_their_blobs_are_deleted(store: Store, program: Path, tmp_path: Path) -> None:
    store.add_program("localhost/runtime:1", program)
    code = tmp_path / "app"
    code.mkdir()
    for number in range(5):
        (code / "a.py").write_text(str(number))
        store.append(f"localhost/firn:{number}", "localhost/runtime:1", code, "/opt/firn/app")
    store.prune(2, "localhost/firn")
    assert sorted(store.images()) == ["localhost/firn:3", "localhost/firn:4", "localhost/runtime:1"]
    needed = {digest for reference in store.images() for digest in store.blobs_of(reference)}
    assert {path.name for path in store.blobs.iterdir()} == needed


def test_a_tag_depends_on_code_and_dockerfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for directory in ("hack/images/operator", "requirements", "firn", "operator", "controllers"):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "file").write_text("x")
    (tmp_path / "requirements" / "operator.txt").write_text("kopf==1")
    monkeypatch.setattr(images, "REPOSITORY", tmp_path)
    monkeypatch.setattr(images, "SOURCE", tmp_path / "hack" / "images")
    chosen = image("firn-operator")
    tag, runtime = chosen.tag(), chosen.runtime_tag()
    (tmp_path / "firn" / "file").write_text("y")
    assert chosen.runtime_tag() == runtime
    assert chosen.tag() != tag
    (tmp_path / "requirements" / "operator.txt").write_text("kopf==2")
    assert chosen.runtime_tag() != runtime
    context = tmp_path / "context"
    context.mkdir()
    chosen.stage(context)
    assert (context / "app" / "firn" / "file").read_text() == "y"
    assert (context / "requirements.txt").read_text() == "kopf==2"


def test_the_code_of_an_image_has_its_bytecode(
    store: Store, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "WRITES_BYTECODE", True)
    context = tmp_path / "context"
    context.mkdir()
    image("firn-operator").stage(context)
    store.add_program("localhost/runtime:1", program)
    store.append("localhost/firn:1", "localhost/runtime:1", context / "app", "/opt/firn/app")
    [_, code, *_] = store.blobs_of("localhost/firn:1")
    with tarfile.open(store.blobs / code) as files:
        file = files.extractfile(f"opt/firn/app/firn/model/__pycache__/names.{sys.implementation.cache_tag}.pyc")
        assert file is not None
        bytecode = file.read()
    assert int.from_bytes(bytecode[4:8], "little") == 0b01, "Python would compare it with the source (PEP 552)"
    assert marshal.loads(bytecode[16:]).co_filename == "/opt/firn/app/firn/model/names.py"


def test_the_code_of_an_image_has_no_bytecode_of_another_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "WRITES_BYTECODE", True)
    with_bytecode = image("firn-operator").tag()
    monkeypatch.setattr(images, "WRITES_BYTECODE", False)
    image("firn-operator").stage(tmp_path)
    assert not list(tmp_path.rglob("*.pyc"))
    assert image("firn-operator").tag() != with_bytecode


def test_another_version_of_kafka_is_another_image() -> None:
    assert image("firn-kafka@4.1.1").arguments == {"KAFKA_VERSION": "4.1.1"}
    assert image("firn-kafka@4.1.1").tag() != image("firn-kafka").tag()
    with pytest.raises(Failure, match="firn-postgres@16"):
        image("firn-postgres@16")


def test_an_engine_gets_named_contexts_and_arguments() -> None:
    words = Engine("docker").command("localhost/x:1", Path("/context"), {"jars": Path("/jars")}, {"KAFKA_VERSION": "4"})
    assert words == [
        *("docker", "build", "--tag", "localhost/x:1"),
        *("--build-context=jars=/jars", "--build-arg=KAFKA_VERSION=4", "/context"),
    ]


def test_a_push_covers_the_images_of_the_chart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tmp_path / "docker"
    engine.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\n')
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("FIRN_CACHE", str(tmp_path / "cache"))
    reference = f"localhost/firn-operator:{image('firn-operator').tag()}"
    pushed = images.push_all(["firn-operator"], "registry.example.com/data/", images.version())
    assert pushed == {"firn-operator": f"registry.example.com/data/firn-operator:{images.version()}"}
    assert (tmp_path / "calls").read_text().splitlines()[-2:] == [
        f"tag {reference} {pushed['firn-operator']}",
        f"push {pushed['firn-operator']}",
    ]


def test_an_error_reports_a_push_without_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "container_engine", lambda: None)
    with pytest.raises(Failure, match="Docker or Podman"):
        images.push_all(["firn-operator"], "registry.example.com/data", "1")


def test_the_store_appends_the_last_stage_of_an_image_with_code() -> None:
    for name in images.IMAGES:
        chosen = image(name)
        if chosen.code:
            dockerfile = (images.SOURCE / chosen.directory / "Dockerfile").read_text()
            last = dockerfile.rpartition("FROM ")[2].splitlines()
            assert last == ["runtime", f"COPY app {images.CODE}"]


def test_the_base_comes_from_the_archive_of_the_release(tmp_path: Path) -> None:
    (tmp_path / "sources.list").write_text(
        "# deb http://old.example/debian bookworm main\ndeb [arch=amd64] http://mirror.example/debian bookworm main\n"
    )
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(
        "Types: deb\nURIs: http://security.example/debian\nSuites: bookworm-security\nComponents: main contrib\n\n"
        "Types: deb\nEnabled: no\nURIs: http://off.example/debian\nSuites: bookworm\nComponents: main\n\n"
        "Types: deb\nURIs: http://vendor.example/apt\nSuites: stable\nComponents: main\n"
    )
    assert [(each.uri, each.suite) for each in apt_sources(tmp_path)] == [
        ("http://mirror.example/debian", "bookworm"),
        ("http://security.example/debian", "bookworm-security"),
    ]
