"""The conflicts that workers report: of the last ten minutes, and of the ten before those. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from late.control.analyze.report import Change, Report, Wait, compare, named, report, view_of
from late.control.views import Reported
from late.model.worker_report import ConflictReport
from late.observability.conflict_tally import SPAN_S


class Conflicts(Report, frozen=True):
    """The pairs of ten minutes, as `late analyze --json` has them."""

    changes: list[Change] = msgspec.field(default_factory=list)
    """Each pair in the ten minutes before these and in these."""

    def without_keys(self) -> Conflicts:
        """Return names and times only: no rows and no statements."""
        pairs = [msgspec.structs.replace(pair, places=[], statements=[]) for pair in self.pairs]
        return msgspec.structs.replace(self, pairs=pairs)


NOTHING = Conflicts(for_s=SPAN_S, lost_s=0.0, pairs=[])


def conflicts(reports: Iterable[Reported]) -> Conflicts:
    """Make the report of what workers have told."""
    told = [each for reported in reports for each in reported.report.conflicts]
    if not told:
        return NOTHING
    # Whom a victim has met in one of the spans names the other one in both.
    waits = list(zip(told, named([_wait(each) for each in told]), strict=True))
    now = report(
        (_with(wait, each.lost_s, each.count) for each, wait in waits if each.count), for_s=SPAN_S
    )
    before = report(
        (_with(wait, each.before_s, each.before) for each, wait in waits if each.before),
        for_s=SPAN_S,
    )
    return Conflicts(
        for_s=now.for_s, lost_s=now.lost_s, pairs=now.pairs, changes=compare(before, now)
    )


def _wait(told: ConflictReport) -> Wait:
    return Wait(
        view_of(told.kind), told.kind, told.tag, told.other, told.place,
        told.lost_s + told.before_s, told.count + told.before, told.attempt, told.statement,
        told.other_statement, told.other_idle,
    )  # fmt: skip


def _with(wait: Wait, lost_s: float, count: int) -> Wait:
    return msgspec.structs.replace(wait, lost_s=lost_s, count=count)
