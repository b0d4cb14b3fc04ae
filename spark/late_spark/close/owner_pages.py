"""A page for each owner, to be sent: what they bear, by task, beside the last month and their
budget. Each is one file that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path

from late_spark import cost
from late_spark.close import outlook, page
from late_spark.close.budgets import Budget
from late_spark.close.compare import Close
from late_spark.cost import NOBODY, CostReport

FOLDER = "owners"
BY = ("queue", "name")


def write(close: Close, releases: Mapping[date, str], folder: Path) -> None:
    """Write a page for each owner that bears a part of this month or of the last."""
    folder.mkdir()
    taken: set[str] = set()
    for owner, mine in closes(close, releases):
        name = file_name(owner, taken)
        (folder / name).write_text(page.of_owner(mine, owner), encoding="utf-8")


def closes(close: Close, releases: Mapping[date, str]) -> Iterator[tuple[str, Close]]:
    """Yield the close of each owner: by queue and task, with its budget as the total."""
    both = (*(close.last.costs if close.last else ()), *close.this.costs)
    for owner in sorted({each.key.owner or NOBODY for each in both}):
        this = cost.part(close.this, owner, BY, _cents(close.this, owner))
        last = close.last and cost.part(close.last, owner, BY, _cents(close.last, owner))
        budget = Budget(close.budget.parts.get(owner) if close.this.by == ("owner",) else None)
        yield owner, replace(
            close, this=this, last=last, budget=budget, business=(),
            outlook=outlook.told(
                outlook.make(this, last, close.days, budget, releases), close.tenants
            ),
        )  # fmt: skip


def _cents(report: CostReport, owner: str) -> int | None:
    """Return what the close's page has for the owner, where it is by owner."""
    if report.by != ("owner",):
        return None
    return next((row.cents for row in report.rows if row.by == (owner,)), 0)


def file_name(owner: str, taken: set[str]) -> str:
    """Make a name of letters that every file system takes; no two are the same."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", owner).strip("-")[:60] or "owner"
    found, number = stem, 1
    while found.casefold() in taken:
        number += 1
        found = f"{stem}-{number}"
    taken.add(found.casefold())
    return f"{found}.html"
