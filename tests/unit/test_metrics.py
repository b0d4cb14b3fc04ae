"""Metrics: the catalogue holds together, values are right, their number has a bound."""

from __future__ import annotations

import math
import random
import re
import threading
from bisect import bisect_left
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from late import events
from late.events import EVENTS, Emitter
from late.model.histogram import histogram
from late.observability import metrics
from late.observability.metrics import METRICS, OTHER, Registry, render
from late.observability.metrics.catalogue import TAGS
from late.observability.metrics.registry import LABEL_MAX
from scripts import metrics_doc

OUTCOMES = METRICS["late_outcomes_total"]
RUN = METRICS["late_run_seconds"]
DEPTH = METRICS["late_queue_depth"]
AGE = METRICS["late_queue_oldest_age_seconds"]


def read(registry: Registry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample, as the parser of Prometheus's own client reads it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(render(registry).decode())
        for sample in family.samples
    }


def value(registry: Registry, name: str, **labels: str) -> float:
    return read(registry)[name, frozenset(labels.items())]


def ended(**changed: Any) -> dict[str, Any]:
    """The values of one `ended` event."""
    return {
        "count": 3, "attempts": 3, "retries": 1, "bytes": 30, "busy_s": 0.6, "waiting_s": 0.03,
        "group": "g", "queue": "q", "name": "n", "target": "local", "outcome": "done",
        "waiting": histogram([10_000] * 3), "busy": histogram([200_000] * 3), **changed,
    }  # fmt: skip


def test_the_catalogue_is_well_formed() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        assert re.fullmatch("late_[a-z_]+", name)
        assert name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.bounds) == (metric.kind == "histogram")
        assert list(metric.bounds) == sorted(set(metric.bounds))
        assert metric.text.endswith(".")
        assert (metric.event is None) == (metric.source != "event")
        if (event := metric.event) is not None:
            assert EVENTS[event.name] is event
            assert {TAGS.get(label, label) for label in metric.labels} <= set(event.tags)
            assert metric.measure in ("", *event.measures)
            assert metric.series in ("", *event.series)
            assert not metric.only or "outcome" in event.tags


def test_every_measure_of_an_event_is_a_metric_or_only_of_use_in_a_log() -> None:
    used = {(m.event.name, m.measure) for m in METRICS.values() if m.event is not None}
    left = {
        f"{name}.{measure}"
        for name, event in EVENTS.items()
        for measure in event.measures
        if (name, measure) not in used
    }
    assert left == {
        "attempt_ended.attempt", "attempt_ended.took_s",
        "attempt_failed.attempt", "autoscaled.from_size", "autoscaled.to_size", "autoscaled.wanted",
        "autoscaler_blind.retry_in_s",
        "dead_letter.attempts", "dispatched.count", "event_loop_blocked.blocked_s",
        "event_loop_free.blocked_s", "group_lagging.lag_s", "group_lagging.unread",
        "handler_left.running_s",
        "heartbeat.workers", "members_unknown.members", "pruned.duration_s", "pruned.partitions",
        "pruned.workers", "settlement_refused.retry_in_s", "store_error.retry_in_s",
        "stuck_handler.running_s", "suspects_found.suspects", "tick.tasks",
        "trust_lost.shards", "trust_regained.shards",
    }  # fmt: skip


def test_the_page_is_made_from_the_catalogue() -> None:
    assert metrics_doc.PAGE.read_text() == metrics_doc.page(), "run: python scripts/metrics_doc.py"


def test_usage_becomes_counters_and_histograms() -> None:
    emitter, registry = Emitter(), Registry()
    unfollow = metrics.follow(emitter, registry)
    emitter.emit(events.ENDED, **ended())
    emitter.emit(events.ENDED, **ended(outcome="retried", count=1, attempts=1))
    arrived = ended(outcome="enqueued", count=7, attempts=0, waiting=(), busy=())
    emitter.emit(events.ENDED, **arrived)
    unfollow()
    emitter.emit(events.ENDED, **ended())
    work = {"group": "g", "queue": "q", "task": "n"}
    local = {**work, "target": "local"}
    assert value(registry, "late_outcomes_total", **local, outcome="done") == 3
    assert value(registry, "late_outcomes_total", **local, outcome="retried") == 1
    assert value(registry, "late_enqueued_total", **work) == 7
    assert value(registry, "late_attempts_total", **local) == 4
    assert value(registry, "late_run_seconds_count", **local) == 6
    assert value(registry, "late_run_seconds_sum", **local) == pytest.approx(1.2)
    assert value(registry, "late_run_seconds_bucket", **local, le="0.1") == 0
    assert value(registry, "late_run_seconds_bucket", **local, le="0.25") == 6
    assert value(registry, "late_wait_seconds_bucket", **local, le="0.025") == 6


