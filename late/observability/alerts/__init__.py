"""Alerts and dashboards, made from the settings of queues: no network, no database. Pure.

| module | contents |
|---|---|
| `catalogue.py` | every alert: its condition, severity, duration and runbook |
| `rules.py` | the catalogue for these queues, with their owners, severities and objectives |
| `prometheus.py`, `terraform.py` | rules as a file for Prometheus, as a module for Terraform |
| `dashboard.py` | panels as a dashboard for Grafana |
"""

from __future__ import annotations

from late.observability.alerts.catalogue import ALERTS, Alert
from late.observability.alerts.rules import Rule, Settings, rules

__all__ = ["ALERTS", "Alert", "Rule", "Settings", "rules"]
