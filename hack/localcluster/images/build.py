"""`hack/images/build`: build the project's images. The tag is the hash of the whole content, so only new content is built."""

from __future__ import annotations

import argparse
import compileall
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hack.localcluster.artifacts import jars, packages, tools, wheels
from hack.localcluster.artifacts.store import Store
from hack.localcluster.images import base, contents, sbom
from hack.localcluster.images.contents import Part
from hack.localcluster.kind import Kind
from hack.localcluster.layout import Layout
from hack.localcluster.provider import choose, container_engine
from hack.support.command import run
from hack.support.content import content_hash, files_below, locked
from hack.support.places import REPOSITORY, cache_directory, cluster_directory
from hack.support.progress import Failure, say, side_by_side, step

SOURCE = REPOSITORY / "hack" / "images"
"""The directory of the Dockerfiles and of the scripts of images."""

SBOMS = Path("dist") / "sbom"
"""The directory of the lists of packages, below the working directory."""

_KEPT = 3
"""Number of images of one name that stay: the current one and a few earlier ones."""

_KEPT_WITH_CODE = 30
"""Number of images with code of one name that stay. They share all layers except a small one."""


CODE = "/opt/firn/app"
"""The directory of the project's code in an image. The last layer has only this directory."""


WRITES_BYTECODE = sys.version_info[:2] == (3, 11)
"""True if this is the version of Python in the images. Only this version writes bytecode that the images can load."""


@dataclass(frozen=True)
class Image:
    """An image: the directory of its Dockerfile, the other files of its context, and its named contexts."""

    directory: str
    files: Mapping[str, str] = field(default_factory=dict)
    """Path in the context -> path in the repository."""
    code: tuple[str, ...] = ()
    """Directories of the project's code, below `app` in the context. The Dockerfile's last stage adds only the code to
    its stage `runtime`."""
    contexts: Mapping[str, Callable[[], Path]] = field(default_factory=dict)
    """Named context -> function that makes its directory. Only `key` represents its content in the hash."""
    key: tuple[str, ...] = ()
    """Files of the repository that determine the content of the named contexts."""
    arguments: Mapping[str, str] = field(default_factory=dict)

    def tag(self) -> str:
        """Return the hash of all content."""
        return content_hash(
            [REPOSITORY / path for path in self.code], self.runtime_tag(), f"bytecode: {WRITES_BYTECODE}"
        )

    def runtime_tag(self) -> str:
        """Return the hash of all content except the code."""
        words = [f"{name}={value}" for name, value in {**self.files, **self.arguments}.items()]
        paths = [SOURCE / self.directory, *(REPOSITORY / path for path in [*self.files.values(), *self.key])]
        return content_hash(paths, *words)

    def stage(self, target: Path) -> None:
        """Fill a build context with the content of the tag's hash, with times that do not depend on the checkout."""
        sources = {".": SOURCE / self.directory, **{name: REPOSITORY / path for name, path in self.files.items()}}
        for inside, path in {**sources, **{f"app/{name}": REPOSITORY / name for name in self.code}}.items():
            for file in files_below(path):
                copy = target / inside / file.relative_to(path) if path.is_dir() else target / inside
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy)
        self._compile(target / "app")
        for each in [target, *target.rglob("*")]:
            each.chmod(0o755 if each.is_dir() or each.stat().st_mode & 0o100 else 0o644)
            os.utime(each, (0, 0))

    def _compile(self, code: Path) -> None:
        """Add the bytecode of the code. A pod cannot write bytecode, so without it each process compiles the code at its start."""
        if self.code and WRITES_BYTECODE:
            compileall.compile_dir(
                code,
                quiet=2,
                stripdir=str(code),
                prependdir=CODE,
                invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
            )


def _program(name: str) -> Callable[[], Path]:
    return lambda: tools.build(name).parent


_POM = str(jars.POM.relative_to(REPOSITORY))


def _kafka(version: str) -> Image:
    def contexts() -> Path:
        return (
            jars.fetch("kafka")
            if version == jars.kafka_version()
            else jars.fetch("kafka", f"-Dkafka.version={version}")
        )

    return Image("kafka", contexts={"jars": contexts}, key=(_POM,), arguments={"KAFKA_VERSION": version})


def _operator() -> Image:
    return Image(
        "operator", {"requirements.txt": "requirements/operator.txt"}, code=("firn", "operator", "controllers")
    )


