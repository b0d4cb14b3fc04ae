"""The catalogue of alerts for these queues: who is told, how urgently, and from when on. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from late.model.queue_settings import Knobs
from late.observability.alerts.catalogue import ALERTS, Alert, Severity

OBJECTIVE_S = 600.0
FRESHNESS_S = 60.0


class Settings(msgspec.Struct, frozen=True):
    """What the operator says of all alerts."""

    freshness_s: float = FRESHNESS_S
    """How stale a group may be."""
    objective_s: float = OBJECTIVE_S
    """How old a queue's oldest task may be that has no `objective_s` of its own."""
    owner: str = ""
    """Of what has no owner of its own."""
    runbooks: str = "docs/runbooks"
    """Where the pages are: a folder or the beginning of an URL."""


class Rule(msgspec.Struct, frozen=True):
    """One alert as it is evaluated."""

    alert: Alert
    expr: str
    severity: Severity
    owner: str
    queue: str | None
    """The one that it is about; None: all that have no rule of their own."""
    runbook: str

    @property
    def labels(self) -> dict[str, str]:
        """What an alert manager routes by."""
        found = {"severity": self.severity}
        return found | ({"owner": self.owner} if self.owner else {})

    @property
    def annotations(self) -> dict[str, str]:
        return {"summary": self.alert.summary, "runbook_url": self.runbook}


def rules(queues: Mapping[str, Knobs], settings: Settings | None = None) -> list[Rule]:
    """Every rule, in the order of the catalogue.

    Args:
        queues: those that are labelled or have an objective, by name; all others share a rule.
    """
    chosen = settings or Settings()
    own = {name: knobs for name, knobs in sorted(queues.items()) if _is_labelled(knobs)}
    return [rule for alert in ALERTS for rule in _of(alert, own, chosen)]


def _is_labelled(knobs: Knobs) -> bool:
    return any(each is not None for each in (knobs.owner, knobs.severity, knobs.objective_s))


def _of(alert: Alert, own: Mapping[str, Knobs], settings: Settings) -> Iterator[Rule]:
    page = f"{settings.runbooks.rstrip('/')}/{alert.runbook}.md"
    seconds = settings.freshness_s if "freshness" in alert.expr else settings.objective_s
    if not alert.per_queue:
        expr = alert.expr.replace("{seconds}", f"{seconds:g}")
        yield Rule(alert, expr, alert.severity, settings.owner, None, page)
        return
    others = "" if not own else f"queue!~{quoted('|'.join(map(_literal, own)))}"
    expr = alert.expr.format(queues=others, seconds=f"{seconds:g}")
    yield Rule(alert, expr, alert.severity, settings.owner, None, page)
    for name, knobs in own.items():
        seconds = settings.objective_s if knobs.objective_s is None else knobs.objective_s
        expr = alert.expr.format(queues=f"queue={quoted(name)}", seconds=f"{seconds:g}")
        severity = knobs.severity or alert.severity
        yield Rule(alert, expr, severity, knobs.owner or settings.owner, name, page)


def quoted(text: str) -> str:
    """A string of PromQL."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _literal(name: str) -> str:
    """A name as RE2 matches it and nothing else."""
    return "".join(c if c.isalnum() or c in "_-" else f"\\{c}" for c in name)
