"""From what was billed for a time to what was used in it, step by step. Pure.

    billed in the periods of the range          the invoices' BilledCost
    + spread                                    purchases over the time that they are for
    - used before, - used after                 of these bills
    + billed earlier, + billed later            of what was used in the range
    + corrections                               of it, in later bills
    = used in the range                         what the report divides

A bill's period belongs to the range in which its middle lies: bills are of months in UTC or another
zone, the range is of local days.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from late_spark.calendar import Calendar, iso
from late_spark.charges import Charge, over_days

STEPS = {
    "billed": "Billed in the periods of the range (BilledCost)",
    "spread": "Purchases spread over the time that they are for",
    "before": "Of it used before the range",
    "after": "Of it used after the range",
    "billed_earlier": "Used in the range, billed in an earlier period",
    "billed_later": "Used in the range, billed in a later period",
    "corrections": "Used in the range, corrected in a later period",
}


class Adjustment(NamedTuple):
    """What a bill says about the time before its period."""

    line: str
    billed_in: str
    """The month of the bill, as `2026-09`."""
    used_in: str
    kind: str
    """`correction`, or `late charge` where the bill does not say that it corrects."""
    amount: int
    inside: int
    """The part of it that is in the range."""


@dataclass(frozen=True)
class Bridge:
    """In units; the steps add up to what the charges are within the range, for each line."""

    lines: dict[str, dict[str, int]]
    adjustments: tuple[Adjustment, ...]

    def steps(self) -> dict[str, int]:
        """Return the steps of all lines together."""
        return {step: sum(of[step] for of in self.lines.values()) for step in STEPS}

    @property
    def restated(self) -> int:
        """What later bills changed in the range. Taken away, it is what was known before."""
        steps = self.steps()
        return steps["billed_later"] + steps["corrections"]


def of(billed: Iterable[Charge], calendar: Calendar) -> Bridge | None:
    """Return the bridge; None without a bill."""
    lines: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(STEPS, 0))
    adjusted: dict[tuple[str, str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    some = False
    for charge in billed:
        if charge.period is None:
            continue
        some = True
        before, inside, after = _spans(charge, calendar)
        begin, end = charge.period
        middle = (begin + end) // 2
        line = lines[charge.line.name]
        if calendar.from_us <= middle < calendar.to_us:
            line["billed"] += charge.invoiced
            line["spread"] += charge.amount - charge.invoiced
            line["before"] -= before
            line["after"] -= after
        elif middle < calendar.from_us:
            line["billed_earlier"] += inside
        else:
            line["corrections" if charge.correction else "billed_later"] += inside
        if charge.start_us < begin:
            kind = "correction" if charge.correction else "late charge"
            months = iso(begin)[:7], iso(charge.start_us)[:7]
            sums = adjusted[charge.line.name, *months, kind]
            sums[0] += charge.amount
            sums[1] += inside
    found = (Adjustment(*key, *sums) for key, sums in sorted(adjusted.items()) if any(sums))
    return Bridge(dict(sorted(lines.items())), tuple(found)) if some else None


def _spans(charge: Charge, calendar: Calendar) -> tuple[int, int, int]:
    """Return the parts of a charge before, in and after the range."""
    parts = over_days(charge.amount, charge.start_us, charge.end_us, calendar)
    inside = sum(part for day, part in parts if day is not None)
    out = [part for day, part in parts if day is None]
    if len(out) == 2:
        return out[0], inside, out[1]
    early = charge.start_us < calendar.from_us
    return (sum(out), inside, 0) if early else (0, inside, sum(out))
