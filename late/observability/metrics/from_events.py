"""Turn events into values of metrics, by the catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from late.events import Emitter, Event
from late.observability.metrics.catalogue import METRICS, TAGS, Metric
from late.observability.metrics.registry import Registry

_Take = Callable[[Mapping[str, Any]], None]


def follow(emitter: Emitter, registry: Registry) -> Callable[[], None]:
    """Count every event of `emitter` from now on; return a function that ends it."""
    takers: dict[str, list[_Take]] = {}
    listened: dict[str, Event] = {}
    for metric in METRICS.values():
        if metric.event is not None:
            listened[metric.event.name] = metric.event
            takers.setdefault(metric.event.name, []).append(_taker(metric, registry))
            if metric.kind == "counter" and not metric.labels:
                # It begins at zero: a series that begins at one has no increase for an alert.
                registry.add(metric, (), 0.0)

    def take(event: Event, values: Mapping[str, Any]) -> None:
        for each in takers[event.name]:
            each(values)

    return emitter.subscribe(take, listened.values())


def _taker(metric: Metric, registry: Registry) -> _Take:
    """Make the function that updates one metric from its event."""
    labels_of = _labels([TAGS.get(label, label) for label in metric.labels])
    measure, series, only = metric.measure, metric.series, metric.only

    def take(values: Mapping[str, Any]) -> None:
        if only and not _meant(only, values["outcome"]):
            return
        labels = labels_of(values)
        value = values[measure] if measure else 1
        if series:
            registry.merge(metric, labels, values[series], value)
        elif metric.kind == "histogram":
            registry.observe(metric, labels, value)
        elif metric.kind == "gauge":
            registry.set(metric, labels, value)
        elif value:
            registry.add(metric, labels, value)

    return take


def _labels(tags: list[str]) -> Callable[[Mapping[str, Any]], tuple[str, ...]]:
    """Make the function that reads the values of `tags`, most of which are texts."""
    if len(tags) > 1 and not _NO_TEXTS & set(tags):
        return itemgetter(*tags)
    return lambda values: tuple([_text(values[tag]) for tag in tags])


_NO_TEXTS = {"shard", "transient"}


def _meant(only: str, outcome: str) -> bool:
    return outcome != only[1:] if only[0] == "!" else outcome == only


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)