def test_what_has_not_happened_yet_is_zero_where_there_can_be_one_series_only() -> None:
    """An alert on an increase never sees the first time of a series that begins with it."""
    registry = Registry()
    metrics.follow(Emitter(), registry)
    assert value(registry, "late_stalls_total") == 0
    assert value(registry, "late_trust_lost_total") == 0


def test_what_is_true_or_false_is_a_word() -> None:
    emitter, registry = Emitter(), Registry()
    metrics.follow(emitter, registry)
    emitter.emit(
        events.STORE_ERROR, component="tailer", transient=True, retry_in_s=1.0, error="away"
    )
    assert value(registry, "late_store_errors_total", component="tailer", transient="true") == 1


def test_merged_histograms_are_those_of_the_values_themselves() -> None:
    """Against counting one by one; only what lies within 3.2 % of a bound may differ."""
    rng = random.Random(4)
    durations = [int(10 ** rng.uniform(2, 10)) for _ in range(5_000)]
    near = [1.04 * b for b in RUN.bounds], [b / 1.04 for b in RUN.bounds]
    durations = [
        us for us in durations if bisect_left(near[0], us / 1e6) == bisect_left(near[1], us / 1e6)
    ]
    registry = Registry()
    labels = ("g", "q", "n", "local")
    for start in range(0, len(durations), 100):
        part = durations[start : start + 100]
        registry.merge(RUN, labels, histogram(part), sum(part) / 1e6)
    named = dict(zip(RUN.labels, labels, strict=True))
    for bound in RUN.bounds:
        expected = sum(us / 1e6 <= bound for us in durations)
        le = metrics.prometheus.number(bound)
        found = read(registry)["late_run_seconds_bucket", frozenset({**named, "le": le}.items())]
        assert found == expected, bound
    assert value(registry, "late_run_seconds_count", **named) == len(durations)


def test_labels_beyond_the_bound_are_added_up_and_nothing_is_lost() -> None:
    registry = Registry()
    for number in range(LABEL_MAX + 50):
        registry.add(OUTCOMES, ("g", f"queue-{number}", "n", "local", "done"), 2)
    found = read(registry)
    assert len(found) == LABEL_MAX + 1
    assert sum(found.values()) == 2 * (LABEL_MAX + 50)
    assert value(
        registry, "late_outcomes_total",
        group="g", queue=OTHER, task="n", target="local", outcome="done",
    ) == 100  # fmt: skip


def test_series_of_one_metric_have_a_bound_too() -> None:
    registry = Registry(series_max=100)
    for queue in range(50):
        for task in range(50):
            registry.add(OUTCOMES, ("g", f"q{queue}", f"n{task}", "local", "done"), 1)
    found = read(registry)
    assert len(found) == 101
    assert sum(found.values()) == 2_500


def test_gauges_under_other_are_added_up_or_the_worst_of_them() -> None:
    registry = Registry(label_max=2)
    values = [("late_queue_depth", ("g", f"q{n}"), 10.0) for n in range(5)]
    values += [("late_queue_oldest_age_seconds", ("g", f"q{n}"), float(n)) for n in range(5)]
    registry.replace([DEPTH, AGE], values)
    assert value(registry, "late_queue_depth", group="g", queue=OTHER) == 30
    assert value(registry, "late_queue_oldest_age_seconds", group="g", queue=OTHER) == 4


def test_gauges_of_what_is_gone_are_gone() -> None:
    registry = Registry()
    registry.replace([DEPTH], [("late_queue_depth", ("g", "q"), 1.0)])
    registry.replace([DEPTH], [("late_queue_depth", ("g", "r"), 1.0)])
    assert [dict(labels)["queue"] for _, labels in read(registry)] == ["r"]


def test_a_hostile_name_is_one_value_of_one_label() -> None:
    registry = Registry()
    name = 'x"} 1\nlate_slots 99\\'
    registry.add(OUTCOMES, ("g", name, "n" * 1_000, "local", "\ud800"), 1)
    (((found, labels), count),) = read(registry).items()
    assert (found, count) == ("late_outcomes_total", 1)
    assert dict(labels)["queue"] == name
    assert len(dict(labels)["task"]) == 128


def test_numbers_are_written_as_prometheus_reads_them() -> None:
    assert [metrics.prometheus.number(x) for x in (1.0, 0.25, math.inf, 1e300)] == [
        "1", "0.25", "+Inf", "1e+300",
    ]  # fmt: skip


def test_counting_and_reading_from_several_threads_loses_nothing() -> None:
    registry, stop = Registry(), threading.Event()

    def count(number: int) -> None:
        for n in range(2_000):
            registry.add(OUTCOMES, ("g", f"q{n % 60}", f"n{number}", "local", "done"), 1)

    def reads() -> None:
        while not stop.is_set():
            render(registry)

    threads = [threading.Thread(target=count, args=(number,)) for number in range(3)]
    reader = threading.Thread(target=reads)
    reader.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    reader.join()
    assert sum(read(registry).values()) == 6_000
