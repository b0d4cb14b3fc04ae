"""A report of `bench.shapes` to tables in Markdown. Pure: the same report, the same text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench.peers.table import rows, shown

HEAD = (
    "tasks",
    "/s",
    "of plain, least – most",
    "worker, µs a task",
    "of plain, least – most",
    "from its start, µs a task",
    "server, µs a task",
    "fixed loop, ms",
    "delayed tasks late by, p50 / p99, ms",
)


PEER_HEAD = (
    "tasks, late / peer",
    "late, /s",
    "peer, /s",
    "late / peer, least – most",
    "worker of late, µs a task",
    "of the peer",
    "server with late, µs a task",
    "with the peer",
    "fixed loop, late / peer, ms",
)
MIX_HEAD = (
    "tasks",
    "/s",
    "worker, µs a task",
    "server, µs a task",
    "delayed tasks late by, p50 / p99, ms",
)
BRIEF = ("/s", "worker, µs a task")
ORDINARY = ("plain", "mix", "once", "shared")
NAMES = {"sqlite": "late on SQLite", "postgresql": "late on PostgreSQL"}


def text(report: Mapping[str, Any]) -> str:
    """Format one table per store and one per peer, the conditions before them, and what gave up."""
    parts = (("stores", stores), ("peers", peers))
    tables = [each for part, make in parts for each in [*told(report, part), *make(report)]]
    return "\n".join([*tables, *gave_up(report)])


def brief(report: Mapping[str, Any]) -> str:
    """Format the plain and the ordinary shapes side by side, on every store."""
    found = report["stores"]
    head = ["one worker, in one run"]
    head += [
        f"{NAMES[store].removeprefix('late on ')}, {what}" for store in found for what in BRIEF
    ]
    lines = []
    for name in ORDINARY:
        line = [found[next(iter(found))][name]["title"]]
        for store in found.values():
            turns = store[name]["turns"]
            line += [shown(middle(turns, "per_s")), shown(middle(turns, "worker_us"))]
        lines.append(line)
    return rows(head, lines)


def told(report: Mapping[str, Any], part: str) -> list[str]:
    """Say when and where one part was measured, and what else the machine did."""
    found = report.get("conditions", {}).get(part)
    if found is None:
        return []
    box = found["machine"]
    loads = [load for load in _loads(report.get(part, {})) if load is not None]
    during = f", before a drain {min(loads)} to {max(loads)}" if loads else ""
    return [
        f"{found['at'][:10]}, {box['cpu']}, {box['cores']} cores, Python {box['python']}, "
        f"{'; '.join(found['versions'])}. {found['turns']} turns, "
        f"{found['count']:,} tasks of the plain shape. Load of the machine before: "
        f"{box['load_before'][0]}{during}, after: {found['load_after']}.{_note(found)}\n"
    ]


def _note(found: Mapping[str, Any]) -> str:
    return f" {found['note']}" if found.get("note") else ""


def _loads(found: Any) -> list[float | None]:
    """Collect the loads before all drains of a part."""
    if isinstance(found, Mapping):
        own = [found["load"]] if "load" in found else []
        return own + [load for each in found.values() for load in _loads(each)]
    return [load for each in found for load in _loads(each)] if isinstance(found, list) else []


def stores(report: Mapping[str, Any]) -> list[str]:
    found = report.get("stores", {}).items()
    return [rows([NAMES[name], *HEAD], body(shapes)) for name, shapes in found]


def peers(report: Mapping[str, Any]) -> list[str]:
    """Format one table per peer; the mix, whose time is that of its delays, by itself."""
    tables = []
    for peer in report.get("peers", {}).values():
        plain = [one for name, one in peer["shapes"].items() if name != "mix"]
        body = [against(one["title"], one["turns"]) for one in plain]
        tables += [rows([f"late beside {peer['title']}", *PEER_HEAD], body)] * bool(body)
    mixes = [line for peer in report.get("peers", {}).values() for line in mix(peer)]
    return tables + [rows(["the mix, in turns", *MIX_HEAD], mixes)] * bool(mixes)


def against(title: str, turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return medians of both sides, and of the ratios of neighbours."""
    late, peer = ([turn[side] for turn in turns] for side in ("late", "peer"))
    return [
        title,
        both(turns, "tasks", 0),
        shown(middle(late, "per_s")),
        shown(middle(peer, "per_s")),
        spread(turns, "ratio"),
        shown(middle(late, "worker_us"), 1),
        shown(middle(peer, "worker_us"), 1),
        shown(middle(late, "server_us"), 1),
        shown(middle(peer, "server_us"), 1),
        both(turns, "loop_ms", 2),
    ]


def mix(peer: Mapping[str, Any]) -> list[list[str]]:
    """Return one line for each side of the mix."""
    if "mix" not in peer["shapes"]:
        return []
    turns = peer["shapes"]["mix"]["turns"]
    lines = []
    for side, title in (("late", f"late, beside {peer['title']}"), ("peer", peer["title"])):
        found = [turn[side] for turn in turns]
        lines.append(
            [
                title,
                shown(middle(found, "tasks")),
                shown(middle(found, "per_s")),
                shown(middle(found, "worker_us"), 1),
                shown(middle(found, "server_us"), 1),
                lateness(found),
            ]
        )
    return lines


def both(turns: Sequence[Mapping[str, Any]], name: str, digits: int) -> str:
    sides = ([turn[side] for turn in turns] for side in ("late", "peer"))
    return " / ".join(shown(middle(side, name), digits) for side in sides)


def lateness(turns: Sequence[Mapping[str, Any]]) -> str:
    ranks = [middle(turns, f"late_{rank}_ms") for rank in ("p50", "p99")]
    return "–" if None in ranks else " / ".join(shown(each, 1) for each in ranks)


def gave_up(report: Mapping[str, Any]) -> list[str]:
    """List the drains without figures."""
    return [
        f"Not measured: {one['where']}, {one['shape']}, turn {one['turn']}:"
        f" {one['reason'].splitlines()[0]}\n"
        for one in report.get("gave_up", ())
    ]


def body(shapes: Mapping[str, Any]) -> list[list[str]]:
    """Return one line per shape."""
    return [line(found["title"], found["turns"]) for found in shapes.values()]


def line(title: str, turns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return medians over the turns, and the range of the ratio that is read first."""
    return [
        title,
        shown(turns[0]["tasks"]),
        shown(middle(turns, "per_s")),
        spread(turns, "of_plain"),
        shown(middle(turns, "worker_us"), 1),
        spread(turns, "cpu_of_plain"),
        shown(middle(turns, "life_us"), 1),
        shown(middle(turns, "server_us"), 1),
        shown(middle(turns, "loop_ms"), 2),
        lateness(turns),
    ]


def middle(turns: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the median of one figure over the turns that have it."""
    found = [turn[name] for turn in turns if name in turn]
    return median(found) if found else None


def spread(turns: Sequence[Mapping[str, Any]], name: str) -> str:
    """Format a median with the least and the most of the turns."""
    found = sorted(turn[name] for turn in turns if name in turn)
    if not found:
        return "–"
    middle_one = median(found)
    digits = 1 if middle_one >= 10 else 2 if middle_one >= 0.1 else 3
    shares = (shown(each, digits) for each in (middle_one, found[0], found[-1]))
    return "{}, {} – {}".format(*shares)
