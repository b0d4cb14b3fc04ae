"""Results of `bench.steady` to tables in Markdown. Pure: the same results, the same text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from bench.peers.table import rows, shown

Entry = Mapping[str, Any]


def brief(one: Mapping[str, Any]) -> str:
    """Format one measurement in one line, as it comes."""
    return ", ".join(
        f"{name} {value:,.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in one.items()
        if value is not None and not isinstance(value, list)
    )


def text(report: Mapping[str, Any]) -> str:
    """Format all tables of a run."""
    box = report["machine"]
    versions = dict.fromkeys(one["versions"] for one in report["places"])
    told = (
        f"{report['at'][:10]}, {box['cpu']}, {box['cores']} cores, Python {box['python']}, "
        f"{'; '.join(versions)}. {report['seconds']:g} s at each rate. "
        f"Load before: {box['load_before'][0]}, after: {report.get('load_after', '–')}."
        f"{' ' if report.get('note') else ''}{report.get('note', '')}\n"
    )
    rates = sorted({run["rate"] for one in report["places"] for run in one.get("steady", ())})
    parts = [told, *(at_rate(report, rate) for rate in rates)]
    parts += [sparse(report), shapes(report), idle(report), clients(report), failures(report)]
    return "\n".join(part for part in parts if part)


def behind_by(run: Mapping[str, Any]) -> bool:
    """Tell whether the producers did not reach the rate."""
    return bool(run["reached_per_s"] < 0.95 * run["rate"])


def _name(one: Entry, run: Mapping[str, Any]) -> str:
    behind = f", {shown(run['reached_per_s'])}/s reached" if behind_by(run) else ""
    handler = ", a plain `def` with an UPDATE" if run.get("task") == "update" else ""
    return f"{one['title']}, {one['store']}{handler}{behind}"


def _ranks(run: Mapping[str, Any]) -> str:
    return f"{shown(run.get('p50_ms'), 1)} / {shown(run.get('p99_ms'), 1)}"


_FIGURES: tuple[tuple[str, str, int], ...] = (
    ("journal rows a task", "journal_rows_per_task", 3),
    ("WAL by the worker, bytes a task", "wal_worker_per_task", 0),
    ("of the producer", "wal_producer_per_task", 0),
    ("growth, bytes a task", "growth_per_task", 0),
    ("rows updated or deleted one by one, a task", "dead_rows_per_task", 2),
    ("worker, µs a task", "worker_cpu_us", 0),
    ("% of a core", "worker_cpu_percent", 1),
    ("database, µs a task", "server_cpu_us", 0),
    ("% of a core", "server_cpu_percent", 1),
)


def at_rate(report: Mapping[str, Any], rate: float) -> str:
    """Format what was measured at one rate, a row for each queue, store and handler."""
    head = [f"{rate:,g}/s, one task a transaction", "commit to start, p50 / p99, ms"]
    head += [name for name, _, _ in _FIGURES] + ["fixed loop, ms"]
    body = [
        [
            _name(one, run),
            _ranks(run),
            *(shown(run.get(key), digits) for _, key, digits in _FIGURES),
            shown(run["loop_ms"], 2),
        ]
        for one in report["places"]
        for run in one.get("steady", ())
        if run["rate"] == rate
    ]
    return rows(head, body)


def _simple(
    report: Mapping[str, Any],
    kind: str,
    head: Sequence[str],
    cells: Callable[[Mapping[str, Any]], list[str]],
) -> str:
    body = [
        [f"{one['title']}, {one['store']}", *cells(run), shown(run["loop_ms"], 2)]
        for one in report["places"]
        for run in one.get(kind, ())
    ]
    return rows([*head, "fixed loop, ms"], body) if body else ""


def sparse(report: Mapping[str, Any]) -> str:
    found = [run for one in report["places"] for run in one.get("sparse", ())]
    gap = found[0]["gap_s"] if found else 0
    head = [f"one task every {gap:g} s", "tasks", "commit to start, median, ms", "least", "most"]

    def cells(run: Mapping[str, Any]) -> list[str]:
        lags = run["lags_ms"]
        return [
            shown(run["tasks"]),
            *(shown(value, 1) for value in (median(lags), min(lags), max(lags))),
        ]

    return _simple(report, "sparse", head, cells)


def shapes(report: Mapping[str, Any]) -> str:
    head = ["every task delayed, or every first attempt failed", "journal rows a task"]
    head += ["WAL by the worker, bytes a task", "dead rows a task", "worker, µs a task"]
    head += ["database, µs a task", "fixed loop, ms"]
    body = [
        [
            f"{one['title']}, {one['store']}, {run['rate']:,g}/s, "
            + ("delayed" if run["delayed"] else "retried"),
            shown(run.get("journal_rows_per_task"), 3),
            shown(run.get("wal_worker_per_task")),
            shown(run.get("dead_rows_per_task"), 2),
            shown(run.get("worker_cpu_us")),
            shown(run.get("server_cpu_us")),
            shown(run["loop_ms"], 2),
        ]
        for one in report["places"]
        for run in one.get("shapes", ())
    ]
    return rows(head, body) if body else ""


def idle(report: Mapping[str, Any]) -> str:
    found = [run for one in report["places"] for run in one.get("idle", ())]
    count = found[0]["workers"] if found else 0
    head = [f"{count} workers without work", "workers, % of a core", "database", "database alone"]
    head += ["WAL, bytes/s", "connections"]

    def cells(run: Mapping[str, Any]) -> list[str]:
        return [
            shown(run["workers_cpu_percent"], 1),
            shown(run["server_cpu_percent"], 1),
            shown(run["server_alone_cpu_percent"], 1),
            shown(run["wal_per_s"]),
            shown(run["connections"]),
        ]

    return _simple(report, "idle", head, cells)


def clients(report: Mapping[str, Any]) -> str:
    found = [run for one in report["places"] for run in one.get("clients", ())]
    count = found[0]["clients"] if found else 0
    head = [f"{count} clients, a row and a task a transaction", "without a worker, /s"]
    head += ["beside one that slept, /s", "ratio", "beside one that polls, /s", "told / polls"]

    def cells(run: Mapping[str, Any]) -> list[str]:
        alone, beside = run["without_worker_per_s"], run["with_worker_per_s"]
        polls = run.get("with_polling_worker_per_s")
        found = [shown(alone), shown(beside), shown(beside / alone, 2)]
        return [*found, shown(polls), shown(polls and beside / polls, 2)]

    return _simple(report, "clients", head, cells)


def failures(report: Mapping[str, Any]) -> str:
    """List what could not be measured: no number stands for it."""
    return "".join(
        f"- not measured: {one['title']}, {one['store']}: {' '.join(reason.split())[:200]}\n"
        for one in report["places"]
        for reason in one["failed"]
    )
