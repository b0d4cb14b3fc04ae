"""A dashboard for Grafana: flow, backlog, freshness, errors; then ownership and the database. Pure.

Source: grafana/grafana, the JSON model of dashboards (schema version 39).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

WIDTH = 12
HEIGHT = 8
SERVER = "Database server (PostgreSQL)"
"""A row that is empty on other databases, which do not show these figures by SQL."""
_BY = 'group=~"$group",queue=~"$queue"'
_GROUP = 'group=~"$group"'


class Panel(msgspec.Struct, frozen=True):
    """One chart: (PromQL, legend) for each line."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"


class Row(msgspec.Struct, frozen=True):
    title: str
    panels: tuple[Panel, ...]


def _quantiles(metric: str, by: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            f"histogram_quantile({q}, "
            f"sum by (le) (rate({metric}_bucket{{{by}}}[$__rate_interval])))",
            f"p{q * 100:g}",
        )
        for q in (0.5, 0.95, 0.99)
    )


def _rate(metric: str, by: str, legend: str, filters: str) -> tuple[str, str]:
    return f"sum by ({by}) (rate({metric}{{{filters}}}[$__rate_interval]))", legend


def _server(metric: str, by: str) -> tuple[str, str]:
    # Not added up: several workers may report the same figures.
    return f"max by ({by}) (rate({metric}[$__rate_interval]))", f"{{{{{by}}}}}"


def _worst(metric: str, by: str, legend: str, filters: str) -> tuple[str, str]:
    return f"max by ({by}) ({metric}{{{filters}}})", legend


ROWS: tuple[Row, ...] = (
    Row("What needs attention", (
        Panel("Freshness: everything this old is done", (
            _worst("late_freshness_seconds", "group", "{{group}}", _GROUP),), "s"),
        Panel("Oldest task", (
            _worst("late_queue_oldest_age_seconds", "group, queue", "{{group}} {{queue}}", _BY),),
            "s"),
        Panel("Dead letters", (
            _worst("late_queue_dead", "group, queue", "{{group}} {{queue}}", _BY),)),
        Panel("Live workers, and wanted", (
            _worst("late_workers", "group", "{{group}} live", _GROUP),
            _worst("late_workers_wanted", "group", "{{group}} wanted", _GROUP),
            _worst("late_shards_unowned", "group", "{{group}} shards without owner", _GROUP))),
    )),
    Row("Flow", (
        Panel("Arrivals", (_rate("late_enqueued_total", "queue", "{{queue}}", _BY),), "ops"),
        Panel("Ends, by outcome", (
            _rate("late_outcomes_total", "outcome", "{{outcome}}", _BY),), "ops"),
        Panel("Backlog", (
            _worst("late_queue_depth", "group, queue", "{{queue}} depth", _BY),
            _worst("late_queue_in_flight", "group, queue", "{{queue}} in flight", _BY),
            _worst("late_queue_parked", "group, queue", "{{queue}} parked", _BY))),
        Panel("Retries", (_rate("late_retries_total", "queue", "{{queue}}", _BY),), "ops"),
        Panel("Waiting", _quantiles("late_wait_seconds", _BY), "s"),
        Panel("Running", _quantiles("late_run_seconds", _BY), "s"),
        Panel("Attempts, by target", (
            _rate("late_attempts_total", "target", "{{target}}", _BY),), "ops"),
        Panel("Saturation, and time to drain", (
            _worst("late_saturation", "group", "{{group}} busy share", _GROUP),
            _worst("late_drain_seconds", "group", "{{group}} seconds to drain", _GROUP))),
    )),
    Row("Workers and shards", (
        Panel("Slots busy", (
            ("sum by (instance) (late_slots_busy)", "{{instance}} busy"),
            ("sum by (instance) (late_slots_waiting)", "{{instance}} waiting"),
            ("sum by (instance) (late_slots_stuck)", "{{instance}} stuck"))),
        Panel("Shards per worker", (
            ("count by (instance) (late_shard_epoch)", "{{instance}}"),)),
        Panel("Shards acquired", (
            ("sum by (group) (increase(late_lease_acquired_total[$__rate_interval]))",
             "{{group}}"),)),
        Panel("Reading behind the log, per group", (
            _worst("late_tail_lag_seconds", "group", "{{group}}", _GROUP),), "s"),
    )),
    Row("Database", (
        Panel("Group commit", _quantiles("late_settle_seconds", ""), "s"),
        Panel("Tasks in one group commit", _quantiles("late_settle_tasks", "")),
        Panel("Reading the log", _quantiles("late_read_seconds", _GROUP), "s"),
        Panel("Records of one read", _quantiles("late_read_records", _GROUP)),
        Panel("Statements", (_rate("late_statements_total", "verb", "{{verb}}", ""),), "ops"),
        Panel("Bytes read", (
            _rate("late_read_bytes_total", "group", "{{group}}", _GROUP),), "Bps"),
        Panel("Heartbeat", _quantiles("late_heartbeat_seconds", ""), "s"),
        Panel("Clock of the database, ahead by", (
            ("max by (instance) (late_clock_offset_seconds)", "{{instance}}"),), "s"),
    )),
    Row(SERVER, (
        Panel("Transactions of the database", (
            _server("late_database_transactions_total", "outcome"),), "ops"),
        Panel("Rows of the database", (
            _server("late_database_rows_total", "verb"),), "ops"),
        Panel("Write-ahead log", (
            ("max(rate(late_database_wal_bytes_total[$__rate_interval]))", "server"),), "Bps"),
        Panel("Blocks, from cache and disk", (
            _server("late_database_blocks_total", "source"),), "ops"),
        Panel("Size", (("max(late_database_size_bytes)", "database"),), "bytes"),
        Panel("Connections, and most", (
            ("max(late_database_connections)", "connections"),
            ("max(late_database_connections_max)", "most"))),
        Panel("Rows that wait for vacuum", (("max(late_database_dead_rows)", "rows"),)),
    )),
)  # fmt: skip


def render() -> str:
    """Render the dashboard's JSON, for import or provisioning."""
    return msgspec.json.format(msgspec.json.encode(_dashboard(ROWS)), indent=2).decode() + "\n"


def _dashboard(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "uid": "late",
        "title": "late",
        "tags": ["late"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_source(), _variable("group"), _variable("queue")]},
        "panels": list(_panels(rows)),
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _variable(label: str) -> dict[str, Any]:
    query = f"label_values(late_queue_depth, {label})"
    return {
        "name": label,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": {"query": query, "refId": label},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    number, y = 0, 0
    for row in rows:
        number += 1
        place = {"h": 1, "w": 2 * WIDTH, "x": 0, "y": y}
        yield {"id": number, "type": "row", "title": row.title, "gridPos": place, "panels": []}
        y += 1
        for index, panel in enumerate(row.panels):
            number += 1
            at = {"h": HEIGHT, "w": WIDTH, "x": index % 2 * WIDTH, "y": y + index // 2 * HEIGHT}
            yield _panel(panel, number, at)
        y += (len(row.panels) + 1) // 2 * HEIGHT


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(65 + index), "expr": expr, "legendFormat": legend, "datasource": source}
            for index, (expr, legend) in enumerate(panel.queries)
        ],
    }
