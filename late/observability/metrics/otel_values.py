"""The values of a registry as OpenTelemetry's metrics, under the same names and labels.

They are made from the registry each time they are sent. OpenTelemetry's instruments were rejected:
they need every single value, and a settlement has only counts by bucket.
"""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from late.observability.metrics.registry import Buckets, Registry, Sample

CUMULATIVE = AggregationTemporality.CUMULATIVE


def data_of(registry: Registry, resource: Resource, since_ns: int, now_ns: int) -> MetricsData:
    """Convert all values, counted since `since_ns`; times are nanoseconds of the wall clock."""
    found = [_metric(sample, since_ns, now_ns) for sample in registry.samples()]
    scope = ScopeMetrics(InstrumentationScope("late"), found, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(sample: Sample, since_ns: int, now_ns: int) -> Metric:
    metric = sample.metric
    points: list[Any] = []
    for labels, value in sample.values:
        attributes = dict(zip(metric.labels, labels, strict=True))
        if isinstance(value, Buckets):
            points.append(
                HistogramDataPoint(
                    attributes=attributes,
                    start_time_unix_nano=since_ns,
                    time_unix_nano=now_ns,
                    count=sum(value.counts),
                    sum=value.total,
                    bucket_counts=value.counts,
                    explicit_bounds=metric.bounds,
                    # They are not known, and None is not sent.
                    min=None,  # type: ignore[arg-type]
                    max=None,  # type: ignore[arg-type]
                )
            )
        else:
            start_ns = since_ns if metric.kind == "counter" else None
            points.append(NumberDataPoint(attributes, start_ns, now_ns, value))  # type: ignore[arg-type]
    data: Any
    if metric.kind == "histogram":
        data = Histogram(points, CUMULATIVE)
    elif metric.kind == "counter":
        data = Sum(points, CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge(points)
    unit = "s" if "_seconds" in metric.name else "By" if "_bytes" in metric.name else "1"
    return Metric(metric.name, metric.text, unit, data)
