"""Results of `bench.alone` to tables in Markdown. Pure: the same results, the same text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.peers.table import rows, shown


def text(report: Mapping[str, Any]) -> str:
    """Format all tables of a run."""
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
    """W8: no-ops, and tasks that compute."""
    found = report["workers"]
    if not found:
        return ""
    named = {"nothing": "no-ops", "compute": "tasks that compute"}
    head = [
        "two workers beside one, medians",
        "1 worker, /s",
        "2 workers, /s",
        "times as fast",
        f"of {report['machine']['cores']} processors in use, 1 worker",
        "2 workers",
    ]
    body = []
    for task in dict.fromkeys(one["task"] for one in found):
        one, two = (each for each in found if each["task"] == task)
        body.append(
            [
                f"{one['tasks']:,} {named[task]} at once",
                shown(one["per_s"]),
                shown(two["per_s"]),
                shown(two["per_s"] / one["per_s"], 2),
                shown(one["processors"], 2),
                shown(two["processors"], 2),
            ]
        )
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
