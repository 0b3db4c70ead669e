#!/usr/bin/env python3
"""Draw the pictures of the concept pages: `docs/pictures/draw.py` writes an SVG for each, with --check it fails if one differs.

A picture has a background of its own, so it is legible in light and in dark pages.
"""

import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
STYLE = """
  .card { fill: #fbfcfd; stroke: #d3dce4 }
  .frame { fill: #eef3f7; stroke: #b8c6d3; stroke-dasharray: 5 4 }
  .firn { fill: #dcf0f6; stroke: #0b6e8f }
  .store { fill: #fdf0d5; stroke: #b57a12 }
  .outside { fill: #ffffff; stroke: #8a94a0 }
  .arrow { fill: none; stroke: #4a5866; stroke-width: 1.5; marker-end: url(#head) }
  .head { fill: #4a5866 }
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; font-size: 14px; fill: #17212b;
         text-anchor: middle }
  .title { font-weight: 600 }
  .note { font-size: 12px; fill: #4a5866 }
  .label { font-size: 12px; fill: #2d3945; paint-order: stroke; stroke: #fbfcfd; stroke-width: 5px; stroke-linejoin: round }
  .inside { stroke: #eef3f7 }
  .name { font-size: 13px; font-weight: 600; fill: #4a5866; text-anchor: start }
  @media (prefers-color-scheme: dark) {
    .card { fill: #1b2229; stroke: #3a4651 }
    .frame { fill: #232d36; stroke: #4d5d6b }
    .firn { fill: #12404f; stroke: #5cc8e6 }
    .store { fill: #4a3710; stroke: #e0a93f }
    .outside { fill: #1b2229; stroke: #8a94a0 }
    .arrow { stroke: #a9b7c4 }
    .head { fill: #a9b7c4 }
    text { fill: #eef3f7 }
    .note, .name { fill: #b5c2ce }
    .label { fill: #dbe4ec; stroke: #1b2229 }
    .inside { stroke: #232d36 }
  }
"""
Point = tuple[int, int]


@dataclass(frozen=True)
class Box:
    """A part: its kind is `firn`, `store` or `outside`; `notes` are smaller lines below its title."""

    x: int
    y: int
    width: int
    height: int
    title: str
    notes: tuple[str, ...] = ()
    kind: str = "firn"

    def svg(self) -> list[str]:
        """Return the elements of the box."""
        middle = self.x + self.width // 2
        first = self.y + self.height // 2 + 5 - 8 * len(self.notes)
        lines = [f'<text class="title" x="{middle}" y="{first}">{escape(self.title)}</text>']
        lines += [
            f'<text class="note" x="{middle}" y="{first + 17 * (row + 1)}">{escape(note)}</text>'
            for row, note in enumerate(self.notes)
        ]
        return [rectangle(self.kind, self.x, self.y, self.width, self.height), *lines]


@dataclass(frozen=True)
class Frame:
    """A process around its parts."""

    x: int
    y: int
    width: int
    height: int
    name: str

    def svg(self) -> list[str]:
        """Return the elements of the frame."""
        name = f'<text class="name" x="{self.x + 12}" y="{self.y + 20}">{escape(self.name)}</text>'
        return [rectangle("frame", self.x, self.y, self.width, self.height), name]


@dataclass(frozen=True)
class Arrow:
    """A line from the first point to the last; `at` is the middle of its label, `inside` a frame or not."""

    points: tuple[Point, ...]
    label: str = ""
    at: Point = (0, 0)
    inside: bool = False

    def svg(self) -> list[str]:
        """Return the elements of the arrow."""
        path = " L ".join(f"{x} {y}" for x, y in self.points)
        elements = [f'<path class="arrow" d="M {path}"/>']
        if self.label:
            kind = "label inside" if self.inside else "label"
            elements.append(f'<text class="{kind}" x="{self.at[0]}" y="{self.at[1]}">{escape(self.label)}</text>')
        return elements


def rectangle(kind: str, x: int, y: int, width: int, height: int) -> str:
    """Return a rectangle with round corners."""
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'