def _broker() -> Image:
    return Image("broker", {"requirements.txt": "requirements/broker.txt"}, code=("firn", "broker"))


_KERNEL = (
    "firn/__init__",
    "firn/decoders/__init__",
    "firn/decoders/json_limits",
    "firn_spark/__init__",
    "firn_spark/worker/__init__",
    "firn_spark/worker/build",
    "firn_spark/worker/compiled",
    "firn_spark/worker/fetching/__init__",
    "firn_spark/worker/fetching/kernel",
    "firn_spark/worker/formats/__init__",
    "firn_spark/worker/formats/utf8",
    "firn_spark/worker/formats/words",
    "firn_spark/worker/formats/avro/__init__",
    "firn_spark/worker/formats/avro/kernel",
    "firn_spark/worker/formats/json/__init__",
    "firn_spark/worker/formats/json/kernel",
    "firn_spark/worker/formats/json/limits",
    "firn_spark/worker/formats/json/tokens",
    "firn_spark/worker/formats/json/variant_kernel",
    "firn_spark/worker/formats/protobuf/__init__",
    "firn_spark/worker/formats/protobuf/kernel",
)
"""Modules that the image of the Spark application compiles to machine code, and those that they import."""


def _root(module: str) -> str:
    return "spark_apps/" if module.startswith("firn_spark/") else ""


def _spark() -> Image:
    return Image(
        "spark",
        {
            "requirements.txt": "requirements/spark.txt",
            "pyspark.txt": "requirements/pyspark.txt",
            **{f"kernel/{name}.py": f"{_root(name)}{name}.py" for name in _KERNEL},
        },
        code=("firn", "spark_apps"),
        contexts={"jars": lambda: jars.fetch("spark"), "wheels": wheels.pyspark},
        key=(_POM,),
    )


IMAGES: dict[str, Callable[[], Image]] = {
    "firn-spark": _spark,
    "firn-operator": _operator,
    "firn-broker": _broker,
    "firn-kafka": lambda: _kafka(jars.kafka_version()),
    "firn-postgres": lambda: Image("postgres"),
    "firn-s3": lambda: Image("s3", contexts={"tools": _program("versitygw")}, key=("hack/tools/versitygw",)),
}
"""Images by name. The slowest build is first."""


def image(name: str) -> Image:
    """Return the image of a name. `firn-kafka@VERSION` is another version of Kafka. Raises `Failure` for an unknown name."""
    plain, _, version = name.partition("@")
    if version and plain == "firn-kafka":
        return _kafka(version)
    if version or plain not in IMAGES:
        raise Failure(f"there is no image {name!r}; choose from {', '.join(IMAGES)} and firn-kafka@VERSION")
    return IMAGES[plain]()


class Builder(Protocol):
    """A builder of images from Dockerfiles."""

    def has(self, reference: str) -> bool:
        """Return True if the image exists."""

    def build(self, reference: str, chosen: Image) -> None:
        """Build the image."""

    def parts(self, reference: str) -> dict[str, list[Part]]:
        """Return the packages in the image, by the file that names them."""


