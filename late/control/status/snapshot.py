"""One look at a deployment: all that the overview, `late top` and `late doctor` judge."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from late.autoscaler.keda.demand import Signals
from late.control.analyze.reported import NOTHING, Conflicts, conflicts
from late.control.status.disk import Disk
from late.control.status.locks import LockHolder
from late.control.status.old_transactions import OldTransaction
from late.control.status.replication import Freshness
from late.control.views import GroupView, Reported, Status
from late.errors import StoreError
from late.model.queue_settings import QueueSettings
from late.model.worker_report import Death
from late.schema.version import SCHEMA_VERSION

if TYPE_CHECKING:
    from late.control.control import Control
    from late.control.replica import ReplicaReads

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
    deaths: tuple[Death, ...] = ()
    """The workers that died in the last ten minutes, the latest first."""
    holders: tuple[LockHolder, ...] = ()
    """Sessions of the database that others wait for."""
    transactions: tuple[OldTransaction, ...] = ()
    """Transactions that have written and are old."""
    hidden_sessions: int = 0
    """Sessions of the database whose transactions this login may not see."""
    conflicts: Conflicts = NOTHING
    """The transactions in each other's way, as workers report them."""
    live_conflicts: Conflicts = NOTHING
    """The same of the workers that live: what a stopped one has seen is over."""
    disk: Disk | None = None
    """The disk of a database in a file."""
    write_locked: bool = False
    """Somebody holds the write lock of the file, and no worker is listed."""
    freshness: Freshness | None = None
    """The source of the look, if a replica was asked for it."""
    partial: bool = False
    """True if the tables could not be read, as somebody holds them: then `status` is empty."""


def look(
    control: Control, *, limit: int = LIMIT, reads: ReplicaReads | None = None, fresh: bool = False
) -> Snapshot:
    """Look once; see `Control` for what it raises. While somebody holds the tables, the answer is
    partial and says who.

    Args:
        reads: of a replica of that database; `fresh` as its `read` takes it. Locks are asked of the
            database itself.
    """
    sessions = control.status.sessions()
    try:
        if reads is None:
            seen = _whole(control, limit)
        else:
            seen = reads.read(partial(_whole, limit=limit), fresh=fresh)
            seen = msgspec.structs.replace(seen, freshness=reads.freshness)
    except StoreError:
        # Who holds them now: the first look may have been before.
        holders = control.status.sessions().holders
        if not holders:
            raise
        return _partial(control, holders)
    return msgspec.structs.replace(
        seen,
        holders=sessions.holders,
        transactions=sessions.old,
        hidden_sessions=sessions.hidden.sessions,
    )


def _whole(control: Control, limit: int) -> Snapshot:
    settings, (told, deaths) = control.queues.live(), control.reports.all_and_deaths()
    status, signals, paces = control.status.detailed(
        limit=limit, settings=settings.queues, told=told, groups=settings.groups
    )
    groups = tuple(
        msgspec.structs.replace(each, stale_s=status.stale_s(each.name))
        for each in control.groups.all(seen=status)
    )
    return Snapshot(
        status, signals, groups, settings.queues, settings.targets, paces, told,
        conflicts=conflicts(told), live_conflicts=conflicts(each for each in told if each.live),
        deaths=deaths, disk=control.status.disk(),
        write_locked=not status.workers and control.status.write_locked(),
    )  # fmt: skip


def _partial(control: Control, holders: tuple[LockHolder, ...]) -> Snapshot:
    status = Status(control.now(), SCHEMA_VERSION, "", (), (), ())
    reports: tuple[Reported, ...] = ()
    with suppress(StoreError):
        reports = control.reports.all()
    return Snapshot(status, {}, (), {}, reports=reports, holders=holders, partial=True)
