"""Reports as values for programs: what `--json` prints.

Amounts of the cost report are texts (`"494.40"`), exact in the currency's smallest unit, for a
number in JSON is a binary one to most readers. Estimates are numbers; an infinite bound (there were
too few days) is null.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import isfinite
from typing import Any

from late_spark import money
from late_spark.anomalies import COLUMNS, Anomaly
from late_spark.close.command import Done
from late_spark.close.compare import Row
from late_spark.command_capacity import CapacityReport, enough
from late_spark.command_impact import ImpactReport
from late_spark.cost import CostReport
from late_spark.forecast import Forecast
from late_spark.impact import Change
from late_spark.statistics import Interval
from late_spark.tables import header


def cost(report: CostReport) -> dict[str, Any]:
    """The rows add up: borne + unallocated = total; with what is outside, it is the bill."""

    def amount(cents: int) -> str:
        return money.plain(cents, report.digits)

    names = header(report.by)
    totals = report.totals
    return {
        "title": report.title,
        "currency": report.currency,
        "from": str(report.calendar.days[0]),
        "through": str(report.calendar.days[-1]),
        "time_zone": report.calendar.tz.key,
        "by": names,
        "total": amount(report.total_cents),
        "unallocated": amount(report.unallocated_cents),
        "warnings": [
            {"kind": each.kind, "first": str(each.first), "last": str(each.last),
             "days": each.days, "tasks": each.tasks, "cost": money.exact(each.amount),
             "line": each.line or None, "text": each.said(report.currency, report.digits)}
            for each in report.findings
        ],
        "exact": {
            "bill": money.exact(totals.bill),
            "borne": money.exact(totals.borne),
            "unallocated": money.exact(totals.unallocated),
            "outside": money.exact(totals.outside),
        },
        "rows": [
            {
                **dict(zip(names, row.by, strict=True)),
                "cost": amount(row.cents),
                "tasks": row.tasks if report.counted else None,
                "attempts": row.attempts if report.counted else None,
                "retries": row.retries if report.counted else None,
                "per_million_tasks": _exact(row.per_million()),
                "per_retry": _exact(row.per_retry()),
                "cost_of_retries": _exact(row.of_retries()) if report.counted else None,
            }
            for row in report.rows
        ],
        "why_unallocated": [
            {"line": line, "reason": reason, "cost": money.exact(units)}
            for line, reason, units in report.why_unallocated()
        ],
        "bridge": None if report.bridge is None else {
            "steps": {step: money.exact(units) for step, units in report.bridge.steps().items()},
            "restated": money.exact(report.bridge.restated),
            "adjustments": [
                {"line": each.line, "used_in": each.used_in, "billed_in": each.billed_in,
                 "kind": each.kind, "cost": money.exact(each.amount)}
                for each in report.bridge.adjustments
            ],
        },
        "efficiency": [
            {"ratio": each.name, "region": each.region, "measured": each.value,
             "best_feasible": each.best, "of_best": each.of_best, "basis": each.basis}
            for each in report.efficiency
        ],
    }  # fmt: skip


def close(done: Done) -> dict[str, Any]:
    """The month beside the last one and the budget; `report` is the cost report of the month."""
    of = done.close

    def amount(cents: int | None) -> str | None:
        return None if cents is None else money.plain(cents, of.this.digits)

    def row(each: Row) -> dict[str, Any]:
        return {
            **dict(zip(header(of.this.by), each.name, strict=True)),
            "cost": amount(each.this), "last": amount(each.last), "change": amount(each.change),
            "budget": amount(each.budget), "left": amount(each.left),
            "expected": amount(each.expected),
            "per_million": amount(each.per_million),
            "last_per_million": amount(each.last_per_million),
        }  # fmt: skip

    return {
        "month": of.month,
        "last_month": of.before,
        "no_last_month": of.no_last or None,
        "rows": [row(each) for each in of.rows()],
        "total": row(of.total()),
        "lines": [
            {"line": name, "cost": money.exact(mine), "last": _exact(last)}
            for name, mine, last in of.lines()
        ],
        "forecast": None if of.outlook.end is None else _forecast(of.outlook.end),
        "anomalies": _anomalies(of.outlook.unusual),
        "moved": [
            {
                "queue": each.queue,
                "task": each.name,
                "cost": money.exact(each.this),
                "last": money.exact(each.last),
                "by_tasks": money.exact(each.by_tasks),
                "by_rate": money.exact(each.by_rate),
            }
            for each in of.outlook.moved
        ],
        "business": [
            {
                "counted": each.metric,
                "tenant": each.tenant or None,
                "cost": money.exact(each.amount),
                "count": float(each.counted),
                "each": _rounded(each.each()),
                "last_each": _rounded(each.last_each()),
                "trend_in_a_week": each.trend and _interval(each.trend),
            }
            for _, found in of.business
            for each in found
        ],
        "releases": [
            {"release": each.name, "day": str(each.day), "changes": _changes(each.changes, of.this)}
            for each in of.outlook.released
        ],
        "warnings": of.warnings(),
        "signoff": done.signed.hash,
        "inputs": done.signed.inputs,
        "unchanged": done.unchanged,
        "changes": list(done.changes),
        "report": cost(of.this),
    }


def impact(found: ImpactReport) -> dict[str, Any]:
    """Before and after, unusual days, the month."""
    return {
        "title": found.title,
        "currency": found.currency,
        "at": str(found.at),
        "confidence": found.confidence,
        "changes": _changes(found.changes, found),
        "anomalies": _anomalies(found.anomalies),
        "forecast": _forecast(found.forecast),
    }


def _changes(found: Iterable[Change], of: ImpactReport | CostReport) -> list[dict[str, Any]]:
    return [
        {
            "measure": each.measure,
            "unit": of.currency if each.unit == "money" else each.unit,
            "before": each.before if each.days_before else None,
            "after": each.after if each.days_after else None,
            "difference": _interval(each.difference),
            "days_before": each.days_before,
            "days_after": each.days_after,
            "verdict": each.verdict(),
        }
        for each in found
    ]


def _anomalies(found: Iterable[Anomaly]) -> list[dict[str, Any]]:
    return [dict(zip(COLUMNS, each.row(), strict=True)) for each in found]


def _forecast(made: Forecast) -> dict[str, Any]:
    return {
        "month": made.month, "so_far": made.so_far, "days_seen": made.days_seen,
        "days_left": made.days_left, "days_before": made.days_before,
        "end": _interval(made.end), "budget": made.budget, "verdict": made.verdict(),
    }  # fmt: skip


def capacity(found: CapacityReport) -> dict[str, Any]:
    """Queues against their knobs, and the verdicts on shards and nodes."""
    return {
        "queues": [
            {
                "queue": each.queue,
                "peak_per_s": each.peak_per_s,
                "slots_needed": each.slots_needed,
                "tried": None if setting is None else {
                    "concurrency": setting.concurrency, "rate": setting.rate,
                    "backlog_max": each.backlog_max, "wait_max_s": each.wait_max_s,
                    "left": each.left, "enough": enough(each, setting),
                },
            }
            for each in found.queues
            for setting in [found.chosen.get(each.queue)]
        ],
        "verdicts": [
            {"subject": each.subject, "question": each.question, "answer": each.answer,
             "enough": each.enough}
            for each in found.verdicts
        ],
    }  # fmt: skip


def _rounded(units: Fraction | None) -> str | None:
    return None if units is None else money.exact(round(units))


def _exact(units: int | None) -> str | None:
    return None if units is None else money.exact(units)


def _interval(given: Interval) -> dict[str, float | None]:
    return {
        "estimate": given.estimate,
        "low": given.low if isfinite(given.low) else None,
        "high": given.high if isfinite(given.high) else None,
    }
