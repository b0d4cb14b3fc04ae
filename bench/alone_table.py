"""Results of `bench.alone` to tables in Markdown. Pure: the same results, the same text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.peers.table import rows, shown


def text(report: Mapping[str, Any]) -> str:
    """All tables of a run."""
    box = report["machine"]
    told = (
        f"{report['at'][:10]}, {box['cpu']}, {box['cores']} cores, Python {box['python']}, "
        f"{report['server']}. "
        f"Load before: {box['load_before'][0]}, after: {report['load_after']}.\n"
    )
    parts = [told, backlog(report), workers(report), parked(report), remote(report)]
    return "\n".join(part for part in parts if part)


def backlog(report: Mapping[str, Any]) -> str:
    """W5."""
    found = report["backlog"]
    if not found:
        return ""
    head = ["one worker", *(f"{one['waiting']:,} waiting" for one in found)]
    first = found[0]["per_s"]
    body = [
        ["drained, /s", *(shown(one["per_s"]) for one in found)],
        ["in parts of the first", *(shown(one["per_s"] / first, 2) for one in found)],
    ]
    return rows(head, body)


def workers(report: Mapping[str, Any]) -> str:
    """W8: as they come, and held to a part of a processor each, where that was possible."""
    found = report["workers"]
    if not found:
        return ""
    head = [
        f"{found[0]['tasks']:,} tasks at once",
        "1 worker, /s",
        "2 workers, /s",
        "times as fast",
    ]
    body = []
    for cores in dict.fromkeys(one.get("cores") for one in found):
        rates = [one["per_s"] for one in found if one.get("cores") == cores]
        name = f"each held to {cores} of a processor" if cores else "as they come"
        body.append([name, *map(shown, rates), shown(rates[-1] / rates[0], 2)])
    return rows(head, body)


def parked(report: Mapping[str, Any]) -> str:
    """W6."""
    one = report.get("parked")
    if one is None:
        return ""
    more = one["memory_after_mib"] - one["memory_before_mib"]
    body = [
        ["parked in the table", shown(one["parked"])],
        ["of those that fell due, started", shown(one["due"])],
        ["before their time", shown(one["early"])],
        ["late by, p50 / p99 / most, ms"],
        ["memory of the worker, MiB", shown(one["memory_after_mib"], 1)],
        ["more than before, MiB", shown(more, 1)],
    ]
    body[3].append(" / ".join(shown(one[rank], 1) for rank in ("p50_ms", "p99_ms", "max_ms")))
    return rows(["parked tasks", "measured"], body)


def remote(report: Mapping[str, Any]) -> str:
    """W9."""
    found = report["remote"]
    if not found:
        return ""
    named = {"pull": "fetched by one consumer, /s", "push": "pushed to one service, /s"}
    head = [f"{found[0]['tasks']:,} no-ops over gRPC", "measured"]
    return rows(head, [[named[one["way"]], shown(one["per_s"])] for one in found])
