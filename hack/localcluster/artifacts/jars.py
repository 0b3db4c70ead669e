"""`hack/jars`: fetch the sets of jars of `hack/images/jars/pom.xml` and of the tests into `jars/PROFILE` of the cache."""

from __future__ import annotations

import argparse
import sys
import tarfile
from contextlib import suppress
from pathlib import Path

from hack.support.command import run
from hack.support.content import cached, content_hash
from hack.support.places import REPOSITORY, cache_directory
from hack.support.progress import Failure, side_by_side, step

POM = REPOSITORY / "hack" / "images" / "jars" / "pom.xml"
OWN_POMS = {
    "streams": REPOSITORY / "tests/clients/streams/pom.xml",
    "serialisers": REPOSITORY / "tests/clients/serialisers/pom.xml",
    "iceberg-rest": REPOSITORY / "tests/servers/iceberg_rest.xml",
    "apicurio": REPOSITORY / "tests/servers/apicurio.xml",
    "sink": REPOSITORY / "tests/servers/iceberg_sink.xml",
}
"""Profiles of tests that have a POM of their own."""
PARTS = {"sink": {"worker": "worker", "plugin": "plugins/iceberg", "converter": "plugins/converter"}}
"""Profiles of a POM whose jars are in folders of their own."""
PROFILES = ("spark", "kafka", "connect", "test", "nessie", *OWN_POMS)


TRIES = 3
"""Maven 3.8 has no lock for its local repository. When two processes fetch a file at once, one of them can fail, and then finds the file."""


def fetch(profile: str, *options: str) -> Path:
    """Return the directory of a profile's jars. Maven fetches them if the POM or the options are new."""
    pom = OWN_POMS.get(profile, POM)
    if profile == "streams":
        options = (f"-Dkafka.version={kafka_version()}", *options)

    def copy_dependencies(directory: Path) -> None:
        with step(f"fetching jars: {' '.join([profile, *options])}"):
            for part, folder in PARTS.get(profile, {profile: "."}).items():
                copy_jars(pom, directory / folder, f"{profile}-{part}", "-P", part, *options)
            for archive in directory.glob("*.tar.gz"):
                with tarfile.open(archive) as content:
                    content.extractall(directory, filter="data")
                archive.unlink()

    return cached(f"jar-sets/{profile}", content_hash([pom], *options), copy_dependencies)


def copy_jars(pom: Path, directory: Path, name: str, *options: str) -> None:
    """Let Maven copy the jars that a POM needs at run time into ``directory``. ``name`` is a part of the log's name."""
    command: list[str | Path] = ["mvn", "-B", "-q", "-f", pom, *options]
    command += [f"-DoutputDirectory={directory}", "-DincludeScope=runtime"]
    command.append("dependency:copy-dependencies")
    log = cache_directory("logs") / f"jars-{name}.log"
    for _ in range(TRIES - 1):
        with suppress(Failure):
            run(command, log=log)
            return
    run(command, log=log)


def publish(profile: str) -> Path:
    """Fetch a profile's jars and link them as `jars/PROFILE` of the cache, where tests expect them."""
    directory = fetch(profile)
    path = cache_directory("jars") / profile
    if not path.is_symlink() or path.readlink() != directory:
        unfinished = path.with_name(f".{profile}.unfinished")
        unfinished.unlink(missing_ok=True)
        unfinished.symlink_to(directory)
        unfinished.replace(path)
    return path


def kafka_version() -> str:
    """Return the version of Kafka in the POM."""
    return POM.read_text().partition("<kafka.version>")[2].partition("</kafka.version>")[0]


def main() -> int:
    """Run `hack/jars`."""
    parser = argparse.ArgumentParser(prog="hack/jars", description=__doc__)
    parser.add_argument(
        "profiles", metavar="PROFILE", nargs="*", help=f"one of {', '.join(PROFILES)}; without PROFILE, all of them"
    )
    profiles = parser.parse_args().profiles or list(PROFILES)
    try:
        side_by_side(*(lambda profile=profile: publish(profile) for profile in profiles))
    except Failure as failure:
        print(f"hack/jars: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