class Buildah:
    """Builds without an engine, in a chroot, on a base image of this machine. The images are in the store.

    The store adds the layer with the code, like the Dockerfile's last stage. buildah would read and pack all layers
    below it again, which takes most of a minute after every change of a line.
    """

    def __init__(self) -> None:
        root = cache_directory("buildah")
        # buildah leaves its storage mounted, so it has a mount namespace of its own.
        self._buildah = [
            "unshare",
            "--mount",
            "buildah",
            "--storage-driver=overlay",
            f"--root={root / 'storage'}",
            f"--runroot={root / 'run'}",
        ]
        self._store = Store()

    def has(self, reference: str) -> bool:
        """Return True if the store has the image."""
        return reference in self._store.images()

    def build(self, reference: str, chosen: Image) -> None:
        """Build the runtime if other content than the code has changed, and add the layer with the code."""
        with tempfile.TemporaryDirectory(prefix="context-", dir=cache_directory()) as directory:
            context = Path(directory)
            chosen.stage(context)
            if chosen.code:
                runtime = f"{reference.rpartition(':')[0]}-runtime:{chosen.runtime_tag()}"
                with locked(cache_directory() / f"build-{chosen.directory}.lock"):
                    if not self.has(runtime):
                        self._bud(runtime, context, chosen, "--target=runtime")
                        self._store.prune(_KEPT, runtime.rpartition(":")[0])
                self._store.append(reference, runtime, context / "app", CODE)
            else:
                self._bud(reference, context, chosen)
        self._store.prune(_KEPT_WITH_CODE if chosen.code else _KEPT, reference.rpartition(":")[0])

    def parts(self, reference: str) -> dict[str, list[Part]]:
        """Return the packages in the image, by the file that names them."""
        return contents.of_layers(self._store.layers(reference))

    def _bud(self, reference: str, context: Path, chosen: Image, *options: str) -> None:
        packages.ensure(packages.IMAGE_BUILD)
        words = [f"--build-context={key}={make()}" for key, make in chosen.contexts.items()]
        words += [f"--build-arg={key}={value}" for key, value in chosen.arguments.items()]
        with locked(cache_directory() / "base.lock"):
            base.ensure(self._buildah)
        log = cache_directory("logs") / f"image-{chosen.directory}.log"
        with tempfile.TemporaryDirectory(prefix="tmp-", dir=cache_directory("buildah")) as scratch:
            command = [
                *self._buildah,
                "bud",
                "--isolation=chroot",
                "--layers",
                "--pull-never",
                "--format=oci",
                *options,
                *words,
            ]
            run([*command, "--tag", reference, context], environment={"TMPDIR": scratch}, log=log)
            with self._store.locked():
                push = [
                    *self._buildah,
                    "push",
                    "--quiet",
                    "--compression-format=gzip",
                    "--compression-level=1",
                    "--format=oci",
                ]
                run([*push, reference, f"oci:{self._store.directory}:{reference}"], environment={"TMPDIR": scratch})
        for old in self._older(reference):
            subprocess.run([*self._buildah, "rmi", old], capture_output=True)

    def _older(self, reference: str) -> list[str]:
        """Return earlier images of the same name that do not stay, newest first, as buildah lists them."""
        name = reference.rpartition(":")[0]
        listed = run(
            [*self._buildah, "images", "--format", "{{.Name}}:{{.Tag}}", "--filter", f"reference={name}"]
        ).split()
        return [each for each in listed if each != reference][_KEPT - 1 :]


class Engine:
    """Builds with Docker or Podman."""

    def __init__(self, program: str) -> None:
        self._program = program

    def has(self, reference: str) -> bool:
        """Return True if the engine has the image."""
        return subprocess.run([self._program, "image", "inspect", reference], capture_output=True).returncode == 0

    def command(
        self, reference: str, context: Path, contexts: Mapping[str, Path], arguments: Mapping[str, str]
    ) -> list[str]:
        """Return the command line of the build."""
        words = [self._program, "build", "--tag", reference]
        words += [f"--build-context={key}={path}" for key, path in contexts.items()]
        words += [f"--build-arg={key}={value}" for key, value in arguments.items()]
        return [*words, str(context)]

    def build(self, reference: str, chosen: Image) -> None:
        """Build the whole Dockerfile, with the engine's own cache of layers."""
        contexts = {key: make() for key, make in chosen.contexts.items()}
        log = cache_directory("logs") / f"image-{chosen.directory}.log"
        with tempfile.TemporaryDirectory(prefix="context-", dir=cache_directory()) as directory:
            chosen.stage(Path(directory))
            command = self.command(reference, Path(directory), contexts, chosen.arguments)
            run(command, environment={"DOCKER_BUILDKIT": "1"}, log=log)

    def parts(self, reference: str) -> dict[str, list[Part]]:
        """Return the packages in the image, by the file that names them."""
        container = run([self._program, "create", reference]).strip()
        try:
            with subprocess.Popen([self._program, "export", container], stdout=subprocess.PIPE) as export:
                assert export.stdout is not None
                found = contents.of_file_system(export.stdout)
        finally:
            run([self._program, "rm", container])
        if export.returncode != 0:
            raise Failure(
                f"{self._program} export of {reference} ended with {export.returncode}; see its message above"
            )
        return found

    def push(self, reference: str, target: str) -> None:
        """Push a built image under another reference."""
        run([self._program, "tag", reference, target])
        run([self._program, "push", target], log=cache_directory("logs") / "push.log")


def build(name: str, builder: Builder) -> str:
    """Build an image unless its content was built before, and return its full reference."""
    chosen = image(name)
    reference = f"localhost/{name.partition('@')[0]}:{chosen.tag()}"
    if not builder.has(reference):
        with step(f"building {reference}"):
            builder.build(reference, chosen)
    return reference


