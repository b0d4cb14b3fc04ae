"""Metrics of a Spanner instance from Cloud Monitoring.

The series are the ones in Google's guidance for sizing: high-priority CPU (the sum over locations
and databases, the highest of each minute), the 24 h average of all CPU, bytes of storage, and the
size at that time. Without that size a reading from before a resize would pass for one after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.api_core import exceptions as api
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.cloud import monitoring_v3

from late.autoscaler.metrics.source import Metrics, MetricsError
from late.autoscaler.policy import Units
from late.errors import ConfigError

LOOK_BACK_US = 900 * 1_000_000
PERIOD_S = 60
TIMEOUT_S = 30.0
_PREFIX = "spanner.googleapis.com/instance/"
CPU = f"{_PREFIX}cpu/utilization_by_priority"
CPU_TOTAL = f"{_PREFIX}cpu/utilization"
CPU_24H = f"{_PREFIX}cpu/smoothed_utilization"
STORAGE = f"{_PREFIX}storage/used_bytes"
SIZES = {"nodes": f"{_PREFIX}node_count", "processing_units": f"{_PREFIX}processing_units"}
Points = dict[int, float]
"""Value by end of its minute, microseconds."""


class MonitoringSource:
    """The series of one instance. `client` is Google's, or one that answers like it."""

    def __init__(
        self, instance: str, units: Units = "nodes", client: Any = None, *, total: bool = False
    ) -> None:
        self._total = total
        _, self._project, _, self._instance = instance.split("/")
        self._size = SIZES[units]
        try:
            self._client = monitoring_v3.MetricServiceClient() if client is None else client
        except DefaultCredentialsError as error:
            raise ConfigError(f"no credentials for Cloud Monitoring: {error}") from error

    def read(self, now_us: int) -> Metrics:
        since = now_us - LOOK_BACK_US
        cpu = self._cpu(since, now_us)
        if not cpu:
            return Metrics()
        totals = self._series(CPU_TOTAL, since, now_us) if self._total else {}
        # The newest minute that both have: if one series stops, its last value must not pass for
        # a present one beside the other.
        at_us = max(cpu.keys() & totals.keys() or cpu)
        total = totals.get(at_us)
        size = _near(self._series(self._size, since, now_us), at_us)
        day = _newest(self._series(CPU_24H, since, now_us))
        storage = _newest(self._series(STORAGE, since, now_us))
        return Metrics(
            at_us=at_us,
            cpu=cpu[at_us] * 100,
            cpu_total=None if total is None else total * 100,
            measured_size=None if size is None else round(size),
            cpu_24h=None if day is None else day * 100,
            storage_bytes=None if storage is None else round(storage),
        )

    def past(self, from_us: int, until_us: int) -> Sequence[tuple[int, float]]:
        cpu = self._cpu(from_us, until_us)
        sizes = self._series(self._size, from_us, until_us)
        found = []
        for at_us in sorted(cpu):
            size = _near(sizes, at_us)
            if size is not None:
                found.append((at_us, cpu[at_us] * size))
        return found

    def _cpu(self, from_us: int, until_us: int) -> Points:
        return self._series(CPU, from_us, until_us, ' AND metric.label.priority = "high"')

    def _series(self, metric: str, from_us: int, until_us: int, more: str = "") -> Points:
        request = {
            "name": f"projects/{self._project}",
            "filter": f'metric.type = "{metric}"'
            f' AND resource.label.instance_id = "{self._instance}"{more}',
            "interval": {"start_time": _time(from_us), "end_time": _time(until_us)},
            "aggregation": {
                "alignment_period": {"seconds": PERIOD_S},
                "per_series_aligner": monitoring_v3.Aggregation.Aligner.ALIGN_MAX,
                "cross_series_reducer": monitoring_v3.Aggregation.Reducer.REDUCE_SUM,
            },
            "view": monitoring_v3.ListTimeSeriesRequest.TimeSeriesView.FULL,
        }
        found: Points = {}
        try:
            for series in self._client.list_time_series(request=request, timeout=TIMEOUT_S):
                for point in series.points:
                    end: Any = point.interval.end_time
                    value = point.value.double_value or float(point.value.int64_value)
                    found[round(end.timestamp() * 1_000_000)] = value
        except (api.GoogleAPIError, GoogleAuthError) as error:
            text = str(error).strip().splitlines() or [type(error).__name__]
            raise MetricsError(f"Cloud Monitoring: {text[0][:300]}") from error
        return found


def _time(us: int) -> dict[str, int]:
    return {"seconds": us // 1_000_000, "nanos": us % 1_000_000 * 1_000}


def _newest(points: Points) -> float | None:
    return points[max(points)] if points else None


def _near(points: Points, at_us: int) -> float | None:
    """Return the value at a moment, or the last one before it."""
    before = [each for each in points if each <= at_us]
    return points[max(before)] if before else None
