"""Draw `docs/architecture.svg` from the real imports: `python scripts/architecture.py`.

The picture shows the rooms of `late/` in the layers of the import contract (`pyproject.toml`), so
that an import that obeys the contract is an arrow that points down. The rooms that a task passes
through are numbered in its order, and every import between them is drawn. Of the other imports
those are left out that follow from the ones drawn (the transitive reduction). The lowest layers,
which nearly every room imports, stand in a frame without arrows.

A test compares the file with a fresh picture. A new room needs a line in `ROOMS`.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "architecture.svg"

WIDTH, COLUMNS = 1000, 5
BOX_WIDTH, BOX_HEIGHT, LAYER_HEIGHT, ROW_HEIGHT = 178, 48, 68, 62
STEP_WIDTH, STEP_HEIGHT = 90, 96
LIFE_Y = 40
LAYERS_Y = LIFE_Y + STEP_HEIGHT + 54
FOUNDATION = "notify"
"""The layer of this room and all below it stand in the frame."""

ROOMS: dict[str, tuple[float, str]] = {
    "contrib": (2, "frameworks: Django"),
    "cli": (2, "the command `late`"),
    "celery": (3.5, "Celery's calls on `late`"),
    "testing": (4, "helpers for tests"),
    "api": (1, "HTTP and gRPC interfaces"),
    "supervisor": (2.5, "parent of several workers"),
    "web": (0, "the page for operators"),
    "worker": (2, "wiring, pools, duties"),
    "consumer": (4, "the client of `late serve`"),
    "cache": (1, "values that the log keeps true"),
    "app": (3.5, "what a producer sees"),
    "control": (0.5, "operators' commands"),
    "autoscaler": (0, "database size follows load"),
    "tailer": (1, "leases, pages of the log"),
    "scheduler": (2, "what runs next (pure)"),
    "dispatcher": (2.95, "attempts: here, push, pull"),
    "handler": (4, "what a handler sees"),
    "outbox": (3.45, "rows in your transaction"),
    "store": (2, "one per database, one seam"),
    "schema": (1, "tables and migrations"),
    "payload": (3.45, "bytes of arguments"),
    "notify": (0, "wake-ups after a commit"),
    "observability": (1, "logs, traces, metrics, alerts"),
    "config": (2, "settings of a process"),
    "events": (3, "signals for logs and metrics"),
    "model": (4, "pure values: tasks, ids"),
    "clock": (0, "the database's time"),
    "errors": (1, "one tree of errors"),
    "concurrency": (2, "threads"),
    "v1": (3, "generated gRPC messages"),
}
"""Column and purpose of each room. `late/__main__.py` only starts `cli` and is left out."""

LIFE = (
    ("app", "enqueue", "checks and encodes arguments"),
    ("outbox", "insert", "one row in your transaction"),
    ("tailer", "tail", "reads a complete page"),
    ("scheduler", "admit", "waits for time and key"),
    ("scheduler", "start", "asks limits and priority"),
    ("dispatcher", "run", "here, or at a service"),
    ("handler", "classify", "names the outcome"),
    ("scheduler", "decide", "done, again later, or dead"),
    ("dispatcher", "settle", "one journal row for many"),
    ("store", "prune", "what all have settled goes"),
)
"""The life of a task: room, verb, and what happens."""

_STYLE = """
text{font-family:Helvetica,Arial,sans-serif;fill:#1f2933}
.title{font-size:15px;font-weight:bold}.note{font-size:12px;fill:#52606d}
.name{font-size:14px;font-weight:bold}.what{font-size:11px;fill:#3e4c59}
.room{fill:#fff;stroke:#9aa5b1}.path{fill:#e6f0fb;stroke:#2f6db5;stroke-width:1.5}
.import{fill:none;stroke:#b0b9c3;stroke-width:1.1}
.along{fill:none;stroke:#2f6db5;stroke-width:1.7}
.frame{fill:#f0f2f5;stroke:#cbd2d9}
.against{fill:none;stroke:#c0392b;stroke-width:1.4;stroke-dasharray:5 4}
.badge{fill:#2f6db5}.number{font-size:11px;font-weight:bold;fill:#fff;text-anchor:middle}
"""

Edges = frozenset[tuple[str, str]]


def layers(pyproject: str) -> list[list[str]]:
    """The rooms of each layer of the contract with the id `layers`, the highest first."""
    contracts = tomllib.loads(pyproject)["tool"]["importlinter"]["contracts"]
    found = next(each for each in contracts if each["id"] == "layers")
    rooms = [layer.replace("|", " ").replace(":", " ") for layer in found["layers"]]
    return [[name.strip("()") for name in layer.split()] for layer in rooms]


def imports(package: Path) -> Edges:
    """The pairs (importer, imported) of rooms, imports for types and inside functions included."""
    names = {path.stem for path in package.iterdir() if path.suffix == ".py" or path.is_dir()}
    found = set()
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        for module in _imported(ast.parse(path.read_text(encoding="utf-8"))):
            parts = module.split(".")
            if parts[0] == package.name and len(parts) > 1 and parts[1] in names - {room}:
                found.add((room, parts[1]))
    return frozenset(found)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{each.name}" for each in node.names)


def reduced(edges: Edges) -> Edges:
    """The edges that do not follow from others. `edges` must have no circle."""
    after: dict[str, set[str]] = {}
    for source, target in edges:
        after.setdefault(source, set()).add(target)

    def reach(room: str) -> set[str]:
        return set().union(*({each} | reach(each) for each in after.get(room, ())))

    return frozenset(
        (source, target)
        for source, target in edges
        if not any(target in reach(each) for each in after[source] - {target})
    )


def picture(rows: Sequence[Sequence[str]], edges: Edges) -> str:
    """The whole SVG.

    Args:
        rows: rooms by layer, the highest first.
        edges: pairs (importer, imported).

    Raises:
        ValueError: a room is not in `ROOMS`, or a name there is no room.
    """
    rows = [row for row in rows if "__main__" not in row]
    known = {room for row in rows for room in row}
    if wrong := known ^ ROOMS.keys():
        raise ValueError(f"ROOMS in scripts/architecture.py and the layers differ: {sorted(wrong)}")
    first = next(number for number, row in enumerate(rows) if FOUNDATION in row)
    level = {room: number for number, row in enumerate(rows[:first]) for room in row}
    edges = frozenset((a, b) for a, b in edges if a in level and b in level)
    down = frozenset((a, b) for a, b in edges if level[a] <= level[b])
    life = {room for room, _, _ in LIFE}
    path = life | {"worker"}
    within = frozenset((a, b) for a, b in down if a in path and b in path)
    along = reduced(within) | {(a, b) for a, b in within if a in life}
    kinds = [
        ("import", reduced(down) - along), ("along", along), ("against", edges - down),
    ]  # fmt: skip
    places = _places(rows[:first])
    parts = [_arrow(kind, places[a], places[b]) for kind, each in kinds for a, b in sorted(each)]
    frame = max(y for _, y in places.values()) + BOX_HEIGHT + 26
    places |= _foundation([room for row in rows[first:] for room in row], frame + 34)
    height = max(y for _, y in places.values()) + BOX_HEIGHT + 22
    parts.append(_frame(frame, height - 10 - frame))
    parts += [_room(room, x, y, on_path=room in path) for room, (x, y) in places.items()]
    heads = "".join(
        f'<marker id="{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="{colour}"/>'
        "</marker>"
        for kind, colour in (("import", "#b0b9c3"), ("along", "#2f6db5"), ("against", "#c0392b"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="The life of a task, and the rooms of late in layers">\n'
        f"<!-- Made by scripts/architecture.py from the imports of late/; a test compares them. -->"
        f"<style>{_STYLE}</style><defs>{heads}</defs>\n"
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fbfcfd"/>\n'
        + "\n".join([*_life(), *_captions(bool(edges - down)), *parts])
        + "\n</svg>\n"
    )


def _places(rows: Sequence[Sequence[str]]) -> dict[str, tuple[float, float]]:
    """Left and top of each box; each layer stands below the one before it."""
    return {
        room: (_left(room), LAYERS_Y + number * LAYER_HEIGHT)
        for number, row in enumerate(rows)
        for room in row
    }


def _foundation(rooms: Sequence[str], top: float) -> dict[str, tuple[float, float]]:
    """Left and top of each box in the frame, in rows, in the order of the contract."""
    return {
        room: (_left(room), top + number // COLUMNS * ROW_HEIGHT)
        for number, room in enumerate(rooms)
    }


def _frame(y: float, height: float) -> str:
    return (
        f'<rect class="frame" x="4" y="{y:.0f}" width="{WIDTH - 8}" height="{height:.0f}" rx="7"/>'
        f'<text class="note" x="14" y="{y + 21:.0f}">What the rooms above are built on, the higher '
        "layers first (no arrows)</text>"
    )


def _left(room: str) -> float:
    column = WIDTH / COLUMNS
    return column * ROOMS[room][0] + (column - BOX_WIDTH) / 2


def _arrow(kind: str, source: tuple[float, float], target: tuple[float, float]) -> str:
    """A curve between two boxes: from edge to edge beside each other, else from below to above,
    bent towards the side where the other box is."""
    (x1, y1), (x2, y2) = source, target
    lean = max(-1.0, min(1.0, (x2 - x1) / WIDTH * 2))
    if y1 == y2:
        x1, x2 = (x1 + BOX_WIDTH, x2) if x1 < x2 else (x1, x2 + BOX_WIDTH)
        bend, y1, y2 = 0.0, y1 + BOX_HEIGHT / 2, y2 + BOX_HEIGHT / 2
    else:
        x1, x2 = x1 + BOX_WIDTH * (0.5 + 0.4 * lean), x2 + BOX_WIDTH * (0.5 - 0.4 * lean)
        y1, y2 = (y1 + BOX_HEIGHT, y2) if y1 < y2 else (y1, y2 + BOX_HEIGHT)
        bend = max(18.0, abs(y2 - y1) * 0.45) * (1 if y1 < y2 else -1)
    if kind == "against":
        x1, x2 = x1 + 22, x2 + 22
    return (
        f'<path class="{kind}" marker-end="url(#{kind})" d="M{x1:.0f} {y1:.0f}'
        f'C{x1:.0f} {y1 + bend:.0f} {x2:.0f} {y2 - bend:.0f} {x2:.0f} {y2:.0f}"/>'
    )


def _room(room: str, x: float, y: float, *, on_path: bool) -> str:
    steps = [number for number, step in enumerate(LIFE, 1) if step[0] == room]
    return (
        f'<rect class="{"path" if on_path else "room"}" x="{x:.0f}" y="{y:.0f}" '
        f'width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="5"/>'
        f'<text class="name" x="{x + 9:.0f}" y="{y + 19:.0f}">{escape(room)}</text>'
        + _text([ROOMS[room][1]], x + 9, y + 37, 13)
        + "".join(
            _badge(number, x + BOX_WIDTH - 14 - 21 * place, y + 13)
            for place, number in enumerate(reversed(steps))
        )
    )


def _life() -> Iterator[str]:
    """The steps of a task, from left to right."""
    yield f'<text class="title" x="14" y="{LIFE_Y - 16}">The life of a task</text>'
    space = (WIDTH - 28 - len(LIFE) * STEP_WIDTH) / (len(LIFE) - 1)
    for number, (room, verb, what) in enumerate(LIFE, 1):
        x = 14 + (number - 1) * (STEP_WIDTH + space)
        yield (
            f'<rect class="path" x="{x:.0f}" y="{LIFE_Y}" width="{STEP_WIDTH}" '
            f'height="{STEP_HEIGHT}" rx="5"/>{_badge(number, x + 13, LIFE_Y + 15)}'
            f'<text class="name" x="{x + 25:.0f}" y="{LIFE_Y + 20}">{verb}</text>'
            f'<text class="note" x="{x + 8:.0f}" y="{LIFE_Y + 38}">{room}</text>'
            + _text(wrap(what, 13), x + 8, LIFE_Y + 54, 13)
        )
        if number < len(LIFE):
            y = LIFE_Y + STEP_HEIGHT / 2
            end = x + STEP_WIDTH + space
            yield (
                f'<path class="along" marker-end="url(#along)" '
                f'd="M{x + STEP_WIDTH:.0f} {y:.0f}H{end:.0f}"/>'
            )


def _captions(against: bool) -> Iterator[str]:
    y = LIFE_Y + STEP_HEIGHT + 30
    yield f'<text class="title" x="14" y="{y}">The rooms of late/</text>'
    note = "An arrow is an import. Blue: in a task's life. Grey: others, where none imply them."
    if against:
        note += " Dashed: for types only."
    yield f'<text class="note" x="190" y="{y}">{escape(note)}</text>'


def _text(lines: Sequence[str], x: float, y: float, step: float) -> str:
    return "".join(
        f'<text class="what" x="{x:.0f}" y="{y + number * step:.0f}">{escape(line)}</text>'
        for number, line in enumerate(lines)
    )


def _badge(number: int, x: float, y: float) -> str:
    return (
        f'<circle class="badge" cx="{x:.0f}" cy="{y:.0f}" r="9"/>'
        f'<text class="number" x="{x:.0f}" y="{y + 4:.0f}">{number}</text>'
    )


def fresh() -> str:
    """The picture of the tree as it is."""
    rows = layers((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return picture(rows, imports(ROOT / "late"))


def main() -> int:
    PICTURE.write_text(fresh(), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
