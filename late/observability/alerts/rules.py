"""The catalogue of alerts for these queues and budgets, with owners, severities and objectives.

Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from late.model.queue_settings import QueueSettings
from late.observability.alerts.catalogue import ALERTS, Alert, Severity

OBJECTIVE_S = 600.0
FRESHNESS_S = 60.0


class Settings(msgspec.Struct, frozen=True):
    """The operator's settings for all alerts."""

    freshness_s: float = FRESHNESS_S
    """Seconds by which a group may be behind."""
    objective_s: float = OBJECTIVE_S
    """The age that a queue's oldest task may have, if the queue has no `objective_s` of its own."""
    owner: str = ""
    """The owner of rules whose queue has none of its own."""
    runbooks: str = "docs/runbooks"
    """The place of the runbooks: the beginning of a URL, or a folder. Only a URL becomes the
    annotation `runbook_url`, which a pager opens; a path becomes `runbook`."""


class Rule(msgspec.Struct, frozen=True):
    """One alert as it is evaluated."""

    alert: Alert
    expr: str
    severity: Severity
    owner: str
    queue: str | None
    """The rule's queue; None for all queues without a rule of their own."""
    runbook: str
    part: str | None = None
    """The part whose budget it is; None for all parts without a rule of their own."""

    @property
    def subject(self) -> dict[str, str]:
        """The label that tells the rules of one alert apart."""
        found = {"queue": self.queue, "part": self.part}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def labels(self) -> dict[str, str]:
        """The labels by which an alert manager routes."""
        found = {"severity": self.severity}
        return found | ({"owner": self.owner} if self.owner else {})

    @property
    def annotations(self) -> dict[str, str]:
        is_url = self.runbook.startswith(("http://", "https://"))
        key = "runbook_url" if is_url else "runbook"
        return {"summary": self.alert.summary, key: self.runbook}


def rules(
    queues: Mapping[str, QueueSettings],
    settings: Settings | None = None,
    budgets: Mapping[str, str] | None = None,
) -> list[Rule]:
    """Make every rule, in the order of the catalogue.

    Args:
        queues: settings by name. Queues with labels or an objective have rules of their own; all
            others share one.
        budgets: the owner of the rule of each part that has a budget; empty: that of all.
    """
    chosen = settings or Settings()
    own = {name: labels for name, labels in sorted(queues.items()) if _is_labelled(labels)}
    return [
        rule
        for alert in ALERTS
        for rule in (
            _of_budgets(alert, budgets or {}, chosen)
            if alert.per_budget
            else _of(alert, own, chosen)
        )
    ]


def _is_labelled(labels: QueueSettings) -> bool:
    return any(each is not None for each in (labels.owner, labels.severity, labels.objective_s))


def _of_budgets(alert: Alert, owners: Mapping[str, str], settings: Settings) -> Iterator[Rule]:
    page = _page(alert, settings)
    expr = alert.expr.format(parts=_others("part", owners))
    yield Rule(alert, expr, alert.severity, settings.owner, None, page)
    for part, owner in owners.items():
        expr = alert.expr.format(parts=f"part={quoted(part)}")
        yield Rule(alert, expr, alert.severity, owner or settings.owner, None, page, part)


def _page(alert: Alert, settings: Settings) -> str:
    return f"{settings.runbooks.rstrip('/')}/{alert.runbook}.md"


def _others(label: str, own: Collection[str]) -> str:
    """Match all but those that have rules of their own."""
    return "" if not own else f"{label}!~{quoted('|'.join(map(_literal, own)))}"


def _of(alert: Alert, own: Mapping[str, QueueSettings], settings: Settings) -> Iterator[Rule]:
    page = _page(alert, settings)
    seconds = settings.freshness_s if "freshness" in alert.expr else settings.objective_s
    if not alert.per_queue:
        expr = alert.expr.replace("{seconds}", f"{seconds:g}")
        yield Rule(alert, expr, alert.severity, settings.owner, None, page)
        return
    expr = alert.expr.format(queues=_others("queue", own), seconds=f"{seconds:g}")
    yield Rule(alert, expr, alert.severity, settings.owner, None, page)
    for name, labels in own.items():
        seconds = settings.objective_s if labels.objective_s is None else labels.objective_s
        expr = alert.expr.format(queues=f"queue={quoted(name)}", seconds=f"{seconds:g}")
        severity = labels.severity or alert.severity
        yield Rule(alert, expr, severity, labels.owner or settings.owner, name, page)


def quoted(text: str) -> str:
    """Quote a text as a string of PromQL."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _literal(name: str) -> str:
    """Escape a name so that RE2 matches only this name."""
    return "".join(c if c.isalnum() or c in "_-" else f"\\{c}" for c in name)
