"""The metrics of the replica that the page of `late serve` reads from (`LATE_READ_URL`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from late.concurrency import in_thread
from late.control.replica import ReplicaReads
from late.observability import metrics
from late.observability.metrics import Registry
from late.worker.background import BackgroundJob

EVERY_S = 15.0


def replica_job(reads: ReplicaReads, registry: Registry) -> BackgroundJob:
    """Ask the replica how far behind it is, whether or not somebody watches the page."""
    return BackgroundJob(
        name="replica",
        run=partial(in_thread, partial(_look, reads, registry)),
        period_s=EVERY_S,
        first_s=0.0,
    )


def _look(reads: ReplicaReads, registry: Registry) -> None:
    used, lag_s = False, None
    try:
        used, lag_s = reads.check()
    finally:  # `check` raises if the server is no replica any more: then it is not used.
        registry.replace(metrics.metrics_of("replica"), _values(used, lag_s))


def _values(used: bool, lag_s: float | None) -> Iterator[tuple[str, tuple[str, ...], float]]:
    yield "late_read_replica_used", (), float(used)
    if lag_s is not None:
        yield "late_read_replica_lag_seconds", (), lag_s
