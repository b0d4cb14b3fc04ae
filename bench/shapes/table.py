"""A report of `bench.shapes` to tables in Markdown. Pure: the same report, the same text."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from bench.peers.table import rows, shown

HEAD = ("tasks", "/s", "of plain", "worker, µs a task", "fixed loop, ms", "late p50 / p99, ms")


def text(report: Mapping[str, Any]) -> str:
    """Format one table per store."""
    return "\n".join(rows([name, *HEAD], body(found)) for name, found in report["stores"].items())


def body(shapes: Mapping[str, Any]) -> list[list[str]]:
    """Return one line per shape; the plain shape of the same run is the measure of the others."""
    plain = middle(shapes["plain"], "per_s") if "plain" in shapes else None
    lines = []
    for found in shapes.values():
        per_s: float | None = middle(found, "per_s")
        lateness = "–"
        if "late_p50_ms" in found["turns"][0]:
            ranks = (middle(found, f"late_{rank}_ms") for rank in ("p50", "p99"))
            per_s = None  # Most of that time passes with waiting for the delays.
            lateness = " / ".join(shown(each, 1) for each in ranks)
        lines.append(
            [
                found["title"],
                shown(found["turns"][0]["tasks"]),
                shown(per_s),
                shown(per_s / plain if plain and per_s else None, 2),
                shown(middle(found, "worker_us"), 1),
                shown(middle(found, "loop_ms"), 2),
                lateness,
            ]
        )
    return lines


def middle(found: Mapping[str, Any], name: str) -> float:
    """Return the median of one figure over the turns."""
    return median(turn[name] for turn in found["turns"])
