"""The present values of all metrics, with a bound on how many series there can be.

Programs make the names of queues and tasks. A program with one name per customer would overload a
metrics system. So each label keeps its first `LABEL_MAX` values, and each metric its first
`SERIES_MAX` series. Later ones are added up under `other`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from late.model.histogram import LAST, middle
from late.model.task import Histogram
from late.observability.metrics.catalogue import METRICS, Metric

OTHER = "other"
LABEL_MAX = 200
"""The most different values of one label."""
LABEL_MAXES: Mapping[str, int] = {"task": 500, "shard": 512}
"""Labels with another maximum."""
SERIES_MAX = 4_000
"""The most series of one metric."""
VALUE_LENGTH_MAX = 128

Labels = tuple[str, ...]
"""Values of labels, in the order of `Metric.labels`."""


class Buckets:
    """The counts of one series of a histogram.

    Each bound has the count of values at or below it and above the bound before. One more count
    is of values above the last bound.
    """

    __slots__ = ("counts", "total")

    def __init__(self, bounds: int) -> None:
        self.counts = [0] * (bounds + 1)
        self.total = 0.0


class Sample:
    """The series of one metric at one moment."""

    __slots__ = ("metric", "values")

    def __init__(self, metric: Metric, values: list[tuple[Labels, float | Buckets]]) -> None:
        self.metric = metric
        self.values = values


class Registry:
    """Values by metric and labels. Any thread may call any method.

    Args:
        label_max, series_max: see the module.
    """

    def __init__(self, *, label_max: int | None = None, series_max: int = SERIES_MAX) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {}
        self._buckets: dict[str, dict[Labels, Buckets]] = {}
        self._known: dict[str, set[str]] = {}
        self._label_max = label_max
        self._series_max = series_max

    def add(self, metric: Metric, labels: Labels, value: float) -> None:
        """Add `value` to a counter."""
        with self._lock:
            found = self._values.setdefault(metric.name, {})
            key = self._key(metric, labels, found)
            found[key] = found.get(key, 0.0) + value

    def set(self, metric: Metric, labels: Labels, value: float) -> None:
        """Set the present value of a gauge."""
        with self._lock:
            found = self._values.setdefault(metric.name, {})
            found[self._key(metric, labels, found)] = value

    def observe(self, metric: Metric, labels: Labels, value: float) -> None:
        """Add one value to a histogram."""
        with self._lock:
            buckets = self._of(metric, labels)
            buckets.counts[bisect_left(metric.bounds, value)] += 1
            buckets.total += value

    def merge(self, metric: Metric, labels: Labels, more: Histogram, total: float) -> None:
        """Add many values to a histogram of seconds.

        Args:
            more: their counts, as `late.model.histogram` makes them.
            total: their exact sum.
        """
        if not more:
            return
        with self._lock:
            buckets = self._of(metric, labels)
            counts, places = buckets.counts, _places(metric.bounds)
            for index, count in more:
                counts[places[index]] += count
            buckets.total += total

    def replace(
        self, metrics: Iterable[Metric], values: Iterable[tuple[str, Labels, float]]
    ) -> None:
        """Replace all series of `metrics`, so that old series disappear."""
        with self._lock:
            for metric in metrics:
                self._values[metric.name] = {}
            for name, labels, value in values:
                metric, found = METRICS[name], self._values[name]
                key = self._key(metric, labels, found)
                before = found.get(key)
                found[key] = value if before is None else _merged(metric, before, value)

    def samples(self) -> list[Sample]:
        """Return all metrics that have a value, in the catalogue's order, series by labels."""
        with self._lock:
            found = []
            for name, metric in METRICS.items():
                values: list[tuple[Labels, float | Buckets]] = []
                if metric.kind == "histogram":
                    for labels, buckets in sorted(self._buckets.get(name, {}).items()):
                        copied = Buckets(0)
                        copied.counts, copied.total = list(buckets.counts), buckets.total
                        values.append((labels, copied))
                else:
                    values.extend(sorted(self._values.get(name, {}).items()))
                if values:
                    found.append(Sample(metric, values))
            return found

    def _of(self, metric: Metric, labels: Labels) -> Buckets:
        found = self._buckets.setdefault(metric.name, {})
        key = self._key(metric, labels, found)
        buckets = found.get(key)
        if buckets is None:
            buckets = found[key] = Buckets(len(metric.bounds))
        return buckets

    def _key(self, metric: Metric, labels: Labels, found: Mapping[Labels, object]) -> Labels:
        """Return `labels` within the bounds. Known labels, the usual case, take one look-up."""
        if labels in found:
            return labels
        assert len(labels) == len(metric.labels), f"{metric.name} has {metric.labels}"
        key = tuple(map(self._told, metric.labels, labels))
        if key not in found and len(found) >= self._series_max:
            return (OTHER,) * len(key)
        return key

    def _told(self, label: str, value: str) -> str:
        value = value[:VALUE_LENGTH_MAX]
        known = self._known.setdefault(label, set())
        if value not in known:
            if len(known) >= (self._label_max or LABEL_MAXES.get(label, LABEL_MAX)):
                return OTHER
            known.add(value)
        return value


@cache
def _places(bounds: tuple[float, ...]) -> list[int]:
    """Map each bucket of `late.model.histogram` to the bucket of `bounds` with its middle."""
    return [bisect_left(bounds, middle(index) / 1_000_000) for index in range(LAST + 1)]


def _merged(metric: Metric, one: float, two: float) -> float:
    if metric.merge == "sum":
        return one + two
    return max(one, two) if metric.merge == "max" else min(one, two)


def metrics_of(source: str) -> Sequence[Metric]:
    """The metrics of one source."""
    return [metric for metric in METRICS.values() if metric.source == source]
