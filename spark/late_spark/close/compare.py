"""A month beside the last one and its budget. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple

from late_spark.anomalies import Span
from late_spark.close import outlook
from late_spark.close.budgets import TOTAL, Budget
from late_spark.close.business import Each, Metric
from late_spark.close.outlook import Outlook
from late_spark.cost import CostReport
from late_spark.cost import Row as CostRow

UNALLOCATED = "(unallocated)"


class Row(NamedTuple):
    """One that bears a part, in cents; None where it is not known or there is none."""

    name: tuple[str, ...]
    this: int
    last: int | None
    budget: int | None = None
    per_million: int | None = None
    last_per_million: int | None = None
    expected: int | None = None
    """Of the whole month, where it still runs."""

    @property
    def change(self) -> int | None:
        return None if self.last is None else self.this - self.last

    @property
    def left(self) -> int | None:
        """Of the budget; below zero it is overrun."""
        return None if self.budget is None else self.budget - self.this


@dataclass(frozen=True)
class Close:
    """Everything that the page shows but the sign-off."""

    month: str
    before: str
    """The month before."""
    this: CostReport
    last: CostReport | None
    no_last: str
    """Why there is nothing to compare with."""
    budget: Budget
    outlook: Outlook
    days: Sequence[date] = ()
    """Those of the month whose cost is known."""
    business: Sequence[tuple[Metric, Sequence[Each]]] = ()
    tenants: Mapping[Span, str] = field(default_factory=dict)
    """Who is behind unusual days."""

    def rows(self) -> list[Row]:
        """Those that bear a part, the largest first, and what nobody bears; the sum is `total`."""
        mine = {row.by: row for row in self.this.rows}
        theirs = {row.by: row for row in self.last.rows} if self.last else {}
        rest = [by for by in theirs if by not in mine]
        budgeted = [(name,) for name in self.budget.parts if (name,) not in {**mine, **theirs}]
        found = [self._row(by, mine.get(by), theirs.get(by)) for by in (*mine, *rest, *budgeted)]
        left = self.last.unallocated_cents if self.last else None
        if not self.this.unallocated_cents and not left:
            return found
        name = (UNALLOCATED, *[""] * (len(self.this.by) - 1))
        return [*found, Row(name, self.this.unallocated_cents, left)]

    def _row(self, by: tuple[str, ...], mine: CostRow | None, theirs: CostRow | None) -> Row:
        last = None if self.last is None else theirs.cents if theirs else 0
        units = self.budget.parts.get("/".join(by))
        end = self.outlook.parts.get(by)
        return Row(
            by, mine.cents if mine else 0, last, None if units is None else self.this.cents(units),
            self._each(mine), self._each(theirs), None if end is None else self.cents(end.estimate),
        )  # fmt: skip

    def day_costs(self) -> dict[date, float]:
        """Return the cost of each known day, in the currency."""
        return outlook.totals(self.this, self.days)

    def cents(self, amount: float) -> int:
        """Return an estimate, which is in the currency, in its smallest unit."""
        scale: int = 10**self.this.digits
        return round(amount * scale)

    def _each(self, row: CostRow | None) -> int | None:
        units = row.per_million() if row is not None and self.this.counted else None
        return None if units is None else self.this.cents(units)

    def total(self) -> Row:
        """Everything in the month."""
        last = self.last.total_cents if self.last else None
        budget = None if self.budget.total is None else self.this.cents(self.budget.total)
        of = (self.this.covered(), self.last.covered() if self.last else None)
        each = [
            None if part is None or not part.tasks
            else self.this.cents(part.amount * 1_000_000 // part.tasks)
            for part in of
        ]  # fmt: skip
        name = (TOTAL, *[""] * (len(self.this.by) - 1))
        end = self.outlook.end
        return Row(name, self.this.total_cents, last, budget, each[0], each[1],
                   None if end is None else self.cents(end.end.estimate))  # fmt: skip

    def lines(self) -> list[tuple[str, int, int | None]]:
        """(line, units of this month, of the last) of all that is in the month, borne or not."""
        mine = _by_line(self.this)
        theirs = _by_line(self.last) if self.last else {}
        names = sorted({*mine, *theirs}, key=lambda name: (-mine.get(name, 0), name))
        return [
            (name, mine.get(name, 0), theirs.get(name, 0) if self.last else None) for name in names
        ]

    def warnings(self) -> list[str]:
        """Say what must be known before the figures, of this month and of the last."""
        found = self.this.warnings()
        if self.last is None:
            found.append(f"Nothing to compare with: {self.before}: {self.no_last}")
        else:
            last = [each for each in self.last.warnings() if each not in found]
            found += [f"{self.before}: {each}" for each in last]
        left = self.total().left
        if left is not None and left < 0:
            found.append("The month is over its budget.")
        over = [row.name[0] for row in self.rows() if row.left is not None and row.left < 0]
        if over:
            found.append(f"Over their budgets: {', '.join(over)}.")
        return [*found, *self._ahead(), *self._uncounted()]

    def _ahead(self) -> list[str]:
        """Say whose budgets will not do, where the month still runs."""
        end, found = self.outlook.end, []
        if end is not None and "over" in end.verdict() and (self.total().left or 0) >= 0:
            found.append(f"At its end the month will be {end.verdict()}.")
        over = [
            f"{row.name[0]} ({row.this / row.budget:.0%} spent, {row.expected / row.budget:.0%} "
            "expected)"
            for row in self.rows()
            if row.budget and row.expected is not None and row.this <= row.budget < row.expected
        ]
        if over:
            found.append(f"At its end the month will be over the budgets of {', '.join(over)}.")
        return found

    def _uncounted(self) -> list[str]:
        found = []
        for metric, _ in self.business:
            days = metric.missing(self.days)
            if days:
                when = f"{days[0]}" if len(days) == 1 else f"{len(days)} days, {days[0]} the first"
                found.append(
                    f"{metric.source} has no {metric.name} of {when}: cost for each leaves that "
                    "out."
                )
        return found


def _by_line(report: CostReport) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, amount in [
        *((cost.line.name, cost.amount) for cost in report.costs),
        *((row.line.name, row.amount) for row in report.unallocated),
    ]:
        found[name] = found.get(name, 0) + amount
    return found
