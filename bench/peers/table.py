"""Results to tables in Markdown. Pure: the same results, the same text.

Ratios are to late in the same run. A number that is not there is a dash, never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]
Cell = Callable[[Entry], float | None]


def rows(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *body]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def shown(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def single(clients: int) -> Cell:
    return lambda entry: next(
        (one["per_s"] for one in entry["single"] if one["clients"] == clients), None
    )


def lag(rate: int, rank: str, *, hold: bool = False) -> Cell:
    return lambda entry: next(
        (
            one[rank]
            for one in entry["latency"]
            if one["asked_per_s"] == rate and one["open_transaction"] == hold
        ),
        None,
    )


def measured(report: Mapping[str, Any]) -> list[Entry]:
    return [entry for entry in report["peers"] if "failed" not in entry]


def throughput(report: Mapping[str, Any]) -> str:
    """W1 and W2."""
    entries = measured(report)
    ours = next((e["drain_per_s"] for e in entries if e["peer"] == "late"), None)
    clients = sorted({one["clients"] for entry in entries for one in entry["single"]})
    head = ["", "drain, /s", "late is … times as fast", "in bulk, /s"]
    head += [f"one per transaction, {count} client{'s' * (count > 1)}, /s" for count in clients]
    body = [
        [
            entry["title"],
            shown(entry["drain_per_s"]),
            shown(None if ours is None else ours / entry["drain_per_s"], 1),
            shown(entry["enqueue_bulk_per_s"]),
            *(shown(single(count)(entry)) for count in clients),
        ]
        for entry in entries
    ]
    return rows(head, body)


def scale(report: Mapping[str, Any]) -> str:
    """W5 and W8, as ratios to W1 of the same peer; nothing where neither was asked for."""
    entries = measured(report)
    backlogs = sorted({one["tasks"] for entry in entries for one in entry.get("backlog", ())})
    workers = sorted({one["workers"] for entry in entries for one in entry.get("workers", ())})
    if not (backlogs or workers):
        return ""
    head = ["drain, in parts of the one above"]
    head += [f"{tasks:,} waiting" for tasks in backlogs]
    head += [f"{count} workers" for count in workers]
    body = []
    for entry in entries:
        sizes = {one["tasks"]: one["drain_per_s"] for one in entry.get("backlog", ())}
        counts = {one["workers"]: one["drain_per_s"] for one in entry.get("workers", ())}
        rates = [sizes.get(tasks) for tasks in backlogs] + [counts.get(n) for n in workers]
        parts = [None if rate is None else rate / entry["drain_per_s"] for rate in rates]
        body.append([entry["title"], *(shown(part, 2) for part in parts)])
    return rows(head, body)


def latency(report: Mapping[str, Any]) -> str:
    """W3 and W7: p50 / p99 in milliseconds at each rate."""
    entries = measured(report)
    kinds = sorted(
        {
            (one["open_transaction"], one["asked_per_s"])
            for entry in entries
            for one in entry["latency"]
        }
    )
    head = ["commit to start, p50 / p99, ms"]
    head += [f"{rate:,}/s" + ", beside an open transaction" * hold for hold, rate in kinds]
    body = [
        [
            entry["title"],
            *(
                f"{shown(lag(rate, 'p50_ms', hold=hold)(entry), 1)}"
                f" / {shown(lag(rate, 'p99_ms', hold=hold)(entry), 1)}"
                for hold, rate in kinds
            ),
        ]
        for entry in entries
    ]
    return rows(head, body)


def enduring(report: Mapping[str, Any]) -> str:
    """W7's rounds: the last one beside the first, and what came after, with a snapshot held and
    without; nothing where it was not asked for."""
    entries = [entry for entry in measured(report) if entry.get("enduring")]
    if not entries:
        return ""
    rounds = len(entries[0]["enduring"][0]["per_s"])
    head = [f"{rounds} rounds, one after the other", "first, /s", "last, /s", "p99 after, ms"]
    head += ["first, a snapshot held, /s", "last, /s", "p99 after, ms", "last, held / not"]
    body = []
    for entry in entries:
        free, held = sorted(entry["enduring"], key=lambda one: bool(one["held"]))
        cells = [
            cell
            for one in (free, held)
            for cell in (
                shown(one["per_s"][0]),
                shown(one["per_s"][-1]),
                shown(one["p99_ms"], 1),
            )
        ]
        share = held["per_s"][-1] / free["per_s"][-1]
        body.append([entry["title"], *cells, shown(share, 2)])
    return rows(head, body)


def costs(report: Mapping[str, Any]) -> str:
    """W4, of those that keep their tasks in PostgreSQL."""
    entries = [entry for entry in measured(report) if entry["same_transaction"]]
    head = ["per task", "WAL, bytes", "of which its insert", "rows written", "dead rows"]
    head += ["transactions", "worker, µs", "database, µs"]
    body = [
        [
            entry["title"],
            shown(entry["per_task"]["wal_bytes"]),
            shown(entry["wal_insert_bytes"]),
            shown(entry["per_task"]["rows_written"], 2),
            shown(entry["per_task"]["dead_rows"], 2),
            shown(entry["per_task"]["transactions"], 3),
            shown(entry["worker_cpu_us"]),
            shown(entry["database_cpu_us"]),
        ]
        for entry in entries
    ]
    return rows(head, body)


def who(report: Mapping[str, Any]) -> str:
    """List how each was set up, and why some have no numbers."""
    body = []
    for entry in report["peers"]:
        versions = ", ".join(f"{k} {v}" for k, v in entry.get("versions", {}).items()) or "–"
        settings = entry["settings"]
        if "failed" in entry:
            settings = f"**not measured**: {' '.join(entry['failed'].split())[:200]}"
        joins = "yes" if entry["same_transaction"] else "no"
        body.append([entry["title"], versions, settings, joins, entry["durability"]])
    head = ["", "versions", "settings", "joins the caller's transaction", "survives"]
    return rows(head, body).replace("--:", "---")


def loads(report: Mapping[str, Any]) -> str:
    """Say how much other work the machine had."""
    found = [(entry.get("load_before"), entry["title"]) for entry in report["peers"]]
    each = [f"{title} {load}" for load, title in found if load is not None]
    before = f"Load of the machine before the run: {report['machine']['load_before'][0]}"
    return f"{before}; before each, left by the one before and by others: {', '.join(each)}."


def text(report: Mapping[str, Any]) -> str:
    """Format all tables of a run."""
    found, box = report["limits"], report["machine"]
    told = (
        f"{report['at'][:10]}, {box['cpu']}, {box['cores']} cores, Python {box['python']}, "
        f"{report['server']}.\n{loads(report)}\n"
        f"The same driver without any queue: {found['drain_per_s']:,.0f} rows/s read and deleted, "
        f"{found['write_per_s']:,.0f} written by COPY, "
        f"{found['commit_per_s']:,.0f} transactions/s of two inserts.\n"
    )
    parts = [told, throughput(report), scale(report), latency(report)]
    parts += [enduring(report), costs(report), who(report)]
    return "\n".join(part for part in parts if part)
