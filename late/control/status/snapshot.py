"""One look at a deployment: all that the overview, `late top` and `late doctor` judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from late.autoscaler.keda.demand import Signals
from late.control.views import GroupView, Reported, Status
from late.model.queue_settings import QueueSettings

if TYPE_CHECKING:
    from late.control.control import Control

LIMIT = 1_000
"""Counting the depth of one group and shard stops at this number."""


class Snapshot(msgspec.Struct, frozen=True):
    """The result of one look."""

    status: Status
    signals: Mapping[str, Signals]
    """Signals by group."""
    groups: tuple[GroupView, ...]
    queues: Mapping[str, QueueSettings]
    """Settings of the queues that have any."""
    targets: Mapping[str, QueueSettings] = {}
    """Settings of the targets that have any."""
    paces: Mapping[tuple[str, str], Signals] = {}
    """Signals by (group, queue), of those that have tasks."""
    reports: tuple[Reported, ...] = ()
    """The reports of workers of the last ten minutes, the latest first."""


def look(control: Control, *, limit: int = LIMIT) -> Snapshot:
    """Look once; see `Control` for what it raises."""
    status, signals, paces = control.status.detailed(limit=limit)
    groups = tuple(
        msgspec.structs.replace(each, stale_s=status.stale_s(each.name))
        for each in control.groups.all(seen=status)
    )
    settings = control.queues.live()
    return Snapshot(
        status, signals, groups, settings.queues, settings.targets, paces, control.reports.all()
    )
