"""What of an app a worker can run: pure parts of the wiring in `worker.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from late.app import App
from late.scheduler.entry import ROUTE
from late.scheduler.limits import LOCAL_POOL
from late.task import Policy


def policies_of(app: App) -> dict[str, Policy]:
    """How tasks are run, by name, and by queue for those without."""
    found = {name: task.policy for name, task in app.tasks.items()}
    return found | {ROUTE + queue: policy for queue, policy in app.routes.items()}


def possible(policies: Mapping[str, Policy], pools: Collection[str]) -> dict[str, Policy]:
    """Without those of a target that this worker does not have: such a task is parked like one
    without a handler."""
    return {n: p for n, p in policies.items() if p.target == LOCAL_POOL or p.target in pools}
