"""Rules of the page: the role that each route asks of its visitor. Pure.

A route without a rule is not served: `OperatorPage.routes` looks each of them up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from late.control.views import Reported, Status
from late.model.access.rights import Caller
from late.model.access.rules import ADMIN, ADMIN_WHOLE, LANE, OPERATE, VIEW, WHOLE, Rule
from late.model.queue_settings import QueueSettings
from late.model.worker_report import (
    Failing,
    LimitedKey,
    OpenCircuit,
    OutageReport,
    Run,
    SilentConsumer,
    WorkerReport,
)
from late.web.snapshot import Snapshot

OfQueue = TypeVar("OfQueue", Run, OutageReport, Failing, SilentConsumer, LimitedKey, OpenCircuit)

RULES: Mapping[str, Rule] = {
    "": VIEW,
    "live": VIEW,
    "queues": VIEW,
    "queues/{name:text}": Rule("view", "queue"),
    "targets": WHOLE,
    "targets/{name:text}": WHOLE,
    "groups": WHOLE,
    "groups/{group:text}": WHOLE,
    "shards": LANE,
    "shards/{group:text}/{shard:shard}": LANE,
    "tasks": VIEW,
    "tasks/{task_id:text}": VIEW,
    "workflows": VIEW,
    "workflows/{task_id:text}": VIEW,
    "dead": VIEW,
    "schedules": VIEW,
    "workers": WHOLE,
    "conflicts": WHOLE,
    "autoscaler": WHOLE,
    "celery": WHOLE,
    "search": VIEW,
    "cost": VIEW,
    "cost/report": WHOLE,
    "tasks/cancel": OPERATE,
    "tasks/reschedule": OPERATE,
    "tasks/redrive": OPERATE,
    "tasks/{task_id:text}/cancel": OPERATE,
    "tasks/{task_id:text}/redrive": OPERATE,
    "tasks/{task_id:text}/edit": OPERATE,
    "workflows/{task_id:text}/cancel": OPERATE,
    "queues/{name:text}/knobs": Rule("operate", "queue"),
    "queues/{name:text}/undo": Rule("operate", "queue"),
    "targets/{name:text}/knobs": ADMIN_WHOLE,
    "targets/{name:text}/undo": ADMIN_WHOLE,
    "dead/redrive": OPERATE,
    "dead/purge": ADMIN,
    "groups/{group:text}/pause": ADMIN_WHOLE,
    "groups/{group:text}/resume": ADMIN_WHOLE,
    "groups/{group:text}/reset": ADMIN_WHOLE,
    "groups/{group:text}/replay": ADMIN_WHOLE,
    "groups/{group:text}/stop-replay": ADMIN_WHOLE,
    "schedules/{schedule:text}/pause": OPERATE,
    "schedules/{schedule:text}/resume": OPERATE,
    "schedules/{schedule:text}/run": OPERATE,
}
"""The rule of each path below the page's root. `login`, `logout` and `static` are everybody's."""


def narrowed(seen: Snapshot, caller: Caller) -> Snapshot:
    """The part of a snapshot that is of the caller's queues; for who may see all, all of it but
    the rows and statements of transactions, which are for who may `operate` on all."""
    if caller.may_all("operate"):
        return seen
    if caller.may_all("view"):
        return _without_keys(seen)

    paces = {key: pace for key, pace in seen.paces.items() if caller.may("view", key[1])}
    return Snapshot(
        status=narrowed_status(seen.status, caller),
        # The sums of groups are of all queues, so those of the queues take their place.
        signals={f"{group}/{queue}": pace for (group, queue), pace in paces.items()},
        groups=(),
        queues=_settings(seen.queues, caller),
        paces=paces,
        reports=tuple(_report(each, caller) for each in seen.reports),
    )


def _without_keys(seen: Snapshot) -> Snapshot:
    reports = tuple(
        msgspec.structs.replace(each, report=msgspec.structs.replace(each.report, conflicts=()))
        for each in seen.reports
    )
    found = seen.conflicts.without_keys()
    live = seen.live_conflicts.without_keys()
    return msgspec.structs.replace(seen, conflicts=found, live_conflicts=live, reports=reports)


def _report(reported: Reported, caller: Caller) -> Reported:
    """The report of a worker, without targets and without tasks of other queues.

    It is made anew: what a later version adds is hidden until it is named here.
    """
    told = reported.report
    report = WorkerReport(
        told.worker_id, told.address, groups=told.groups, every_s=told.every_s,
        stalled=told.stalled, stalled_since_us=told.stalled_since_us, slots=told.slots,
        running=told.running, unrecorded=told.unrecorded, clock_off_s=told.clock_off_s,
        settling_since_us=told.settling_since_us, unlisted=told.unlisted,
        queues=tuple(queue for queue in told.queues if caller.may("view", queue)),
        stuck=_viewed(told.stuck, caller), runs=_viewed(told.runs, caller),
        silent=_viewed(told.silent, caller), outages=_viewed(told.outages, caller),
        circuits=_viewed(told.circuits, caller),
        failing=_viewed(told.failing, caller),
        limited_keys=_viewed(told.limited_keys, caller),
    )  # fmt: skip
    return msgspec.structs.replace(reported, report=report)


def _viewed(some: tuple[OfQueue, ...], caller: Caller) -> tuple[OfQueue, ...]:
    return tuple(each for each in some if caller.may("view", each.queue))


def narrowed_status(status: Status, caller: Caller) -> Status:
    """The part of a status that is of the caller's queues, and the workers."""
    return msgspec.structs.replace(
        status,
        queues=tuple(each for each in status.queues if caller.may("view", each.queue)),
        unhandled=tuple(each for each in status.unhandled if caller.may("view", each.queue)),
        limited=tuple(each for each in status.limited if caller.may("view", each.queue)),
        limited_keys=_viewed(status.limited_keys, caller),
        pauses=tuple(
            each for each in status.pauses if each.kind == "queue" and caller.may("view", each.name)
        ),
        objectives=tuple(
            each for each in status.objectives if each.queue and caller.may("view", each.queue)
        ),
        shards=(),
        groups=(),
        suspects=(),  # Their queues are not known.
    )


def _settings(found: Mapping[str, QueueSettings], caller: Caller) -> dict[str, QueueSettings]:
    return {name: each for name, each in found.items() if caller.may("view", name)}
