"""Values of metrics as Prometheus reads them: text format 0.0.4. Pure.

Source: prometheus/docs, "Text-based format".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from late.observability.metrics.catalogue import Metric
from late.observability.metrics.registry import Buckets, Labels, Registry, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


PREFIX, SHADOW_PREFIX = "late_", "late_shadow_"
"""The beginning of the names, and that of a shadow's: no alert and no dashboard knows those."""


def render(registry: Registry, prefix: str = PREFIX) -> bytes:
    """Render all metrics that have a value; their names begin with `prefix`."""
    samples = registry.samples()
    if prefix != PREFIX:
        samples = [_renamed(sample, prefix) for sample in samples]
    return "".join(_lines(samples)).encode("utf-8", "backslashreplace")


def _renamed(sample: Sample, prefix: str) -> Sample:
    name = prefix + sample.metric.name.removeprefix(PREFIX)
    return Sample(replace(sample.metric, name=name), sample.values)


def _lines(samples: Iterable[Sample]) -> Iterator[str]:
    for sample in samples:
        metric = sample.metric
        yield f"# HELP {metric.name} {metric.text}\n# TYPE {metric.name} {metric.kind}\n"
        for labels, value in sample.values:
            if isinstance(value, Buckets):
                yield from _histogram(metric, labels, value)
            else:
                yield f"{metric.name}{_labels(metric, labels)} {number(value)}\n"


def _histogram(metric: Metric, labels: Labels, buckets: Buckets) -> Iterator[str]:
    below = 0
    for bound, count in zip((*metric.bounds, math.inf), buckets.counts, strict=True):
        below += count
        yield f"{metric.name}_bucket{_labels(metric, labels, number(bound))} {below}\n"
    yield f"{metric.name}_sum{_labels(metric, labels)} {number(buckets.total)}\n"
    yield f"{metric.name}_count{_labels(metric, labels)} {below}\n"


def _labels(metric: Metric, labels: Labels, le: str | None = None) -> str:
    pairs = [f'{name}="{_escaped(text)}"' for name, text in zip(metric.labels, labels, strict=True)]
    if le is not None:
        pairs.append(f'le="{le}"')
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def number(value: float) -> str:
    """Format a number as Prometheus writes it."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