@dataclass(frozen=True)
class Picture:
    """A picture of 860 by `height` pixels; `description` is what a screen reader says."""

    description: str
    height: int
    parts: tuple[Frame | Box | Arrow, ...]

    def svg(self) -> str:
        """Return the whole file."""
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {self.height}" width="860" height="{self.height}" role="img">',
            f"<title>{escape(self.description)}</title>",
            f"<style>{STYLE}</style>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto">',
            '<path class="head" d="M 0 0 L 10 5 L 0 10 z"/></marker></defs>',
            rectangle("card", 1, 1, 858, self.height - 2),
            *(element for part in self.parts for element in part.svg()),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


PICTURES = {
    "apply-to-status": Picture(
        "A watch puts a key into the work queue. A reconcile observes, checks, acts on topic, table and job contract, and reports the status.",
        350,
        (
            Frame(230, 24, 330, 302, "operator"),
            Box(28, 40, 150, 52, "kubectl apply", kind="outside"),
            Box(28, 166, 150, 64, "IcebergTopic", ("spec and status",)),
            Box(250, 166, 120, 64, "work queue", ("one key at a time",)),
            Box(410, 58, 130, 44, "observe"),
            Box(410, 126, 130, 44, "check"),
            Box(410, 194, 130, 44, "plan and act"),
            Box(410, 262, 130, 44, "report"),
            Box(672, 40, 160, 50, "Kafka topic", kind="store"),
            Box(672, 112, 160, 50, "Iceberg table", kind="store"),
            Box(672, 184, 160, 54, "job contract", ("ConfigMap",), kind="store"),
            Box(672, 272, 160, 50, "ingestion driver"),
            Arrow(((103, 92), (103, 164)), "spec", (103, 132)),
            Arrow(((178, 198), (248, 198)), "watch", (204, 190)),
            Arrow(((370, 186), (390, 186), (390, 80), (408, 80))),
            Arrow(((475, 102), (475, 124))),
            Arrow(((475, 170), (475, 192))),
            Arrow(((475, 238), (475, 260))),
            Arrow(((540, 206), (600, 206), (600, 65), (670, 65)), "create", (636, 57)),
            Arrow(((540, 213), (615, 213), (615, 137), (670, 137)), "create", (642, 130)),
            Arrow(((540, 220), (670, 220)), "write", (634, 213)),
            Arrow(((752, 238), (752, 270)), "read", (772, 259)),
            Arrow(((672, 297), (562, 297)), "progress", (618, 289)),
            Arrow(((410, 290), (103, 290), (103, 232)), "conditions, written once", (180, 282)),
        ),
    ),
    "record-to-row": Picture(
        "Workers read records of a round from Kafka and write Parquet files. The driver commits files and offsets in one snapshot.",
        390,
        (
            Frame(352, 24, 270, 282, "ingestion driver and its workers"),
            Box(24, 146, 108, 56, "producers", kind="outside"),
            Box(172, 146, 108, 56, "Kafka topic", kind="store"),
            Box(376, 58, 222, 52, "plan a round", ("offsets from and to",)),
            Box(376, 146, 222, 56, "read, decode, write", ("Spark's Python workers",)),
            Box(376, 236, 222, 52, "commit", ("one snapshot: rows and offsets",)),
            Box(692, 58, 146, 52, "dead-letter table", kind="store"),
            Box(692, 146, 146, 56, "Parquet files", kind="store"),
            Box(692, 236, 146, 52, "Iceberg table", kind="store"),
            Box(684, 322, 162, 46, "any Iceberg engine", kind="outside"),
            Arrow(((132, 174), (170, 174))),
            Arrow(((280, 174), (374, 174)), "records", (309, 166)),
            Arrow(((487, 110), (487, 144))),
            Arrow(((487, 202), (487, 234)), "files", (508, 222), inside=True),
            Arrow(((598, 164), (646, 164), (646, 84), (690, 84)), "bad records", (650, 126)),
            Arrow(((598, 180), (690, 180)), "rows", (655, 173)),
            Arrow(((598, 262), (690, 262)), "commit", (655, 255)),
            Arrow(((765, 288), (765, 320)), "query", (790, 309)),
            Arrow(
                ((692, 278), (660, 278), (660, 345), (342, 345), (342, 84), (374, 84)),
                "landed offsets: the next round begins there",
                (490, 337),
            ),
        ),
    ),
    "policy-to-run": Picture(
        "The operator measures the debt of tables, decides which are due under their policies, and starts Spark Jobs that do the work.",
        372,
        (
            Frame(240, 24, 268, 282, "operator"),
            Box(28, 58, 160, 48, "CompactionPolicy"),
            Box(28, 126, 160, 48, "RetentionPolicy"),
            Box(28, 238, 160, 52, "Iceberg tables", kind="store"),
            Box(264, 58, 220, 48, "pack tables into runs"),
            Box(264, 146, 220, 52, "which tables are due?", ("trigger, schedule, run-now",)),
            Box(264, 238, 220, 52, "measure debt", ("metadata only",)),
            Box(598, 40, 234, 54, "Spark Job", ("many small tables, or a large one",)),
            Box(
                598,
                124,
                234,
                146,
                "for each table, in this order",
                (
                    "take the lease",
                    "rows past their age, compaction",
                    "snapshots, metadata files",
                    "orphan files",
                    "release the lease",
                ),
            ),
            Arrow(((188, 82), (216, 82), (216, 164), (262, 164))),
            Arrow(((188, 150), (216, 150), (216, 164), (262, 164))),
            Arrow(((188, 264), (262, 264)), "read", (216, 256)),
            Arrow(((374, 238), (374, 200))),
            Arrow(((374, 146), (374, 108))),
            Arrow(((484, 70), (596, 70)), "contract", (553, 62)),
            Arrow(((715, 94), (715, 122))),
            Arrow(((598, 180), (486, 180)), "report", (553, 172)),
            Arrow(((715, 270), (715, 340), (108, 340), (108, 292)), "commits", (410, 332)),
        ),
    ),
    "produce-and-fetch": Picture(
        "A broker collects batches in a file, uploads it with one PUT, and commits it at the coordinator, which assigns the offsets.",
        362,
        (
            Frame(200, 24, 380, 314, "diskless broker"),
            Box(20, 66, 108, 56, "producers", kind="outside"),
            Box(20, 252, 108, 56, "consumers", kind="outside"),
            Box(222, 66, 132, 56, "check batches", ("header and CRC",)),
            Box(424, 66, 132, 56, "active file", ("idle, 250 ms or 8 MiB",)),
            Box(424, 166, 132, 48, "cache"),
            Box(222, 252, 132, 56, "fetch"),
            Box(690, 66, 146, 56, "bucket", ("one object a file",), kind="store"),
            Box(690, 252, 146, 56, "coordinator", ("offsets, topics, groups",), kind="store"),
            Arrow(((128, 84), (220, 84)), "1 batches", (163, 76)),
            Arrow(((220, 106), (130, 106)), "4 offsets", (163, 124)),
            Arrow(((354, 94), (422, 94))),
            Arrow(((556, 94), (688, 94)), "2 one PUT", (632, 86)),
            Arrow(((556, 114), (650, 114), (650, 262), (688, 262)), "3 commit", (650, 226)),
            Arrow(((490, 122), (490, 164))),
            Arrow(((720, 122), (720, 190), (558, 190)), "on a miss", (740, 158)),
            Arrow(((490, 214), (490, 268), (356, 268)), "batches", (424, 260), inside=True),
            Arrow(((354, 292), (688, 292)), "positions", (632, 284)),
            Arrow(((222, 280), (130, 280)), "records", (163, 272)),
        ),
    ),
}


def main(arguments: list[str]) -> int:
    """Write the pictures, or with --check name those that differ."""
    stale = []
    for name, picture in PICTURES.items():
        path = FOLDER / f"{name}.svg"
        if not path.is_file() or path.read_text() != picture.svg():
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(picture.svg())
    if "--check" in arguments:
        for file in stale:
            print(f"docs/pictures/{file} differs: run docs/pictures/draw.py", file=sys.stderr)
        return 1 if stale else 0
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