def chosen_builder() -> Builder:
    """Return the builder of this machine: an engine if the cluster's provider has one, else buildah."""
    provider = choose("auto", Layout(cluster_directory()))
    return Engine(provider.engine) if isinstance(provider, Kind) else Buildah()


def write_sboms(names: list[str], builder: Builder, directory: Path, tag: str) -> None:
    """Write `NAME.cdx.json` for each image of these names, which are built, into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        plain = name.partition("@")[0]
        with step(f"listing the packages of {plain}"):
            found = builder.parts(f"localhost/{plain}:{image(name).tag()}")
        text = json.dumps(sbom.document(plain, tag, found), indent=2) + "\n"
        (directory / f"{plain}.cdx.json").write_text(text)


def build_all(names: list[str]) -> dict[str, str]:
    """Build images side by side and write their references to `images.json` of the cluster's directory. Returns name -> reference."""
    builder = chosen_builder()
    # Two at a time: a build alternates between waiting for downloads and using one core.
    with ThreadPoolExecutor(max_workers=2) as pool:
        running = {name: pool.submit(_build_and_record, name, builder) for name in names}
        return {name: future.result() for name, future in running.items()}


def _build_and_record(name: str, builder: Builder) -> str:
    reference = build(name, builder)
    record = cluster_directory() / "images.json"
    with locked(record.with_suffix(".lock")):
        everything = {**(json.loads(record.read_text()) if record.exists() else {}), name: reference}
        unfinished = record.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(everything, indent=2) + "\n")
        unfinished.rename(record)
    return reference


def push_all(names: list[str], prefix: str, tag: str) -> dict[str, str]:
    """Build images with a container engine and push them as PREFIX/NAME:TAG. Returns name -> reference. Raises `Failure` without an engine."""
    program = container_engine()
    if program is None:
        raise Failure("--push needs Docker or Podman, and neither answers; start one of them")
    engine = Engine(program)
    pushed = {}
    for name in names:
        reference = build(name, engine)
        pushed[name] = f"{prefix.rstrip('/')}/{name.partition('@')[0]}:{tag}"
        with step(f"pushing {pushed[name]}"):
            engine.push(reference, pushed[name])
    return pushed


def version() -> str:
    """Return the project's version, which is also the chart's appVersion and default image tag."""
    project = (REPOSITORY / "pyproject.toml").read_text()
    return project.partition('\nversion = "')[2].partition('"')[0]


def main(words: Sequence[str] | None = None) -> int:
    """Run `hack/images/build`."""
    parser = argparse.ArgumentParser(prog="hack/images/build", description=__doc__)
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help=f"{', '.join(IMAGES)}, or firn-kafka@VERSION; without NAME, all of them",
    )
    parser.add_argument(
        "--push",
        metavar="PREFIX",
        help="push the images as PREFIX/NAME:TAG; needs Docker or Podman, logged in to the registry."
        " Without NAME: the images of the project's own code",
    )
    parser.add_argument(
        "--tag", default=version(), help="tag of the pushed images (default: %(default)s, as in the chart)"
    )
    parser.add_argument(
        "--sbom",
        metavar="DIRECTORY",
        type=Path,
        help="write a list of the packages in each image to DIRECTORY/NAME.cdx.json (CycloneDX). With --push, the build always does;"
        f" without DIRECTORY, to {SBOMS}",
    )
    parser.add_argument("--load", action="store_true", help="load the images into the running cluster")
    arguments = parser.parse_args(words)
    try:
        names = arguments.names or [name for name in IMAGES if image(name).code or not arguments.push]
        built = push_all(names, arguments.push, arguments.tag) if arguments.push else build_all(names)
        # To list packages, the build reads all files of an image. Images that are only for the local cluster do not need a list.
        directory = arguments.sbom or (SBOMS if arguments.push else None)
        if directory:
            builder = Engine(container_engine() or "docker") if arguments.push else chosen_builder()
            write_sboms(names, builder, directory, arguments.tag)
        if arguments.load:
            provider = choose("auto", Layout(cluster_directory()))
            side_by_side(*(lambda reference=reference: provider.load(reference) for reference in built.values()))
    except Failure as failure:
        print(f"hack/images/build: {failure}", file=sys.stderr)
        return 1
    print(json.dumps(built, indent=2))
    say("images are ready")
    return 0


if __name__ == "__main__":
    sys.exit(main())
