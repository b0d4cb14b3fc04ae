"""The budgets of a close as metrics: a file for a textfile collector of Prometheus. Pure."""

from __future__ import annotations

from late.observability.metrics import METRICS, Registry, render
from late_spark.close.compare import Close

FILE = "budgets.prom"


def text(close: Close) -> str:
    """Render what each that has a budget has spent of it, and is expected to."""
    rows = [row for row in (close.total(), *close.rows()) if row.budget]
    registry = Registry(label_max=len(rows))
    ends = {day: end for day, _, end in close.this.calendar.bounds}
    until_us = ends[close.days[-1]] if close.days else close.this.calendar.from_us
    for row in rows:
        assert row.budget is not None
        expected = row.this if row.expected is None else row.expected
        part = ("/".join(filter(None, row.name)),)
        for name, value in (
            ("late_budget_spent_ratio", row.this / row.budget),
            ("late_budget_expected_ratio", expected / row.budget),
            ("late_budget_known_timestamp_seconds", until_us / 1e6),
        ):
            registry.set(METRICS[name], part, value)
    return render(registry).decode()
